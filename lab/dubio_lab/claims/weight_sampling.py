"""Claims of Improving Neural Network Robustness with Bayesian Weight Sampling."""

from collections.abc import Callable, Sequence
from functools import partial

from dubio_lab.claims.claim import Claim, Outcome, Part, outcome_of, part_of
from dubio_lab.claims.estimate import Estimate, Formula, Records, Value
from dubio_lab.claims.verdict import Verdict, difference, direction, within
from dubio_lab.spec import load_spec

__all__ = ["CLAIMS"]

TITLE = "Bayesian Weight Sampling"
RHOS = ("30", "10", "4", "3", "2.5", "2", "1.5")
BAYESIAN = tuple(f"rho-{rho}" for rho in RHOS)
PENALISED = tuple(f"lambda-{weight}" for weight in ("0", "1e-4", "1e-2", "1"))
LIKE_PRIOR = "lambda-0-like-prior"
MATCHED = "-matched"
"""How networks are called that begin as torch begins layers and have ten times the rate and four times the patience."""
OTHERWISE = "that begin as torch begins layers, with ten times the rate and four times the patience"
MATCHED_PENALISED = tuple(f"lambda-{weight}{MATCHED}" for weight in ("0", "1e-2"))
WIDTHS = {"fc10": "FC-10", "fc200": "FC-200-200-10", "fc1200": "FC-1200-1200-10"}
SETS = tuple(f"{net}_{weight}" for net in WIDTHS for weight in ("0", "1e-4", "1e-2", "1"))
SHARES = ("25", "50", "75", "90", "95", "98")
MOST_LOST = 0.5  # points that still count as no loss, or as the published number
GAIN, ENSEMBLE_GAIN, ENSEMBLE_LEAD, PRUNED_LEAD, PENALTY_GAIN = 15.4, 5.07, 20.5, 8.8, 1.4
CLEAN_LOSS, CLEAN_LEAD = -0.82, 6.21
CLEAN_STEPS = (("rho-30", "rho-3", 0.39), ("rho-3", "rho-1.5", 2.54))
NOISE_STEPS = (("3", "30", 2.21), ("2.5", "3", -2.61), ("2", "2.5", -2.42), ("1.5", "2", -6.29))
"""Averages of Table 2 from one first noise to another."""
ATTACKS = {  # what a spec is called, how its cells end, and the attack in words
    "searched": ("bws-transfer", "", "images end at the boundary of their network"),
    "weight-1": ("bws-fixed-transfer", "-weight-1", "weight 1 of the distance for all images"),
    "weight-2": ("bws-fixed-transfer", "-weight-2", "weight 2 of the distance for all images"),
}
LEFT_CLEAN = "images on which the attack fails count as they were"


def _clean_accuracies(records: Records, names: Sequence[str], variant: str = "", ending: str = "") -> Outcome:
    """Accuracies beside those published, of cells or of a variant of them.

    ``variant`` and ``ending`` are how the names of its cells and of the metrics end.
    """
    parts = []
    for cell in load_spec("bws-clean").cells:
        if cell.name in names:
            for metric, published in cell.published.items():
                gap = _gap_to(cell.name + variant, metric + ending, published)
                words = f"{cell.name}{variant}, {metric}"
                parts.append(part_of(words, partial(records.estimate, gap), partial(within, least=-MOST_LOST)))
    reproduced = sum(part.verdict is Verdict.REPRODUCED for part in parts)
    there = [(part.estimate, part.words) for part in parts if part.estimate is not None]
    if not there:
        return outcome_of(*parts)
    worst, words = min(there, key=lambda one: one[0].value)
    return outcome_of(*parts, shown=f"{reproduced} of {len(parts)}; the lowest {worst.signed} ({words})")


def _gap_to(cell: str, metric: str, published: float) -> Formula:
    return lambda value: value("bws-clean", cell, metric) - published


def _steps(records: Records, spec: str, metric: str, steps: Sequence[tuple[str, str, float]]) -> Outcome:
    """Differences between cells beside those published."""
    return outcome_of(
        *(
            part_of(
                f"{cell} less {other}",
                partial(records.gap, spec, cell, other, metric),
                partial(difference, published=published),
            )
            for cell, other, published in steps
        )
    )


def _clean_loss(records: Records) -> Outcome:
    gap = partial(records.gap, "bws-clean", "rho-3", "lambda-1e-2", "test")
    return outcome_of(part_of("", gap, partial(within, least=2 * CLEAN_LOSS)))


