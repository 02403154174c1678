"""What a network is called, and the sizes that stand in its name.

A network that dubio built carries its name as ``dubio_architecture``; conversion and copying keep it, ``dubio.save``
writes it down, and ``build`` makes the same network from it alone. The last part of a name is its sizes,
``1x28x28-10`` or ``784-100-10``: the shape of one input first, the number of classes last.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

__all__ = ["Sizes", "architecture_of", "check_sizes", "named", "read_sizes", "read_widths", "sizes_of", "write_sizes"]

Net = TypeVar("Net", bound=nn.Module)

NUMBER = "[1-9][0-9]*"
WIDTHS = re.compile(rf"{NUMBER}(-{NUMBER})*")
SIZES = re.compile(rf"(?:(?P<inputs>{NUMBER}(?:x{NUMBER}x{NUMBER})?)-)?(?P<num_classes>{NUMBER})")


@dataclass(frozen=True)
class Sizes:
    """Shape of one input, where it is known, and number of outputs, where it is known."""

    inputs: tuple[int, ...] | None
    num_classes: int | None


def named(net: Net, name: str) -> Net:
    """The network, carrying its name."""
    net.dubio_architecture = name  # type: ignore[assignment]
    return net


def architecture_of(net: nn.Module) -> str | None:
    """The name a network was built by, where it was."""
    name = getattr(net, "dubio_architecture", None)
    return name if isinstance(name, str) else None


def sizes_of(net: nn.Module) -> Sizes | None:
    """The sizes in a network's name; None for a network that dubio did not build."""
    name = architecture_of(net)
    if name is None:
        return None
    text = name.partition(",")[0].rpartition(":")[2]
    if not WIDTHS.fullmatch(text):
        return read_sizes(text) or Sizes(None, None)
    *widths, num_classes = read_widths(text) or ()
    return Sizes(tuple(widths[:1]) or None, num_classes)


def read_widths(text: str) -> tuple[int, ...] | None:
    """Whole numbers of at least 1 from ``784-100-10``; None where the text is anything else."""
    return tuple(map(int, text.split("-"))) if WIDTHS.fullmatch(text) else None


def read_sizes(text: str) -> Sizes | None:
    """Sizes from ``1x28x28-10``, ``784-10`` or ``10``; None where the text is anything else."""
    found = SIZES.fullmatch(text)
    if found is None:
        return None
    inputs = found["inputs"]
    return Sizes(None if inputs is None else tuple(map(int, inputs.split("x"))), int(found["num_classes"]))


def write_sizes(inputs: Sequence[int], num_classes: int) -> str:
    """``1x28x28-10`` of the inputs (1, 28, 28) and 10 classes."""
    return f"{'x'.join(map(str, inputs))}-{num_classes}"


def check_sizes(kind: str, inputs: Sequence[int], num_classes: int, smallest_side: int | None) -> None:
    """Refuse inputs that a network cannot take: images with sides that are too small, or, with None, any shape."""
    if num_classes < 1:
        raise ValueError(f"num_classes of {kind} must be at least 1, got {num_classes}")
    if smallest_side is None:
        if not inputs or min(inputs) < 1:
            raise ValueError(f"inputs of {kind} must be sizes of at least 1, got {tuple(inputs)}")
    elif len(inputs) != 3 or inputs[0] < 1 or min(inputs[1:]) < smallest_side:
        raise ValueError(
            f"inputs of {kind} must be (channels, height, width) with sides of at least {smallest_side}, "
            f"got {tuple(inputs)}"
        )
