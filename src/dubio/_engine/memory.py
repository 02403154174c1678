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
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

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


def tensors_in(values: Any) -> list[Tensor]:
    """All tensors among some values."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


class Footprint(TorchDispatchMode):
    """Counts the bytes that operators write, and the most that were alive at once. Works below vmap, on real shapes."""

    def __init__(self, peak: int = 0) -> None:
        super().__init__()
        self.written = 0
        self.peak = peak
        self.operators: list[Any] = []
        """The operators that ran."""
        self.course: list[int] = []
        """Bytes that were alive after each operator."""
        self.convolutions: list[tuple[int, int]] = []
        """Groups of each convolution, and the number of elements that it wrote."""
        self._alive = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        before = {tensor.untyped_storage().data_ptr() for tensor in tensors_in((args, kwargs))}
        for tensor in tensors_in(out):
            self._count(tensor, before)
        if func is torch.ops.aten.convolution.default:
            self.convolutions.append((args[-1], out.numel()))
        self.operators.append(func)
        self.course.append(self._alive)
        return out

    def _count(self, tensor: Tensor, before: set[int]) -> None:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address == 0 or address in self._storages:
            return
        size = storage.nbytes()
        self.written += size
        if address in before:  # a view of an argument
            return
        self._alive += size
        self.peak = max(self.peak, self._alive)
        self._storages.add(address)
        weakref.finalize(storage, self._release, address, size)

    def _release(self, address: int, size: int) -> None:
        self._storages.discard(address)
        self._alive -= size


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

    return pytree.tree_map_only(Tensor, laid_out, values) if channels else values
