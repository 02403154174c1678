"""A CUDA graph's stand-in for a CPU: calls of operators are kept with the memory they met, and run again on it.

As on a GPU, a replay knows no Python: no attribute, no object that took the place of another, only addresses.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Replayed"]


class _Tape(TorchDispatchMode):
    """Keeps every call of an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


class Replayed:
    """In place of ``dubio._engine.cuda_graphs.Captured``."""

    def __init__(self, work: Callable[[], Any], device: torch.device, warm_ups: int = 3) -> None:
        self._work, self._warm_ups = work, warm_ups
        self._calls: list[tuple[Any, Any, Any, Any]] | None = None
        self.seconds = 1.0

    @property
    def is_ready(self) -> bool:
        return self._calls is not None

    def __call__(self) -> Any:
        if self._calls is None and self._warm_ups > 0:
            self._warm_ups -= 1
            return self._work()
        if self._calls is None:
            with _Tape() as tape:
                self._result = self._work()
            self._calls = [(call[0], *(pytree.tree_map(_memory, part) for part in call[1:])) for call in tape.calls]
            return self._result
        with torch.no_grad():
            for function, args, kwargs, out in self._calls:
                found = function(*args, **kwargs)
                for mine, other in zip(pytree.tree_leaves(out), pytree.tree_leaves(found), strict=True):
                    if isinstance(mine, Tensor) and mine.data_ptr() != other.data_ptr():
                        mine.copy_(other)
        return self._result


def _memory(value: Any) -> Any:
    """The memory of a tensor, whatever becomes of the tensor itself."""
    return value.detach() if isinstance(value, Tensor) else value
