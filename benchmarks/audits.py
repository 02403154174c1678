"""Audits of networks for handwritten digits: what is left of each, and whether it can be believed.

Five methods are trained with their own defaults, and two more networks against PGD with one draw for each step; all are
audited at the same distance with the budget ``quick``.
"""

import time
from typing import Any

import torch
from torch import nn

import dubio
from dubio.methods import Method

MODEL = "fc:100-100"
EPSILON = 0.1
BUDGET = "quick"
STEPS, EPOCHS = 7, 40
PLAIN: dict[str, Method] = {
    "deterministic": dubio.Deterministic(),
    "dropout": dubio.Dropout(),
    "bayes": dubio.Bayes(),
    "flow": dubio.Flow(),
    "wasserstein": dubio.Wasserstein(),
}
AGAINST_PGD: dict[str, Method] = {
    "deterministic, trained against PGD": dubio.Deterministic(),
    "bayes, trained against PGD": dubio.Bayes(),
}


def train(method: Method, against_pgd: bool) -> nn.Module:
    """A network for digits, with the defaults of its method or against an attack."""
    digits = dubio.data.load("digits")
    assert digits.train is not None
    torch.manual_seed(0)
    model = method.convert(dubio.models.build(MODEL, inputs=digits.train.shape, num_classes=10))
    objective = None
    if against_pgd:
        attack = dubio.attacks.Pgd(epsilon=EPSILON, steps=STEPS, num_samples=1)
        objective = dubio.Adversarial(method.objective(len(digits.train)), attack)
    epochs = EPOCHS if against_pgd else None
    dubio.fit(model, digits.train, digits.validation, objective=objective, epochs=epochs, progress=False)
    return model


def measure(device: torch.device) -> dict[str, Any]:
    test = dubio.data.load("digits").test
    assert test is not None
    print("network                               clean   R_pred  seconds  status")
    records = []
    for name, method in (PLAIN | AGAINST_PGD).items():
        model = train(method, name in AGAINST_PGD)
        began = time.perf_counter()
        found = dubio.audit(model, test, epsilon=EPSILON, budget=BUDGET, progress=False)  # type: ignore[arg-type]
        seconds = time.perf_counter() - began
        records.append({"network": name, "method": repr(method), "seconds": seconds, **summarise(found)})
        left = f"{found.clean.value:7.1%}  {found.r_pred.value:7.1%}  {seconds:7.1f}"
        print(f"{name:<36}{left}  {found.status}", flush=True)
    settings = {
        "model": MODEL,
        "epsilon": EPSILON,
        "budget": BUDGET,
        "num_images": found.headline.num_images,
        "draws": found.headline.num_draws,
    }
    return {"settings": settings, "networks": records}


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
