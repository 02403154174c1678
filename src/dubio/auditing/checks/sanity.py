"""Does the attack itself work? C16 to C20, and C23."""

import dataclasses
import itertools
import math

import torch
from torch import Tensor

from dubio import functional
from dubio.attacks import RandomNoise, Victim, untouched
from dubio.auditing.bench import MAIN, Attempt, Bench
from dubio.auditing.checks.check import NO_GRADIENT, Finding, points
from dubio.auditing.checks.randomness import gradients
from dubio.auditing.checks.strength import starts
from dubio.auditing.values import CurvePoint

__all__ = [
    "differences_agree",
    "gradients_live",
    "grows_with_distance",
    "nothing_left_at_one",
    "nothing_moves_at_zero",
    "seeds_agree",
]

LEFT_AT_ONE = 0.01
FALLING = 0.1
AT_BOUNDARY = 0.9
SIGN_AGREEMENT = 0.8
NUM_DIFFERENCES, TOP, DIFFERENCE = 16, 0.01, 1e-2
NUM_REPEATS = 8
ALONG = (0.0, 0.25, 0.5, 0.75, 1.0)


def nothing_left_at_one(bench: Bench) -> Finding:
    """C16: with any image in reach, nothing may be left."""
    reach = _widest(bench)
    found = bench.look(f"pgd at {reach:g}", bench.at(reach))
    if found is None:
        return Finding("fail", NO_GRADIENT)
    words = f"With epsilon {reach:g}, which allows any image, the attack leaves {found.accuracy:.1%}."
    if found.accuracy > LEFT_AT_ONE:
        return Finding("fail", f"{words} An attack that works leaves nothing.", found.accuracy, LEFT_AT_ONE)
    return Finding("pass", words, found.accuracy, LEFT_AT_ONE)


def grows_with_distance(bench: Bench) -> Finding:
    """C17: accuracy falls as the distance grows, and once it falls does not stop above chance."""
    reach = _widest(bench)
    distances = [factor * bench.epsilon for factor in bench.budget.epsilon_factors if factor * bench.epsilon < reach]
    distances.append(reach)
    found = [bench.look(f"pgd at {distance:g}", bench.at(distance)) for distance in distances]
    known = [attempt for attempt in found if attempt is not None]
    if len(known) < len(found):
        return Finding("fail", NO_GRADIENT)
    rights = [bench.clean, *(attempt.right for attempt in known)]
    shown = tuple(
        CurvePoint(x, right.double().mean().item()) for x, right in zip([0.0, *distances], rights, strict=True)
    )
    risen = max(
        functional.statistics.paired_difference(later, earlier).low for earlier, later in itertools.pairwise(rights)
    )
    if risen > 0.0:
        words = "The accuracy rises as the attacker may go further: the attack is broken."
        return Finding("fail", words, risen, 0.0, shown)
    stuck = _plateau(bench, distances, known)
    if stuck is not None:
        words = f"From epsilon {stuck[0]:g} to {stuck[1]:g} the accuracy stays above chance and falls no further."
        return Finding("fail", words, 0.0, 0.0, shown)
    return Finding("pass", "The accuracy falls as the attacker may go further.", max(risen, 0.0), 0.0, shown)


def nothing_moves_at_zero(bench: Bench) -> Finding:
    """C18: no distance, no change; every image stays in the ball and in the box; no network gives NaN."""
    seed = bench.seed_for("zero")
    noise = RandomNoise(epsilon=0.0, norm=bench.norm, bounds=bench.bounds, tries=1, num_samples=1, seed=seed)
    climb = dataclasses.replace(bench.at(0.0), steps=2, num_samples=1)
    for name, attack in {"pgd at 0": climb, "random noise at 0": noise}.items():
        still = bench.look(name, attack)
        if still is not None and not torch.equal(still.images, bench.inputs):
            return Finding("fail", f"{name} moves images.")
    for name, reason in bench.failures.items():
        if "finite" in reason:
            return Finding("fail", f"{name} could not be run: {reason}.")
    for attempt in bench.attempts.values():
        moved = attempt.images.double() - bench.inputs.double()
        size = functional.adversarial.perturbation_norm(moved, bench.norm).max().item()
        inside = bool(((attempt.images >= bench.bounds[0]) & (attempt.images <= bench.bounds[1])).all())
        if not size <= bench.epsilon or not inside:
            words = f"{attempt.name} went out of bounds: it moved an image by {size:g}."
            return Finding("fail", words, size, bench.epsilon)
    count = len(bench.attempts)
    words = f"All images of {count} attacks lie within the distance and the bounds, and none moves at distance 0."
    return Finding("pass", words, 0.0)


def gradients_live(bench: Bench) -> Finding:
    """C19: no gradient is zero, and the loss is largest where the attack ended."""
    try:
        found = gradients(bench, bench.budget.num_samples, "zero")
    except ValueError:
        return Finding("fail", NO_GRADIENT)
    dead = (found.flatten(1).abs().amax(dim=1) == 0.0).double().mean().item()
    if dead > 0.0:
        return Finding("fail", f"On {dead:.1%} of the images the gradient is exactly zero: it is masked.", dead, 0.0)
    main = bench.attempt(MAIN, bench.main())
    if main is None:
        return Finding("fail", f"The attack could not be run: {bench.failures[MAIN]}.")
    last = _largest_at_the_end(bench, main.images)
    words = f"No gradient is zero; along the way of the attack the loss is largest at its end on {last:.1%} of images."
    return Finding("pass" if last >= AT_BOUNDARY else "fail", words, last, AT_BOUNDARY)


