"""``SESNN``: where the noise goes, its margin, its Gaussian classes, and what it refuses; T-55."""

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import dubio
from dubio.nn.noise_layers import EntropicNoise
from networks import mlp

ROWS = 7
INPUTS = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.arange(ROWS) % 3


def noises(model: nn.Module) -> list[EntropicNoise]:
    return [module for module in model.modules() if isinstance(module, EntropicNoise)]


def scale(noise: EntropicNoise, code: Tensor) -> Tensor:
    return F.softplus(F.linear(code, noise.rho.weight, noise.rho.bias)) + 1e-6


@pytest.mark.parametrize("at", ["input", "output"])
def test_t55_without_scale_the_network_is_the_deterministic_one(at: str) -> None:
    net = mlp(5, 8, 3)
    model = dubio.SESNN(at=at).convert(net)  # type: ignore[arg-type]
    expected = net(INPUTS)
    assert not torch.allclose(model(INPUTS), expected, atol=1e-2)
    for shift, atol in ((-10.0, 2e-3), (-100.0, 2e-5)):  # softplus leaves 1e-6
        for noise in noises(model):
            nn.init.zeros_(noise.rho.weight)
            nn.init.constant_(noise.rho.bias, shift)
        torch.testing.assert_close(dubio.sample(model, INPUTS, 4), expected.expand(4, -1, -1), rtol=0, atol=atol)


def test_noise_on_the_input_goes_through_the_classifier() -> None:
    net = mlp(5, 8, 3)
    model = dubio.SESNN().convert(net)
    (noise,) = noises(model)
    code = net[:-1](INPUTS)
    with dubio.frozen(seed=3):
        drawn = noise(torch.zeros(ROWS, 8), code)
        torch.testing.assert_close(model(INPUTS), net[-1](code + drawn))
    assert (noise.rho.in_features, noise.rho.out_features) == (8, 8)


def test_noise_on_the_output_is_added_to_it_with_a_scale_from_the_input() -> None:
    net = mlp(5, 8, 3)
    model = dubio.SESNN(at="output").convert(net)
    (noise,) = noises(model)
    with dubio.frozen(seed=3):
        drawn = noise(torch.zeros(ROWS, 3), net[:-1](INPUTS))
        torch.testing.assert_close(model(INPUTS), net(INPUTS) + drawn)
    assert (noise.rho.in_features, noise.rho.out_features) == (8, 3)


@pytest.mark.parametrize(("at", "margin"), [("input", 0.0), ("output", 0.0), ("input", -5.0)])
def test_the_margin_is_weighted_and_added_as_it_is(at: str, margin: float) -> None:
    net = mlp(5, 8, 3)
    model = dubio.SESNN(margin=margin, weight=0.7, at=at).convert(net)  # type: ignore[arg-type]
    (noise,) = noises(model)
    short = (margin - scale(noise, net[:-1](INPUTS)).log().mean(dim=1)).clamp_min(0.0)
    for num_data in (10, 1000):
        loss = dubio.spec(model).method.objective(num_data)(model, INPUTS, TARGETS, 2)
        torch.testing.assert_close(loss.terms["entropy_margin"], 0.7 * short.mean())
        torch.testing.assert_close(loss.total, loss.nll + loss.terms["entropy_margin"])
    assert (short.sum() > 0.0) == (margin == 0.0)


def test_margins_of_several_layers_add_up() -> None:
    net = mlp(5, 8, 3)
    model = dubio.SESNN(where=nn.Linear).convert(net)
    first, second = noises(model)
    with dubio.frozen(seed=1):
        code = F.relu(net[0](INPUTS + first(torch.zeros(ROWS, 5), INPUTS)))
    expected = 0.1 * sum((-scale(n, c).log().mean(dim=1)).relu().mean() for n, c in ((first, INPUTS), (second, code)))
    loss = dubio.ELBO(10)(model, INPUTS, TARGETS, 1, seed=1)
    torch.testing.assert_close(loss.terms["entropy_margin"], expected)


@pytest.mark.parametrize("kind", ["wasserstein", "kl"])
def test_gaussian_classes_give_minus_a_divergence_as_logit(kind: str) -> None:
    net = mlp(5, 8, 3).double()
    model = dubio.SESNN(classes=kind).convert(net, example=INPUTS.double())  # type: ignore[arg-type]
    head, code = model[-1].logits, net[:-1](INPUTS.double())
    std = F.softplus(head.rho(code)) + 1e-6
    class_std = F.softplus(head.class_rho) + 1e-6
    if kind == "kl":
        own = Normal(code.unsqueeze(1), std.unsqueeze(1))
        expected = -kl_divergence(own, Normal(head.class_mean, class_std)).sum(dim=-1)
    else:
        means = (code.unsqueeze(1) - head.class_mean).square().sum(dim=-1)
        expected = -means - (std.unsqueeze(1) - class_std).square().sum(dim=-1)
    torch.testing.assert_close(model(INPUTS.double()), expected)
    terms = dubio.ELBO(10)(model, INPUTS.double(), TARGETS).terms
    torch.testing.assert_close(terms["entropy_margin"], 0.1 * (-std.log().mean(dim=-1)).relu().mean())
    with pytest.raises(TypeError, match="likelihood must be a Categorical, since the head compares classes, got Gau"):
        dubio.SESNN(classes=kind).convert(net, dubio.Gaussian())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at must be 'input' with Gaussian classes in the classifier's place, got"):
        dubio.SESNN(classes=kind, at="output")  # type: ignore[arg-type]


def test_an_example_that_does_not_fit_is_found_before_a_new_head_is_trained() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        dubio.SESNN(classes="kl").convert(mlp(5, 8, 3), example=torch.randn(2, 4))


def test_one_head_has_one_place() -> None:
    with pytest.raises(ValueError, match="where must choose one linear layer to put the head in its place, got 0, 2"):
        dubio.SESNN(classes="kl", where=nn.Linear).convert(mlp(5, 8, 3))


def test_layers_that_are_not_linear_are_refused_unless_left_alone() -> None:
    net = nn.Sequential(nn.Conv1d(2, 3, 1), nn.Flatten(), nn.Linear(6, 3))
    with pytest.raises(TypeError, match="cannot convert: 0: Conv1d is no linear layer"):
        dubio.SESNN(where="*").convert(net)
    assert len(noises(dubio.SESNN(where="*").convert(net, strict=False))) == 1
    with pytest.raises(ValueError, match=r"chooses no layer that is linear; it could be 2$"):
        dubio.SESNN(where="0").convert(net, strict=False)
    with pytest.raises(ValueError, match="the network has no linear layer, which its classifier must be"):
        dubio.SESNN().convert(nn.Conv1d(2, 3, 1))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"margin": float("inf")}, "margin must be finite, got inf"),
        ({"weight": -0.1}, "weight must be finite and at least 0, got -0.1"),
        ({"weight": float("nan")}, "weight must be finite and at least 0, got nan"),
        ({"at": "middle"}, "at must be 'input' or 'output', got 'middle'"),
        ({"classes": "soft"}, "classes must be 'linear', 'wasserstein' or 'kl', got 'soft'"),
    ],
)
def test_fields_are_refused_by_name_rule_and_value(
    field: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    with pytest.raises(ValueError, match=message):
        dubio.SESNN(**field)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="where must be a glob, a module type, a callable, or a tuple of those, got 3"):
        dubio.SESNN(where=3)  # type: ignore[arg-type]
