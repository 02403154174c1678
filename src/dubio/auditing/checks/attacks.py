"""Does a stronger, longer or different attack leave less? C5 to C9, C14, C15.

Does the attack itself work? C16 to C20, and C23.

Compared with others: another network, another library, what is known. C10, C12, C24, C25.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dubio import functional
from dubio._engine import seeded
from dubio.attacks import FGSM, PGD, Attack, AttackTarget, Model, RandomNoise, Square, Transfer, score, untouched
from dubio.auditing.checks.randomness import gradients
from dubio.auditing.records import CurvePoint
from dubio.auditing.session import MAIN, NO_GRADIENT, AttackRun, AuditSession, CheckResult, Kept, curve, fall_within, points

RESTART_GAIN = 0.03


NOISE_MARGIN = 0.05


OFF = "transfer from noise off"


def steps_converged(session: AuditSession) -> CheckResult:
    """C5: what is left as the attack takes more steps."""
    session.attempt(MAIN, session.main())
    counts = session.budget.step_counts
    found = [session.attempt(f"pgd, {count} steps", dataclasses.replace(session.main(), steps=count)) for count in counts]
    known = [attempt for attempt in found if attempt is not None]
    if len(known) < len(counts):
        return CheckResult("fail", NO_GRADIENT)
    fall = functional.statistics.paired_difference(known[-2].right, known[-1].right)
    summary = f"From {counts[-2]} to {counts[-1]} steps the accuracy"
    more = "More steps might still leave less."
    return fall_within(fall, session.budget.resolution, summary, more, curve(counts, known))


def iterating_helps(session: AuditSession) -> CheckResult:
    """C6: many small steps against one large one."""
    main = session.main()
    one = session.attempt(
        "fgsm",
        FGSM(
            epsilon=main.epsilon,
            norm=main.norm,
            bounds=main.bounds,
            num_samples=main.num_samples,
            objective=main.objective,
            loss=main.loss,
            seed=main.seed,
        ),
    )
    many = session.attempt(MAIN, main)
    if one is None or many is None:
        return CheckResult("fail", NO_GRADIENT)
    gain = functional.statistics.paired_difference(one.right, many.right)
    summary = f"One step leaves {one.accuracy:.1%}, {session.budget.steps} steps leave {many.accuracy:.1%}."
    if gain.high < 0.0:
        return CheckResult(
            "fail", f"{summary} Iterating hurts the attack, which only masked gradients do.", gain.value, 0.0
        )
    return CheckResult("pass", summary, gain.value, 0.0)


def restarts_agree(session: AuditSession) -> CheckResult:
    """C7: other steps, momenta and starting points; the best of them against their mean."""
    size = 2.5 * session.epsilon / session.budget.steps
    variants: dict[str, Attack] = {MAIN: session.main()}
    for factor in session.budget.step_factors:
        variants[f"pgd, step x {factor:g}"] = dataclasses.replace(session.main(), step_size=size * factor)
    for momentum in session.budget.momenta:
        variants[f"pgd, momentum {momentum:g}"] = dataclasses.replace(session.main(), momentum=momentum)
    found = [session.attempt(name, attack) for name, attack in variants.items()] + starts(session)[1:]
    known = [attempt for attempt in found if attempt is not None]
    if len(known) < len(found):
        return CheckResult("fail", NO_GRADIENT)
    mean = sum(attempt.accuracy for attempt in known) / len(known)
    best, together = min(known, key=lambda attempt: attempt.accuracy), session.left_by(known).double().mean().item()
    gain = mean - best.accuracy
    summary = f"{len(known)} variants of steps, momenta and starts leave {mean:.1%} on average; the best of them, "
    summary += f"{best.name}, {best.accuracy:.1%}, and all together {together:.1%}."
    if gain >= RESTART_GAIN:
        return CheckResult(
            "fail", f"{summary} How the attack is set matters much: others may do better.", gain, RESTART_GAIN
        )
    return CheckResult("pass", summary, gain, RESTART_GAIN)


def starts(session: AuditSession) -> list[AttackRun | None]:
    """The main attack from several starting points."""
    found = [session.attempt(MAIN, session.main())]
    for number in range(2, session.budget.num_seeds + 1):
        attack = dataclasses.replace(session.main(), seed=session.seed_for(f"start {number}"))
        found.append(session.attempt(f"pgd, start {number}", attack))
    return found


def objectives_agree(session: AuditSession) -> CheckResult:
    """C8: what is averaged over draws, which loss is raised, and which class is aimed at."""
    tried = _objectives(session)
    if not tried:
        return CheckResult("fail", NO_GRADIENT)
    left = {name: session.left_by(attempts) for name, attempts in tried.items()}
    best = min(left, key=lambda name: int(left[name].sum()))
    union = session.left_by(attempt for attempts in tried.values() for attempt in attempts)
    gain = functional.statistics.paired_difference(left[best], union)
    summary = (
        f"{best} leaves {left[best].double().mean().item():.1%}. When all {len(left)} objectives count, as in the "
    )
    summary += f"headline, it is {union.double().mean().item():.1%}: the accuracy"
    return fall_within(gain, session.budget.resolution, summary, "They differ so much that others might leave less.")


def _objectives(session: AuditSession) -> dict[str, list[AttackRun]]:
    """Attacks by objective; aiming at one class after another is one more. None where there is no gradient."""
    tried: dict[str, list[AttackRun]] = {}
    for objective, loss in session.budget.objectives:
        if loss == "dlr" and session.num_classes < 3:  # constant for two classes
            continue
        name = f"pgd, {objective} {loss}".replace("_", " ")
        attack = dataclasses.replace(
            session.main(), objective=objective, loss=loss, restarts=session.budget.restarts, seed=session.seed_for("union")
        )
        found = session.attempt(name, attack)
        if found is None:
            return {}
        tried[name] = [found]
    aimed = []
    for rank, goals in enumerate(session.other_classes[: session.budget.num_goals], 1):
        attack = dataclasses.replace(session.main(), targeted=True, seed=session.seed_for(f"goal {rank}"))
        aimed.append(session.attempt(f"pgd, aimed at class {rank}", attack, goals))
    return tried | {"pgd, aimed at other classes": [attempt for attempt in aimed if attempt is not None]}


def no_better_without_noise(session: AuditSession) -> CheckResult:
    """C9: images made on the network with its noise off."""
    if session.kind != "random":
        return CheckResult("pass", "The network has no noise that could hide anything.")
    source = dataclasses.replace(session.main(), restarts=session.budget.restarts)
    found = session.attempt(OFF, Transfer(attack=source, norm=session.norm, bounds=session.bounds, seed=source.seed))
    if found is None and "noise='off' needs" in session.failures[OFF]:
        return CheckResult("skipped", "The noise is the model's own and cannot be turned off, so it may be a veil.")
    if found is None:
        return CheckResult("fail", NO_GRADIENT)
    reason = "The network with its noise off shows the way better than its own gradients do."
    return _not_stronger(session, [found], reason)


def no_better_without_gradients(session: AuditSession) -> CheckResult:
    """C14: random search, which needs no gradient, and images made on other networks."""
    square = Square(
        epsilon=session.epsilon,
        norm=session.norm,
        bounds=session.bounds,
        steps=session.budget.square_steps,
        num_samples=session.budget.num_samples,
        seed=session.seed_for("square"),
    )
    found = [session.attempt("square", square)] if session.inputs.dim() in (2, 4) else []
    others: dict[str, Model | None] = {
        "an ordinary network": session.ordinary_twin,
        "the network given to compare with": session.twin,
    }
    attack = dataclasses.replace(session.main(), num_samples=1, restarts=session.budget.restarts)
    for name, source in others.items():
        if source is not None:
            transfer = Transfer(attack=attack, source=source, norm=session.norm, bounds=session.bounds, seed=attack.seed)
            found.append(session.attempt(f"transfer from {name}", transfer))
    known = [attempt for attempt in found if attempt is not None]
    if not known:
        return CheckResult("skipped", f"No attack without gradients fits inputs of shape {tuple(session.inputs.shape[1:])}.")
    return _not_stronger(session, known, "Attacks that need no gradient do better than those that do: it is masked.")


def beats_noise(session: AuditSession) -> CheckResult:
    """C15: random perturbations of the same size."""
    noise = RandomNoise(
        epsilon=session.epsilon,
        norm=session.norm,
        bounds=session.bounds,
        tries=session.budget.noise_tries,
        num_samples=session.budget.num_samples,
        seed=session.seed_for("noise"),
    )
    found, main = session.attempt("random noise", noise), session.attempt(MAIN, session.main())
    if found is None or main is None:
        return CheckResult("fail", NO_GRADIENT)
    margin = found.accuracy - main.accuracy
    summary = f"Random noise leaves {found.accuracy:.1%}, the attack {main.accuracy:.1%}."
    if margin < NOISE_MARGIN:
        reason = f"That is less than {points(NOISE_MARGIN)} apart: the attack fails, or epsilon is too small to tell."
        return CheckResult("fail", f"{summary} {reason}", margin, NOISE_MARGIN)
    return CheckResult("pass", summary, margin, NOISE_MARGIN)


def _not_stronger(session: AuditSession, found: list[AttackRun], reason: str) -> CheckResult:
    """Whether attacks of another kind leave no less than all that follow the network's own gradients."""
    best = min(found, key=lambda attempt: attempt.accuracy)
    direct = session.direct()
    if not direct:
        return CheckResult("fail", f"{best.name} leaves {best.accuracy:.1%}. {NO_GRADIENT}")
    own = session.left_by(direct)
    gain = functional.statistics.paired_difference(own, best.right)
    summary = f"{best.name} leaves {best.accuracy:.1%}, attacks by the network's own gradients together "
    summary += f"{own.double().mean().item():.1%}."
    if gain.low > 0.0:
        return CheckResult("fail", f"{summary} {reason}", gain.value, 0.0)
    return CheckResult("pass", summary, gain.value, 0.0)