def differences_agree(bench: Bench) -> Finding:
    """C20: small differences of the loss, with the same draws, against its gradient."""
    few, labels = bench.inputs[:NUM_DIFFERENCES], bench.targets[:NUM_DIFFERENCES]
    victim = bench.victim("predictive", "margin", bench.budget.num_samples, frozen=True)
    size = DIFFERENCE * (bench.bounds[1] - bench.bounds[0])
    with untouched(bench.model):
        try:
            gradient = victim.look(few, labels).gradient.flatten(1)
        except ValueError:
            return Finding("fail", NO_GRADIENT)
        count = min(max(int(TOP * gradient.shape[1]), 5), gradient.shape[1])
        chosen = gradient.abs().topk(count, dim=1).indices
        agreeing = [_same_sign(victim, few, labels, gradient, column, size) for column in chosen.unbind(dim=1)]
    share = torch.stack(agreeing).double().mean().item()
    words = f"Where the gradient is largest, small changes move the loss as it says in {share:.1%} of the cases."
    return Finding("pass" if share >= SIGN_AGREEMENT else "fail", words, share, SIGN_AGREEMENT)


def seeds_agree(bench: Bench) -> Finding:
    """C23: other seeds of the attack, and how far other draws would move the headline."""
    found = starts(bench)
    known = [attempt for attempt in found if attempt is not None]
    error, limit = _error_over_draws(bench, bench.worst()[0]), bench.budget.draws_error
    words = f"Over other draws the headline has a standard error of {100.0 * error:.2f} points"
    if len(known) < len(found):
        return Finding("fail", f"{words}; the attack could not be run with {len(found)} seeds.", error, limit)
    words += f"; {len(known)} seeds of the attack leave {', '.join(f'{attempt.accuracy:.1%}' for attempt in known)}."
    if error >= limit:
        return Finding("fail", f"{words} That is not below {points(limit)}: more draws would tell.", error, limit)
    return Finding("pass", words, error, limit)


def _widest(bench: Bench) -> float:
    """The distance that allows any image."""
    widest = bench.bounds[1] - bench.bounds[0]
    return widest if bench.norm == "linf" else widest * math.sqrt(bench.inputs[0].numel())


def _plateau(bench: Bench, distances: list[float], known: list[Attempt]) -> tuple[float, float] | None:
    """Two distances, one twice the other or more, between which accuracy that was falling stays above chance."""
    for place, attempt in enumerate(known):
        begun = functional.statistics.paired_difference(bench.clean, attempt.right).low > FALLING
        later = next((j for j, distance in enumerate(distances) if distance >= 2.0 * distances[place]), None)
        if not begun or later is None:
            continue
        right = known[later].right
        low, _ = functional.statistics.clopper_pearson(int(right.sum()), len(right))
        falls = functional.statistics.paired_difference(attempt.right, right)
        if low > 1.0 / bench.num_classes and falls.high <= bench.budget.resolution:
            return distances[place], distances[later]
    return None


@torch.no_grad()
def _largest_at_the_end(bench: Bench, images: Tensor) -> float:
    """Share of the images on which no point on the straight way has a larger loss than its end, by the same draws."""
    victim = bench.victim("predictive", "margin", bench.budget.num_samples, frozen=True)
    values = []
    with untouched(bench.model):
        for share in ALONG:
            between = bench.inputs + share * (images - bench.inputs)
            found = [
                dataclasses.replace(victim, first_row=first).values(part, labels)
                for first, part, labels in bench.pieces(between)
            ]
            values.append(torch.cat(found))
    stacked = torch.stack(values)
    tolerance = 1e-4 * (stacked.amax(dim=0) - stacked.amin(dim=0))
    return (stacked[-1] >= stacked.amax(dim=0) - tolerance).double().mean().item()


@torch.no_grad()
def _same_sign(victim: Victim, few: Tensor, labels: Tensor, gradient: Tensor, column: Tensor, size: float) -> Tensor:
    step = torch.zeros_like(gradient).scatter_(1, column[:, None], size).view_as(few)
    rise = victim.values(few + step, labels) - victim.values(few - step, labels)
    said = gradient.gather(1, column[:, None]).squeeze(1).sign()
    return (said != 0.0) & (rise.sign() == said)  # a gradient that says nothing agrees with nothing


def _error_over_draws(bench: Bench, images: Tensor) -> float:
    """Standard error over draws of the accuracy of their mean, from as many draws again and again.

    Leaving groups of draws out would be cheaper, but tells too much where few images lie at the border of two classes.
    """
    if bench.kind != "random":
        return 0.0
    scores = [bench.score(images, bench.budget.score_draws, f"repeat {number}") for number in range(NUM_REPEATS)]
    return torch.tensor([score.predictive.value for score in scores], dtype=torch.float64).std().item()
