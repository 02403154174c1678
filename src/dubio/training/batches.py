"""Training data as batches: tensors, a ``Dataset``, a ``DataLoader``, or any iterable of batches.

What is held in memory or can be indexed is shuffled by a generator made from (seed, epoch), so that an epoch can be
taken up again at any batch. A loader or iterable keeps its own order, and is run through to the batch wanted.
"""

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, default_collate

from dubio.sampling.noise import noise_key

__all__ = ["Batch", "Batches", "batches_from"]


@dataclass(frozen=True)
class Batch:
    """Inputs and targets of some examples, with their weights where there are any."""

    inputs: Any
    targets: Tensor
    weight: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        inputs, targets, weight = pytree.tree_map_only(
            Tensor, lambda leaf: leaf.to(device), (self.inputs, self.targets, self.weight)
        )
        return Batch(inputs, targets, weight)


@dataclass(frozen=True)
class Batches:
    """The batches of one epoch after another."""

    num_data: int | None
    num_batches: int | None
    _rows: Any
    """What is indexed by a tensor of row numbers; None where order is the source's own."""
    _source: Iterable[Any] | None
    _batch_size: int
    _seed: int | None
    """None: not shuffled."""

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """The batches of epoch ``number``, from batch ``first`` on."""
        if self._rows is None:
            assert self._source is not None
            return (_batch(item) for item in islice(self._source, first, None))
        assert self.num_data is not None
        order = torch.arange(self.num_data)
        if self._seed is not None:
            generator = torch.Generator().manual_seed(noise_key(f"epoch {number} of seed {self._seed}"))
            order = torch.randperm(self.num_data, generator=generator)
        return (_batch(_take(self._rows, rows)) for rows in order.split(self._batch_size)[first:])


def batches_from(
    data: Any, batch_size: int, *, name: str, seed: int | None = None, sample_weight: Tensor | None = None
) -> Batches:
    """Batches from any kind of data; ``name`` is what error messages call it."""
    if isinstance(data, tuple | list) and len(data) in (2, 3) and isinstance(data[1], Tensor):
        inputs, targets, *weights = data
        if sample_weight is not None:
            weights = [sample_weight]
        _check_rows(name, inputs, targets, *weights)
        return Batches(
            len(targets), -(-len(targets) // batch_size), (inputs, targets, *weights), None, batch_size, seed
        )
    if sample_weight is not None:
        raise ValueError(
            f"sample_weight goes with {name} given as tensors; else let {name} yield (inputs, targets, weights)"
        )
    if isinstance(data, DataLoader):
        num_data = len(data.dataset) if isinstance(data.dataset, Sized) else None
        return Batches(num_data, len(data) if isinstance(data, Sized) else None, None, data, batch_size, None)
    if isinstance(data, Dataset) and hasattr(data, "__getitem__"):
        if not isinstance(data, Sized) or len(data) == 0:
            raise ValueError(f"{name} must hold at least one example, got none")
        return Batches(len(data), -(-len(data) // batch_size), data, None, batch_size, seed)
    if isinstance(data, Iterable) and not isinstance(data, Tensor | str):
        if isinstance(data, Iterator):
            raise TypeError(
                f"{name} must be iterable more than once, got a {type(data).__name__}; pass a list or loader"
            )
        return Batches(None, len(data) if isinstance(data, Sized) else None, None, data, batch_size, None)
    raise TypeError(
        f"{name} must be (inputs, targets), a Dataset, a DataLoader or an iterable of batches, "
        f"got {type(data).__name__}"
    )


def _check_rows(name: str, inputs: Any, targets: Tensor, *weights: Tensor) -> None:
    if targets.dim() == 0 or len(targets) == 0:
        raise ValueError(f"{name} must hold at least one example, got none")
    for leaf in [*pytree.tree_leaves(inputs), *weights]:
        if isinstance(leaf, Tensor) and (leaf.dim() == 0 or len(leaf) != len(targets)):
            raise ValueError(
                f"{name} must have as many inputs as targets, got {tuple(leaf.shape)} beside {len(targets)} targets"
            )
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            raise ValueError(f"{name} must be finite, got NaN or infinite values")
    if targets.is_floating_point() and not bool(targets.isfinite().all()):
        raise ValueError(f"{name} must have finite targets, got NaN or infinite values")


def _take(data: Any, rows: Tensor) -> Any:
    if isinstance(data, tuple):
        return pytree.tree_map_only(Tensor, lambda leaf: leaf[rows.to(leaf.device)], data)
    return default_collate([data[row] for row in rows.tolist()])


def _batch(item: Any) -> Batch:
    if isinstance(item, Batch):
        return item
    if isinstance(item, tuple | list) and len(item) in (2, 3):
        return Batch(*item)
    raise TypeError(f"a batch must be (inputs, targets) or (inputs, targets, weights), got {type(item).__name__}")
