"""``abstain``: the threshold above which predictions are accepted, for a given error or a given coverage.

The bound of the error holds for any network (``tests/calibration/test_abstaining.py``).
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from dubio import functional
from dubio.calibration.calibrate import HeldOut, check_one_label_each, predict_held_out, warn
from dubio.calibrators import Surety, Threshold
from dubio.convert import change_spec

SURPLUS = 0.02
"""Share accepted beyond the coverage, because of equal scores, from which ``abstain`` warns."""
FEWEST = 50
"""Validation examples below which ``abstain`` warns: on 50, a coverage has a standard error of up to 7 points."""


def abstain(
    model: nn.Module,
    validation: Any,
    *,
    error: float | None = None,
    coverage: float | None = None,
    score: Surety = "confidence",
    level: float = 0.9,
    num_samples: int = 100,
    batch_size: int = 256,
    seed: int = 0,
) -> Threshold:
    """Choose a threshold of confidence, and keep it with the network: predictions of ``predict`` have ``accepted``.

    With ``error``, as many predictions as possible are accepted while the error among them is at most ``error``, with
    probability ``level`` over the choice of the validation data. This is a bound for any network, if new data come from
    the same distribution. With ``coverage``, at least that share of the predictions is accepted, the most confident
    ones, without a bound of their error.

    Args:
        model: a converted classifier; its record is changed.
        validation: data for neither training nor evaluation, in any form that ``fit`` takes.
        error: the largest error among accepted predictions, in (0, 1).
        coverage: the share of predictions to accept, in (0, 1]. Give one of the two.
        score: the score that is compared: ``"confidence"``, ``"entropy"`` or ``"mutual_information"``.
        level: the probability with which the bound of the error holds.
        num_samples: number of draws; predict with as many.
        batch_size: rows at a time.
        seed: seed of the draws.

    Returns:
        The ``Threshold``, also found as ``dubio.spec(model).threshold``.

    Raises:
        ValueError: no threshold reaches the error on these data, or the network was evaluated on them.
    """
    _check(error, coverage, score, level)
    held_out = predict_held_out(model, validation, "abstain", num_samples, batch_size, seed)
    check_one_label_each(held_out, "abstain")
    surety = _surety(held_out, score)
    if error is not None:
        acceptance = _for_error(surety, held_out, error, level)
    else:
        assert coverage is not None
        acceptance = functional.calibration.acceptance_at_coverage(surety, held_out.correct, coverage)
    sign = 1.0 if score == "confidence" else -1.0
    threshold = Threshold(
        score,
        None if acceptance.threshold is None else sign * acceptance.threshold,
        error=error,
        coverage=coverage,
        level=None if error is None else level,
        accepted_share=acceptance.num_accepted / len(held_out.targets),
        accepted_error=acceptance.error,
        fingerprint=held_out.fingerprint,
        calibrated_score=True,
    )
    change_spec(model, threshold=threshold)
    if coverage is not None:
        _warn_of_few(len(held_out.targets))
        _warn_of_ties(surety, acceptance, coverage, score)
    return threshold


def _check(error: float | None, coverage: float | None, score: str, level: float) -> None:
    if (error is None) == (coverage is None):
        raise ValueError(f"give error or coverage, one of the two, got error={error} and coverage={coverage}")
    if error is not None and not 0.0 < error < 1.0:
        raise ValueError(f"error must be in (0, 1), got {error}")
    if coverage is not None and not 0.0 < coverage <= 1.0:
        raise ValueError(f"coverage must be in (0, 1], got {coverage}")
    if not 0.5 <= level < 1.0:
        raise ValueError(f"level must be in [0.5, 1), got {level}")
    if score not in ("confidence", "entropy", "mutual_information"):
        raise ValueError(f"score must be 'confidence', 'entropy' or 'mutual_information', got {score!r}")


def _surety(held_out: HeldOut, score: Surety) -> Float[Tensor, " example"]:
    """The score, negated where a small one is surer."""
    values: Tensor = getattr(held_out.predictive, score)
    return values if score == "confidence" else -values


def _warn_of_few(count: int) -> None:
    """Warn of few examples, whose coverage and error say little about new data."""
    if count < FEWEST:
        noun = "example is" if count == 1 else "examples are"
        warn(
            f"{count} validation {noun} few to find a threshold by, so coverage and error on new data may differ much; "
            f"use at least {FEWEST}"
        )


def _warn_of_ties(
    surety: Float[Tensor, " example"], acceptance: functional.calibration.Acceptance, coverage: float, score: Surety
) -> None:
    """Warn where equal scores make a threshold accept far more than was requested: it cannot separate them."""
    count = len(surety)
    accepted = surety if acceptance.threshold is None else surety[surety > acceptance.threshold]
    tied = int((accepted == accepted.min()).sum())
    if acceptance.num_accepted / count - coverage <= SURPLUS or tied == 1:
        return
    name = score.replace("_", " ")
    warn(
        f"{tied} of {count} validation examples have the same {name}, which no threshold separates: "
        f"{acceptance.num_accepted / count:.1%} are accepted for a coverage of {coverage:g}, {acceptance.error:.1%} of "
        "them wrong; the network does not tell these examples apart, so use another score or a better network"
    )


def _for_error(
    surety: Float[Tensor, " example"], held_out: HeldOut, error: float, level: float
) -> functional.calibration.Acceptance:
    """Of the thresholds whose bound is at most the error, the one that accepts most."""
    tried = functional.calibration.acceptances(surety, held_out.correct, error, level)
    for acceptance in tried:
        if acceptance.bound is not None and acceptance.bound <= error:
            return acceptance
    count = len(held_out.targets)
    needed = functional.calibration.num_for_error(error, level)
    if not tried:
        raise ValueError(
            f"error {error:g} with probability {level:g} needs at least {needed} validation examples, all accepted "
            f"right, got {count}; allow a larger error, give more data, or ask for a coverage"
        )
    best = min(tried, key=lambda acceptance: 1.0 if acceptance.bound is None else acceptance.bound)
    verb = "is" if best.num_wrong == 1 else "are"
    raise ValueError(
        f"error {error:g} with probability {level:g} is reached by no threshold on these {count} validation examples: "
        f"of the {best.num_accepted} surest, {best.num_wrong} {verb} wrong, which bounds the error by {best.bound:.3g}"
        "; allow a larger error, give more data, or ask for a coverage"
    )
