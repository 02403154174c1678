"""Weights of a Gaussian posterior, their divergence from the prior, and keyed noise: on a CPU by a library in C.

Drawing ``mean + softplus(rho) * noise`` (E-15, E-16), the divergence from the prior (E-7, E-19) and the gradients of
both take a dozen passes over memory as operations of torch, and two in ``kernels.c``. Noise is a function of a key, so
that the backward pass draws it again instead of keeping it.

- ``draw_weights``, ``draw_each``: draws in a stack or apart, and their divergence;
- ``weight_divergence``: the divergence alone;
- ``keyed_noise``, ``fill``: noise alone. *Frozen* noise is Philox 4x32-10, as ``triton_kernel`` draws it on a GPU: the
  same bits, signs and uniform numbers, and normal numbers that differ in the last digits of a logarithm and a sine.
  *Fresh* noise is cheaper, and promises nothing but its distribution.

The library is an optional part of an installation, built where there is a compiler (``setup.py``), and switched off by
``DUBIO_KERNELS=0``. Without it, under ``torch.compile``, and for tensors that it does not serve - on another device,
not float32, not contiguous, empty, under transforms other than ``vmap`` over draws - ``draw_weights`` computes the
formula (``_composite``), and ``weight_divergence`` its analytic gradient in parts that stay in the cache.

Invariants (``tests/engine/test_kernels.py``): values and gradients equal those of the formula in float64 to 1e-6;
neither the number of threads nor that of draws changes a number; NaN stays NaN; the process has one OpenMP runtime.
"""

import ctypes
import math
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from dubio import functional

INTERFACE = 1
"""Counted up with every change of the structures below, here and in ``kernels.c``."""
KINDS = ("normal", "uniform", "sign")
GIVEN, FRESH, FROZEN = range(3)
NO_PRIOR, NORMAL_PRIOR, MIXTURE_PRIOR = range(3)
PART = 2**16
"""Elements that operations of torch work on at a time, where they can: what they write stays in the cache."""

PROCESS = os.getpid()
LIBRARY = Path(__file__).with_name("libkernels.so")

Prior = Sequence[float]
"""Of a normal prior its mean and standard deviation, of a mixture the weight of the wide component and both."""


class _ThreadStructure(ctypes.Structure):
    _fields_ = [("parallel", ctypes.c_void_p), ("num_threads", ctypes.c_int64), ("level", ctypes.c_int64)]


class _DrawStructure(ctypes.Structure):
    _fields_ = [
        ("threads", _ThreadStructure),
        *((name, ctypes.c_int64) for name in ("num_weights", "num_draws")),
        *((name, ctypes.c_void_p) for name in ("mean", "rho", "centre", "removed", "fixed")),
        ("prior", ctypes.c_int64),
        ("prior_parameters", ctypes.c_double * 3),
        ("noise", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("keys", "mirrored", "given")),
        ("around_zero", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("weights", "divergence", "sums", "gradients", "divergence_gradients")),
        *((name, ctypes.c_void_p) for name in ("mean_gradient", "rho_gradient")),
    ]


