"""Kernels in C: the same values and gradients as the formula, noise that passes for random, and one OpenMP runtime.

Tests of the library itself are skipped where it was not built, or is switched off; all others hold either way.
"""

import ctypes
import importlib.metadata
import importlib.util
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, distributions
from torch._subclasses.fake_tensor import FakeTensorMode

from dubio._engine import kernels
from dubio._engine.noise import _digest
from dubio.priors import CentredNormal, Normal, ScaleMixture

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dubio" / "_engine" / "kernels.c"
COMPILER = shutil.which(os.environ.get("CC", "cc"))
NORMAL, MIXTURE = (0.1, 0.7), (0.5, math.exp(-1), math.exp(-7))
PRIORS = {"none": (), "normal": NORMAL, "mixture": MIXTURE}

HAS_LIBRARY, WHY_NOT = kernels.kernels_available(), kernels.kernels_unavailable_reason()

needs_library = pytest.mark.skipif(not HAS_LIBRARY, reason=WHY_NOT or "available")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
levels = pytest.mark.parametrize("level", range(1 + (kernels._threads().level if HAS_LIBRARY else 0)))


@pytest.fixture
def at_level(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Compute with a smaller set of instructions."""

    def use(level: int) -> None:
        threads = kernels._ThreadStructure(None, 1, level)
        monkeypatch.setattr(kernels, "_threads", lambda: threads)

    return use


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the library."""
    made: list[str] = []
    for name in ("_draw_by_library", "_differentiate_by_library", "_fill_by_library"):
        monkeypatch.setattr(kernels, name, partial(_noted, made, getattr(kernels, name), name[1:-11]))
    return made


def _noted(made: list[str], whole: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> Any:
    made.append(name)
    return whole(*arguments, **options)


@pytest.fixture(params=[pytest.param("library", marks=needs_library), "formula"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the library, and without it."""
    if request.param == "formula":
        monkeypatch.setattr(kernels, "_load", lambda: (None, "The kernels are switched off."))
    return str(request.param)


def parameters(*shape: int, low: float = -30.0, high: float = 10.0) -> tuple[Tensor, Tensor]:
    """Means, and softplus arguments over a range, both with gradients."""
    size = math.prod(shape)
    rho = torch.linspace(low, high, size)[torch.randperm(size)].view(shape)
    return (torch.randn(shape) * 0.3).requires_grad_(), rho.requires_grad_()


def masks(shape: Sequence[int]) -> dict[str, Tensor]:
    return {"removed": torch.rand(shape) < 0.2, "fixed": torch.rand(shape) < 0.2}


def log_prob(prior: Sequence[float], weights: Tensor, centre: Tensor | None) -> Tensor:
    """By torch's distributions."""
    if len(prior) == 2:
        return distributions.Normal(prior[0] if centre is None else centre, prior[1]).log_prob(weights)
    kinds = distributions.Categorical(torch.tensor([prior[0], 1.0 - prior[0]], dtype=torch.float64))
    normals = distributions.Normal(torch.zeros(2, dtype=torch.float64), torch.tensor(prior[1:], dtype=torch.float64))
    return distributions.MixtureSameFamily(kinds, normals).log_prob(weights)


def reference(
    mean: Tensor, rho: Tensor, noise: Tensor, prior: Sequence[float], removed=None, fixed=None, centre=None
) -> tuple[Tensor, Tensor]:
    """Draws and divergence in float64, with none of the code that is tested."""
    mean, std = mean.double(), torch.where(rho > 0, rho.double(), 0.0) + (-rho.double().abs()).exp().log1p()
    kept = torch.ones(mean.shape, dtype=torch.bool) if removed is None else ~removed
    random = kept if fixed is None else kept & ~fixed
    weights = torch.where(kept, mean + torch.where(random, std, 0.0) * noise.double(), 0.0)
    if not prior:
        return weights, torch.zeros(())
    if len(prior) == 2:
        centre = prior[0] if centre is None else centre.double()
        terms = distributions.kl_divergence(distributions.Normal(mean, std), distributions.Normal(centre, prior[1]))
        return weights, torch.where(random, terms, 0.0).sum()
    of_posterior = -std.log() - 0.5 * noise.double().square() - 0.5 * math.log(2 * math.pi)
    terms = of_posterior - log_prob(prior, mean + std * noise.double(), None)
    return weights, torch.where(random, terms, 0.0).flatten(noise.dim() - mean.dim()).sum(dim=-1)


def gradients_of(outputs: tuple[Tensor, Tensor | None], sources: Sequence[Tensor], weights: Tensor, total: Tensor):
    """Gradients of a weighted sum of draws and divergence."""
    loss = (outputs[0].double() * weights.double()).sum()
    loss = loss if outputs[1] is None else loss + (outputs[1].double() * total.double()).sum()
    return torch.autograd.grad(loss, sources)


def assert_close_beside(value: Tensor, expected: Tensor, size: Tensor | float) -> None:
    """To 1e-6 of what was added up."""
    error = (value.double() - expected.double()).abs()
    assert bool((error <= 1e-6 * size).all()), float((error / size).max())


@needs_library
@levels
@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_draws_divergence_and_gradients_are_those_of_the_formula_in_float64(
    level: int, prior: Sequence[float], masked: bool, frozen: bool, at_level: Callable[[int], None]
) -> None:
    at_level(level)
    mean, rho = parameters(3, 4001)
    options = masks(mean.shape) if masked else {}
    keys = torch.randint(2**63 - 1, (3,))
    noise = kernels.keyed_noise(keys, mean.shape, frozen=frozen)
    outputs = kernels.draw_weights(mean, rho, keys, prior=prior, frozen=frozen, **options)
    expected = reference(mean, rho, noise, prior, **options)
    assert_close_beside(outputs[0], expected[0], mean.abs() + (expected[0] - mean).abs() + 1e-30)
    total = torch.tensor(0.7)
    if prior:
        torch.testing.assert_close(outputs[1].double(), expected[1], rtol=1e-6, atol=0.0)
        total = torch.randn(outputs[1].shape)

    weights = torch.randn(outputs[0].shape)
    of_mean, of_rho = gradients_of(outputs, (mean, rho), weights, total)
    of_draws = gradients_of((expected[0], None), (mean, rho), weights, total)
    of_total = (0.0, 0.0)
    if prior:
        of_total = torch.autograd.grad((reference(mean, rho, noise, prior, **options)[1] * total).sum(), (mean, rho))
    # Sizes of what is added up in each gradient: cancellation is not an error of the kernel.
    std, slope = F.softplus(rho.double()), torch.sigmoid(rho.double())
    size_of_mean = weights.abs().sum(dim=0)
    size_of_rho = slope * (weights * noise).abs().sum(dim=0)
    if len(prior) == 2:
        size_of_mean = size_of_mean + total.abs() * (mean.abs() + 0.1) / prior[1] ** 2
        size_of_rho = size_of_rho + total.abs() * (slope * std / prior[1] ** 2 + slope / std)
    if len(prior) == 3:
        # Where both components count, rounding of the weight itself changes their shares by some 1e-6.
        slopes = 3.0 * ((mean + std * noise).abs() * total.abs()[:, None, None] / prior[2] ** 2).detach()
        size_of_mean = size_of_mean + slopes.sum(dim=0)
        size_of_rho = size_of_rho + slope * (slopes * noise.abs()).sum(dim=0) + total.abs().sum() * slope / std
    assert_close_beside(of_mean, of_draws[0] + of_total[0], size_of_mean + 1e-30)
    assert_close_beside(of_rho, of_draws[1] + of_total[1], size_of_rho + 1e-30)


@pytest.mark.parametrize("rho", [-1000.0, -100.0, -87.5, -30.0, -5.0, 0.0, 10.0, 40.0])
def test_gradients_are_right_far_from_zero_too(rho: float, either: str) -> None:
    if either == "formula" and rho < -80.0:
        pytest.skip("torch's softplus is denormal there, or zero")
    mean, rhos = torch.full((300,), 0.25, requires_grad=True), torch.full((300,), rho, requires_grad=True)
    value = kernels.weight_divergence(mean, rhos, (0.0, 1.0))
    std = math.log1p(math.exp(rho)) if rho < 30 else rho
    log_std, ratio = (math.log(std), (1 - math.exp(-std)) / std) if rho > -30 else (rho, 1.0)
    assert value.item() == pytest.approx(300 * (0.5 * (std**2 + 0.0625 - 1.0) - log_std), rel=1e-6)
    of_mean, of_rho = torch.autograd.grad(value, (mean, rhos))
    assert_close_beside(of_mean, torch.full((300,), 0.25), 0.25)
    expected = ratio * (std**2 - 1.0)
    assert_close_beside(of_rho, torch.full((300,), expected), max(abs(expected), ratio))


@pytest.mark.parametrize("prior", [Normal(0.2, 0.5), CentredNormal(0.3), ScaleMixture(), ScaleMixture(1.0)], ids=str)
def test_divergence_is_that_of_every_prior(prior: Any, either: str, calls: list[str]) -> None:
    mean, rho = parameters(50, 30, low=-6.0, high=2.0)
    centre = torch.randn(50, 30) if isinstance(prior, CentredNormal) else None
    noise = torch.randn(4, 50, 30)
    std = F.softplus(rho.double())
    if prior.has_closed_divergence:
        expected = prior.divergence(mean.double(), std, centre).sum()
    else:
        weights = mean.double() + std * noise
        terms = -std.log() - 0.5 * noise.square() - 0.5 * math.log(2 * math.pi) - prior.log_prob(weights, centre)
        expected = terms.sum(dim=(1, 2))
    numbers = {
        Normal: lambda: (prior.mean, prior.std),
        CentredNormal: lambda: (0.0, prior.std),
        ScaleMixture: lambda: (prior.weight, prior.wide_std, prior.narrow_std),
    }[type(prior)]()
    value = kernels.weight_divergence(mean, rho, numbers, noise=noise, centre=centre)
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=0.0)
    weights = torch.randn(value.shape)
    results = torch.autograd.grad((value * weights).sum(), (mean, rho))
    for result, exact in zip(results, torch.autograd.grad((expected * weights).sum(), (mean, rho)), strict=True):
        torch.testing.assert_close(result, exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))
    assert calls == (["draw", "differentiate"] if either == "library" else [])


def test_a_missing_mean_or_width_stays_missing(either: str) -> None:
    for prior in ((), NORMAL, MIXTURE):
        for place in (0, 1):
            mean, rho = parameters(2000, low=-3.0, high=1.0)
            with torch.no_grad():
                (mean, rho)[place][[7, 1999]] = math.nan
            weights, total = kernels.draw_weights(mean, rho, torch.tensor([5, 6]), prior=prior)
            missing = torch.zeros(2000, dtype=torch.bool)
            missing[[7, 1999]] = True
            assert torch.equal(weights.isnan(), missing.expand(2, -1))
            loss = weights.sum() if total is None else weights.sum() + total.sum()
            assert total is None or bool(total.isnan().all())
            of_mean, of_rho = torch.autograd.grad(loss, (mean, rho))
            assert torch.equal(of_rho.isnan(), missing) if place == 1 else not of_rho.isnan()[~missing].any()
            if prior and place == 0:
                assert torch.equal(of_mean.isnan(), missing)


def test_infinite_parameters_give_no_finite_numbers(either: str) -> None:
    mean = torch.tensor([math.inf, 0.0, 0.0, -math.inf])
    rho = torch.tensor([0.0, math.inf, -math.inf, 1.0])
    weights, _ = kernels.draw_weights(mean, rho, torch.tensor(3))
    assert weights.isinf().tolist() == [True, True, False, True]
    assert weights[2] == 0.0
    for place in range(4):
        assert not bool(kernels.weight_divergence(mean[place : place + 1], rho[place : place + 1], NORMAL).isfinite())


def test_masks_leave_weights_out(either: str) -> None:
    mean, rho = parameters(10, 50, low=-4.0, high=0.0)
    removed, fixed = masks(mean.shape).values()
    keys = torch.tensor([1, 2])
    for prior in (NORMAL, MIXTURE):
        weights, total = kernels.draw_weights(mean, rho, keys, prior=prior, removed=removed, fixed=fixed)
        assert bool((weights[:, removed] == 0.0).all())
        assert torch.equal(weights[:, fixed & ~removed], mean[fixed & ~removed].expand(2, -1))
        assert total is not None
        left = ~(removed | fixed)
        noise = kernels.keyed_noise(keys, mean.shape)
        alone = kernels.weight_divergence(mean[left], rho[left], prior, noise=noise[:, left])
        torch.testing.assert_close(total, alone)
        of_mean, of_rho = torch.autograd.grad(weights.sum() + total.sum(), (mean, rho))
        assert not of_mean[removed].any()
        assert torch.equal(of_mean[fixed & ~removed], torch.full_like(of_mean[fixed & ~removed], 2.0))
        assert not of_rho[~left].any()
        assert bool((of_rho[left] != 0.0).all())


def test_perturbations_are_draws_without_their_mean(either: str) -> None:
    mean, rho = parameters(7, 11, low=-4.0, high=0.0)
    keys = torch.tensor([3, 4])
    for prior in (NORMAL, MIXTURE):
        weights, total = kernels.draw_weights(mean, rho, keys, prior=prior)
        moved, same = kernels.draw_weights(mean, rho, keys, prior=prior, perturbations=True)
        torch.testing.assert_close(mean + moved, weights)
        torch.testing.assert_close(total, same)
        alone = torch.autograd.grad(total.sum(), (mean, rho), retain_graph=True)
        results = torch.autograd.grad(moved.sum() + same.sum(), (mean, rho))
        of_rho = torch.autograd.grad(weights.sum(), rho)[0]
        torch.testing.assert_close(results[0], alone[0])
        torch.testing.assert_close(results[1], alone[1] + of_rho)


@needs_library
@pytest.mark.parametrize("frozen", [False, True])
def test_neither_threads_nor_other_draws_change_a_number(frozen: bool, threads: Callable[[int], None]) -> None:
    mean, rho = parameters(300, 301)
    keys = torch.randint(2**63 - 1, (4,))
    mirrored = torch.tensor([False, True, False, True])

    def run(some: Sequence[int]) -> list[Tensor]:
        own = torch.tensor(some)
        outputs = kernels.draw_weights(mean, rho, keys[own], prior=MIXTURE, mirrored=mirrored[own], frozen=frozen)
        noise = kernels.keyed_noise(keys[own], (300, 301), "uniform", mirrored=mirrored[own], frozen=frozen)
        loss = outputs[0].square().sum() + outputs[1].sum()
        return [*outputs, noise, *torch.autograd.grad(loss, (mean, rho))]

    threads(1)
    whole = run(range(4))
    for number in (2, 3):
        threads(number)
        assert all(torch.equal(one, other) for one, other in zip(run(range(4)), whole, strict=True))
        for some in ([2], [3, 1]):
            assert all(torch.equal(one, other[some]) for one, other in zip(run(some)[:3], whole[:3], strict=True))
    sums = {kernels.weight_divergence(mean, rho, NORMAL).item() for number in (1, 2, 3) if threads(number) is None}
    assert len(sums) == 1


def test_mapped_draws_are_one_call_and_equal_to_separate_ones(either: str, calls: list[str]) -> None:
    mean, rho = parameters(20, 30, low=-4.0, high=1.0)
    keys, mirrored = torch.randint(2**63 - 1, (2, 3)), torch.tensor([[True, False, False], [False, True, False]])
    for prior in (NORMAL, MIXTURE):
        draw = partial(kernels.draw_weights, mean, rho, prior=prior, frozen=True)

        def one(key: Tensor, is_mirrored: Tensor, draw: Any = draw) -> tuple[Tensor, Tensor]:
            return draw(key, mirrored=is_mirrored)

        calls.clear()
        weights, total = torch.func.vmap(torch.func.vmap(one))(keys, mirrored)
        assert calls == (["draw"] if either == "library" else [])
        of_all = torch.autograd.grad(weights.square().sum() + total.mean(), (mean, rho))
        assert calls == (["draw", "differentiate"] if either == "library" else [])
        pairs = [one(keys[i, j], mirrored[i, j]) for i in range(2) for j in range(3)]
        torch.testing.assert_close(weights.flatten(0, 1), torch.stack([pair[0] for pair in pairs]))
        torch.testing.assert_close(total.flatten(), torch.stack([pair[1] for pair in pairs]))
        loss = sum(pair[0].square().sum() for pair in pairs) + sum(pair[1] for pair in pairs) / 6
        for result, expected in zip(of_all, torch.autograd.grad(loss, (mean, rho)), strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_noise_given_is_mapped_too(either: str, calls: list[str]) -> None:
    mean, rho = parameters(6, 5, low=-4.0, high=1.0)
    noise = torch.randn(6, 5, 4)
    weights, total = torch.func.vmap(lambda own: kernels.draw_weights(mean, rho, noise=own, prior=MIXTURE), in_dims=2)(
        noise
    )
    expected = reference(mean, rho, noise.movedim(2, 0), MIXTURE)
    torch.testing.assert_close((weights.double(), total.double()), expected, rtol=1e-5, atol=1e-5)
    mapped = torch.func.vmap(lambda own: kernels.weight_divergence(mean, rho, MIXTURE, noise=own), in_dims=2)(noise)
    torch.testing.assert_close(mapped, total)
    assert calls == (["draw", "draw"] if either == "library" else [])


def test_mapped_means_take_the_formula(either: str, calls: list[str]) -> None:
    means, rho = torch.randn(3, 4, 5), torch.randn(4, 5)
    keys = torch.tensor([5, 6, 7])
    weights, total = torch.func.vmap(lambda mean, key: kernels.draw_weights(mean, rho, key, prior=NORMAL))(means, keys)
    assert "draw" not in calls
    for number in range(3):
        own, divergence = kernels.draw_weights(means[number], rho, keys[number], prior=NORMAL)
        torch.testing.assert_close((weights[number], total[number]), (own, divergence))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by torch's jvp of softplus
def test_other_transforms_take_the_formula(either: str, calls: list[str]) -> None:
    mean, rho = parameters(4, 5, low=-4.0, high=1.0)
    mean, rho, key = mean.detach(), rho.detach(), torch.tensor(9)

    def loss(mean: Tensor, rho: Tensor) -> Tensor:
        weights, total = kernels.draw_weights(mean, rho, key, prior=NORMAL)
        return weights.square().sum() + 0.3 * total

    expected = torch.autograd.grad(loss(*(given := (mean.requires_grad_(), rho.requires_grad_()))), given)
    calls.clear()
    torch.testing.assert_close(torch.func.grad(loss, argnums=(0, 1))(mean, rho), expected)
    tangents = torch.randn(4, 5), torch.randn(4, 5)
    _, slope = torch.func.jvp(loss, (mean.detach(), rho.detach()), tangents)
    torch.testing.assert_close(slope.float(), sum((e * t).sum() for e, t in zip(expected, tangents, strict=True)))
    assert "draw" not in calls


@pytest.mark.parametrize("prior", [NORMAL, (0.5, 0.5, 0.3)], ids=["normal", "mixture"])
def test_second_derivatives_are_those_of_the_formula(prior: Sequence[float], either: str) -> None:
    mean, rho = (t.detach().double().requires_grad_() for t in parameters(5, 3, low=-4.0, high=1.0))
    noise, keys = torch.randn(2, 5, 3), torch.tensor([3, 4])
    own = masks((5, 3))
    assert torch.autograd.gradcheck(
        lambda m, r: kernels.weight_divergence(m, r, prior, noise=noise.double(), **own), (mean, rho)
    )
    assert torch.autograd.gradgradcheck(
        lambda m, r: kernels.weight_divergence(m, r, prior, noise=noise.double(), **own), (mean, rho)
    )

    def second(mean: Tensor, rho: Tensor, draw: Callable[..., Any]) -> tuple[Tensor, ...]:
        weights, total = draw(mean, rho)
        loss = (weights.sin() * torch.arange(15.0).view(5, 3)).sum() + total.sum()
        first = torch.autograd.grad(loss, (mean, rho), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (mean, rho))

    single = tuple(t.detach().float().requires_grad_() for t in (mean, rho))
    noise = kernels.keyed_noise(keys, (5, 3))
    results = second(*single, lambda m, r: kernels.draw_weights(m, r, keys, prior=prior, **own))
    expected = second(mean, rho, lambda m, r: reference(m, r, noise, prior, **own))
    for result, exact in zip(results, expected, strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))


def test_many_gradients_at_once(either: str) -> None:
    mean, rho = parameters(4, 6, low=-4.0, high=1.0)
    weights, _ = kernels.draw_weights(mean, rho, torch.tensor(8))
    some = torch.randn(3, 4, 6)
    at_once = torch.autograd.grad(weights, (mean, rho), some, retain_graph=True, is_grads_batched=True)
    for number in range(3):
        one = torch.autograd.grad(weights, (mean, rho), some[number], retain_graph=True)
        torch.testing.assert_close(tuple(t[number] for t in at_once), one)


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_draws_apart_are_those_of_a_stack(prior: Sequence[float], either: str, calls: list[str]) -> None:
    mean, rho = parameters(50, 60, low=-4.0, high=1.0)
    keys, own, weights = torch.randint(2**63 - 1, (3,)), masks((50, 60)), torch.randn(3, 50, 60)

    def gradients(draws: Sequence[Tensor], total: Tensor | None, used: Sequence[int], **options: Any) -> Any:
        loss = sum((weights[i] * draws[i]).sum() for i in used) + (0.0 if total is None else total.sum())
        return torch.autograd.grad(loss, (mean, rho), **options)

    stack = kernels.draw_weights(mean, rho, keys, prior=prior, **own)
    each = kernels.draw_each(mean, rho, keys, prior=prior, **own)
    assert torch.equal(torch.stack(each[0]), stack[0])
    assert each[1] is stack[1] or torch.equal(each[1], stack[1])
    assert calls == (["draw", "draw"] if either == "library" else [])
    for used in ([0, 1, 2], [1]):  # a draw that is not used has no gradient
        for options in ({"retain_graph": True}, {"create_graph": True}):
            one, other = (gradients(*outputs, used, **options) for outputs in (each, stack))
            torch.testing.assert_close(one, other)
    assert calls.count("differentiate") == (4 if either == "library" else 0)


def test_default_types_and_devices_change_nothing(either: str) -> None:
    mean, rho = parameters(5, 6, low=-4.0, high=1.0)
    keys = torch.tensor([1, 2])
    expected = kernels.draw_weights(mean, rho, keys, prior=MIXTURE, frozen=True)
    with torch.device("meta"):
        weights, total = kernels.draw_weights(mean, rho, keys, prior=MIXTURE, frozen=True)
        of_mean, of_rho = torch.autograd.grad(weights, (mean, rho), expected[0])
        assert kernels.weight_divergence(mean, rho, NORMAL).device.type == "cpu"
    torch.testing.assert_close((weights, total), expected)
    assert of_mean.device.type == of_rho.device.type == "cpu"


def test_only_needed_gradients_and_outputs_are_computed(either: str) -> None:
    mean, rho = parameters(40, 6, low=-4.0, high=1.0)
    key = torch.tensor(8)
    both = torch.autograd.grad(kernels.draw_weights(mean, rho, key, prior=NORMAL)[0].sum(), (mean, rho))
    for frozen in (0, 1):
        given = [mean, rho]
        given[frozen] = given[frozen].detach()
        weights, _ = kernels.draw_weights(*given, key, prior=NORMAL)
        torch.testing.assert_close(torch.autograd.grad(weights.sum(), given[1 - frozen])[0], both[1 - frozen])
    _, total = kernels.draw_weights(mean, rho, key, prior=NORMAL)
    torch.testing.assert_close(
        torch.autograd.grad(total, (mean, rho)),
        torch.autograd.grad(kernels.weight_divergence(mean, rho, NORMAL), (mean, rho)),
    )
    with torch.no_grad():
        assert not kernels.draw_weights(mean, rho, key)[0].requires_grad
    with torch.inference_mode():
        assert torch.equal(kernels.draw_weights(mean, rho, key)[0], weights)


def test_parameters_that_changed_before_the_backward_pass_are_noticed(either: str) -> None:
    mean, rho = parameters(8, 8, low=-4.0, high=1.0)
    weights, _ = kernels.draw_weights(mean, rho, torch.tensor(1), prior=NORMAL)
    with torch.no_grad():
        rho.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        weights.sum().backward()


@needs_library
def test_tensors_that_the_library_does_not_serve_take_the_formula(calls: list[str]) -> None:
    mean, rho = torch.randn(6, 8), torch.randn(6, 8)
    key = torch.tensor(2)
    plain, total = kernels.draw_weights(mean, rho, key, prior=NORMAL)
    assert calls == ["draw"]
    calls.clear()
    cases = {
        "transposed": (mean.t().contiguous().t(), rho),
        "strided": (mean, torch.stack([rho, rho], dim=2)[:, :, 0]),
        "double": (mean.double(), rho.double()),
        "subclass of another shape": (mean, rho[:1].expand(6, 8)),
    }
    for name, (own_mean, own_rho) in cases.items():
        weights, other = kernels.draw_weights(own_mean, own_rho, key, prior=NORMAL)
        assert "draw" not in calls, name
        if name != "subclass of another shape":
            torch.testing.assert_close((weights.float(), other.float()), (plain, total))
    for shape in ((0,), (3, 0)):
        weights, other = kernels.draw_weights(torch.empty(shape), torch.empty(shape), key, prior=NORMAL)
        assert weights.shape == shape
        assert other.item() == 0.0
    half, none = kernels.draw_weights(mean.bfloat16(), rho.bfloat16(), key)
    assert half.dtype == torch.bfloat16
    assert none is None
    assert kernels.weight_divergence(mean.bfloat16(), rho.bfloat16(), NORMAL).dtype == torch.float32
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(mean)
        assert kernels.draw_weights(fake, fake, mode.from_tensor(key), prior=NORMAL)[0].shape == mean.shape
        each, _ = kernels.draw_each(fake, fake, mode.from_tensor(torch.arange(2)))
        assert [draw.shape for draw in each] == [mean.shape] * 2
        arguments = (fake, fake, None, None, mode.from_tensor(torch.randn(3, 6, 8)), None, None, None)
        outputs = torch.ops.dubio.draw_weights(*arguments, MIXTURE, "weights", False)
        assert [output.shape for output in outputs] == [(3, 6, 8), (3,)]
    on_meta = kernels.draw_weights(mean.to("meta"), rho.to("meta"), noise=mean.to("meta"), prior=NORMAL)
    assert on_meta[0].device.type == "meta"
    assert "draw" not in calls


def test_shapes_of_no_axes_and_of_no_draws(either: str) -> None:
    mean, rho = torch.randn((), requires_grad=True), torch.randn((), requires_grad=True)
    for prior in (NORMAL, MIXTURE):
        weights, total = kernels.draw_weights(mean, rho, torch.tensor([1, 2]), prior=prior)
        assert weights.shape == (2,)
        assert total.shape == ((2,) if prior is MIXTURE else ())
        torch.autograd.grad(weights.sum() + total.sum(), (mean, rho))
    mean, rho = parameters(5, 4)
    for options in ({"keys": torch.empty(0, dtype=torch.int64)}, {"noise": torch.empty(0, 5, 4)}):
        weights, total = kernels.draw_weights(mean, rho, prior=MIXTURE, **options)
        assert (weights.shape, total.shape) == ((0, 5, 4), (0,))
        of_mean, _ = torch.autograd.grad(weights.sum() + total.sum(), (mean, rho))
        assert not of_mean.any()


def test_bad_arguments_are_refused() -> None:
    mean, rho = torch.randn(3), torch.randn(3)
    with pytest.raises(ValueError, match="either keys or noise, got neither"):
        kernels.draw_weights(mean, rho)
    with pytest.raises(ValueError, match="either keys or noise, got both"):
        kernels.draw_weights(mean, rho, torch.tensor(1), noise=mean)
    with pytest.raises(ValueError, match=r"prior must have 2 numbers .* got \[1.0\]"):
        kernels.draw_weights(mean, rho, torch.tensor(1), prior=(1.0,))
    with pytest.raises(ValueError, match=r"keys must be int64 on the CPU, got torch.int32 on cpu"):
        kernels.draw_weights(mean, rho, torch.tensor([1, 2], dtype=torch.int32))
    with pytest.raises(ValueError, match=r"a bool for each key, of shape \(2,\), got torch.bool of shape \(1,\)"):
        kernels.keyed_noise(torch.tensor([1, 2]), (3,), mirrored=torch.tensor([True]))
    with pytest.raises(ValueError, match="noise must be given for a mixture"):
        kernels.weight_divergence(mean, rho, MIXTURE)


def test_the_compiler_sees_the_formula(compiler: None, either: str, calls: list[str]) -> None:
    mean, rho = parameters(6, 5, low=-4.0, high=1.0)
    graphs: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module.print_readable(print_output=False))
        return module.forward

    def draw(mean: Tensor, rho: Tensor, key: Tensor, noise: Tensor) -> tuple[Tensor | None, ...]:
        drawn = kernels.draw_weights(mean, rho, key, prior=NORMAL)
        return (
            *drawn,
            *kernels.draw_weights(mean, rho, noise=noise, prior=MIXTURE),
            kernels.weight_divergence(mean, rho, NORMAL),
        )

    key, noise = torch.tensor(4), torch.randn(6, 5)
    results = torch.compile(draw, backend=backend, fullgraph=True)(mean, rho, key, noise)
    assert len(graphs) == 1
    assert "dubio.draw_weights" not in graphs[0]
    assert "dubio.keyed_noise" in graphs[0]
    assert "draw" not in calls
    torch.testing.assert_close(results, draw(mean, rho, key, noise))


# Noise.


def philox(key: int, place: int, row: int, third: int = 0, fourth: int = 0) -> list[int]:
    """Four numbers of 32 bits, by the definition of Philox 4x32 with ten rounds."""
    counter, low, high = [place, row, third, fourth], key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ low,
            second & 0xFFFFFFFF,
            (first >> 32) ^ counter[3] ^ high,
            first & 0xFFFFFFFF,
        ]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return counter


