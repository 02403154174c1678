"""Steps that are kept from run to run: the runs are what they would be alone, and a step is made once."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.training import batch_loss
from networks import mlp

INPUTS = torch.rand(40, 6, generator=torch.Generator().manual_seed(1))
LABELS = [torch.randint(3, (40,), generator=torch.Generator().manual_seed(seed)) for seed in (2, 3)]
OPTIONS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "schedule": "cosine", "progress": False}
OPTIMIZERS: dict[str, Any] = {
    "adam": None,
    "sgd, momentum": lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True),
    "sgd, dampening": lambda groups: torch.optim.SGD(groups, momentum=0.9, dampening=0.5),
    "adagrad": torch.optim.Adagrad,
}


def beginnings() -> list[nn.Module]:
    torch.manual_seed(0)
    return [dubio.Bayes().convert(mlp(6, 8, 3)) for _ in LABELS]


def runs(steps: dubio.StepCache, **options: Any) -> list[dict[str, Tensor]]:
    """The weights after a run for each labelling, in one module."""
    first, *_ = nets = beginnings()
    place, ends = copy.deepcopy(first), []
    for seed, (net, labels) in enumerate(zip(nets, LABELS, strict=True)):
        place.load_state_dict(net.state_dict())
        dubio.fit(place, (INPUTS, labels), seed=seed, steps=steps, **{**OPTIONS, **options})
        ends.append(copy.deepcopy(place.state_dict()))
    return ends


@pytest.mark.feature("A network is trained again, from other weights or on other labels, without compiling it again")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_runs_with_a_kept_step_are_those_with_new_ones(name: str) -> None:
    steps = dubio.StepCache()
    kept = runs(steps, optimizer=OPTIMIZERS[name])
    for seed, (net, labels) in enumerate(zip(beginnings(), LABELS, strict=True)):
        dubio.fit(net, (INPUTS, labels), seed=seed, optimizer=OPTIMIZERS[name], **OPTIONS)
        assert all(torch.equal(tensor, kept[seed][name]) for name, tensor in net.state_dict().items())
    # Where zeros are not what an optimiser begins with, nothing is kept.
    assert steps.num_made == (2 if name in ("sgd, dampening", "adagrad") else 1)


@pytest.mark.slow
def test_a_kept_step_is_compiled_once(quick_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_loss, "BACKEND", "aot_eager")
    calls: list[Any] = []
    compiled = batch_loss.compiled
    monkeypatch.setattr("dubio.training.steps.compiled", lambda *args: calls.append(args[0]) or compiled(*args))
    runs(dubio.StepCache(), fast=True)
    assert calls == [batch_loss.compute]


def halved(likelihood: Any, outputs: Tensor, targets: Tensor, scale: Tensor | None) -> Tensor:
    return 0.5 * likelihood.nll(outputs, targets, scale)


def doubled(likelihood: Any, outputs: Tensor, targets: Tensor, scale: Tensor | None) -> Tensor:
    return 2.0 * likelihood.nll(outputs, targets, scale)


def test_a_step_is_made_anew_for_another_network_or_another_way_of_training() -> None:
    steps = dubio.StepCache()
    net, other = beginnings()
    dubio.fit(net, (INPUTS, LABELS[0]), steps=steps, **OPTIONS)
    changes: list[dict[str, Any]] = [
        {},  # another network alone
        {"lr": 0.1},
        {"weight_decay": 0.1},
        {"num_samples": 3},
        {"objective": dubio.ELBO(beta=0.5)},
        {"objective": dubio.ELBO(losses=halved)},
        {"objective": dubio.ELBO(losses=doubled)},
        {"clip_norm": 1.0},
        {"accumulate": 2},
        {"epochs": 3},  # how many steps there are says whether compiling is tried
    ]
    options = dict(OPTIONS)
    for number, change in enumerate(changes, start=2):
        options |= change
        dubio.fit(other, (INPUTS, LABELS[0]), steps=steps, **options)
        assert steps.num_made == number
    dubio.fit(other, (INPUTS, LABELS[0]), steps=steps, **options)
    assert steps.num_made == len(changes) + 1
    next(other.parameters()).requires_grad_(False)
    dubio.fit(other, (INPUTS, LABELS[0]), steps=steps, **options)
    assert steps.num_made == len(changes) + 2


def test_a_run_that_broke_leaves_nothing_behind() -> None:
    steps = dubio.StepCache()
    net, _ = beginnings()
    start = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        next(net.parameters()).fill_(torch.inf)
    with pytest.raises(FloatingPointError, match="loss is"):
        dubio.fit(net, (INPUTS, LABELS[0]), steps=steps, **OPTIONS)
    net.load_state_dict(start)
    run = dubio.fit(net, (INPUTS, LABELS[0]), steps=steps, **OPTIONS)
    assert steps.num_made == 1
    alone = beginnings()[0]
    assert dubio.fit(alone, (INPUTS, LABELS[0]), **OPTIONS).history[-1]["loss"] == run.history[-1]["loss"]


def test_a_run_that_is_resumed_keeps_no_steps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="steps must be None for a run that is resumed"):
        dubio.fit(
            beginnings()[0], (INPUTS, LABELS[0]), folder=tmp_path, resume=True, steps=dubio.StepCache(), **OPTIONS
        )


@dataclass(frozen=True)
class Weighing(dubio.ELBO):
    """An objective that holds a tensor, which cannot say in one word whether it equals another."""

    weights: Tensor = field(default_factory=lambda: torch.ones(2))


def test_an_objective_that_cannot_be_compared_makes_a_new_step() -> None:
    steps, (net, _) = dubio.StepCache(), beginnings()
    for number in (1, 2):
        dubio.fit(net, (INPUTS, LABELS[0]), objective=Weighing(), steps=steps, **OPTIONS)
        assert steps.num_made == number
