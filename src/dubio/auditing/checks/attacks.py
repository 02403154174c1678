"""Checks of the attacks: does another attack leave less (C5 to C9, C14, C15), does the attack itself work (C16 to C20,
C23), and how does the network compare with others (C10, C12, C24, C25)?

Every check can pass and can fail (``tests/auditing/test_checks.py``).
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
from dubio._engine import isolated, seeded
from dubio.attacks import FGSM, Attack, AttackTarget, Model, RandomNoise, Square, Transfer, score
from dubio.auditing.checks.randomness import gradients
from dubio.auditing.records import Cost, CurvePoint
from dubio.auditing.session import (
    MAIN,
    NO_GRADIENT,
    ROWS,
    AttackRun,
    AuditSession,
    CheckResult,
    NoGradientError,
    curve,
    fall_within,
    points,
    share,
    verdict,
)
from dubio.functional.statistics import clopper_pearson, paired_difference

RESTART_GAIN = 0.03
NOISE_MARGIN = 0.05
OFF = "transfer from noise off"
LEFT_AT_ONE = 0.01
FALLING = 0.1
AT_BOUNDARY = 0.9
SIGN_AGREEMENT = 0.8
NUM_DIFFERENCES, TOP, DIFFERENCE = 16, 0.01, 1e-2
NUM_REPEATS = 8
ALONG = (0.0, 0.25, 0.5, 0.75, 1.0)
AUTOATTACK = "AutoAttack"
TWIN_LIMIT = 0.01
FALLEN = 0.02
FAR = 0.3
FEWEST_CLASSES = 4
"""AutoAttack's losses need a third class, and a fourth where they are targeted."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """The best published accuracy for one threat model."""

    data: str
    norm: str
    epsilon: float
    accuracy: float
    source: str


REFERENCES = (
    Reference("cifar10", "linf", 8 / 255, 0.585, "the best 18-layer network of RobustBench, with generated images"),
)


def steps_converged(session: AuditSession) -> CheckResult:
    """C5: the accuracy left as the attack takes more steps."""
    session.attempt(MAIN, session.main())
    counts = session.budget.step_counts
    runs = session.attempt_all({f"pgd, {count} steps": session.main(steps=count) for count in counts})
    fall = paired_difference(runs[-2].right, runs[-1].right)
    summary = f"From {counts[-2]} to {counts[-1]} steps the accuracy"
    more = "More steps might still leave less."
    return fall_within(fall, session.budget.resolution, summary, more, curve(counts, runs))


def iterating_helps(session: AuditSession) -> CheckResult:
    """C6: many small steps against one large one."""
    main = session.main()
    same = {name: getattr(main, name) for name in ("num_samples", "objective", "loss", "seed")}
    single, many = session.attempt_all({"fgsm": FGSM(**(session.threat | same)), MAIN: main})
    gain = paired_difference(single.right, many.right)
    summary = f"One step leaves {single.accuracy:.1%}, {session.budget.steps} steps leave {many.accuracy:.1%}."
    reason = "Iterating hurts the attack, which only masked gradients do."
    return verdict(gain.high >= 0.0, summary, gain.value, 0.0, reason)


def restarts_agree(session: AuditSession) -> CheckResult:
    """C7: other steps, momenta and starting points; the best of them against their mean."""
    size = 2.5 * session.epsilon / session.budget.steps
    variants: dict[str, Attack] = {MAIN: session.main()}
    for factor in session.budget.step_factors:
        variants[f"pgd, step x {factor:g}"] = session.main(step_size=size * factor)
    for momentum in session.budget.momenta:
        variants[f"pgd, momentum {momentum:g}"] = session.main(momentum=momentum)
    runs = session.attempt_all(variants | _starts(session))
    mean = sum(run.accuracy for run in runs) / len(runs)
    best, together = min(runs, key=lambda run: run.accuracy), share(session.left_by(runs))
    gain = mean - best.accuracy
    summary = f"{len(runs)} variants of steps, momenta and starts leave {mean:.1%} on average; the best of them, "
    summary += f"{best.name}, {best.accuracy:.1%}, and all together {together:.1%}."
    reason = "How the attack is set matters much: others may do better."
    return verdict(gain < RESTART_GAIN, summary, gain, RESTART_GAIN, reason)


