"""Does the attack itself work? C16 to C20, and C23."""

import itertools
import math

import torch
from torch import Tensor

from dubio import functional
from dubio.attacks.victims import Victim, seeded_generator, untouched
from dubio.auditing.bench import MAIN, Bench
from dubio.auditing.checks.check import Finding, curve, points
from dubio.auditing.checks.randomness import gradients

__all__ = [
    "differences_agree",
    "gradients_live",
    "grows_with_distance",
    "nothing_left_at_one",
    "nothing_moves_at_zero",
    "seeds_agree",
]

LEFT_AT_ONE = 0.01
AT_BOUNDARY = 0.9
SIGN_AGREEMENT = 0.8
NUM_DIFFERENCES, TOP = 16, 0.01
NUM_GROUPS = 10
ALONG = (0.0, 0.25, 0.5, 0.75, 1.0)


def nothing_left_at_one(bench: Bench) -> Finding:
    """C16: with any image in reach, nothing may be left."""
    widest = bench.bounds[1] - bench.bounds[0]
    reach = widest if bench.norm == "linf" else widest * math.sqrt(bench.inputs[0].numel())
    found = bench.run("pgd, unbounded", bench.at(reach))
    if found is None:
        return Finding("fail", f"The attack could not be run: {bench.failures['pgd, unbounded']}.")
    words = f"With epsilon {reach:g}, which allows any image, the attack leaves {found.accuracy:.1%}."
    if found.accuracy > LEFT_AT_ONE:
        return Finding("fail", f"{words} An attack that works leaves nothing.", found.accuracy, LEFT_AT_ONE)
    return Finding("pass", words, found.accuracy, LEFT_AT_ONE)


def grows_with_distance(bench: Bench) -> Finding:
    """C17: accuracy falls as the distance grows."""
    widest = bench.bounds[1] - bench.bounds[0]
    distances = [factor * bench.epsilon for factor in bench.budget.epsilon_factors]
    distances = [distance for distance in distances if bench.norm == "l2" or distance <= widest]
    found = [bench.run(f"pgd at {distance:g}", bench.at(distance)) for distance in distances]
    known = [attempt for attempt in found if attempt is not None]
    if len(known) < len(distances):
        return Finding("fail", "The attack could not be run.")
    shown = curve([0.0, *distances], [bench.clean().double().mean().item(), *(a.accuracy for a in known)])
    rises = [functional.paired_difference(later.right, earlier.right) for earlier, later in itertools.pairwise(known)]
    risen = max((rise.low for rise in rises), default=-1.0)
    if risen > 0.0:
        return Finding(
            "fail", "The accuracy rises as the attacker may go further: the attack is broken.", risen, 0.0, shown
        )
    return Finding("pass", "The accuracy falls as the attacker may go further.", max(risen, 0.0), 0.0, shown)


def nothing_moves_at_zero(bench: Bench) -> Finding:
    """C18: no distance, no change; and every image stays in the ball and in the box."""
    still = bench.run("pgd at 0", bench.at(0.0))
    if still is not None and not torch.equal(still.images, bench.inputs):
        return Finding("fail", "At distance 0 the attack moves images.")
    for attempt in bench.attempts.values():
        size = functional.perturbation_norm(attempt.images - bench.inputs, bench.norm).max().item()
        inside = bool(((attempt.images >= bench.bounds[0]) & (attempt.images <= bench.bounds[1])).all())
        if size > bench.epsilon * (1.0 + 1e-5) + 1e-7 or not inside:
            return Finding(
                "fail", f"{attempt.name} went out of bounds: it moved an image by {size:g}.", size, bench.epsilon
            )
    count = len(bench.attempts)
    return Finding(
        "pass", f"All images of {count} attacks lie within the distance and the bounds, none moves at 0.", 0.0
    )


def gradients_live(bench: Bench) -> Finding:
    """C19: no gradient is zero, and the loss is largest where the attack ended."""
    try:
        found = gradients(bench, bench.budget.num_samples, "zero")
    except ValueError:
        return Finding(
            "fail", "There is no gradient at all: the output does not depend on the input as far as torch sees."
        )
    dead = (found.flatten(1).abs().amax(dim=1) == 0.0).double().mean().item()
    if dead > 0.0:
        return Finding("fail", f"On {dead:.1%} of the images the gradient is exactly zero: it is masked.", dead, 0.0)
    main = bench.attempt(MAIN, bench.main())
    assert main is not None
    last = _largest_at_the_end(bench, main.images)
    words = (
        f"No gradient is zero; along the way of the attack the loss is largest at its end on {last:.1%} of the images."
    )
    return Finding("pass" if last >= AT_BOUNDARY else "fail", words, last, AT_BOUNDARY)


