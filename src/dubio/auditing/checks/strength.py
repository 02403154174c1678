"""Does a stronger, longer or different attack leave less? C5 to C9, C14, C15."""

import dataclasses

from torch import Tensor

from dubio import functional
from dubio.attacks import Attack, Fgsm, Pgd, RandomNoise, Square, Transfer
from dubio.auditing.bench import MAIN, Attempt, Bench
from dubio.auditing.checks.check import Finding, curve, points

__all__ = [
    "beats_noise",
    "iterating_helps",
    "no_better_without_gradients",
    "no_better_without_noise",
    "objectives_agree",
    "restarts_agree",
    "steps_converged",
]

RESTART_GAIN = 0.03
NOISE_MARGIN = 0.05
NO_GRADIENT = "The network has no gradient to follow: it hides how its output depends on its input."


def steps_converged(bench: Bench) -> Finding:
    """C5: what is left as the attack takes more steps."""
    counts = bench.budget.step_counts
    found = [bench.attempt(f"pgd, {count} steps", dataclasses.replace(bench.main(), steps=count)) for count in counts]
    known = [attempt for attempt in found if attempt is not None]
    if len(known) < len(counts):
        return Finding("fail", NO_GRADIENT)
    fall = functional.paired_difference(known[-2].right, known[-1].right)
    limit, shown = bench.budget.resolution, curve(counts, [attempt.accuracy for attempt in known])
    words = f"From {counts[-2]} to {counts[-1]} steps the accuracy falls by {points(fall.value)} (at most "
    words += f"{points(fall.high)})."
    status, more = ("pass", "") if fall.high <= limit else ("fail", " More steps might still leave less.")
    return Finding(status, words + more, fall.high, limit, shown)  # type: ignore[arg-type]


def iterating_helps(bench: Bench) -> Finding:
    """C6: many small steps against one large one."""
    one = bench.attempt("fgsm", _like(bench, Fgsm(epsilon=bench.epsilon, norm=bench.norm, bounds=bench.bounds)))
    many = bench.attempt(MAIN, bench.main())
    if one is None or many is None:
        return Finding("fail", NO_GRADIENT)
    gain = functional.paired_difference(one.right, many.right)
    words = f"One step leaves {one.accuracy:.1%}, {bench.budget.steps} steps leave {many.accuracy:.1%}."
    if gain.high < 0.0:
        return Finding("fail", f"{words} Iterating hurts the attack, which only masked gradients do.", gain.value, 0.0)
    return Finding("pass", words, gain.value, 0.0)


def restarts_agree(bench: Bench) -> Finding:
    """C7: other steps, momenta and starting points."""
    size = 2.5 * bench.epsilon / bench.budget.steps
    kinds = {f"pgd, step x {factor:g}": {"step_size": size * factor} for factor in bench.budget.step_factors}
    kinds |= {f"pgd, momentum {momentum:g}": {"momentum": momentum} for momentum in bench.budget.momenta}
    kinds |= {
        f"pgd, start {number}": {"seed": bench.seed_for(f"start {number}")}
        for number in range(2, bench.budget.num_seeds + 1)
    }
    found = [bench.attempt(MAIN, bench.main())]
    found += [bench.attempt(name, dataclasses.replace(bench.main(), **fields)) for name, fields in kinds.items()]  # type: ignore[arg-type]
    known = [attempt for attempt in found if attempt is not None]
    if len(known) < len(found):
        return Finding("fail", NO_GRADIENT)
    mean = sum(attempt.accuracy for attempt in known) / len(known)
    best = bench.left_by(attempt.name for attempt in known).double().mean().item()
    words = f"{len(known)} variants (steps, momenta, starts) leave {mean:.1%} on average, and {best:.1%} together."
    gain = mean - best
    return Finding("pass" if gain < RESTART_GAIN else "fail", words, gain, RESTART_GAIN)


