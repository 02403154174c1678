"""What a Bayesian layer keeps of the plain one it was made from, and what it refuses."""

import pytest
import torch
from torch import nn

import dubio
from dubio.nn.bayesian import BAYESIAN

PLAIN = {
    "linear": (lambda: nn.Linear(6, 4), (5, 6)),
    "linear over positions": (lambda: nn.Linear(6, 4), (5, 3, 6)),
    "linear, one row": (lambda: nn.Linear(6, 4), (6,)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3), (4, 2, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 3, stride=2), (4, 2, 7, 7)),
    "conv2d, one image": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 7, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (4, 2, 3, 3, 3)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(2, 3, 3), (4, 2, 7)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1), (4, 2, 5, 5)),
    "transposed 2d, one image": (lambda: nn.ConvTranspose2d(2, 4, 3, padding=1, groups=2), (2, 5, 5)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 3, 2, dilation=2), (4, 2, 3, 3, 3)),
}
ESTIMATORS = ["weight", "local", "flipout"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", PLAIN)
def test_with_noise_off_a_layer_is_its_plain_counterpart_bit_by_bit(kind, estimator):
    make, shape = PLAIN[kind]
    net, inputs = make(), torch.randn(shape)
    model = dubio.Bayes(estimator=estimator).convert(net)

    with dubio.noise_off():
        torch.testing.assert_close(model(inputs), net(inputs), rtol=0.0, atol=0.0)
    assert isinstance(model, type(net))
    assert type(model) is BAYESIAN[type(net)]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", PLAIN)
def test_a_layer_draws_anew_for_each_forward_and_keeps_shape_and_type(kind, estimator):
    make, shape = PLAIN[kind]
    net, inputs = make(), torch.randn(shape)
    model = dubio.Bayes(estimator=estimator).convert(net)

    first, second = model(inputs), model(inputs)

    assert first.shape == net(inputs).shape
    assert first.dtype == inputs.dtype
    assert (first != second).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("size", [(9, 10), (10, 9), (2, 3, 10, 10)], ids=str)
def test_a_transposed_convolution_takes_the_size_of_its_outputs(size, estimator):
    net, inputs = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1), torch.randn(2, 2, 5, 5)
    model = dubio.Bayes(estimator=estimator).convert(net)

    with dubio.noise_off():
        torch.testing.assert_close(model(inputs, size), net(inputs, size), rtol=0.0, atol=0.0)
    draws = dubio.sample(model, (inputs, list(size)), 3, seed=1, executor="vmap")
    looped = dubio.sample(model, {"input": inputs, "output_size": size}, 3, seed=1, executor="loop")
    assert draws.shape[1:] == net(inputs, size).shape
    torch.testing.assert_close(draws, looped, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_half_precision_layers_give_half_precision_outputs(estimator):
    model = dubio.Bayes(estimator=estimator).convert(nn.Linear(6, 4)).to(torch.bfloat16)

    outputs = dubio.sample(model, torch.randn(5, 6, dtype=torch.bfloat16), 3)

    assert outputs.dtype == torch.bfloat16
    assert outputs.isfinite().all()


def test_local_variance_does_not_overflow_in_half_precision():
    model = dubio.Bayes(bayesian_bias=False, init_std=0.001).convert(nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model.weight_posterior.mean.zero_()
    inputs = torch.full((1, 2), 1000.0, dtype=torch.float16)  # whose square float16 does not hold

    outputs = dubio.sample(model.half(), inputs, 2000, executor="vmap").float()

    # Two weights of deviation 0.001 at inputs 1000.
    assert outputs.std().item() == pytest.approx(2**0.5, rel=4 / 4000**0.5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_estimator_for_the_whole_network_overrides_that_of_its_layers(estimator):
    inputs = torch.randn(5, 6)
    own = dubio.Bayes(estimator=estimator).convert(nn.Linear(6, 4))
    other = dubio.Bayes(estimator="local" if estimator == "weight" else "weight").convert(nn.Linear(6, 4))
    other.load_state_dict(own.state_dict())

    with dubio._engine.Using(estimator=estimator):
        overridden = dubio.sample(other, inputs, 2, seed=1)

    torch.testing.assert_close(overridden, dubio.sample(own, inputs, 2, seed=1), rtol=0.0, atol=0.0)


def test_the_weight_of_a_layer_is_that_of_the_running_pass_and_outside_it_the_mean():
    class Peeking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.layer(x), torch.nn.functional.linear(x, self.layer.weight, self.layer.bias)

    model = dubio.Bayes(estimator="weight").convert(Peeking())
    layered, by_hand = dubio.sample(model, torch.randn(4, 3), 5)

    torch.testing.assert_close(layered, by_hand, rtol=0.0, atol=0.0)
    assert (layered[0] != layered[1]).all()
    assert model.layer.weight is model.layer.weight_posterior.mean
    assert model.layer.bias is model.layer.bias_posterior.mean


def test_a_deterministic_bias_stays_a_parameter_and_is_never_drawn():
    model = dubio.Bayes(estimator="weight", bayesian_bias=False).convert(nn.Linear(3, 2))

    outputs = dubio.sample(model, torch.zeros(4, 3), 5)

    assert isinstance(model.bias, nn.Parameter)
    torch.testing.assert_close(outputs, model.bias.expand(5, 4, 2), rtol=0.0, atol=0.0)


def test_a_layer_prints_as_the_plain_one_with_its_estimator():
    model = dubio.Bayes(estimator="flipout").convert(nn.Linear(3, 2))

    assert "in_features=3, out_features=2, bias=True, estimator='flipout'" in repr(model)
    assert "shape=(2, 3), prior=Normal(mean=0.0, std=1.0)" in repr(model)


@pytest.mark.parametrize("kind", BAYESIAN)
def test_a_layer_cannot_be_made_by_itself(kind):
    with pytest.raises(TypeError, match=rf"dubio.Bayes\(\).convert\(torch.nn.{kind.__name__}\(...\)\)"):
        BAYESIAN[kind]()


@pytest.mark.parametrize(
    ("net", "shape", "message"),
    [
        (nn.Linear(6, 4), (5, 7), r"must have 6 features on its last axis, got shape \(5, 7\)"),
        (nn.Linear(6, 4), (), r"must have 6 features on its last axis, got shape \(\)"),
        (nn.Conv1d(2, 3, 3), (4, 3, 7), r"a Conv1d must be \(batch, 2 channels, width\), got shape \(4, 3, 7\)"),
        (nn.Conv2d(2, 3, 3), (4, 2, 7), r"a Conv2d must be \(batch, 2 channels, height, width\), got"),
        (nn.Conv3d(2, 3, 3), (4, 2), r"a Conv3d must be \(batch, 2 channels, depth, height, width\), got"),
        (nn.ConvTranspose1d(2, 3, 3), (4, 3, 7), r"a ConvTranspose1d must be \(batch, 2 channels, width\), got"),
        (nn.ConvTranspose2d(2, 3, 3), (4, 2, 7), r"a ConvTranspose2d must be \(batch, 2 channels, height, width\)"),
    ],
)
def test_inputs_of_the_wrong_shape_are_refused(net, shape, message):
    # Without the check, a wrong shape could still broadcast against the noise.
    with pytest.raises(ValueError, match=message):
        dubio.Bayes().convert(net)(torch.zeros(shape))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_in_bf16_a_linear_layer_stays_in_it_whether_draws_are_mapped_or_not(estimator):
    model = dubio.Bayes(estimator=estimator).convert(nn.Sequential(nn.Linear(6, 4), nn.Identity()))
    seen = []
    model[1].register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))

    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(5, 6))
        dubio.sample(model, torch.randn(5, 6), 3)

    assert {*seen} == {torch.bfloat16}
    with torch.autocast("cpu", torch.bfloat16):  # what autocast leaves alone stays as it is
        assert model.double()(torch.randn(5, 6, dtype=torch.float64)).dtype == torch.float64
