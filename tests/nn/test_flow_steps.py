"""Steps of a flow as layers: one battery over all of them, how they begin, and what gets a gradient."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from dubio import flows
from dubio.nn.flow import FlowStep, FullMixingStep, LuMixingStep, make_step, run_steps

STEPS = {
    "Affine": flows.Affine(),
    "Planar": flows.Planar(),
    "Planar shifted": flows.Planar(shifted=True),
    "AffineCoupling": flows.AffineCoupling(hidden=4),
    "InvertibleConv lu": flows.InvertibleConv("lu"),
    "InvertibleConv full": flows.InvertibleConv("full"),
    "Actnorm": flows.Actnorm(),
}


def moved(step: flows.Step, channels: int) -> FlowStep:
    """A step in double precision, some way from where it begins."""
    layer = make_step(step, channels).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def noise(*shape: int) -> Tensor:
    return 1.0 + 0.5 * torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("name", STEPS)
def test_t36_log_determinants_are_those_of_the_jacobian_and_steps_are_undone(name: str, channels: int) -> None:
    if name == "AffineCoupling" and channels == 1:
        return  # refused; see below
    layer, z = moved(STEPS[name], channels), noise(2, 3, channels)

    image, logdet = layer(z)

    assert logdet.shape == (2, 3)
    rows = jacobian(lambda z: layer(z)[0], z[0, 0])
    torch.testing.assert_close(logdet[0, 0], torch.linalg.slogdet(rows).logabsdet, rtol=1e-8, atol=1e-8)
    whole = jacobian(lambda z: layer(z)[0], z).reshape(z.numel(), z.numel())
    torch.testing.assert_close(logdet.sum(), torch.linalg.slogdet(whole).logabsdet, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(layer.inverse(image), z, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["Affine", "AffineCoupling", "Actnorm"])
def test_t42_affine_coupling_and_actnorm_begin_as_the_identity(name: str) -> None:
    layer, z = make_step(STEPS[name], 5), noise(4, 5).float()

    image, logdet = layer(z)

    assert torch.equal(image, z)
    assert torch.equal(logdet, torch.zeros(4))
    assert torch.equal(layer.inverse(z), z)


def test_t42_coupling_keeps_the_first_half_and_moves_the_second_by_it() -> None:
    for channels, kept in ((2, 1), (5, 2), (6, 3)):
        layer, z = moved(flows.AffineCoupling(), channels), noise(4, channels)
        image = layer(z)[0]
        assert torch.equal(image[:, :kept], z[:, :kept])
        assert (image[:, kept:] != z[:, kept:]).all()
        other = torch.cat((z[:, :kept] + 1.0, z[:, kept:]), dim=-1)
        assert (layer(other)[0][:, kept:] != image[:, kept:]).all()


@pytest.mark.parametrize("step", [flows.InvertibleConv("lu"), flows.InvertibleConv("full")], ids=str)
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_a_mixing_step_begins_as_a_rotation(step: flows.InvertibleConv, channels: int) -> None:
    layer, z = make_step(step, channels), noise(4, channels).float()

    image, logdet = layer(z)

    torch.testing.assert_close(image.norm(dim=-1), z.norm(dim=-1))
    torch.testing.assert_close(logdet, torch.zeros(4), rtol=0.0, atol=1e-5)
    if channels > 1:
        assert (image - make_step(step, channels)(z)[0]).abs().max() > 0.01  # another layer, another rotation


def test_t41_both_parametrisations_begin_with_the_same_matrix_under_the_same_seed() -> None:
    z = noise(4, 6)
    torch.manual_seed(3)
    full = make_step(flows.InvertibleConv("full"), 6).double()
    torch.manual_seed(3)
    lu = make_step(flows.InvertibleConv("lu"), 6).double()

    assert isinstance(full, FullMixingStep)
    assert isinstance(lu, LuMixingStep)
    torch.testing.assert_close(lu(z), full(z), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lu.matrix(torch.float64)[0], full.weight, rtol=1e-6, atol=1e-6)


def test_neighbouring_matrices_are_multiplied_first_and_nothing_changes() -> None:
    steps = [make_step(step, 4).double() for step in flows.NormalInvConv().steps]
    z = noise(3, 5, 4)
    expected, total = z, torch.zeros(3, 5, dtype=torch.float64)
    for step in steps:
        expected, logdet = step(expected)
        total = total + logdet

    image, logdets = run_steps(steps, z)

    assert len(logdets) == len(steps) - 2
    torch.testing.assert_close(image, expected)
    torch.testing.assert_close(sum(logdets[1:], logdets[0]), total)


def test_t41_permutation_and_signs_are_not_trained_and_the_determinant_keeps_its_sign() -> None:
    layer = make_step(flows.InvertibleConv("lu"), 5)
    assert {name for name, _ in layer.named_parameters()} == {"factors"}
    assert {name for name, _ in layer.named_buffers()} == {"permutation", "sign"}
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}

    def determinant() -> float:
        return torch.linalg.det(jacobian(lambda z: layer(z)[0], torch.ones(5))).item()

    first = determinant()
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.1)
    target = -torch.eye(5)[[1, 0, 2, 3, 4]] * (1.0 if first > 0 else -1.0)  # of the other sign
    for _ in range(30):
        z = torch.randn(32, 5)
        optimiser.zero_grad()
        (layer(z)[0] - z @ target.T).square().mean().backward()
        optimiser.step()
        assert determinant() * first > 0.0
    assert abs(determinant() - first) > 0.1
    assert all(torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("name", STEPS)
def test_every_parameter_has_elements_and_gets_a_finite_gradient(name: str, channels: int) -> None:
    if name == "AffineCoupling" and channels == 1:
        return
    layer, z = make_step(STEPS[name], channels), noise(50, channels).float()

    def gradients() -> dict[str, Tensor]:
        layer.zero_grad()
        image, logdet = layer(z)
        (image - torch.arange(1.0, channels + 1)).square().mean().sub(logdet.mean()).backward()
        return {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}

    found = gradients()
    assert found
    assert all(gradient.isfinite().all() for gradient in found.values())
    # The first layer of a coupling's network waits for the last one, which begins at zero.
    assert all(gradient.any() for name, gradient in found.items() if not name.startswith("conditioner.0"))
    torch.optim.SGD(layer.parameters(), lr=1e-3).step()
    for gradient in gradients().values():
        assert gradient.numel() > 0
        assert gradient.isfinite().all()
        assert gradient.any()


@pytest.mark.parametrize("name", STEPS)
def test_steps_mapped_over_draws_are_the_steps_one_by_one_with_the_same_gradients(name: str) -> None:
    layer, z = moved(STEPS[name], 4), noise(3, 2, 5, 4)

    def gradients(outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs[0].sin().sum() + outputs[1].sin().sum(), tuple(layer.parameters()))

    mapped = torch.vmap(layer)(z)
    looped = tuple(torch.stack(parts) for parts in zip(*map(layer, z), strict=True))

    torch.testing.assert_close(mapped, looped)
    torch.testing.assert_close(gradients(mapped), gradients(looped))


def test_a_flow_of_all_steps_compiles_whole() -> None:
    steps = nn.ModuleList(moved(step, 4) for step in STEPS.values())

    def flow(z: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(z.shape[:-1], dtype=z.dtype)
        for step in steps:
            z, logdet = step(z)
            total = total + logdet
        return z, total

    z = noise(2, 3, 4)
    torch.testing.assert_close(torch.compile(flow, fullgraph=True, backend="aot_eager")(z), flow(z))


def test_planar_parameters_begin_as_asked_and_the_value_decides_the_form() -> None:
    layer = make_step(flows.Planar(init_std=0.5), 4000)
    assert layer.direction.std().item() == pytest.approx(0.5, rel=0.05)
    assert layer.weight.std().item() == pytest.approx(0.5, rel=0.05)
    assert layer.bias.item() == 0.0
    z = noise(3, 2).float()
    logdets = {shifted: make_step(flows.Planar(shifted), 2)(z)[1].abs().max().item() for shifted in (False, True)}
    assert logdets[True] < 0.01 < 0.3 < logdets[False]


def test_a_coupling_of_one_channel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^AffineCoupling needs at least 2 channels, got 1; leave it out"):
        make_step(flows.AffineCoupling(), 1)


def test_what_is_no_step_and_what_has_no_channels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    steps = "Actnorm, Affine, AffineCoupling, InvertibleConv, Planar"
    with pytest.raises(
        TypeError, match=rf"^step must be a value of dubio.flows, got GlowStep\(.*; the steps are {steps}$"
    ):
        make_step(flows.GlowStep(), 4)
    with pytest.raises(ValueError, match=r"^channels must be at least 1, got 0"):
        make_step(flows.Affine(), 0)
