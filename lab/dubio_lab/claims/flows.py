"""Claims of Normalizing Flows for Implicit Bayesian Neural Networks."""

from collections.abc import Callable, Sequence
from functools import partial

from dubio_lab.claims.claim import Claim, Outcome, never_measured, outcome_of, part_of
from dubio_lab.claims.estimate import FIRST, Estimate, Records, Value
from dubio_lab.claims.verdict import Verdict, difference, direction, within

__all__ = ["CLAIMS"]

TITLE = "Normalizing-flow implicit networks"
GAP = 0.085  # 0.094 - 0.009
LENGTHS = (0, 2, 4, 8, 12)
PAIR_SEEDS = 10  # of each record of flow-paired
STOCHASTIC = {"flow": "flow", "no-flow": "no flow"}
PARTS = {"log_likelihood": "likelihood", "kl": "divergence", "elbo": "bound"}
NEEDS_GPU = "needs a GPU"
DROPOUT_CELLS = {"dropout": "mean of 128 masks", "dropout-ordinary": "masks off"}
"""Of flow-lenet. The paper most likely means the second, which was not run."""
CIFAR_DROPOUT_CELLS = {"dropout-draws": "mean of 128 masks", "dropout": "masks off"}
EPOCHS = (5, 10, 20, 50, 100, 200)
"""How long the networks of nfi-plane-underfit train."""


def _calibrated(records: Records, cell: str) -> Outcome:
    gap = partial(records.recorded, "flow-paired", cell, PAIR_SEEDS)
    return outcome_of(part_of("", gap, partial(difference, published=GAP)))


def _longest_and_shortest(records: Records, metric: str) -> Outcome:
    """Length 12 above each other length, and length 0 below each."""
    pairs = [(12, length) for length in LENGTHS[:-1]] + [(length, 0) for length in LENGTHS[1:-1]]
    parts = [
        part_of(
            f"{one} less {other}",
            partial(records.gap, "flow-lengths", f"length-{one}", f"length-{other}", metric),
            direction,
        )
        for one, other in pairs
    ]
    reproduced = sum(part.verdict is Verdict.REPRODUCED for part in parts)
    first, last = parts[0], parts[3]
    return outcome_of(*parts, shown=f"{reproduced} of {len(parts)} comparisons; {first.text}; {last.text}")


def _levels(records: Records, spec: str, *bars: tuple[str, str, str, Callable[[Estimate], Verdict]]) -> Outcome:
    """Numbers of a spec: words, cell, metric and the rule for each."""
    return outcome_of(
        *(
            part_of(words, partial(records.number, spec, cell, metric), rule, signed=False)
            for words, cell, metric, rule in bars
        )
    )


def _above_deterministic(records: Records, spec: str) -> Outcome:
    return outcome_of(
        *(
            part_of(words, partial(records.gap, spec, cell, "deterministic", "accuracy"), direction)
            for cell, words in STOCHASTIC.items()
        )
    )


def _above_no_flow(records: Records, spec: str, metric: str, published: float = 0.0) -> Outcome:
    rule = partial(difference, published=published) if published else direction
    return outcome_of(part_of("", partial(records.gap, spec, "flow", "no-flow", metric), rule))


def _no_gain_by_dropout(records: Records, spec: str, cells: dict[str, str]) -> Outcome:
    return outcome_of(
        *(
            part_of(
                words, partial(records.gap, spec, cell, "deterministic", "best_accuracy"), partial(within, most=0.0)
            )
            for cell, words in cells.items()
        )
    )


def _same_accuracy(records: Records, spec: str) -> Outcome:
    gap = partial(records.gap, spec, "flow", "no-flow", "accuracy")
    return outcome_of(part_of("", gap, partial(within, least=-1.0, most=1.0)))


def _better_calibrated(records: Records, spec: str) -> Outcome:
    return outcome_of(
        *(
            part_of(words, partial(records.gap, spec, "deterministic", cell, "ece"), direction)
            for cell, words in STOCHASTIC.items()
        )
    )