LEFT_AT_ONE = 0.01


FALLING = 0.1


AT_BOUNDARY = 0.9


SIGN_AGREEMENT = 0.8


NUM_DIFFERENCES, TOP, DIFFERENCE = 16, 0.01, 1e-2


NUM_REPEATS = 8


ALONG = (0.0, 0.25, 0.5, 0.75, 1.0)


def nothing_left_at_one(session: AuditSession) -> CheckResult:
    """C16: with any image in reach, nothing may be left."""
    reach = _widest(session)
    found = session.attempt_aside(f"pgd at {reach:g}", session.at(reach))
    if found is None:
        return CheckResult("fail", NO_GRADIENT)
    summary = f"With epsilon {reach:g}, which allows any image, the attack leaves {found.accuracy:.1%}."
    if found.accuracy > LEFT_AT_ONE:
        return CheckResult("fail", f"{summary} An attack that works leaves nothing.", found.accuracy, LEFT_AT_ONE)
    return CheckResult("pass", summary, found.accuracy, LEFT_AT_ONE)


def grows_with_distance(session: AuditSession) -> CheckResult:
    """C17: accuracy falls as the distance grows, and once it falls does not stop above chance."""
    reach = _widest(session)
    distances = [factor * session.epsilon for factor in session.budget.epsilon_factors if factor * session.epsilon < reach]
    distances.append(reach)
    found = [session.attempt_aside(f"pgd at {distance:g}", session.at(distance)) for distance in distances]
    known = [attempt for attempt in found if attempt is not None]
    if len(known) < len(found):
        return CheckResult("fail", NO_GRADIENT)
    rights = [session.clean, *(attempt.right for attempt in known)]
    shown = tuple(
        CurvePoint(x, right.double().mean().item()) for x, right in zip([0.0, *distances], rights, strict=True)
    )
    risen = max(
        functional.statistics.paired_difference(later, earlier).low for earlier, later in itertools.pairwise(rights)
    )
    if risen > 0.0:
        summary = "The accuracy rises as the attacker may go further: the attack is broken."
        return CheckResult("fail", summary, risen, 0.0, shown)
    stuck = _plateau(session, distances, known)
    if stuck is not None:
        summary = f"From epsilon {stuck[0]:g} to {stuck[1]:g} the accuracy stays above chance and falls no further."
        return CheckResult("fail", summary, 0.0, 0.0, shown)
    return CheckResult("pass", "The accuracy falls as the attacker may go further.", max(risen, 0.0), 0.0, shown)


