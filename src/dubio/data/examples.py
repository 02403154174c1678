"""Examples held in memory: inputs, targets, and what the classes are called.

Images keep their bytes, ``uint8`` of shape `(example, channel, height, width)`, and become numbers in [0, 1] when they
are used; ``scaled`` is the one place that says how. Inputs that are numbers already, images or features, stay as they
are. Normalisation belongs to the model.

Which examples are for training, for choosing, and for testing: always the same rows, from fixed generators.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dubio.data.encoder import TableEncoder
from dubio.data.files import DataError


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets, row by row.

    Args:
        inputs: ``uint8`` images `(example, channel, height, width)`, or ``float32`` of any shape, rows first.
        targets: ``int64`` labels `(example,)`, or ``float32`` values for regression.
        classes: names of the classes in the order of their labels; empty for regression.
        name: what tables and messages call these data.
        encoder: how the columns of a table became these inputs and targets; None for other data.
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
        """Some of the examples, by slice, mask or row numbers."""
        if isinstance(rows, int):
            rows = [rows]
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
    """What a dataset offers; parts that it has not are None."""

    train: Examples | None
    validation: Examples | None
    test: Examples | None


def scaled(inputs: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1]; numbers as they are."""
    return inputs / 255.0 if inputs.dtype == torch.uint8 else inputs


TENTH = 0.1


def with_validation(train: Examples | None, test: Examples | None, validation: int | float = TENTH) -> Splits:
    """Hold examples out of a training part; both parts keep the order they had.

    Args:
        train: the training part; where it is None there is no validation part either.
        test: the test part, untouched.
        validation: how many examples to hold out, or a fraction of them; 0 for none.
    """
    if train is None:
        return Splits(None, None, test)
    held_out = torch.zeros(len(train), dtype=torch.bool, device="cpu")
    held_out[_order(len(train))[: _count(validation, len(train))]] = True
    return Splits(train[~held_out], train[held_out] if held_out.any() else None, test)


def split_three_ways(examples: Examples, validation: int | float = TENTH) -> Splits:
    """A quarter of the examples for testing, and of the rest ``validation``, in one random order."""
    train, held_out, test = rows_three_ways(len(examples), validation, examples.name)
    return Splits(examples[train], examples[held_out] if len(held_out) else None, examples[test])


def rows_three_ways(count: int, validation: int | float, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Which of so many rows are for training, for validation and for testing, as ``split_three_ways`` has it."""
    if count < 4:
        raise DataError(f"{name} must have at least 4 examples, a quarter of them for testing, got {count}")
    test, rest = _order(count).tensor_split([count // 4])
    held_out, train = rest.tensor_split([_count(validation, len(rest))])
    return train, held_out, test


def _order(count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(0), device="cpu")


def _count(validation: int | float, available: int) -> int:
    """How many examples ``validation`` asks for."""
    wanted = validation if isinstance(validation, int) else int(validation * available)
    if isinstance(validation, bool) or validation < 0 or (isinstance(validation, float) and not validation < 1.0):
        raise ValueError(f"validation must be a number of examples or a fraction in [0, 1), got {validation}")
    if wanted >= available:
        raise ValueError(
            f"validation must leave something to train on: less than {available} examples, got {validation}"
        )
    return wanted