def _divergence_falls(records: Records, spec: str) -> Outcome:
    def fall(value: Value) -> float:
        return value(spec, "flow", f"{FIRST}kl") - value(spec, "flow", "kl")

    return outcome_of(part_of("", partial(records.estimate, fall), direction))


def _wider_by_entropy(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(words, partial(records.gap, "nfi-lenet-cifar10", f"{cell}-entropy", cell, "noise_std"), direction)
            for cell, words in STOCHASTIC.items()
        )
    )


def _stopped_early(records: Records) -> Outcome:
    """Whether a deterministic network has half of the published calibration error at any time."""

    def highest(value: Value) -> float:
        return max(value("nfi-plane-underfit", f"deterministic-{epochs}", "ece") for epochs in EPOCHS)

    return outcome_of(part_of("", partial(records.estimate, highest), partial(within, least=0.047), signed=False))


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


def _on_lenet(prefix: str, spec: str, data: str, place: str) -> Sequence[Claim]:
    """The statements that are made of LeNet on both data sets."""
    return (
        _claim(
            f"{prefix}-above-deterministic",
            f"Both stochastic LeNets are above the deterministic one in accuracy on {data}",
            place,
            (spec,),
            "both above",
            partial(_above_deterministic, spec=spec),
        ),
        *(
            _claim(
                f"{prefix}-above-no-flow-{metric.replace('_', '-')}",
                f"LeNet with flows has a higher {words} on {data} than without",
                place,
                (spec,),
                "higher",
                partial(_above_no_flow, spec=spec, metric=metric),
            )
            for metric, words in PARTS.items()
        ),
        _claim(
            f"{prefix}-no-gain-by-dropout",
            f"Dropout gains no accuracy on LeNet, by the best epoch of each, {data}",
            f"text to {place}",
            (spec,),
            "no gain",
            partial(
                _no_gain_by_dropout, spec=spec, cells=DROPOUT_CELLS if spec == "flow-lenet" else CIFAR_DROPOUT_CELLS
            ),
        ),
    )


def _on_vgg(prefix: str, spec: str, which: str, **options: bool | str) -> Sequence[Claim]:
    """The statements of Figure 6."""
    return (
        _claim(
            f"{prefix}-same-accuracy",
            f"{which} is as accurate with flows as without, within a point",
            "Figure 6",
            (spec,),
            "no visible difference",
            partial(_same_accuracy, spec=spec),
            **options,
        ),
        _claim(
            f"{prefix}-above-deterministic",
            f"{which} is more accurate with noise, with flows and without, than the deterministic network",
            "Figure 6",
            (spec,),
            "both above",
            partial(_above_deterministic, spec=spec),
            **options,
        ),
        _claim(
            f"{prefix}-better-calibrated",
            f"{which} is better calibrated with noise, with flows and without, than the deterministic network",
            "Figure 6",
            (spec,),
            "both below",
            partial(_better_calibrated, spec=spec),
            **options,
        ),
        _claim(
            f"{prefix}-divergence-falls",
            f"The divergence of the flow of {which} falls while it trains",
            "Figure 6",
            (spec,),
            "falls",
            partial(_divergence_falls, spec=spec),
            **options,
        ),
    )