def nothing_moves_at_zero(session: AuditSession) -> CheckResult:
    """C18: no distance, no change; every image stays in the ball and in the box; no network gives NaN."""
    seed = session.seed_for("zero")
    noise = RandomNoise(epsilon=0.0, norm=session.norm, bounds=session.bounds, tries=1, num_samples=1, seed=seed)
    climb = dataclasses.replace(session.at(0.0), steps=2, num_samples=1)
    for name, attack in {"pgd at 0": climb, "random noise at 0": noise}.items():
        still = session.attempt_aside(name, attack)
        if still is not None and not torch.equal(still.images, session.inputs):
            return CheckResult("fail", f"{name} moves images.")
    for name, reason in session.failures.items():
        if "finite" in reason:
            return CheckResult("fail", f"{name} could not be run: {reason}.")
    for attempt in session.attempts.values():
        moved = attempt.images.double() - session.inputs.double()
        size = functional.adversarial.perturbation_norm(moved, session.norm).max().item()
        inside = bool(((attempt.images >= session.bounds[0]) & (attempt.images <= session.bounds[1])).all())
        if not size <= session.epsilon or not inside:
            summary = f"{attempt.name} went out of bounds: it moved an image by {size:g}."
            return CheckResult("fail", summary, size, session.epsilon)
    count = len(session.attempts)
    summary = f"All images of {count} attacks lie within the distance and the bounds, and none moves at distance 0."
    return CheckResult("pass", summary, 0.0)