def objectives_agree(session: AuditSession) -> CheckResult:
    """C8: objectives over draws, losses, and the class that is aimed at."""
    runs_by_objective = _objectives(session)
    left = {name: session.left_by(runs) for name, runs in runs_by_objective.items()}
    best = min(left, key=lambda name: int(left[name].sum()))
    union = session.left_by(itertools.chain.from_iterable(runs_by_objective.values()))
    summary = f"{best} leaves {share(left[best]):.1%}. When all {len(left)} objectives count, as in the "
    summary += f"headline, it is {share(union):.1%}: the accuracy"
    more = "They differ so much that others might leave less."
    return fall_within(paired_difference(left[best], union), session.budget.resolution, summary, more)


def _objectives(session: AuditSession) -> dict[str, list[AttackRun]]:
    """Attacks by objective; attacks aimed at one class after another are one more."""
    runs: dict[str, list[AttackRun]] = {}
    for objective, loss in session.budget.objectives:
        if loss == "dlr" and session.num_classes < 3:  # constant for two classes
            continue
        name = f"pgd, {objective} {loss}".replace("_", " ")
        fields = {"restarts": session.budget.restarts, "seed": session.seed_for("union")}
        runs[name] = session.attempt_all({name: session.main(objective=objective, loss=loss, **fields)})
    aimed = []
    for rank, goals in enumerate(session.other_classes[: session.budget.num_goals], 1):
        attack = session.main(targeted=True, seed=session.seed_for(f"goal {rank}"))
        aimed.append(session.attempt(f"pgd, aimed at class {rank}", attack, goals))
    return runs | {"pgd, aimed at other classes": [run for run in aimed if run is not None]}


def no_better_without_noise(session: AuditSession) -> CheckResult:
    """C9: images made on the network with its noise off."""
    if session.kind != "random":
        return CheckResult("pass", "The network has no noise that could hide anything.")
    source = session.main(restarts=session.budget.restarts)
    run = session.attempt(OFF, Transfer(attack=source, norm=session.norm, bounds=session.bounds, seed=source.seed))
    if run is None and "noise='off' needs" in session.failures[OFF]:
        return CheckResult("skipped", "The noise is the model's own and cannot be turned off, so it may be a veil.")
    if run is None:
        raise NoGradientError
    reason = "The network with its noise off shows the way better than its own gradients do."
    return _not_stronger(session, [run], reason)


def no_better_without_gradients(session: AuditSession) -> CheckResult:
    """C14: random search, which needs no gradient, and images made on other networks."""
    sizes = session.threat | {"steps": session.budget.square_steps, "num_samples": session.budget.num_samples}
    square = Square(**sizes, seed=session.seed_for("square"))
    runs = [session.attempt("square", square)] if session.inputs.dim() in (2, 4) else []
    others: dict[str, Model | None] = {
        "an ordinary network": session.ordinary_twin,
        "the network given to compare with": session.twin,
    }
    attack = session.main(num_samples=1, restarts=session.budget.restarts)
    for name, source in others.items():
        if source is not None:
            same: dict[str, Any] = {"norm": session.norm, "bounds": session.bounds, "seed": attack.seed}
            runs.append(session.attempt(f"transfer from {name}", Transfer(attack=attack, source=source, **same)))
    completed = [run for run in runs if run is not None]
    if not completed:
        shape = tuple(session.inputs.shape[1:])
        return CheckResult("skipped", f"No attack without gradients fits inputs of shape {shape}.")
    reason = "Attacks that need no gradient do better than those that do: it is masked."
    return _not_stronger(session, completed, reason)


