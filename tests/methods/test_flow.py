"""``Flow``: which block goes where, its two groups, its entropy (T-45), its positions, and what it refuses."""

import math

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal as TorchNormal

import dubio
from dubio.flows import Block, GlowStep, NormalAffine, NormalInvConv, NormalPlanar1d
from dubio.nn.flow import FlowNoise
from dubio.priors import Normal
from networks import mlp

AFFINE, PLANAR, MIXING = NormalAffine(), NormalPlanar1d(), NormalInvConv()


def noises(model: nn.Module) -> list[FlowNoise]:
    return [module for module in model.modules() if isinstance(module, FlowNoise)]


def shaken(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for noise in noises(model):
            for parameter in noise.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def convolutions() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(2))


def test_blocks_of_lenet_are_those_of_the_paper() -> None:
    model = dubio.Flow().convert(dubio.models.build("lenet:1x28x28-10"))
    assert [noise.block for noise in noises(model)] == [AFFINE, MIXING, AFFINE, PLANAR, AFFINE]
    assert [(noise.channels, noise.axis) for noise in noises(model)] == [
        (1, -3), (6, -3), (256, -1), (120, -1), (84, -1)
    ]  # fmt: skip


def test_one_block_is_for_all_layers_and_a_tuple_for_each() -> None:
    net = mlp(5, 4, 4, 3)
    assert [noise.block for noise in noises(dubio.Flow(blocks=PLANAR).convert(net))] == [PLANAR] * 3
    each = (PLANAR, AFFINE, Block((GlowStep(),)))
    assert tuple(noise.block for noise in noises(dubio.Flow(blocks=each).convert(net))) == each
    assert [noise.block for noise in noises(dubio.Flow(blocks=(PLANAR,), where="2").convert(net))] == [PLANAR]


def test_priors_and_bases_reach_every_layer() -> None:
    for noise in noises(dubio.Flow(prior=Normal(1.0, 0.2)).convert(mlp(5, 4, 3))):
        assert noise.prior == noise.base == Normal(1.0, 0.2)
    for noise in noises(dubio.Flow(base=Normal(0.9, 0.1)).convert(mlp(5, 4, 3))):
        assert (noise.prior, noise.base) == (Normal(1.0, 0.5), Normal(0.9, 0.1))


def test_the_flow_is_trained_ten_times_as_fast_as_the_weights() -> None:
    assert dubio.Flow().recipe.noise_ratio == 10.0
    assert dubio.Flow(beta=0.5, gamma=0.2).objective(10) == dubio.ELBO(10, beta=0.5, gamma=0.2)


def test_t39_a_network_without_flow_begins_at_its_prior() -> None:
    model = dubio.Flow(blocks=AFFINE).convert(convolutions())
    assert dubio.divergence(model) == dubio.divergence(model, inputs=torch.randn(3, 2, 4, 4)) == 0.0


def test_t45_entropy_adds_its_weight_to_log_q_alone() -> None:
    beta, gamma, num_data = 0.7, 0.3, 20
    model = shaken(dubio.Flow(blocks=AFFINE, beta=beta, gamma=gamma).convert(nn.Linear(4, 3))).double()
    inputs, targets = torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    loss = dubio.spec(model).method.objective(num_data)(model, inputs, targets, 1, seed=3)

    noise = noises(model)[0]
    with dubio.frozen(seed=3), torch.no_grad():
        factors: Tensor = noise(torch.ones(6, 4).double())
    step = noise.steps[0]
    log_q = TorchNormal(step.shift + step.log_scale.exp(), 0.5 * step.log_scale.exp()).log_prob(factors).sum(dim=1)
    log_p = TorchNormal(1.0, 0.5).log_prob(factors).sum(dim=1)
    outputs = nn.functional.linear(inputs * factors, model.weight, model.bias)
    nll = nn.functional.cross_entropy(outputs, targets)
    expected = nll + ((beta + gamma) * log_q.mean() - beta * log_p.mean()) / num_data
    torch.testing.assert_close(loss.total, expected)
    torch.testing.assert_close(loss.terms["entropy"], -log_q.mean())


@pytest.mark.parametrize(
    "method",
    [
        dubio.Flow(gamma=0.3),
        dubio.Flow(spatial="sum", gamma=0.3),
        dubio.InputNoise(components=2),
        dubio.InputNoise(),
        dubio.Bayes(),
    ],
    ids=["flow", "summed", "mixture", "Gaussian", "weights"],
)
def test_t45_entropy_is_rewarded_whatever_the_posterior(method: dubio.Flow | dubio.InputNoise | dubio.Bayes) -> None:
    model, inputs, targets = method.convert(mlp(4, 3)), torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    plain, rewarded = (dubio.ELBO(20, beta=0.7, gamma=gamma)(model, inputs, targets, 2, seed=3) for gamma in (0.0, 0.3))
    torch.testing.assert_close(rewarded.total, plain.total - 0.3 * rewarded.terms["entropy"] / 20)
    assert "entropy" not in plain.terms
    assert rewarded.terms["entropy"].abs() > 0.1