def gradients_live(session: AuditSession) -> CheckResult:
    """C19: no gradient is zero, and the loss is largest where the attack ended."""
    try:
        found = gradients(session, session.budget.num_samples, "zero")
    except ValueError:
        return CheckResult("fail", NO_GRADIENT)
    dead = (found.flatten(1).abs().amax(dim=1) == 0.0).double().mean().item()
    if dead > 0.0:
        return CheckResult("fail", f"On {dead:.1%} of the images the gradient is exactly zero: it is masked.", dead, 0.0)
    main = session.attempt(MAIN, session.main())
    if main is None:
        return CheckResult("fail", f"The attack could not be run: {session.failures[MAIN]}.")
    last = _largest_at_the_end(session, main.images)
    summary = (
        f"No gradient is zero; along the way of the attack the loss is largest at its end on {last:.1%} of images."
    )
    return CheckResult("pass" if last >= AT_BOUNDARY else "fail", summary, last, AT_BOUNDARY)


def differences_agree(session: AuditSession) -> CheckResult:
    """C20: small differences of the loss, with the same draws, against its gradient."""
    few, labels = session.inputs[:NUM_DIFFERENCES], session.targets[:NUM_DIFFERENCES]
    target = session.target("predictive", "margin", session.budget.num_samples, frozen=True)
    size = DIFFERENCE * (session.bounds[1] - session.bounds[0])
    with untouched(session.model):
        try:
            gradient = target.loss_and_grad(few, labels).gradient.flatten(1)
        except ValueError:
            return CheckResult("fail", NO_GRADIENT)
        count = min(max(int(TOP * gradient.shape[1]), 5), gradient.shape[1])
        chosen = gradient.abs().topk(count, dim=1).indices
        agreeing = [_same_sign(target, few, labels, gradient, column, size) for column in chosen.unbind(dim=1)]
    share = torch.stack(agreeing).double().mean().item()
    summary = f"Where the gradient is largest, small changes move the loss as it says in {share:.1%} of the cases."
    return CheckResult("pass" if share >= SIGN_AGREEMENT else "fail", summary, share, SIGN_AGREEMENT)


def seeds_agree(session: AuditSession) -> CheckResult:
    """C23: other seeds of the attack, and how far other draws would move the headline."""
    found = starts(session)
    known = [attempt for attempt in found if attempt is not None]
    error, limit = _error_over_draws(session, session.worst()[0]), session.budget.draws_error
    summary = f"Over other draws the headline has a standard error of {100.0 * error:.2f} points"
    if len(known) < len(found):
        return CheckResult("fail", f"{summary}; the attack could not be run with {len(found)} seeds.", error, limit)
    summary += f"; {len(known)} seeds of the attack leave {', '.join(f'{attempt.accuracy:.1%}' for attempt in known)}."
    if error >= limit:
        return CheckResult("fail", f"{summary} That is not below {points(limit)}: more draws would tell.", error, limit)
    return CheckResult("pass", summary, error, limit)


