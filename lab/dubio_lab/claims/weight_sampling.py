"""Claims of Improving Neural Network Robustness with Bayesian Weight Sampling."""

from functools import partial

from dubio_lab.claims.claim import Claim, Outcome, Records
from dubio_lab.spec import load_spec

__all__ = ["CLAIMS"]

TITLE = "Bayesian Weight Sampling"
BAYESIAN = tuple(f"rho-{rho}" for rho in ("30", "10", "4", "3", "2.5", "2", "1.5"))
PENALISED = tuple(f"lambda-{weight}" for weight in ("0", "1e-4", "1e-2", "1"))
LIKE_PRIOR = "lambda-0-like-prior"
MATCHED = "-matched"
"""How networks are called that begin as torch begins layers and have ten times the rate and four times the patience."""
OTHERWISE = "begin as torch begins layers, with ten times the rate and four times the patience,"
MATCHED_PENALISED = tuple(f"lambda-{weight}{MATCHED}" for weight in ("0", "1e-2"))
SETS = tuple(f"{net}_{weight}" for net in ("fc10", "fc200", "fc1200") for weight in ("0", "1e-4", "1e-2", "1"))
SHARES = ("25", "50", "75", "90", "95", "98")
MOST_LOST = 0.5  # points that still count as no loss
GAIN, ENSEMBLE_GAIN, PENALTY_GAIN = 15.4, 5.07, 1.4
ATTACKS = {  # what a spec is called, how its cells end, and the attack in words
    "searched": ("bws-transfer", "", "perturbations that end at the boundary"),
    "weight-1": ("bws-fixed-transfer", "-weight-1", "one weight of the distance for all images, 1"),
    "weight-2": ("bws-fixed-transfer", "-weight-2", "one weight of the distance for all images, 2"),
}


def _clean_accuracies(records: Records, names: tuple[str, ...], variant: str = "", ending: str = "") -> Outcome:
    """How far accuracies are from those published, of cells or of a variant of them.

    ``variant`` and ``ending`` are how the names of its cells and of the metrics end.
    """
    gaps = {
        f"{cell.name}{variant}, {metric}": records.number("bws-clean", cell.name + variant, metric + ending) - published
        for cell in load_spec("bws-clean").cells
        for metric, published in cell.published.items()
        if cell.name in names
    }
    near = [name for name, gap in gaps.items() if gap.within(-0.5, 0.5)]
    worst = max(gaps, key=lambda name: abs(gaps[name].value))
    return Outcome(
        f"largest gap {gaps[worst].signed} ({worst}); {len(near)} of {len(gaps)} within", len(near) == len(gaps)
    )


def _clean_order(records: Records) -> Outcome:
    values = [records.number("bws-clean", cell, "test") for cell in ("rho-30", "rho-3", "rho-1.5")]
    first = records.difference("bws-clean", "rho-30", "rho-3", "test")
    second = records.difference("bws-clean", "rho-3", "rho-1.5", "test")
    return Outcome(", ".join(map(str, values)), not first.below(0.0) and second.above(0.0))


def _gain(records: Records, spec: str, bayesian: list[str], deterministic: list[str]) -> Outcome:
    best, ours = records.best(spec, bayesian, "average")
    other, theirs = records.best(spec, deterministic, "average")
    gain = ours - theirs
    return Outcome(f"{gain.signed} ({best} {ours}, {other} {theirs})", gain.above(GAIN / 2))


def _gain_by_sampling(records: Records, spec: str, ending: str) -> Outcome:
    plain = records.number(spec, f"lambda-0{ending}", "average")
    beginning = records.number(spec, f"{LIKE_PRIOR}{ending}", "average") - plain
    gain = records.best(spec, [cell + ending for cell in BAYESIAN], "average")[1] - plain
    share = f"{beginning.signed} of {gain.signed}"
    return Outcome(share, gain.above(0.0) and beginning.below(gain.value / 2))


def _best_on_all(records: Records) -> Outcome:
    best, _ = records.best("bws-transfer", BAYESIAN, "average")
    leads = [
        records.number("bws-transfer", best, name) - records.best("bws-transfer", PENALISED, name)[1] for name in SETS
    ]
    ahead = sum(lead.above(0.0) for lead in leads)
    return Outcome(f"{best} on {ahead} of {len(SETS)}", ahead == len(SETS))


def _ensembles(records: Records) -> Outcome:
    gain = records.difference("bws-ensembles", "n100", "n1", "average")
    return Outcome(gain.signed, gain.above(ENSEMBLE_GAIN / 2))


def _half_pruned(records: Records, metric: str) -> Outcome:
    lost = records.difference("bws-pruning", "snr-50", "snr-0", metric)
    return Outcome(lost.signed, not lost.below(-MOST_LOST))


def _by_ratio_or_magnitude(records: Records) -> Outcome:
    leads = {
        share: records.difference("bws-pruning", f"snr-{share}", f"magnitude-{share}", "average") for share in SHARES
    }
    summary = ", ".join(f"{lead.signed} at {share} %" for share, lead in leads.items())
    return Outcome(summary, not any(lead.below(0.0) for lead in leads.values()))


def _distortions(records: Records) -> Outcome:
    source, largest = records.best("bws-sources", SETS, "distortion")
    _, halved = records.best("bws-sources", SETS, "distortion_unit")
    return Outcome(f"at most {largest} ({source}); with pixels in [0, 1], {halved}", largest.below(0.10))


