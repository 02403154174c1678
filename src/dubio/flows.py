"""Normalizing flows as frozen values: steps, and blocks of steps.

A flow maps a draw from a base density through invertible steps with known log-determinants. A step is a frozen value;
its parameters belong to the layer that ``dubio.nn.make_step`` builds from it. A block is the flow of one layer:
``block.steps`` are its steps in order, where a ``GlowStep`` is replaced by its three steps.

>>> Block((Affine(), Planar(shifted=True), GlowStep())).steps
(Affine(), Planar(shifted=True, init_std=0.01), Actnorm(), InvertibleConv(parametrisation='lu'), \
AffineCoupling(hidden=16, bound=2.0))

The named blocks are those of the normalizing-flow network: ``NormalAffine`` (a trained Gaussian without further steps),
``NormalPlanar1d`` for linear layers and ``NormalInvConv`` for convolutions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dubio.checks import check_choice, check_count, check_flag, check_positive

__all__ = ["Actnorm", "Affine", "AffineCoupling", "GlowStep", "InvertibleConv", "Parametrisation", "Planar", "Step"]
__all__ += ["Block", "FlowBlock", "NormalAffine", "NormalInvConv", "NormalPlanar1d"]

Parametrisation = Literal["lu", "full"]


@dataclass(frozen=True)
class Affine:
    """Shift and scale of every channel (E-42); begins as the identity."""


@dataclass(frozen=True)
class Planar:
    """One bend along one direction (E-43), its vectors drawn from ``N(0, init_std^2)`` at first.

    ``shifted`` makes it begin near the identity; as published, it begins by shrinking its direction to 0.69.
    """

    shifted: bool = False
    init_std: float = 0.01

    def __post_init__(self) -> None:
        check_flag("shifted of Planar", self.shifted)
        check_positive("init_std of Planar", self.init_std)


@dataclass(frozen=True)
class AffineCoupling:
    """Shift and scale of the second half of the channels, computed from the first half (E-44); begins as the identity.

    ``hidden`` is the width of the network that computes them, ``bound`` the largest size of a log scale.
    """

    hidden: int = 16
    bound: float = 2.0

    def __post_init__(self) -> None:
        check_count("hidden of AffineCoupling", self.hidden)
        check_positive("bound of AffineCoupling", self.bound)


@dataclass(frozen=True)
class InvertibleConv:
    """A square matrix that mixes the channels of every row (E-45); begins as a random rotation.

    ``"lu"`` keeps its triangles, so that the determinant is a product and never zero; ``"full"`` keeps the matrix.
    """

    parametrisation: Parametrisation = "lu"

    def __post_init__(self) -> None:
        check_choice("parametrisation of InvertibleConv", self.parametrisation, get_args(Parametrisation))


@dataclass(frozen=True)
class Actnorm:
    """Shift and scale of every channel by their inverse, ``(z - bias) / scale``; begins as the identity."""


@dataclass(frozen=True)
class GlowStep:
    """The step of Glow: ``Actnorm``, ``InvertibleConv``, ``AffineCoupling``, in this order."""

    hidden: int = 16
    bound: float = 2.0
    parametrisation: Parametrisation = "lu"

    def __post_init__(self) -> None:
        check_count("hidden of GlowStep", self.hidden)
        check_positive("bound of GlowStep", self.bound)
        check_choice("parametrisation of GlowStep", self.parametrisation, get_args(Parametrisation))

    @property
    def steps(self) -> "tuple[Step, ...]":
        """The three steps."""
        return (Actnorm(), InvertibleConv(self.parametrisation), AffineCoupling(self.hidden, self.bound))


Step = Affine | Planar | AffineCoupling | InvertibleConv | Actnorm


@dataclass(frozen=True, init=False)
class Block:
    """A custom flow: these steps, in this order. A ``GlowStep`` is replaced by its three steps."""

    steps: tuple[Step, ...]

    def __init__(self, steps: Sequence[Step | GlowStep]) -> None:
        object.__setattr__(self, "steps", _flattened(steps))


@dataclass(frozen=True)
class NormalAffine:
    """A Gaussian with trained mean and scale: the affine step alone."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """One affine step."""
        return (Affine(),)


@dataclass(frozen=True)
class NormalPlanar1d:
    """For linear layers: an affine step, then planar ones."""

    num_planar: int = 2

    def __post_init__(self) -> None:
        check_count("num_planar of NormalPlanar1d", self.num_planar, least=0)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Affine, then ``num_planar`` planar steps."""
        return (Affine(), *(Planar(),) * self.num_planar)


@dataclass(frozen=True)
class NormalInvConv:
    """For convolutions: an affine step, then invertible convolutions between planar steps."""

    num_planar: int = 2
    num_mixing: int = 3

    def __post_init__(self) -> None:
        check_count("num_planar of NormalInvConv", self.num_planar, least=0)
        check_count("num_mixing of NormalInvConv", self.num_mixing, least=0)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Affine, ``num_planar`` planar, ``num_mixing`` invertible convolutions, ``num_planar`` planar."""
        planar = (Planar(),) * self.num_planar
        return (Affine(), *planar, *(InvertibleConv(),) * self.num_mixing, *planar)


FlowBlock = Block | NormalAffine | NormalPlanar1d | NormalInvConv

VALUES = (*get_args(Step), *get_args(FlowBlock))
"""All steps and blocks."""


def _flattened(steps: object) -> tuple[Step, ...]:
    if not isinstance(steps, tuple | list):
        raise TypeError(f"steps of Block must be a tuple of steps, got {steps!r}; did you mean Block(({steps!r},))?")
    flat: list[Step] = []
    for step in steps:
        if isinstance(step, GlowStep):
            flat.extend(step.steps)
        elif isinstance(step, Step):
            flat.append(step)
        else:
            names = ", ".join(sorted(kind.__name__ for kind in (*get_args(Step), GlowStep)))
            raise TypeError(f"steps of Block must be values of dubio.flows, got {step!r}; the steps are {names}")
    if not flat:
        raise ValueError("steps of Block must hold one step at least, got none; NormalAffine() is the block of no flow")
    return tuple(flat)
