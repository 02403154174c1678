"""How every method does on handwritten digits with its own defaults, and what alpha changes for dropout.

Each method converts a new network 64-100-100-10 and is trained as ``dubio.fit`` trains it unless told otherwise, with
seeds 0, 1 and 2; test data and images of uniform noise are judged by the mean over 100 draws. Dropout is trained with
alpha 0, 0.5 and 1, with ten draws for each step and five seeds, the same for every alpha.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import dubio
from dubio.cli.evaluate import noise_like
from dubio.methods import METHODS
from dubio.methods.method import Method

MODEL = "fc:100-100"
SEEDS = (0, 1, 2)
TEST_DRAWS = 100
ALPHAS, ALPHA_DRAWS, ALPHA_SEEDS = (0.0, 0.5, 1.0), 10, (0, 1, 2, 3, 4)


def train(
    method: Method, seed: int, num_samples: int | None = None, epochs: int | None = None
) -> tuple[nn.Module, float]:
    """A network for digits, and the seconds that its training took."""
    digits = dubio.data.load("digits")
    assert digits.train is not None
    torch.manual_seed(seed)
    model = method.convert(dubio.models.build(MODEL, inputs=digits.train.shape, num_classes=10))
    began = time.perf_counter()
    options: Any = {"num_samples": num_samples, "epochs": epochs, "seed": seed, "progress": False}
    dubio.fit(model, digits.train, digits.validation, **options)
    return model, time.perf_counter() - began


def judge(model: nn.Module) -> dict[str, float]:
    """Accuracy, NLL and entropy on test digits, and the entropy on as many images of uniform noise."""
    test = dubio.data.load("digits").test
    assert test is not None
    unseen = {"noise": noise_like(test)}
    found = dubio.evaluate(model, test, ood=unseen, num_samples=TEST_DRAWS, num_resamples=0, double=False)
    known = {name: found.metrics[name].value for name in ("accuracy", "nll", "entropy")}
    return known | {"entropy_on_noise": found.uncertainty["noise"].entropy}


def measure(device: torch.device) -> dict[str, Any]:
    test = dubio.data.load("digits").test
    assert test is not None
    settings = {"model": MODEL, "num_test": len(test), "test_draws": TEST_DRAWS, "alpha_draws": ALPHA_DRAWS}
    return {"settings": settings, "defaults": measure_defaults(), "alpha": measure_alpha()}


def measure_defaults() -> list[dict[str, Any]]:
    print(f"digits, {MODEL}, mean over {len(SEEDS)} seeds, slowest fit")
    print("method        accuracy     NLL  entropy  on noise  seconds")
    records = []
    for name, kind in METHODS.items():
        for seed in SEEDS:
            model, seconds = train(kind(), seed)
            records.append({"method": name, "spec": repr(kind()), "seed": seed, **judge(model), "seconds": seconds})
        own = [record for record in records if record["method"] == name]
        means = [mean(own, figure) for figure in ("accuracy", "nll", "entropy", "entropy_on_noise")]
        slowest = max(record["seconds"] for record in own)
        print(f"{name:<12}" + "  {:8.4f}  {:6.4f}  {:7.4f}  {:8.4f}".format(*means) + f"  {slowest:.1f}", flush=True)
    return records


def measure_alpha() -> list[dict[str, Any]]:
    print(f"dropout, {ALPHA_DRAWS} draws for each step, {len(ALPHA_SEEDS)} seeds\nalpha  test log-likelihood")
    records = []
    for alpha in ALPHAS:
        for seed in ALPHA_SEEDS:
            model, seconds = train(dubio.Dropout(p=0.2, alpha=alpha), seed, ALPHA_DRAWS)
            records.append({"alpha": alpha, "seed": seed, **judge(model), "seconds": seconds})
        own = [-record["nll"] for record in records if record["alpha"] == alpha]
        error = statistics.stdev(own) / len(own) ** 0.5
        print(f"{alpha:5}  {statistics.mean(own):.4f} +- {error:.4f}", flush=True)
    return records


def mean(records: Sequence[dict[str, Any]], figure: str) -> float:
    return statistics.mean(record[figure] for record in records)
