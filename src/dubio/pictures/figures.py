"""What all pictures share: an empty figure, its file, and the names and colours of classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["blank_figure", "class_colours", "class_names", "write"]


def blank_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches; says what to install where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib; pip install 'dubio[plots]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def write(figure: Any, path: str | Path) -> None:
    """Write a figure to a file, whose ending says of which kind it is; makes its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def class_colours(count: int) -> list[Any]:
    """As many colours as there are classes, each unlike the others."""
    from matplotlib import colormaps

    if count <= 10:
        return [colormaps["tab10"](number) for number in range(count)]
    return [colormaps["turbo"]((number + 0.5) / count) for number in range(count)]


def class_names(classes: Sequence[str] | None, count: int) -> list[str]:
    """One name for each class; numbers where none are given."""
    names = [str(number) for number in range(count)] if classes is None else list(classes)
    if len(names) != count:
        raise ValueError(f"classes must be {count} names, one for each class, got {len(names)}")
    return names
