"""What a network's outputs mean: frozen values that turn raw outputs into a distribution of the target.

Each gives the negative log-likelihood of targets, `(sample, batch)`: one number per draw and example, summed over the
target's own axes, with every constant, so that it equals ``torch.distributions``. A likelihood may have a parameter
of its own (``Gaussian("learned")``); it lives on the converted network, which hands it in as ``scale``. Outputs in half
precision are computed with in float32, and targets are never rounded to the type of the outputs.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from dubio import functional

__all__ = ["Bernoulli", "Categorical", "Gaussian", "Likelihood", "likelihood_of", "observation_scale"]


@dataclass(frozen=True)
class Categorical:
    """One of several classes.

    ``output`` says what the network gives, and is never guessed from values. ``class_axis`` counts in the output of one
    draw, whose axis 0 is the batch. ``class_weight`` multiplies the loss of each class; ``label_smoothing`` mixes the
    target with the uniform distribution. Neither changes predictions.
    """

    output: Literal["logits", "log_probs"] = "logits"
    class_axis: int = -1
    class_weight: tuple[float, ...] | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.output not in ("logits", "log_probs"):
            raise ValueError(f"output must be 'logits' or 'log_probs', got {self.output!r}")
        if self.class_axis == 0:
            raise ValueError("class_axis must not be 0, which is the batch axis")
        if self.class_weight is not None:
            object.__setattr__(self, "class_weight", tuple(float(weight) for weight in self.class_weight))
            if any(not (math.isfinite(weight) and weight >= 0.0) for weight in self.class_weight):
                raise ValueError(f"class_weight must hold finite weights of at least 0, got {self.class_weight}")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")

    def log_probs(self, outputs: Float[Tensor, "sample batch ..."]) -> Float[Tensor, "sample batch ... class"]:
        """Log-probabilities of every draw, the class axis last: `(sample, batch, ..., class)`."""
        scores = self.scores(outputs)
        return scores.log_softmax(dim=-1) if self.output == "logits" else scores

    def scores(self, outputs: Float[Tensor, "sample batch ..."]) -> Float[Tensor, "sample batch ... class"]:
        """The outputs themselves, the class axis last, in float32 at least."""
        axis = self.class_axis + 1 if self.class_axis > 0 else self.class_axis
        axes = outputs.dim()
        if axes < 3 or not -axes + 2 <= axis < axes or outputs.shape[axis] < 2:
            raise ValueError(
                f"a Categorical output must be (batch, ..., class) with two or more classes on axis {self.class_axis}, "
                f"got shape {tuple(outputs.shape[1:])} for one draw; for regression convert with "
                "likelihood=dubio.Gaussian(...)"
            )
        return _exact(outputs.movedim(axis, -1))

    def nll(
        self,
        outputs: Float[Tensor, "sample batch ..."],
        targets: Shaped[Tensor, "batch ..."],
        scale: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "sample batch"]:
        """Negative log-probability of the target classes, given as whole numbers."""
        log_probs = self.log_probs(outputs)
        num_classes = log_probs.shape[-1]
        if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
            raise TypeError(f"targets must be whole numbers that name classes, got {targets.dtype}")
        _check_shape(targets, log_probs.shape[1:-1])
        if not torch.compiler.is_compiling() and targets.device.type == "cpu":  # elsewhere it would wait for the device
            _check_labels(targets, num_classes)
        if self.class_weight is not None and len(self.class_weight) != num_classes:
            raise ValueError(
                f"class_weight must have one weight per class, {num_classes}, got {len(self.class_weight)}"
            )
        index = targets.long().expand(log_probs.shape[:-1]).unsqueeze(-1)
        loss = -log_probs.gather(-1, index).squeeze(-1)
        if self.label_smoothing > 0.0:
            loss = (1.0 - self.label_smoothing) * loss - self.label_smoothing * log_probs.mean(dim=-1)
        if self.class_weight is not None:
            weights = torch.tensor(self.class_weight, dtype=loss.dtype, device=loss.device)
            loss = loss * weights[targets.long()]
        return _sum_over_example(loss)


@dataclass(frozen=True)
class Bernoulli:
    """Yes or no, for each output: the network gives logits, targets are 0 or 1."""

    def log_probs(self, outputs: Float[Tensor, "sample batch ..."]) -> Float[Tensor, "sample batch ... class"]:
        """Log-probabilities of no and yes on a new last axis."""
        outputs = _exact(outputs)
        return torch.stack([F.logsigmoid(-outputs), F.logsigmoid(outputs)], dim=-1)

    def nll(
        self,
        outputs: Float[Tensor, "sample batch ..."],
        targets: Shaped[Tensor, "batch ..."],
        scale: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "sample batch"]:
        """Negative log-probability of the targets, summed over the outputs of an example."""
        _check_shape(targets, outputs.shape[1:])
        if not torch.compiler.is_compiling() and targets.device.type == "cpu" and targets.numel():
            low, high = float(targets.min()), float(targets.max())
            if not 0.0 <= low <= high <= 1.0:
                raise ValueError(f"targets of a Bernoulli must be from 0 to 1, got {low if low < 0.0 else high}")
        outputs = _exact(outputs)
        wanted = _beside(targets, outputs)
        loss = -(wanted * F.logsigmoid(outputs) + (1.0 - wanted) * F.logsigmoid(-outputs))
        return _sum_over_example(loss.to(outputs.dtype))


@dataclass(frozen=True)
class Gaussian:
    """A real target with Gaussian noise of standard deviation ``std``.

    With ``std="output"`` the network gives twice as many outputs on its last axis: first the means, then the softplus
    arguments of the standard deviations. With ``std="learned"`` one standard deviation for all targets is learned,
    starting at ``INITIAL_STD``.
    """

    std: float | Literal["learned", "output"] = 0.1

    INITIAL_STD = 0.1

    def __post_init__(self) -> None:
        if self.std in ("learned", "output"):
            return
        if not isinstance(self.std, int | float) or not (math.isfinite(self.std) and self.std > 0.0):
            raise ValueError(f"std of a Gaussian must be positive and finite, 'learned' or 'output', got {self.std!r}")

    def moments(
        self, outputs: Float[Tensor, "sample batch ..."], scale: Float[Tensor, "..."] | None = None
    ) -> tuple[Float[Tensor, "sample batch ..."], Float[Tensor, "sample batch ..."]]:
        """Mean and standard deviation of the target under every draw."""
        outputs = _exact(outputs)
        if self.std == "learned":
            if scale is None:
                raise ValueError("a Gaussian(std='learned') belongs to a converted network, which keeps its scale")
            return outputs, functional.softplus(scale).to(outputs.dtype).expand_as(outputs)
        if self.std != "output":
            return outputs, torch.full_like(outputs, float(self.std))
        if outputs.dim() < 3 or outputs.shape[-1] % 2:
            raise ValueError(
                "a Gaussian(std='output') needs an even number of outputs on the last axis (means, then scales), "
                f"got shape {tuple(outputs.shape[1:])} for one draw"
            )
        mean, rho = outputs.chunk(2, dim=-1)
        return mean, functional.softplus(rho)

    def nll(
        self,
        outputs: Float[Tensor, "sample batch ..."],
        targets: Shaped[Tensor, "batch ..."],
        scale: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "sample batch"]:
        """Negative log density of the targets, summed over the dimensions of an example."""
        mean, std = self.moments(outputs, scale)
        _check_shape(targets, mean.shape[1:])
        loss = -functional.normal_log_prob(_beside(targets, mean), mean, std)
        return _sum_over_example(loss.to(mean.dtype))


Likelihood = Categorical | Gaussian | Bernoulli


def likelihood_of(model: nn.Module) -> Likelihood:
    """The likelihood a network was converted with; without one, a ``Categorical`` over logits."""
    record = getattr(model, "dubio_spec", None)
    return Categorical() if record is None else record.likelihood


def observation_scale(model: nn.Module) -> Tensor | None:
    """The learned scale of the observation noise (a softplus argument), where the network has one."""
    return getattr(model, "observation_rho", None)


def _check_labels(targets: Tensor, num_classes: int) -> None:
    if targets.numel() and not 0 <= (low := int(targets.min())) <= (high := int(targets.max())) < num_classes:
        wrong = low if low < 0 else high
        raise ValueError(f"targets must name classes from 0 to {num_classes - 1}, got {wrong}")


def _check_shape(targets: Tensor, wanted: torch.Size) -> None:
    if targets.shape != wanted:
        raise ValueError(f"targets must have shape {tuple(wanted)} beside these outputs, got {tuple(targets.shape)}")


def _exact(outputs: Tensor) -> Tensor:
    """Outputs in float32 at least."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def _beside(targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets as real numbers of no fewer digits than they came with."""
    return targets.to(torch.promote_types(targets.dtype, outputs.dtype))


def _sum_over_example(loss: Float[Tensor, "sample batch ..."]) -> Float[Tensor, "sample batch"]:
    return loss.flatten(2).sum(dim=2) if loss.dim() > 2 else loss
