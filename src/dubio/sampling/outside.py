"""Generators that torch knows nothing of: those of Python and NumPy, the global ones and those that modules hold.

A network that draws from one has its noise outside of torch. Mapped, it draws once for all draws, so it is looped.

Whether it does shows in where the generators stand. Python's may have served others, though: one that checks types
looks at a random item of a list. So its outputs must follow it, too (``follow_python``).
"""

import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

__all__ = ["PYTHONS", "Outside", "follow_python"]

PYTHONS = "Python's random"
SEEDS_TO_TRY = 6


class _Generator(NamedTuple):
    name: str
    get: Callable[[], Any]
    set: Callable[[Any], None]


class Outside:
    """Where these generators stand, as a network's forward may use them."""

    def __init__(self, model: nn.Module) -> None:
        self._generators = list(_generators(model))
        self._states = [generator.get() for generator in self._generators]

    def put_back(self) -> None:
        """Set all of them to where they stood."""
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set(state)

    def moved(self) -> str:
        """The name of one that was drawn from since; empty where none was."""
        for generator, state in zip(self._generators, self._states, strict=True):
            if pickle.dumps(generator.get()) != pickle.dumps(state):
                return generator.name
        return ""


def follow_python(outputs: Callable[[], Any]) -> bool:
    """Whether outputs are others with other numbers of Python's random; all else must be the same at every call."""
    seen = []
    for seed in range(SEEDS_TO_TRY):
        random.seed(seed)
        seen.append([leaf for leaf in pytree.tree_leaves(outputs()) if isinstance(leaf, Tensor)])
    first, *others = seen
    return any(not torch.equal(one, other) for more in others for one, other in zip(first, more, strict=True))


def _generators(model: nn.Module) -> Iterator[_Generator]:
    yield _Generator("numpy.random", np.random.get_state, np.random.set_state)
    for path, module in model.named_modules():
        for attribute, value in module.__dict__.items():
            name = f"{path}.{attribute}".lstrip(".")
            if isinstance(value, random.Random):
                yield _Generator(name, value.getstate, value.setstate)
            elif isinstance(value, np.random.RandomState):
                yield _Generator(name, value.get_state, value.set_state)
            elif isinstance(value, np.random.Generator):
                yield _of_numpy(name, value.bit_generator)
    yield _Generator(PYTHONS, random.getstate, random.setstate)  # last: of those that moved the first is told


def _of_numpy(name: str, bits: Any) -> _Generator:
    def put(state: Any) -> None:
        bits.state = state

    return _Generator(name, lambda: bits.state, put)
