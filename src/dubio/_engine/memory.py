"""Memory: amounts as text and in bytes, the footprint of operators, out-of-memory errors, and the layout of images.

Invariant: a storage counts from the operator that makes it until its last reference is gone, including views and what a
graph keeps; storages that existed before do not count
(``test_the_footprint_counts_what_a_graph_keeps_and_nothing_that_was_there``).
"""

import gc
import math
import re
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

T = TypeVar("T")

UNITS = {
    **{unit: 1000**power for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))},
    **{unit: 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1)},
}

RAN_OUT = ("can't allocate memory", "not enough memory", "ALLOC_FAILED", "out of memory")
"""Messages of allocators and libraries that have no error class for it."""

DEVICES = ("cuda",)
"""Where convolutions are faster channels last."""


def parse_memory(text: str) -> int:
    """Bytes that a text such as ``"512 MiB"``, ``"2 GiB"`` or ``"1.5 GB"`` stands for."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", text)
    factors = {unit.lower(): factor for unit, factor in UNITS.items()}
    if match is None or match[2].lower() not in factors:
        units = ", ".join(UNITS)
        raise ValueError(f"an amount of memory must be a number with one of {units}, such as '512 MiB', got {text!r}")
    amount: int = math.floor(float(match[1]) * factors[match[2].lower()])
    if amount < 1:
        raise ValueError(f"an amount of memory must be at least 1 byte, got {text!r}")
    return amount


def memory_in_words(amount: int) -> str:
    """A number of bytes as text: ``12.5 MiB``."""
    for unit in ("GiB", "MiB", "KiB"):
        if amount >= UNITS[unit]:
            return f"{amount / UNITS[unit]:.1f} {unit}"
    return f"{amount} B"


def available_memory() -> int | None:
    """Bytes of main memory that are still available; None where the system does not report them."""
    try:
        match = re.search(r"^MemAvailable:\s+([0-9]+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else 1024 * int(match[1])


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error reports that a device ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in RAN_OUT)


def free_memory() -> None:
    """Collect garbage, and release the cached memory of CUDA."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def with_less_memory(
    attempt: Callable[[], T], shrink: Callable[[Exception], bool], also: tuple[type[Exception], ...] = ()
) -> T:
    """``attempt()``, repeated with less memory as long as it runs out of it.

    Args:
        attempt: does the work, and starts anew at each call.
        shrink: makes the next attempt smaller. It gets the error, and returns False, or raises, where nothing smaller
            is left; it must not allocate memory.
        also: errors beside those of allocators after which a smaller attempt may succeed.
    """
    while True:
        try:
            return attempt()
        except Exception as error:
            if not (is_out_of_memory(error) or isinstance(error, also)) or not shrink(error):
                raise
        # Outside of the handler, where nothing refers to the failed attempt any more.
        free_memory()


def tensor_bytes(values: Any) -> int:
    """Bytes of all tensors among some values."""
    return sum(tensor.nbytes for tensor in tensors_in(values))


def map_tensors(change: Callable[[Tensor], Tensor], values: T) -> T:
    """The same values, with ``change`` applied to each tensor among them."""
    mapped = change(values) if isinstance(values, Tensor) else pytree.tree_map_only(Tensor, change, values)
    return cast(T, mapped)


def tensors_in(values: Any) -> list[Tensor]:
    """All tensors among some values."""
    if isinstance(values, Tensor):
        return [values]
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


