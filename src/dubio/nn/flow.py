"""Input noise whose distribution is a normalizing flow, and the layers of the flow's steps.

``z_0`` comes from a fixed Gaussian and passes through one step after another. The divergence of a draw is
``log q_0(z_0) - sum log|det J| - log p(z_k)`` (E-39, E-41): the prior is evaluated at the end of the flow. Every
position of a convolution's input has its own draw, a vector of channels. Averaged over positions, the divergence is
smaller than that of the whole map by their number, and the bound does not hold for the joint latent;
``sum_positions`` restores it (8.2).

There is one layer for each step value of ``dubio.flows``. ``forward`` returns ``(z', logdet)`` and ``inverse`` maps
back; the channel is the last axis of ``z`` and there is one ``logdet`` per row (``dubio.functional.flows``). Steps draw
nothing and keep no state, so that they can be mapped and compiled. Every parameter has elements and gets a gradient,
whatever the number of channels. Steps compute in the type of ``z``: a network in half precision keeps its densities in
single precision.

Reference: Rezende and Mohamed 2015, Variational Inference with Normalizing Flows.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from dubio import flows, functional
from dubio._engine import Pass
from dubio.flows import FlowBlock
from dubio.nn.noise_layers import Drawing, InputPosterior
from dubio.priors import Normal

Rows = Float[Tensor, "*rows channel"]


class FlowNoise(InputPosterior):
    """Factors that are the image of Gaussian noise under a flow."""

    def __init__(
        self, channels: int, axis: int, prior: Normal, *, block: FlowBlock, base: Normal, sum_positions: bool
    ) -> None:
        super().__init__(channels, axis, prior, per_position=True, sum_positions=sum_positions)
        self.block, self.base = block, base
        self.steps = nn.ModuleList(make_step(step, channels) for step in block.steps)

    def draw_rows(
        self, run: Pass, shape: Sequence[int], dtype: torch.dtype, device: torch.device, wants: tuple[bool, bool]
    ) -> Drawing:
        """Factors of this shape, the channel on the last axis, with the requested densities."""
        value = self.base.mean + self.base.std * run.noise_for_activations(self, shape, dtype, device)
        base_log_prob = self.base.log_prob(value, None).sum(dim=-1) if any(wants) else None
        value, log_dets = run_steps(cast(Iterable[FlowStep], self.steps), value)
        if base_log_prob is None:
            return value, None, None
        log_prob = functional.flows.flow_log_prob(base_log_prob, log_dets)
        log_ratio = log_prob - self.prior.log_prob(value, None).sum(dim=-1)
        return value, log_ratio if wants[0] else None, log_prob if wants[1] else None

    def describe(self) -> str:
        """What kind of noise this is, in a few words."""
        return f"flow {self.block}, prior {self.prior}"


class FlowStep(nn.Module):
    """An invertible map of rows."""

    functions: ClassVar[tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., Tensor]]]
    """The map and its inverse, of ``z`` and the options."""

    def forward(self, z: Rows) -> tuple[Rows, Float[Tensor, "*rows"]]:
        """The image of ``z``, and the logarithm of the Jacobian determinant of every row."""
        return self.functions[0](z, *self.options(z))

    def inverse(self, z: Rows) -> Rows:
        """The point that the step maps to ``z``."""
        return self.functions[1](z, *self.options(z))

    def options(self, z: Rows) -> tuple[Any, ...]:
        """What the functions are called with beside ``z``: by default the parameters, in its type."""
        return tuple(parameter.to(z.dtype) for parameter in self.parameters())


def run_steps(steps: Iterable[FlowStep], z: Rows) -> tuple[Rows, list[Float[Tensor, "*rows"]]]:
    """The image of ``z`` under one step after another, and the log-determinants.

    Neighbouring matrices are multiplied with each other before the rows, of which there are many more.
    """
    logdets: list[Tensor] = []
    mixing: tuple[Tensor, Tensor] | None = None
    for step in [*steps, None]:
        if isinstance(step, MixingStep):
            weight, logdet = step.matrix(z.dtype)
            mixing = (weight, logdet) if mixing is None else (weight @ mixing[0], logdet + mixing[1])
            continue
        if mixing is not None:
            z, per_row = functional.flows.mixing_step(z, *mixing)
            logdets.append(per_row)
            mixing = None
        if step is not None:
            z, per_row = step(z)
            logdets.append(per_row)
    return z, logdets


def make_step(step: flows.Step, channels: int) -> FlowStep:
    """The layer of a step value, for rows of ``channels`` channels."""
    make = _MAKERS.get(type(step))
    if make is None:
        names = ", ".join(sorted(kind.__name__ for kind in _MAKERS))
        raise TypeError(f"step must be a value of dubio.flows, got {step!r}; the steps are {names}")
    if channels < 1:
        raise ValueError(f"channels must be at least 1, got {channels}")
    return make(step, channels)


class AffineStep(FlowStep):
    """``functional.flows.affine_step``, initialised as the identity."""

    functions = functional.flows.affine_step, functional.flows.affine_inverse

    def __init__(self, step: flows.Affine, channels: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))


class PlanarStep(FlowStep):
    """``functional.flows.planar_step``."""

    functions = functional.flows.planar_step, functional.flows.planar_inverse

    def __init__(self, step: flows.Planar, channels: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(nn.init.normal_(torch.empty(channels), std=step.init_std))
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(channels), std=step.init_std))
        self.bias = nn.Parameter(torch.zeros(()))
        self.shifted = step.shifted

    def options(self, z: Rows) -> tuple[Any, ...]:
        """The parameters, and whether the step is shifted."""
        return *super().options(z), self.shifted


class AffineCouplingStep(FlowStep):
    """``functional.flows.coupling_step``: a small network sees the first half of the channels and moves the second.

    Its last layer is zero at initialisation, so that the step is the identity.
    """

    functions = functional.flows.coupling_step, functional.flows.coupling_inverse

    def __init__(self, step: flows.AffineCoupling, channels: int) -> None:
        super().__init__()
        if channels < 2:
            raise ValueError(
                f"AffineCoupling needs at least 2 channels, got {channels}; "
                "leave it out of this layer's block, or use Affine or Planar"
            )
        self.num_kept = channels // 2
        last = nn.Linear(step.hidden, 2 * (channels - self.num_kept))
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.conditioner = nn.Sequential(nn.Linear(self.num_kept, step.hidden), nn.ReLU(), last)
        self.bound = step.bound

    def options(self, z: Rows) -> tuple[Any, ...]:
        """Log scale before the bound, shift, and the bound."""
        first, first_bias, last, last_bias = super().options(z)
        hidden = F.relu(F.linear(z[..., : self.num_kept], first, first_bias))
        return *F.linear(hidden, last, last_bias).chunk(2, dim=-1), self.bound


class MixingStep(FlowStep):
    """``functional.flows.mixing_step``, initialised as a random orthogonal matrix."""

    @abstractmethod
    def matrix(self, dtype: torch.dtype) -> tuple[Float[Tensor, "channel channel"], Float[Tensor, ""]]:
        """The matrix that mixes channels, and its log-determinant, in this type."""

    def forward(self, z: Rows) -> tuple[Rows, Float[Tensor, "*rows"]]:
        """The image of ``z``, and its log-determinants."""
        return functional.flows.mixing_step(z, *self.matrix(z.dtype))

    def inverse(self, z: Rows) -> Rows:
        """The point that the step maps to ``z``."""
        return functional.flows.mixing_inverse(z, self.matrix(z.dtype)[0])


class FullMixingStep(MixingStep):
    """Keeps the matrix itself."""

    def __init__(self, step: flows.InvertibleConv, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(_orthogonal(channels).to(torch.get_default_dtype()))

    def matrix(self, dtype: torch.dtype) -> tuple[Float[Tensor, "channel channel"], Float[Tensor, ""]]:
        """The matrix that mixes channels, and its log-determinant, in this type."""
        weight = self.weight.to(dtype)
        return weight, functional.flows.log_abs_det(weight)


class LuMixingStep(MixingStep):
    """Keeps the triangles of the matrix, all in one square (``functional.flows.lu_weight``).

    The permutation and the signs are buffers: they fix the sign of the determinant. A trained permutation matrix does
    not remain a permutation, which is how the Glow step fails (``benchmarks/glow.py``).
    """

    permutation: Tensor
    sign: Tensor

    def __init__(self, step: flows.InvertibleConv, channels: int) -> None:
        super().__init__()
        permutation, lower, upper = torch.linalg.lu(_orthogonal(channels))
        diagonal = upper.diagonal()
        dtype = torch.get_default_dtype()
        self.register_buffer("permutation", permutation.argmax(dim=-1))
        self.register_buffer("sign", diagonal.sign().to(dtype))
        factors = lower.tril(-1) + upper.triu(1) + torch.diag(diagonal.abs().log())
        self.factors = nn.Parameter(factors.to(dtype))

    def matrix(self, dtype: torch.dtype) -> tuple[Float[Tensor, "channel channel"], Float[Tensor, ""]]:
        """The matrix that mixes channels, and its log-determinant, in this type."""
        return functional.flows.lu_weight(self.permutation, self.sign.to(dtype), self.factors.to(dtype))


class ActnormStep(FlowStep):
    """``functional.flows.actnorm_step``, initialised as the identity.

    Unlike in Glow, the first batch does not set its parameters: the moments of the noise are given, and a first call
    that changes parameters would make the result depend on the order of calls.
    """

    functions = functional.flows.actnorm_step, functional.flows.actnorm_inverse

    def __init__(self, step: flows.Actnorm, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))


_MIXING: dict[flows.Parametrisation, Callable[..., FlowStep]] = {"full": FullMixingStep, "lu": LuMixingStep}
_MAKERS: dict[type, Callable[..., FlowStep]] = {flows.Actnorm: ActnormStep, flows.Affine: AffineStep}
_MAKERS |= {flows.AffineCoupling: AffineCouplingStep, flows.Planar: PlanarStep}
_MAKERS[flows.InvertibleConv] = lambda step, channels: _MIXING[step.parametrisation](step, channels)


def _orthogonal(channels: int) -> Float[Tensor, "channel channel"]:
    # In double precision: its triangles are rounded once, and the log-determinant is zero to the last digit.
    return nn.init.orthogonal_(torch.empty(channels, channels, dtype=torch.float64))
