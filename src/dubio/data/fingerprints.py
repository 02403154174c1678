"""Which examples these are, whatever their order: data that judged a network must not decide anything about it.

Every row, its inputs and its target, is hashed, and the hashes are added up modulo 2^128. The sum and the number of
rows name the set.

Invariants: the order of the rows, how they are cut into batches, and whether images are bytes or numbers in [0, 1]
change nothing; another value, another target, or a row that is left out or repeated does
(``tests/data/test_fingerprints.py``). A part of a set, and the same data normalised otherwise, are other data here.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubio.data.examples import scaled

__all__ = ["fingerprint_of", "fingerprint_of_batches", "order_of"]

DIGEST_SIZE = 16


def fingerprint_of(inputs: Any, targets: Any) -> str:
    """The fingerprint of examples: inputs as a network reads them, and their targets, rows on axis 0.

    Args:
        inputs: a tensor, or tuples, lists or dicts of tensors; what is no tensor is left out.
        targets: labels or values, one row for each example.
    """
    return fingerprint_of_batches([(inputs, targets)])


def fingerprint_of_batches(batches: Iterable[tuple[Any, Any]]) -> str:
    """The fingerprint of all examples of some batches of inputs and targets together."""
    total, count = 0, 0
    for inputs, targets in batches:
        rows = _rows(inputs, targets)
        total += sum(int.from_bytes(hashlib.blake2b(row, digest_size=DIGEST_SIZE).digest(), "big") for row in rows)
        count += len(rows)
    return f"{total % 2 ** (8 * DIGEST_SIZE):0{2 * DIGEST_SIZE}x}-{count}"


def order_of(inputs: Any, targets: Any) -> str:
    """Names examples in their order: equal where the same examples stand in the same rows."""
    digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for row in _rows(inputs, targets):
        digest.update(hashlib.blake2b(row, digest_size=DIGEST_SIZE).digest())
    return digest.hexdigest()


def _rows(inputs: Any, targets: Any) -> NDArray[np.uint8]:
    """The bytes of every example, one row each."""
    wanted = torch.as_tensor(targets)
    if wanted.dim() == 0:
        raise ValueError("targets must have one row for each example, got a single number")
    leaves = [_numbers(leaf) for leaf in _leaves(inputs)]
    if not leaves:
        raise ValueError(f"inputs must hold at least one tensor with rows, got {type(inputs).__name__}")
    for leaf in leaves:
        if leaf.dim() == 0 or len(leaf) != len(wanted):
            raise ValueError(
                f"inputs must have as many rows as targets, got shape {tuple(leaf.shape)} beside {len(wanted)} targets"
            )
    parts = [*leaves, wanted.detach().cpu().double()]  # labels are the same labels, as whole numbers or not
    return np.concatenate([_bytes(part) for part in parts], axis=1)


def _leaves(inputs: Any) -> list[Tensor]:
    if isinstance(inputs, Tensor | np.ndarray):
        return [torch.as_tensor(inputs)]
    if isinstance(inputs, Mapping):
        return [leaf for name in sorted(inputs, key=str) for leaf in _leaves(inputs[name])]
    if isinstance(inputs, tuple | list):
        return [leaf for part in inputs for leaf in _leaves(part)]
    return []


def _numbers(leaf: Tensor) -> Tensor:
    """Values in one type for each kind of number; -0.0 is 0.0."""
    values = scaled(leaf.detach()).cpu()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    return values.float() + 0.0 if values.is_floating_point() else values.long()


def _bytes(values: Tensor) -> NDArray[np.uint8]:
    rows = values.reshape(len(values), -1) if len(values) else values.new_zeros(0, 1)
    return rows.contiguous().numpy().view(np.uint8)
