"""Compared with others: another network, another library, what is known. C10, C12, C24, C25."""

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dubio import functional
from dubio.attacks import Pgd, score
from dubio.attacks.victims import Model
from dubio.auditing.bench import Bench
from dubio.auditing.checks.check import Finding
from dubio.conversion import to_mean
from dubio.training import fit

__all__ = ["REFERENCES", "autoattack_agrees", "beats_twin", "plausible", "twin_falls"]

TWIN_LIMIT = 0.01
FALLEN = 0.02
FAR = 0.3
EPOCHS, LEARNED = 40, 0.9


@dataclasses.dataclass(frozen=True)
class Reference:
    """The best that is published for one threat model."""

    data: str
    norm: str
    epsilon: float
    accuracy: float
    source: str


REFERENCES = (
    Reference("cifar10", "linf", 8 / 255, 0.585, "the best 18-layer network of RobustBench, with generated images"),
)


def beats_twin(twin: Model | None) -> Callable[[Bench], Finding]:
    """C10: the network with its noise off, against an adversarially trained network without noise."""

    def run(bench: Bench) -> Finding:
        if twin is None:
            return Finding("skipped", "No adversarially trained network without noise was given to compare with.")
        attack = dataclasses.replace(bench.main(), restarts=bench.budget.restarts)
        try:
            own = dataclasses.replace(attack, noise="off")(bench.model, bench.inputs, bench.targets, progress=False)
        except ValueError as error:
            return Finding("skipped", f"The noise cannot be turned off: {error}.")
        other = attack(twin, bench.inputs, bench.targets, progress=False)
        left, its = ~own.fooled.cpu(), ~other.fooled.cpu()
        behind = functional.paired_difference(its, left)
        words = f"With its noise off the network keeps {left.double().mean():.1%}, the other {its.double().mean():.1%}."
        return Finding("pass" if behind.low <= TWIN_LIMIT else "fail", words, behind.value, TWIN_LIMIT)

    return run


def autoattack_agrees(bench: Bench) -> Finding:
    """C12: AutoAttack on the mean over frozen draws, scored like every other attack."""
    try:
        from pyautoattack import AutoAttack  # type: ignore[import-not-found]
    except ImportError:
        return Finding("skipped", "AutoAttack is not installed (pip install pyautoattack).")
    victim = bench.victim("predictive", "margin", bench.budget.num_samples, frozen=True)

    def mean_log_probs(images: Tensor) -> Tensor:
        return functional.predictive_log_probs(victim.log_probs(images))

    own = bench.left_by(bench.attempts)
    attacker: Any = AutoAttack(
        mean_log_probs,
        norm=bench.norm.capitalize(),
        eps=bench.epsilon,
        version="standard",
        device=bench.inputs.device,
        verbose=False,
        seed=bench.seed_for("autoattack"),
    )
    images = attacker.run_standard_evaluation(bench.inputs, bench.targets, bs=250)
    its = bench.judge(images)[1]
    behind = functional.paired_difference(own, its)
    words = f"AutoAttack leaves {its.double().mean():.1%}, our own attacks together {own.double().mean():.1%}."
    return Finding("pass" if behind.low <= TWIN_LIMIT else "fail", words, behind.value, TWIN_LIMIT)


def twin_falls(bench: Bench) -> Finding:
    """C24: the same attack on a network of this kind without noise or defence, trained on these very images."""
    twin = _ordinary_twin(bench)
    if twin is None:
        return Finding("skipped", "No ordinary network of this kind could be made to try the attack on.")
    reach = FAR * (bench.bounds[1] - bench.bounds[0])
    distance = reach if bench.norm == "linf" else reach * math.sqrt(bench.inputs[0].numel()) / 2.0
    attack = Pgd(
        epsilon=max(bench.epsilon, distance),
        norm=bench.norm,
        bounds=bench.bounds,
        steps=bench.budget.steps,
        num_samples=1,
        loss="margin",
        seed=bench.seed_for("twin"),
    )
    images = attack(twin, bench.inputs, bench.targets, progress=False).inputs
    left = score(twin, images, bench.targets, num_samples=1, num_tries=1).predictive.value
    words = f"On an ordinary network of this kind the attack leaves {left:.1%} at epsilon {attack.epsilon:g}."
    if left > FALLEN:
        return Finding("fail", f"{words} The attack itself does not work here.", left, FALLEN)
    return Finding("pass", words, left, FALLEN)


def plausible(data: str) -> Callable[[Bench], Finding]:
    """C25: against the best that is published."""

    def run(bench: Bench) -> Finding:
        for known in REFERENCES:
            if known.data == data and known.norm == bench.norm and math.isclose(known.epsilon, bench.epsilon):
                images, _ = bench.worst()
                found = bench.score(images, bench.budget.score_draws).predictive
                words = f"{found.value:.1%} is left; {known.source} keeps {known.accuracy:.1%}."
                return Finding("pass" if found.low <= known.accuracy else "fail", words, found.value, known.accuracy)
        return Finding("skipped", "No published figure is known for these data and this distance.")

    return run


def _ordinary_twin(bench: Bench) -> nn.Module | None:
    """A network of the same architecture without noise, from new weights, that knows these images."""
    if not isinstance(bench.model, nn.Module):
        return None
    try:
        twin = to_mean(bench.model) if hasattr(bench.model, "dubio_spec") else copy.deepcopy(bench.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(bench.seed_for("twin"))
            for module in twin.modules():
                if callable(reset := getattr(module, "reset_parameters", None)):
                    reset()
        fit(twin, (bench.inputs, bench.targets), epochs=EPOCHS, lr=1e-3, batch_size=32, progress=False)
    except (ValueError, TypeError, RuntimeError, AttributeError):
        return None
    twin.eval()
    known = score(twin, bench.inputs, bench.targets, num_samples=1, num_tries=1).predictive.value
    return twin if known >= LEARNED else None