def expected_noise(kind: str, key: int, rows: int, width: int, first_row: int) -> np.ndarray:
    """Frozen noise, number by number."""
    calls = -(-width // 4)
    out = np.empty((rows, 4 * calls), dtype=np.float64)
    for row in range(rows):
        for place in range(calls):
            words = philox(key, place, (first_row + row) & 0xFFFFFFFF)
            if kind == "normal":
                numbers = []
                for one, two in (words[:2], words[2:]):
                    radius, angle = np.sqrt(-2.0 * np.log((one + 0.5) / 2**32)), 2.0 * np.pi * two / 2**32
                    numbers += [radius * np.cos(angle), radius * np.sin(angle)]
            elif kind == "uniform":
                signed = [word if word < 2**31 else 2**32 - 1 - word for word in words]
                numbers = [np.float32(word) * np.float32(4.6566127342e-10) for word in signed]
            else:
                numbers = [-1.0 if word >> 31 else 1.0 for word in words]
            out[row, place::calls] = numbers
    return out[:, :width]


def xoshiro(key: int, block: int, count: int) -> list[int]:
    """Words of xoshiro128++ in 64 lanes, seeded by Philox, as fresh noise takes them; 256 of them make a chunk."""
    mask = 0xFFFFFFFF
    states = [seed_of(key, lane, block) for lane in range(64)]
    words = []
    for _ in range(count // 64):
        for state in states:
            a, b, c, d = state
            total = (a + d) & mask
            words.append((((total << 7) | (total >> 25)) + a) & mask)
            c, d = c ^ a, d ^ b
            b, a = b ^ c, a ^ d
            c ^= (state[1] << 9) & mask
            state[:] = [a, b, c, ((d << 11) | (d >> 21)) & mask]
    return words


def seed_of(key: int, lane: int, block: int) -> list[int]:
    return philox(key, lane, block & 0xFFFFFFFF, block >> 32, 0x64756269)


@needs_library
@levels
def test_fresh_noise_is_xoshiro_seeded_by_philox(level: int, at_level: Callable[[int], None]) -> None:
    """Of a key, blocks and lanes; the words in order."""
    at_level(level)
    key = 0x123456789ABCDEF
    words = np.array(xoshiro(key, 0, 4096) + xoshiro(key, 1, 1024), dtype=np.int64)
    numbers = np.where(words < 2**31, words, 2**32 - 1 - words).astype(np.float32) * np.float32(4.6566127342e-10)
    result = kernels.keyed_noise(torch.tensor(key), (5000,), "uniform").numpy()
    np.testing.assert_array_equal(result, numbers[:5000])
    pairs = words.reshape(-1, 2, 256)
    radius, angle = np.sqrt(-2.0 * np.log((pairs[:, 0] + 0.5) / 2**32)), 2.0 * np.pi * pairs[:, 1] / 2**32
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()
    result = kernels.keyed_noise(torch.tensor(key), (5000,)).numpy()
    np.testing.assert_allclose(result, expected[:5000], rtol=1e-4, atol=1e-5)


def frozen(draws: Sequence[int], shape: Sequence[int], kind: str = "normal", **options: Any) -> Tensor:
    """Noise as ``triton_kernel.fill`` is asked for it."""
    out = torch.full((len(draws), *shape), math.nan, dtype=options.pop("dtype", torch.float32))
    given = {"digest": _digest("7/11/0", 0), "antithetic": False, "num_rows": 1, "first_row": 0, **options}
    kernels.fill(out, draws, kind=kind, **given)
    return out


@pytest.mark.parametrize("kind", ["normal", "uniform", "sign"])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (1, 1029), (3, 7), (70, 1), (5, 12), (2, 515)])
@pytest.mark.parametrize("draw", [0, 3])
def test_frozen_noise_is_that_of_the_kernel_for_gpus(kind: str, rows: int, width: int, draw: int, either: str) -> None:
    first_row = 2**32 - 2 if rows > 2 else 5
    result = frozen([draw], (rows, width), kind, num_rows=rows, first_row=first_row)[0].numpy()
    digest = _digest("7/11/0", 0)
    expected = expected_noise(kind, ((digest >> 33) << 32) | ((digest + draw) & 0xFFFFFFFF), rows, width, first_row)
    if kind == "normal":
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_array_equal(result, expected.astype(np.float32))


