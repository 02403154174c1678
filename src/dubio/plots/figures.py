"""What all pictures share: an empty figure, its file, and the names and colours of classes.

What pictures ask a network: one distribution over classes for every input, and labels that fit it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from dubio._engine import check_module
from dubio.models import sizes_of
from dubio.prediction import ClassificationPredictive, predict


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


ROWS = 2048  # at a time; a picture asks about thousands of places


def classes_of(
    model: nn.Module, inputs: Float[Tensor, "batch ..."], *, num_samples: int, seed: int, keep_samples: bool = False
) -> ClassificationPredictive:
    """What ``predict`` says of some inputs, where it is one class for each of them; yes or no counts as two."""
    check_module(model)
    found = predict(model, inputs, num_samples, seed=seed, keep_samples=keep_samples, batch_size=ROWS)
    if not isinstance(found, ClassificationPredictive):
        raise ValueError("model must tell classes apart to be drawn, got one for regression; see draw_bands")
    rest = tuple(found.log_probs.shape[1:-1])
    if rest not in ((), (1,)):
        raise ValueError(f"model must give one class for each input, got answers of shape {rest} for one")
    return found.in_rows()


def check_rows(model: nn.Module, inputs: Float[Tensor, "..."]) -> None:
    """Refuse a single input without an axis for rows."""
    sizes = sizes_of(model)
    if inputs.dim() < 2 or (sizes is not None and tuple(inputs.shape) == sizes.inputs):
        raise ValueError(
            f"inputs must have rows, one for each input, got shape {tuple(inputs.shape)}; a single one is inputs[:1]"
        )


def check_labels(inputs: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"]) -> None:
    """Refuse labels that are not one class for each input."""
    if labels.shape != inputs.shape[:1]:
        raise ValueError(f"labels must be one per input, got shapes {tuple(labels.shape)} and {tuple(inputs.shape)}")
    if labels.is_floating_point():
        raise TypeError(f"labels must be whole numbers that name classes, got {labels.dtype}")
