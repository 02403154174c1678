"""Budgets are kept, tries are judged by the same draws, densities count every weight, and records come back."""

import copy
import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import dubio
from dubio.convert.spec import change_spec
from dubio.data.fingerprints import fingerprint_of
from dubio.pruning.prune import curve, snr_density
from dubio.pruning.records import Pruning, PruningPoint, SnrDensity
from networks import mlp

pytest.importorskip("sklearn")

ROWS = torch.randn(80, 5, generator=torch.Generator().manual_seed(1))
NUMBERS = (ROWS, ROWS[:, :1] * 2.0)


@pytest.fixture(scope="module")
def digits() -> dubio.data.Splits:
    return dubio.data.load("digits")


@pytest.fixture(scope="module")
def trained(digits: dubio.data.Splits) -> nn.Module:
    torch.manual_seed(0)
    model = dubio.Bayes().convert(dubio.models.mlp(64, 32, 10))
    dubio.fit(model, digits.train, epochs=6, progress=False)
    return model


@pytest.mark.feature("Pruning finds a share that costs no more accuracy than allowed, a thousandth below one that does")
@pytest.mark.parametrize("what", ["weights", "units"])
def test_a_share_within_the_budget_is_found(trained: nn.Module, digits: object, what: str) -> None:
    model = copy.deepcopy(trained).train()
    held_out = digits.validation
    record = dubio.prune(model, max_loss=0.05, what=what, validation=held_out, num_samples=10)
    assert model.training
    assert record.max_loss == 0.05
    assert record.accuracy_before - record.accuracy_after <= 0.05 + 1e-6
    assert 0.0 < record.fraction < 1.0
    tried = {point.fraction: point for point in record.curve}
    assert list(tried) == sorted(tried)
    assert tried[0.0].accuracy == record.accuracy_before
    assert tried[record.fraction].accuracy == record.accuracy_after
    after = min(fraction for fraction in tried if fraction > record.fraction)
    assert after == pytest.approx(record.fraction + 0.001)
    assert record.accuracy_before - tried[after].accuracy > 0.05
    other = copy.deepcopy(trained)
    assert (
        dubio.prune(other, record.fraction, what=what, validation=held_out, num_samples=10).nll_after
        == record.nll_after
    )


def test_all_goes_where_nothing_is_lost_and_nothing_where_all_is() -> None:
    model = dubio.Deterministic().convert(mlp(5, 4))
    targets = torch.full((80,), 2)
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([0.0, 0.0, 50.0, 0.0]))
    assert dubio.prune(copy.deepcopy(model), max_loss=0.0, validation=(ROWS, targets)).fraction == 1.0
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(5)[:4])
        model[0].bias.zero_()
    targets = ROWS[:, :4].argmax(dim=1)
    record = dubio.prune(copy.deepcopy(model), max_loss=0.0, validation=(ROWS, targets))
    assert record.accuracy_after == 1.0
    assert record.num_removed == 16  # the zeros


def test_numbers_have_a_budget_of_likelihood() -> None:
    torch.manual_seed(0)
    model = dubio.Bayes(init_std=0.01).convert(mlp(5, 8, 1), dubio.Gaussian(0.5))
    dubio.fit(model, NUMBERS, epochs=15, lr=0.05, progress=False)
    record = dubio.prune(model, max_loss=0.1, validation=NUMBERS, num_samples=10)
    assert record.accuracy_before is None
    assert record.nll_after - record.nll_before <= 0.1
    assert record.num_removed > 0
    assert all(point.accuracy is None for point in record.curve)


@pytest.mark.parametrize("form", ["examples", "tensors", "dataset", "loader", "batches"])
def test_data_that_judged_the_network_do_not_decide_in_any_form(digits: object, trained: nn.Module, form: str) -> None:
    model, tensors = copy.deepcopy(trained), digits.test.tensors
    change_spec(model, evaluated=(fingerprint_of(*tensors),))
    dataset = torch.utils.data.TensorDataset(*tensors)
    data = {
        "examples": digits.test,
        "tensors": tensors,
        "dataset": dataset,
        "loader": torch.utils.data.DataLoader(dataset, 50, shuffle=True),
        "batches": [(tensors[0][:100], tensors[1][:100]), (tensors[0][100:], tensors[1][100:])],
    }[form]
    told = r"validation must be data that this network was not judged on, got those of an evaluation; prune would make"
    with pytest.raises(ValueError, match=told):
        dubio.prune(model, max_loss=0.1, validation=data)
    if form == "examples":
        dubio.prune(model, 0.1, validation=data, num_samples=2)


def test_an_evaluation_keeps_its_data_from_deciding(digits: object, trained: nn.Module) -> None:
    model = copy.deepcopy(trained)
    dubio.evaluate(model, digits.test, num_samples=2, num_resamples=0)
    with pytest.raises(ValueError, match="validation must be data that this network was not judged on"):
        dubio.prune(model, max_loss=0.1, validation=digits.test)


def test_timing_leaves_the_global_random_state_alone() -> None:
    model = dubio.Bayes().convert(mlp(5, 7, 4))
    before = torch.get_rng_state()
    assert dubio.prune(model, 0.5, example=ROWS).step_seconds_after > 0.0
    assert torch.equal(torch.get_rng_state(), before)


