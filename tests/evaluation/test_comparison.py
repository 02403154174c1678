"""Evaluations compared on the same examples: what is stored, which test is used, and what is refused."""

import base64
import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import dubio
from dubio import functional
from dubio.evaluation.comparison import compare, pack, unpack
from dubio.evaluation.records import Evaluation, PerExample


def network(seed: int, outputs: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    likelihood = dubio.Categorical() if outputs > 1 else dubio.Gaussian(0.3)
    return dubio.Bayes(init_std=0.2).convert(nn.Linear(4, outputs), likelihood)


@pytest.fixture(scope="module")
def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(120, 4, generator=generator)
    return inputs, network(0)(inputs).argmax(dim=-1)


def judged(seed: int, data: tuple[torch.Tensor, torch.Tensor]) -> Evaluation:
    ood = {"noise": 2.0 * torch.randn(90, 4, generator=torch.Generator().manual_seed(1))}
    return dubio.evaluate(network(seed), data, num_samples=8, num_resamples=0, double=False, ood=ood)


@pytest.fixture(scope="module")
def both(data: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Evaluation]:
    return {"right": judged(0, data), "other": judged(1, data)}


def test_single_examples_are_stored_in_the_file_and_are_those_of_the_metrics(
    both: dict[str, Evaluation], tmp_path: Path
) -> None:
    both["right"].save(tmp_path / "evaluation.json")
    result = Evaluation.load(tmp_path / "evaluation.json")
    assert result == both["right"]
    for name, metric in (("correct", "accuracy"), ("nll", "nll"), ("confidence", "confidence")):
        mean = unpack(result.per_example[name]).double().mean().item()
        assert mean == pytest.approx(result.metrics[metric].value, rel=1e-6)
    scored = result.unseen["noise"].scores
    for name in ("entropy", "mutual_information"):
        for group, count in (("known", 120), ("unseen", 90)):
            placements = unpack(scored[name].placements[group]).double()
            assert len(placements) == count
            assert placements.mean().item() == pytest.approx(scored[name].auroc.value, abs=1e-3)
    assert scored["energy"].placements == {}
    assert "content" not in repr(result)


def test_every_metric_is_compared_by_its_test(both: dict[str, Evaluation]) -> None:
    tests = {}
    for metric in ("accuracy", "nll", "ece"):
        (pair,) = compare(both, metric)
        assert (pair.first, pair.second) == ("right", "other")
        assert pair.p_value < (0.01 if metric != "ece" else 0.2), metric
        tests[metric] = pair.test
    assert tests == {"accuracy": "McNemar", "nll": "paired t-test", "ece": "paired bootstrap"}
    first, second = (unpack(evaluation.per_example["correct"]) for evaluation in both.values())
    assert compare(both)[0].p_value == functional.statistics.mcnemar(first, second)
    assert str(compare(both)[0]) == "p = 0.0075, McNemar"


@pytest.mark.parametrize("metric", ["accuracy", "nll", "ece"])
def test_an_evaluation_does_not_differ_from_itself(both: dict[str, Evaluation], metric: str) -> None:
    (pair,) = compare({"one": both["right"], "same": both["right"]}, metric)
    assert pair.p_value == 1.0


def test_numbers_are_compared_too() -> None:
    inputs = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    data = inputs, network(0, 1)(inputs).detach()
    result = {str(seed): dubio.evaluate(network(seed, 1), data, num_samples=6, num_resamples=0) for seed in (0, 1)}
    for metric in ("rmse", "mae", "nll", "crps"):
        (pair,) = compare(result, metric)
        assert pair.p_value < 1e-2
        assert pair.test == "paired t-test"


def test_what_cannot_be_compared_is_refused(
    both: dict[str, Evaluation], data: tuple[torch.Tensor, torch.Tensor]
) -> None:
    with pytest.raises(ValueError, match="evaluations must be at least two to be compared, got 1"):
        compare({"one": both["right"]})
    with pytest.raises(ValueError, match=r"metric must be one of accuracy, ece, nll, .* got 'auroc'"):
        compare(both, "auroc")
    old = dataclasses.replace(both["right"], per_example={})
    with pytest.raises(ValueError, match="evaluation 'old' holds no accuracy of single examples; evaluate the network"):
        compare({"old": old, "new": both["right"]})
    order = torch.arange(119, -1, -1)
    reversed_data = judged(0, (data[0][order], data[1][order]))
    assert reversed_data.data.fingerprint == both["right"].data.fingerprint
    with pytest.raises(ValueError, match="must be of the same examples in the same order to be compared"):
        compare({"one": both["right"], "reversed": reversed_data})


@pytest.mark.parametrize("dtype", ["bits", "float16", "float32"])
def test_packed_values_come_back_and_damaged_ones_are_refused(dtype: str) -> None:
    values = torch.rand(21, generator=torch.Generator().manual_seed(0))
    values = values > 0.5 if dtype == "bits" else values
    stored = pack(values, dtype)  # type: ignore[arg-type]
    torch.testing.assert_close(unpack(stored), values, atol=1e-3 if dtype == "float16" else 0.0, rtol=0.0)
    json.dumps(dataclasses.asdict(stored), allow_nan=False)
    for content, count in ((stored.content[:-8], 21), (stored.content, 10**9), ("*", 21), (stored.content, 0)):
        with pytest.raises(ValueError):  # noqa: PT011 - base64 and numpy word their own
            unpack(PerExample(dtype, count, content))  # type: ignore[arg-type]
    if dtype != "bits":
        infinite = base64.b64encode(torch.full((21,), torch.inf, dtype=getattr(torch, dtype)).numpy().tobytes())
        with pytest.raises(ValueError, match="finite"):
            unpack(PerExample(dtype, 21, infinite.decode()))  # type: ignore[arg-type]