class _NoiseStructure(ctypes.Structure):
    _fields_ = [
        ("threads", _ThreadStructure),
        *((name, ctypes.c_int64) for name in ("num_draws", "num_rows", "width", "first_row", "kind", "noise")),
        *((name, ctypes.c_void_p) for name in ("keys", "mirrored", "out")),
    ]


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or the reason why there is none."""
    if os.environ.get("DUBIO_KERNELS") == "0":
        return None, "The kernels are switched off by DUBIO_KERNELS=0."
    if not LIBRARY.is_file():
        return None, "The kernels were not built: dubio was installed without a C compiler."
    try:
        library = ctypes.CDLL(str(LIBRARY))
        for name in ("dubio_interface", "dubio_level", "dubio_units"):
            getattr(library, name).restype = ctypes.c_int64
        if library.dubio_interface() != INTERFACE:
            return None, "The kernels were built from another version of dubio: install it again."
    except (OSError, AttributeError) as error:
        return None, f"The kernels could not be loaded: {error}."
    return library, ""


def kernels_available() -> bool:
    """Whether the library in C is used."""
    return _load()[0] is not None


def kernels_unavailable_reason() -> str:
    """Why it is not used, in one sentence; empty where it is."""
    return _load()[1]


@cache
def _parallel() -> int | None:
    """The address of GOMP_parallel in the OpenMP runtime that torch runs on; None where it has another interface.

    It is looked up as the linker resolved it for torch: among the global symbols of the process first, such as those of
    a preloaded runtime, then among the libraries that torch was linked to. So no other runtime is ever loaded.
    """
    suffix = "dylib" if sys.platform == "darwin" else "so"
    for name in (None, str(Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{suffix}")):
        try:
            return ctypes.cast(ctypes.CDLL(name).GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


def _threads() -> _ThreadStructure:
    library = _load()[0]
    assert library is not None
    # The threads of an OpenMP runtime do not survive a fork: the child would wait for them for ever.
    num_threads = torch.get_num_threads() if os.getpid() == PROCESS else 1
    return _ThreadStructure(_parallel() if num_threads > 1 else None, num_threads, library.dubio_level())


def draw_weights(
    mean: Tensor,
    rho: Tensor,
    keys: Tensor | None = None,
    *,
    noise: Tensor | None = None,
    prior: Prior = (),
    centre: Tensor | None = None,
    removed: Tensor | None = None,
    fixed: Tensor | None = None,
    mirrored: Tensor | None = None,
    frozen: bool = False,
    perturbations: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Draws of weights, ``mean + softplus(rho) * noise``, and their divergence from a prior.

    Under ``vmap`` over keys, all draws are one call.

    Args:
        mean: the means, `(*shape)`.
        rho: the softplus arguments of the standard deviations, `(*shape)`.
        keys: a 64-bit number for each draw, `(*draws)`, of which its noise is a function.
        noise: the noise itself, `(*draws, *shape)`, in place of keys.
        prior: what the divergence is taken from, if anything: mean and standard deviation of a normal prior, or weight
            of the wide component, wide and narrow standard deviation of a mixture.
        centre: means of the normal prior, one for each weight, in place of the one in ``prior``.
        removed: weights that are zero in every draw and not part of the divergence.
        fixed: weights that are not random: their means in every draw, and not part of the divergence.
        mirrored: draws whose noise has the opposite sign, `(*draws)`.
        frozen: whether keys give the noise of ``fill``, the same on every device.
        perturbations: whether draws are returned without the mean.

    Returns:
        The draws, `(*draws, *shape)`, and the divergence, summed over weights: one number for a normal prior, an
        estimate from each draw, `(*draws)`, for a mixture, None without a prior.
    """
    job = _job(mean, rho, keys, noise, prior, centre, removed, fixed, mirrored, frozen, perturbations)
    weights, total = _OPERATOR(*job) if _is_operator(job) and _is_served(job) else _composite(job)
    return weights, total if prior else None


def draw_each(
    mean: Tensor,
    rho: Tensor,
    keys: Tensor,
    *,
    prior: Prior = (),
    centre: Tensor | None = None,
    removed: Tensor | None = None,
    fixed: Tensor | None = None,
    mirrored: Tensor | None = None,
    frozen: bool = False,
    perturbations: bool = False,
) -> tuple[list[Tensor], Tensor | None]:
    """``draw_weights`` with a tensor for each of the keys, `(draw)`.

    For draws that are used one after another: their gradients are read where they are, and not stacked first.
    """
    job = _job(mean, rho, keys, None, prior, centre, removed, fixed, mirrored, frozen, perturbations)
    if _is_operator(job) and _is_served(job) and torch._C._functorch.peek_interpreter_stack() is None:
        *each, total = _DrawEach.apply(*job)
    else:
        weights, total = _composite(job)
        each = list(weights.unbind())
    return each, total if prior else None


def weight_divergence(
    mean: Tensor,
    rho: Tensor,
    prior: Prior,
    *,
    noise: Tensor | None = None,
    centre: Tensor | None = None,
    removed: Tensor | None = None,
    fixed: Tensor | None = None,
) -> Tensor:
    """The divergence of weights from a prior, summed, with an analytic gradient; arguments as in ``draw_weights``.

    A mixture needs the noise of the draws, `(*draws, *shape)`, and has an estimate from each, `(*draws)`.
    """
    job = _Job(mean, rho, None, None, noise, centre, removed, fixed, _checked(prior), "divergence", False)
    if job.is_estimated and noise is None:
        raise ValueError("noise must be given for a mixture, whose divergence is estimated from draws, got None")
    if not job.is_estimated:
        job = job._replace(noise=None)
    # Without the library a call of the operator costs more than the formula of a small tensor.
    by_operator = _is_operator(job) and (kernels_available() or mean.numel() > PART)
    return (_OPERATOR(*job) if by_operator else _composite(job))[1]


