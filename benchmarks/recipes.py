"""The search for the default recipes: which settings of each method are level with the plain network, on seven sets.

Every trial trains one network as ``dubio.fit`` does and judges it on validation and test data by the mean over 30
draws. Settings were chosen by the validation NLL of seed 0. Sets: digits; digits of other writers than those trained
on; 5,000 images of MNIST; three UCI tables, standardised, with ``Gaussian("output")``; and LeNet on 3,000
images of CIFAR-10.

MNIST and CIFAR-10 are read from ``DUBIO_DATA``, and the tables ``uci-*.npz`` from ``DUBIO_UCI``.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import dubio
from dubio.cli.fields import make_method
from dubio.data.examples import Examples, Splits, with_validation
from dubio.likelihoods import Categorical, Gaussian

NUM_DRAWS = 30
MODELS: dict[str, tuple[str, int]] = {"mnist": ("fc:100-100", 20), "cifar": ("lenet", 10)}
"""Network and epochs of a set, where they are not those of ``dubio train``."""
TABLES = ("boston", "concrete", "energy")
SETS = ("digits", "writers", *TABLES, "mnist", "cifar")
SEEDS = dict.fromkeys(SETS, (0, 1, 2)) | dict.fromkeys(("writers", "mnist", "cifar"), (0,))
"""Of the defaults before and since; three sets have one seed, for time."""
RATES: dict[str, Any] = {"lr": 2e-3, "noise_lr": 2e-3}
NOISE_RATES: dict[str, dict[str, Any]] = {"flow": {"noise_lr": 2e-2}}
"""Spelt out, so that a record means the same whatever the defaults become."""
SCORES = ("nll", "accuracy", "ece", "rmse")


class Trial(NamedTuple):
    """One network: its data, its method with these fields beside the defaults, and options of ``dubio.fit``."""

    data: str
    method: str
    fields: dict[str, Any]
    seed: int
    options: dict[str, Any]


@cache
def splits_of(name: str, seed: int) -> Splits:
    """Data of a set; of a table the split of this number."""
    if name == "digits":
        return dubio.data.load("digits")
    if name == "writers":
        return _by_writer()
    if name in TABLES:
        return _table(name, seed)
    if name == "mnist":
        stored = dubio.data.load("mnist", validation=1000)
        return _first(stored, 5000, 5000)
    return _first(dubio.data.load("cifar10", validation=1000), 3000, 2000)


def _by_writer() -> Splits:
    """The digits in the order they were collected in: the last quarter is of writers that the rest is not of."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]

    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    examples = Examples(inputs, torch.tensor(labels).long(), tuple("0123456789"), "digits by writer")
    border = len(examples) - len(examples) // 4
    return with_validation(examples[:border], examples[border:])


def _first(splits: Splits, num_train: int, num_test: int) -> Splits:
    assert splits.train is not None
    assert splits.test is not None
    return replace(splits, train=splits.train[:num_train], test=splits.test[:num_test])


def _table(name: str, seed: int) -> Splits:
    """A split of a UCI table, standardised by its training part."""
    stored = np.load(Path(os.environ["DUBIO_UCI"]) / f"uci-{name}.npz")
    table, for_test = torch.tensor(stored["table"], dtype=torch.float32), np.zeros(len(stored["table"]), dtype=bool)
    for_test[stored["test_rows"][seed]] = True
    seen = table[~for_test]
    table = (table - seen.mean(dim=0)) / seen.std(dim=0).clamp_min(1e-6)
    examples = Examples(table[:, :-1], table[:, -1:], name=name)
    return with_validation(examples[~for_test], examples[for_test], 0.2)


def run_trial(trial: Trial) -> dict[str, Any]:
    """Train one network and judge it."""
    splits = splits_of(trial.data, trial.seed)
    assert splits.train is not None
    assert splits.validation is not None
    assert splits.test is not None
    model_name, epochs = MODELS.get(trial.data, ("fc:100-100", 50))
    torch.manual_seed(trial.seed)
    num_classes = len(splits.train.classes)
    net = dubio.models.build(model_name, inputs=splits.train.shape, num_classes=num_classes or 2)
    method = make_method(trial.method, trial.fields)
    model = method.convert(net, Categorical() if num_classes else Gaussian("output"))
    began = time.process_time()
    rates = RATES | NOISE_RATES.get(trial.method, {}) | trial.options
    options: Any = {"epochs": epochs, "seed": trial.seed, "fast": False, "progress": False, **rates}
    dubio.fit(model, splits.train, splits.validation, **options)
    seconds = time.process_time() - began
    return {"validation": judge(model, splits.validation), "test": judge(model, splits.test), "seconds": seconds}


def judge(model: torch.nn.Module, examples: Examples) -> dict[str, float]:
    """NLL with accuracy and ECE, or with RMSE and what intervals of 95 % hold."""
    result = dubio.evaluate(model, examples, num_samples=NUM_DRAWS, num_resamples=0, double=False)
    scores = {name: metric.value for name, metric in result.metrics.items() if name in SCORES}
    held = [row.coverage.value for row in result.intervals if row.level == 0.95]
    return scores | ({"coverage": held[0]} if held else {})