def test_entropy_is_refused_where_there_is_no_posterior() -> None:
    model = dubio.Dropout().convert(mlp(4, 3))
    with pytest.raises(ValueError, match=r"gamma must be 0 for a network without a posterior, got 0\.3"):
        dubio.ELBO(20, gamma=0.3)(model, torch.randn(2, 4), torch.tensor([0, 1]))


def test_a_sum_over_positions_is_their_number_times_the_average_under_the_same_draws() -> None:
    torch.manual_seed(0)
    net, inputs = convolutions(), torch.randn(5, 2, 4, 6)
    average, total = (dubio.Flow(blocks=AFFINE, spatial=spatial).convert(net) for spatial in ("average", "sum"))  # type: ignore[arg-type]
    total.load_state_dict(shaken(average).state_dict())
    expected = 24 * dubio.divergence(average, 3, inputs=inputs, seed=1)
    torch.testing.assert_close(dubio.divergence(total, 3, inputs=inputs, seed=1), expected)
    assert expected > 1.0


def test_a_sum_over_positions_is_refused_without_inputs_and_has_them_in_the_objective() -> None:
    model = shaken(dubio.Flow(spatial="sum").convert(convolutions()))
    with pytest.raises(ValueError, match=r"inputs must be given where positions are summed \(spatial='sum'\)"):
        dubio.divergence(model)
    targets = torch.zeros(3, 16, dtype=torch.int64)
    likelihood = dubio.Categorical(class_axis=1)
    model = shaken(dubio.Flow(spatial="sum").convert(convolutions(), likelihood))
    loss = dubio.ELBO(10)(model, torch.randn(3, 2, 4, 4), targets[:, :16])
    assert loss.terms["divergence"] > 0.0


def test_the_divergence_is_the_same_with_inputs_and_without() -> None:
    model, inputs = shaken(dubio.Flow().convert(convolutions())), torch.randn(8, 2, 4, 4)
    with torch.no_grad():
        found = torch.stack([dubio.divergence(model, inputs=inputs) for _ in range(30)])
        other = torch.stack([dubio.divergence(model) for _ in range(30)])
    assert (found.mean() - other.mean()).abs() < 4.0 * ((found.var() + other.var()) / 30).sqrt()


def test_t43_noise_off_means_ones_and_not_what_the_flow_makes_of_them() -> None:
    net = mlp(4, 3)
    model = dubio.Flow(blocks=AFFINE).convert(net)
    with torch.no_grad():
        model[0].input_noise.steps[0].shift.fill_(5.0)
    inputs = torch.randn(2, 4)
    with dubio.noise_off():
        assert torch.equal(model(inputs), net(inputs))
    assert not torch.allclose(dubio.sample(model, inputs, 20).mean(dim=0), net(inputs), atol=0.1)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: dubio.Flow(blocks=(PLANAR,)).convert(mlp(5, 4, 3)),
            ValueError,
            r"blocks must be one for all layers or one for each of 0, 2 \(2\), got 1",
        ),
        (
            lambda: dubio.Flow(blocks=Block((GlowStep(),))).convert(nn.Conv2d(1, 2, 3)),
            ValueError,
            "AffineCoupling needs at least 2 channels, got 1; leave it out of this layer's block, or use Affine or",
        ),
        (
            lambda: dubio.Flow(blocks="planar"),
            TypeError,
            r"blocks must be NormalAffine\(\), NormalPlanar1d\(\), NormalInvConv\(\) or Block\(steps\) .* got 'planar'",
        ),
        (lambda: dubio.Flow(blocks=(AFFINE, GlowStep())), TypeError, r"or a tuple of those, got GlowStep\("),
        (lambda: dubio.Flow(prior=dubio.ScaleMixture()), TypeError, "prior of factors must be a Normal, got ScaleMix"),
        (lambda: dubio.Flow(base=1.0), TypeError, r"base of factors must be a Normal, got 1\.0"),
        (lambda: dubio.Flow(spatial="mean"), ValueError, "spatial must be 'average' or 'sum', got 'mean'"),
        (lambda: dubio.Flow(beta=-1.0), ValueError, r"beta must be finite and at least 0, got -1\.0"),
        (lambda: dubio.Flow(gamma=math.inf), ValueError, "gamma must be finite and at least 0, got inf"),
        (lambda: dubio.Flow(where=3), TypeError, "where must be a glob, a module type, a callable, or a tuple of"),
    ],
)
def test_refusals_name_the_argument_the_rule_and_the_value(
    make: object, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    with pytest.raises(error, match=message):
        make()  # type: ignore[operator]


def test_freezing_keeps_running_statistics() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    model = dubio.Flow(freeze_deterministic=True).convert(net)
    data = 5.0 + torch.randn(64, 5), torch.randint(3, (64,))
    dubio.fit(model, data, epochs=2, progress=False)
    net.eval()
    with dubio.noise_off():
        assert torch.equal(model(data[0]), net(data[0]))