def keyed_noise(
    keys: Tensor,
    shape: Sequence[int],
    kind: str = "normal",
    *,
    mirrored: Tensor | None = None,
    frozen: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Noise as a function of 64-bit keys, `(*keys.shape, *shape)`: the noise that ``draw_weights`` draws.

    Under ``vmap`` over keys all draws are one call. Fresh noise without the library comes from torch's generators.
    """
    _check_keys(keys, mirrored)
    noise: Tensor = _NOISE(keys, mirrored, list(shape), kind, frozen, dtype, torch.device(device))
    return noise


def frozen_keys(digest: int, draw: Tensor, antithetic: bool = False) -> tuple[Tensor, Tensor | None]:
    """Keys of the frozen noise of draws, by 64 bits that identify the noise, and which draws are mirrored."""
    source = draw // 2 if antithetic else draw
    keys = ((digest >> 33) << 32) | ((digest % 2**32 + source) & 0xFFFFFFFF)
    return keys, draw % 2 == 1 if antithetic else None


def fill(
    out: Tensor, draws: Sequence[int], digest: int, kind: str, antithetic: bool, num_rows: int, first_row: int
) -> None:
    """Fill ``out``, `(draw, ...)`, with frozen noise: the arguments and the numbers of ``triton_kernel.fill``."""
    keys, mirrored = frozen_keys(digest, torch.tensor(draws, dtype=torch.int64, device="cpu"), antithetic)
    _fill(out, keys, mirrored, kind, True, num_rows, first_row)


class _Job(NamedTuple):
    """The arguments of the operator ``dubio::draw_weights``, in order."""

    mean: Tensor
    rho: Tensor
    keys: Tensor | None
    mirrored: Tensor | None
    noise: Tensor | None
    centre: Tensor | None
    removed: Tensor | None
    fixed: Tensor | None
    prior: Prior
    what: str
    """"weights", "perturbations", or "divergence" where nothing is drawn."""
    frozen: bool

    @property
    def draws(self) -> torch.Size:
        """The shape of the draws: that of the keys, or the leading axes of the noise."""
        if self.noise is not None:
            return self.noise.shape[: self.noise.dim() - self.mean.dim()]
        return torch.Size() if self.keys is None else self.keys.shape

    @property
    def is_drawn(self) -> bool:
        """Whether there is noise, for one draw or more."""
        return self.keys is not None or self.noise is not None

    @property
    def is_estimated(self) -> bool:
        """Whether the divergence has no closed form, and each draw its own estimate."""
        return len(self.prior) == 3

    @property
    def exact(self) -> torch.dtype:
        """The type that the divergence is computed in."""
        return torch.promote_types(self.mean.dtype, torch.float32)

    def with_noise(self) -> "_Job":
        """The same with noise in place of keys."""
        if self.keys is None:
            return self
        options: dict[str, Any] = {"dtype": self.mean.dtype, "device": self.mean.device}
        noise = keyed_noise(self.keys, self.mean.shape, mirrored=self.mirrored, frozen=self.frozen, **options)
        return self._replace(keys=None, mirrored=None, noise=noise)

    def random(self, values: Tensor) -> Tensor:
        """Values, zero for weights that are not random."""
        values = values if self.removed is None else values.masked_fill(self.removed, 0.0)
        return values if self.fixed is None else values.masked_fill(self.fixed, 0.0)

    def in_parts(self) -> Iterator[tuple[slice, "_Job"]]:
        """Parts of the weights, flat; all of them but on a CPU."""
        size = self.mean.numel()
        step = PART if self.mean.device.type == "cpu" else max(size, 1)
        noise = None if self.noise is None else self.noise.reshape(*self.draws, size)
        names = ("mean", "rho", "centre", "removed", "fixed")
        flat = {name: tensor.reshape(size) for name in names if (tensor := getattr(self, name)) is not None}
        for begin in range(0, size, step):
            part = slice(begin, begin + step)
            own = {name: tensor[part] for name, tensor in flat.items()}
            yield part, self._replace(noise=None if noise is None else noise[..., part], **own)


def _job(
    mean: Tensor,
    rho: Tensor,
    keys: Tensor | None,
    noise: Tensor | None,
    prior: Prior,
    centre: Tensor | None,
    removed: Tensor | None,
    fixed: Tensor | None,
    mirrored: Tensor | None,
    frozen: bool,
    perturbations: bool,
) -> _Job:
    if (keys is None) == (noise is None):
        raise ValueError("weights are drawn by either keys or noise, got " + ("neither" if noise is None else "both"))
    if keys is not None:
        _check_keys(keys, mirrored)
    what = "perturbations" if perturbations else "weights"
    return _Job(mean, rho, keys, mirrored, noise, centre, removed, fixed, _checked(prior), what, frozen)


def _check_keys(keys: Tensor, mirrored: Tensor | None) -> None:
    if keys.dtype != torch.int64 or keys.device.type != "cpu":
        raise ValueError(f"keys must be int64 on the CPU, got {keys.dtype} on {keys.device}")
    if mirrored is not None and (mirrored.dtype != torch.bool or mirrored.shape != keys.shape):
        raise ValueError(
            f"mirrored must have a bool for each key, of shape {tuple(keys.shape)}, got {mirrored.dtype} of shape "
            f"{tuple(mirrored.shape)}"
        )


def _checked(prior: Prior) -> list[float]:
    if len(prior) not in (0, 2, 3):
        raise ValueError(f"prior must have 2 numbers (normal) or 3 (mixture), or be empty, got {list(prior)}")
    # With one component, or two of one width, a mixture is a normal prior.
    if len(prior) == 3 and (prior[0] == 1.0 or prior[1] == prior[2]):
        return [0.0, prior[1]]
    return list(prior)


def _is_operator(job: _Job) -> bool:
    """Whether the operator computes it: not where a compiler or a transform must see the formula."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or forward_ad._current_level >= 0:
        return False
    others = (job.noise, job.centre)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in others):
        return False
    if torch._C._functorch.peek_interpreter_stack() is None:
        return True
    stack = torch._C._functorch.get_interpreter_stack()
    maps = all(interpreter.key() == torch._C._functorch.TransformType.Vmap for interpreter in stack)
    parameters = (job.mean, job.rho, job.centre, job.removed, job.fixed)
    return maps and not any(t is not None and torch._C._functorch.is_batchedtensor(t) for t in parameters)


