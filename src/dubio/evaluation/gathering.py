"""Data to judge by: what ``fit`` takes, gathered in memory, with a name and a fingerprint."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dubio.data import Examples, batches_from, fingerprint_of, order_of
from dubio.evaluation.values import DataRecord

__all__ = ["Judged", "gather", "gather_inputs"]


@dataclass(frozen=True, eq=False)
class Judged:
    """Inputs and targets in memory, and what is written down about them."""

    inputs: Any
    targets: Tensor
    record: DataRecord


def gather(data: Any, name: str = "data", classes: tuple[str, ...] = ()) -> Judged:
    """All inputs and targets of some data: ``Examples``, ``(inputs, targets)``, a ``Dataset`` or a ``DataLoader``."""
    if isinstance(data, Judged):
        return data
    if isinstance(data, Examples):
        inputs, targets = data.tensors
        name, classes = data.name, classes or data.classes
    else:
        inputs, targets = _joined(data, name)
    if targets.is_complex():
        raise TypeError(f"targets must be whole numbers that name classes, or real numbers, got {targets.dtype}")
    fingerprint, order = fingerprint_of(inputs, targets), order_of(inputs, targets)
    record = DataRecord(name, len(targets), fingerprint, tuple(classes), order)
    return Judged(inputs, targets, record)


def gather_inputs(data: Any, name: str) -> tuple[Any, DataRecord]:
    """Inputs alone and what is written down about them; what never was seen needs no targets."""
    if isinstance(data, Tensor):
        none = torch.zeros(len(data), device="cpu")
        return data, DataRecord(name, len(data), fingerprint_of(data, none), order=order_of(data, none))
    found = gather(data, name)
    return found.inputs, found.record


def _joined(data: Any, name: str) -> tuple[Any, Tensor]:
    batches = list(batches_from(data, 1024, name=name).epoch(0))
    if not batches:
        raise ValueError(f"{name} must hold at least one example, got none")
    if any(batch.weight is not None for batch in batches):
        raise ValueError(f"{name} must have no weights of examples, to judge by it; leave them out")
    inputs = pytree.tree_map(
        lambda *leaves: torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0],
        *(batch.inputs for batch in batches),
    )
    return inputs, torch.cat([batch.targets for batch in batches])
