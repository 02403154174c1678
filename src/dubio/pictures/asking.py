"""What pictures ask a network: one distribution over classes for every input, and labels that fit it."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from dubio._engine import check_module
from dubio.models import sizes_of
from dubio.prediction import ClassPredictive, predict

__all__ = ["check_labels", "check_rows", "classes_of"]

ROWS = 2048  # at a time; a picture asks about thousands of places


def classes_of(
    model: nn.Module, inputs: Float[Tensor, "batch ..."], *, num_samples: int, seed: int, keep_samples: bool = False
) -> ClassPredictive:
    """What ``predict`` says of some inputs, where it is one class for each of them; yes or no counts as two."""
    check_module(model)
    found = predict(model, inputs, num_samples, seed=seed, keep_samples=keep_samples, batch_size=ROWS)
    if not isinstance(found, ClassPredictive):
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
