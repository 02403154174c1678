"""Likelihoods: frozen values that turn the raw outputs of a network into a distribution of the target.

``nll`` is the negative log-likelihood of targets, `(sample, batch)`: one number per draw and example, summed over the
target's own axes, with every constant, so that it equals ``torch.distributions``. A likelihood may have a parameter
(``Gaussian("learned")``); it belongs to the converted network, which passes it as ``scale``. Outputs in half precision
are converted to float32, and targets are never rounded to the type of the outputs.
"""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from dubio import functional
from dubio.checks import check_choice

Outputs = Float[Tensor, "sample batch ..."]
Targets = Shaped[Tensor, "batch ..."]
Scale = Float[Tensor, "..."] | None
Std = float | Literal["learned", "output"]
ROUNDING = 1e-5
"""Largest distance from 1 of the sum of a softmax."""


@dataclass(frozen=True)
class Categorical:
    """One of several classes.

    Args:
        output: what the network outputs, ``"logits"`` or ``"log_probs"``; it is never guessed from values.
        class_axis: the axis of classes in the output of one draw, whose axis 0 is the batch.
        class_weight: factors of the loss of each class; they do not change predictions.
        label_smoothing: share of the uniform distribution in targets; it does not change predictions.
    """

    output: Literal["logits", "log_probs"] = "logits"
    class_axis: int = -1
    class_weight: tuple[float, ...] | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_choice("output", self.output, ("logits", "log_probs"))
        if self.class_axis == 0:
            raise ValueError("class_axis must not be 0, which is the batch axis")
        if self.class_weight is not None:
            object.__setattr__(self, "class_weight", tuple(float(weight) for weight in self.class_weight))
            if any(not (math.isfinite(weight) and weight >= 0.0) for weight in self.class_weight):
                raise ValueError(f"class_weight must hold finite weights of at least 0, got {self.class_weight}")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")

    def log_probs(self, outputs: Outputs) -> Float[Tensor, "sample batch ... class"]:
        """Log-probabilities of every draw, the class axis last: `(sample, batch, ..., class)`."""
        scores = self.scores(outputs)
        return scores.log_softmax(dim=-1) if self.output == "logits" else scores

    def scores(self, outputs: Outputs) -> Float[Tensor, "sample batch ... class"]:
        """The outputs themselves, the class axis last, in float32 at least."""
        axis = self.class_axis + 1 if self.class_axis > 0 else self.class_axis
        axes = outputs.dim()
        if axes < 3 or not -axes + 2 <= axis < axes or outputs.shape[axis] < 2:
            raise ValueError(
                f"a Categorical output must be (batch, ..., class) with two or more classes on axis {self.class_axis}, "
                f"got shape {tuple(outputs.shape[1:])} for one draw; for yes or no from one output convert with "
                "likelihood=dubio.Bernoulli(), whose targets are 0 or 1; for regression with "
                "likelihood=dubio.Gaussian(...)"
            )
        return _exact(outputs.movedim(axis, -1))

    def _hint(self, outputs: Tensor, targets: Tensor) -> str:
        """Advice on ``class_axis``, where targets of this shape fit dense outputs with classes on another axis."""
        shape = outputs.shape[1:]
        for axis in range(1, len(shape)):
            if axis != self.class_axis % len(shape) and targets.shape == shape[:axis] + shape[axis + 1 :]:
                return f"; for classes on axis {axis} convert with likelihood=dubio.Categorical(class_axis={axis})"
        return ""

    def nll(self, outputs: Outputs, targets: Targets, scale: Scale = None) -> Float[Tensor, "sample batch"]:
        """Negative log-probability of the target classes, given as whole numbers."""
        log_probs = self.log_probs(outputs)
        num_classes = log_probs.shape[-1]
        if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
            raise TypeError(f"targets must be whole numbers that name classes, got {targets.dtype}")
        targets = match_shape(targets, log_probs.shape[1:-1], self._hint(outputs, targets))
        _check_range(targets, num_classes - 1, "targets must name classes")
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
    """Binary targets, 0 or 1 for each output: the network outputs logits."""

    def log_probs(self, outputs: Outputs) -> Float[Tensor, "sample batch ... class"]:
        """Log-probabilities of no and yes on a new last axis."""
        outputs = _exact(outputs)
        return torch.stack([F.logsigmoid(-outputs), F.logsigmoid(outputs)], dim=-1)

    def nll(self, outputs: Outputs, targets: Targets, scale: Scale = None) -> Float[Tensor, "sample batch"]:
        """Negative log-probability of the targets, summed over the outputs of an example."""
        targets = match_shape(targets, outputs.shape[1:])
        _check_range(targets, 1, "targets of a Bernoulli must be")
        outputs = _exact(outputs)
        targets = _beside(targets, outputs)
        loss = -(targets * F.logsigmoid(outputs) + (1.0 - targets) * F.logsigmoid(-outputs))
        return _sum_over_example(loss.to(outputs.dtype))