def beats_noise(session: AuditSession) -> CheckResult:
    """C15: random perturbations of the same size."""
    sizes = session.threat | {"tries": session.budget.noise_tries, "num_samples": session.budget.num_samples}
    random = RandomNoise(**sizes, seed=session.seed_for("noise"))
    noise, main = session.attempt_all({"random noise": random, MAIN: session.main()})
    margin = noise.accuracy - main.accuracy
    summary = f"Random noise leaves {noise.accuracy:.1%}, the attack {main.accuracy:.1%}."
    reason = f"That is less than {points(NOISE_MARGIN)} apart: the attack fails, or epsilon is too small to tell."
    return verdict(margin >= NOISE_MARGIN, summary, margin, NOISE_MARGIN, reason)


def nothing_left_at_one(session: AuditSession) -> CheckResult:
    """C16: where the attacker may reach any image, no accuracy may be left."""
    reach = _widest(session)
    (run,) = session.attempt_all({f"pgd at {reach:g}": session.main(epsilon=reach)}, aside=True)
    summary = f"With epsilon {reach:g}, which allows any image, the attack leaves {run.accuracy:.1%}."
    reason = "An attack that works leaves nothing."
    return verdict(run.accuracy <= LEFT_AT_ONE, summary, run.accuracy, LEFT_AT_ONE, reason)


def grows_with_distance(session: AuditSession) -> CheckResult:
    """C17: accuracy falls as the distance grows, and does not stop falling above chance."""
    reach = _widest(session)
    distances = [factor * session.epsilon for factor in session.budget.epsilon_factors]
    distances = [*(distance for distance in distances if distance < reach), reach]
    attacks = {f"pgd at {distance:g}": session.main(epsilon=distance) for distance in distances}
    runs = session.attempt_all(attacks, aside=True)
    rights = [session.clean, *(run.right for run in runs)]
    shown = tuple(CurvePoint(x, share(right)) for x, right in zip([0.0, *distances], rights, strict=True))
    risen = max(paired_difference(later, earlier).low for earlier, later in itertools.pairwise(rights))
    if risen > 0.0:
        summary = "The accuracy rises as the attacker may go further: the attack is broken."
        return CheckResult("fail", summary, risen, 0.0, shown)
    plateau = _plateau(session, distances, runs)
    if plateau is not None:
        summary = f"From epsilon {plateau[0]:g} to {plateau[1]:g} the accuracy stays above chance and falls no further."
        return CheckResult("fail", summary, 0.0, 0.0, shown)
    return CheckResult("pass", "The accuracy falls as the attacker may go further.", max(risen, 0.0), 0.0, shown)


def nothing_moves_at_zero(session: AuditSession) -> CheckResult:
    """C18: no distance, no change; every image stays in the ball and in the box; no network gives NaN."""
    still = session.threat | {"epsilon": 0.0, "num_samples": 1}
    attacks = {
        "pgd at 0": session.main(epsilon=0.0, steps=2, num_samples=1),
        "random noise at 0": RandomNoise(**still, tries=1, seed=session.seed_for("zero")),
    }
    for name, attack in attacks.items():
        run = session.attempt(name, attack, aside=True)
        if run is not None and not torch.equal(run.images, session.inputs):
            return CheckResult("fail", f"{name} moves images.")
    for name, reason in session.failures.items():
        if "finite" in reason:
            return CheckResult("fail", f"{name} could not be run: {reason}.")
    for run in session.attempts.values():
        moved = run.images.double() - session.inputs.double()
        size = functional.adversarial.perturbation_norm(moved, session.norm).max().item()
        inside = bool(((run.images >= session.bounds[0]) & (run.images <= session.bounds[1])).all())
        if not size <= session.epsilon or not inside:
            summary = f"{run.name} went out of bounds: it moved an image by {size:g}."
            return CheckResult("fail", summary, size, session.epsilon)
    count = len(session.attempts)
    summary = f"All images of {count} attacks lie within the distance and the bounds, and none moves at distance 0."
    return CheckResult("pass", summary, 0.0)


