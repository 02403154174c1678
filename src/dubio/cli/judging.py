"""How a trained network does on test data, in a few numbers."""

from dataclasses import dataclass

import torch
from torch import nn

from dubio.data import Examples
from dubio.prediction import ClassPredictive, RealPredictive, predict

__all__ = ["ClassScore", "RealScore", "Score", "score"]


@dataclass(frozen=True)
class ClassScore:
    """How a network classifies."""

    accuracy: float
    nll: float
    entropy: float

    def __str__(self) -> str:
        return f"test accuracy {self.accuracy:.4f}  NLL {self.nll:.4f}"


@dataclass(frozen=True)
class RealScore:
    """How a network predicts numbers."""

    rmse: float
    nll: float

    def __str__(self) -> str:
        return f"test RMSE {self.rmse:.4f}  NLL {self.nll:.4f}"


Score = ClassScore | RealScore


def score(model: nn.Module, examples: Examples, num_samples: int = 100, seed: int = 0) -> Score:
    """Accuracy (or error), negative log-likelihood, and mean entropy of predictions."""
    inputs, targets = examples.tensors
    found = predict(model, inputs, num_samples=num_samples, keep_samples=False, seed=seed)
    if isinstance(found, ClassPredictive):
        return ClassScore(
            accuracy=(found.label == targets).float().mean().item(),
            nll=nn.functional.nll_loss(found.log_probs, targets).item(),
            entropy=found.entropy.mean().item(),
        )
    assert isinstance(found, RealPredictive)
    wanted = targets.view_as(found.mean)
    nll = -torch.distributions.Normal(found.mean, found.std).log_prob(wanted)
    return RealScore(rmse=(found.mean - wanted).square().mean().sqrt().item(), nll=nll.mean().item())