def _penalty(records: Records) -> Outcome:
    gain = records.difference("bws-transfer", "lambda-1e-2", "lambda-0", "average")
    return Outcome(gain.signed, gain.above(0.0) and not gain.above(2 * PENALTY_GAIN))


def _attacked_itself(records: Records) -> Outcome:
    best, _ = records.best("bws-transfer", BAYESIAN, "average")
    followed, left = (records.number("bws-honest", best, name) for name in ("accuracy_pgd_eot", "audit_accuracy"))
    theirs = records.number("bws-honest", "lambda-1e-2", "audit_accuracy")
    text = f"{best}: {followed} after an attack over draws, {left} after an audit; lambda-1e-2: {theirs} after an audit"
    return Outcome(text, (left - theirs).above(0.0))


CLAIMS = (
    Claim(
        "bws-clean-accuracies",
        "Accuracies on clean images: within 0.5 points of those published",
        f"{TITLE}, Table 1",
        ("bws-clean",),
        "22 accuracies",
        partial(_clean_accuracies, names=BAYESIAN + PENALISED),
    ),
    *(
        Claim(
            name,
            f"Bayesian networks that {OTHERWISE} are within 0.5 points of what was published, {words}",
            f"{TITLE}, Table 1",
            ("bws-clean",),
            None,
            partial(_clean_accuracies, names=BAYESIAN, variant=MATCHED, ending=ending),
        )
        for name, words, ending in (
            ("bws-clean-matched", "one draw for all images", ""),
            ("bws-clean-matched-together", "a hundred draws together", "_ensemble"),
        )
    ),
    Claim(
        "bws-clean-order",
        "On clean images rho -30 is no worse than -3, and -3 better than -1.5",
        f"{TITLE}, Table 1",
        ("bws-clean",),
        "97.51, 97.12, 94.58",
        _clean_order,
    ),
    *(
        Claim(
            f"bws-gain-{name}",
            f"The best Bayesian network is ahead on the mean of the twelve sets, by half of what was published or more "
            f"({words})",
            f"{TITLE}, Table 2",
            (spec,),
            f"{GAIN:+}",
            partial(
                _gain,
                spec=spec,
                bayesian=[cell + ending for cell in BAYESIAN],
                deterministic=[cell + ending for cell in PENALISED],
            ),
            in_our_way=name != "searched",
        )
        for name, (spec, ending, words) in ATTACKS.items()
    ),
    Claim(
        "bws-gain-matched",
        f"The best of the Bayesian networks that {OTHERWISE} is ahead of every deterministic one, also of those that "
        "do so, on the mean of the twelve sets, by half of what was published or more (perturbations that end at the "
        "boundary)",
        f"{TITLE}, Table 2",
        ("bws-transfer",),
        None,
        partial(
            _gain,
            spec="bws-transfer",
            bayesian=[cell + MATCHED for cell in BAYESIAN],
            deterministic=[*PENALISED, *MATCHED_PENALISED],
        ),
    ),
    *(
        Claim(
            f"bws-gain-by-sampling-{name}",
            f"The gain over lambda 0 comes from sampling: without any, a network that begins like the prior has less "
            f"than half of it ({words})",
            f"{TITLE}, conclusion",
            (spec,),
            None,
            partial(_gain_by_sampling, spec=spec, ending=ending),
        )
        for name, (spec, ending, words) in ATTACKS.items()
    ),
    Claim(
        "bws-best-on-all",
        "The best Bayesian network is ahead of every deterministic one on each of the twelve sets",
        f"{TITLE}, text to Table 2",
        ("bws-transfer",),
        "all twelve (8 by its table)",
        _best_on_all,
    ),
    Claim(
        "bws-ensembles",
        "A hundred draws together are ahead of one, by half of what was published or more",
        f"{TITLE}, Table 3",
        ("bws-ensembles",),
        f"{ENSEMBLE_GAIN:+}",
        _ensembles,
    ),
    *(
        Claim(
            f"bws-half-pruned-{metric}",
            f"Half of the weights can be removed by signal-to-noise ratio for no more than 0.5 points, {words}",
            f"{TITLE}, Table 4",
            ("bws-pruning",),
            "no loss",
            partial(_half_pruned, metric=metric),
        )
        for metric, words in (("test", "clean images"), ("average", "mean of the twelve sets"))
    ),
    Claim(
        "bws-ratio-or-magnitude",
        "Removing by signal-to-noise ratio is at no share worse than by magnitude, mean of the twelve sets",
        f"{TITLE}, section on pruning",
        ("bws-pruning",),
        None,
        _by_ratio_or_magnitude,
    ),
    Claim(
        "bws-distortions",
        "Distortions are below 0.10 for all twelve sources; pixels in [0, 2], the paper does not say",
        f"{TITLE}, section on perturbed test sets",
        ("bws-sources",),
        "below 0.10",
        _distortions,
    ),
    Claim(
        "bws-penalty",
        "A penalty of lambda 1e-2 gains little over none: something, and at most twice of what was published",
        f"{TITLE}, Table 2",
        ("bws-transfer",),
        f"{PENALTY_GAIN:+}",
        _penalty,
    ),
    Claim(
        "bws-attacked-itself",
        "Bayesian networks are the more robust ones, also when they are attacked themselves: percent that is left",
        f"{TITLE}, title",
        ("bws-honest", "bws-transfer"),
        None,
        _attacked_itself,
    ),
)
