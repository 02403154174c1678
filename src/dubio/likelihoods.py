"""What a network's outputs mean: frozen values that turn raw outputs into a distribution of the target."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dubio import functional

__all__ = ["Categorical", "Gaussian", "Likelihood"]


@dataclass(frozen=True)
class Categorical:
    """One of several classes.

    ``output`` says what the network gives, and is never guessed from values. ``class_axis`` counts in the output of one
    draw, whose axis 0 is the batch.
    """

    output: Literal["logits", "log_probs"] = "logits"
    class_axis: int = -1

    def __post_init__(self) -> None:
        if self.output not in ("logits", "log_probs"):
            raise ValueError(f"output must be 'logits' or 'log_probs', got {self.output!r}")
        if self.class_axis == 0:
            raise ValueError("class_axis must not be 0, which is the batch axis")

    def log_probs(self, outputs: Float[Tensor, "sample batch ..."]) -> Float[Tensor, "sample batch ... class"]:
        """Log-probabilities of every draw, the class axis last: `(sample, batch, ..., class)`."""
        axis = self.class_axis + 1 if self.class_axis > 0 else self.class_axis
        axes = outputs.dim()
        if axes < 3 or not -axes + 2 <= axis < axes or outputs.shape[axis] < 2:
            raise ValueError(
                f"a Categorical output must be (batch, ..., class) with two or more classes on axis {self.class_axis}, "
                f"got shape {tuple(outputs.shape[1:])} for one draw; for regression convert with "
                "likelihood=dubio.Gaussian(...)"
            )
        scores = outputs.movedim(axis, -1).to(torch.promote_types(outputs.dtype, torch.float32))
        return scores.log_softmax(dim=-1) if self.output == "logits" else scores


@dataclass(frozen=True)
class Gaussian:
    """A real target with Gaussian noise of standard deviation ``std``.

    With ``std="output"`` the network gives twice as many outputs on its last axis: first the means, then the softplus
    arguments of the standard deviations.
    """

    std: float | Literal["output"] = 0.1

    def __post_init__(self) -> None:
        if self.std == "output":
            return
        if isinstance(self.std, str) or not (math.isfinite(self.std) and self.std > 0.0):
            raise ValueError(f"std of a Gaussian must be positive and finite, or 'output', got {self.std!r}")

    def moments(
        self, outputs: Float[Tensor, "sample batch *rest"]
    ) -> tuple[Float[Tensor, "sample batch *out"], Float[Tensor, "sample batch *out"]]:
        """Mean and standard deviation of the target under every draw."""
        if self.std != "output":
            return outputs, torch.full_like(outputs, float(self.std))
        if outputs.dim() < 3 or outputs.shape[-1] % 2:
            raise ValueError(
                "a Gaussian(std='output') needs an even number of outputs on the last axis (means, then scales), "
                f"got shape {tuple(outputs.shape[1:])} for one draw"
            )
        mean, rho = outputs.chunk(2, dim=-1)
        return mean, functional.softplus(rho)


Likelihood = Categorical | Gaussian
