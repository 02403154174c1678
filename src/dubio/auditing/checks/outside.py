"""Compared with others: another network, another library, what is known. C10, C12, C24, C25."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dubio import functional
from dubio._engine import seeded
from dubio.attacks import Pgd, score, untouched
from dubio.auditing.bench import Attempt, Bench
from dubio.auditing.checks.check import Finding
from dubio.auditing.keeping import Kept

__all__ = ["REFERENCES", "Reference", "autoattack_agrees", "beats_twin", "plausible", "twin_falls"]

AUTOATTACK = "AutoAttack"
TWIN_LIMIT = 0.01
FALLEN = 0.02
FAR = 0.3
FEWEST_CLASSES = 4
"""AutoAttack's losses need a third class, and a fourth where they are targeted."""


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


def beats_twin(bench: Bench) -> Finding:
    """C10: the network with its noise off, against an adversarially trained network without noise."""
    if bench.twin is None:
        return Finding("skipped", "No adversarially trained network without noise was given to compare with.")
    if bench.kind == "members":
        return Finding("skipped", "An ensemble has no mean network to compare.")
    attack = dataclasses.replace(bench.main(), restarts=bench.budget.restarts)
    try:
        own = dataclasses.replace(attack, noise="off")(bench.model, bench.inputs, bench.targets, progress=False)
    except ValueError as error:
        return Finding("skipped", f"The noise cannot be turned off: {error}.")
    other = attack(bench.twin, bench.inputs, bench.targets, progress=False)
    left, its = ~own.fooled.cpu(), ~other.fooled.cpu()
    behind = functional.statistics.paired_difference(its, left)
    words = f"With its noise off the network keeps {left.double().mean():.1%}, the other {its.double().mean():.1%}."
    return Finding("pass" if behind.low <= TWIN_LIMIT else "fail", words, behind.value, TWIN_LIMIT)


def autoattack_agrees(bench: Bench) -> Finding:
    """C12: AutoAttack on the mean over frozen draws, scored like every other attack; its images count."""
    try:
        from pyautoattack import AutoAttack  # type: ignore[import-not-found]
    except ImportError:
        return Finding("skipped", "AutoAttack is not installed (pip install pyautoattack).")
    if bench.inputs.dim() != 4 or bench.bounds != (0.0, 1.0) or bench.num_classes < FEWEST_CLASSES:
        return Finding("skipped", f"AutoAttack takes images in [0, 1] of {FEWEST_CLASSES} classes or more.")
    own = bench.left_by(bench.attempts.values())
    found = _autoattack(bench, AutoAttack)
    behind = functional.statistics.paired_difference(own, found.right)
    words = f"AutoAttack leaves {found.accuracy:.1%}, our own attacks together {own.double().mean():.1%}."
    return Finding("pass" if behind.low <= TWIN_LIMIT else "fail", words, behind.value, TWIN_LIMIT)


def twin_falls(bench: Bench) -> Finding:
    """C24: the same attack on a network of this kind without noise or defence, trained on these very images."""
    twin = bench.ordinary_twin
    if twin is None:
        return Finding("skipped", "No ordinary network of this kind could be made to try the attack on.")
    reach = FAR * (bench.bounds[1] - bench.bounds[0])
    distance = reach if bench.norm == "linf" else reach * math.sqrt(bench.inputs[0].numel()) / 2.0
    attack = dataclasses.replace(
        bench.main(), epsilon=max(bench.epsilon, distance), num_samples=1, seed=bench.seed_for("on the twin")
    )
    left = _left_of(twin, attack, bench)
    words = f"On an ordinary network of this kind the attack leaves {left:.1%} at epsilon {attack.epsilon:g}."
    if left > FALLEN:
        return Finding("fail", f"{words} The attack itself does not work here.", left, FALLEN)
    return Finding("pass", words, left, FALLEN)


def plausible(bench: Bench) -> Finding:
    """C25: against the best that is published for this distance, or for a smaller one."""
    for known in REFERENCES:
        as_hard = bench.epsilon >= known.epsilon * (1.0 - 1e-6)
        if known.data == bench.data and known.norm == bench.norm and as_hard:
            found = bench.score(bench.worst()[0], bench.budget.score_draws).predictive
            words = f"{found.value:.1%} is left; {known.source} keeps {known.accuracy:.1%}."
            return Finding("pass" if found.low <= known.accuracy else "fail", words, found.value, known.accuracy)
    return Finding("skipped", "No published figure is known for these data and this distance.")


def _left_of(twin: torch.nn.Module, attack: Pgd, bench: Bench) -> float:
    images = attack(twin, bench.inputs, bench.targets, progress=False).inputs
    return score(twin, images, bench.targets, num_samples=1, num_tries=1).predictive.value


def _autoattack(bench: Bench, attacker: Callable[..., Any]) -> Attempt:
    """Its images, put exactly into the ball, as one more attack of the audit."""
    kept = bench.keeper.find(AUTOATTACK)
    if kept is None:
        victim = bench.victim("predictive", "margin", bench.budget.num_samples, frozen=True)
        began = time.perf_counter()

        def mean_log_probs(images: Tensor) -> Tensor:
            return functional.uncertainty.predictive_log_probs(victim.log_probs(images))

        norm = {"linf": "Linf", "l2": "L2"}[bench.norm]
        seed = bench.seed_for(AUTOATTACK)
        made = attacker(mean_log_probs, norm=norm, eps=bench.epsilon, seed=seed, device=bench.inputs.device)
        bench.step(AUTOATTACK)
        # It seeds torch's global generators itself.
        with untouched(bench.model), seeded(seed, bench.inputs.device, lend=True):
            images, _ = made.run_standard_evaluation(bench.inputs, bench.targets)
        images = functional.adversarial.project_inputs(images, bench.inputs, bench.norm, bench.epsilon).clamp(
            *bench.bounds
        )
        kept = Kept(images, victim.forwards, 0, time.perf_counter() - began)
        bench.keeper.keep(AUTOATTACK, kept)
    return bench.add(AUTOATTACK, kept)
