"""What was decided about a network: how ``predict`` applies it, what stays untouched, and that it is kept."""

import copy
import math
import pickle
from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import nn

import dubio
from dubio import functional
from dubio.calibrators import Decisions, decisions_of
from dubio.functional.uncertainty import entropy
from dubio.io import from_json, to_json

SCALING = dubio.VectorScaling((1.5, 0.5, 1.0, 2.0), (0.3, -0.2, 0.0, 0.1), "a")
THRESHOLD = dubio.Threshold(
    "entropy", 0.7, error=0.1, level=0.9, accepted_share=0.5, accepted_error=0.04, fingerprint="b"
)
SETS = dubio.PredictionSets("aps", 0.83, 0.9, True, "c")


@pytest.fixture
def model(echo) -> nn.Module:
    return echo(2.0, dubio.Bayes(init_std=0.6))


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(60, 4, generator=torch.Generator().manual_seed(3))


def decided(model: nn.Module, **changes: object) -> nn.Module:
    changed = copy.deepcopy(model)
    dubio.convert.change_spec(changed, **changes)
    return changed


@pytest.mark.parametrize("calibration", [dubio.Temperature(2.5), SCALING], ids=["temperature", "vector"])
@pytest.mark.parametrize("keep_samples", [True, False])
def test_scaling_after_averaging_changes_the_mean_prediction_and_nothing_of_single_draws(
    model, inputs, calibration, keep_samples
):
    plain = dubio.predict(model, inputs, 30, seed=1, keep_samples=keep_samples)
    found = dubio.predict(
        decided(model, calibration=calibration), inputs, 30, seed=1, batch_size=17, keep_samples=keep_samples
    )
    torch.testing.assert_close(found.log_probs, calibration.apply(plain.log_probs), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.probs.sum(dim=-1), torch.ones(60))
    torch.testing.assert_close(found.confidence, found.probs.amax(dim=-1))
    torch.testing.assert_close(found.entropy, entropy(found.probs))
    assert (found.entropy - plain.entropy).abs().mean() > 0.05
    for name in ("votes", "class_variance", "energy"):
        torch.testing.assert_close(getattr(found, name), getattr(plain, name), atol=1e-5, rtol=1e-5)
    share = plain.mutual_information / plain.entropy
    torch.testing.assert_close(found.mutual_information, share * found.entropy, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.uncalibrated_expected_entropy, plain.expected_entropy, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.uncalibrated_mutual_information, plain.mutual_information, atol=1e-5, rtol=1e-5)
    if keep_samples:
        torch.testing.assert_close(found.samples, plain.samples)


