"""``calibrate``: what it finds, and what it leaves as it is (T-67)."""

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dubio
from dubio.calibration.calibrate import _fit_temperature, _gain_on_folds
from dubio.data.examples import Examples
from dubio.data.fingerprints import fingerprint_of


def nll(model: nn.Module, data: tuple[Tensor, Tensor], **options: object) -> float:
    found = dubio.predict(model, data[0], seed=0, **options)  # type: ignore[arg-type]
    return nn.functional.nll_loss(found.log_probs, data[1]).item()


@pytest.fixture
def noisy(echo) -> nn.Module:
    """Sure of itself, with draws that disagree."""
    return echo(3.0, dubio.Bayes(init_std=0.5))


@pytest.mark.feature("calibrate finds a temperature or a scale for each class, kept with the network, used by predict")
@pytest.mark.parametrize("options", [{}, {"per_draw": True}, {"kind": "vector"}], ids=str)
def test_t67_calibrating_lowers_the_validation_nll_and_a_temperature_leaves_the_accuracy(noisy, honest, options):
    validation = honest()
    before = dubio.predict(noisy, validation[0], seed=0)

    calibration = dubio.calibrate(noisy, validation, **options)

    after = dubio.predict(noisy, validation[0], seed=0)
    assert dubio.spec(noisy).calibration == calibration
    assert nll(noisy, validation) < nll(noisy, validation, decisions=False) - 0.1
    if not options:
        assert (after.label == before.label).all()


@pytest.mark.parametrize("per_draw", [False, True])
def test_t67_the_temperature_of_calibrated_logits_is_one_and_grows_with_their_factor(echo, honest, per_draw):
    validation = honest(20_000)
    with pytest.warns(dubio.DecisionWarning, match="does not lower the NLL .* so the temperature stays 1$"):
        one = dubio.calibrate(echo(1.0), validation, num_samples=1, per_draw=per_draw, batch_size=20_000)
    small, large = (
        dubio.calibrate(echo(factor), validation, num_samples=1, per_draw=per_draw, batch_size=20_000).temperature
        for factor in (0.2, 5.0)
    )

    assert one.temperature == 1.0
    assert small / 0.2 == pytest.approx(1.0, abs=0.03)
    assert large == pytest.approx(25.0 * small, rel=1e-3)


def test_t67_the_temperature_is_the_best_there_is(noisy, honest):
    validation = honest()
    best = dubio.calibrate(noisy, validation).temperature
    found = {}
    for factor in (0.97, 1.0, 1.03):
        dubio.convert.change_spec(noisy, calibration=dubio.Temperature(factor * best))
        found[factor] = nll(noisy, validation)

    assert found[1.0] < min(found[0.97], found[1.03])


def test_vector_scaling_finds_a_bias_that_was_planted(echo, honest):
    logits, labels = honest(20_000)
    planted = torch.tensor([1.0, -0.5, 0.0, -0.5])

    found = dubio.calibrate(echo(), (logits - planted, labels), kind="vector", num_samples=1, batch_size=20_000)

    bias = torch.tensor(found.bias)
    # Log-probabilities differ from logits by a number of each example, so scales must be equal for an exact answer.
    torch.testing.assert_close(bias - bias.mean(), planted - planted.mean(), atol=0.1, rtol=0.0)
    torch.testing.assert_close(torch.tensor(found.scale), torch.ones(4), atol=0.1, rtol=0.0)


def test_where_everything_is_right_the_temperature_stays_within_bounds_and_a_warning_says_why(echo):
    logits = torch.eye(4).repeat(30, 1)
    validation = logits, logits.argmax(dim=-1)
    with pytest.warns(dubio.DecisionWarning, match="every validation example is predicted rightly"):
        found = dubio.calibrate(echo(), validation, num_samples=1)
    assert 0.05 <= found.temperature < 0.06
    finite = dubio.calibrate(echo(), validation, num_samples=1, kind="vector")
    assert max(map(abs, (*finite.scale, *finite.bias))) < 100.0