def gradients_live(session: AuditSession) -> CheckResult:
    """C19: no gradient is zero, and the loss is largest where the attack ended."""
    gradient = gradients(session, session.budget.num_samples, "zero")
    dead = share(gradient.flatten(1).abs().amax(dim=1) == 0.0)
    if dead > 0.0:
        summary = f"On {dead:.1%} of the images the gradient is exactly zero: it is masked."
        return CheckResult("fail", summary, dead, 0.0)
    main = session.attempt(MAIN, session.main())
    if main is None:
        return CheckResult("fail", f"The attack could not be run: {session.failures[MAIN]}.")
    last = _largest_at_the_end(session, main.images)
    summary = "No gradient is zero; along the way of the attack the loss is largest at its end "
    summary += f"on {last:.1%} of images."
    return verdict(last >= AT_BOUNDARY, summary, last, AT_BOUNDARY)


def differences_agree(session: AuditSession) -> CheckResult:
    """C20: small differences of the loss, with the same draws, against its gradient."""
    few, labels = session.inputs[:NUM_DIFFERENCES], session.targets[:NUM_DIFFERENCES]
    target = session.target(session.budget.num_samples, frozen=True)
    size = DIFFERENCE * (session.bounds[1] - session.bounds[0])
    with isolated(session.model, training=False, trainable=False):
        try:
            gradient = target.loss_and_grad(few, labels).gradient.flatten(1)
        except ValueError as error:
            raise NoGradientError from error
        count = min(max(int(TOP * gradient.shape[1]), 5), gradient.shape[1])
        chosen = gradient.abs().topk(count, dim=1).indices
        agreeing = [_same_sign(target, few, labels, gradient, column, size) for column in chosen.unbind(dim=1)]
    agreement = share(torch.stack(agreeing))
    summary = f"Where the gradient is largest, small changes move the loss as it says in {agreement:.1%} of the cases."
    return verdict(agreement >= SIGN_AGREEMENT, summary, agreement, SIGN_AGREEMENT)


def seeds_agree(session: AuditSession) -> CheckResult:
    """C23: other seeds of the attack, and how far other draws would move the headline."""
    runs = [session.attempt(name, attack) for name, attack in _starts(session).items()]
    completed = [f"{run.accuracy:.1%}" for run in runs if run is not None]
    error, limit = _error_over_draws(session, session.worst()[0]), session.budget.draws_error
    summary = f"Over other draws the headline has a standard error of {100.0 * error:.2f} points"
    if len(completed) < len(runs):
        return CheckResult("fail", f"{summary}; the attack could not be run with {len(runs)} seeds.", error, limit)
    summary += f"; {len(completed)} seeds of the attack leave {', '.join(completed)}."
    return verdict(error < limit, summary, error, limit, f"That is not below {points(limit)}: more draws would tell.")


def beats_twin(session: AuditSession) -> CheckResult:
    """C10: the network with its noise off, against an adversarially trained network without noise."""
    if session.twin is None:
        return CheckResult("skipped", "No adversarially trained network without noise was given to compare with.")
    if session.kind == "members":
        return CheckResult("skipped", "An ensemble has no mean network to compare.")
    attack = session.main(restarts=session.budget.restarts)
    try:
        mean = dataclasses.replace(attack, noise="off")(session.model, session.inputs, session.targets, progress=False)
    except ValueError as error:
        return CheckResult("skipped", f"The noise cannot be turned off: {error}.")
    other = attack(session.twin, session.inputs, session.targets, progress=False)
    left, left_of_twin = ~mean.fooled.cpu(), ~other.fooled.cpu()
    behind = paired_difference(left_of_twin, left)
    summary = f"With its noise off the network keeps {share(left):.1%}, the other {share(left_of_twin):.1%}."
    return CheckResult("pass" if behind.low <= TWIN_LIMIT else "fail", summary, behind.value, TWIN_LIMIT)


