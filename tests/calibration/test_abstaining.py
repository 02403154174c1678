"""``abstain``: what is accepted, what is promised of it, and when nothing can be."""

import jaxtyping
import pytest
import torch

import dubio
from dubio.data.fingerprints import fingerprint_of


@pytest.mark.feature("abstain finds when a prediction can be relied upon, for a wanted error or coverage")
@pytest.mark.parametrize("score", ["confidence", "entropy", "mutual_information"])
def test_a_wanted_coverage_is_reached_by_the_surest_predictions(echo, honest, score):
    model, validation = echo(1.0, dubio.Bayes(init_std=0.3)), honest(300)

    threshold = dubio.abstain(model, validation, coverage=0.6, score=score, num_samples=20)

    found = dubio.predict(model, validation[0], num_samples=20, seed=0)
    assert found.accepted.sum() == 180
    values = getattr(found, score)
    surest = values[found.accepted].min() if score == "confidence" else -values[found.accepted].max()
    others = values[~found.accepted].max() if score == "confidence" else -values[~found.accepted].min()
    assert surest > others
    assert dubio.spec(model).threshold == threshold
    assert (threshold.coverage, threshold.error, threshold.level) == (0.6, None, None)
    assert threshold.accepted_share == 0.6
    wrong = (found.label != validation[1])[found.accepted].float().mean()
    assert threshold.accepted_error == pytest.approx(wrong.item())
    assert threshold.fingerprint == fingerprint_of(*validation)


def test_a_wanted_error_holds_on_new_data_and_accepts_what_it_can(echo, honest):
    model = echo()

    threshold = dubio.abstain(model, honest(2000), error=0.2, num_samples=1)

    inputs, labels = honest(20_000, seed=1)
    found = dubio.predict(model, inputs, num_samples=1)
    accepted = found.accepted
    assert (found.label == labels).double().mean() < 0.8
    assert (found.label != labels)[accepted].double().mean() < 0.2
    assert accepted.double().mean() > 0.45  # with all data in the world, 0.62
    assert accepted.double().mean() == pytest.approx(threshold.accepted_share, abs=0.03)
    assert threshold.error == 0.2
    assert threshold.level == 0.9


@pytest.mark.feature("abstain warns where examples of equal confidence make a threshold meaningless")
def test_equal_confidences_that_no_threshold_separates_are_warned_of(echo):
    """A network that says the same of every input: a coverage of 0.9 accepts everything, 45 % of it wrong."""
    logits = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(100, 4)
    labels = torch.cat([torch.zeros(55), torch.ones(45)]).long()
    told = (
        r"100 of 100 validation examples have the same confidence, .*: 100\.0% are accepted .* 0\.9, 45\.0% of them wr"
    )
    with pytest.warns(dubio.DecisionWarning, match=told):
        threshold = dubio.abstain(echo(), (logits, labels), coverage=0.9, num_samples=1)
    assert threshold.accepted_share == 1.0
    dubio.abstain(echo(), (logits, labels), coverage=1.0, num_samples=1)  # all of them, as requested


def test_few_examples_are_warned_of(echo, honest):
    with pytest.warns(dubio.DecisionWarning, match="12 validation examples are few .* use at least 50"):
        dubio.abstain(echo(), honest(12), coverage=0.5, num_samples=1)


def test_where_all_is_right_all_is_accepted(echo):
    logits = torch.eye(4).repeat(20, 1)
    model = echo()
    threshold = dubio.abstain(model, (logits, logits.argmax(dim=-1)), error=0.1, num_samples=1)
    assert threshold.limit is None
    assert dubio.predict(model, logits[:3], num_samples=1).accepted.all()
    assert str(threshold).startswith("accepts everything (error at most 0.1 with probability 0.9; 100.0% of")


def test_the_threshold_is_found_on_calibrated_probabilities(echo, honest):
    plain, calibrated = echo(5.0), echo(5.0)
    dubio.calibrate(calibrated, honest(), num_samples=1)
    found = [dubio.abstain(model, honest(), coverage=0.5, num_samples=1) for model in (plain, calibrated)]
    assert found[0].limit > found[1].limit + 0.05


def test_an_error_that_cannot_be_promised_is_refused_with_what_it_takes(echo, honest):
    with pytest.raises(
        ValueError,
        match=r"error 0\.01 with probability 0\.9 needs at least 230 validation examples, all accepted right, got 100; "
        "allow a larger error, give more data, or ask for a coverage",
    ):
        dubio.abstain(echo(), honest(100), error=0.01, num_samples=1)
    with pytest.raises(
        ValueError,
        match=r"is reached by no threshold on these 400 .* \d+ surest, \d+ are wrong, which bounds the error by",
    ):
        dubio.abstain(echo(), honest(400, spread=0.2), error=0.1, num_samples=1)


def test_bad_arguments_are_refused(echo, honest, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    model, data = echo(), honest(20)
    with pytest.raises(ValueError, match="give error or coverage, one of the two, got error=None and coverage=None"):
        dubio.abstain(model, data)
    with pytest.raises(ValueError, match="give error or coverage, one of the two"):
        dubio.abstain(model, data, error=0.1, coverage=0.5)
    with pytest.raises(ValueError, match=r"error must be in \(0, 1\), got 1.5"):
        dubio.abstain(model, data, error=1.5)
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\], got 0"):
        dubio.abstain(model, data, coverage=0.0)
    with pytest.raises(ValueError, match=r"level must be in \[0.5, 1\), got 0.1"):
        dubio.abstain(model, data, error=0.1, level=0.1)
    with pytest.raises(
        ValueError, match="score must be 'confidence', 'entropy' or 'mutual_information', got 'uncertainty'"
    ):
        dubio.abstain(model, data, error=0.1, score="uncertainty")
