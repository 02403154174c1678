"""How many rows fit into memory at a time, found by trying a few."""

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import nn

from dubio._engine import STATE, free_memory, is_out_of_memory, memory_budget, shrink_chunks

__all__ = ["Thrift", "rows_that_fit", "rows_to_try", "with_fewer_rows"]

ROWS_TO_TRY = 8

T = TypeVar("T")


class Thrift:
    """How an attack goes on when memory has run out: with half as many draws at a time, then half as many rows."""

    def __init__(self, model: object, rows: int, num_samples: int) -> None:
        self.rows = rows
        self._model, self._num_samples = model, num_samples
        self._halvings = 0

    def take_less(self) -> None:
        """Draws at a time first, as that changes nothing else; raises where one draw of one row is too much."""
        # Halved no more often than there are draws to halve: it may be another's memory that ran out.
        may_halve = isinstance(self._model, nn.Module) and self._halvings < self._num_samples.bit_length()
        if may_halve and shrink_chunks(cast(nn.Module, self._model)):
            self._halvings += 1
        elif self.rows > 1:
            self.rows, self._halvings = -(-self.rows // 2), 0
        else:
            raise torch.OutOfMemoryError(
                "the attack ran out of memory with one draw of one input at a time; it needs more memory, or smaller "
                "inputs"
            )
        free_memory()


def rows_to_try() -> int:
    """A few rows, to see what a network does with them; under a limit one, since nobody knows yet what it takes."""
    return ROWS_TO_TRY if STATE.own.settings.memory is None else 1


def with_fewer_rows(look: Callable[[int], T], rows: int) -> T:
    """What a look at so many rows gives; at half as many, and half of these, where memory or its limit is too small."""
    while True:
        try:
            return look(rows)
        except (RuntimeError, ValueError, MemoryError) as error:
            refused = isinstance(error, ValueError) and STATE.own.settings.memory is not None
            if rows == 1 or not (refused or is_out_of_memory(error)):
                raise
        # Outside of the handler, where nothing refers to the failed look any more.
        free_memory()
        rows = -(-rows // 2)


def rows_that_fit(peak_of: Callable[[int], int], most: int, num_samples: int, device: torch.device) -> int:
    """Rows whose own part of ``num_samples`` draws fits into the budget; ``peak_of`` tells what rows take in one draw.

    What a draw takes whatever its rows, such as drawn weights, is the same in every batch: fewer rows would only make
    more of it.
    """
    budget = memory_budget(device)
    one = peak_of(1)
    more = min(ROWS_TO_TRY, most, most if STATE.own.settings.memory is None else budget // max(one, 1))
    if more < 2:
        return 1
    per_row = max(1, (peak_of(more) - one) // (more - 1))
    return max(1, min(most, budget // (per_row * num_samples)))
