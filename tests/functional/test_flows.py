"""Steps of normalizing flows: their determinants, their inverses, and numbers of the specification (T-36 to T-42)."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from dubio import functional

CHANNELS = 3


def draw(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, dtype=torch.float64)


def lu_arguments(channels: int = CHANNELS) -> tuple[Tensor, ...]:
    sign = torch.tensor([1.0, -1.0] * channels, dtype=torch.float64)[:channels]
    return torch.randperm(channels), sign, draw(channels, channels)


def mixed(z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return functional.flows.mixing_step(z, weight, functional.flows.log_abs_det(weight))


def lu_mixed(z: Tensor, *arguments: Tensor) -> tuple[Tensor, Tensor]:
    return functional.flows.mixing_step(z, *functional.flows.lu_weight(*arguments))


def lu_unmixed(z: Tensor, *arguments: Tensor) -> Tensor:
    return functional.flows.mixing_inverse(z, functional.flows.lu_weight(*arguments)[0])


def coupled(function):
    """A coupling whose log scale and shift depend on the kept channel."""

    def call(z: Tensor, slopes: Tensor) -> object:
        raw_log_scale, shift = (3.0 * torch.sin(z[..., :1] * slopes)).chunk(2, dim=-1)
        return function(z, raw_log_scale, shift, 2.0)

    return call


STEPS = {
    "affine": (functional.flows.affine_step, functional.flows.affine_inverse, lambda: (draw(3), draw(3))),
    "planar": (functional.flows.planar_step, functional.flows.planar_inverse, lambda: (draw(3), draw(3), draw())),
    "shifted planar": (
        lambda *arguments: functional.flows.planar_step(*arguments, shifted=True),
        lambda *arguments: functional.flows.planar_inverse(*arguments, shifted=True),
        lambda: (draw(3), draw(3), draw()),
    ),
    "steep planar": (
        functional.flows.planar_step,
        functional.flows.planar_inverse,
        lambda: (draw(3, scale=9.0), draw(3, scale=9.0), draw()),
    ),
    "coupling": (
        coupled(functional.flows.coupling_step),
        coupled(functional.flows.coupling_inverse),
        lambda: (draw(4),),
    ),
    "mixing": (mixed, functional.flows.mixing_inverse, lambda: (draw(3, 3),)),
    "lu mixing": (lu_mixed, lu_unmixed, lu_arguments),
    "actnorm": (functional.flows.actnorm_step, functional.flows.actnorm_inverse, lambda: (draw(3), draw(3))),
}


@pytest.mark.parametrize("name", STEPS)
def test_t36_log_determinants_are_those_of_the_jacobian_of_every_row(name: str) -> None:
    step, _, make = STEPS[name]
    for _ in range(3):
        arguments, z = make(), draw(4, CHANNELS)
        logdet = step(z, *arguments)[1]
        assert logdet.shape == (4,)
        for row, found in zip(z, logdet, strict=True):
            matrix = jacobian(lambda row, arguments=arguments: step(row, *arguments)[0], row)
            torch.testing.assert_close(found, torch.linalg.slogdet(matrix).logabsdet, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", STEPS)
def test_t36_log_determinants_of_the_positions_of_a_map_sum_to_that_of_the_whole_map(name: str) -> None:
    step, _, make = STEPS[name]
    arguments, z = make(), draw(2, 4, CHANNELS)

    logdet = step(z, *arguments)[1]
    matrix = jacobian(lambda z: step(z, *arguments)[0], z).reshape(z.numel(), z.numel())

    assert logdet.shape == (2, 4)
    torch.testing.assert_close(logdet.sum(), torch.linalg.slogdet(matrix).logabsdet, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", STEPS)
def test_inverses_undo_the_steps_and_have_the_inverse_jacobian(name: str) -> None:
    step, inverse, make = STEPS[name]
    arguments, z = make(), draw(2, 4, CHANNELS)

    image = step(z, *arguments)[0]
    torch.testing.assert_close(inverse(image, *arguments), z, rtol=1e-8, atol=1e-8)
    there = jacobian(lambda row: step(row, *arguments)[0], z[0, 0])
    back = jacobian(lambda row: inverse(row, *arguments), image[0, 0])
    torch.testing.assert_close(back @ there, torch.eye(CHANNELS, dtype=torch.float64), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", STEPS)
def test_steps_mapped_over_parameters_and_noise_are_the_steps_one_by_one(name: str) -> None:
    step, inverse, make = STEPS[name]
    arguments = [torch.stack(parts) for parts in zip(*(make() for _ in range(4)), strict=True)]
    z = draw(4, 2, 5, CHANNELS)

    mapped, logdets = torch.vmap(step)(z, *arguments)
    again = torch.vmap(inverse)(mapped, *arguments)

    for index in range(4):
        own = [argument[index] for argument in arguments]
        torch.testing.assert_close((mapped[index], logdets[index]), step(z[index], *own))
        torch.testing.assert_close(again[index], inverse(mapped[index], *own))


@pytest.mark.parametrize("name", STEPS)
def test_steps_in_single_precision_are_those_in_double(name: str) -> None:
    step, _, make = STEPS[name]
    arguments, z = make(), draw(20, CHANNELS)
    single = [argument.float() if argument.is_floating_point() else argument for argument in arguments]

    image, logdet = step(z.float(), *single)
    expected_image, expected_logdet = step(z, *arguments)

    assert image.dtype == logdet.dtype == torch.float32
    scale = 1.0 + expected_image.abs().max()
    assert (image - expected_image).abs().max() < 1e-4 * scale
    if name != "steep planar":  # its least slope is another one in single precision
        torch.testing.assert_close(logdet.double(), expected_logdet, rtol=1e-4, atol=1e-4)


def test_t37_planar_step_has_the_numbers_of_the_specification() -> None:
    u, w, z = torch.tensor([[0.5, 1.5], [1.0, -2.0], [0.2, -0.4]], dtype=torch.float64)
    b = torch.tensor(0.3, dtype=torch.float64)

    direction, slope = functional.flows.planar_direction(u, w)
    image, logdet = functional.flows.planar_step(z, u, w, b)

    assert torch.dot(w, u).item() == pytest.approx(-2.5)
    assert slope.item() - 1.0 == pytest.approx(-0.92111027, abs=5e-9)
    assert torch.dot(w, direction).item() == pytest.approx(-0.92111027, abs=5e-9)
    assert direction.tolist() == pytest.approx([0.81577795, 0.86844411], abs=5e-9)
    assert image.tolist() == pytest.approx([0.90297475, 0.34835840], abs=5e-9)
    assert logdet.item() == pytest.approx(-0.27066025, abs=5e-9)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_t38_planar_steps_can_be_undone_whatever_their_parameters(dtype: torch.dtype, shifted: bool) -> None:
    torch.manual_seed(0)
    u, w, z = torch.randn(3, 10_000, 4, dtype=dtype) * torch.tensor([8.0, 4.0, 1.0], dtype=dtype).reshape(3, 1, 1)
    b = torch.randn(10_000, dtype=dtype)
    b[::2] = -(w * z).sum(dim=-1)[::2]  # where the slope is least or greatest

    def there_and_back(z: Tensor, u: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        image, logdet = functional.flows.planar_step(z, u, w, b, shifted)
        again = functional.flows.planar_inverse(image, u, w, b, shifted)
        return image, logdet, again, functional.flows.planar_direction(u, w, shifted)[0]

    image, logdet, again, direction = torch.vmap(there_and_back)(z, u, w, b)

    products = (w * u).sum(dim=-1)
    assert (products > 50.0).sum() > 500
    assert (products < -50.0).sum() > 500
    plain = 1.0 + (torch.nn.functional.softplus(products) - 1.0)
    assert (plain <= 0.0).float().mean() > 0.1  # the slope as the paper computes it
    assert logdet.isfinite().all()
    # The map rises everywhere, with its direction as rounded and not only in theory.
    assert (1.0 + (w.double() * direction.double()).sum(dim=-1)).min() > 0.0
    # An image is known to its last digit only, and the way back magnifies that by the inverse of the slope.
    reach = 1.0 + direction.norm(dim=-1) * w.norm(dim=-1)
    rounding = torch.finfo(dtype).eps * (image.abs().amax(dim=-1) + direction.abs().amax(dim=-1) + b.abs())
    worst = ((again - z).abs().amax(dim=-1) * logdet.exp().clamp_max(1.0) / (reach * rounding)).max()
    assert worst < 4.0


def test_a_shifted_planar_step_of_small_parameters_is_near_the_identity_and_a_plain_one_is_not() -> None:
    u, w = draw(2, CHANNELS, scale=1e-4)
    z, b = draw(5, CHANNELS), torch.zeros((), dtype=torch.float64)

    image, logdet = functional.flows.planar_step(z, u, w, b, shifted=True)
    torch.testing.assert_close(image, z, rtol=0.0, atol=1e-3)
    assert logdet.abs().max() < 1e-6
    plain = functional.flows.planar_step(z, u, w, b)[1]
    torch.testing.assert_close(plain, torch.full_like(plain, math.log(math.log(2.0))), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-12, 1e-6])
def test_a_planar_weight_near_zero_keeps_values_gradients_and_determinant(length: float, dtype: torch.dtype) -> None:
    u = torch.tensor([0.3, -0.2], dtype=dtype, requires_grad=True)
    w = torch.tensor([0.6 * length, 0.8 * length], dtype=dtype, requires_grad=True)
    b = torch.zeros((), dtype=dtype, requires_grad=True)
    z = torch.tensor([0.5, 1.5], dtype=dtype)

    image, logdet = functional.flows.planar_step(z, u, w, b)
    gradients = torch.autograd.grad(image.sum() + logdet, (u, w, b))

    matrix = jacobian(lambda z: functional.flows.planar_step(z, u, w, b)[0], z)
    torch.testing.assert_close(logdet, torch.linalg.slogdet(matrix).logabsdet, rtol=1e-5, atol=1e-5)
    assert all(gradient.isfinite().all() for gradient in gradients)
    torch.testing.assert_close(functional.flows.planar_inverse(image, u, w, b), z)


def test_t40_the_density_of_a_composed_flow_integrates_to_one() -> None:
    affine = torch.tensor([[0.1, -0.2], [-1.1, -1.3]], dtype=torch.float64)
    u, w = torch.tensor([[0.7, -0.4], [1.5, 2.0]], dtype=torch.float64)
    b = torch.tensor(-0.6, dtype=torch.float64)
    weight = torch.tensor([[0.6, 0.5], [-0.4, 1.1]], dtype=torch.float64)
    slopes = torch.tensor([2.0, -1.0], dtype=torch.float64)

    def forward(z: Tensor) -> tuple[Tensor, list[Tensor]]:
        logdets = []
        for step, arguments in zip(steps, parameters, strict=True):
            z, logdet = step(z, *arguments)
            logdets.append(logdet)
        return z, logdets

    def coupling_arguments(z: Tensor) -> tuple[Tensor, Tensor, float]:
        return (torch.sin(z[..., :1] * slopes[0]), torch.cos(z[..., :1] * slopes[1]), 2.0)

    steps = [
        functional.flows.affine_step,
        functional.flows.planar_step,
        lambda z: functional.flows.coupling_step(z, *coupling_arguments(z)),
        mixed,
        functional.flows.actnorm_step,
    ]
    inverses = [
        functional.flows.affine_inverse,
        functional.flows.planar_inverse,
        lambda z: functional.flows.coupling_inverse(z, *coupling_arguments(z)),
        functional.flows.mixing_inverse,
        functional.flows.actnorm_inverse,
    ]
    parameters = [tuple(affine), (u, w, b), (), (weight,), (affine[0], -0.2 * affine[1])]

    spacing = 0.01
    axis = torch.arange(-2.0, 3.0, spacing, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    z = grid
    for inverse, arguments in zip(reversed(inverses), reversed(parameters), strict=True):
        z = inverse(z, *arguments)
    image, logdets = forward(z)
    base = functional.variational.normal_log_prob(z, 1.0, 0.5).sum(dim=-1)
    density = functional.flows.flow_log_prob(base, logdets).exp()

    torch.testing.assert_close(image, grid, rtol=1e-9, atol=1e-9)
    assert density.sum().item() * spacing**2 == pytest.approx(1.0, abs=1e-6)
    # And it is the density of what the flow draws: their means agree.
    drawn = forward(1.0 + 0.5 * draw(20_000, 2))[0]
    mean = (density[:, None] * grid).sum(dim=0) * spacing**2
    assert ((drawn.mean(dim=0) - mean).abs() < 4.0 * drawn.std(dim=0) / math.sqrt(20_000)).all()


def test_t41_the_triangles_and_the_matrix_they_make_are_one_step() -> None:
    for channels in (1, 2, 6):
        arguments = lu_arguments(channels)
        z = draw(2, 4, channels)
        weight, _ = functional.flows.lu_weight(*arguments)

        torch.testing.assert_close(lu_mixed(z, *arguments), mixed(z, weight))


def test_t41_the_matrix_is_the_product_of_its_factors() -> None:
    permutation, sign, factors = lu_arguments()
    rows = torch.eye(3, dtype=torch.float64)[permutation]
    (a, b, c), (d, e, f), (g, h, i) = factors.tolist()
    left = torch.tensor([[1, 0, 0], [d, 1, 0], [g, h, 1]], dtype=torch.float64)
    right = torch.tensor([[0, b, c], [0, 0, f], [0, 0, 0]], dtype=torch.float64)
    log_abs = torch.tensor([a, e, i], dtype=torch.float64)

    weight, logdet = functional.flows.lu_weight(permutation, sign, factors)
    torch.testing.assert_close(weight, rows @ left @ (right + torch.diag(sign * log_abs.exp())))
    torch.testing.assert_close(logdet, torch.linalg.slogdet(weight).logabsdet)


def test_t42_coupling_keeps_its_first_channels_bit_by_bit_and_is_undone_to_the_last_digits() -> None:
    z, raw_log_scale, shift = draw(7, 5), draw(7, 3, scale=4.0), draw(7, 3)

    image, logdet = functional.flows.coupling_step(z, raw_log_scale, shift, 2.0)

    assert torch.equal(image[:, :2], z[:, :2])
    assert (image[:, 2:] != z[:, 2:]).all()
    assert (logdet.abs() <= 3 * 2.0).all()
    log_scale = 2.0 * torch.tanh(raw_log_scale / 2.0)
    torch.testing.assert_close(image[:, 2:], z[:, 2:] * log_scale.exp() + shift)
    back = functional.flows.coupling_inverse(image, raw_log_scale, shift, 2.0)
    assert torch.equal(back[:, :2], z[:, :2])
    torch.testing.assert_close(back, z, rtol=1e-13, atol=1e-13)


def test_t42_a_raw_scale_without_bound_cannot_overflow() -> None:
    z = torch.ones(1, 2)
    image, logdet = functional.flows.coupling_step(z, torch.full((1, 1), 1e4), torch.zeros(1, 1), 2.0)
    torch.testing.assert_close((image[0, 1], logdet[0]), (torch.tensor(math.exp(2.0)), torch.tensor(2.0)))


def test_the_density_falls_by_every_log_determinant() -> None:
    base, *logdets = draw(4, 5)
    torch.testing.assert_close(
        functional.flows.flow_log_prob(base, logdets), base - logdets[0] - logdets[1] - logdets[2]
    )
    torch.testing.assert_close(functional.flows.flow_log_prob(base, []), base)
