"""Helpers of all plots: an empty figure, its file, names and colours of classes, and one prediction for each input."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from dubio._engine import check_module
from dubio.models import sizes_of
from dubio.prediction import ClassificationPredictive, predict

BATCH_SIZE = 2048  # a plot of the plane has thousands of inputs


def blank_figure(width: float, height: float) -> Any:
    """An empty figure, with its size in inches; without matplotlib an error says how to install it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib; pip install 'dubio[plots]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def write(figure: Any, path: str | Path) -> None:
    """Write a figure to a file and make its folder; the suffix of the file chooses the format."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def class_colours(count: int) -> list[Any]:
    """One colour for each class, all different."""
    from matplotlib import colormaps

    if count <= 10:
        return [colormaps["tab10"](number) for number in range(count)]
    return [colormaps["turbo"]((number + 0.5) / count) for number in range(count)]


def class_names(classes: Sequence[str] | None, count: int) -> list[str]:
    """One name for each class; numbers by default."""
    names = list(map(str, range(count))) if classes is None else list(classes)
    if len(names) != count:
        raise ValueError(f"classes must be {count} names, one for each class, got {len(names)}")
    return names


def classes_of(
    model: nn.Module, inputs: Float[Tensor, "batch ..."], *, num_samples: int, seed: int, keep_samples: bool = False
) -> ClassificationPredictive:
    """One predicted class for each input; a single output for yes or no becomes two classes."""
    check_module(model)
    pred = predict(model, inputs, num_samples, seed=seed, keep_samples=keep_samples, batch_size=BATCH_SIZE)
    if not isinstance(pred, ClassificationPredictive):
        raise ValueError("model must tell classes apart to be drawn, got one for regression; see draw_bands")
    rest = tuple(pred.log_probs.shape[1:-1])
    if rest not in ((), (1,)):
        raise ValueError(f"model must give one class for each input, got answers of shape {rest} for one")
    return pred.in_rows()


def check_rows(model: nn.Module, inputs: Float[Tensor, "..."]) -> None:
    """Check that inputs have an axis for rows."""
    sizes = sizes_of(model)
    if inputs.dim() < 2 or (sizes is not None and tuple(inputs.shape) == sizes.inputs):
        raise ValueError(
            f"inputs must have rows, one for each input, got shape {tuple(inputs.shape)}; a single one is inputs[:1]"
        )


def check_labels(inputs: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"]) -> None:
    """Check that labels are one class for each input."""
    if labels.shape != inputs.shape[:1]:
        raise ValueError(f"labels must be one per input, got shapes {tuple(labels.shape)} and {tuple(inputs.shape)}")
    if labels.is_floating_point():
        raise TypeError(f"labels must be whole numbers that name classes, got {labels.dtype}")
