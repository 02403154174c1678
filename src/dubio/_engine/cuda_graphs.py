"""Work for a GPU, recorded once as a CUDA graph and replayed: what the host does for each kernel falls away.

The first calls run as they are, since libraries choose and allocate as they warm up; they count like any other. The
next one is recorded and replayed, and so is every one after it. The work reads and writes tensors that stay where they
are: whoever calls it copies new inputs into them (``Buffers``). Random numbers come from torch's generator, which goes
on from replay to replay.
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
"""How a function of a network and tensors is run: as it is, or compiled."""


def as_it_is(function: F) -> F:
    """Run a function as it is."""
    return function


class Buffers:
    """Tensors that stay where they are, and take the place of others of the same shapes."""

    def __init__(self, values: Any) -> None:
        self.signature = signature(values)
        leaves, self._spec = pytree.tree_flatten(values)
        self._leaves = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    @property
    def values(self) -> Any:
        """The tensors, in the structure they came in."""
        return pytree.tree_unflatten(self._leaves, self._spec)

    def copy(self, values: Any) -> None:
        """Take over the contents of values with the same signature."""
        for mine, other in zip(self._leaves, pytree.tree_leaves(values), strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(other, non_blocking=True)


def signature(values: Any) -> tuple[Any, ...]:
    """What must agree for a recorded piece of work to fit: structure, shapes, types and devices."""
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
        """How long warming up and recording took."""

    @property
    def is_ready(self) -> bool:
        """Whether the next call only replays."""
        return self._graph is not None

    def __call__(self) -> T:
        """Do the work once, as it is or by a replay."""
        if self._graph is None and self._warm_ups > 0:
            self._warm_ups -= 1
            return self._timed(self._on_a_side_stream)
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

    def _on_a_side_stream(self) -> T:
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
                # A stream of this device: torch's own belongs to the first one that recorded anything. Other threads
                # may use the device meanwhile: those of a loader that pins memory, for one.
                with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
                    self._result = self._work()
            except BaseException:  # torch leaves its generator and its stream as they were in the middle of it
                torch.cuda.set_stream(stream)
                generator.graphsafe_set_state(before)
                raise
        self._graph = graph
        return self._result
