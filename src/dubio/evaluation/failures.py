"""What is wrong with a network, in sentences: intervals or confidence that fail, and no gain over a constant.

Each sentence is about one number that lies outside of what chance explains at 95 % (Clopper and Pearson's interval for
shares, the bootstrap for errors). A network without any is not proved right: with few examples little can be seen.
"""

from typing import TYPE_CHECKING

from dubio import functional
from dubio.evaluation.words import figure

if TYPE_CHECKING:
    from dubio.evaluation.values import Evaluation

__all__ = ["failures"]

LEVEL = 0.95
LEAST_GAP = 0.02
"""A difference of mean confidence and accuracy that is worth a sentence."""


def failures(evaluation: "Evaluation", run: str | None = None) -> tuple[str, ...]:
    """Sentences about what fails, worst first; none where nothing is seen to fail.

    Args:
        evaluation: what ``dubio.evaluate`` gave.
        run: name of the run, for advice in commands; without, advice is in Python.
    """
    if evaluation.kind == "regression":
        found = (_no_better_than_the_mean(evaluation), _intervals(evaluation, run))
    else:
        found = (_no_better_than_one_class(evaluation), _confidence(evaluation, run))
    return tuple(sentence for sentence in found if sentence)


def _intervals(evaluation: "Evaluation", run: str | None) -> str:
    row = next((row for row in evaluation.intervals if abs(row.level - LEVEL) < 1e-9), None)
    if row is None:
        return ""
    low, high = _chance(row.coverage.value, evaluation.data.num_examples)
    if low <= LEVEL <= high:
        return ""
    held = f"95 % intervals hold {100 * row.coverage.value:.1f} % of the targets"
    if row.coverage.value > LEVEL:
        return f"{held}: too wide; train for more epochs."
    advice = (
        "with likelihood=dubio.Gaussian.for_targets(train_targets, 'output', beta=0.5)"
        if run is None
        else "with --likelihood gaussian or --method ensemble"
    )
    return f"{held}: too narrow; train on more data, or, where it was trained otherwise, {advice}."


def _no_better_than_the_mean(evaluation: "Evaluation") -> str:
    rmse, constant = evaluation.metrics.get("rmse"), evaluation.baseline.get("rmse")
    if rmse is None or constant is None:
        return ""
    values = f"RMSE {figure(rmse.value)}, of the mean {figure(constant)}"
    if rmse.value >= constant:
        return f"No better than always predicting the mean of these targets: {values}."
    if rmse.high is not None and rmse.high >= constant:
        return f"Not clearly better than always predicting the mean of these targets: {values}."
    return ""


def _no_better_than_one_class(evaluation: "Evaluation") -> str:
    accuracy = evaluation.metrics.get("accuracy")
    if accuracy is None or not evaluation.classes:
        return ""
    most = max(evaluation.classes, key=lambda row: row.num_examples)
    share = most.num_examples / max(sum(row.num_examples for row in evaluation.classes), 1)
    if share == 1.0 or _chance(accuracy.value, evaluation.data.num_examples)[0] > share:
        return ""
    how = "No better" if accuracy.value <= share else "Not clearly better"
    return (
        f"{how} than always predicting {most.name!r}: accuracy {100 * accuracy.value:.1f} %, of that class "
        f"{100 * share:.1f} %."
    )


def _confidence(evaluation: "Evaluation", run: str | None) -> str:
    confidence, accuracy = evaluation.metrics.get("confidence"), evaluation.metrics.get("accuracy")
    if confidence is None or accuracy is None or abs(confidence.value - accuracy.value) < LEAST_GAP:
        return ""
    low, high = _chance(accuracy.value, evaluation.data.num_examples)
    if low <= confidence.value <= high:
        return ""
    advice = f"run dubio calibrate {run}" if run is not None else "use dubio.calibrate(model, validation)"
    if "calibration" in evaluation.decided:
        advice = "calibrate on more data"
    manner = "overconfident" if confidence.value > accuracy.value else "underconfident"
    return f"Mean confidence {confidence.value:.3f} where accuracy is {accuracy.value:.3f}: {manner}; {advice}."


def _chance(share: float, num_examples: int) -> tuple[float, float]:
    """Which true shares would give such a one among so many examples."""
    return functional.statistics.clopper_pearson(round(share * num_examples), num_examples, LEVEL)
