"""Is the network random, and does the attack see through it? C1 to C4, and C11."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from dubio.auditing.session import AuditSession, CheckResult, NoGradientError, curve, fall_within, points, verdict
from dubio.functional.statistics import paired_difference
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


def is_random(session: AuditSession) -> CheckResult:
    """C1: five passes over the same batch, which holds every image twice."""
    module = isinstance(session.model, nn.Module)
    declared = module and bool(sources(session.model))  # type: ignore[arg-type]
    has_record = declared or (module and hasattr(session.model, "dubio_spec"))
    outputs = _passes(session, NUM_PASSES)
    if session.kind == "random" and torch.equal(outputs, outputs[:1].expand_as(outputs)):
        outputs = _passes(session, MORE_PASSES)  # few discrete draws may agree by chance
    measured = bool((outputs != outputs[:1]).any())
    first, second = outputs.chunk(2, dim=1)
    if not measured:
        summary = "All passes gave the same: the network is not random"
    else:
        rows = "all images of a batch share a draw" if torch.equal(first, second) else "every image has its own noise"
        summary = f"Passes differed, and {rows}: the network is random"
    if has_record and declared != measured:
        parts = "random parts" if declared else "no random parts"
        return CheckResult("fail", f"{summary}, but it has {parts}. What is attacked is not what was declared.")
    return CheckResult("pass", f"{summary}{'' if has_record else ' (it does not say whether it should be)'}.")


def draws_enough(session: AuditSession) -> CheckResult:
    """C2: accuracy from T and from 2T draws, on clean and on attacked images; one image may always change."""
    if session.kind != "random":
        return CheckResult("pass", f"{NO_NOISE[session.kind]}: more draws change nothing.", 0.0, DRAWS_LIMIT)
    draws = session.budget.score_draws
    moves = []
    for given in (session.inputs, session.worst()[0]):
        once, twice = (session.score(given, count, "doubling").predictive.value for count in (draws, 2 * draws))
        moves.append(abs(once - twice))
    value, limit = max(moves), max(DRAWS_LIMIT, 1.0 / len(session.inputs))
    summary = f"Twice as many draws, {2 * draws}, move the accuracy by {points(moves[0])} on clean images and by "
    summary += f"{points(moves[1])} under attack."
    return verdict(value <= limit * (1.0 + 1e-9), summary, value, limit)


def eot_converged(session: AuditSession) -> CheckResult:
    """C3: what is left as each gradient averages more draws."""
    if session.kind != "random":
        return CheckResult("pass", f"{NO_NOISE[session.kind]}: there is nothing more to average.")
    counts = session.budget.eot
    runs = session.attempt_all({f"pgd, K = {count}": session.main(num_samples=count) for count in counts})
    fall = paired_difference(runs[-2].right, runs[-1].right)
    gap = runs[0].accuracy - runs[-1].accuracy
    summary = f"An attack by one draw would leave {points(gap)} more than one by {counts[-1]}. "
    summary += f"From {counts[-2]} to {counts[-1]} draws for each gradient the accuracy"
    more = "More draws might still leave less."
    result = fall_within(fall, session.budget.resolution, summary, more, curve(counts, runs))
    return dataclasses.replace(result, status="warn") if result.status == "pass" and gap > ONE_DRAW_GAP else result


def gradients_agree(session: AuditSession) -> CheckResult:
    """C4: the cosine of two gradients, each averaged over draws of its own."""
    if session.kind != "random":
        return CheckResult("pass", f"{NO_NOISE[session.kind]}: two gradients are the same.", 1.0, AGREEMENT)
    count = session.budget.eot[-1]
    one, other = (gradients(session, count, purpose).flatten(1) for purpose in ("one", "other"))
    cosine = torch.nn.functional.cosine_similarity(one, other).median().item()
    summary = f"Two gradients of {count} draws each have a median cosine of {cosine:.2f}: "
    if cosine >= AGREEMENT:
        return CheckResult("pass", f"{summary}they point the same way.", cosine, AGREEMENT)
    if cosine >= SOME_AGREEMENT:
        return CheckResult("warn", f"{summary}partly noise; the attack climbs with a shaky hand.", cosine, AGREEMENT)
    return CheckResult("fail", f"{summary}mostly noise. Attacks by gradients say little here.", cosine, AGREEMENT)


def frozen_draws(session: AuditSession) -> CheckResult:
    """C11: the attacker knows the draws that will answer. They are compared with as many that it does not know."""
    frozen = frozen_draws_accuracy(session)
    if frozen is None:
        return CheckResult("pass", f"{NO_NOISE[session.kind]}: there is nothing secret about the draws.")
    count = session.budget.num_samples
    fresh = session.score(session.worst()[0], count, "unknown draws").predictive.value
    gap = fresh - frozen
    summary = f"An attacker who knows the {count} draws that answer leaves {frozen:.1%}, one who does not {fresh:.1%}."
    if gap > SECRET_GAP:
        summary += " The robustness hangs on the draws being secret: a fixed seed or a cached draw would lose it."
    return CheckResult("warn" if gap > SECRET_GAP else "pass", summary, gap, SECRET_GAP)


def frozen_draws_accuracy(session: AuditSession) -> float | None:
    """R_frozen: the accuracy of frozen draws when for each image the worst for them counts; None without noise.

    An attacker who knows the draws may choose by them: here alone the draws that were attacked also evaluate.
    """
    if session.kind != "random":
        return None
    rows = session.rows_with_gradient(session.target(session.budget.num_samples))
    fields: dict[str, Any] = {"noise": "frozen", "seed": session.seed_for("frozen"), "batch_size": rows}
    session.attempt(FROZEN, session.main(restarts=session.budget.restarts, **fields))
    fooled = torch.zeros(len(session.inputs), dtype=torch.bool)
    for run in session.attempts.values():
        fooled |= session.fooled_when_frozen(run.images, rows)
    return 1.0 - fooled.double().mean().item()


def gradients(session: AuditSession, count: int, purpose: str) -> Tensor:
    """Gradients at the images, each averaged over fresh draws."""
    target = session.target(count)
    try:
        rows = session.rows_with_gradient(target)
        pieces = zip(session.inputs.split(rows), session.targets.split(rows), strict=True)
        with session.seeded(f"gradient {purpose}"):
            return torch.cat([target.loss_and_grad(part, labels).gradient for part, labels in pieces])
    except ValueError as error:
        raise NoGradientError from error


@torch.no_grad()
def _passes(session: AuditSession, count: int) -> Tensor:
    """Log-probabilities of fresh passes over a few images, each of them twice in the batch."""
    few = session.inputs[:NUM_TILED]
    tiled = torch.cat([few, few])
    target = session.target(1)
    with session.seeded("passes"):
        return torch.cat([target.log_probs(tiled) for _ in range(count)])