def _is_served(job: _Job) -> bool:
    """Whether the library serves the parameters; noise and gradients are copied where they are not contiguous."""
    mean = job.mean
    if not kernels_available() or mean.numel() == 0:
        return False
    for tensor in (mean, job.rho, job.centre):
        if tensor is not None and (tensor.dtype != torch.float32 or not _is_in_order(tensor, mean.shape)):
            return False
    for tensor in (job.removed, job.fixed):
        if tensor is not None and (tensor.dtype != torch.bool or not _is_in_order(tensor, mean.shape)):
            return False
    noise = job.noise
    if noise is None:
        return True
    return noise.dtype == torch.float32 and noise.device == mean.device and noise.shape == job.draws + mean.shape


def _is_in_order(tensor: Tensor, shape: torch.Size) -> bool:
    is_plain = type(tensor) in (Tensor, Parameter)
    return is_plain and tensor.device.type == "cpu" and tensor.shape == shape and tensor.is_contiguous()


def _composite(job: _Job) -> tuple[Tensor, Tensor]:
    """The formula in operations of torch."""
    formulas = functional.variational
    job = job.with_noise()
    mean = job.mean if job.removed is None else job.mean.masked_fill(job.removed, 0.0)
    weights, total = mean.new_empty(0), mean.new_zeros((), dtype=job.exact)
    if job.what != "divergence":
        assert job.noise is not None
        weights = job.random(formulas.softplus(job.rho)) * job.noise
        weights = weights if job.what == "perturbations" else mean + weights
    return weights, _total(job, job.exact) if job.prior else total