def test_the_same_data_in_any_form_give_the_same_temperature(noisy, honest):
    logits, labels = honest(100)
    forms = [
        (logits, labels),
        Examples(logits, labels),
        DataLoader(TensorDataset(logits, labels), batch_size=30),
        [(logits[:40], labels[:40]), (logits[40:], labels[40:])],
    ]
    found = [dubio.calibrate(noisy, form, num_samples=5) for form in forms]
    for calibration in found:
        assert calibration.temperature == pytest.approx(found[0].temperature, rel=1e-5)
        assert calibration.fingerprint == fingerprint_of(logits, labels)


def test_calibrating_again_starts_from_the_network_and_drops_what_was_found_on_other_probabilities(noisy, honest):
    validation = honest()
    first = dubio.calibrate(noisy, validation)
    dubio.abstain(noisy, validation, coverage=0.5)
    dubio.conformal(noisy, validation)
    with pytest.warns(
        dubio.DecisionWarning,
        match="so the threshold and the sets of this network had to be removed; call dubio.abstain and dubio.conformal",
    ):
        again = dubio.calibrate(noisy, validation)
    assert again == first  # not the temperature of what was calibrated already
    assert dubio.spec(noisy).threshold is None
    assert dubio.spec(noisy).sets is None


@pytest.mark.slow
@pytest.mark.feature("calibrate keeps temperature 1 where a fitted one is not better on validation examples held out")
@pytest.mark.usefixtures("unchecked")
def test_a_temperature_that_does_not_help_on_folds_is_not_kept(echo, honest):
    """A network with the right probabilities: on 18 examples, fits alone range from 0.5 to 1.7."""
    new = honest(5000, seed=99)
    fitted = []
    for seed in range(12):
        model, few = echo(1.0), honest(18, seed=seed)
        with pytest.warns(dubio.DecisionWarning, match=r"so the temperature stays 1; use at least 100$"):
            assert dubio.calibrate(model, few, num_samples=1).temperature == 1.0, seed
        fitted.append(_fit_temperature(few[0].log_softmax(dim=-1).double(), few[1], False))
        torch.testing.assert_close(
            dubio.predict(model, new[0]).log_probs, dubio.predict(model, new[0], decisions=False).log_probs
        )
    assert min(fitted) < 0.6  # what was kept before: overconfident on new examples


def test_few_examples_that_support_a_temperature_keep_it_with_a_warning(echo, honest):
    with pytest.warns(
        dubio.DecisionWarning, match="60 validation examples are few to calibrate by, so temperature .* "
    ):
        kept = dubio.calibrate(echo(6.0), honest(60), num_samples=1)
    assert kept.temperature > 2.0
    dubio.calibrate(echo(6.0), honest(100), num_samples=1)  # enough: no warning
    with pytest.warns(dubio.DecisionWarning, match="so vector scaling .* use at least 20 for each class"):
        dubio.calibrate(echo(6.0), honest(60), num_samples=1, kind="vector")


def test_few_examples_that_are_all_right_do_not_sharpen_predictions(echo):
    logits = torch.eye(4).repeat(5, 1)
    with pytest.warns(dubio.DecisionWarning, match="does not lower the NLL .* so the temp"):
        found = dubio.calibrate(echo(), (logits, logits.argmax(dim=-1)), num_samples=1)
    assert found.temperature == 1.0
    with pytest.warns(dubio.DecisionWarning, match="fewer than 5 validation inputs cannot show that a calibration hel"):
        dubio.calibrate(echo(), (logits[:4], logits[:4].argmax(dim=-1)), num_samples=1)


def test_a_vector_scaling_that_does_not_help_on_folds_changes_nothing(echo, honest):
    with pytest.warns(dubio.DecisionWarning, match="so the predictions stay as they are$"):
        found = dubio.calibrate(echo(1.0), honest(500), kind="vector", num_samples=1)
    assert (found.scale, found.bias) == ((1.0,) * 4, (0.0,) * 4)


