"""Which examples are for training, for choosing, and for testing: always the same rows, from fixed generators."""

import torch
from torch import Tensor

from dubio.data.errors import DataError
from dubio.data.examples import Examples, Splits

__all__ = ["TENTH", "rows_three_ways", "split_three_ways", "with_validation"]

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
