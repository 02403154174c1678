"""Batches that several processes share: each takes its part of the rows, dealt out one by one.

Together the parts are the batches that one process has, in the same order and with the same augmentation. No row is
left out: where a batch has too few rows to give each process two, fewer share it, and the others have a part without
rows. So nobody is left with a single row, of which batch normalisation could learn nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, default_collate

from dubio.data.batches import Batch, Batches, batch_of, batches_from
from dubio.data.examples import Examples
from dubio.data.loading import Loader, epoch_order

__all__ = ["shared_batches"]


def shared_batches(
    data: Any,
    batch_size: int,
    *,
    name: str,
    rank: int,
    num_ranks: int,
    seed: int | None = None,
    sample_weight: Tensor | None = None,
    device: torch.device | None = None,
) -> Batches:
    """The part that process ``rank`` of ``num_ranks`` has of each batch of ``batch_size`` rows.

    Other arguments are those of ``batches_from``. A loader that deals out rows itself is used as it is.
    """
    if num_ranks > 1:
        _check_shareable(data, batch_size, name, rank, num_ranks)
    whole = batches_from(data, batch_size, name=name, seed=seed, sample_weight=sample_weight, device=device)
    if num_ranks == 1:
        return whole
    if isinstance(data, DataLoader):
        return _sampled(data, whole, num_ranks)
    if isinstance(data, Loader) and data.num_ranks > 1:
        return _changed(whole, lambda batch: replace(batch, num_parts=num_ranks))
    if isinstance(data, Dataset):
        return _fetched(data, whole, batch_size, seed, rank, num_ranks)
    return _changed(whole, lambda batch: _part(batch, rank, num_ranks))


def _check_shareable(data: Any, batch_size: int, name: str, rank: int, num_ranks: int) -> None:
    if isinstance(data, Loader):
        if data.num_ranks > 1 and (data.rank, data.num_ranks) != (rank, num_ranks):
            raise ValueError(
                f"the Loader of {name} must have rank={rank} and num_ranks={num_ranks} in this process, or neither, "
                f"got rank={data.rank} and num_ranks={data.num_ranks}"
            )
    elif isinstance(data, DataLoader) and isinstance(data.sampler, DistributedSampler):
        if (data.sampler.rank, data.sampler.num_replicas) != (rank, num_ranks):
            raise ValueError(
                f"the DistributedSampler of {name} must have rank={rank} and num_replicas={num_ranks} in this "
                f"process, got rank={data.sampler.rank} and num_replicas={data.sampler.num_replicas}"
            )
    elif not _has_rows(data):
        raise TypeError(
            f"{name} must be dubio.data.Examples, (inputs, targets), a Dataset or a DataLoader with a "
            f"DistributedSampler for several processes, which share every batch, got {type(data).__name__}"
        )
    elif batch_size < num_ranks:
        raise ValueError(
            f"batch_size must be at least the number of processes that share a batch, {num_ranks}, got {batch_size}"
        )


def _has_rows(data: Any) -> bool:
    if isinstance(data, tuple | list):
        return len(data) in (2, 3) and hasattr(data[1], "shape")
    return isinstance(data, Examples | Dataset) and not isinstance(data, IterableDataset)


def _changed(whole: Batches, change: Callable[[Batch], Batch]) -> Batches:
    def items(number: int, first: int) -> Iterator[Batch]:
        return map(change, whole.epoch(number, first))

    return Batches(whole.num_data, whole.num_batches, items, may_draw=False)  # the whole sees to that


def _num_parts(num_rows: int, num_ranks: int) -> int:
    """How many processes share a batch: each has at least two of its rows, or one has them all."""
    return max(1, min(num_ranks, num_rows // 2))


def _own(rows: Tensor, rank: int, num_parts: int) -> Tensor:
    """The rows of one process: every so many, or none for a process that has no part."""
    return rows[rank::num_parts] if rank < num_parts else rows[:0]


def _part(batch: Batch, rank: int, num_ranks: int) -> Batch:
    """A process's rows of a batch."""
    num_parts = _num_parts(len(batch.targets), num_ranks)
    inputs, targets, weight = pytree.tree_map_only(
        Tensor, lambda leaf: _own(leaf, rank, num_parts), (batch.inputs, batch.targets, batch.weight)
    )
    return Batch(inputs, targets, weight, num_parts)


def _fetched(data: Any, whole: Batches, batch_size: int, seed: int | None, rank: int, num_ranks: int) -> Batches:
    """Parts of batches of a dataset, of which nothing is fetched but the rows that are wanted."""
    assert whole.num_data is not None
    num_data = whole.num_data

    def part(rows: Tensor) -> Batch:
        num_parts = _num_parts(len(rows), num_ranks)
        own = _own(rows, rank, num_parts)
        batch = batch_of(default_collate([data[row] for row in own.tolist()])) if len(own) else Batch(None, own)
        return replace(batch, num_parts=num_parts)

    def items(number: int, first: int) -> Iterator[Batch]:
        return map(part, epoch_order(num_data, number, seed).split(batch_size)[first:])

    return Batches(num_data, whole.num_batches, items)


def _sampled(loader: DataLoader[Any], whole: Batches, num_ranks: int) -> Batches:
    """Batches of torch's loader, whose sampler gives each process rows of its own."""
    sampler: Any = loader.sampler

    def items(number: int, first: int) -> Iterator[Batch]:
        sampler.set_epoch(number)
        return (replace(batch, num_parts=num_ranks) for batch in whole.epoch(number, first))

    rows = min(len(sampler.dataset), (whole.num_data or sampler.num_samples) * num_ranks)  # it may repeat some
    return Batches(rows, whole.num_batches, items, may_draw=False)
