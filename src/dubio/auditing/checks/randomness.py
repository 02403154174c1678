"""Is the network random, and does the attack see through it? C1 to C4, and C11."""

import dataclasses

import torch
from torch import Tensor, nn

from dubio import functional
from dubio.auditing.session import NO_GRADIENT, AuditSession, Finding, curve, fall_within, points
from dubio.nn import sources

DRAWS_LIMIT = 0.0025
ONE_DRAW_GAP = 0.05
AGREEMENT, SOME_AGREEMENT = 0.9, 0.5
SECRET_GAP = 0.10
NUM_PASSES, MORE_PASSES, NUM_TILED = 5, 50, 8
FROZEN = "pgd, frozen draws"
NO_NOISE = {
    "fixed": "The network is not random",
    "members": "The draws are the members of an ensemble, and every attack sees them all",
}


def is_random(bench: AuditSession) -> Finding:
    """C1: five passes over the same batch, in which every image stands twice."""
    module = isinstance(bench.model, nn.Module)
    declared = module and bool(sources(bench.model))  # type: ignore[arg-type]
    says = declared or (module and hasattr(bench.model, "dubio_spec"))
    outputs = _passes(bench, NUM_PASSES)
    if bench.kind == "random" and torch.equal(outputs, outputs[:1].expand_as(outputs)):
        outputs = _passes(bench, MORE_PASSES)  # draws that are few and discrete may agree by chance
    measured = bool((outputs != outputs[:1]).any())
    first, second = outputs.chunk(2, dim=1)
    if not measured:
        seen = "All passes gave the same: the network is not random"
    else:
        rows = "all images of a batch share a draw" if torch.equal(first, second) else "every image has its own noise"
        seen = f"Passes differed, and {rows}: the network is random"
    if says and declared != measured:
        said = "random parts" if declared else "no random parts"
        return Finding("fail", f"{seen}, but it has {said}. What is attacked is not what was declared.")
    return Finding("pass", f"{seen}{'' if says else ' (it does not say whether it should be)'}.")


def draws_enough(bench: AuditSession) -> Finding:
    """C2: accuracy from T and from 2T draws, on clean and on attacked images; one image may always change."""
    if bench.kind != "random":
        return Finding("pass", f"{NO_NOISE[bench.kind]}: more draws change nothing.", 0.0, DRAWS_LIMIT)
    draws = bench.budget.score_draws
    moves = []
    for given in (bench.inputs, bench.worst()[0]):
        once, twice = (bench.score(given, count, "doubling").predictive.value for count in (draws, 2 * draws))
        moves.append(abs(once - twice))
    value, limit = max(moves), max(DRAWS_LIMIT, 1.0 / len(bench.inputs))
    summary = f"Twice as many draws, {2 * draws}, move the accuracy by {points(moves[0])} on clean images and by "
    summary += f"{points(moves[1])} under attack."
    return Finding("pass" if value <= limit * (1.0 + 1e-9) else "fail", summary, value, limit)


def eot_converged(bench: AuditSession) -> Finding:
    """C3: what is left as each gradient averages more draws."""
    if bench.kind != "random":
        return Finding("pass", f"{NO_NOISE[bench.kind]}: there is nothing more to average.")
    counts = bench.budget.eot
    found = [bench.attempt(f"pgd, K = {k}", dataclasses.replace(bench.main(), num_samples=k)) for k in counts]
    known = [attempt for attempt in found if attempt is not None]
    if len(known) < len(found):
        return Finding("fail", NO_GRADIENT)
    fall = functional.statistics.paired_difference(known[-2].right, known[-1].right)
    gap = known[0].accuracy - known[-1].accuracy
    summary = f"An attack by one draw would leave {points(gap)} more than one by {counts[-1]}. "
    summary += f"From {counts[-2]} to {counts[-1]} draws for each gradient the accuracy"
    more = "More draws might still leave less."
    judged = fall_within(fall, bench.budget.resolution, summary, more, curve(counts, known))
    return dataclasses.replace(judged, status="warn") if judged.status == "pass" and gap > ONE_DRAW_GAP else judged


