"""Claims of Towards Stochastic Neural Networks via Inductive Wasserstein Embeddings."""

from collections.abc import Callable
from functools import partial

from dubio_lab.claims.claim import Claim, Outcome, never_measured, outcome_of, part_of
from dubio_lab.claims.estimate import Estimate, Formula, NotRunError, Records, Value
from dubio_lab.claims.verdict import difference, direction, within

__all__ = ["CLAIMS"]

TITLE = "Inductive Wasserstein Embeddings"
OWN = "wasserstein"
OTHERS = ("se-snn", "bootstrap-hard", "bootstrap-soft", "plain")
MANY_WRONG = ("0.4", "0.5", "0.6")
FEW_WRONG = ("0.1", "0.2", "0.3")
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
ECE = {  # of Table 1: backbone, data and other method, and how much lower the error of the proposed one is
    "r18": {"baseline": {"cifar10": 1.2, "cifar100": 18.7}, "se-snn": {"cifar10": -0.3, "cifar100": 17.7}},
    "r50": {"baseline": {"cifar10": 8.2, "cifar100": 28.0}, "se-snn": {"cifar10": 5.8, "cifar100": 23.7}},
    "resnext101": {"baseline": {"cifar10": 1.2, "cifar100": 40.3}, "se-snn": {"cifar10": 2.3, "cifar100": 35.0}},
}
BACKBONES = {"r18": "ResNet-18", "r50": "ResNet-50", "resnext101": "ResNeXt-101"}
SEVERAL_SEEDS = "iwe-ece-r18"
ONE_SEED = ("iwe-ece-r18-cifar100", "iwe-ece-r50")
"""Specs of one seed, for which the width of an effect in the one above is taken."""
ECE_PLACES = {  # backbone and data: the spec, and how its cell of a method is called
    ("r18", "cifar10"): (SEVERAL_SEEDS, "{method}"),
    ("r18", "cifar100"): ("iwe-ece-r18-cifar100", "{method}"),
    ("r50", "cifar10"): ("iwe-ece", "{method}-resnet50-cifar10"),
    ("r50", "cifar100"): ("iwe-ece-r50", "{method}"),
    ("resnext101", "cifar10"): ("iwe-ece", "{method}-resnext101_32x8d-cifar10"),
    ("resnext101", "cifar100"): ("iwe-ece", "{method}-resnext101_32x8d-cifar100"),
}
METHODS = {"baseline": "the plain network", "se-snn": "SE-SNN"}
DEFENCE = {  # of Table 2: how much more accuracy the proposed method keeps under FGSM and PGD
    "adversarial-training": {"fgsm": 5.31, "pgd": 4.98},
    "se-snn": {"fgsm": 0.27, "pgd": 1.52},
    "pni": {"fgsm": 0.19, "pgd": 0.80},
}
NOISE_INJECTION = {  # of He et al.: by how much noise for each layer, and for each channel, is above no noise
    "pni-layer": ("by layer", {"fgsm": 7.93, "pgd": 6.80}),
    "pni-channel": ("by channel", {"fgsm": 9.96, "pgd": 9.26}),
}
ATTACKS = {"fgsm": "FGSM", "pgd": "PGD"}
NEEDS_GPU = "needs a GPU"


def _ahead(records: Records, shares: tuple[str, ...], others: tuple[str, ...] = OTHERS) -> Outcome:
    """Ahead of each other method at each share of wrong labels."""
    parts = [
        part_of(f"{share}, over {other}", partial(records.estimate, _lead(share, (other,))), direction)
        for share in shares
        for other in others
    ]
    there = [(part.estimate, part.words) for part in parts if part.estimate is not None]
    if not there:
        return outcome_of(*parts)
    lowest = [min((one for one in there if one[1].startswith(share)), key=lambda one: one[0].value) for share in shares]
    return outcome_of(*parts, shown="lowest at " + "; ".join(f"{words}: {one.signed}" for one, words in lowest))


def _competitive(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(share, partial(records.estimate, _lead(share, OTHERS)), partial(within, least=-1.0))
            for share in FEW_WRONG
        )
    )


def _lead(share: str, others: tuple[str, ...]) -> Formula:
    """By how much the Wasserstein network is above the best of others."""

    def lead(value: Value) -> float:
        best = max(value("label-noise", f"{other}-{share}", "accuracy") for other in others)
        return value("label-noise", f"{OWN}-{share}", "accuracy") - best

    return lead


def _better_calibrated(records: Records, backbone: str, other: str) -> Outcome:

    def gap(data: str) -> Estimate:
        spec, cell = ECE_PLACES[backbone, data]
        own, rival = cell.format(method=OWN), cell.format(method=other)
        try:
            like = records.gap(SEVERAL_SEEDS, other, OWN, "ece") if spec in ONE_SEED else None
        except NotRunError:
            like = None
        return records.estimate(lambda value: value(spec, rival, "ece") - value(spec, own, "ece"), like=like)

    return outcome_of(
        *(
            part_of(f"{words} (published {published:+g})", partial(gap, data), partial(difference, published=published))
            for data, words in DATA.items()
            if (published := ECE[backbone][other][data]) is not None
        )
    )


