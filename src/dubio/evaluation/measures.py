"""The numbers that a prediction is judged by, each for many sets of weights of the examples at once.

A measure takes predictions and targets, and weights `(resample, example)`: with all weights one it is the number
itself, with those of a bootstrap its resampled values. Each equals an independent implementation on random inputs, and
cutting the data changes nothing (``tests/evaluation/test_measures.py``).
"""

from jaxtyping import Float, Int
from torch import Tensor

from dubio import functional

__all__ = [
    "class_measures",
    "class_measures_per_example",
    "real_measures",
    "real_measures_per_example",
    "weighted_mean",
]

Weight = Float[Tensor, "resample example"]


def class_measures(
    log_probs: Float[Tensor, "example class"], targets: Int[Tensor, " example"], weight: Weight | None = None
) -> dict[str, Float[Tensor, "*resample"]]:
    """Accuracy, NLL and Brier score, calibration errors, and the area under risk and coverage."""
    probs = log_probs.double().exp()
    confidence, label = probs.max(dim=-1)
    correct = label == targets
    means = {
        name: weighted_mean(values, weight) for name, values in class_measures_per_example(log_probs, targets).items()
    }
    return {
        **means,
        "ece": functional.calibration.calibration_error(
            functional.calibration.bin_sums(confidence, correct, weight=weight)
        ),
        "adaptive_ece": functional.calibration.adaptive_calibration_error(confidence, correct, weight=weight),
        "classwise_ece": functional.calibration.classwise_calibration_error(probs, targets, weight=weight),
        "aurc": functional.uncertainty.area_under_risk(confidence, correct, weight),
    }


def class_measures_per_example(
    log_probs: Float[Tensor, "example class"], targets: Int[Tensor, " example"]
) -> dict[str, Float[Tensor, " example"]]:
    """What each example adds to those that are means over examples (E-14)."""
    exact = log_probs.double()
    return {
        "accuracy": (exact.argmax(dim=-1) == targets).double(),
        "nll": -exact.gather(-1, targets[:, None]).squeeze(-1),
        "brier": functional.calibration.brier_score(exact.exp(), targets),
        "confidence": exact.exp().amax(dim=-1),
        "entropy": functional.uncertainty.entropy(exact.exp()),
    }


def real_measures_per_example(
    means: Float[Tensor, "sample example *rest"],
    stds: Float[Tensor, "sample example *rest"],
    targets: Float[Tensor, "example *rest"],
) -> dict[str, Float[Tensor, " example"]]:
    """Squared and absolute error of the mean, NLL of the mixture over draws, and its ranked probability score.

    Over several outputs, NLL is their sum, since draws are joint, and the others are means.
    """
    means, stds, targets = means.double(), stds.double(), targets.double()
    error = means.mean(dim=0) - targets
    densities = functional.variational.normal_log_prob(targets, means, stds)
    joint = densities.flatten(2).sum(dim=-1) if densities.dim() > 2 else densities
    return {
        "square": _mean_over_outputs(error.square()),
        "mae": _mean_over_outputs(error.abs()),
        "nll": -functional.uncertainty.predictive_log_probs(joint.unsqueeze(-1)).squeeze(-1),
        "crps": _mean_over_outputs(functional.uncertainty.crps_mixture(means, stds, targets)),
    }


def real_measures(
    per_example: dict[str, Float[Tensor, " example"]], weight: Weight | None = None
) -> dict[str, Float[Tensor, "*resample"]]:
    """Means over examples; the root of the mean squared error is ``rmse``."""
    means = {name: weighted_mean(values, weight) for name, values in per_example.items()}
    return {"rmse": means.pop("square").sqrt(), **means}


def weighted_mean(values: Float[Tensor, " example"], weight: Weight | None) -> Float[Tensor, "*resample"]:
    """Mean over examples, for each set of weights."""
    if weight is None:
        return values.double().mean()
    return weight @ values.double() / weight.sum(dim=-1)


def _mean_over_outputs(values: Float[Tensor, "example *rest"]) -> Float[Tensor, " example"]:
    return values.flatten(1).mean(dim=1) if values.dim() > 1 else values