def gradients_agree(bench: AuditSession) -> Finding:
    """C4: the cosine of two gradients, each averaged over draws of its own."""
    if bench.kind != "random":
        return Finding("pass", f"{NO_NOISE[bench.kind]}: two gradients are the same.", 1.0, AGREEMENT)
    count = bench.budget.eot[-1]
    try:
        one, other = (gradients(bench, count, purpose).flatten(1) for purpose in ("one", "other"))
    except ValueError:
        return Finding("fail", NO_GRADIENT)
    cosine = torch.nn.functional.cosine_similarity(one, other).median().item()
    summary = f"Two gradients of {count} draws each have a median cosine of {cosine:.2f}: "
    if cosine >= AGREEMENT:
        return Finding("pass", f"{summary}they point the same way.", cosine, AGREEMENT)
    if cosine >= SOME_AGREEMENT:
        return Finding("warn", f"{summary}partly noise; the attack climbs with a shaky hand.", cosine, AGREEMENT)
    return Finding("fail", f"{summary}mostly noise. Attacks by gradients say little here.", cosine, AGREEMENT)


def frozen_draws(bench: AuditSession) -> Finding:
    """C11: the attacker knows the draws that will answer. As many unknown draws are compared with them."""
    known = known_draws_accuracy(bench)
    if known is None:
        return Finding("pass", f"{NO_NOISE[bench.kind]}: there is nothing secret about the draws.")
    count = bench.budget.num_samples
    unknown = bench.score(bench.worst()[0], count, "unknown draws").predictive.value
    gap = unknown - known
    summary = f"An attacker who knows the {count} draws that answer leaves {known:.1%}, one who does not {unknown:.1%}."
    if gap > SECRET_GAP:
        summary += " The robustness hangs on the draws being secret: a fixed seed or a cached draw would lose it."
    return Finding("warn" if gap > SECRET_GAP else "pass", summary, gap, SECRET_GAP)


def known_draws_accuracy(bench: AuditSession) -> float | None:
    """R_frozen: what known draws have right when for each image the worst for them counts; None without noise.

    Who knows the draws may choose by them: here alone the draws that judge are those that were attacked.
    """
    if bench.kind != "random":
        return None
    rows = bench.rows_with_gradient(bench.victim("predictive", "margin", bench.budget.num_samples))
    fields = {"noise": "frozen", "seed": bench.seed_for("frozen"), "restarts": bench.budget.restarts}
    bench.attempt(FROZEN, dataclasses.replace(bench.main(), batch_size=rows, **fields))  # type: ignore[arg-type]
    fooled = torch.zeros(len(bench.inputs), dtype=torch.bool)
    for attempt in bench.attempts.values():
        fooled |= bench.fooled_by_known_draws(attempt.images, rows)
    return 1.0 - fooled.double().mean().item()


def gradients(bench: AuditSession, count: int, purpose: str) -> Tensor:
    """Gradients at the images, each averaged over fresh draws."""
    victim = bench.victim("predictive", "margin", count)
    rows = bench.rows_with_gradient(victim)
    with bench.seeded(f"gradient {purpose}"):
        return torch.cat([victim.look(part, labels).gradient for _, part, labels in bench.pieces(bench.inputs, rows)])


@torch.no_grad()
def _passes(bench: AuditSession, count: int) -> Tensor:
    """Log-probabilities of fresh passes over a few images, each of which stands in the batch twice."""
    few = bench.inputs[:NUM_TILED]
    tiled = torch.cat([few, few])
    victim = bench.victim("predictive", "margin", 1)
    with bench.seeded("passes"):
        return torch.cat([victim.log_probs(tiled) for _ in range(count)])