class Footprint(TorchDispatchMode):
    """Counts the bytes that operators write, and the most that were alive at once. Works below vmap, on real shapes.

    Args:
        drawn: tensors that differ from draw to draw; so does what is computed from them, and what is random.
        num_rows: number of rows; what is computed from rows, and has a multiple of them on an axis, grows with them.
        inputs: tensors that have rows.
    """

    def __init__(self, drawn: Any = (), num_rows: int = 0, inputs: Any = ()) -> None:
        super().__init__()
        self.written = self.peak = 0
        self.drawn_written = 0
        """Bytes written that come with each draw."""
        self.row_bytes = 0
        """Bytes that grow with the rows, where the most was alive."""
        self.operators: list[Any] = []
        """The operators that ran."""
        self.course: list[int] = []
        """Bytes that were alive after each operator."""
        self.drawn_course: list[int] = []
        """Of these, bytes that come with each draw."""
        self.convolutions: list[tuple[int, int]] = []
        """Groups of each convolution, and the number of elements that it wrote."""
        self._num_rows = num_rows
        self._alive = self._drawn_alive = self._rows_alive = 0
        self._storages: set[int] = set()
        self._drawn = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(drawn)}
        self._rows = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(inputs)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        before = {tensor.untyped_storage().data_ptr() for tensor in tensors_in((args, kwargs))}
        drawn = torch.Tag.nondeterministic_seeded in func.tags or not before.isdisjoint(self._drawn)
        may_have_rows = self._num_rows > 0 and (not before or not before.isdisjoint(self._rows))
        for tensor in tensors_in(out):
            self._count(tensor, before, drawn, may_have_rows)
        if func is torch.ops.aten.convolution.default:
            self.convolutions.append((args[-1], out.numel()))
        self.operators.append(func)
        self.course.append(self._alive)
        self.drawn_course.append(self._drawn_alive)
        return out

    def mark_drawn(self, tensor: Tensor) -> None:
        """Count a tensor, and what is computed from it, as what comes with each draw."""
        address, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
        if address and address not in self._drawn:
            self._drawn.add(address)
            # It may have been made before, and is filled now.
            self._drawn_alive += size if address in self._storages else 0
            self.drawn_written += size if address in self._storages else 0

    def _count(self, tensor: Tensor, before: set[int], drawn: bool, may_have_rows: bool) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address == 0:
            return
        if drawn:
            self.mark_drawn(tensor)
        if address in self._storages:
            return
        self.written += size
        self.drawn_written += size * drawn
        if address in before:  # a view of an argument
            return
        has_rows = may_have_rows and any(length and length % self._num_rows == 0 for length in tensor.shape)
        if has_rows:
            self._rows.add(address)
        self._alive += size
        self._drawn_alive += size * drawn
        self._rows_alive += size * has_rows
        if self._alive > self.peak:
            self.peak, self.row_bytes = self._alive, self._rows_alive
        self._storages.add(address)
        weakref.finalize(storage, self._release, address, size)

    def _release(self, address: int, size: int) -> None:
        self._storages.discard(address)
        self._alive -= size
        self._drawn_alive -= size * (address in self._drawn)
        self._rows_alive -= size * (address in self._rows)
        self._drawn.discard(address)
        self._rows.discard(address)


def mark_drawn(tensor: Tensor) -> None:
    """Let footprints count a tensor as what comes with each draw, where its operator does not show that."""
    for mode in _get_current_dispatch_mode_stack() if torch._C._len_torch_dispatch_stack() else ():
        if isinstance(mode, Footprint):
            mode.mark_drawn(tensor)
            mode.drawn_course[-1:] = [mode._drawn_alive]  # the operator that made it has been counted


def is_faster_channels_last(device: torch.device) -> bool:
    """Whether convolutions on a device are faster with images channels last."""
    return device.type in DEVICES


def image_channels(model: nn.Module) -> set[int]:
    """Numbers of channels that the convolutions of a network take."""
    return {module.in_channels for module in model.modules() if isinstance(module, nn.Conv2d)}


def channels_last(values: Any, channels: Collection[int]) -> Any:
    """The same values, with tensors that are images, by their number of channels, in channels-last layout."""

    def laid_out(leaf: Tensor) -> Tensor:
        is_image = leaf.dim() == 4 and leaf.layout is torch.strided and leaf.shape[1] in channels
        return leaf.to(memory_format=torch.channels_last) if is_image else leaf

    return map_tensors(laid_out, values) if channels else values