@dataclass(frozen=True, repr=False)
class Gaussian:
    """A real target with Gaussian noise.

    The network predicts standardised targets: an output of 0 stands for ``target_mean`` and one of 1 for
    ``target_mean + target_std``. Means, standard deviations, losses and intervals are in the units of the targets.
    ``Gaussian.for_targets(train_targets)`` fills both in; with 0 and 1, the defaults, outputs are the means themselves.

    Args:
        std: standard deviation of the noise. ``"learned"``: one for all targets, a parameter of the converted network.
            ``"output"``: it depends on the input; the network gives twice as many outputs on its last axis, first the
            means, then the softplus arguments of the standard deviations. A number: given, in the units of the targets.
        target_mean: what an output of 0 stands for; one number, or one for each output.
        target_std: what a difference of 1 between outputs stands for; one number, or one for each output.
        beta: weight of each example in training: the variance of its standardised target to the power of ``beta``, from
            0 (none) to 1 (beta-NLL). With ``std="output"`` 0.5 fits means better, since the plain likelihood neglects
            examples whose noise it holds for large. Predictions and validation do not change by it.
    """

    std: Std = "learned"
    target_mean: float | tuple[float, ...] = 0.0
    target_std: float | tuple[float, ...] = 1.0
    beta: float = 0.0

    INITIAL_STD = 1.0
    """Where the standard deviation of ``std="learned"`` starts, in units of ``target_std``.

    ``fit`` starts it at the standard deviation of the training targets instead, where these are held in memory.
    """

    def __post_init__(self) -> None:
        if self.std not in ("learned", "output") and not _is_finite(self.std, positive=True):
            raise ValueError(f"std of a Gaussian must be positive and finite, 'learned' or 'output', got {self.std!r}")
        for name in ("target_mean", "target_std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name), positive=name == "target_std"))
        if not (_is_finite(self.beta) and 0.0 <= self.beta <= 1.0):
            raise ValueError(f"beta must be in [0, 1], got {self.beta!r}")

    def __repr__(self) -> str:
        """All fields but those of a standardisation, or weights, that change nothing."""
        names = ["std", *(("target_mean", "target_std") if self.standardises else ())]
        names += ["beta"] if self.beta else []
        return f"Gaussian({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    @classmethod
    def for_targets(cls, targets: Float[Tensor, "batch ..."], std: Std = "learned", beta: float = 0.0) -> "Gaussian":
        """A ``Gaussian`` whose network predicts standardised targets: mean 0 and standard deviation 1.

        Args:
            targets: those of the training data: one number per row, or rows of several, each standardised by itself.
            std: as for ``Gaussian``.
            beta: as for ``Gaussian``.

        >>> likelihood = dubio.Gaussian.for_targets(train_targets, std="output", beta=0.5)
        >>> model = dubio.Bayes().convert(net, likelihood)  # net has two outputs: the mean, and the noise
        """
        values = torch.as_tensor(targets).double()
        if values.dim() == 0 or values.numel() == 0 or not bool(values.isfinite().all()):
            raise ValueError(f"targets must be finite numbers, one or more, got shape {tuple(values.shape)}")
        if values.dim() != 2 or values.shape[1] == 1:
            values = values.reshape(-1, 1)
        spread = values.std(dim=0, correction=0)
        unit = torch.where(spread > 0.0, spread, torch.ones_like(spread))  # 1 where all targets are equal
        means, units = tuple(values.mean(dim=0).tolist()), tuple(unit.tolist())
        return cls(std, means[0], units[0], beta) if len(means) == 1 else cls(std, means, units, beta)

    def standardise(self, targets: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Targets as the network predicts them."""
        shift, unit = self._units(targets)
        return (targets - shift) / unit

    def moments(self, outputs: Outputs, scale: Scale = None) -> tuple[Outputs, Outputs]:
        """Mean and standard deviation of the target under every draw, in the units of the targets."""
        mean, std = self._standardised_moments(outputs, scale)
        if not self.standardises:
            return mean, std
        shift, unit = self._units(mean)
        return shift + unit * mean, unit * std

    def nll(self, outputs: Outputs, targets: Targets, scale: Scale = None) -> Float[Tensor, "sample batch"]:
        """Negative log density of the targets, weighted by ``beta``, summed over the dimensions of an example."""
        mean, std = self._standardised_moments(outputs, scale)
        values = _beside(match_shape(targets, mean.shape[1:]), mean)
        if not self.standardises:
            return _sum_over_example(functional.uncertainty.beta_nll(values, mean, std, self.beta).to(mean.dtype))
        # Standardised targets rather than means in the units of targets, which would lose digits of large targets.
        loss = functional.uncertainty.beta_nll(self.standardise(values), mean, std, self.beta)
        loss = loss + self._units(values)[1].log()
        return _sum_over_example(loss.to(mean.dtype))

    @property
    def standardises(self) -> bool:
        """Whether outputs are anything but the means themselves."""
        return self.target_mean != 0.0 or self.target_std != 1.0

    def _standardised_moments(self, outputs: Outputs, scale: Scale) -> tuple[Outputs, Outputs]:
        """Mean and standard deviation of the standardised target."""
        outputs = _exact(outputs)
        if self.std == "learned":
            if scale is None:
                raise ValueError(
                    "a Gaussian(std='learned') belongs to a converted network, which keeps its scale; pass it with "
                    "dubio.Bayes().convert(net, likelihood), or give std a number"
                )
            return outputs, functional.variational.softplus(scale).to(outputs.dtype).expand_as(outputs)
        if self.std != "output":
            std = torch.full_like(outputs, float(self.std))
            return outputs, std / self._units(outputs)[1] if self.standardises else std
        if outputs.dim() < 3 or outputs.shape[-1] % 2:
            raise ValueError(
                "a Gaussian(std='output') needs an even number of outputs on the last axis (means, then scales), "
                f"got shape {tuple(outputs.shape[1:])} for one draw"
            )
        mean, rho = outputs.chunk(2, dim=-1)
        return mean, functional.variational.softplus(rho)

    def _units(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """``target_mean`` and ``target_std`` beside some means or targets."""
        for name in ("target_mean", "target_std"):
            numbers = getattr(self, name)
            if isinstance(numbers, tuple) and len(numbers) != values.shape[-1]:
                raise ValueError(
                    f"{name} must be one number, or one for each of {values.shape[-1]} outputs, got {len(numbers)}"
                )
        return _tensor(self.target_mean, values), _tensor(self.target_std, values)


Likelihood = Categorical | Gaussian | Bernoulli


def likelihood_of(model: nn.Module) -> Likelihood:
    """The likelihood a network was converted with; without one, a ``Categorical`` over logits."""
    record = getattr(model, "dubio_spec", None)
    return Categorical() if record is None else record.likelihood


def without_weights(likelihood: Likelihood) -> Likelihood:
    """The likelihood without the options of training: class weights, label smoothing and ``beta``."""
    if isinstance(likelihood, Categorical):
        return replace(likelihood, class_weight=None, label_smoothing=0.0)
    return replace(likelihood, beta=0.0) if isinstance(likelihood, Gaussian) else likelihood


def warn_of_probabilities(outputs: Tensor, likelihood: Likelihood) -> None:
    """Warn of outputs that are probabilities where the likelihood expects logits.

    Conversion warns of a network whose last module is a softmax; this also detects ``x.softmax(-1)`` in ``forward``.
    """
    if not isinstance(likelihood, Categorical) or likelihood.output != "logits":
        return
    scores = likelihood.scores(outputs).flatten(0, -2)
    off = (scores.sum(dim=-1) - 1.0).abs()
    inside = ((scores > 0.0) & (scores < 1.0)).any()  # logits that are 0 or 1 only, or equal in all rows, may be meant
    if bool((scores >= 0.0).all() & (off < ROUNDING).all() & inside & (scores != scores[:1]).any()):
        warnings.warn(
            f"each row of outputs is non-negative and sums to 1, as after a softmax, and {likelihood!r} expects "
            "logits; leave the softmax out, or use log_softmax with likelihood=dubio.Categorical(output='log_probs')",
            stacklevel=4,
        )


def observation_scale(model: nn.Module) -> Tensor | None:
    """The learned scale of the observation noise (a softplus argument), where the network has one."""
    return getattr(model, "observation_rho", None)


def match_shape(targets: Tensor, shape: torch.Size, hint: str = "") -> Tensor:
    """Targets in the shape of the outputs: ``(batch,)`` and ``(batch, 1)`` are the same, nothing else is broadcast."""
    if targets.shape == shape:
        return targets
    if targets.dim() and targets.shape == shape[:-1] and shape[-1] == 1:
        return targets.unsqueeze(-1)
    if targets.shape[:-1] == shape and targets.shape[-1] == 1:
        return targets.squeeze(-1)
    raise ValueError(f"targets must have shape {tuple(shape)} beside these outputs, got {tuple(targets.shape)}{hint}")


def _check_range(targets: Tensor, largest: int, rule: str) -> None:
    """Refuse targets outside of 0 to ``largest``; on devices other than the CPU the check would synchronise."""
    if torch.compiler.is_compiling() or targets.device.type != "cpu" or not targets.numel():
        return
    low, high = targets.min().item(), targets.max().item()
    if not 0 <= low <= high <= largest:
        raise ValueError(f"{rule} from 0 to {largest}, got {low if low < 0 else high}")


def _numbers(name: str, value: Any, positive: bool) -> float | tuple[float, ...]:
    """One finite number, or several."""
    parts = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not all(_is_finite(part, positive) for part in parts):
        raise ValueError(f"{name} must be {'positive and ' if positive else ''}finite, got {value!r}")
    if not parts:
        raise ValueError(f"{name} must be one number, or one for each output, got none")
    numbers = tuple(float(part) for part in parts)
    return numbers if isinstance(value, tuple | list) else numbers[0]


def _is_finite(value: object, positive: bool = False) -> bool:
    """Whether a value is a finite number, and above zero where it must be."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and not (positive and value <= 0.0)  # type: ignore[arg-type, operator]


def _tensor(numbers: float | tuple[float, ...], like: Tensor) -> Tensor:
    """One number or several in the type and on the device of a tensor; one is filled in there, without a copy."""
    if isinstance(numbers, tuple):
        return torch.tensor(numbers, dtype=like.dtype, device=like.device)
    return torch.full((), numbers, dtype=like.dtype, device=like.device)


def _exact(outputs: Tensor) -> Tensor:
    """Outputs in float32 at least."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def _beside(targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets in the type of the outputs, or in their own if that is more precise."""
    return targets.to(torch.promote_types(targets.dtype, outputs.dtype))


def _sum_over_example(loss: Float[Tensor, "sample batch ..."]) -> Float[Tensor, "sample batch"]:
    return loss.flatten(2).sum(dim=2) if loss.dim() > 2 else loss