def _widest(session: AuditSession) -> float:
    """The distance that allows any image."""
    widest = session.bounds[1] - session.bounds[0]
    return widest if session.norm == "linf" else widest * math.sqrt(session.inputs[0].numel())


def _plateau(session: AuditSession, distances: list[float], known: list[AttackRun]) -> tuple[float, float] | None:
    """Two distances, one twice the other or more, between which accuracy that was falling stays above chance."""
    for place, attempt in enumerate(known):
        begun = functional.statistics.paired_difference(session.clean, attempt.right).low > FALLING
        later = next((j for j, distance in enumerate(distances) if distance >= 2.0 * distances[place]), None)
        if not begun or later is None:
            continue
        right = known[later].right
        low, _ = functional.statistics.clopper_pearson(int(right.sum()), len(right))
        falls = functional.statistics.paired_difference(attempt.right, right)
        if low > 1.0 / session.num_classes and falls.high <= session.budget.resolution:
            return distances[place], distances[later]
    return None


@torch.no_grad()
def _largest_at_the_end(session: AuditSession, images: Tensor) -> float:
    """Share of the images on which no point on the straight way has a larger loss than its end, by the same draws."""
    target = session.target("predictive", "margin", session.budget.num_samples, frozen=True)
    values = []
    with untouched(session.model):
        for share in ALONG:
            between = session.inputs + share * (images - session.inputs)
            found = [
                dataclasses.replace(target, first_row=first).values(part, labels)
                for first, part, labels in session.pieces(between)
            ]
            values.append(torch.cat(found))
    stacked = torch.stack(values)
    tolerance = 1e-4 * (stacked.amax(dim=0) - stacked.amin(dim=0))
    return (stacked[-1] >= stacked.amax(dim=0) - tolerance).double().mean().item()


@torch.no_grad()
def _same_sign(
    target: AttackTarget, few: Tensor, labels: Tensor, gradient: Tensor, column: Tensor, size: float
) -> Tensor:
    step = torch.zeros_like(gradient).scatter_(1, column[:, None], size).view_as(few)
    rise = target.values(few + step, labels) - target.values(few - step, labels)
    said = gradient.gather(1, column[:, None]).squeeze(1).sign()
    return (said != 0.0) & (rise.sign() == said)  # a gradient that says nothing agrees with nothing


def _error_over_draws(session: AuditSession, images: Tensor) -> float:
    """Standard error over draws of the accuracy of their mean, from as many draws again and again.

    Leaving groups of draws out would be cheaper, but tells too much where few images lie at the border of two classes.
    """
    if session.kind != "random":
        return 0.0
    scores = [session.score(images, session.budget.score_draws, f"repeat {number}") for number in range(NUM_REPEATS)]
    return torch.tensor([score.predictive.value for score in scores], dtype=torch.float64).std().item()


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


def beats_twin(session: AuditSession) -> CheckResult:
    """C10: the network with its noise off, against an adversarially trained network without noise."""
    if session.twin is None:
        return CheckResult("skipped", "No adversarially trained network without noise was given to compare with.")
    if session.kind == "members":
        return CheckResult("skipped", "An ensemble has no mean network to compare.")
    attack = dataclasses.replace(session.main(), restarts=session.budget.restarts)
    try:
        own = dataclasses.replace(attack, noise="off")(session.model, session.inputs, session.targets, progress=False)
    except ValueError as error:
        return CheckResult("skipped", f"The noise cannot be turned off: {error}.")
    other = attack(session.twin, session.inputs, session.targets, progress=False)
    left, its = ~own.fooled.cpu(), ~other.fooled.cpu()
    behind = functional.statistics.paired_difference(its, left)
    summary = f"With its noise off the network keeps {left.double().mean():.1%}, the other {its.double().mean():.1%}."
    return CheckResult("pass" if behind.low <= TWIN_LIMIT else "fail", summary, behind.value, TWIN_LIMIT)


