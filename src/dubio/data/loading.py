"""Batches of examples held in memory, cut, cropped, flipped and scaled on the device where they live.

An epoch is a function of (seed, number): its shuffle and its augmentation can be had again, from any batch on, so a
run that was interrupted goes on with the very same data. Several processes take turns at the rows of each joint batch:
together they see what one process with their joint batch size sees, but for a remainder smaller than their number.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from dubio._engine import noise_key
from dubio.data.examples import Examples, scaled

__all__ = ["CropAndFlip", "Loader", "epoch_order"]


@dataclass(frozen=True)
class CropAndFlip:
    """Shift images by up to ``pad`` pixels, filling with black, and mirror half of them: usual for CIFAR."""

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ValueError(f"pad must be at least 0 pixels, got {self.pad}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augmented images `(batch, channel, height, width)`; every image has a shift and a mirror of its own."""
        return self.apply(images, self.draw(len(images), generator).to(images.device))

    def draw(self, count: int, generator: torch.Generator) -> Int[Tensor, "number image"]:
        """What is random about so many images: shifts down and across, and whether each is mirrored."""
        shifts = torch.randint(2 * self.pad + 1, (2, count), generator=generator)
        if not self.flip:
            return shifts
        return torch.cat([shifts, torch.randint(2, (1, count), generator=generator, dtype=torch.bool).long()])

    def apply(self, images: Tensor, numbers: Int[Tensor, "number image"]) -> Tensor:
        """Images augmented by what was drawn for them."""
        if images.dim() != 4:
            raise ValueError(f"CropAndFlip needs images (batch, channel, height, width), got {tuple(images.shape)}")
        count, channels, height, width = images.shape
        rows = numbers[0, :, None] + torch.arange(height, device=images.device)
        columns = numbers[1, :, None] + torch.arange(width, device=images.device)
        if self.flip:
            columns = torch.where(numbers[2, :, None].bool(), columns.flip(1), columns)
        pixels = rows[:, :, None] * (width + 2 * self.pad) + columns[:, None, :]
        padded = torch.nn.functional.pad(images, (self.pad,) * 4).flatten(2)
        return padded.gather(2, pixels.reshape(count, 1, -1).expand(-1, channels, -1)).view_as(images)


class Loader:
    """Shuffled batches of examples: ``for inputs, targets in loader``, inputs as numbers (images in [0, 1]).

    Each time it is iterated it gives the next epoch; ``epoch(number)`` gives any.

    Args:
        examples: what to cut; moved to ``device`` once, as bytes.
        batch_size: examples in a batch, in each process.
        shuffle: whether every epoch has an order of its own.
        seed: which orders, and which augmentation.
        augment: a function of images and a generator, such as ``CropAndFlip()``.
        sample_weight: one weight per example; batches are then ``(inputs, targets, weights)``.
        device: where batches are made; by default where the examples are.
        rank: which of the processes this is.
        num_ranks: how many there are.
    """

    def __init__(
        self,
        examples: Examples,
        batch_size: int = 128,
        *,
        shuffle: bool = True,
        seed: int = 0,
        augment: Any = None,
        sample_weight: Tensor | None = None,
        device: torch.device | str | None = None,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        if not isinstance(examples, Examples):
            raise TypeError(f"examples must be dubio.data.Examples, got {type(examples).__name__}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not 0 <= rank < num_ranks:
            raise ValueError(f"rank must be from 0 to {num_ranks - 1}, got {rank}")
        if num_ranks > len(examples):
            raise ValueError(f"num_ranks must be at most the number of examples, {len(examples)}, got {num_ranks}")
        if sample_weight is not None and sample_weight.shape[:1] != examples.targets.shape[:1]:
            shape = tuple(sample_weight.shape)
            raise ValueError(f"sample_weight must have one weight per example, {len(examples)}, got shape {shape}")
        self.examples = examples if device is None else examples.to(device)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.augment = augment
        self.sample_weight = None if sample_weight is None else sample_weight.to(self.examples.targets.device)
        self.rank = rank
        self.num_ranks = num_ranks
        self._next_epoch = 0

    def __len__(self) -> int:
        """Batches of an epoch, the same in every process."""
        whole, rest = divmod(len(self.examples), self.batch_size * self.num_ranks)
        return whole + (rest >= self.num_ranks)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        self._next_epoch += 1
        return self.epoch(self._next_epoch - 1)

    def epoch(self, number: int, first: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """The batches of epoch ``number``, from batch ``first`` on.

        Their rows and what augments them are brought to the device at once: every transfer would wait for it.
        """
        order = epoch_order(len(self.examples), number, self.seed if self.shuffle else None)
        batches = [self._own(rows) for rows in order.split(self.batch_size * self.num_ranks)[first : len(self)]]
        augment = self._augmentation([len(rows) for rows in batches], number, first)
        for place, rows in enumerate(_moved(batches, self.examples.targets.device)):
            inputs = augment(place, self.examples.inputs.index_select(0, rows))
            batch = scaled(inputs), self.examples.targets.index_select(0, rows)
            yield batch if self.sample_weight is None else (*batch, self.sample_weight.index_select(0, rows))

    def _own(self, rows: Tensor) -> Tensor:
        """The rows of a joint batch that this process takes."""
        return rows[: len(rows) - len(rows) % self.num_ranks][self.rank :: self.num_ranks]

    def _augmentation(self, sizes: list[int], number: int, first: int) -> Callable[[int, Tensor], Tensor]:
        """A function of the place of a batch, counted from ``first``, and its images."""
        if self.augment is None:
            return lambda place, images: images

        def generator(place: int) -> torch.Generator:
            name = f"batch {first + place} of epoch {number}, rank {self.rank}, seed {self.seed}"
            return torch.Generator().manual_seed(noise_key(name))

        if type(self.augment) is not CropAndFlip:
            return lambda place, images: self.augment(images, generator(place))
        drawn = [self.augment.draw(size, generator(place)) for place, size in enumerate(sizes)]
        numbers = _moved(drawn, self.examples.inputs.device)
        return lambda place, images: self.augment.apply(images, numbers[place])


def _moved(parts: list[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """Tensors that differ in their last axis, brought to a device at once."""
    return torch.cat(parts, dim=-1).to(device).split([part.shape[-1] for part in parts], dim=-1) if parts else ()


def epoch_order(num_data: int, epoch: int, seed: int | None) -> Tensor:
    """Row numbers in the order of an epoch; without a seed, as they are."""
    if seed is None:
        return torch.arange(num_data, device="cpu")
    generator = torch.Generator().manual_seed(noise_key(f"epoch {epoch} of seed {seed}"))
    return torch.randperm(num_data, generator=generator, device="cpu")
