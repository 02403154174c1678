"""Is the network random, and does the attack see through it? C1 to C4, and C11."""

import dataclasses

import torch
from torch import Tensor, nn

from dubio import functional
from dubio.attacks.victims import seeded_generator, untouched
from dubio.auditing.bench import Bench
from dubio.auditing.checks.check import Finding, curve, points
from dubio.layers.sources import Source

__all__ = ["FROZEN", "draws_enough", "eot_converged", "frozen_draws", "gradients_agree", "is_random", "measured_random"]

DRAWS_LIMIT = 0.0025
ONE_DRAW_GAP = 0.05
AGREEMENT, SOME_AGREEMENT = 0.9, 0.5
SECRET_GAP = 0.10
FROZEN = "pgd, frozen draws"


def is_random(bench: Bench) -> Finding:
    """C1: five passes over the same batch, in which every image stands twice."""
    declared = isinstance(bench.model, nn.Module) and any(isinstance(part, Source) for part in bench.model.modules())
    own = isinstance(bench.model, nn.Module) and hasattr(bench.model, "dubio_spec")
    outputs = _five_passes(bench)
    measured = bool((outputs != outputs[:1]).any())
    first, second = outputs.chunk(2, dim=1)
    apart = not torch.equal(first, second)
    if not measured:
        seen = "All five passes gave the same: the network is not random"
    else:
        rows = "every image has noise of its own" if apart else "all images of a batch share a draw"
        seen = f"Five passes differed, and {rows}: the network is random"
    if own and declared != measured:
        said = "random parts" if declared else "no random parts"
        return Finding("fail", f"{seen}, but it has {said}. What is attacked is not what was declared.")
    return Finding("pass", f"{seen}{'' if own else ' (it does not say whether it should be)'}.")


def draws_enough(bench: Bench) -> Finding:
    """C2: accuracy from T and from 2T draws, on clean and on attacked images."""
    draws = bench.budget.score_draws
    images, _ = bench.worst()
    moves = []
    for given in (bench.inputs, images):
        once, twice = (bench.score(given, count, "doubling") for count in (draws, 2 * draws))
        moves.append(abs(once.predictive.value - twice.predictive.value))
    value, limit = max(moves), max(DRAWS_LIMIT, 1.0 / len(bench.inputs))
    words = f"Twice as many draws, {2 * draws}, move the accuracy by {points(moves[0])} on clean images and by "
    words += f"{points(moves[1])} under attack."
    return Finding("pass" if value <= limit else "fail", words, value, limit)


def eot_converged(bench: Bench) -> Finding:
    """C3: what is left as each gradient averages more draws."""
    counts = bench.budget.eot
    found = {
        count: bench.attempt(f"pgd, K = {count}", dataclasses.replace(bench.main(), num_samples=count))
        for count in (counts if measured_random(bench) else counts[-1:])
    }
    known = {count: attempt for count, attempt in found.items() if attempt is not None}
    if len(known) < len(found):
        return Finding("fail", "The network has no gradient to average: it hides how its output depends on its input.")
    shown = curve(list(known), [attempt.accuracy for attempt in known.values()])
    if len(known) == 1:
        return Finding("pass", "The network is not random: one gradient is as good as many.", curve=shown)
    before, after = (known[count] for count in counts[-2:])
    fall = functional.paired_difference(before.right, after.right)
    limit, gap = bench.budget.resolution, known[counts[0]].accuracy - known[counts[-1]].accuracy
    words = (
        f"From {counts[-2]} to {counts[-1]} draws for each gradient the accuracy falls by {points(fall.value)} "
        f"(at most {points(fall.high)}); an attack with one draw would have left {points(gap)} more."
    )
    if fall.high > limit:
        return Finding("fail", f"{words} More draws might still leave less.", fall.high, limit, shown)
    return Finding("warn" if gap > ONE_DRAW_GAP else "pass", words, fall.high, limit, shown)


def gradients_agree(bench: Bench) -> Finding:
    """C4: the cosine of two gradients, each averaged over draws of its own."""
    if not measured_random(bench):
        return Finding("pass", "The network is not random: two gradients are the same.", 1.0, AGREEMENT)
    count = bench.budget.eot[-1]
    try:
        one, other = (gradients(bench, count, purpose) for purpose in ("one", "other"))
    except ValueError as error:
        return Finding("fail", f"There is no gradient: {error}.")
    cosine = torch.nn.functional.cosine_similarity(one.flatten(1), other.flatten(1)).median().item()
    words = f"Two gradients of {count} draws each have a median cosine of {cosine:.2f}: "
    if cosine >= AGREEMENT:
        return Finding("pass", f"{words}they point the same way.", cosine, AGREEMENT)
    if cosine >= SOME_AGREEMENT:
        return Finding("warn", f"{words}half noise; the attack climbs with a shaky hand.", cosine, AGREEMENT)
    return Finding("fail", f"{words}mostly noise. Attacks by gradients say little here.", cosine, AGREEMENT)


def frozen_draws(bench: Bench) -> Finding:
    """C11: the attacker knows the draws that will answer."""
    if not measured_random(bench):
        return Finding("pass", "The network is not random: there are no draws to know.")
    attack = dataclasses.replace(bench.main(), noise="frozen", seed=bench.seed_for("frozen"))
    found = bench.attempt(FROZEN, attack)
    if found is None:
        return Finding("skipped", "There is no gradient to attack known draws with.")
    known = 1.0 - found.fooled.double().mean().item()
    images, _ = bench.worst()
    unknown = bench.score(images, bench.budget.score_draws).predictive.value
    gap = unknown - known
    words = (
        f"An attacker who knows the {bench.budget.num_samples} draws that answer leaves {known:.1%}, one who does not "
        f"leaves {unknown:.1%}."
    )
    if gap > SECRET_GAP:
        words += " The robustness hangs on the draws being secret: a fixed seed or a cached draw would lose it."
    return Finding("warn" if gap > SECRET_GAP else "pass", words, gap, SECRET_GAP)


def measured_random(bench: Bench) -> bool:
    """Whether two passes differ."""
    outputs = _five_passes(bench)
    return bool((outputs != outputs[:1]).any())


def gradients(bench: Bench, count: int, purpose: str) -> Tensor:
    """Gradients at the images, each averaged over fresh draws."""
    victim = bench.victim("predictive", "margin", count)
    with untouched(bench.model), seeded_generator(bench.seed_for(f"gradient {purpose}"), bench.inputs.device):
        parts = zip(bench.inputs.split(64), bench.targets.split(64), strict=True)
        return torch.cat([victim.look(images, labels).gradient for images, labels in parts])


@torch.no_grad()
def _five_passes(bench: Bench) -> Tensor:
    """Log-probabilities of five fresh passes over eight images, each of which stands in the batch twice."""
    few = bench.inputs[:8]
    tiled = torch.cat([few, few])
    with untouched(bench.model), seeded_generator(bench.seed_for("passes"), tiled.device):
        return torch.cat([bench.victim("predictive", "margin", 1).log_probs(tiled) for _ in range(5)])