def _total(job: _Job, dtype: torch.dtype) -> Tensor:
    """The divergence, summed in ``dtype``."""
    formulas = functional.variational
    mean, std = job.mean.to(job.exact), formulas.softplus(job.rho.to(job.exact))
    mean = mean if job.removed is None else mean.masked_fill(job.removed, 0.0)
    if job.is_estimated:
        assert job.noise is not None
        noise, std = job.noise.to(job.exact), std.expand(job.noise.shape)
        terms = formulas.monte_carlo_kl(std, noise, formulas.scale_mixture_log_prob(mean + std * noise, *job.prior))
    else:
        centre = job.prior[0] if job.centre is None else job.centre.to(job.exact)
        terms = formulas.gaussian_kl(mean, std, centre, job.prior[1])
    return job.random(terms).reshape(*terms.shape[: terms.dim() - mean.dim()], mean.numel()).sum(dim=-1, dtype=dtype)


def _gradients(job: _Job, weight_gradient: Tensor | None, total_gradient: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of the means and of rho, as a formula that can be differentiated again."""
    formulas = functional.variational
    mean, rho = job.mean.to(job.exact), job.rho.to(job.exact)
    mean = mean if job.removed is None else mean.masked_fill(job.removed, 0.0)
    std, slope = formulas.softplus(rho), torch.sigmoid(rho)
    noise = None if job.noise is None else job.noise.to(job.exact)
    axes = list(range(len(job.draws)))
    of_means, of_stds, of_rhos = list[Tensor](), list[Tensor](), list[Tensor]()
    if weight_gradient is not None:
        assert noise is not None
        gradient = weight_gradient.to(job.exact)
        of_means += [] if job.what == "perturbations" else [_sum(gradient, axes)]
        of_stds.append(_sum(gradient * noise, axes))
    if total_gradient is not None and job.is_estimated:
        assert noise is not None
        each = total_gradient.to(job.exact).reshape(*job.draws, *(1 for _ in mean.shape))
        slopes = job.random(each * formulas.scale_mixture_slope(mean + job.random(std) * noise, *job.prior))
        of_means.append(_sum(slopes, axes))
        of_stds.append(_sum(slopes * noise, axes))
        of_rhos.append(-_sum(each, axes) * slope / std)
    elif total_gradient is not None:
        centre = job.prior[0] if job.centre is None else job.centre.to(job.exact)
        of_prior, of_rho = formulas.gaussian_kl_gradients(mean, std, slope, centre, job.prior[1])
        of_means.append(total_gradient * job.random(of_prior))
        of_rhos.append(total_gradient * of_rho)
    of_rhos += [slope * of_std for of_std in of_stds]
    of_mean, of_rho = (sum(terms[1:], terms[0]) if terms else torch.zeros_like(mean) for terms in (of_means, of_rhos))
    of_mean = of_mean if job.removed is None else of_mean.masked_fill(job.removed, 0.0)
    return of_mean.to(job.mean.dtype), job.random(of_rho).to(job.rho.dtype)


def _sum(values: Tensor, axes: list[int]) -> Tensor:
    return values.sum(dim=axes) if axes else values


# The operators. They are defined by their parts, since torch.library.custom_op takes three times as long for each call.

_LIBRARY = torch.library.Library("dubio", "FRAGMENT")
_LIBRARY.define(
    "draw_weights(Tensor mean, Tensor rho, Tensor? keys, Tensor? mirrored, Tensor? noise, Tensor? centre, "
    "Tensor? removed, Tensor? fixed, float[] prior, str what, bool frozen) -> (Tensor, Tensor)"
)
_LIBRARY.define(
    "keyed_noise(Tensor keys, Tensor? mirrored, SymInt[] shape, str kind, bool frozen, ScalarType dtype, "
    "Device device) -> Tensor"
)
_OPERATOR, _NOISE = torch.ops.dubio.draw_weights.default, torch.ops.dubio.keyed_noise.default


def _draw(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Draws and divergence without a graph."""
    job = _Job(*arguments)
    if _is_served(job):
        return _draw_by_library(job)
    if job.what != "divergence":
        return _composite(job)
    job = job.with_noise()
    dtype = job.exact if job.mean.device.type == "mps" else torch.float64
    parts = [_total(part, dtype) for _, part in job.in_parts()]
    return job.mean.new_empty(0), torch.stack(parts).sum(dim=0).to(job.exact) if parts else _total(job, job.exact)


class _DrawWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*arguments[:8])
        ctx.options = arguments[8:]
        with torch._C._AutoDispatchBelowAutograd():
            outputs: tuple[Tensor, Tensor] = _OPERATOR(*arguments)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _backward(ctx, *gradients)


