"""What tests of the audit share: a distance, a budget that takes a second, and networks for digits."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

import dubio
from dubio.attacks import Progress
from dubio.auditing.records import BUDGETS, Audit
from dubio.auditing.session import AuditSession, PartialResults
from dubio.methods.method import Method

EPSILON = 0.1
TINY = replace(
    BUDGETS["quick"],
    num_images=40,
    num_samples=3,
    steps=4,
    select_draws=5,
    score_draws=10,
    eot=(1, 2),
    step_counts=(2, 4),
    square_steps=5,
    noise_tries=2,
    num_goals=1,
)
"""A few images, steps and draws: what is found means little, and every part runs."""


def trained(method: Method | None, adversarial: bool = False, epochs: int = 15) -> nn.Module:
    """A network for digits, against PGD where that is wanted."""
    splits = dubio.data.load("digits")
    assert splits.train is not None
    torch.manual_seed(0)
    net = dubio.models.build("fc:100-100", inputs=splits.train.shape, num_classes=10)
    model = net if method is None else method.convert(net)
    objective = None
    if adversarial:
        assert method is not None
        attack = dubio.attacks.PGD(epsilon=EPSILON, steps=4, num_samples=1)
        objective = dubio.Adversarial(method.objective(len(splits.train)), attack)
    dubio.fit(model, splits.train, objective=objective, epochs=epochs, lr=2e-3, progress=False)
    return model.eval()


def session_for(model: Any, data: Any, **options: Any) -> AuditSession:
    """A session for one check, with few images."""
    inputs, targets = data.tensors if isinstance(data, dubio.data.Examples) else data
    chosen = {"norm": "linf", "epsilon": EPSILON, "bounds": (0.0, 1.0), "budget": TINY, "seed": 0, **options}
    count = chosen["budget"].num_images
    hidden = Progress(1, "", visible=False)
    return AuditSession(
        model, inputs[:count], targets[:count], keeper=PartialResults(None, {}), progress=hidden, **chosen
    )


def verdicts(found: Audit) -> dict[str, str]:
    return {check.id: check.status for check in found.checks}