def autoattack_agrees(session: AuditSession) -> CheckResult:
    """C12: AutoAttack on the mean over frozen draws, scored like every other attack; its images count."""
    try:
        from pyautoattack import AutoAttack  # type: ignore[import-not-found]
    except ImportError:
        return CheckResult("skipped", "AutoAttack is not installed (pip install pyautoattack).")
    if session.inputs.dim() != 4 or session.bounds != (0.0, 1.0) or session.num_classes < FEWEST_CLASSES:
        return CheckResult("skipped", f"AutoAttack takes images in [0, 1] of {FEWEST_CLASSES} classes or more.")
    left = session.left_by(session.attempts.values())
    run = _autoattack(session, AutoAttack)
    behind = paired_difference(left, run.right)
    summary = f"AutoAttack leaves {run.accuracy:.1%}, our own attacks together {share(left):.1%}."
    return verdict(behind.low <= TWIN_LIMIT, summary, behind.value, TWIN_LIMIT)


def twin_falls(session: AuditSession) -> CheckResult:
    """C24: the same attack on a network of this kind without noise or defence, trained on these very images."""
    twin = session.ordinary_twin
    if twin is None:
        return CheckResult("skipped", "No ordinary network of this kind could be made to try the attack on.")
    reach = FAR * (session.bounds[1] - session.bounds[0])
    distance = reach if session.norm == "linf" else reach * math.sqrt(session.inputs[0].numel()) / 2.0
    epsilon = max(session.epsilon, distance)
    attack = session.main(epsilon=epsilon, num_samples=1, seed=session.seed_for("on the twin"))
    images = attack(twin, session.inputs, session.targets, progress=False).inputs
    left = score(twin, images, session.targets, num_samples=1, num_tries=1).predictive.value
    summary = f"On an ordinary network of this kind the attack leaves {left:.1%} at epsilon {epsilon:g}."
    return verdict(left <= FALLEN, summary, left, FALLEN, "The attack itself does not work here.")


def plausible(session: AuditSession) -> CheckResult:
    """C25: against the best that is published for this distance, or for a smaller one."""
    for best in REFERENCES:
        as_hard = session.epsilon >= best.epsilon * (1.0 - 1e-6)
        if best.data == session.data and best.norm == session.norm and as_hard:
            left = session.score(session.worst()[0], session.budget.score_draws).predictive
            summary = f"{left.value:.1%} is left; {best.source} keeps {best.accuracy:.1%}."
            return verdict(left.low <= best.accuracy, summary, left.value, best.accuracy)
    return CheckResult("skipped", "No published figure is known for these data and this distance.")


def _starts(session: AuditSession) -> dict[str, Attack]:
    """The main attack from several starting points."""
    numbers = range(2, session.budget.num_seeds + 1)
    others = {f"pgd, start {number}": session.main(seed=session.seed_for(f"start {number}")) for number in numbers}
    return {MAIN: session.main(), **others}


def _not_stronger(session: AuditSession, runs: list[AttackRun], reason: str) -> CheckResult:
    """Whether attacks of another kind leave no less than all that follow the network's own gradients."""
    best = min(runs, key=lambda run: run.accuracy)
    direct = session.direct()
    if not direct:
        return CheckResult("fail", f"{best.name} leaves {best.accuracy:.1%}. {NO_GRADIENT}")
    left = session.left_by(direct)
    gain = paired_difference(left, best.right)
    summary = f"{best.name} leaves {best.accuracy:.1%}, attacks by the network's own gradients together "
    return verdict(gain.low <= 0.0, f"{summary}{share(left):.1%}.", gain.value, 0.0, reason)


def _widest(session: AuditSession) -> float:
    """The distance that allows any image."""
    widest = session.bounds[1] - session.bounds[0]
    return widest if session.norm == "linf" else widest * math.sqrt(session.inputs[0].numel())