def test_a_curve_is_of_copies_and_of_the_same_draws(digits: object, trained: nn.Module) -> None:
    before = copy.deepcopy(trained.state_dict())
    points = curve(trained, digits.validation, (0.0, 0.5, 1.0), num_samples=5)
    assert [(point.by, point.fraction) for point in points] == [
        (by, fraction) for by in ("snr", "magnitude") for fraction in (0.0, 0.5, 1.0)
    ]
    assert dataclasses.replace(points[0], by="magnitude") == points[3]
    assert points[2].nll > points[0].nll
    assert curve(trained, digits.validation, (0.5,), "snr", num_samples=5) == points[1:2]
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.state_dict().items())
    assert dubio.spec(trained).pruning is None
    units = curve(trained, digits.validation, (0.0, 0.9), "magnitude", what="units", each_layer=True, num_samples=5)
    assert units[0] == points[3]
    assert units[1].nll > units[0].nll
    with pytest.raises(ValueError, match=r"fractions must be in \[0, 1\]"):
        curve(trained, digits.validation, (2.0,))


def test_a_density_counts_every_ratio_and_knows_the_threshold() -> None:
    model = dubio.Bayes().convert(mlp(5, 7, 4))
    posterior = model[0].weight_posterior
    with torch.no_grad():
        posterior.mean[0, 0] = 0.0  # a ratio of zero
    density = snr_density(model, num_bins=10)
    assert len(density.edges) == 11
    assert sum(density.counts) == 63
    levels = torch.cat([10 * (p.mean.abs() / p.std).log10().flatten() for p in (posterior, model[2].weight_posterior)])
    finite = levels[levels.isfinite()].double()
    assert density.edges[0] == pytest.approx(finite.min().item())
    assert density.edges[-1] == pytest.approx(finite.max().item())
    histogram = torch.histogram(finite, torch.tensor(density.edges, dtype=torch.float64)).hist
    assert (
        sum(abs(a - b) for a, b in zip(density.counts, histogram.tolist(), strict=True)) <= 3
    )  # one is minus infinity
    record = dubio.prune(model, 0.5)
    assert record.density.threshold_db == pytest.approx(levels.sort().values[30].item())
    assert sum(snr_density(model).counts) == 63 - 31
    assert sum(snr_density(model, where="2", biases=True).counts) < 32
    assert dubio.prune(model, 0.5).density.threshold_db is None
    assert dubio.prune(dubio.Deterministic().convert(mlp(5, 4)), 0.5).density is None
    with pytest.raises(
        ValueError, match="nothing to prune: where=None chooses no layer that has weights with a Gaussian"
    ):
        snr_density(dubio.Deterministic().convert(mlp(5, 4)))
    with pytest.raises(ValueError, match="num_bins must be at least 1, got 0"):
        snr_density(model, num_bins=0)


def test_a_density_of_everything_removed_is_empty_and_one_without_noise_is_finite() -> None:
    model = dubio.Bayes().convert(mlp(5, 4))
    with torch.no_grad():
        model[0].weight_posterior.rho[0] = -200.0
    record = dubio.prune(model, 1.0)
    assert record.density.threshold_db == record.density.edges[-1]
    assert sum(record.density.counts) == 20
    assert json.dumps(record.to_json(), allow_nan=False)
    assert sum(snr_density(model).counts) == 0


def test_a_record_goes_to_json_and_back(tmp_path: Path) -> None:
    model = dubio.Bayes().convert(mlp(5, 7, 4))
    targets = torch.zeros(80, dtype=torch.int64)
    record = dubio.prune(model, 0.5, validation=(ROWS, targets), example=ROWS, num_samples=2)
    assert record.step_seconds_before > 0.0
    assert record.step_seconds_after > 0.0
    assert Pruning.from_json(json.loads(json.dumps(record.to_json(), allow_nan=False))) == record
    record.save(tmp_path / "pruning.json")
    assert Pruning.load(tmp_path / "pruning.json") == record
    assert isinstance(record.density, SnrDensity)
    assert record.curve == (
        PruningPoint("snr", 0.0, record.accuracy_before, record.nll_before, 0.0),
        PruningPoint("snr", 0.5, record.accuracy_after, record.nll_after, 31 / 63),
    )
    assert record.removed == 31 / 63
    shown = str(record)
    for part in (
        "31 of 63 weights removed (weights by snr, fraction 0.5)",
        "0.weight: ",
        "forward ",
        "accuracy ",
        "NLL ",
    ):
        assert part in shown


def test_bytes_are_what_save_writes(tmp_path: Path) -> None:
    model = dubio.Bayes().convert(mlp(5, 7, 4))
    dubio.save(model, tmp_path / "whole")
    record = dubio.prune(model, 0.5)
    dubio.save(model, tmp_path / "pruned")
    sizes = tuple((tmp_path / name).stat().st_size for name in ("whole", "pruned"))
    assert (record.bytes_before, record.bytes_after) == sizes


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{}", "a pruning must have format 'dubio-pruning-1', got None"),
        ("[]", "a pruning must have format 'dubio-pruning-1', got 'list'"),
        ("no", "does not hold a pruning"),
        ('{"format": "dubio-pruning-1", "by": "luck"}', "has a value of the wrong kind, 'luck'"),
    ],
)
def test_a_file_that_holds_no_record_is_refused(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "a").write_text(content)
    with pytest.raises(ValueError, match=told):
        Pruning.load(tmp_path / "a")
