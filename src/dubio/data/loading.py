"""Batches of examples held in memory, cut, cropped, flipped and scaled on the device where they live.

An epoch is a function of (seed, number): its shuffle and its augmentation can be had again, from any batch on, so a
run that was interrupted goes on with the very same data. Several processes take turns at the rows of each joint batch:
together they see what one process with their joint batch size sees, but for a remainder smaller than their number.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dubio.data.examples import Examples, scaled
from dubio.sampling.noise import noise_key

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
        if images.dim() != 4:
            raise ValueError(f"CropAndFlip needs images (batch, channel, height, width), got {tuple(images.shape)}")
        count, channels, height, width = images.shape
        shifts = torch.randint(2 * self.pad + 1, (2, count, 1), generator=generator).to(images.device)
        rows = shifts[0] + torch.arange(height, device=images.device)
        columns = shifts[1] + torch.arange(width, device=images.device)
        if self.flip:
            mirrored = torch.randint(2, (count, 1), generator=generator, dtype=torch.bool).to(images.device)
            columns = torch.where(mirrored, columns.flip(1), columns)
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
        """The batches of epoch ``number``, from batch ``first`` on."""
        order = epoch_order(len(self.examples), number, self.seed if self.shuffle else None)
        order = order.to(self.examples.targets.device)
        joint = self.batch_size * self.num_ranks
        for batch in range(first, len(self)):
            rows = order[batch * joint : (batch + 1) * joint]
            rows = rows[: len(rows) - len(rows) % self.num_ranks] if len(rows) < joint else rows
            yield self._batch(rows[self.rank :: self.num_ranks], f"batch {batch} of epoch {number}, rank {self.rank}")

    def _batch(self, rows: Tensor, place: str) -> tuple[Tensor, ...]:
        inputs = self.examples.inputs.index_select(0, rows)
        if self.augment is not None:
            inputs = self.augment(inputs, torch.Generator().manual_seed(noise_key(f"{place}, seed {self.seed}")))
        batch = scaled(inputs), self.examples.targets.index_select(0, rows)
        return batch if self.sample_weight is None else (*batch, self.sample_weight.index_select(0, rows))


def epoch_order(num_data: int, epoch: int, seed: int | None) -> Tensor:
    """Row numbers in the order of an epoch; without a seed, as they are."""
    if seed is None:
        return torch.arange(num_data)
    generator = torch.Generator().manual_seed(noise_key(f"epoch {epoch} of seed {seed}"))
    return torch.randperm(num_data, generator=generator)
