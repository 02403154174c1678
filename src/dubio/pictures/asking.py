"""What pictures ask a network: one distribution over classes for every input, and labels that fit it."""

from dataclasses import replace

from jaxtyping import Float, Int
from torch import Tensor, nn

from dubio.prediction import ClassPredictive, predict
from dubio.sampling.settings import check_module

__all__ = ["check_labels", "classes_of"]

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
    if rest == (1,):
        return _without_rest(found)
    if rest:
        raise ValueError(f"model must give one class for each input, got answers of shape {rest} for one")
    return found


def check_labels(inputs: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"]) -> None:
    """Refuse labels that are not one class for each input."""
    if labels.shape != inputs.shape[:1]:
        raise ValueError(f"labels must be one per input, got shapes {tuple(labels.shape)} and {tuple(inputs.shape)}")
    if labels.is_floating_point():
        raise TypeError(f"labels must be whole numbers that name classes, got {labels.dtype}")


def _without_rest(found: ClassPredictive) -> ClassPredictive:
    """A prediction without the axis of its only output."""
    return replace(
        found,
        samples=None if found.samples is None else found.samples.squeeze(2),
        log_probs=found.log_probs.squeeze(1),
        expected_entropy=found.expected_entropy.squeeze(1),
        votes=found.votes.squeeze(1),
        class_variance=found.class_variance.squeeze(1),
        energy=None if found.energy is None else found.energy.squeeze(1),
    )