def test_folds_hold_whole_inputs():
    """All pixels of an image are in one fold: where they are alike, they are no independent support."""
    generator = torch.Generator().manual_seed(0)
    logits = 2.0 * torch.randn(12, 3, generator=generator)
    labels = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator).squeeze(-1)
    pixels = logits.log_softmax(-1)[:, None].expand(12, 400, 3).double()
    how = ("temperature", False)
    whole = _gain_on_folds(pixels, labels[:, None].expand(12, 400), *how)
    single = _gain_on_folds(logits.log_softmax(-1).double(), labels, *how)
    assert whole.error == pytest.approx(single.error, rel=0.5)
    assert whole.error > 10.0 * _gain_on_folds(pixels.flatten(0, 1), labels.repeat_interleave(400), *how).error


def test_segmentation_is_calibrated_over_all_pixels():
    net = nn.Conv2d(3, 3, 1, bias=False)
    nn.init.dirac_(net.weight)
    with torch.no_grad():
        net.weight.mul_(4.0)
    model = dubio.Deterministic().convert(net, dubio.Categorical(class_axis=1))
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 3, 8, 8, generator=generator)
    labels = torch.distributions.Categorical(logits=logits.movedim(1, -1)).sample()
    assert dubio.calibrate(model, (logits, labels), num_samples=1).temperature == pytest.approx(4.0, rel=0.15)
    with pytest.raises(ValueError, match=r"conformal needs one label for each input, .* got targets of shape \(40, 8,"):
        dubio.conformal(model, (logits, labels), num_samples=1)
    with pytest.raises(ValueError, match="abstain needs one label for each input"):
        dubio.abstain(model, (logits, labels), num_samples=1, coverage=0.5)


@pytest.mark.parametrize(
    "decide",
    [dubio.calibrate, lambda model, data: dubio.abstain(model, data, coverage=0.5), dubio.conformal],
    ids=["calibrate", "abstain", "conformal"],
)
@pytest.mark.feature("Data that a network was judged on are refused when something is decided about it")
def test_data_that_the_network_was_judged_on_are_refused_in_any_order(noisy, honest, decide):
    logits, labels = honest(300)
    dubio.convert.change_spec(noisy, evaluated=("another", fingerprint_of(logits, labels)))
    order = torch.randperm(300)
    with pytest.raises(ValueError, match=r"must be data that this network was not judged on, .* use validation data"):
        decide(noisy, (logits[order], labels[order]))
    assert dubio.spec(noisy).calibration is None
    decide(noisy, (logits[1:], labels[1:]))


@pytest.mark.parametrize(("likelihood", "named"), [(dubio.Gaussian(), "Gaussian"), (dubio.Bernoulli(), "Bernoulli")])
def test_networks_without_classes_are_refused_by_name(likelihood, named):
    model = dubio.Deterministic().convert(nn.Linear(3, 1), likelihood)
    data = torch.randn(20, 3), torch.zeros(20, 1)
    for name in ("calibrate", "conformal"):
        with pytest.raises(TypeError, match=rf"^{name} is for networks that tell classes apart, .* got {named}"):
            getattr(dubio, name)(model, data)
    with pytest.raises(ValueError, match="was not converted by a dubio method"):
        dubio.calibrate(nn.Linear(3, 2), data)


def test_bad_arguments_and_data_are_refused(noisy, honest, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    logits, labels = honest(20)
    with pytest.raises(ValueError, match="kind must be 'temperature' or 'vector', got 'matrix'"):
        dubio.calibrate(noisy, (logits, labels), kind="matrix")
    with pytest.raises(ValueError, match="per_draw goes with kind='temperature'"):
        dubio.calibrate(noisy, (logits, labels), kind="vector", per_draw=True)
    with pytest.raises(TypeError, match=r"must be whole numbers that name classes, got torch\.float32"):
        dubio.calibrate(noisy, (logits, labels.float()))
    with pytest.raises(ValueError, match="must name classes from 0 to 3, got 7"):
        dubio.calibrate(noisy, (logits, labels + 4 * (labels == 3)))
    with pytest.raises(ValueError, match=r"must have shape \(20,\) beside these predictions, got \(20, 1\)"):
        dubio.calibrate(noisy, (logits, labels[:, None]))
    with pytest.raises(ValueError, match="validation must come without weights"):
        dubio.calibrate(noisy, (logits, labels, torch.ones(20)))
    with pytest.raises(ValueError, match="validation must hold at least one example, got none"):
        dubio.calibrate(noisy, [])