def test_scaling_each_draw_is_as_if_the_network_gave_other_logits(model, inputs):
    samples = dubio.predict(model, inputs, 30, seed=1).samples
    found = dubio.predict(decided(model, calibration=dubio.Temperature(2.5, per_draw=True)), inputs, 30, seed=1)

    draws = functional.calibration.scaled_log_probs(samples, 2.5)
    torch.testing.assert_close(found.samples, draws)
    torch.testing.assert_close(
        found.log_probs, functional.uncertainty.predictive_log_probs(draws), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        found.expected_entropy, functional.uncertainty.expected_entropy(draws), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(found.class_variance, draws.exp().var(dim=0, correction=0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.mutual_information, found.entropy - found.expected_entropy, atol=1e-5, rtol=1e-5)
    assert found.uncalibrated_log_probs is None


@pytest.mark.parametrize(
    "calibration", [dubio.Temperature(0.05), dubio.Temperature(20.0), dubio.Temperature(20.0, per_draw=True), SCALING]
)
def test_t68_mutual_information_of_calibrated_predictions_is_not_negative_and_zero_for_equal_draws(
    model, echo, inputs, calibration
):
    found = dubio.predict(decided(model, calibration=calibration), inputs, 20, seed=0)
    assert found.mutual_information.min() >= 0.0
    assert found.mutual_information.max() > 1e-4
    assert found.entropy.max() <= math.log(4) + 1e-6
    equal = dubio.predict(decided(echo(2.0), calibration=calibration), inputs, 20, seed=0)
    assert equal.mutual_information.max() < 1e-5


CALIBRATIONS = [
    None,
    *(dubio.Temperature(number, per_draw) for number in (0.05, 0.2, 1.0, 3.0, 20.0) for per_draw in (False, True)),
    SCALING,
    dubio.VectorScaling((-1.0, 0.1, 3.0, 1.0), (5.0, -5.0, 0.0, 40.0)),
]


@pytest.mark.feature("Entropy is the sum of its parts, in the data and in the network, whatever was calibrated")
@pytest.mark.parametrize("calibration", CALIBRATIONS, ids=str)
@pytest.mark.parametrize("factor", [0.3, 2.0, 30.0])
@pytest.mark.usefixtures("unchecked")
def test_the_parts_of_the_entropy_add_up_whatever_was_decided(echo, inputs, calibration, factor):
    model = decided(echo(factor, dubio.Bayes(init_std=0.6)), calibration=calibration, threshold=THRESHOLD, sets=SETS)
    whole = dubio.predict(model, inputs, 24, seed=0)
    for found in (whole, dubio.predict(model, inputs, 24, seed=0, batch_size=7, keep_samples=False, chunk=5)):
        torch.testing.assert_close(found.expected_entropy + found.mutual_information, found.entropy, atol=2e-6, rtol=0)
        assert found.expected_entropy.min() >= 0.0
        assert found.mutual_information.min() >= 0.0
        assert (found.mutual_information <= found.entropy + 2e-6).all()
        torch.testing.assert_close(found.entropy, entropy(found.probs))
        torch.testing.assert_close(found.mutual_information, whole.mutual_information, atol=2e-5, rtol=1e-4)


def test_a_prediction_without_entropy_has_no_share_of_the_network():
    half, none = torch.tensor(0.5), torch.tensor(0.0)
    assert functional.uncertainty.calibrated_expected_entropy(half, none, none) == 0.5
    assert functional.uncertainty.calibrated_expected_entropy(
        half, torch.tensor(0.2), torch.tensor(0.05)
    ) == pytest.approx(0.125)
    assert functional.uncertainty.calibrated_expected_entropy(none, half, none) == 0.0


@pytest.mark.parametrize("calibrated_score", [True, False])
def test_a_threshold_of_an_earlier_file_compares_the_mutual_information_that_it_was_chosen_on(
    model, inputs, calibrated_score
):
    plain = dubio.predict(model, inputs, 30, seed=1)
    limit = plain.mutual_information.median().item()
    written = to_json(dubio.Threshold("mutual_information", limit, calibrated_score=calibrated_score))
    if not calibrated_score:
        del written["calibrated_score"]  # as files were written before
    read = from_json(written)
    found = dubio.predict(decided(model, calibration=dubio.Temperature(4.0), threshold=read), inputs, 30, seed=1)
    compared = found.mutual_information if calibrated_score else plain.mutual_information
    assert torch.equal(found.accepted, compared < limit)
    assert (found.accepted != (plain.mutual_information < limit)).any() == calibrated_score


def test_decisions_can_be_left_out_and_go_with_the_networks_own_likelihood_alone(model, inputs):
    plain = dubio.predict(model, inputs, 5, seed=1)
    other = decided(model, calibration=dubio.Temperature(3.0), threshold=THRESHOLD, sets=SETS)
    for found in (
        dubio.predict(other, inputs, 5, seed=1, decisions=False),
        dubio.predict(other, inputs, 5, seed=1, likelihood=dubio.Categorical(output="log_probs")),
    ):
        assert found.threshold is None
        assert found.prediction_sets is None
    found = dubio.predict(other, inputs, 5, seed=1, decisions=False)
    torch.testing.assert_close(found.log_probs, plain.log_probs)
    same = dubio.predict(other, inputs, 5, seed=1, likelihood=dubio.Categorical())
    assert same.threshold == THRESHOLD
    dubio.reset_decisions(other)
    torch.testing.assert_close(dubio.predict(other, inputs, 5, seed=1).log_probs, plain.log_probs)


def test_draws_objectives_and_attacks_know_nothing_of_decisions(model, inputs):
    other = decided(model, calibration=SCALING, threshold=THRESHOLD, sets=SETS)
    labels = torch.arange(60) % 4
    for ask in (
        lambda net: dubio.sample(net, inputs, 3, seed=0),
        lambda net: dubio.ELBO(num_data=60)(net, inputs, labels, num_samples=2).nll,
        lambda net: dubio.attacks.PGD(epsilon=0.1, steps=2)(net, inputs.sigmoid(), labels).inputs,
    ):
        torch.manual_seed(0)
        one = ask(model)
        torch.manual_seed(0)
        torch.testing.assert_close(ask(other), one)


def test_accepted_and_sets_are_asked_for_in_vain_where_nothing_was_decided(model, inputs):
    found = dubio.predict(model, inputs, 3)
    with pytest.raises(ValueError, match=r"no threshold was set for these predictions; dubio\.abstain"):
        _ = found.accepted
    with pytest.raises(ValueError, match=r"no sets were set up for these predictions; dubio\.conformal"):
        _ = found.sets


def test_a_threshold_itself_is_not_accepted():
    scores = torch.tensor([0.5, 0.7, 0.9])
    assert dubio.Threshold("confidence", 0.7).accepts(scores).tolist() == [False, False, True]
    assert dubio.Threshold("entropy", 0.7).accepts(scores).tolist() == [True, False, False]
    assert dubio.Threshold("mutual_information", None).accepts(scores).all()


@pytest.mark.parametrize("calibration", [dubio.Temperature(1.7, True, "a"), SCALING])
@pytest.mark.feature("What is decided about a network is kept by deepcopy, pickle and save")
def test_decisions_are_kept_by_copies_and_files(calibration, inputs, tmp_path):
    net = dubio.models.build("mlp:4-5-4")
    model = decided(dubio.Bayes().convert(net), calibration=calibration, threshold=THRESHOLD, sets=SETS)
    dubio.save(model, tmp_path / "model.safetensors")
    wanted = dubio.predict(model, inputs, 5, seed=0)
    for kept in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), dubio.load(tmp_path / "model.safetensors")):
        assert decisions_of(kept) == Decisions(calibration, THRESHOLD, SETS)
        found = dubio.predict(kept, inputs, 5, seed=0)
        torch.testing.assert_close(found.log_probs, wanted.log_probs)
        assert (found.accepted == wanted.accepted).all()
        assert (found.sets == wanted.sets).all()


