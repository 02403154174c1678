"""Does a stronger, longer or different attack leave less? C5 to C9, C14, C15."""

import dataclasses

from dubio import functional
from dubio.attacks import Attack, Fgsm, Model, RandomNoise, Square, Transfer
from dubio.auditing.bench import MAIN, Attempt, Bench
from dubio.auditing.checks.check import NO_GRADIENT, Finding, curve, fall_within, points

__all__ = [
    "OFF",
    "beats_noise",
    "iterating_helps",
    "no_better_without_gradients",
    "no_better_without_noise",
    "objectives_agree",
    "restarts_agree",
    "starts",
    "steps_converged",
]

RESTART_GAIN = 0.03
NOISE_MARGIN = 0.05
OFF = "transfer from noise off"


def steps_converged(bench: Bench) -> Finding:
    """C5: what is left as the attack takes more steps."""
    bench.attempt(MAIN, bench.main())
    counts = bench.budget.step_counts
    found = [bench.attempt(f"pgd, {count} steps", dataclasses.replace(bench.main(), steps=count)) for count in counts]
    known = [attempt for attempt in found if attempt is not None]
    if len(known) < len(counts):
        return Finding("fail", NO_GRADIENT)
    fall = functional.statistics.paired_difference(known[-2].right, known[-1].right)
    words = f"From {counts[-2]} to {counts[-1]} steps the accuracy"
    more = "More steps might still leave less."
    return fall_within(fall, bench.budget.resolution, words, more, curve(counts, known))


def iterating_helps(bench: Bench) -> Finding:
    """C6: many small steps against one large one."""
    main = bench.main()
    one = bench.attempt(
        "fgsm",
        Fgsm(
            epsilon=main.epsilon,
            norm=main.norm,
            bounds=main.bounds,
            num_samples=main.num_samples,
            objective=main.objective,
            loss=main.loss,
            seed=main.seed,
        ),
    )
    many = bench.attempt(MAIN, main)
    if one is None or many is None:
        return Finding("fail", NO_GRADIENT)
    gain = functional.statistics.paired_difference(one.right, many.right)
    words = f"One step leaves {one.accuracy:.1%}, {bench.budget.steps} steps leave {many.accuracy:.1%}."
    if gain.high < 0.0:
        return Finding("fail", f"{words} Iterating hurts the attack, which only masked gradients do.", gain.value, 0.0)
    return Finding("pass", words, gain.value, 0.0)


def restarts_agree(bench: Bench) -> Finding:
    """C7: other steps, momenta and starting points; the best of them against their mean."""
    size = 2.5 * bench.epsilon / bench.budget.steps
    variants: dict[str, Attack] = {MAIN: bench.main()}
    for factor in bench.budget.step_factors:
        variants[f"pgd, step x {factor:g}"] = dataclasses.replace(bench.main(), step_size=size * factor)
    for momentum in bench.budget.momenta:
        variants[f"pgd, momentum {momentum:g}"] = dataclasses.replace(bench.main(), momentum=momentum)
    found = [bench.attempt(name, attack) for name, attack in variants.items()] + starts(bench)[1:]
    known = [attempt for attempt in found if attempt is not None]
    if len(known) < len(found):
        return Finding("fail", NO_GRADIENT)
    mean = sum(attempt.accuracy for attempt in known) / len(known)
    best, together = min(known, key=lambda attempt: attempt.accuracy), bench.left_by(known).double().mean().item()
    gain = mean - best.accuracy
    words = f"{len(known)} variants of steps, momenta and starts leave {mean:.1%} on average; the best of them, "
    words += f"{best.name}, {best.accuracy:.1%}, and all together {together:.1%}."
    if gain >= RESTART_GAIN:
        return Finding("fail", f"{words} How the attack is set matters much: others may do better.", gain, RESTART_GAIN)
    return Finding("pass", words, gain, RESTART_GAIN)


def starts(bench: Bench) -> list[Attempt | None]:
    """The main attack from several starting points."""
    found = [bench.attempt(MAIN, bench.main())]
    for number in range(2, bench.budget.num_seeds + 1):
        attack = dataclasses.replace(bench.main(), seed=bench.seed_for(f"start {number}"))
        found.append(bench.attempt(f"pgd, start {number}", attack))
    return found


