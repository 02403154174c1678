"""The data that come along: scikit-learn's 1797 handwritten digits of 8x8 pixels, pixels in [0, 1].

A quarter is for testing and never seen in training; of the rest, a tenth chooses the best epoch. The split is always
the same.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dubio.models import architecture_of, sizes_of
from dubio.prediction import ClassPredictive, predict

__all__ = ["Digits", "Score", "check_fits", "load_split", "score"]

NUM_PIXELS, NUM_CLASSES = 64, 10


@dataclass(frozen=True)
class Digits:
    """Inputs and labels of each part."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Score:
    """How a network does on digits."""

    accuracy: float
    nll: float
    entropy: float


def load_split() -> Digits:
    """The digits, split."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError("the digits come with scikit-learn, which is missing: pip install scikit-learn") from error
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    num_test, num_validation = len(order) // 4, 3 * len(order) // 40
    test, validation, train = order.split([num_test, num_validation, len(order) - num_test - num_validation])
    return Digits(*((inputs[rows], targets[rows]) for rows in (train, validation, test)))


def check_fits(net: nn.Module) -> None:
    """Refuse a network that cannot read digits or name their classes."""
    sizes = sizes_of(net)
    if sizes is not None and (sizes.inputs, sizes.num_classes) != ((NUM_PIXELS,), NUM_CLASSES):
        raise ValueError(
            f"digits need a model from {NUM_PIXELS} inputs to {NUM_CLASSES} outputs, got {architecture_of(net)}; "
            "try mlp:64-100-100-10"
        )


def score(model: nn.Module, data: tuple[Tensor, Tensor], num_samples: int = 100, seed: int = 0) -> Score:
    """Accuracy, negative log-likelihood and mean entropy on labelled digits."""
    inputs, targets = data
    found = predict(model, inputs, num_samples=num_samples, seed=seed)
    assert isinstance(found, ClassPredictive)
    return Score(
        accuracy=(found.label == targets).float().mean().item(),
        nll=nn.functional.nll_loss(found.log_probs, targets).item(),
        entropy=found.entropy.mean().item(),
    )