def _helped_by_temperature(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(
                f"{words}, {method}",
                partial(records.estimate, partial(_temperature_gain, data=data, method=method)),
                direction,
            )
            for data, words in DATA.items()
            for method in ("baseline", "se-snn", OWN)
        )
    )


def _temperature_gain(value: Value, data: str, method: str) -> float:
    spec, cell = ECE_PLACES["r18", data]
    name = cell.format(method=method)
    return value(spec, name, "ece") - value(spec, name, "ece_after_temperature")


def _specs_of(backbone: str) -> tuple[str, ...]:
    """The specs of a backbone, and the one that lends its width to those of one seed."""
    own = dict.fromkeys(ECE_PLACES[backbone, data][0] for data in DATA)
    return tuple(dict.fromkeys([*own, *(SEVERAL_SEEDS for spec in own if spec in ONE_SEED)]))


def _defends(records: Records, spec: str, others: tuple[str, ...]) -> Outcome:
    return outcome_of(
        *(
            part_of(
                f"{words}, over {other}",
                partial(records.gap, spec, OWN, other, metric),
                partial(difference, published=DEFENCE[other][metric]),
            )
            for other in others
            for metric, words in ATTACKS.items()
        )
    )


def _noise_injection(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(
                f"{words}, {ATTACKS[attack]}",
                partial(records.gap, "pni-resnet20", cell, "adversarial-training", f"{attack}_one_draw"),
                partial(difference, published=published),
            )
            for cell, (words, gains) in NOISE_INJECTION.items()
            for attack, published in gains.items()
        )
    )


def _claim(
    name: str,
    words: str,
    place: str,
    specs: tuple[str, ...],
    published: str | None,
    check: Callable[[Records], Outcome],
    **options: bool | str,
) -> Claim:
    return Claim(name, words, f"{TITLE}, {place}", specs, published, check, **options)  # type: ignore[arg-type]


def _defence(prefix: str, spec: str, which: str, **options: bool | str) -> tuple[Claim, ...]:
    """The statements of Table 2."""
    return tuple(
        _claim(
            f"{prefix}-{name}",
            f"{which}, the Wasserstein network keeps more accuracy than {words}, under FGSM and PGD",
            "Table 2",
            (spec,),
            ", ".join(f"{one:+}" for other in others for one in DEFENCE[other].values()) + " points",
            partial(_defends, spec=spec, others=others),
            **options,
        )
        for name, words, others in (
            ("over-adversarial-training", "adversarial training alone", ("adversarial-training",)),
            ("over-noise", "SE-SNN and PNI", ("se-snn", "pni")),
        )
    )


CLAIMS = (
    *(
        _claim(
            f"iwe-ece-{backbone}-{other}",
            f"The Wasserstein network has a lower calibration error than {METHODS[other]}, {words}",
            "Table 1",
            _specs_of(backbone),
            ", ".join(f"{one:+}" for one in ECE[backbone][other].values()) + " points",
            partial(_better_calibrated, backbone=backbone, other=other),
            why_not=NEEDS_GPU if backbone == "resnext101" else "",
        )
        for backbone, words in BACKBONES.items()
        for other in METHODS
    ),
    _claim(
        "iwe-temperature",
        "Temperature scaling lowers the calibration error of every method, ResNet-18",
        "Table 1",
        _specs_of("r18"),
        "every method (3 of 18 cells are against it)",
        _helped_by_temperature,
    ),
    *_defence("iwe-defence", "iwe-defence", "On CIFAR-10 with ResNet-18", why_not=NEEDS_GPU),
    _claim(
        "iwe-ahead-of-all",
        "Above 0.3 wrong labels the Wasserstein network is ahead of all others: at 0.4, 0.5 and 0.6",
        "Figure 3",
        ("label-noise",),
        "ahead above 0.3",
        partial(_ahead, shares=MANY_WRONG),
    ),
    _claim(
        "iwe-competitive",
        "With fewer wrong labels it is competitive: no more than a point below the best other at 0.1, 0.2 and 0.3",
        "Figure 3",
        ("label-noise",),
        "competitive",
        _competitive,
    ),
    _claim(
        "iwe-plane",
        "In two dimensions the points of an image lie with those of its class",
        "Figure 2",
        (),
        "a picture",
        never_measured,
        why_not="nothing measures it; our picture shows them apart",
    ),
    *_defence("iwe-defence-w16", "iwe-defence-w16", "With ResNet-18 at a quarter of its width", in_our_way=True),
    Claim(
        "iwe-pni-resnet20",
        "Noise on weights, by layer and by channel, keeps more accuracy than adversarial training alone, ResNet-20, "
        "under FGSM and PGD with one draw: the baseline in the paper that introduces it",
        "He et al. 2019",
        ("pni-resnet20",),
        ", ".join(f"{one:+}" for _, gains in NOISE_INJECTION.values() for one in gains.values()) + " points",
        _noise_injection,
        in_our_way=True,
    ),
)