class _DrawEach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*arguments[:8])
        ctx.options = arguments[8:]
        weights, total = _draw_by_library(_Job(*arguments), apart=True)
        return *weights, total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _backward(ctx, gradients[:-1], gradients[-1])


def _backward(ctx: Any, weights: Tensor | Sequence[Tensor | None] | None, total: Tensor | None) -> tuple[Any, ...]:
    """Gradients for the arguments of an operator, from those of its draws, in a stack or apart, and its divergence."""
    job = _Job(*ctx.saved_tensors, *ctx.options)
    weights, total = None if job.what == "divergence" else weights, total if job.prior else None
    each = [total, *(weights if isinstance(weights, Sequence) else [weights])]
    # Differentiated again, or for many gradients at once (is_grads_batched), by the formula.
    functorch = torch._C._functorch
    many = any(gradient is not None and functorch.is_legacy_batchedtensor(gradient) for gradient in each)
    by_formula = torch.is_grad_enabled() or many or functorch.peek_interpreter_stack() is not None
    if not by_formula and _is_served(job):
        of_parameters = _differentiate_by_library(job, weights, total, ctx.needs_input_grad)
        return (*of_parameters, *(None for _ in ctx.needs_input_grad[2:]))
    if isinstance(weights, Sequence):
        weights = torch.stack([torch.zeros_like(job.mean) if one is None else one for one in weights])
    compute = _gradients if by_formula else _gradients_in_parts
    return (*compute(job.with_noise(), weights, total), *(None for _ in ctx.needs_input_grad[2:]))


def _gradients_in_parts(job: _Job, weights: Tensor | None, total: Tensor | None) -> tuple[Tensor, Tensor]:
    of_mean, of_rho = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (job.mean, job.rho))
    weights = None if weights is None else weights.reshape(*job.draws, job.mean.numel())
    for part, own in job.in_parts():
        results = _gradients(own, None if weights is None else weights[..., part], total)
        for out, result in zip((of_mean, of_rho), results, strict=True):
            out.view(-1)[part] = result
    return of_mean, of_rho


