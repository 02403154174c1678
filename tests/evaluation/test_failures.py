"""Sentences about what fails: said where a number lies outside of chance, and not said where it does not."""

import pytest
import torch

import dubio
from dubio.evaluation.records import ClassRow, DataRecord, Estimate, Evaluation, IntervalRow, failures


def of_numbers(coverage: float, num_examples: int = 100, rmse: float = 0.5, constant: float = 1.0) -> Evaluation:
    return Evaluation(
        kind="regression",
        data=DataRecord("prices", num_examples, ""),
        num_samples=10,
        seed=0,
        seconds=0.0,
        metrics={"rmse": Estimate(rmse, rmse - 0.1, rmse + 0.1)},
        intervals=(
            IntervalRow(0.5, Estimate(0.0), Estimate(1.0)),
            IntervalRow(0.95, Estimate(coverage), Estimate(1.0)),
        ),
        baseline={"rmse": constant},
    )


def of_classes(
    accuracy: float, confidence: float, counts: tuple[int, ...] = (50, 50), decided: dict[str, str] | None = None
) -> Evaluation:
    rows = tuple(
        ClassRow(name, count, None, None, None, None, None) for name, count in zip("abc", counts, strict=False)
    )
    return Evaluation(
        kind="classification",
        data=DataRecord("pets", sum(counts), ""),
        num_samples=10,
        seed=0,
        seconds=0.0,
        metrics={"accuracy": Estimate(accuracy), "confidence": Estimate(confidence)},
        decided=decided or {},
        classes=rows,
    )


@pytest.mark.feature(
    "evaluate, compare and the report begin with what fails: intervals, confidence, no gain over a constant"
)
def test_intervals_that_hold_too_few_or_too_many_targets_are_named() -> None:
    (narrow,) = failures(of_numbers(0.44), "house")
    assert narrow == (
        "95 % intervals hold 44.0 % of the targets: too narrow; train on more data, or, where it was trained "
        "otherwise, with --likelihood gaussian or --method ensemble."
    )
    (in_python,) = failures(of_numbers(0.44))
    assert "dubio.Gaussian.for_targets" in in_python
    (wide,) = failures(of_numbers(1.0, 1000))
    assert wide.startswith("95 % intervals hold 100.0 % of the targets: too wide")


@pytest.mark.parametrize("coverage", [0.90, 0.95, 0.99, 1.0])
def test_what_chance_explains_is_not_named(coverage: float) -> None:
    assert failures(of_numbers(coverage, 60)) == ()


def test_a_network_no_better_than_the_mean_is_named() -> None:
    (worse,) = failures(of_numbers(0.95, rmse=68353.0, constant=34765.0))
    assert worse == "No better than always predicting the mean of these targets: RMSE 68353, of the mean 34765."
    (unclear,) = failures(of_numbers(0.95, rmse=0.95))
    assert unclear.startswith("Not clearly better than always predicting the mean")


def test_the_baseline_of_numbers_is_what_their_mean_gets() -> None:
    targets = 3.0 + 2.0 * torch.randn(80, 1)
    model = dubio.Deterministic().convert(torch.nn.Linear(2, 1), dubio.Gaussian.for_targets(targets))
    result = dubio.evaluate(model, (torch.randn(80, 2), targets), num_samples=1, num_resamples=0)
    assert result.baseline["rmse"] == pytest.approx(targets.std(correction=0).item(), rel=1e-5)
    assert Evaluation.from_json(result.to_json()) == result


def test_confidence_unlike_accuracy_is_named_with_the_remedy() -> None:
    (over,) = failures(of_classes(0.80, 0.95), "demo")
    assert over == "Mean confidence 0.950 where accuracy is 0.800: overconfident; run dubio calibrate demo."
    (under,) = failures(of_classes(0.80, 0.60))
    assert "underconfident; use dubio.calibrate(model, validation)" in under
    (again,) = failures(of_classes(0.80, 0.95, decided={"calibration": "Temperature(2.0)"}))
    assert "calibrate on more data" in again
    assert failures(of_classes(0.80, 0.84)) == ()
    assert failures(of_classes(0.80, 0.815, (50_000, 50_000))) == ()


def test_a_network_no_better_than_one_class_is_named() -> None:
    (same,) = failures(of_classes(0.472, 0.46, (472, 300, 228)))
    assert same == "No better than always predicting 'a': accuracy 47.2 %, of that class 47.2 %."
    (unclear,) = failures(of_classes(0.48, 0.47, (472, 300, 228)))
    assert unclear.startswith("Not clearly better than always predicting 'a'")
    assert failures(of_classes(0.9, 0.9, (472, 300, 228))) == ()


def test_an_evaluation_is_printed_as_a_summary_that_begins_with_what_fails() -> None:
    lines = str(of_numbers(0.44)).splitlines()
    assert lines[0] == "regression of 100 examples of prices, 10 draws, seed 0"
    assert lines[1].startswith("95 % intervals hold 44.0 %")
    assert any(line.split() == ["RMSE", "0.5000", "[0.4000,", "0.6000]"] for line in lines)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.12345, "0.1235"), (9999.5, "9999.5000"), (68353.123, "68353"), (119587213221.373, "1.196e+11")],
)
def test_large_numbers_are_shown_with_the_digits_that_count(value: float, shown: str) -> None:
    assert str(Estimate(value)) == shown