def _clean_lead(records: Records) -> Outcome:
    gap = partial(records.gap, "bws-clean", "rho-3", "lambda-1", "test")
    return outcome_of(part_of("", gap, partial(difference, published=CLEAN_LEAD)))


def _best(value: Value, spec: str, cells: Sequence[str], metric: str = "average") -> float:
    return max(value(spec, cell, metric) for cell in cells)


def _lead(spec: str, cells: Sequence[str], others: Sequence[str]) -> Formula:
    """By how much the best of some cells is above the best of others, on the mean of the twelve sets."""
    return lambda value: _best(value, spec, cells) - _best(value, spec, others)


def _named(names: Sequence[str], ending: str) -> list[str]:
    return [name + ending for name in names]


def _gain(records: Records, spec: str, ending: str) -> Outcome:
    def gain() -> Estimate:
        elsewhere = None if not ending else records.estimate(_lead("bws-transfer", BAYESIAN, PENALISED))
        return records.estimate(_lead(spec, _named(BAYESIAN, ending), _named(PENALISED, ending)), like=elsewhere)

    return outcome_of(part_of("", gain, partial(difference, published=GAIN)))


def _gain_matched(records: Records) -> Outcome:
    lead = _lead("bws-transfer", _named(BAYESIAN, MATCHED), [*PENALISED, *MATCHED_PENALISED])
    return outcome_of(part_of("", partial(records.estimate, lead), partial(difference, published=GAIN)))


def _gain_by_sampling(records: Records, spec: str, ending: str) -> Outcome:
    """Whether a network that begins like the prior, without noise, has less than half of the gain over lambda 0."""

    def parts_of(own: str, end: str) -> tuple[Formula, Formula, Formula]:
        def alone(value: Value) -> float:
            return value(own, LIKE_PRIOR + end, "average") - value(own, f"lambda-0{end}", "average")

        def gain(value: Value) -> float:
            return _best(value, own, _named(BAYESIAN, end)) - value(own, f"lambda-0{end}", "average")

        return alone, gain, lambda value: gain(value) / 2.0 - alone(value)

    alone, gain, rest = parts_of(spec, ending)
    like = records.estimate(parts_of("bws-transfer", "")[2]) if ending else None
    rule = direction(records.estimate(rest, like=like))
    own, whole = (records.estimate(one).value for one in (alone, gain))
    part = Part("", records.estimate(rest, like=like), rule)
    return outcome_of(part, shown=f"without noise {own:+.3g}, with noise {whole:+.3g}")


def _best_on_all(records: Records) -> Outcome:
    """Set by set, for the Bayesian network that is best on their mean."""

    def lead(value: Value, images: str) -> float:
        best = max(BAYESIAN, key=lambda cell: value("bws-transfer", cell, "average"))
        own = {cell: value("bws-transfer", cell, images) for cell in BAYESIAN}
        return own[best] - _best(value, "bws-transfer", PENALISED, images)

    return outcome_of(
        *(part_of(images, partial(records.estimate, partial(lead, images=images)), direction) for images in SETS)
    )


def _harder(records: Records) -> Outcome:
    """How much lower the accuracy of all networks is on images of sources with lambda 1, beside the published table."""

    def drop(value: Value, net: str) -> float:
        cells = (*BAYESIAN, *PENALISED)
        gaps = [value("bws-transfer", cell, f"{net}_0") - value("bws-transfer", cell, f"{net}_1") for cell in cells]
        return sum(gaps) / len(gaps)

    printed = {cell.name: cell.published for cell in load_spec("bws-transfer").cells}
    parts = []
    for net, words in WIDTHS.items():
        published = drop(lambda _, cell, metric: printed[cell][metric], net)
        estimate = partial(records.estimate, partial(drop, net=net))
        parts.append(
            part_of(f"{words} (published {published:+.1f})", estimate, partial(difference, published=published))
        )
    return outcome_of(*parts)


def _distortions(records: Records) -> Outcome:
    numbers = {source: partial(records.number, "bws-sources", source, "distortion") for source in SETS}
    parts = [part_of(source, number, partial(within, most=0.1), signed=False) for source, number in numbers.items()]
    there = [part for part in parts if part.estimate is not None]
    if not there:
        return outcome_of(*parts)
    below = sum(part.verdict is Verdict.REPRODUCED for part in parts)
    largest = max(there, key=lambda part: part.estimate.value if part.estimate else 0.0)
    return outcome_of(*parts, shown=f"{below} of {len(parts)} below; the largest {largest.estimate} ({largest.words})")


