"""Which shape of batches is compiled and recorded: the first, unless another one comes again and again.

A short last batch runs as it is. A run that is taken up just before one must not take it for the rule, and data of ever
other shapes must not be compiled for each of them.
"""

from typing import Any

__all__ = ["OTHERS_TO_CHANGE", "Shapes"]

OTHERS_TO_CHANGE = 4
"""Batches of another shape in a row after which that one is chosen."""
MOST_CHANGES = 2
"""How often that may happen."""
ENOUGH = 8
"""Batches after which it can be said whether they have one shape."""


class Shapes:
    """The shape that was chosen, and how batches compare with it."""

    def __init__(self) -> None:
        self.chosen: tuple[Any, ...] | None = None
        self._num_others = 0
        self._num_changes = 0
        self._num_fitting = 0
        self._num_noticed = 0

    @property
    def differ(self) -> bool:
        """Whether most batches have another shape than the chosen one."""
        return self._num_noticed >= ENOUGH and 2 * self._num_fitting < self._num_noticed

    def notice(self, shape: tuple[Any, ...]) -> bool:
        """Take note of a batch; whether another shape is chosen from now on."""
        self._num_noticed += 1
        if shape == self.chosen:
            self._num_fitting += 1
            self._num_others = 0
            return False
        self._num_others += 1
        if self.chosen is None:
            self.chosen = shape
            self._num_others = 0
            return True
        if self._num_others < OTHERS_TO_CHANGE or self._num_changes == MOST_CHANGES:
            return False
        self.chosen, self._num_others = shape, 0
        self._num_changes += 1
        return True
