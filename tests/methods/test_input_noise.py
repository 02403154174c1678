"""``InputNoise``: its values reach the layers, its divergence is asked with and without inputs, and what it refuses."""

import math
from pathlib import Path

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.nn.noise_layers import GaussianInputNoise
from dubio.nn.sources import closed_entropy, noise_parameters
from dubio.priors import Normal
from networks import Residual, mlp


def noises(model: nn.Module) -> list[GaussianInputNoise]:
    return [module for module in model.modules() if isinstance(module, GaussianInputNoise)]


def spread(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and its standard error."""
    stacked = torch.stack(values)
    return stacked.mean(), stacked.std() / len(values) ** 0.5


def test_a_methods_values_reach_every_layer() -> None:
    method = dubio.InputNoise(Normal(1.0, 0.2), components=3, kl="averaged", per="position", init_std=0.1)
    layers = noises(method.convert(Residual()))
    assert [(layer.channels, layer.axis) for layer in layers] == [(3, -3), (6, -3), (6, -1)]
    for layer in layers:
        assert (layer.prior, layer.kl, layer.per_position) == (Normal(1.0, 0.2), "averaged", True)
        assert layer.means.shape == layer.rho.shape == (3, layer.channels)
        torch.testing.assert_close(nn.functional.softplus(layer.rho), torch.full_like(layer.rho, 0.1))


def test_means_begin_at_one_and_those_of_a_mixture_around_it() -> None:
    assert all(layer.means.eq(1.0).all() for layer in noises(dubio.InputNoise().convert(mlp(5, 4, 3))))
    for components, given, expected in ((4, None, 0.5), (4, 0.1, 0.1), (1, 0.3, 0.3)):
        method = dubio.InputNoise(components=components, init_spread=given)
        means = noises(method.convert(nn.Linear(500, 2)))[0].means
        assert means.std().item() == pytest.approx(expected, rel=0.1)
        assert means.mean().item() == pytest.approx(1.0, abs=0.1)
    assert noises(dubio.InputNoise(components=3, init_spread=0.0).convert(nn.Linear(5, 2)))[0].means.eq(1.0).all()


def test_the_divergence_of_gaussians_is_exact_with_inputs_and_without() -> None:
    model, inputs = dubio.InputNoise(init_spread=0.3).convert(Residual()), torch.randn(4, 3, 8, 8)
    exact = sum(layer.closed_divergence() for layer in noises(model))
    torch.testing.assert_close(dubio.divergence(model), exact)
    torch.testing.assert_close(dubio.divergence(model, inputs=inputs), exact)


@pytest.mark.parametrize("per", ["channel", "position"])
def test_the_estimated_divergence_is_the_same_with_inputs_and_without(per: str) -> None:
    model = dubio.InputNoise(components=3, per=per).convert(mlp(5, 4, 3))  # type: ignore[arg-type]
    inputs = torch.randn(128, 5)
    with torch.no_grad():
        mean, error = spread([dubio.divergence(model, inputs=inputs) for _ in range(30)])
        other, other_error = spread([dubio.divergence(model) for _ in range(30)])
    assert error > 0.0
    assert (mean - other).abs() < 4.0 * (error**2 + other_error**2).sqrt()


def test_a_frozen_divergence_repeats_and_many_draws_are_their_mean() -> None:
    model, inputs = dubio.InputNoise(components=2).convert(mlp(5, 4, 3)), torch.randn(4, 5)
    for given in (None, inputs):
        first = dubio.divergence(model, 3, inputs=given, seed=1)
        assert torch.equal(first, dubio.divergence(model, 3, inputs=given, seed=1))
        assert not torch.equal(first, dubio.divergence(model, 3, inputs=given, seed=2))
    with dubio.noise_off():
        assert dubio.divergence(model, inputs=inputs) > 0.0


def test_the_objective_weighs_the_divergence_of_its_own_draws() -> None:
    model, inputs = dubio.InputNoise(components=2, beta=0.5).convert(mlp(5, 4, 3)), torch.randn(6, 5)
    targets = torch.zeros(6, dtype=torch.int64)
    objective = dubio.spec(model).method.objective(20)
    assert objective == dubio.ELBO(20, beta=0.5)
    loss = objective(model, inputs, targets, 3, seed=4)
    torch.testing.assert_close(loss.terms["divergence"], dubio.divergence(model, 3, inputs=inputs, seed=4))
    torch.testing.assert_close(loss.total, loss.nll + 0.5 * loss.terms["divergence"] / 20)


def test_a_layer_that_is_called_twice_draws_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) - self.layer(x)

    for method in (dubio.InputNoise(), dubio.InputNoise(components=2), dubio.Flow(), dubio.Dropout()):
        model = method.convert(Twice())
        for executor in ("vmap", "loop"):
            assert dubio.sample(model, torch.ones(4, 5), 2, seed=1, executor=executor).abs().max() > 1e-3


def test_the_closed_entropy_is_that_of_torch_distributions() -> None:
    model = dubio.InputNoise(init_std=0.2).convert(mlp(5, 4, 3))
    expected = 9 * torch.distributions.Normal(1.0, 0.2).entropy()
    loss = dubio.ELBO(10, gamma=0.5)(model, torch.randn(4, 5), torch.zeros(4, dtype=torch.int64), 3)
    torch.testing.assert_close(loss.terms["entropy"], expected)
    bayes = dubio.Bayes(init_std=0.2).convert(mlp(5, 4, 3))
    count = sum(p.numel() for p in mlp(5, 4, 3).parameters())
    torch.testing.assert_close(closed_entropy(bayes), count * torch.distributions.Normal(0.0, 0.2).entropy())
    assert closed_entropy(dubio.Dropout().convert(mlp(5, 4, 3))) is None


@pytest.mark.parametrize("method", [dubio.InputNoise, dubio.Flow])
def test_freezing_trains_the_noise_alone(method: type[dubio.InputNoise | dubio.Flow]) -> None:
    torch.manual_seed(0)
    net = mlp(5, 4, 3)
    model = method(freeze_deterministic=True).convert(net)
    assert all(parameter.requires_grad for parameter in net.parameters())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert {id(p) for p in trained} == {id(p) for p in noise_parameters(model)}
    dubio.fit(model, (torch.randn(32, 5), torch.arange(32) % 3), epochs=1, progress=False)
    for name, parameter in net.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)
    with dubio.noise_off():
        inputs = torch.randn(4, 5)
        assert torch.equal(model(inputs), net(inputs))


@pytest.mark.parametrize("method", [dubio.InputNoise, dubio.Flow])
def test_a_file_keeps_what_is_frozen(method: type[dubio.InputNoise | dubio.Flow], tmp_path: Path) -> None:
    model = method(freeze_deterministic=True).convert(mlp(5, 4, 3))
    dubio.save(model, tmp_path / "model.safetensors")
    loaded = dubio.load(tmp_path / "model.safetensors", mlp(5, 4, 3))
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]


def test_one_noisy_layer_is_said_in_the_singular() -> None:
    assert str(dubio.describe(dubio.InputNoise().convert(mlp(5, 3)))).count("1 layer has noise on activations") == 1
    assert "2 layers have noise on activations" in str(dubio.describe(dubio.InputNoise().convert(mlp(5, 4, 3))))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: dubio.InputNoise(dubio.ScaleMixture()), TypeError, r"prior of factors must be a Normal, got ScaleMix"),
        (lambda: dubio.InputNoise(components=0), ValueError, "components must be a whole number of at least 1, got 0"),
        (lambda: dubio.InputNoise(components=2.0), ValueError, r"components must be a whole number .* got 2\.0"),
        (lambda: dubio.InputNoise(kl="exact"), ValueError, "kl must be 'mc', 'bound' or 'averaged', got 'exact'"),
        (lambda: dubio.InputNoise(per="pixel"), ValueError, "per must be 'channel' or 'position', got 'pixel'"),
        (lambda: dubio.InputNoise(init_std=0.0), ValueError, r"init_std must be positive and finite, got 0\.0"),
        (lambda: dubio.InputNoise(init_spread=-1.0), ValueError, r"init_spread must be finite and at least 0, got -1"),
        (lambda: dubio.InputNoise(beta=math.nan), ValueError, "beta must be finite and at least 0, got nan"),
        (
            lambda: dubio.InputNoise(where=3),
            TypeError,
            "where must be a glob, a module type, a callable, or a tuple of",
        ),
        (
            lambda: dubio.InputNoise(where="3").convert(mlp(5, 4, 3)),
            ValueError,
            "nothing to convert: where='3' chooses no layer, and noise goes before .*; it could be 0, 2",
        ),
    ],
)
def test_refusals_name_the_argument_the_rule_and_the_value(
    make: object, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    with pytest.raises(error, match=message):
        make()  # type: ignore[operator]