def run_trials(trials: Sequence[Trial], path: Path | None) -> list[dict[str, Any]]:
    """The records of these trials: those that the file of JSON lines has, and the others, which are added to it."""
    lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.is_file() else []
    done = {json.dumps(record["trial"]): record for record in map(json.loads, lines)}
    for number, own in enumerate(trials, start=1):
        key = json.dumps(own._asdict())
        if key in done:
            continue
        done[key] = {"trial": own._asdict(), **run_trial(own)}
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[key]) + "\n")
        nll = ", ".join(f"{part} {done[key][part]['nll']:.4f}" for part in ("validation", "test"))
        print(f"{number}/{len(trials)} {own.data} {own.method} {own.fields} seed {own.seed}: {nll}", flush=True)
    return [done[json.dumps(own._asdict())] for own in trials]


def measure(device: torch.device, kept: Path | None = None) -> dict[str, Any]:
    """All trials; those that ``kept`` has, a file of JSON lines, are not run again."""
    torch.set_num_threads(1)
    settings = {"draws": NUM_DRAWS, "sets": SETS, "before": BEFORE, "after": AFTER}
    return {"settings": settings, "trials": run_trials(plan(), kept)}


def _bayes(beta: str, init_std: str, prior: str = "normal:0,1") -> dict[str, str]:
    return {"prior": prior, "init_std": init_std, "beta": beta}


def _dropout(p: str) -> dict[str, str]:
    return {"p": p, "alpha": "0"}


def _wasserstein(margin: str, feature_weight: str, class_weight: str) -> dict[str, str]:
    return {"margin": margin, "feature_weight": feature_weight, "class_weight": class_weight}


BEFORE: dict[str, dict[str, str]] = {
    "deterministic": {},
    "bayes": _bayes("1", "0.05"),
    "dropout": _dropout("0.2"),
    "input-noise": {"beta": "1", "init_std": "0.05"},
    "flow": {"beta": "1", "prior": "normal:1,0.5"},
    "se-snn": {"weight": "0.1", "margin": "0"},
    "vib": {"beta": "0.001"},
    "pni": {"init": "0.25"},
    "wasserstein": _wasserstein("2", "0.03", "0.3"),
    "ensemble": {"members": "5"},
}
"""The defaults before the search."""
AFTER = BEFORE | {
    "bayes": _bayes("0.03", "0.005"),
    "dropout": _dropout("0.05"),
    "vib": {"beta": "0.0001"},
    "pni": {"init": "0.1"},
}
"""Those since."""
FEW = ("digits", "energy")
TRIED: list[tuple[str, dict[str, str], Sequence[str]]] = [
    *(("bayes", _bayes(beta, "0.05"), SETS) for beta in ("0.1", "0.03", "0.01")),
    *(("bayes", _bayes(beta, std), FEW) for beta, std in (("0.01", "0.01"), ("0.003", "0.01"), ("0.01", "0.005"))),
    ("bayes", _bayes("0.003", "0.005"), FEW),
    ("bayes", _bayes("0.03", "0.01"), ("digits",)),
    ("bayes", _bayes("1", "0.01", "centred:0.02"), ("digits",)),
    ("bayes", _bayes("0.001", "0.005"), ("energy",)),
    ("dropout", _dropout("0.1"), SETS),
    ("dropout", _dropout("0.02"), FEW),
    ("dropout", _dropout("0.01"), ("energy",)),
    ("input-noise", {"beta": "0.1", "init_std": "0.05"}, ("digits",)),
    ("flow", {"beta": "0.1", "prior": "normal:1,0.5"}, FEW),
    ("flow", {"beta": "1", "prior": "normal:1,0.2"}, FEW),
    ("flow", {"beta": "1", "prior": "normal:1,0.1"}, FEW),
    ("se-snn", {"weight": "0.1", "margin": "-1"}, ("digits",)),
    ("se-snn", {"weight": "0.1", "margin": "-2"}, FEW),
    ("se-snn", {"weight": "0.01", "margin": "0"}, FEW),
    ("pni", {"init": "0.05"}, FEW),
    ("wasserstein", _wasserstein("0.1", "0.03", "0.3"), ("digits",)),
    ("wasserstein", _wasserstein("0.1", "0.003", "0.03"), ("digits",)),
    ("wasserstein", _wasserstein("0.01", "0.03", "0.3"), ("digits",)),
]
"""What else was tried with seed 0, and on which sets."""
RATES_TRIED = ({"lr": 5e-3, "noise_lr": 5e-3}, {"lr": 5e-4, "noise_lr": 5e-4})
"""Of Wasserstein, on digits."""


def plan() -> list[Trial]:
    """Every trial: the defaults before and after with all seeds, what else was tried with one."""
    both = {
        method: [BEFORE[method], *([AFTER[method]] if AFTER[method] != BEFORE[method] else [])] for method in BEFORE
    }
    judged = [
        Trial(data, method, fields, seed, {})
        for data in SETS
        for seed in SEEDS[data]
        for method, choices in both.items()
        for fields in choices
        if not (data in TABLES and method == "wasserstein")  # which knows classes alone
    ]
    searched = [Trial(data, method, fields, 0, {}) for method, fields, sets in TRIED for data in sets]
    rates = [Trial("digits", "wasserstein", BEFORE["wasserstein"], 0, own) for own in RATES_TRIED]
    return [*judged, *searched, *rates]
