"""Examples in memory (inputs, targets and names of the classes), and their split into parts.

Images are stored as bytes, ``uint8`` of shape `(example, channel, height, width)`. ``scaled`` converts them to numbers
in [0, 1] when they are used. Other inputs are ``float32`` and are used unchanged. Normalisation is part of the model.

The split into training, validation and test parts uses fixed generators, so the parts always have the same rows
(``tests/data/test_splitting.py``).
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dubio.data.encoder import TableEncoder
from dubio.data.files import DataError

VALIDATION_SHARE = 0.1
"""Share of the training examples that is held out for validation by default."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets, row by row.

    Args:
        inputs: ``uint8`` images `(example, channel, height, width)`, or ``float32`` of any shape, rows first.
        targets: ``int64`` labels `(example,)`, or ``float32`` values for regression.
        classes: names of the classes in the order of their labels; empty for regression.
        name: name of the data in tables and messages.
        encoder: the encoder that made these inputs and targets from the columns of a table; None for other data.
    """

    inputs: Tensor
    targets: Tensor
    classes: tuple[str, ...] = ()
    name: str = "data"
    encoder: TableEncoder | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(
                f"{self.name} must have as many inputs as targets, got {len(self.inputs)} and {len(self.targets)}"
            )
        if len(self.targets) == 0:
            raise ValueError(f"{self.name} must hold at least one example, got none")
        if self.inputs.dtype not in (torch.uint8, torch.float32):
            raise TypeError(f"{self.name} must have inputs of type uint8 or float32, got {self.inputs.dtype}")
        if self.classes and self.targets.dtype != torch.int64:
            raise TypeError(f"{self.name} must have int64 labels for its classes, got {self.targets.dtype}")
        if self.classes and not 0 <= int(self.targets.min()) <= int(self.targets.max()) < len(self.classes):
            raise ValueError(
                f"{self.name} must have labels from 0 to {len(self.classes) - 1}, "
                f"got {int(self.targets.min())} to {int(self.targets.max())}"
            )

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, rows: Any) -> "Examples":
        """A selection of the examples, by slice, mask or row numbers."""
        rows = [rows] if isinstance(rows, int) else rows
        return replace(self, inputs=self.inputs[rows], targets=self.targets[rows])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.inputs.shape[1:])

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """All inputs as numbers (images in [0, 1]) and all targets."""
        return scaled(self.inputs), self.targets

    @property
    def fingerprint(self) -> str:
        """A hash of the contents: the same for the same examples in the same order."""
        digest = hashlib.blake2b(digest_size=16)
        for tensor in (self.inputs, self.targets):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> "Examples":
        """The examples on another device."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


@dataclass(frozen=True, eq=False)
class Splits:
    """The parts of a dataset; a part that it does not have is None."""

    train: Examples | None
    validation: Examples | None
    test: Examples | None


def scaled(inputs: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1]; other numbers unchanged."""
    return inputs / 255.0 if inputs.dtype == torch.uint8 else inputs


def with_validation(
    train: Examples | None, test: Examples | None, validation: int | float = VALIDATION_SHARE
) -> Splits:
    """Hold examples out of a training part; both parts keep their order.

    Args:
        train: the training part; without it there is no validation part either.
        test: the test part, which does not change.
        validation: how many examples to hold out, or a fraction of them; 0 for none.
    """
    if train is None:
        return Splits(None, None, test)
    held_out = torch.zeros(len(train), dtype=torch.bool, device="cpu")
    held_out[_order(len(train))[: _count(validation, len(train))]] = True
    return Splits(train[~held_out], train[held_out] if held_out.any() else None, test)


def split_examples(examples: Examples, validation: int | float = VALIDATION_SHARE) -> Splits:
    """Split examples in random order: a quarter for testing, and ``validation`` of the rest for validation."""
    train, held_out, test = split_rows(len(examples), validation, examples.name)
    return Splits(examples[train], examples[held_out] if len(held_out) else None, examples[test])


def split_rows(count: int, validation: int | float, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Row numbers of the training, validation and test parts, as in ``split_examples``."""
    if count < 4:
        raise DataError(f"{name} must have at least 4 examples, a quarter of them for testing, got {count}")
    test, rest = _order(count).tensor_split([count // 4])
    held_out, train = rest.tensor_split([_count(validation, len(rest))])
    return train, held_out, test


def _order(count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(0), device="cpu")


def _count(validation: int | float, available: int) -> int:
    """The number of validation examples."""
    count = validation if isinstance(validation, int) else int(validation * available)
    if isinstance(validation, bool) or validation < 0 or (isinstance(validation, float) and not validation < 1.0):
        raise ValueError(f"validation must be a number of examples or a fraction in [0, 1), got {validation}")
    if count >= available:
        raise ValueError(
            f"validation must leave something to train on: less than {available} examples, got {validation}"
        )
    return count