def _ensembles(records: Records) -> Outcome:
    gap = partial(records.gap, "bws-ensembles", "n100", "n1", "average")
    return outcome_of(part_of("", gap, partial(difference, published=ENSEMBLE_GAIN)))


def _ensemble_lead(records: Records) -> Outcome:
    def lead(value: Value) -> float:
        return value("bws-ensembles", "n100", "average") - _best(value, "bws-transfer", PENALISED)

    return outcome_of(part_of("", partial(records.estimate, lead), partial(difference, published=ENSEMBLE_LEAD)))


def _half_pruned(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(
                words, partial(records.gap, "bws-pruning", "snr-50", "snr-0", metric), partial(within, least=-MOST_LOST)
            )
            for metric, words in (("test", "clean images"), ("average", "mean of the twelve sets"))
        )
    )


def _pruned_lead(records: Records) -> Outcome:
    def lead(value: Value) -> float:
        return value("bws-pruning", "snr-75", "average") - _best(value, "bws-pruning", ("lambda-0-0", "lambda-1e-2-0"))

    return outcome_of(part_of("", partial(records.estimate, lead), partial(difference, published=PRUNED_LEAD)))


def _by_ratio_or_magnitude(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(
                f"{share} % removed",
                partial(records.gap, "bws-pruning", f"snr-{share}", f"magnitude-{share}", "average"),
                partial(within, least=0.0),
            )
            for share in SHARES
        )
    )


def _penalty(records: Records) -> Outcome:
    gap = partial(records.gap, "bws-transfer", "lambda-1e-2", "lambda-0", "average")
    return outcome_of(part_of("", gap, partial(within, least=0.0, most=2 * PENALTY_GAIN)))


def _attacked_itself(records: Records) -> Outcome:
    """What an audit leaves of the best Bayesian network on transferred images, less what it leaves of lambda 1e-2."""

    def lead(value: Value) -> float:
        left = {cell: value("bws-honest", cell, "audit_accuracy") for cell in BAYESIAN}
        best = max(BAYESIAN, key=lambda cell: value("bws-transfer", cell, "average"))
        return left[best] - value("bws-honest", "lambda-1e-2", "audit_accuracy")

    return outcome_of(part_of("", partial(records.estimate, lead), direction))


def _claim(
    name: str,
    words: str,
    place: str,
    specs: tuple[str, ...],
    published: str | None,
    check: Callable[[Records], Outcome],
    in_our_way: bool = False,
) -> Claim:
    return Claim(name, words, f"{TITLE}, {place}", specs, published, check, in_our_way)


