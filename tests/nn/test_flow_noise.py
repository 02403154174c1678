"""Noise that follows a flow: its divergence and entropy against closed forms (T-39), positions, and precision."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import AffineTransform, Normal as TorchNormal, TransformedDistribution, kl_divergence

from dubio._engine.passes import Pass
from dubio._engine.settings import STATE, Settings
from dubio.flows import Affine, Block, FlowBlock, GlowStep, InvertibleConv, NormalAffine, NormalInvConv, NormalPlanar1d
from dubio.nn.flow import FlowNoise
from dubio.priors import Normal

PRIOR = Normal(1.0, 0.5)
AFFINE = NormalAffine()
CHANNELS, ROWS = 3, 4000
BLOCKS = {
    "affine": AFFINE,
    "planar": NormalPlanar1d(),
    "invertible convolutions": NormalInvConv(),
    "glow": Block((GlowStep(hidden=4),)),
    "full": Block((Affine(), InvertibleConv("full"))),
}


def flow(block: FlowBlock = AFFINE, base: Normal = PRIOR, axis: int = -1, sum_positions: bool = False) -> FlowNoise:
    return FlowNoise(CHANNELS, axis, PRIOR, block=block, base=base, sum_positions=sum_positions)


def affine(shift: Tensor, log_scale: Tensor) -> FlowNoise:
    layer = flow()
    with torch.no_grad():
        layer.steps[0].shift.copy_(shift)
        layer.steps[0].log_scale.copy_(log_scale)
    return layer


def shaken(layer: FlowNoise) -> FlowNoise:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def drawn(layer: FlowNoise, dtype: torch.dtype = torch.float64, rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    """Factors, ``log q - log p`` and ``log q``."""
    with torch.no_grad():
        value, ratio, log_prob = layer.draw_rows(
            Pass(Settings()), (rows, CHANNELS), dtype, torch.device("cpu"), (True, True)
        )
    assert ratio is not None
    assert log_prob is not None
    return value, ratio, log_prob


def standard_error(values: Tensor) -> Tensor:
    return values.std() / len(values) ** 0.5


def collected(layer: FlowNoise, run: Pass, inputs: Tensor) -> list[Tensor]:
    """What a layer hands to a pass."""
    STATE.own.current = run
    try:
        layer(inputs)
    finally:
        STATE.own.current = None
    return [run.terms[name][0] for name in ("divergence", "entropy")]


@pytest.mark.parametrize("seed", range(4))
def test_t39_the_divergence_of_affine_flows_is_that_of_their_gaussian(seed: int) -> None:
    torch.manual_seed(seed)
    shift, log_scale = 0.5 * torch.randn(CHANNELS), 0.5 * torch.randn(CHANNELS)
    ratio = drawn(affine(shift, log_scale).double())[1]
    posterior = TorchNormal(shift + log_scale.exp() * 1.0, 0.5 * log_scale.exp())
    exact = kl_divergence(posterior, TorchNormal(1.0, 0.5)).sum()
    assert (ratio.mean() - exact).abs() < 4.0 * standard_error(ratio)
    assert exact > 0.1


def test_t39_the_divergence_of_affine_flows_begins_at_zero() -> None:
    assert drawn(flow(), torch.float32)[1].eq(0.0).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block", BLOCKS)
def test_t39_no_divergence_is_below_zero(block: str, seed: int) -> None:
    torch.manual_seed(seed)
    ratio = drawn(shaken(flow(BLOCKS[block])).double())[1]
    assert ratio.mean() > -4.0 * standard_error(ratio)
    assert ratio.std() > 0.01


def test_the_density_is_that_of_torch_distributions() -> None:
    shift, log_scale = 0.5 * torch.randn(CHANNELS).double(), 0.5 * torch.randn(CHANNELS).double()
    layer = affine(shift.float(), log_scale.float()).double()
    shift, log_scale = layer.steps[0].shift.detach(), layer.steps[0].log_scale.detach()
    base = TorchNormal(torch.ones(CHANNELS).double(), 0.5)
    value, ratio, log_prob = drawn(layer)
    log_q = TransformedDistribution(base, [AffineTransform(shift, log_scale.exp())]).log_prob(value).sum(dim=-1)
    torch.testing.assert_close(log_prob, log_q)
    torch.testing.assert_close(ratio, log_q - TorchNormal(1.0, 0.5).log_prob(value).sum(dim=-1))


def test_the_prior_judges_what_the_flow_gives_and_the_base_may_differ() -> None:
    layer = flow(base=Normal(0.2, 0.1))
    ratio = drawn(layer.double())[1]
    exact = CHANNELS * kl_divergence(TorchNormal(0.2, 0.1), TorchNormal(1.0, 0.5))
    assert (ratio.mean() - exact).abs() < 4.0 * standard_error(ratio)


def test_the_entropy_of_an_affine_flow_is_that_of_its_gaussian() -> None:
    log_scale = torch.tensor([0.3, -0.5, 1.0])
    log_prob = drawn(affine(torch.zeros(CHANNELS), log_scale).double())[2]
    exact = TorchNormal(0.0, 0.5 * log_scale.exp()).entropy().sum()
    assert (-log_prob.mean() - exact).abs() < 4.0 * standard_error(log_prob)


def test_volume_that_a_mixing_step_keeps_adds_nothing_to_the_entropy() -> None:
    log_prob = drawn(flow(Block((InvertibleConv(),))).double())[2]
    exact = CHANNELS * (0.5 * math.log(2 * math.pi * math.e) + math.log(0.5))
    assert (-log_prob.mean() - exact).abs() < 4.0 * standard_error(log_prob)


@pytest.mark.parametrize(
    ("axis", "shape"), [(-3, (6, CHANNELS, 4, 5)), (-2, (6, CHANNELS, 20)), (-1, (6, 20, CHANNELS))]
)
def test_the_sum_over_positions_is_their_number_times_the_average(axis: int, shape: tuple[int, ...]) -> None:
    layer = shaken(flow(NormalInvConv(), axis=axis))
    layer.dubio_noise_key = 1
    found = []
    for sum_positions in (False, True):
        layer.sum_positions = sum_positions
        run = Pass(Settings("frozen", torch.tensor(3)), collecting=("divergence", "entropy"))
        found.append(collected(layer, run, torch.ones(shape)))
    for average, total in zip(*found, strict=True):
        torch.testing.assert_close(total, 20 * average)


def test_a_sum_over_positions_needs_inputs() -> None:
    layer = flow(sum_positions=True)
    with pytest.raises(ValueError, match=r"inputs must be given where positions are summed \(spatial='sum'\)"):
        layer.draw_divergence(Pass(Settings()))


def test_nothing_is_weighed_that_nobody_asked_for() -> None:
    value, *densities = flow().draw_rows(
        Pass(Settings()), (5, CHANNELS), torch.float32, torch.device("cpu"), (False, False)
    )
    assert value.shape == (5, CHANNELS)
    assert densities == [None, None]


@pytest.mark.parametrize("block", BLOCKS)
def test_half_precision_parameters_flow_in_single_precision(block: str) -> None:
    rounded = shaken(flow(BLOCKS[block])).to(torch.bfloat16)
    exact = flow(BLOCKS[block])
    exact.load_state_dict(rounded.state_dict())
    states: list[Any] = []
    for layer in (rounded, exact):
        torch.manual_seed(3)
        states.append(drawn(layer, torch.float32, 16))
    for found, expected in zip(*states, strict=True):
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)


@pytest.mark.parametrize("block", BLOCKS)
def test_autocast_does_not_reach_the_flow(block: str) -> None:
    layer = shaken(flow(BLOCKS[block]))
    layer.dubio_noise_key = 1
    found = []
    for enabled in (False, True):
        run = Pass(Settings("frozen", torch.tensor(3)), collecting=("divergence", "entropy"))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            asked = layer.draw_divergence(Pass(Settings("frozen", torch.tensor(3))))
            found.append((*collected(layer, run, torch.ones(5, CHANNELS)), asked))
    assert all(torch.equal(plain, cast) for plain, cast in zip(*found, strict=True))


def test_there_is_no_closed_form() -> None:
    layer = flow()
    assert not layer.has_closed_divergence
    assert not layer.has_closed_entropy
    with pytest.raises(ValueError, match="the divergence of a FlowNoise has no closed form"):
        layer.closed_divergence()
    with pytest.raises(ValueError, match="the entropy of a FlowNoise has no closed form"):
        layer.closed_entropy()


def test_couplings_need_two_channels() -> None:
    with pytest.raises(ValueError, match="AffineCoupling needs at least 2 channels, got 1; leave it out of this layer"):
        FlowNoise(1, -1, PRIOR, block=BLOCKS["glow"], base=PRIOR, sum_positions=False)


def test_a_layer_says_what_it_is() -> None:
    assert flow().describe() == "flow NormalAffine(), prior Normal(mean=1.0, std=0.5)"