def test_decisions_print_in_plain_words_and_describe_tells_them(model):
    assert str(dubio.Temperature(1.25)) == "temperature 1.25 on the mean prediction"
    assert str(dubio.Temperature(1.25, per_draw=True)) == "temperature 1.25 on each draw"
    assert str(SCALING) == ("vector scaling of 4 classes, scales 0.5 to 2, biases -0.2 to 0.3, on the mean prediction")
    assert str(THRESHOLD) == (
        "accepts entropy below 0.7 (error at most 0.1 with probability 0.9; 50.0% of the held-out examples accepted, "
        "4.00% of them wrong)"
    )
    assert str(dubio.Threshold("confidence", 0.5)) == "accepts confidence above 0.5"
    assert str(SETS) == "sets that hold the target with probability 0.9 (aps, 0.83, may be empty)"
    told = str(dubio.describe(decided(model, calibration=dubio.Temperature(1.25), sets=SETS)))
    assert "decided     temperature 1.25 on the mean prediction\ndecided     sets that hold the target" in told
    assert "decided" not in str(dubio.describe(model))


def test_training_drops_what_was_decided_and_says_so(model, inputs):
    other = decided(model, calibration=SCALING, sets=SETS)
    with pytest.warns(
        dubio.DecisionWarning, match="so the calibration and the sets of this network had to be removed; call dubio.cal"
    ):
        dubio.fit(other, (inputs, torch.arange(60) % 4), epochs=1, progress=False)
    assert decisions_of(other) == Decisions()


def test_bad_values_are_refused():
    with pytest.raises(ValueError, match=r"temperature must be positive and finite, got 0\.0"):
        dubio.Temperature(0.0)
    with pytest.raises(ValueError, match="must have one number for each class, two at least, got 2 and 3"):
        dubio.VectorScaling((1.0, 1.0), (0.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="must be finite"):
        dubio.VectorScaling((1.0, math.nan), (0.0, 0.0))
    with pytest.raises(ValueError, match="is for 4 classes, got 3; calibrate anew"):
        SCALING.apply(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="limit of a Threshold must be finite, or None to accept everything, got inf"):
        dubio.Threshold("confidence", math.inf)
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\), got 90"):
        dubio.PredictionSets("lac", 0.5, 90.0)
    with pytest.raises(ValueError, match="quantile of PredictionSets must be finite"):
        dubio.PredictionSets("lac", math.nan, 0.9)
    with pytest.raises(FrozenInstanceError):
        SETS.coverage = 0.5