CLAIMS = (
    _claim(
        "bws-clean-accuracies",
        "The accuracies on clean images of seven Bayesian and four deterministic networks, validation and test; "
        "reproduced means no more than 0.5 points below",
        "Table 1",
        ("bws-clean",),
        "22 accuracies",
        partial(_clean_accuracies, names=BAYESIAN + PENALISED),
    ),
    _claim(
        "bws-clean-order",
        "Less noise is better on clean images: rho -30 ahead of -3, and -3 ahead of -1.5",
        "Table 1",
        ("bws-clean",),
        "+0.39, +2.54 points",
        partial(_steps, spec="bws-clean", metric="test", steps=CLEAN_STEPS),
    ),
    _claim(
        "bws-clean-slightly-worse",
        "On clean images rho -3 is only slightly worse than the best deterministic network, lambda 1e-2; reproduced "
        "means by at most twice as much",
        "Table 1 and its text",
        ("bws-clean",),
        f"{CLEAN_LOSS:+} points",
        _clean_loss,
    ),
    _claim(
        "bws-clean-above-lambda-1",
        "On clean images rho -3 is better than the strongly penalised network, lambda 1",
        "Table 1 and its text",
        ("bws-clean",),
        f"{CLEAN_LEAD:+} points",
        _clean_lead,
    ),
    _claim(
        "bws-gain",
        "On images made for twelve other networks, the best Bayesian network is ahead of the best deterministic one; "
        f"mean of the twelve sets ({ATTACKS['searched'][2]})",
        "Table 2",
        ("bws-transfer",),
        f"{GAIN:+} points",
        partial(_gain, spec="bws-transfer", ending=""),
    ),
    _claim(
        "bws-best-on-all",
        "The best Bayesian network is ahead of every deterministic one on each of the twelve sets",
        "text to Table 2",
        ("bws-transfer",),
        "all twelve (8 by its table)",
        _best_on_all,
    ),
    _claim(
        "bws-some-noise-is-best",
        "The mean of the twelve sets rises with the noise up to rho -3 and falls from there on",
        "Table 2 and its text",
        ("bws-transfer",),
        ", ".join(f"{published:+}" for _, _, published in NOISE_STEPS) + " points",
        partial(
            _steps,
            spec="bws-transfer",
            metric="average",
            steps=[(f"rho-{one}", f"rho-{other}", published) for one, other, published in NOISE_STEPS],
        ),
    ),
    _claim(
        "bws-penalty",
        "A penalty of lambda 1e-2 gains little over none on the mean of the twelve sets: something, and at most twice "
        "as much as published",
        "Table 2",
        ("bws-transfer",),
        f"{PENALTY_GAIN:+} points",
        _penalty,
    ),
    _claim(
        "bws-harder-sources",
        "Images of sources with a larger lambda are harder for all networks: accuracy on those of lambda 0 less that "
        "on those of lambda 1, mean over the networks of Table 2",
        "text to Table 2",
        ("bws-transfer",),
        "harder, from its table",
        _harder,
    ),
    _claim(
        "bws-distortions",
        "Distortions are below 0.10 for all twelve sources; pixels in [0, 2], which the paper leaves open",
        "section on perturbed test sets",
        ("bws-sources",),
        "below 0.10",
        _distortions,
    ),
    _claim(
        "bws-ensembles",
        "A hundred draws together are ahead of one, mean of the twelve sets",
        "Table 3",
        ("bws-ensembles",),
        f"{ENSEMBLE_GAIN:+} points",
        _ensembles,
    ),
    _claim(
        "bws-ensemble-over-deterministic",
        "A hundred draws together are ahead of the best deterministic network, mean of the twelve sets",
        "text to Table 3",
        ("bws-ensembles", "bws-transfer"),
        f"{ENSEMBLE_LEAD:+} points",
        _ensemble_lead,
    ),
    _claim(
        "bws-half-pruned",
        "Half of the weights can be removed by signal-to-noise ratio without loss; reproduced means no more than 0.5 "
        "points",
        "Table 4",
        ("bws-pruning",),
        "no loss",
        _half_pruned,
    ),
    _claim(
        "bws-pruned-over-deterministic",
        "With 75 percent of its weights removed the Bayesian network is still ahead of the best deterministic one "
        "with all of them, mean of the twelve sets",
        "text to Table 4",
        ("bws-pruning",),
        f"{PRUNED_LEAD:+} points",
        _pruned_lead,
    ),
    *(
        _claim(
            f"bws-gain-{name}",
            f"The gain over the best deterministic network, with another attack: {words}; {LEFT_CLEAN}",
            "Table 2",
            (spec, "bws-transfer"),
            f"{GAIN:+} points",
            partial(_gain, spec=spec, ending=ending),
            in_our_way=True,
        )
        for name, (spec, ending, words) in ATTACKS.items()
        if ending
    ),
    *(
        _claim(
            name,
            f"Bayesian networks {OTHERWISE} have the published accuracies on clean images, {words}; no more than 0.5 "
            "points below",
            "Table 1",
            ("bws-clean",),
            None,
            partial(_clean_accuracies, names=BAYESIAN, variant=MATCHED, ending=ending),
        )
        for name, words, ending in (
            ("bws-clean-matched", "one draw for all images", ""),
            ("bws-clean-matched-together", "a hundred draws together", "_ensemble"),
        )
    ),
    _claim(
        "bws-gain-matched",
        f"The best Bayesian network {OTHERWISE} is ahead of the best deterministic one, also of those that do so, by "
        f"{GAIN} points; mean of the twelve sets",
        "Table 2",
        ("bws-transfer",),
        None,
        _gain_matched,
    ),
    *(
        _claim(
            f"bws-gain-by-sampling-{name}",
            "The gain over lambda 0 comes from sampling: a network that begins like the prior and has no noise gets "
            f"less than half of it ({words})",
            "conclusion",
            (spec, "bws-transfer") if ending else (spec,),
            None,
            partial(_gain_by_sampling, spec=spec, ending=ending),
        )
        for name, (spec, ending, words) in ATTACKS.items()
    ),
    _claim(
        "bws-ratio-or-magnitude",
        "Removing weights by signal-to-noise ratio is at no share worse than by magnitude, mean of the twelve sets",
        "section on pruning",
        ("bws-pruning",),
        None,
        _by_ratio_or_magnitude,
    ),
    _claim(
        "bws-attacked-itself",
        "The Bayesian network that is best on transferred images keeps more accuracy in an audit of its own than the "
        "deterministic one with lambda 1e-2",
        "title",
        ("bws-honest", "bws-transfer"),
        None,
        _attacked_itself,
    ),
)