def _map_draws(info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[tuple[Tensor, Tensor], tuple[Any, Any]]:
    """All draws in one call: keys, and what belongs to them, are mapped; parameters are not (``_is_operator``)."""
    job = _Job(*arguments)
    keys, mirrored, noise = _first(info, in_dims[2:5], arguments[2:5])
    job = job._replace(keys=keys, mirrored=mirrored, noise=noise)
    weights, total = _OPERATOR(*job)
    return (weights, total), (None if job.what == "divergence" else 0, 0 if job.is_estimated else None)


def _first(info: Any, in_dims: Sequence[Any], tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Tensors with the mapped axis first; those without one are expanded."""

    def first(tensor: Tensor | None, axis: int | None) -> Tensor | None:
        if tensor is None:
            return None
        return tensor.expand(info.batch_size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)

    return tuple(first(tensor, axis) for tensor, axis in zip(tensors, in_dims, strict=True))


def _fake_draws(*arguments: Any) -> tuple[Tensor, Tensor]:
    job = _Job(*arguments)
    shape = (0,) if job.what == "divergence" else (*job.draws, *job.mean.shape)
    return job.mean.new_empty(shape), job.mean.new_empty(job.draws if job.is_estimated else (), dtype=job.exact)


_LIBRARY.impl("draw_weights", _draw, "CompositeExplicitAutograd")
_LIBRARY.impl("draw_weights", lambda *arguments: _DrawWeights.apply(*arguments), "Autograd")
torch.library.register_vmap("dubio::draw_weights", _map_draws, lib=_LIBRARY)
torch.library.register_fake("dubio::draw_weights", _fake_draws, lib=_LIBRARY)


def _noise(
    keys: Tensor,
    mirrored: Tensor | None,
    shape: Sequence[int],
    kind: str,
    frozen: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    out = torch.empty((*keys.shape, *shape), dtype=dtype, device=device)
    flat = out.view(keys.numel(), math.prod(shape))
    _fill(flat, keys.reshape(-1), None if mirrored is None else mirrored.reshape(-1), kind, frozen)
    return out


def _map_noise(info: Any, in_dims: Sequence[Any], keys: Tensor, mirrored: Tensor | None, *options: Any) -> Any:
    keys, mirrored = cast(tuple[Tensor, Tensor | None], _first(info, in_dims[:2], (keys, mirrored)))
    return _NOISE(keys, mirrored, *options), 0


def _fake_noise(keys: Tensor, mirrored: Tensor | None, shape: Sequence[int], *options: Any) -> Tensor:
    return torch.empty((*keys.shape, *shape), dtype=options[2], device=options[3])


_LIBRARY.impl("keyed_noise", _noise, "CompositeExplicitAutograd")
torch.library.register_vmap("dubio::keyed_noise", _map_noise, lib=_LIBRARY)
torch.library.register_fake("dubio::keyed_noise", _fake_noise, lib=_LIBRARY)


def _fill(
    out: Tensor, keys: Tensor, mirrored: Tensor | None, kind: str, frozen: bool, num_rows: int = 1, first_row: int = 0
) -> None:
    """Fill ``out``, `(draw, ...)`, with the noise of its keys, `(draw)`."""
    if out.numel() == 0:
        return
    if kernels_available() and out.device.type == "cpu":
        direct = (
            out if out.dtype == torch.float32 and out.is_contiguous() else out.new_empty(out.shape, dtype=torch.float32)
        )
        _fill_by_library(direct, keys, mirrored, kind, frozen, num_rows, first_row)
        if direct is not out:
            out.copy_(direct)
        return
    numbers: list[int] = keys.tolist()
    signs = [False] * len(numbers) if mirrored is None else mirrored.tolist()
    for target, key, is_mirrored in zip(out, numbers, signs, strict=True):
        if frozen:
            _fill_by_philox(target, key, kind, num_rows, first_row)
        else:
            generator = torch.Generator(out.device).manual_seed(key)
            if kind == "normal":
                target.normal_(generator=generator)
            elif kind == "uniform":
                target.uniform_(generator=generator)
            else:
                target.random_(2, generator=generator).mul_(2).sub_(1)
        if is_mirrored and kind != "sign":
            target.neg_()
            if kind == "uniform":
                target.add_(1.0)


def _fill_by_philox(target: Tensor, key: int, kind: str, num_rows: int, first_row: int) -> None:
    """Frozen noise of one draw, by the definition of Philox in operations of torch."""
    width = target.numel() // num_rows
    a_row = -(-width // 4)
    flat = torch.empty(target.numel(), dtype=torch.float32, device=target.device)
    for begin in range(0, num_rows * a_row, PART):
        call = torch.arange(begin, min(begin + PART, num_rows * a_row), device=target.device)
        row, place = call // a_row, call % a_row
        words = _philox(place, (first_row + row) & 0xFFFFFFFF, key)
        for pair in (0, 2):
            numbers = _numbers(words[pair], words[pair + 1], kind)
            for quarter, values in enumerate(numbers, start=pair):
                column = quarter * a_row + place
                valid = column < width
                flat[(row * width + column)[valid]] = values[valid]
    target.copy_(flat.view(target.shape))


def _philox(first: Tensor, second: Tensor, key: int) -> list[Tensor]:
    """Four words of 32 bits for each counter, of which the last two parts are zero."""
    low, high, mask = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF, 0xFFFFFFFF
    counter = [first & mask, second, torch.zeros_like(first), torch.zeros_like(first)]
    for _ in range(10):
        # Products fill 64 bits; as signed numbers they have the same bits.
        one, two = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            ((two >> 32) & mask) ^ counter[1] ^ low,
            two & mask,
            ((one >> 32) & mask) ^ counter[3] ^ high,
            one & mask,
        ]
        low, high = (low + 0x9E3779B9) & mask, (high + 0xBB67AE85) & mask
    return counter


def _numbers(first: Tensor, second: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Two numbers from two words, by the rules of ``triton_kernel``."""
    if kind == "normal":
        radius = (-2.0 * ((first.float() + 0.5) * 2.0**-32).log()).sqrt()
        angle = second.float() * (math.tau * 2.0**-32)
        return radius * angle.cos(), radius * angle.sin()
    if kind == "uniform":
        one, two = (torch.where(word < 2**31, word, 2**32 - 1 - word).float() for word in (first, second))
        return one * 4.6566127342e-10, two * 4.6566127342e-10
    return 1.0 - 2.0 * (first >> 31), 1.0 - 2.0 * (second >> 31)


# Calls of the library: structures of addresses, which the tensors in the caller's frame keep alive.


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _addresses(draws: Tensor | Sequence[Tensor | None], count: int) -> Any:
    """The addresses of draws, in a stack or apart."""
    if not isinstance(draws, Tensor):
        return _pointers(count)(*map(_address, draws))
    begin, step = draws.data_ptr(), draws.numel() // max(count, 1) * draws.element_size()
    return _pointers(count)(*(begin + draw * step for draw in range(count)))


@cache
def _pointers(count: int) -> Any:
    """The type of an array of addresses. ctypes would make a class of it for each call."""
    return ctypes.c_void_p * count


def _structure(job: _Job) -> tuple[_DrawStructure, list[Any]]:
    """The structure of a job, and what must live as long."""
    draws = _DrawStructure(
        threads=_threads(), num_weights=job.mean.numel(), num_draws=job.draws.numel() if job.is_drawn else 0
    )
    for name in ("mean", "rho", "centre", "removed", "fixed"):
        setattr(draws, name, _address(getattr(job, name)))
    draws.prior = (NO_PRIOR, NORMAL_PRIOR, MIXTURE_PRIOR)[max(len(job.prior) - 1, 0)]
    draws.prior_parameters[: len(job.prior)] = job.prior
    draws.around_zero = job.what == "perturbations"
    if job.noise is not None:
        noise = job.noise.contiguous()
        given = _addresses(noise, draws.num_draws)
        draws.noise, draws.given = GIVEN, ctypes.addressof(given)
        return draws, [noise, given]
    if job.keys is None:
        return draws, []
    keys = job.keys.contiguous()
    mirrored = None if job.mirrored is None else job.mirrored.contiguous()
    draws.noise = FROZEN if job.frozen else FRESH
    draws.keys, draws.mirrored = _address(keys), _address(mirrored)
    return draws, [keys, mirrored]


def _draw_by_library(job: _Job, apart: bool = False) -> tuple[Any, Tensor]:
    """Draws in a stack or apart, and the divergence."""
    library = _load()[0]
    assert library is not None
    draws, held = _structure(job)
    if apart:
        weights: Any = [torch.empty_like(job.mean) for _ in range(draws.num_draws)]
    else:
        weights = job.mean.new_empty((0,) if job.what == "divergence" else (*job.draws, *job.mean.shape))
    if draws.num_draws and job.what != "divergence":
        held.append(_addresses(weights, draws.num_draws))
        draws.weights = ctypes.addressof(held[-1])
    total = job.mean.new_zeros(job.draws if job.is_estimated else (), dtype=torch.float64)
    if job.prior and total.numel():
        sums = total.new_empty(library.dubio_units(ctypes.byref(draws)) * total.numel())
        draws.divergence, draws.sums = total.data_ptr(), sums.data_ptr()
    library.dubio_draw(ctypes.byref(draws))
    return weights, total.float()


def _differentiate_by_library(
    job: _Job, weights: Tensor | Sequence[Tensor | None] | None, total: Tensor | None, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    library = _load()[0]
    assert library is not None
    draws, held = _structure(job)
    if weights is not None and draws.num_draws:
        if isinstance(weights, Tensor):
            each: Any = weights.contiguous()
        else:
            each = [None if one is None else one.contiguous() for one in weights]
        held += [each, _addresses(each, draws.num_draws)]
        draws.gradients = ctypes.addressof(held[-1])
    if total is not None and (draws.num_draws or not job.is_estimated):
        held.append(total.contiguous())
        draws.divergence_gradients = held[-1].data_ptr()
    of_mean, of_rho = (torch.empty_like(job.mean) if is_needed else None for is_needed in needed[:2])
    draws.mean_gradient, draws.rho_gradient = _address(of_mean), _address(of_rho)
    library.dubio_differentiate(ctypes.byref(draws))
    return of_mean, of_rho


def _fill_by_library(
    out: Tensor, keys: Tensor, mirrored: Tensor | None, kind: str, frozen: bool, num_rows: int, first_row: int
) -> None:
    library = _load()[0]
    assert library is not None
    keys, width = keys.contiguous(), out[0].numel() // num_rows
    mirrored = None if mirrored is None else mirrored.contiguous()
    noise = _NoiseStructure(
        _threads(), len(out), num_rows, width, first_row, KINDS.index(kind), FROZEN if frozen else FRESH
    )
    noise.keys, noise.mirrored, noise.out = _address(keys), _address(mirrored), _address(out)
    library.dubio_noise(ctypes.byref(noise))
