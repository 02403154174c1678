"""``abstain``: the threshold above which predictions are accepted, for a wanted error or a wanted coverage."""

import warnings
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from dubio import functional
from dubio.calibration.calibrate import HeldOut, check_one_label_each, predict_held_out
from dubio.calibrators import DecisionWarning, Surety, Threshold
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
    """Find when a prediction is sure enough, and keep it with the network: ``predict`` tells ``accepted``.

    With ``error``, as much is accepted as can be while the error among accepted predictions is at most ``error``, with
    probability ``level`` over the choice of the validation data: not an estimate, but a bound that holds for any
    network, where new data are drawn as these were. With ``coverage``, the surest predictions are accepted, that share
    of them at least, and nothing is promised of their error.

    Args:
        model: a converted network that tells classes apart; its record is changed.
        validation: data that it neither learned from nor is judged on, in any form that ``fit`` takes.
        error: the largest error among accepted predictions, in (0, 1).
        coverage: the share of predictions to accept, in (0, 1]. Give one of the two.
        score: what sureness is measured by: ``"confidence"``, ``"entropy"`` or ``"mutual_information"``.
        level: the probability with which the error holds.
        num_samples: how many draws; predict with as many.
        batch_size: rows at a time.
        seed: which draws.

    Returns:
        The ``Threshold``, also found as ``dubio.spec(model).threshold``.

    Raises:
        ValueError: no threshold reaches the error on so few data, or the network was judged on them.
    """
    _check(error, coverage, score, level)
    held_out = predict_held_out(
        model, validation, asked_by="abstain", num_samples=num_samples, batch_size=batch_size, seed=seed, decisions=True
    )
    check_one_label_each(held_out, "abstain")
    if error is not None:
        found = _for_error(_surety(held_out, score), held_out, error, level)
    else:
        assert coverage is not None
        found = functional.calibration.acceptance_at_coverage(_surety(held_out, score), held_out.correct, coverage)
    sign = 1.0 if score == "confidence" else -1.0
    threshold = Threshold(
        score,
        None if found.threshold is None else sign * found.threshold,
        error=error,
        coverage=coverage,
        level=None if error is None else level,
        accepted_share=found.num_accepted / len(held_out.targets),
        accepted_error=found.error,
        fingerprint=held_out.fingerprint,
        calibrated_score=True,
    )
    change_spec(model, threshold=threshold)
    if coverage is not None:
        _warn_of_few(len(held_out.targets))
        _warn_of_ties(_surety(held_out, score), found, coverage, score)
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
    """The score, turned so that more is surer."""
    values: Tensor = getattr(held_out.predictive, score)
    return values if score == "confidence" else -values


def _warn_of_few(count: int) -> None:
    """Warn where so few examples were seen that neither coverage nor error says much of new data."""
    if count < FEWEST:
        noun = "example is" if count == 1 else "examples are"
        warnings.warn(
            f"{count} validation {noun} few to find a threshold by, so coverage and error on new data may differ much; "
            f"use at least {FEWEST}",
            DecisionWarning,
            stacklevel=3,
        )


def _warn_of_ties(
    surety: Float[Tensor, " example"], found: functional.calibration.Acceptance, coverage: float, score: Surety
) -> None:
    """Warn where equal scores make a threshold accept far more than was requested: it cannot separate them."""
    count = len(surety)
    accepted = surety if found.threshold is None else surety[surety > found.threshold]
    tied = int((accepted == accepted.min()).sum())
    if found.num_accepted / count - coverage <= SURPLUS or tied == 1:
        return
    name = score.replace("_", " ")
    warnings.warn(
        f"{tied} of {count} validation examples have the same {name}, which no threshold separates: "
        f"{found.num_accepted / count:.1%} are accepted for a coverage of {coverage:g}, {found.error:.1%} of them wrong"
        "; the network does not tell these examples apart, so use another score or a better network",
        DecisionWarning,
        stacklevel=3,
    )


def _for_error(
    surety: Float[Tensor, " example"], held_out: HeldOut, error: float, level: float
) -> functional.calibration.Acceptance:
    """The threshold that accepts most of those whose bound reaches the error."""
    tried = functional.calibration.acceptances(surety, held_out.correct, error, level)
    for found in tried:
        if found.bound is not None and found.bound <= error:
            return found
    count = len(held_out.targets)
    needed = functional.calibration.num_for_error(error, level)
    if not tried:
        raise ValueError(
            f"error {error:g} with probability {level:g} needs at least {needed} validation examples, all accepted "
            f"right, got {count}; allow a larger error, give more data, or ask for a coverage"
        )
    best = min(tried, key=lambda found: 1.0 if found.bound is None else found.bound)
    verb = "is" if best.num_wrong == 1 else "are"
    raise ValueError(
        f"error {error:g} with probability {level:g} is reached by no threshold on these {count} validation examples: "
        f"of the {best.num_accepted} surest, {best.num_wrong} {verb} wrong, which bounds the error by {best.bound:.3g}"
        "; allow a larger error, give more data, or ask for a coverage"
    )