def _plateau(session: AuditSession, distances: list[float], runs: list[AttackRun]) -> tuple[float, float] | None:
    """Two distances, one twice the other or more, between which accuracy that was falling stays above chance."""
    for place, run in enumerate(runs):
        is_falling = paired_difference(session.clean, run.right).low > FALLING
        later = next((j for j, distance in enumerate(distances) if distance >= 2.0 * distances[place]), None)
        if not is_falling or later is None:
            continue
        right = runs[later].right
        low, _ = clopper_pearson(int(right.sum()), len(right))
        falls = paired_difference(run.right, right)
        if low > 1.0 / session.num_classes and falls.high <= session.budget.resolution:
            return distances[place], distances[later]
    return None


@torch.no_grad()
def _largest_at_the_end(session: AuditSession, images: Tensor) -> float:
    """Share of the images on which no point on the straight way has a larger loss than its end, by the same draws."""
    target = session.target(session.budget.num_samples, frozen=True)
    values = []
    with isolated(session.model, training=False, trainable=False):
        for part in ALONG:
            between = session.inputs + part * (images - session.inputs)
            values.append(target.evaluate_pieces(between, session.targets, ROWS)[0])
    stacked = torch.stack(values)
    tolerance = 1e-4 * (stacked.amax(dim=0) - stacked.amin(dim=0))
    return share(stacked[-1] >= stacked.amax(dim=0) - tolerance)


@torch.no_grad()
def _same_sign(
    target: AttackTarget, few: Tensor, labels: Tensor, gradient: Tensor, column: Tensor, size: float
) -> Tensor:
    step = torch.zeros_like(gradient).scatter_(1, column[:, None], size).view_as(few)
    rise = target.evaluate(few + step, labels)[0] - target.evaluate(few - step, labels)[0]
    sign = gradient.gather(1, column[:, None]).squeeze(1).sign()
    return (sign != 0.0) & (rise.sign() == sign)  # a gradient of zero agrees with nothing


def _error_over_draws(session: AuditSession, images: Tensor) -> float:
    """Standard error over draws of the accuracy of their mean, from repeated sets of as many draws.

    Leaving groups of draws out would be cheaper, but is too large where few images lie at the border of two classes.
    """
    if session.kind != "random":
        return 0.0
    scores = [session.score(images, session.budget.score_draws, f"repeat {number}") for number in range(NUM_REPEATS)]
    return torch.tensor([score.predictive.value for score in scores], dtype=torch.float64).std().item()


def _autoattack(session: AuditSession, attacker: Callable[..., Any]) -> AttackRun:
    """Its images, projected exactly into the ball, as one more attack of the audit."""
    stored = session.keeper.find(AUTOATTACK)
    if stored is None:
        target = session.target(session.budget.num_samples, frozen=True)
        began = time.perf_counter()

        def mean_log_probs(images: Tensor) -> Tensor:
            return functional.uncertainty.predictive_log_probs(target.log_probs(images))

        norm = {"linf": "Linf", "l2": "L2"}[session.norm]
        seed = session.seed_for(AUTOATTACK)
        attack = attacker(mean_log_probs, norm=norm, eps=session.epsilon, seed=seed, device=session.inputs.device)
        session.step(AUTOATTACK)
        # It seeds torch's global generators itself.
        isolation = isolated(session.model, training=False, trainable=False)
        with isolation, seeded(seed, session.inputs.device, lend=True):
            images, _ = attack.run_standard_evaluation(session.inputs, session.targets)
        images = functional.adversarial.project_inputs(images, session.inputs, session.norm, session.epsilon)
        stored = images.clamp(*session.bounds), Cost(target.forwards, 0, time.perf_counter() - began)
        session.keeper.keep(AUTOATTACK, *stored)
    session.attempts[AUTOATTACK] = session.run_of(AUTOATTACK, None, *stored)
    return session.attempts[AUTOATTACK]
