"""Fingerprints of data, which are equal if two sets of examples are equal.

``fingerprint_of`` does not depend on the order of the rows. It serves to refuse decisions about a network, such as
calibration, on the data that evaluated it. Every row (inputs and target) is hashed, and the hashes are added up modulo
2^128. The fingerprint is this sum and the number of rows.

Invariants: the fingerprint does not depend on the order of the rows, on the batches, or on whether images are bytes or
numbers in [0, 1]; it changes with every value or target, and if a row is left out or repeated
(``tests/data/test_fingerprints.py``). A part of a set, and the same data with another normalisation, have different
fingerprints.

``DataFingerprint`` is stored with a run, which refuses other data when it is resumed. It is fast, and depends on the
order of the rows and on the types of their values.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, TensorDataset

from dubio.data.batches import Batch, Loader
from dubio.data.examples import Examples, scaled

DIGEST_SIZE = 16
CHUNK_BYTES = 2**24
"""Size of the rows that are hashed together."""


@dataclass(frozen=True)
class DataFingerprint:
    """The fingerprint of the training or validation data of a run."""

    kind: str
    """The type of the data: ``Examples``, ``DataLoader``."""
    ordered: str | None = None
    """A hash of all values; None if the data are not in memory, because reading them may be slow or random."""
    unordered: str | None = None
    """A sum of hashes of the rows, which does not depend on their order."""
    num_examples: int | None = None
    classes: tuple[str, ...] = ()
    """Names of the classes, if the data have them."""
    shape: tuple[int, ...] = ()
    """Shape of one input of ``Examples``; a network that flattens its inputs does not contain it."""

    @classmethod
    def of(cls, data: Any, sample_weight: Tensor | None = None) -> "DataFingerprint":
        """The fingerprint of anything that ``fit`` accepts; a loader or stream is not read, and has only a type."""
        source = data.examples if isinstance(data, Loader) else data
        source = source.dataset if isinstance(source, DataLoader) else source
        classes, shape = (source.classes, source.shape) if isinstance(source, Examples) else ((), ())
        weights = data.sample_weight if isinstance(data, Loader) else sample_weight
        batches = _held_batches(source, weights)
        if batches is None:
            return cls(type(data).__name__, classes=classes, shape=shape)
        digest, total, count = hashlib.blake2b(digest_size=DIGEST_SIZE), 0, 0
        for batch in batches:
            for leaf in batch:
                digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
                digest.update(leaf.reshape(-1).view(torch.uint8).numpy().data)
            rows = _row_hashes(batch)
            total += int(rows.sum(dtype=np.uint64))
            count += len(rows)
        return cls(type(data).__name__, digest.hexdigest(), f"{total % 2**64:016x}", count, classes, shape)

    def change_from(self, before: "DataFingerprint", name: str) -> str:
        """How these data, called ``name``, differ from earlier data; empty if they do not, or one has no hash."""
        if self.classes != before.classes:
            return f"{name} has other classes: {_change_of_classes(before.classes, self.classes)}"
        if self.ordered == before.ordered or self.ordered is None or before.ordered is None:
            return ""
        if self.num_examples != before.num_examples:
            return f"{name} had {before.num_examples} examples, has {self.num_examples}"
        if self.unordered == before.unordered:
            return f"{name} has the same rows in another order"
        return f"{name} has other rows"


def fingerprint_of(inputs: Any, targets: Any) -> str:
    """The fingerprint of inputs and targets with rows on axis 0.

    Args:
        inputs: a tensor, or tuples, lists or dicts of tensors; other values are ignored.
        targets: labels or values, one row for each example.
    """
    return fingerprint_of_batches([(inputs, targets)])


def fingerprint_of_batches(batches: Iterable[tuple[Any, Any]]) -> str:
    """The fingerprint of all examples in batches of inputs and targets."""
    total, count = 0, 0
    for inputs, targets in batches:
        rows = _rows(inputs, targets)
        total += sum(int.from_bytes(hashlib.blake2b(row, digest_size=DIGEST_SIZE).digest(), "big") for row in rows)
        count += len(rows)
    return f"{total % 2 ** (8 * DIGEST_SIZE):0{2 * DIGEST_SIZE}x}-{count}"


def order_of(inputs: Any, targets: Any) -> str:
    """A hash of examples in their order; it is equal if the same rows have the same examples."""
    digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for row in _rows(inputs, targets):
        digest.update(hashlib.blake2b(row, digest_size=DIGEST_SIZE).digest())
    return digest.hexdigest()


def _rows(inputs: Any, targets: Any) -> NDArray[np.uint8]:
    """The bytes of every example, one row each."""
    labels = torch.as_tensor(targets, device="cpu")
    if labels.dim() == 0:
        raise ValueError("targets must have one row for each example, got a single number")
    leaves = [_numbers(leaf) for leaf in _leaves(inputs)]
    if not leaves:
        raise ValueError(f"inputs must hold at least one tensor with rows, got {type(inputs).__name__}")
    for leaf in leaves:
        if leaf.dim() == 0 or len(leaf) != len(labels):
            raise ValueError(
                f"inputs must have as many rows as targets, got shape {tuple(leaf.shape)} beside {len(labels)} targets"
            )
    parts = [*leaves, labels.detach().cpu().double()]  # so that 1 and 1.0 are the same label
    rows = [part.reshape(len(part), -1) if len(part) else part.new_zeros(0, 1) for part in parts]
    return np.concatenate([part.contiguous().numpy().view(np.uint8) for part in rows], axis=1)


def _leaves(inputs: Any) -> list[Tensor]:
    if isinstance(inputs, Tensor | np.ndarray):
        return [torch.as_tensor(inputs, device="cpu")]
    if isinstance(inputs, Mapping):
        return [leaf for name in sorted(inputs, key=str) for leaf in _leaves(inputs[name])]
    if isinstance(inputs, tuple | list):
        return [leaf for part in inputs for leaf in _leaves(part)]
    return []


def _numbers(leaf: Tensor) -> Tensor:
    """Values as one floating-point or integer type; -0.0 becomes 0.0."""
    values = scaled(leaf.detach()).cpu()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    return values.float() + 0.0 if values.is_floating_point() else values.long()


def _held_batches(data: Any, sample_weight: Tensor | None) -> list[list[Tensor]] | None:
    """The tensors of data in memory, batch by batch; None for all other data."""
    if isinstance(data, Examples):
        batches: list[Any] = [(data.inputs, data.targets)]
    elif isinstance(data, TensorDataset):
        batches = [data.tensors]
    elif isinstance(data, tuple | list):
        is_one = len(data) in (2, 3) and isinstance(data[1], Tensor | np.ndarray)
        batches = [data] if is_one else [*data]
    else:
        return None
    if sample_weight is not None:
        batches = [(*batches[0], sample_weight)]
    held = [_tensors_of(batch) for batch in batches]
    for leaves in held:
        is_dense = bool(leaves) and all(leaf.layout == torch.strided and not leaf.is_nested for leaf in leaves)
        if not is_dense or any(leaf.dim() == 0 or len(leaf) != len(leaves[0]) for leaf in leaves):
            return None
    return [[leaf.detach().cpu().resolve_conj().contiguous() for leaf in leaves] for leaves in held]


def _tensors_of(batch: Any) -> list[Tensor]:
    if isinstance(batch, Batch):
        batch = (batch.inputs, batch.targets, batch.weight)
    arrays = (leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor | np.ndarray))
    return [torch.as_tensor(array, device="cpu") for array in arrays]


def _row_hashes(leaves: list[Tensor]) -> NDArray[np.uint64]:
    """A fast hash of each row of tensors; it is not cryptographic."""
    hashes = np.ones(len(leaves[0]), dtype=np.uint64)
    for place, leaf in enumerate(leaves):
        rows = leaf.reshape(len(leaf), -1 if leaf.numel() else 0).view(torch.uint8).numpy()
        size = -(-rows.shape[1] // 8)  # in words of 8 bytes
        factors = np.random.default_rng(place).integers(2**64, size=size, dtype=np.uint64) | np.uint64(1)
        step = max(1, CHUNK_BYTES // max(1, rows.shape[1]))
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            words = np.zeros((len(part), 8 * size), dtype=np.uint8)
            words[:, : part.shape[1]] = part
            hashes[first : first + step] += words.view(np.uint64) @ factors
        hashes ^= hashes >> np.uint64(32)  # the sum over rows must not be linear in their values
        hashes *= np.uint64(0xD6E8FEB86659FD93)
        hashes ^= hashes >> np.uint64(32)
    return hashes


def _change_of_classes(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    gone = [name for name in before if name not in now]
    new = [name for name in now if name not in before]
    if not gone and not new:
        place = next(place for place in range(len(before)) if before[place : place + 1] != now[place : place + 1])
        return f"class {place} was {before[place]!r}, is {now[place]!r}"
    parts = [f"{_listed(gone)} missing"] if gone else []
    return " and ".join([*parts, *([f"{_listed(new)} new"] if new else [])])


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"