CLAIMS = (
    _claim(
        "flow-ece",
        "In the plane the stochastic network has a lower calibration error than the deterministic one; both trained "
        "until they settle",
        "Figure 3",
        ("flow-paired",),
        f"+{GAP} (0.094 less 0.009)",
        partial(_calibrated, cell="ece-stochastic-deterministic"),
    ),
    _claim(
        "flow-plane-accuracy",
        "The deterministic network classifies 95.3 percent of the points in the plane",
        "Figure 3",
        (),
        "95.3 %",
        never_measured,
        why_not="the points were not published",
    ),
    _claim(
        "flow-matching",
        "In the plane more than 80 percent of points are classified with matching confidence",
        "text to Figure 3",
        ("flow-2d",),
        "more than 80 %",
        lambda records: _levels(records, "flow-2d", ("", "stochastic", "matching", partial(within, least=80.0))),
    ),
    _claim(
        "flow-boundary",
        "Uncertainty is high at the boundary between the classes",
        "Figure 3",
        (),
        "a picture",
        never_measured,
        why_not="nothing measures it",
    ),
    *(
        _claim(
            f"flow-lengths-{metric.replace('_', '-')}",
            f"A flow of length 12 has the highest {words} and length 0 the lowest, of 0, 2, 4, 8 and 12",
            "Figure 4",
            ("flow-lengths",),
            "12 highest, 0 lowest",
            partial(_longest_and_shortest, metric=metric),
        )
        for metric, words in (("elbo", "bound"), ("log_likelihood", "likelihood"))
    ),
    _claim(
        "flow-lenet-levels",
        "On FashionMNIST the deterministic LeNet has nearly 90 percent accuracy and a calibration error of 1.5 "
        "percent, and dropout one of at most 5; no more than a point and half a point worse",
        "Figure 5",
        ("flow-lenet",),
        "90 %, 1.5 %, up to 5 %",
        lambda records: _levels(
            records,
            "flow-lenet",
            ("accuracy", "deterministic", "accuracy", partial(within, least=89.0)),
            ("error", "deterministic", "ece", partial(within, most=2.0)),
            ("dropout, mean of 128 masks", "dropout", "ece", partial(within, most=5.0)),
        ),
    ),
    *_on_lenet("flow-lenet", "flow-lenet", "FashionMNIST", "Figure 5"),
    _claim(
        "flow-cifar-gain",
        "LeNet with flows is about 2 points more accurate on CIFAR-10 than without",
        "Figure 5",
        ("nfi-lenet-cifar10",),
        "+2 points",
        partial(_above_no_flow, spec="nfi-lenet-cifar10", metric="accuracy", published=2.0),
    ),
    _claim(
        "flow-cifar-levels",
        "On CIFAR-10 the deterministic LeNet has a calibration error of 1.5 percent, and dropout one of at most 5; no "
        "more than half a point above the first",
        "Figure 5",
        ("nfi-lenet-cifar10",),
        "1.5 %, up to 5 %",
        lambda records: _levels(
            records,
            "nfi-lenet-cifar10",
            ("deterministic", "deterministic", "ece", partial(within, most=2.0)),
            ("dropout, masks off", "dropout", "ece", partial(within, most=5.0)),
        ),
    ),
    _claim(
        "flow-cifar-contracts",
        "The noise contracts while it trains, with flows and without: from a standard deviation of 0.5 to less than "
        "half of it",
        "discussion of the entropy",
        ("nfi-lenet-cifar10",),
        "to a point",
        lambda records: _levels(
            records,
            "nfi-lenet-cifar10",
            *((words, cell, "noise_std", partial(within, most=0.25)) for cell, words in STOCHASTIC.items()),
        ),
    ),
    *_on_lenet("flow-cifar", "nfi-lenet-cifar10", "CIFAR-10", "Figure 5"),
    *_on_vgg("flow-vgg", "nfi-vgg16", "VGG16 on CIFAR-10", why_not=NEEDS_GPU),
    *_on_vgg("flow-quarter-vgg", "nfi-vgg16-quarter", "VGG16 at a quarter of its width", in_our_way=True),
    _claim(
        "flow-ece-early",
        "In the plane the stochastic network has a lower calibration error than a deterministic one that is stopped "
        "early",
        "Figure 3",
        ("flow-paired",),
        f"+{GAP}",
        partial(_calibrated, cell="ece-stochastic-deterministic-early"),
        in_our_way=True,
    ),
    _claim(
        "flow-cifar-entropy",
        "A weight of 0.1 on the entropy of the noise keeps it wider",
        "discussion of the entropy",
        ("nfi-lenet-cifar10",),
        None,
        _wider_by_entropy,
    ),
    _claim(
        "flow-underfit",
        "A deterministic network that is hardly trained has half of the published calibration error or more, at some "
        "epoch",
        "Figure 3",
        ("nfi-plane-underfit",),
        None,
        _stopped_early,
    ),
)
