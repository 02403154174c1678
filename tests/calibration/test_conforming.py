"""``conformal``: sets that hold the target, and what is refused."""

import jaxtyping
import pytest
import torch

import dubio
from dubio import functional
from dubio.data.fingerprints import fingerprint_of


@pytest.mark.parametrize("kind", ["lac", "aps"])
def test_sets_hold_the_target_as_often_as_asked_for_whatever_the_network_believes(echo, honest, kind):
    model = echo(-0.3)  # holds the least probable class most probable
    validation = honest(2000)

    sets = dubio.conformal(model, validation, coverage=0.8, kind=kind, num_samples=1, batch_size=2000)

    inputs, labels = honest(20_000, seed=1)
    found = dubio.predict(model, inputs, num_samples=1, batch_size=20_000)
    held = found.sets.gather(1, labels[:, None]).double().mean()
    assert held == pytest.approx(0.8, abs=4 * (0.16 / 2000 + 0.16 / 20_000) ** 0.5)
    assert dubio.spec(model).sets == sets
    assert sets.fingerprint == fingerprint_of(*validation)
    assert sets.coverage == 0.8


def test_sets_grow_with_the_coverage_and_with_doubt(echo, honest):
    model = echo()
    easy, hard = torch.tensor([[9.0, 0.0, 0.0, 0.0]]), torch.zeros(1, 4)
    sizes = []
    for coverage in (0.5, 0.9, 0.99):
        dubio.conformal(model, honest(), coverage=coverage, num_samples=1)
        sizes.append(dubio.predict(model, honest()[0], num_samples=1).sets.double().sum(dim=1).mean())
    assert sizes[0] < sizes[1] < sizes[2]
    found = dubio.predict(model, torch.cat([easy, hard]), num_samples=1)
    assert found.sets.sum(dim=1).tolist() == [1, 4]


def test_no_set_is_empty_by_default_and_some_are_where_they_may_be(echo, honest):
    model, validation = echo(), honest(1000, spread=6.0)
    sizes = {}
    for allow_empty in (False, True):
        dubio.conformal(model, validation, coverage=0.6, allow_empty=allow_empty, num_samples=1)
        sizes[allow_empty] = dubio.predict(model, validation[0], num_samples=1).sets.sum(dim=1)
    assert sizes[False].min() == 1
    assert sizes[True].min() == 0
    assert (sizes[False] == sizes[True].clamp_min(1)).all()


def test_the_quantile_is_that_of_calibrated_probabilities(echo, honest):
    model, validation = echo(5.0), honest()
    dubio.calibrate(model, validation, num_samples=1)
    found = dubio.conformal(model, validation, num_samples=1)
    log_probs = dubio.predict(model, validation[0], num_samples=1).log_probs
    own = functional.calibration.conformal_scores(log_probs, "lac")[torch.arange(500), validation[1]]
    assert found.quantile == pytest.approx(own.sort().values[450].item(), rel=1e-5)  # ceil(501 * 0.9) = 451


def test_too_few_data_and_bad_arguments_are_refused(echo, honest, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    model = echo()
    with pytest.raises(
        ValueError, match=r"^coverage 0\.99 needs at least 99 validation examples, got 98: with fewer, "
    ):
        dubio.conformal(model, honest(98), coverage=0.99, num_samples=1)
    dubio.conformal(model, honest(99), coverage=0.99, num_samples=1)
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\), got 1.0"):
        dubio.conformal(model, honest(98), coverage=1.0)
    with pytest.raises(ValueError, match="kind must be 'lac' or 'aps', got 'raps'"):
        dubio.conformal(model, honest(98), kind="raps")
