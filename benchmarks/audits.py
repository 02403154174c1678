"""Audits of networks for handwritten digits: what is left of each, and whether it can be believed.

Five methods are trained with their own defaults, and two more networks against PGD with one draw for each step; all are
audited at the same distance: on scikit-learn's digits with the budget ``quick``, and on MNIST, which wants a GPU, with
``full``. Where AutoAttack is installed, ``measure_autoattack`` lets it join the audits of two controls on MNIST (C12).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

import dubio
from dubio.methods.method import Method

EPSILON = 0.1
STEPS = 7


@dataclass(frozen=True)
class Setting:
    """What is trained on what, and how it is audited."""

    data: str
    model: str
    budget: Literal["quick", "full"]
    epochs: int | None
    """None is the method's own number."""
    epochs_against_pgd: int
    batch_size: int


DIGITS = Setting("digits", "fc:100-100", "quick", None, 40, 128)
MNIST = Setting("mnist", "fc:400-400", "full", 8, 8, 256)
CONTROLS = Setting("mnist", "fc:400-400", "quick", 3, 3, 256)
PLAIN: dict[str, Method] = {
    "deterministic": dubio.Deterministic(),
    "dropout": dubio.Dropout(),
    "bayes": dubio.Bayes(beta=1.0, init_std=0.05),
    "flow": dubio.Flow(),
    "wasserstein": dubio.Wasserstein(),
}
AGAINST_PGD: dict[str, Method] = {
    "deterministic, trained against PGD": dubio.Deterministic(),
    "bayes, trained against PGD": dubio.Bayes(beta=1.0, init_std=0.05),
}


def train(method: Method, against_pgd: bool, setting: Setting, device: torch.device) -> nn.Module:
    """A network with the defaults of its method, or trained against an attack."""
    splits = dubio.data.load(setting.data)
    assert splits.train is not None
    torch.manual_seed(0)
    net = dubio.models.build(setting.model, inputs=splits.train.shape, num_classes=10)
    model = method.convert(net).to(device)
    objective, epochs = None, setting.epochs
    if against_pgd:
        attack = dubio.attacks.PGD(epsilon=EPSILON, steps=STEPS, num_samples=1)
        objective, epochs = dubio.Adversarial(method.objective(len(splits.train)), attack), setting.epochs_against_pgd
    dubio.fit(
        model,
        splits.train,
        splits.validation,
        objective=objective,
        epochs=epochs,
        batch_size=setting.batch_size,
        device=str(device),
        progress=False,
    )
    return model


def measure(device: torch.device) -> dict[str, Any]:
    return audit_all(DIGITS, torch.device("cpu"))


def measure_mnist(device: torch.device) -> dict[str, Any]:
    torch.set_float32_matmul_precision("high")
    return audit_all(MNIST, device)


def measure_autoattack(device: torch.device) -> dict[str, Any]:
    names = ("deterministic", "deterministic, trained against PGD")
    return audit_all(CONTROLS, device, names)


def audit_all(setting: Setting, device: torch.device, names: Sequence[str] = ()) -> dict[str, Any]:
    """Train and audit every network of a setting, or those that are named."""
    test = dubio.data.load(setting.data).test
    assert test is not None
    print("network                               clean   R_pred  seconds  status")
    records = []
    networks = PLAIN | AGAINST_PGD
    for name in names or networks:
        method = networks[name]
        model = train(method, name in AGAINST_PGD, setting, device)
        began = time.perf_counter()
        found = dubio.audit(model, test, epsilon=EPSILON, budget=setting.budget, progress=False)
        seconds = time.perf_counter() - began
        records.append({"network": name, "method": repr(method), "seconds": seconds, **summarise(found)})
        left = f"{found.clean.value:7.1%}  {found.r_pred.value:7.1%}  {seconds:7.1f}"
        print(f"{name:<36}{left}  {found.status}", flush=True)
    return {"settings": settings_of(setting, found), "networks": records}


def settings_of(setting: Setting, found: dubio.Audit) -> dict[str, Any]:
    """What a table says above its rows."""
    return {
        "data": setting.data,
        "model": setting.model,
        "epsilon": EPSILON,
        "budget": setting.budget,
        "num_images": found.headline.num_images,
        "draws": found.headline.num_draws,
    }


def summarise(found: dubio.Audit) -> dict[str, Any]:
    """The figures of an audit that a table shows."""
    fgsm = next(attack for attack in found.attacks if attack.name == "fgsm")
    return {
        "status": found.status,
        "headline": found.headline.accuracy,
        "low": found.headline.low,
        "high": found.headline.high,
        "clean": found.clean.value,
        "r_1": found.r_1.value,
        "r_retry": found.r_retry.value,
        "r_frozen": found.r_frozen,
        "fgsm": fgsm.accuracy,
        "failed": [check.id for check in found.failed],
        "warned": [check.id for check in found.checks if check.status == "warn"],
        "words": {check.id: check.words for check in found.checks},
        "check_seconds": {check.id: check.seconds for check in found.checks},
        "curves": {check.id: [[point.x, point.accuracy] for point in check.curve] for check in found.checks},
    }