def differences_agree(bench: Bench) -> Finding:
    """C20: small differences of the loss, with the same draws, against its gradient."""
    few, labels = bench.inputs[:NUM_DIFFERENCES], bench.targets[:NUM_DIFFERENCES]
    victim = bench.victim("predictive", "margin", bench.budget.num_samples, frozen=True)
    with untouched(bench.model), seeded_generator(bench.seed_for("differences"), few.device):
        try:
            gradient = victim.look(few, labels).gradient.flatten(1)
        except ValueError:
            return Finding("fail", "There is no gradient to compare with.")
        count = max(int(TOP * gradient.shape[1]), 5)
        chosen = gradient.abs().topk(min(count, gradient.shape[1]), dim=1).indices
        agreeing = [_same_sign(victim, few, labels, gradient, column) for column in chosen.unbind(dim=1)]
    share = torch.stack(agreeing).double().mean().item()
    words = f"Where the gradient is largest, small changes move the loss as it says in {share:.1%} of the cases."
    return Finding("pass" if share >= SIGN_AGREEMENT else "fail", words, share, SIGN_AGREEMENT)


def seeds_agree(bench: Bench) -> Finding:
    """C23: other seeds of the attack, and how far other draws would move the headline."""
    names = [MAIN, *(f"pgd, start {number}" for number in range(2, bench.budget.num_seeds + 1))]
    known = [bench.attempts[name] for name in names if name in bench.attempts]
    images, _ = bench.worst()
    error = _error_over_draws(bench, images)
    limit = bench.budget.draws_error
    words = f"Over other draws the headline has a standard error of {points(error)}"
    if len(known) == len(names):
        accuracies = ", ".join(f"{attempt.accuracy:.1%}" for attempt in known)
        words += f"; {len(names)} seeds of the attack leave {accuracies}"
    elif names:
        return Finding("fail", f"{words}; the attack could not be run with {len(names)} seeds.", error, limit)
    return Finding("pass" if error <= limit else "fail", f"{words}.", error, limit)


@torch.no_grad()
def _largest_at_the_end(bench: Bench, images: Tensor) -> float:
    """Share of the images on which no point on the straight way has a larger loss than its end, by the same draws."""
    victim = bench.victim("predictive", "margin", bench.budget.num_samples, frozen=True)
    values = []
    with untouched(bench.model):
        for share in ALONG:
            between = bench.inputs + share * (images - bench.inputs)
            parts = zip(between.split(256), bench.targets.split(256), strict=True)
            values.append(torch.cat([victim.values(part, labels) for part, labels in parts]))
    stacked = torch.stack(values)
    tolerance = 1e-4 * (stacked.amax(dim=0) - stacked.amin(dim=0))
    return (stacked[-1] >= stacked.amax(dim=0) - tolerance).double().mean().item()


@torch.no_grad()
def _same_sign(victim: Victim, few: Tensor, labels: Tensor, gradient: Tensor, column: Tensor) -> Tensor:
    step = torch.zeros_like(gradient).scatter_(1, column[:, None], 1e-2).view_as(few)
    rise = victim.values(few + step, labels) - victim.values(few - step, labels)
    return rise.sign() == gradient.gather(1, column[:, None]).squeeze(1).sign()


@torch.no_grad()
def _error_over_draws(bench: Bench, images: Tensor) -> float:
    """Standard error over draws of the accuracy of their mean, by leaving groups of them out."""
    victim = bench.victim("predictive", "margin", bench.budget.score_draws)
    kept = []
    with untouched(bench.model), seeded_generator(bench.seed_for("scoring error"), images.device):
        for part, labels in zip(images.split(256), bench.targets.split(256), strict=True):
            draws = victim.log_probs(part)
            if len(draws) < 2 * NUM_GROUPS:
                return 0.0
            means = functional.left_out_means(functional.group_means(draws, NUM_GROUPS))
            kept.append((means.argmax(dim=-1) == labels).cpu())
    return functional.jackknife_error(torch.cat(kept, dim=1).double().mean(dim=1))
