"""Attacks without gradients of the target: random search (Square), random noise, and transfer from another network.

They need logits alone, so that any function from inputs to logits can be attacked. Random noise is the baseline that
every attack must beat.

Reference: Andriushchenko et al. 2020 (square attack).
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from dubio import functional
from dubio.attacks.attack import Attack, Progress
from dubio.attacks.gradient import PGD
from dubio.attacks.target import AttackTarget, Model
from dubio.functional.adversarial import AttackLoss

SMALLEST_BUMP = 3
"""Side of the smallest window in L2, as in the authors' code: a bump in one pixel would cancel its perturbation."""


@dataclass(frozen=True)
class Square(Attack):
    """Random search over square windows, in Linf or L2, without gradients and without early stopping.

    Each step changes one window of the image and keeps the change if it raises the loss averaged over draws. Windows
    become smaller.

    Images are `(batch, channel, height, width)`. Flat inputs, `(batch, features)`, are one row of pixels, whose windows
    are neighbouring features; ``shape`` gives the shape of flattened images.

    Args:
        steps: number of changes tried.
        share: share of the pixels that the first window covers.
        shape: channel, height and width of flattened images.
    """

    epsilon: float = 8 / 255
    loss: AttackLoss = "margin"
    steps: int = 1000
    share: float = 0.8
    shape: tuple[int, int, int] | None = None

    _uses_gradients: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"share must be in (0, 1], got {self.share}")
        if self.shape is not None and (len(self.shape) != 3 or min(self.shape) < 1):
            raise ValueError(f"shape must be channel, height and width, each at least 1, got {self.shape}")

    def _climb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Tensor:
        images = self._as_images(inputs)
        start = self._stripes if self.norm == "linf" else self._tiles
        change = self._with_square if self.norm == "linf" else self._with_bump
        moved = self._inside(start(target, images), images)
        values, _ = target.evaluate(moved.view_as(inputs), targets)
        for k in range(self.steps):
            share = functional.adversarial.square_share(k, self.steps, self.share)
            candidate = self._inside(change(target, moved, images, share), images)
            if target.noise == "fresh" and target.is_random:
                fair = target.on_new_draws()
                loss, _ = fair.evaluate(candidate.view_as(inputs), targets)
                values, _ = fair.evaluate(moved.view_as(inputs), targets)
                target.forwards += fair.forwards
            else:
                loss, _ = target.evaluate(candidate.view_as(inputs), targets)
            moved = torch.where(functional.adversarial.as_rows(loss > values, moved), candidate, moved)
            values = torch.maximum(loss, values)
            progress.tick()
        return moved.view_as(inputs)

    def _as_images(self, inputs: Tensor) -> Float[Tensor, "batch channel height width"]:
        if inputs.dim() == 2:
            shape = self.shape or (1, 1, inputs.shape[1])
            if math.prod(shape) != inputs.shape[1]:
                raise ValueError(f"shape must have as many pixels as an input, {inputs.shape[1]}, got {shape}")
            return inputs.reshape(-1, *shape)
        if inputs.dim() != 4:
            raise ValueError(
                "inputs must be images (batch, channel, height, width) or flat (batch, features) for Square, "
                f"got shape {tuple(inputs.shape)}"
            )
        return inputs.contiguous()

    def _stripes(self, target: AttackTarget, images: Tensor) -> Tensor:
        """Vertical stripes, up or down."""
        batch, channels, _, width = images.shape
        return images + self.epsilon * target.random((batch, channels, 1, width), "sign", images)

    def _with_square(self, target: AttackTarget, moved: Tensor, images: Tensor, share: float) -> Tensor:
        """One window at the edge of the ball, up or down in each channel."""
        numbers = target.random((len(images), 2 + images.shape[1]), "uniform", images)
        window = _Windows.at(numbers[:, :2], images, share)
        return window.put(moved, window.get(images) + self.epsilon * _signs(numbers[:, 2:]))

    def _tiles(self, target: AttackTarget, images: Tensor) -> Tensor:
        """Bumps on a grid of five by five, up or down in each channel, as far out as the ball goes."""
        batch, channels, height, width = images.shape
        tall, wide = (max(length // 5, 1) for length in (height, width))
        rows, columns = height // tall, width // wide
        signs = target.random((batch, channels, rows, columns), "sign", images)
        tiles = torch.kron(signs, _bump(tall, wide, images.dtype, images.device))
        top, left = (height - rows * tall) // 2, (width - columns * wide) // 2
        perturbation = torch.zeros_like(images)
        perturbation[..., top : top + rows * tall, left : left + columns * wide] = tiles
        return images + self.epsilon * functional.adversarial.steepest_direction(perturbation, "l2")

    def _with_bump(self, target: AttackTarget, moved: Tensor, images: Tensor, share: float) -> Tensor:
        """One window put back, and all the distance this frees given to a bump in another."""
        numbers = target.random((len(images), 5 + images.shape[1]), "uniform", images)
        raised, dropped = (_Windows.at(numbers[:, i : i + 2], images, share, SMALLEST_BUMP) for i in (0, 2))
        perturbation = moved - images
        kept = raised.put(dropped.put(perturbation, 0.0), 0.0)
        bump = raised.bump(numbers[:, 4]) * _signs(numbers[:, 5:])
        free = functional.adversarial.free_distance(perturbation, kept, self.epsilon)
        return images + raised.put(kept, free * _unit(bump + _unit(raised.get(perturbation))))


@dataclass(frozen=True, eq=False)
class _Windows:
    """One window in each image, all of one size."""

    index: tuple[Tensor, Tensor, Tensor, Tensor]

    @classmethod
    def at(cls, uniform: Float[Tensor, "batch 2"], images: Tensor, share: float, smallest: int = 1) -> "_Windows":
        """Windows that cover this share of the pixels, at places given by uniform numbers."""
        batch, channels, height, width = images.shape
        window = functional.adversarial.square_window(share, height, width, smallest)
        rows, columns = (
            (numbers * (side - length + 1)).long().clamp_max(side - length).view(-1, 1)
            + torch.arange(length, device=images.device)
            for numbers, side, length in zip(uniform.unbind(dim=1), (height, width), window, strict=True)
        )
        examples = torch.arange(batch, device=images.device).view(-1, 1, 1, 1)
        layers = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
        return cls((examples, layers, rows[:, None, :, None], columns[:, None, None, :]))

    def get(self, images: Tensor) -> Tensor:
        """The pixels in the windows."""
        return images[self.index]

    def put(self, images: Tensor, content: Tensor | float) -> Tensor:
        """The images with other pixels in the windows."""
        changed = images.clone()
        changed[self.index] = content
        return changed

    def bump(self, uniform: Float[Tensor, " batch"]) -> Float[Tensor, "batch 1 height width"]:
        """A bump for each window; square windows transpose half of them."""
        tall, wide = self.index[2].shape[2], self.index[3].shape[3]
        upright = _bump(tall, wide, uniform.dtype, uniform.device).expand(len(uniform), 1, tall, wide)
        if tall != wide:
            return upright
        return torch.where(functional.adversarial.as_rows(uniform < 0.5, upright), upright, upright.mT)


@functools.lru_cache(maxsize=64)
def _bump(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "height width"]:
    return functional.adversarial.square_bump(height, width).to(dtype=dtype, device=device)


def _signs(uniform: Float[Tensor, "batch channel"]) -> Float[Tensor, "batch channel 1 1"]:
    return (2.0 * (uniform < 0.5) - 1.0).to(uniform.dtype)[:, :, None, None]


def _unit(windows: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch channel height width"]:
    """Each channel of each window, of norm one."""
    return F.normalize(windows.flatten(2), dim=2).view_as(windows)


@dataclass(frozen=True)
class RandomNoise(Attack):
    """The worst of several random perturbations: uniform in the ball, or signs at its corners.

    Args:
        tries: number of perturbations.
        kind: ``"uniform"`` or ``"sign"``.
    """

    epsilon: float = 8 / 255
    tries: int = 10
    kind: Literal["uniform", "sign"] = "uniform"

    _uses_gradients: ClassVar[bool] = False

    def _num_restarts(self) -> int:
        return self.tries

    def _climb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Tensor:
        progress.tick()
        if self.kind == "uniform":
            return self._start(target, inputs)
        signs = target.random(inputs.shape, "sign", inputs)
        reach = 1.0 if self.norm == "linf" else inputs[0].numel() ** -0.5
        return self._inside(inputs + self.epsilon * reach * signs, inputs)


@dataclass(frozen=True)
class Transfer(Attack):
    """Attack another network, or this one with its noise off, and evaluate the images here.

    Args:
        attack: the attack on the source, with its own distance, noise and batch size.
        source: the network attacked; by default the target itself with its noise off.
    """

    attack: Attack = PGD()
    source: Any = None

    _uses_gradients: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.attack, Attack):
            raise TypeError(f"attack must be an attack such as attacks.PGD(), got {self.attack!r}")
        if self.epsilon is not None:
            raise ValueError(f"epsilon belongs to the attack, as in Transfer(attack=PGD(epsilon={self.epsilon}))")
        for name in ("norm", "bounds", "targeted"):
            if getattr(self, name) != (expected := getattr(self.attack, name)):
                raise ValueError(f"{name} must be that of the attack, {expected!r}, got {getattr(self, name)!r}")
        super().__post_init__()

    def _source(self, model: Model) -> tuple[Attack, Model]:
        attack, source = self.attack, self.source
        if source is None:
            attack, source = replace(attack, noise="off"), model
        return (attack if attack.seed is not None else replace(attack, seed=self.seed)), source

    def _climb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Tensor:
        progress.tick()
        return inputs  # as the source has moved them
