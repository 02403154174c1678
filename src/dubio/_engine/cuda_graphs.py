"""Work for a GPU, captured once as a CUDA graph and replayed, so that the host launches no kernels.

The first calls run without a graph, since libraries choose algorithms and allocate as they warm up; they count like any
other. The next call is captured and replayed, and so is every one after it. The work reads and writes tensors at fixed
addresses: new inputs are copied into them (``Buffers``). Random numbers come from torch's generator, which continues
from replay to replay.
"""

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

WARM_UPS = 3

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Through = Callable[[F], F]
"""A transform of a function of a network and tensors: the identity, or compilation."""


def as_it_is(function: F) -> F:
    """The function itself, not compiled."""
    return function


class Buffers:
    """Tensors at fixed addresses, into which others of the same shapes are copied."""

    def __init__(self, values: Any) -> None:
        self.signature = signature(values)
        leaves, self._spec = pytree.tree_flatten(values)
        self._leaves = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    @property
    def values(self) -> Any:
        """The tensors, in their original structure."""
        return pytree.tree_unflatten(self._leaves, self._spec)

    def copy(self, values: Any) -> None:
        """Copy the contents of values with the same signature."""
        for target, source in zip(self._leaves, pytree.tree_leaves(values), strict=True):
            if isinstance(target, Tensor):
                target.copy_(source, non_blocking=True)


def signature(values: Any) -> tuple[Any, ...]:
    """What must agree for a captured graph to be replayed: structure, shapes, types and devices."""
    leaves, spec = pytree.tree_flatten(values)
    described = [(leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return (spec, *described)


class Captured(Generic[T]):
    """A function without arguments, replayed as a CUDA graph; its results are overwritten by every call."""

    def __init__(self, work: Callable[[], T], device: torch.device, warm_ups: int = WARM_UPS) -> None:
        self._work, self._device, self._warm_ups = work, device, warm_ups
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: T
        self.seconds = 0.0
        """Time that warming up and capturing took."""

    @property
    def is_ready(self) -> bool:
        """Whether the next call only replays."""
        return self._graph is not None

    def __call__(self) -> T:
        """Do the work once, directly or by a replay."""
        if self._graph is None and self._warm_ups > 0:
            self._warm_ups -= 1
            return self._timed(self._on_side_stream)
        if self._graph is None:
            self._timed(self._record)
        assert self._graph is not None
        self._graph.replay()
        return self._result

    def _timed(self, part: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = part()
        torch.cuda.synchronize(self._device)
        self.seconds += time.perf_counter() - began
        return result

    def _on_side_stream(self) -> T:
        with torch.cuda.device(self._device):
            present, side = torch.cuda.current_stream(), torch.cuda.Stream()
            side.wait_stream(present)
            with torch.cuda.stream(side):
                result = self._work()
            present.wait_stream(side)
        return result

    def _record(self) -> T:
        with torch.cuda.device(self._device):
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.current_stream()
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            before = generator.clone_state()
            try:
                # A stream of this device: torch's default belongs to the first device that captured anything. Other
                # threads may use the device meanwhile, such as those of a loader that pins memory.
                with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
                    self._result = self._work()
            except BaseException:  # torch leaves its generator and its stream in the middle of the capture
                torch.cuda.set_stream(stream)
                generator.graphsafe_set_state(before)
                raise
        self._graph = graph
        return self._result
