"""What the numbers of an evaluation are called, what they mean, and which way is better."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "MetricWords", "SCORE_WORDS", "figure"]


def figure(value: float, digits: int = 4) -> str:
    """A number with so many digits after the point; of a large one, or one that would be 0, those that count."""
    size = abs(value)
    if 0.0 < size < 0.5 * 10.0**-digits:
        return f"{value:.2e}"
    if size < 1e4:
        return f"{value:.{digits}f}"
    return f"{value:.0f}" if size < 1e7 else f"{value:.3e}"


@dataclass(frozen=True)
class MetricWords:
    """A metric in words."""

    label: str
    meaning: str
    better: Literal["more", "less", "neither"]


METRICS: dict[str, MetricWords] = {
    "accuracy": MetricWords("accuracy", "Share of examples whose most probable class is the true one.", "more"),
    "nll": MetricWords(
        "NLL", "What the truth costs in nats at the probabilities given; sure but wrong is worst.", "less"
    ),
    "brier": MetricWords("Brier score", "Squared distance of the probabilities from the truth, 0 to 2.", "less"),
    "confidence": MetricWords("mean confidence", "Mean probability of the class that is predicted.", "neither"),
    "entropy": MetricWords("entropy", "All doubt together, in nats; 0 is certain.", "neither"),
    "ece": MetricWords(
        "ECE", "How far confidence and accuracy lie apart, in 15 bins of equal width (calibration error).", "less"
    ),
    "adaptive_ece": MetricWords("adaptive ECE", "The same in 15 bins of equally many examples.", "less"),
    "classwise_ece": MetricWords("class-wise ECE", "The same for the probability of every class, averaged.", "less"),
    "aurc": MetricWords(
        "AURC",
        "Error among the most confident, averaged over how many are accepted: whether doubt knows errors.",
        "less",
    ),
    "expected_entropy": MetricWords(
        "doubt of the data", "The part of the entropy that all draws have, in nats.", "neither"
    ),
    "mutual_information": MetricWords(
        "doubt of the network", "What draws disagree about, in nats: mutual information.", "neither"
    ),
    "single_draw_accuracy": MetricWords("accuracy of one draw", "Mean accuracy of single draws.", "more"),
    "accepted_share": MetricWords("accepted", "Share of examples above the threshold of doubt.", "more"),
    "accepted_error": MetricWords("error among accepted", "Share of the accepted that are wrong.", "less"),
    "set_coverage": MetricWords("coverage of sets", "Share of prediction sets that hold the true class.", "neither"),
    "set_size": MetricWords("size of sets", "Mean number of classes in a prediction set.", "less"),
    "rmse": MetricWords("RMSE", "Root of the mean squared error of the mean.", "less"),
    "mae": MetricWords("MAE", "Mean absolute error of the mean.", "less"),
    "crps": MetricWords("CRPS", "Ranked probability score, in the unit of the target.", "less"),
    "std": MetricWords("predicted std", "Mean standard deviation of the prediction, both kinds of doubt.", "neither"),
    "aleatoric_std": MetricWords("std of the data", "The part that lies in the data.", "neither"),
    "epistemic_std": MetricWords("std of the network", "The part that draws disagree about.", "neither"),
}
SCORE_WORDS: dict[str, str] = {
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "lack_of_confidence": "1 - confidence",
    "top_std": "spread of the top score",
    "variation_ratio": "dissenting votes",
    "energy": "energy",
}
