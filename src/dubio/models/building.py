"""Networks by name, so that a file can say which one it holds.

``build("mlp:64-100-100-10")`` and ``mlp(64, 100, 100, 10)`` give the same network; it carries its name, which
conversion and copying keep and ``dubio.save`` writes down.
"""

from itertools import pairwise

from torch import nn

__all__ = ["architecture_of", "build", "mlp"]


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, inputs first, with ReLU between."""
    if len(widths) < 2 or any(width < 1 for width in widths):
        raise ValueError(f"an mlp needs at least two widths of at least 1, inputs and outputs, got {widths}")
    layers = [layer for inputs, outputs in pairwise(widths) for layer in (nn.Linear(inputs, outputs), nn.ReLU())]
    net = nn.Sequential(*layers[:-1])
    net.dubio_architecture = f"mlp:{'-'.join(map(str, widths))}"  # type: ignore[assignment]
    return net


def build(name: str) -> nn.Module:
    """The network of a name such as ``mlp:64-100-100-10``."""
    kind, _, sizes = name.partition(":")
    if kind != "mlp":
        raise ValueError(f"model must be 'mlp:IN-...-OUT', such as mlp:64-100-100-10, got {name!r}")
    try:
        widths = [int(width) for width in sizes.split("-")]
    except ValueError:
        raise ValueError(f"model must be 'mlp:IN-...-OUT' with whole numbers, got {name!r}") from None
    return mlp(*widths)


def architecture_of(net: nn.Module) -> str | None:
    """The name a network was built by, where it was."""
    name = getattr(net, "dubio_architecture", None)
    return name if isinstance(name, str) else None