def objectives_agree(bench: Bench) -> Finding:
    """C8: what is averaged over draws, and which loss is raised."""
    known: list[Attempt] = []
    for objective, loss in bench.budget.objectives:
        fields = {"objective": objective, "loss": loss, "restarts": bench.budget.restarts}
        found = bench.attempt(f"pgd, {objective} {loss.replace('_', ' ')}", dataclasses.replace(bench.main(), **fields))  # type: ignore[arg-type]
        known += [] if found is None else [found]
    if not known:
        return Finding("fail", NO_GRADIENT)
    best = min(known, key=lambda attempt: attempt.accuracy)
    union = bench.left_by(attempt.name for attempt in known)
    gain = functional.paired_difference(best.right, union)
    limit = bench.budget.resolution
    words = f"{best.name} leaves {best.accuracy:.1%}, all {len(known)} objectives together "
    words += f"{union.double().mean().item():.1%}; the headline counts them all."
    if gain.high > limit:
        return Finding("fail", f"{words} They differ so much that others might leave less.", gain.high, limit)
    return Finding("pass", words, gain.high, limit)


def no_better_without_noise(bench: Bench) -> Finding:
    """C9: images made on the network with its noise off."""
    source = dataclasses.replace(bench.main(), restarts=bench.budget.restarts)
    found = bench.attempt("transfer from noise off", Transfer(attack=source, norm=bench.norm, bounds=bench.bounds))
    if found is None:
        reason = bench.failures["transfer from noise off"]
        if "noise='off' needs" in reason:
            return Finding("skipped", "The noise is the model's own and cannot be turned off.")
        return Finding("fail", NO_GRADIENT)
    return _not_stronger(bench, found, "The network with its noise off shows the way better than its own gradients do.")


def no_better_without_gradients(bench: Bench) -> Finding:
    """C14: random search, which needs no gradient."""
    square = Square(
        epsilon=bench.epsilon,
        norm=bench.norm,
        bounds=bench.bounds,
        steps=bench.budget.square_steps,
        num_samples=bench.budget.num_samples,
        seed=bench.seed_for("square"),
    )
    if bench.inputs.dim() not in (2, 4):
        return Finding(
            "skipped", f"The square attack needs images or flat inputs, got {tuple(bench.inputs.shape[1:])}."
        )
    found = bench.attempt("square", square)
    if found is None:
        return Finding("skipped", f"It could not be run: {bench.failures['square']}.")
    return _not_stronger(bench, found, "An attack without gradients does better than those with: gradients are masked.")


def beats_noise(bench: Bench) -> Finding:
    """C15: random perturbations of the same size."""
    noise = RandomNoise(
        epsilon=bench.epsilon,
        norm=bench.norm,
        bounds=bench.bounds,
        tries=bench.budget.noise_tries,
        num_samples=bench.budget.num_samples,
        seed=bench.seed_for("noise"),
    )
    found, main = bench.attempt("random noise", noise), bench.attempt(MAIN, bench.main())
    if found is None or main is None:
        return Finding("fail", NO_GRADIENT)
    margin = found.accuracy - main.accuracy
    words = f"Random noise leaves {found.accuracy:.1%}, the attack {main.accuracy:.1%}."
    if margin < NOISE_MARGIN:
        return Finding("fail", f"{words} The attack hardly beats chance, so it proves nothing.", margin, NOISE_MARGIN)
    return Finding("pass", words, margin, NOISE_MARGIN)


def direct(bench: Bench) -> Tensor | None:
    """Which images attacks by the network's own gradients leave right, all together."""
    names = [name for name in bench.attempts if name.startswith(("pgd", "fgsm"))]
    return bench.left_by(names) if names else None


def _not_stronger(bench: Bench, found: Attempt, reason: str) -> Finding:
    own = direct(bench)
    if own is None:
        return Finding("fail", f"It leaves {found.accuracy:.1%}; attacks by gradients could not be run.")
    gain = functional.paired_difference(own, found.right)
    words = f"It leaves {found.accuracy:.1%}, attacks by the network's own gradients {own.double().mean().item():.1%}."
    if gain.low > 0.0:
        return Finding("fail", f"{words} {reason}", gain.value, 0.0)
    return Finding("pass", words, gain.value, 0.0)


def _like(bench: Bench, attack: Attack) -> Attack:
    """An attack with the draws, objective and seed of the main one."""
    main: Pgd = bench.main()
    shared = {name: getattr(main, name) for name in ("num_samples", "objective", "loss", "seed")}
    return dataclasses.replace(attack, **shared)