def test_known_numbers_of_philox(either: str) -> None:
    """Vectors of Random123's kat_vectors; counter and key of zeros are those of the first numbers of a digest of 0."""
    ones = 0xFFFFFFFF
    assert philox(2**64 - 1, ones, ones, ones, ones) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert philox(0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    result = torch.empty(1, 4)
    kernels.fill(result, [0], 0, "normal", antithetic=False, num_rows=1, first_row=0)
    words = np.array(philox(0, 0, 0), dtype=np.float64)
    radius, angle = np.sqrt(-2.0 * np.log((words[[0, 2]] + 0.5) / 2**32)), 2.0 * np.pi * words[[1, 3]] / 2**32
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()
    np.testing.assert_allclose(result[0].numpy(), expected, rtol=1e-4, atol=1e-5)


@needs_library
@levels
@pytest.mark.parametrize("kind", ["normal", "uniform", "sign"])
def test_frozen_noise_is_the_same_with_every_set_of_instructions(
    level: int, kind: str, at_level: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_level(level)
    options = {"num_rows": 9, "first_row": 3, "antithetic": True}
    result = frozen(range(4), (9, 1111), kind, **options)
    monkeypatch.setattr(kernels, "_load", lambda: (None, ""))
    expected = frozen(range(4), (9, 1111), kind, **options)
    torch.testing.assert_close(
        result, expected, **({"rtol": 1e-4, "atol": 1e-5} if kind == "normal" else {"rtol": 0.0, "atol": 0.0})
    )


@pytest.mark.parametrize("kind", ["normal", "uniform", "sign"])
@pytest.mark.parametrize(("rows", "width", "first_row"), [(5, 21, 3), (1, 2049, 0), (40, 1, -5), (3, 12, 1)])
def test_a_cpu_and_a_gpu_draw_the_same_frozen_noise(
    kind: str, rows: int, width: int, first_row: int, either: str
) -> None:
    """On a GPU, or by Triton's interpreter (``TRITON_INTERPRET=1``)."""
    pytest.importorskip("triton")
    if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
        pytest.skip("needs a GPU")
    from dubio._engine import triton_kernel

    there = torch.empty(4, rows, width, device="cuda" if torch.cuda.is_available() else "cpu")
    arguments = ([0, 1, 5, 6], 0xFEDCBA9876543210, kind, True, rows, first_row)
    triton_kernel.fill(there, *arguments)
    here = torch.empty(4, rows, width)
    kernels.fill(here, *arguments)
    if kind == "normal":
        torch.testing.assert_close(here, there.cpu(), rtol=1e-4, atol=1e-5)
    else:
        assert torch.equal(here, there.cpu())


@needs_library
def test_draws_of_weights_have_the_noise_of_their_keys() -> None:
    shape = (1234, 5)
    keys, mirrored = kernels.frozen_keys(_digest("7/11/0", 0), torch.arange(4), antithetic=True)
    for is_frozen in (True, False):
        rho = torch.full(shape, 0.541324854612918)  # a softplus of one
        weights, _ = kernels.draw_weights(torch.zeros(shape), rho, keys, mirrored=mirrored, frozen=is_frozen)
        noise = kernels.keyed_noise(keys, shape, mirrored=mirrored, frozen=is_frozen)
        torch.testing.assert_close(weights, noise, rtol=1e-6, atol=0.0)
        assert torch.equal(noise[1::2], -noise[::2])
    assert torch.equal(
        kernels.keyed_noise(keys, shape, mirrored=mirrored, frozen=True), frozen(range(4), shape, antithetic=True)
    )


@pytest.mark.parametrize(("kind", "whole"), [("normal", 0.0), ("uniform", 1.0), ("sign", None)])
def test_pairs_mirror_each_other(kind: str, whole: float | None, either: str) -> None:
    result = frozen(range(4), (900,), kind, antithetic=True)
    assert torch.equal(result[1::2], result[::2] if whole is None else whole - result[::2])
    assert torch.equal(result[::2], frozen([0, 1], (900,), kind))


@pytest.mark.parametrize("kind", ["normal", "uniform", "sign"])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_shorter_noise_of_a_key_and_other_types(kind: str, is_frozen: bool, either: str) -> None:
    key = torch.tensor(77)
    whole = kernels.keyed_noise(key, (5000,), kind, frozen=is_frozen)
    assert bool(whole.isfinite().all())
    if not is_frozen and either == "library":
        for size in (1, 3, 511, 513, 4095, 4097):
            assert torch.equal(kernels.keyed_noise(key, (size,), kind), whole[:size])
    assert kernels.keyed_noise(key, (0, 3), kind, frozen=is_frozen).shape == (0, 3)
    for dtype in (torch.float64, torch.bfloat16):
        other = kernels.keyed_noise(key, (5000,), kind, frozen=is_frozen, dtype=dtype)
        assert other.dtype == dtype
        if either == "library" or is_frozen:
            assert torch.equal(other, whole.to(dtype))


@needs_library
def test_noise_into_a_tensor_that_is_not_contiguous() -> None:
    out = torch.full((10, 6), math.nan)
    kernels.fill(out.t(), range(6), 5, "normal", antithetic=False, num_rows=1, first_row=0)
    expected = torch.empty(6, 10)
    kernels.fill(expected, range(6), 5, "normal", antithetic=False, num_rows=1, first_row=0)
    assert torch.equal(out.t(), expected)


SIZE = 2**18
NOISES = {
    "fresh": lambda key, size: kernels.keyed_noise(torch.tensor(key), (size,)),
    "frozen": lambda key, size: kernels.keyed_noise(torch.tensor(key), (size,), frozen=True),
}
noises = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)


def largest_correlation(one: Tensor, other: Tensor | None = None) -> float:
    """Over all lags, in standard errors; of one tensor with itself over all but zero."""
    first, second = (t.double() - t.double().mean() for t in (one, one if other is None else other))
    products = torch.fft.irfft(torch.fft.rfft(first) * torch.fft.rfft(second).conj(), n=len(first))
    size = first.square().mean().sqrt() * second.square().mean().sqrt() * math.sqrt(len(first))
    return float(products[1 if other is None else 0 :].abs().max() / size)


@needs_library
@noises
def test_neighbouring_keys_are_no_shifted_copies_of_each_other(noise: Callable[[int, int], Tensor]) -> None:
    for key in (0, 2**62 + 12345):
        first = noise(key, SIZE)
        for other in (key + 1, key + 2, key + 3, key ^ 2**32, key ^ 2**33, key ^ 2**61, -key - 1):
            second = noise(other, SIZE)
            # Of 2^18 independent correlations the largest exceeds 6.5 standard errors with a chance of 2e-5.
            assert largest_correlation(first, second) < 6.5
            assert largest_correlation(first.abs(), second.abs()) < 6.5


@needs_library
@noises
def test_numbers_of_a_draw_do_not_depend_on_each_other(noise: Callable[[int, int], Tensor]) -> None:
    """At any distance: of lanes, of both results of a transform, of blocks."""
    values = noise(31, SIZE)
    for change in (lambda t: t, torch.abs, torch.square, lambda t: (t > 1.0).float()):
        assert largest_correlation(change(values)) < 6.5
    # Pairs that a transform makes together lie on no curve: angles are uniform, too.
    for first, second in ((values[:-256], values[256:]), (values[: SIZE // 4], values[SIZE // 4 : SIZE // 2])):
        angle = torch.atan2(first, second).double() / math.tau + 0.5
        assert stats.kstest(angle.numpy()[:20000], "uniform").pvalue > 1e-3


@needs_library
@noises
def test_moments(noise: Callable[[int, int], Tensor]) -> None:
    size = 2**20
    values = noise(5, size).double()
    for power, moment, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0), (6, 15.0, 10170.0)):
        assert abs(float((values**power).mean()) - moment) < 4.5 * math.sqrt(variance / size)
    lanes = values.view(-1, 64).mean(dim=0) * math.sqrt(size / 64)
    blocks = values.view(-1, 4096).mean(dim=1) * math.sqrt(4096)
    assert stats.kstest(lanes.numpy(), "norm").pvalue > 1e-3
    assert stats.kstest(blocks.numpy(), "norm").pvalue > 1e-3


@needs_library
@pytest.mark.parametrize("is_frozen", [False, True])
def test_uniform_numbers_and_signs(is_frozen: bool) -> None:
    uniform, sign = (
        kernels.keyed_noise(torch.tensor(6), (SIZE,), kind, frozen=is_frozen) for kind in ("uniform", "sign")
    )
    assert stats.kstest(uniform.numpy(), "uniform").pvalue > 1e-3
    assert float(uniform.min()) >= 0.0
    assert float(uniform.max()) < 1.0
    assert set(sign.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(sign.mean())) < 4.5 / math.sqrt(SIZE)
    assert largest_correlation(sign) < 6.5


@pytest.mark.slow
@needs_library
@pytest.mark.timeout(300)
@noises
def test_ten_million_numbers_are_normal(noise: Callable[[int, int], Tensor]) -> None:
    values = noise(1, 10**7)
    assert stats.kstest(values.double().numpy(), "norm").pvalue > 1e-3
    # The tails, of which a test of the whole distribution says little.
    for bound in (3.0, 4.0, 5.0):
        expected = 2.0 * stats.norm.sf(bound) * 10**7
        assert abs(float((values.abs() > bound).sum()) - expected) < 5.0 * math.sqrt(expected)
    keys = torch.arange(10**4)
    first = torch.cat([kernels.keyed_noise(part, (2,)) for part in keys.split(1000)])
    assert stats.kstest(first.flatten().double().numpy(), "norm").pvalue > 1e-3


# The process.


def run_script(script: str, **variables: str) -> str:
    """The output of a script in a process of its own, with the library that is tested here."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "DUBIO_"))}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"} | variables
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_library
def test_the_process_has_one_openmp_runtime_and_torch_keeps_its_threads() -> None:
    script = """
import os, re, torch
from dubio._engine import kernels
def tasks():
    return len(os.listdir("/proc/self/task"))
def runtimes():
    return {line.split()[-1] for line in open("/proc/self/maps") if re.search(r"/lib(gomp|iomp5|omp)[-.]", line)}
mean, rho, key = torch.zeros(400_000), torch.zeros(400_000), torch.tensor(1)
for threads in (1, 3):
    torch.set_num_threads(threads)
    begin = tasks()
    kernels.draw_weights(mean, rho, key, prior=(0.0, 1.0))
    kernels.keyed_noise(key, (400_000,))
    print(threads, torch.get_num_threads(), tasks() - begin)
begin = tasks()
mean + rho  # by the same threads
print(tasks() - begin, len(runtimes()), float(torch.tensor(1e-40) * 1.0) > 0.0)
torch.set_num_threads(2)
kernels.draw_weights(mean, rho, key)
print(torch.get_num_threads(), len(runtimes()))
"""
    if not Path("/proc/self/maps").is_file():
        pytest.skip("needs /proc")
    lines = run_script(script, OMP_NUM_THREADS="1").splitlines()
    assert lines == ["1 1 0", "3 3 2", "0 1 True", "2 1"]


@needs_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_draws_the_same_numbers() -> None:
    script = """
import multiprocessing, torch
from dubio._engine import kernels
torch.set_num_threads(2)
mean, rho, key = torch.zeros(400_000, requires_grad=True), torch.zeros(400_000), torch.tensor(1)
gradient = torch.ones(400_000)
def work(queue):
    weights, total = kernels.draw_weights(mean, rho, key, prior=(0.0, 1.0))
    weights.backward(gradient)
    queue.put((float(weights.detach().numpy().sum()), total.item(), float(mean.grad.numpy().sum())))
here = multiprocessing.SimpleQueue()
work(here)
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
worker = context.Process(target=work, args=(queue,))
mean.grad = None
worker.start()
worker.join(60)
print(worker.exitcode, queue.get() == here.get())
"""
    assert run_script(script).split() == ["0", "True"]


def test_the_library_can_be_switched_off() -> None:
    script = """
import torch
from dubio._engine import kernels
print(kernels.kernels_available(), kernels.kernels_unavailable_reason())
print(kernels.draw_weights(torch.zeros(9), torch.zeros(9), torch.tensor(1), prior=(0.0, 1.0))[0].shape)
"""
    lines = run_script(script, DUBIO_KERNELS="0").splitlines()
    assert lines == ["False The kernels are switched off by DUBIO_KERNELS=0.", "torch.Size([9])"]


def test_a_missing_or_foreign_library_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUBIO_KERNELS", raising=False)
    monkeypatch.setattr(kernels, "LIBRARY", tmp_path / "libkernels.so")
    load = kernels._load.__wrapped__
    library, reason = load()
    assert library is None
    assert reason == "The kernels were not built: dubio was installed without a C compiler."
    (tmp_path / "libkernels.so").write_bytes(b"nothing")
    library, reason = load()
    assert library is None
    assert reason.startswith("The kernels could not be loaded: ")


@needs_library
def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERFACE", -1)
    library, reason = kernels._load.__wrapped__()
    assert library is None
    assert reason == "The kernels were built from another version of dubio: install it again."


@pytest.mark.slow
@pytest.mark.timeout(300)
@needs_library
def test_more_weights_than_32_bits_count(threads: Callable[[int], None]) -> None:
    size = 2**31 + 8
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if memory < 12 * 2**30:
        pytest.skip("needs 12 GiB of free memory")
    threads(2)
    zeros, key = torch.zeros(size), torch.tensor(3)  # never written to: they take no memory
    noise = kernels.keyed_noise(key, (size,), frozen=True)
    tail = noise[-10_000:].clone()
    del noise
    for is_frozen in (True, False):
        weights, total = kernels.draw_weights(zeros, zeros, key, prior=(0.0, 1.0), frozen=is_frozen)
        ends = (weights[:10_000] / math.log(2.0), weights[-10_000:] / math.log(2.0))
        if is_frozen:
            torch.testing.assert_close(ends[1], tail)
        else:
            torch.testing.assert_close(ends[0], kernels.keyed_noise(key, (10_000,)))
        del weights
        each = 0.5 * (math.log(2.0) ** 2 - 1.0) - math.log(math.log(2.0))
        assert total.item() == pytest.approx(size * each, rel=1e-6)
        assert abs(float(ends[1].double().std()) - 1.0) < 0.05
        assert largest_correlation(*ends) < 6.5
    calls = -(-size // 4)
    for place in (size - 1, size - 3):
        quarter, column = divmod(place, calls)
        words = philox(3, column, 0)
        pair = words[2 * (quarter // 2) : 2 * (quarter // 2) + 2]
        radius, angle = math.sqrt(-2.0 * math.log((pair[0] + 0.5) / 2**32)), math.tau * pair[1] / 2**32
        expected = radius * (math.sin(angle) if quarter % 2 else math.cos(angle))
        assert float(tail[place - size]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


# The build.

SANITIZED = """
import ctypes, itertools, math, sys, torch
from pathlib import Path
from dubio._engine import kernels
kernels.LIBRARY = Path(sys.argv[1])
assert kernels.kernels_available(), kernels.kernels_unavailable_reason()
torch.manual_seed(0)
best = kernels._threads().level
parallel = kernels._parallel()
for level, threads in [*((level, 1) for level in range(best + 1)), (best, 3)]:
    kernels._threads = lambda: kernels._ThreadStructure(parallel if threads > 1 else None, threads, level)
    for size in (1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 513, 1023, 1025, 4095, 4096, 4097, 70_001):
        mean, rho = (torch.randn(size) * 9.0).requires_grad_(), (torch.randn(size) * 20.0).requires_grad_()
        with torch.no_grad():
            for place, value in ((0, math.nan), (-1, math.inf), (size // 2, -math.inf), (size // 3, 1e38)):
                mean[place], rho[place] = value, value
        own = {"removed": torch.rand(size) < 0.3, "fixed": torch.rand(size) < 0.3}
        keys = torch.randint(2**63 - 1, (2,))
        for prior, masks, frozen in itertools.product(((), (0.0, 1.0), (0.5, 0.4, 0.01)), ({}, own), (False, True)):
            for source in ({"keys": keys, "frozen": frozen}, {"noise": torch.randn(2, size)}):
                outputs = kernels.draw_weights(mean, rho, prior=prior, **source, **masks)
                sum(output.sum() for output in outputs if output is not None).backward()
        kernels.weight_divergence(mean, rho, (0.0, 1.0), centre=torch.randn(size)).backward()
        for kind, frozen in itertools.product(kernels.KINDS, (False, True)):
            kernels.keyed_noise(keys, (size,), kind, mirrored=torch.tensor([True, False]), frozen=frozen)
            rows = next(n for n in (7, 5, 3, 2, 1) if size % n == 0)
            kernels.fill(torch.empty(3, size), [0, 1, 5], 2**64 - 1, kind, True, rows, 2**32 - 1)
            kernels.fill(torch.empty(3, size), [0, 1, 5], 2**64 - 1, kind, True, size, 2**32 - 1)
print("clean")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="preloads the runtime of the sanitizers")
def test_sanitizers_have_nothing_to_report(tmp_path: Path) -> None:
    library, settings = tmp_path / "libkernels.so", _setup().COMPILE
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1", "-fPIC", "-shared"]
    build = [str(COMPILER), *settings, *flags, str(SOURCE), "-o", str(library), "-lm"]
    done = subprocess.run(build, capture_output=True, text=True)
    if "cannot find" in done.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    names = [f"-print-file-name=lib{name}.so" for name in ("asan", "ubsan")]
    paths = [subprocess.run([str(COMPILER), name], capture_output=True, text=True).stdout.strip() for name in names]
    script = tmp_path / "edges.py"
    script.write_text(SANITIZED)
    variables = {"LD_PRELOAD": " ".join(paths), "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    environment = {name: value for name, value in os.environ.items() if name != "DUBIO_KERNELS"}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"} | variables
    done = subprocess.run(
        [sys.executable, str(script), str(library)], env=environment, capture_output=True, text=True, timeout=280
    )
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stdout + done.stderr


def _setup() -> Any:
    """The module ``setup.py``, without its effect."""
    spec = importlib.util.spec_from_file_location("setup_of_dubio", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("compiler", [pytest.param("cc", marks=needs_compiler), "false"])
def test_a_wheel_holds_the_library_where_there_is_a_compiler(compiler: str, tmp_path: Path) -> None:
    if not {"pip", "setuptools"} <= {distribution.name for distribution in importlib.metadata.distributions()}:
        pytest.skip("needs pip and setuptools")
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path)]
    environment = os.environ | ({} if compiler == "cc" else {"CC": compiler})
    command = [sys.executable, "-m", "pip", "wheel", str(tree), *options]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=280)
    wheel = next(tmp_path.glob("*.whl"))
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_") if compiler == "cc" else "any"
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert ("dubio/_engine/libkernels.so" in archive.namelist()) == (compiler == "cc")
        if compiler == "cc":
            archive.extract("dubio/_engine/libkernels.so", tmp_path)
            library = ctypes.CDLL(str(tmp_path / "dubio" / "_engine" / "libkernels.so"))
            assert library.dubio_interface() == kernels.INTERFACE
