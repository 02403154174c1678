"""Metrics of predictions for many sets of weights of the examples at once, and the parts of plots and tables.

A measure takes predictions, targets and weights ``(resample, example)``. Weights of one give the metric itself, weights
of a bootstrap its resampled values.

Invariants: each metric equals an independent implementation on random inputs
(``tests/evaluation/test_measures.py``).
"""

import base64
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dubio import functional
from dubio.evaluation.records import Bins, ClassRow, Curve, Histogram, NotableExample, Thumbnail, Uncertainty
from dubio.prediction import ClassificationPredictive

Weight = Float[Tensor, "resample example"]
GROUPS = ("all", "right", "wrong")
"""Groups of the examples that are judged."""
NUM_NOTABLE = 8
NUM_CURVE_POINTS = 200
NUM_NAMED = 3
"""How many of the most probable classes the record of an example names."""
LARGEST_THUMBNAIL = 64


def class_measures(
    log_probs: Float[Tensor, "example class"], targets: Int[Tensor, " example"], weight: Weight | None = None
) -> dict[str, Float[Tensor, "*resample"]]:
    """Accuracy, NLL and Brier score, calibration errors, and the area under risk and coverage."""
    probs = log_probs.double().exp()
    confidence, label = probs.max(dim=-1)
    correct = label == targets
    per_example = class_measures_per_example(log_probs, targets)
    bins = functional.calibration.bin_sums(confidence, correct, weight=weight)
    return {
        **{name: weighted_mean(values, weight) for name, values in per_example.items()},
        "ece": functional.calibration.calibration_error(bins),
        "adaptive_ece": functional.calibration.adaptive_calibration_error(confidence, correct, weight=weight),
        "classwise_ece": functional.calibration.classwise_calibration_error(probs, targets, weight=weight),
        "aurc": functional.uncertainty.area_under_risk(confidence, correct, weight),
    }


def class_measures_per_example(
    log_probs: Float[Tensor, "example class"], targets: Int[Tensor, " example"]
) -> dict[str, Float[Tensor, " example"]]:
    """The values of each example of metrics that are means over examples (E-14)."""
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
        "square": mean_over_outputs(error.square()),
        "mae": mean_over_outputs(error.abs()),
        "nll": -functional.uncertainty.predictive_log_probs(joint.unsqueeze(-1)).squeeze(-1),
        "crps": mean_over_outputs(functional.uncertainty.crps_mixture(means, stds, targets)),
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


def mean_over_outputs(values: Float[Tensor, "example *rest"]) -> Float[Tensor, " example"]:
    """Mean over all axes but the first."""
    return values.flatten(1).mean(dim=1) if values.dim() > 1 else values


def reliability_bins(confidence: Float[Tensor, " example"], correct: Bool[Tensor, " example"]) -> Bins:
    """Share, confidence and accuracy by bin of confidence; None for the confidence and accuracy of an empty bin."""
    bins = functional.calibration.reliability(functional.calibration.bin_sums(confidence, correct))
    parts = (bins.confidence.tolist(), bins.accuracy.tolist())
    means = (tuple(None if value != value else value for value in part) for part in parts)
    return Bins(tuple(bins.share.tolist()), *means)


def risk_curve(confidence: Float[Tensor, " example"], correct: Bool[Tensor, " example"]) -> Curve:
    """The error among the most confident, at no more points than a plot can show."""
    coverage, risk = functional.uncertainty.risk_coverage(confidence, correct)
    shown = torch.linspace(0, len(coverage) - 1, min(len(coverage), NUM_CURVE_POINTS)).round().long()
    return Curve(tuple(coverage[shown].tolist()), tuple(risk[shown].tolist()))


def histogram(
    groups: dict[str, Float[Tensor, " _"]], num_bins: int = 30, ends: tuple[float, float] | None = None
) -> Histogram:
    """Counts of several groups between the same edges, which span all values by default."""
    if ends is None:
        values = torch.cat(list(groups.values())).double()
        ends = (values.min().item(), values.max().item())
    low, high = ends if ends[0] < ends[1] else (ends[0] - 0.5, ends[0] + 0.5)
    edges = torch.linspace(low, high, num_bins + 1, dtype=torch.float64)
    counts = {}
    for name, values in groups.items():
        place = torch.bucketize(values.double().cpu(), edges[1:-1], right=True)
        counts[name] = tuple(torch.bincount(place, minlength=num_bins).tolist())
    return Histogram(tuple(edges.tolist()), counts)