def autoattack_agrees(session: AuditSession) -> CheckResult:
    """C12: AutoAttack on the mean over frozen draws, scored like every other attack; its images count."""
    try:
        from pyautoattack import AutoAttack  # type: ignore[import-not-found]
    except ImportError:
        return CheckResult("skipped", "AutoAttack is not installed (pip install pyautoattack).")
    if session.inputs.dim() != 4 or session.bounds != (0.0, 1.0) or session.num_classes < FEWEST_CLASSES:
        return CheckResult("skipped", f"AutoAttack takes images in [0, 1] of {FEWEST_CLASSES} classes or more.")
    own = session.left_by(session.attempts.values())
    found = _autoattack(session, AutoAttack)
    behind = functional.statistics.paired_difference(own, found.right)
    summary = f"AutoAttack leaves {found.accuracy:.1%}, our own attacks together {own.double().mean():.1%}."
    return CheckResult("pass" if behind.low <= TWIN_LIMIT else "fail", summary, behind.value, TWIN_LIMIT)


def twin_falls(session: AuditSession) -> CheckResult:
    """C24: the same attack on a network of this kind without noise or defence, trained on these very images."""
    twin = session.ordinary_twin
    if twin is None:
        return CheckResult("skipped", "No ordinary network of this kind could be made to try the attack on.")
    reach = FAR * (session.bounds[1] - session.bounds[0])
    distance = reach if session.norm == "linf" else reach * math.sqrt(session.inputs[0].numel()) / 2.0
    attack = dataclasses.replace(
        session.main(), epsilon=max(session.epsilon, distance), num_samples=1, seed=session.seed_for("on the twin")
    )
    left = _left_of(twin, attack, session)
    summary = f"On an ordinary network of this kind the attack leaves {left:.1%} at epsilon {attack.epsilon:g}."
    if left > FALLEN:
        return CheckResult("fail", f"{summary} The attack itself does not work here.", left, FALLEN)
    return CheckResult("pass", summary, left, FALLEN)


def plausible(session: AuditSession) -> CheckResult:
    """C25: against the best that is published for this distance, or for a smaller one."""
    for known in REFERENCES:
        as_hard = session.epsilon >= known.epsilon * (1.0 - 1e-6)
        if known.data == session.data and known.norm == session.norm and as_hard:
            found = session.score(session.worst()[0], session.budget.score_draws).predictive
            summary = f"{found.value:.1%} is left; {known.source} keeps {known.accuracy:.1%}."
            return CheckResult("pass" if found.low <= known.accuracy else "fail", summary, found.value, known.accuracy)
    return CheckResult("skipped", "No published figure is known for these data and this distance.")


def _left_of(twin: torch.nn.Module, attack: PGD, session: AuditSession) -> float:
    images = attack(twin, session.inputs, session.targets, progress=False).inputs
    return score(twin, images, session.targets, num_samples=1, num_tries=1).predictive.value


def _autoattack(session: AuditSession, attacker: Callable[..., Any]) -> AttackRun:
    """Its images, put exactly into the ball, as one more attack of the audit."""
    kept = session.keeper.find(AUTOATTACK)
    if kept is None:
        target = session.target("predictive", "margin", session.budget.num_samples, frozen=True)
        began = time.perf_counter()

        def mean_log_probs(images: Tensor) -> Tensor:
            return functional.uncertainty.predictive_log_probs(target.log_probs(images))

        norm = {"linf": "Linf", "l2": "L2"}[session.norm]
        seed = session.seed_for(AUTOATTACK)
        made = attacker(mean_log_probs, norm=norm, eps=session.epsilon, seed=seed, device=session.inputs.device)
        session.step(AUTOATTACK)
        # It seeds torch's global generators itself.
        with untouched(session.model), seeded(seed, session.inputs.device, lend=True):
            images, _ = made.run_standard_evaluation(session.inputs, session.targets)
        images = functional.adversarial.project_inputs(images, session.inputs, session.norm, session.epsilon)
        images = images.clamp(*session.bounds)
        kept = Kept(images, target.forwards, 0, time.perf_counter() - began)
        session.keeper.keep(AUTOATTACK, kept)
    return session.add(AUTOATTACK, kept)