def objectives_agree(bench: Bench) -> Finding:
    """C8: what is averaged over draws, which loss is raised, and which class is aimed at."""
    tried = _objectives(bench)
    if not tried:
        return Finding("fail", NO_GRADIENT)
    left = {name: bench.left_by(attempts) for name, attempts in tried.items()}
    best = min(left, key=lambda name: int(left[name].sum()))
    union = bench.left_by(attempt for attempts in tried.values() for attempt in attempts)
    gain = functional.statistics.paired_difference(left[best], union)
    words = f"{best} leaves {left[best].double().mean().item():.1%}. When all {len(left)} objectives count, as in the "
    words += f"headline, it is {union.double().mean().item():.1%}: the accuracy"
    return fall_within(gain, bench.budget.resolution, words, "They differ so much that others might leave less.")


def _objectives(bench: Bench) -> dict[str, list[Attempt]]:
    """Attacks by objective; aiming at one class after another is one more. None where there is no gradient."""
    tried: dict[str, list[Attempt]] = {}
    for objective, loss in bench.budget.objectives:
        if loss == "dlr" and bench.num_classes < 3:  # constant for two classes
            continue
        name = f"pgd, {objective} {loss}".replace("_", " ")
        attack = dataclasses.replace(
            bench.main(), objective=objective, loss=loss, restarts=bench.budget.restarts, seed=bench.seed_for("union")
        )
        found = bench.attempt(name, attack)
        if found is None:
            return {}
        tried[name] = [found]
    aimed = []
    for rank, goals in enumerate(bench.other_classes[: bench.budget.num_goals], 1):
        attack = dataclasses.replace(bench.main(), targeted=True, seed=bench.seed_for(f"goal {rank}"))
        aimed.append(bench.attempt(f"pgd, aimed at class {rank}", attack, goals))
    return tried | {"pgd, aimed at other classes": [attempt for attempt in aimed if attempt is not None]}


def no_better_without_noise(bench: Bench) -> Finding:
    """C9: images made on the network with its noise off."""
    if bench.kind != "random":
        return Finding("pass", "The network has no noise that could hide anything.")
    source = dataclasses.replace(bench.main(), restarts=bench.budget.restarts)
    found = bench.attempt(OFF, Transfer(attack=source, norm=bench.norm, bounds=bench.bounds, seed=source.seed))
    if found is None and "noise='off' needs" in bench.failures[OFF]:
        return Finding("skipped", "The noise is the model's own and cannot be turned off, so it may be a veil.")
    if found is None:
        return Finding("fail", NO_GRADIENT)
    reason = "The network with its noise off shows the way better than its own gradients do."
    return _not_stronger(bench, [found], reason)


def no_better_without_gradients(bench: Bench) -> Finding:
    """C14: random search, which needs no gradient, and images made on other networks."""
    square = Square(
        epsilon=bench.epsilon,
        norm=bench.norm,
        bounds=bench.bounds,
        steps=bench.budget.square_steps,
        num_samples=bench.budget.num_samples,
        seed=bench.seed_for("square"),
    )
    found = [bench.attempt("square", square)] if bench.inputs.dim() in (2, 4) else []
    others: dict[str, Model | None] = {
        "an ordinary network": bench.ordinary_twin,
        "the network given to compare with": bench.twin,
    }
    attack = dataclasses.replace(bench.main(), num_samples=1, restarts=bench.budget.restarts)
    for name, source in others.items():
        if source is not None:
            transfer = Transfer(attack=attack, source=source, norm=bench.norm, bounds=bench.bounds, seed=attack.seed)
            found.append(bench.attempt(f"transfer from {name}", transfer))
    known = [attempt for attempt in found if attempt is not None]
    if not known:
        return Finding("skipped", f"No attack without gradients fits inputs of shape {tuple(bench.inputs.shape[1:])}.")
    return _not_stronger(bench, known, "Attacks that need no gradient do better than those that do: it is masked.")


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
        reason = f"That is less than {points(NOISE_MARGIN)} apart: the attack fails, or epsilon is too small to tell."
        return Finding("fail", f"{words} {reason}", margin, NOISE_MARGIN)
    return Finding("pass", words, margin, NOISE_MARGIN)


def _not_stronger(bench: Bench, found: list[Attempt], reason: str) -> Finding:
    """Whether attacks of another kind leave no less than all that follow the network's own gradients."""
    best = min(found, key=lambda attempt: attempt.accuracy)
    direct = bench.direct()
    if not direct:
        return Finding("fail", f"{best.name} leaves {best.accuracy:.1%}. {NO_GRADIENT}")
    own = bench.left_by(direct)
    gain = functional.statistics.paired_difference(own, best.right)
    words = f"{best.name} leaves {best.accuracy:.1%}, attacks by the network's own gradients together "
    words += f"{own.double().mean().item():.1%}."
    if gain.low > 0.0:
        return Finding("fail", f"{words} {reason}", gain.value, 0.0)
    return Finding("pass", words, gain.value, 0.0)