def class_table(
    log_probs: Float[Tensor, "example class"], targets: Int[Tensor, " example"], names: tuple[str, ...]
) -> tuple[ClassRow, ...]:
    """Recall, precision, confidence and confusions of each class."""
    per_example = class_measures_per_example(log_probs, targets)
    confidence, nll, label = per_example["confidence"], per_example["nll"], log_probs.argmax(dim=-1)
    count = log_probs.shape[-1]
    confusion = torch.bincount(targets * count + label, minlength=count * count).reshape(count, count)
    mistakes = confusion.clone().fill_diagonal_(0)
    rows = []
    for number, name in enumerate(names):
        members, right = targets == number, int(confusion[number, number])
        size, predicted = int(confusion[number].sum()), int(confusion[:, number].sum())
        recall, precision = (right / whole if whole else None for whole in (size, predicted))
        surety, cost = (values[members].mean().item() if size else None for values in (confidence, nll))
        taken_for = names[int(mistakes[number].argmax())] if size > right else None
        rows.append(ClassRow(name, size, recall, precision, surety, cost, taken_for))
    return tuple(rows)


def uncertainty_by_group(pred: ClassificationPredictive, correct: Bool[Tensor, " example"]) -> dict[str, Uncertainty]:
    """Mean uncertainty of all examples, and of the right and the wrong ones if there are any."""
    groups = zip(GROUPS, (torch.ones_like(correct), correct, ~correct), strict=True)
    return {name: uncertainty_of(pred, rows) for name, rows in groups if bool(rows.any())}


def uncertainty_of(pred: ClassificationPredictive, rows: Bool[Tensor, " example"] | None = None) -> Uncertainty:
    """Mean uncertainty of examples; by default of all."""
    parts = (pred.entropy, pred.expected_entropy, pred.mutual_information)
    chosen = [part if rows is None else part[rows] for part in parts]
    return Uncertainty(len(chosen[0]), *(part.double().mean().item() for part in chosen))


def notable_examples(
    pred: ClassificationPredictive, targets: Int[Tensor, " example"], names: tuple[str, ...], inputs: Any
) -> dict[str, tuple[NotableExample, ...]]:
    """The examples of the largest entropy, and the wrong ones of the largest confidence."""
    wrong = (pred.label != targets).nonzero().squeeze(-1)
    surest = wrong[pred.confidence[wrong].argsort(descending=True, stable=True)]
    chosen = {
        "most uncertain": pred.entropy.argsort(descending=True, stable=True)[:NUM_NOTABLE],
        "most confidently wrong": surest[:NUM_NOTABLE],
    }
    return {
        title: tuple(_notable(pred, targets, names, inputs, row) for row in rows.tolist())
        for title, rows in chosen.items()
    }


def _notable(
    pred: ClassificationPredictive, targets: Tensor, names: tuple[str, ...], inputs: Any, row: int
) -> NotableExample:
    probs, labels = pred.probs[row].topk(min(NUM_NAMED, len(names)))
    most_probable = {names[label]: prob for label, prob in zip(labels.tolist(), probs.tolist(), strict=True)}
    target, label = names[int(targets[row])], names[int(pred.label[row])]
    confidence, entropy = pred.confidence[row].item(), pred.entropy[row].item()
    disagreement = pred.mutual_information[row].item()
    image = _thumbnail(inputs[row]) if isinstance(inputs, Tensor) else None
    return NotableExample(row, target, label, confidence, entropy, disagreement, most_probable, image)


def _thumbnail(image: Tensor) -> Thumbnail | None:
    """An image in bytes; None if the input is not an image of one or three channels."""
    if image.dim() != 3 or image.shape[0] not in (1, 3):
        return None
    pixels = image.detach().float().cpu()
    low, high = pixels.min().item(), pixels.max().item()
    if low < 0.0 or high > 1.0:  # the inputs were normalised
        pixels = (pixels - low) / max(high - low, torch.finfo(pixels.dtype).tiny)
    content = functional.corruption.small_image(pixels, LARGEST_THUMBNAIL)
    return Thumbnail(tuple(content.shape), base64.b64encode(content.numpy().tobytes()).decode())
