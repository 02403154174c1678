"""``calibrate``: a temperature, or a scale and a bias for each class, that makes held-out targets most probable (E-66).

A calibration is kept only if it lowers the negative log-likelihood of examples that it was not fitted on. By
cross-validation, the mean of the paired differences, and of one for a typical error, must exceed its standard error:
fewer than 5 % of networks that are calibrated already get another calibration.

Predictions on held-out data are shared with ``abstain`` and ``conformal``, as is the refusal of data on which the
network was evaluated.

Invariants (T-67, ``tests/calibration/test_calibrating.py``): a temperature leaves the accuracy as it is, the
negative log-likelihood on the validation data does not grow, and logits multiplied by s give a temperature s times as
large.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dubio import functional
from dubio.calibrators import Calibration, DecisionWarning, Temperature, VectorScaling, removal_message
from dubio.convert import change_spec, spec
from dubio.data import Batch, Batches, batches_from, fingerprint_of_batches
from dubio.likelihoods import Categorical
from dubio.prediction import ClassificationPredictive, joined, predict

LARGEST_TEMPERATURE = 20.0
"""Temperatures lie between this and its inverse."""
NEAR_THE_EDGE = 0.95
"""Share of the range, in logarithms, from which a temperature counts as being at the edge."""
RIDGE = 1e-3
"""Weight of a vector scaling's departure from the identity, which keeps it finite for few or separable classes."""
ITERATIONS = 100
FOLDS = 5
STANDARD_ERRORS = 1.0
"""Standard errors that the gain on the folds must exceed. With the one typical error that is added to it,
temperatures of calibrated networks were kept in at most 2 % of 60 repetitions, with 18 to 200 examples."""
FEWEST = 100
"""Validation examples below which ``calibrate`` warns. Without folds, temperatures fitted to calibrated networks
were between 0.5 and 1.7 on 18 examples and worse than none in 78 % of the repetitions, and between
0.75 and 1.26 on 100."""
FEWEST_PER_CLASS = 20
"""The same for each class, for a vector scaling, which has two numbers for each class."""
NAME = "validation"
LogProbs = Float[Tensor, "*sample_and_example class"]
Targets = Int[Tensor, "example *rest"]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions beside their targets, on the device of the predictions."""

    predictive: ClassificationPredictive
    targets: Targets
    fingerprint: str

    @property
    def correct(self) -> Bool[Tensor, "example *rest"]:
        """Whether each prediction is right."""
        return self.predictive.label == self.targets


class _Gain(NamedTuple):
    """Decrease of the negative log-likelihood of held-out examples by a calibration, with its standard error."""

    mean: float
    error: float

    @property
    def significant(self) -> bool:
        return self.mean > STANDARD_ERRORS * self.error


def calibrate(
    model: nn.Module,
    validation: Any,
    *,
    kind: Literal["temperature", "vector"] = "temperature",
    per_draw: bool = False,
    num_samples: int = 100,
    batch_size: int = 256,
    seed: int = 0,
) -> Calibration:
    """Fit a temperature or a vector scaling, and keep it with the network: ``predict`` applies it.

    Only ``predict`` changes: ``sample``, training and attacks use the network as it is. A threshold and prediction sets
    are dropped, with a warning, since they were chosen on other probabilities.

    A fit that does not significantly lower the negative log-likelihood of validation examples held out from it, by
    cross-validation, is replaced by one that changes nothing (temperature 1), with a ``DecisionWarning``. Fewer than
    100 examples also give a ``DecisionWarning``.

    Args:
        model: a converted classifier; its record is changed.
        validation: data for neither training nor evaluation, in any form that ``fit`` takes.
        kind: ``"temperature"``, one number, which never changes a label; or ``"vector"``, a scale and a bias for each
            class, which may, and needs many examples of each.
        per_draw: a temperature on the probabilities of each draw, before averaging; keeps all draws in memory.
        num_samples: number of draws; predict with about as many.
        batch_size: rows at a time.
        seed: seed of the draws.

    Returns:
        The ``Temperature`` or ``VectorScaling``, also found as ``dubio.spec(model).calibration``.

    Raises:
        ValueError: the network was evaluated on these data.
    """
    if kind not in ("temperature", "vector"):
        raise ValueError(f"kind must be 'temperature' or 'vector', got {kind!r}")
    if kind == "vector" and per_draw:
        raise ValueError("per_draw goes with kind='temperature'; kind='vector' works on the mean prediction")
    held_out = predict_held_out(
        model, validation, "calibrate", num_samples, batch_size, seed, decisions=False, keep_samples=per_draw
    )
    pred = held_out.predictive
    log_probs = pred.samples if per_draw else pred.log_probs
    assert log_probs is not None
    with torch.device("cpu"):  # instead of the default device
        calibration = _fit(log_probs.double(), held_out.targets, kind, per_draw, held_out.fingerprint)
        gain = _gain_on_folds(log_probs.double(), held_out.targets, kind, per_draw)
    calibration = _checked(calibration, gain, held_out)
    removed = [name for name in ("threshold", "sets") if getattr(spec(model), name) is not None]
    change_spec(model, calibration=calibration, threshold=None, sets=None)
    if removed:
        warn(removal_message("calibrating", removed), stacklevel=3)
    return calibration


def _fit(log_probs: LogProbs, targets: Targets, kind: str, per_draw: bool, fingerprint: str = "") -> Calibration:
    """The calibration of least negative log-likelihood on these examples."""
    exact = log_probs.flatten(1 if per_draw else 0, -2)
    if kind == "vector":
        return VectorScaling(*_fit_vector(exact, targets.flatten()), fingerprint)
    return Temperature(_fit_temperature(exact, targets.flatten(), per_draw), per_draw, fingerprint)


def _gain_on_folds(log_probs: LogProbs, targets: Targets, kind: str, per_draw: bool) -> _Gain | None:
    """The gain by cross-validation, with the standard error over inputs; None where there are too few for folds.

    All labels of one input, such as those of its pixels, are in one fold and count as one difference.
    """
    count, axis = len(targets), int(per_draw)
    if count < FOLDS:
        return None
    fold = torch.arange(count, device=targets.device) % FOLDS
    gains = torch.zeros(count, dtype=torch.float64, device=targets.device)
    for number in range(FOLDS):
        train, test = (rows.nonzero().squeeze(-1) for rows in (fold != number, fold == number))
        fitted = _fit(log_probs.index_select(axis, train), targets[train], kind, per_draw)
        _, change = _change(fitted, log_probs.index_select(axis, test), per_draw)
        gains[test] = change.gather(-1, targets[test].unsqueeze(-1)).reshape(len(test), -1).mean(dim=1)
    missed = _gain_of_a_miss(log_probs, _fit(log_probs, targets, kind, per_draw), per_draw) * count / targets.numel()
    return _Gain((gains.sum().item() + missed) / (count + 1), gains.std().item() / math.sqrt(count))


def _gain_of_a_miss(log_probs: Float[Tensor, "*any class"], calibration: Calibration, per_draw: bool) -> float:
    """The gain on a typical example where the second most probable class is the target.

    This example is added to the sum over the held-out ones: without it, examples that are nearly all right support any
    sharpening, whose cost is in errors too rare to be among them.
    """
    before, change = _change(calibration, log_probs, per_draw)
    return change.gather(-1, before.topk(2, dim=-1).indices[..., 1:]).median().item()


def _change(calibration: Calibration, log_probs: Tensor, per_draw: bool) -> tuple[Tensor, Tensor]:
    """Predictive log-probabilities without a calibration, and what the calibration adds to them."""
    pair = log_probs, calibration.apply(log_probs)
    before, after = (functional.uncertainty.predictive_log_probs(part) if per_draw else part for part in pair)
    return before, after - before


def _checked(calibration: Calibration, gain: _Gain | None, held_out: HeldOut) -> Calibration:
    """The calibration, or one that changes nothing where the folds do not support it; warns with the reason."""
    count = held_out.targets.numel()
    vector = isinstance(calibration, VectorScaling)
    num_classes = held_out.predictive.log_probs.shape[-1]
    few = count < (max(FEWEST, FEWEST_PER_CLASS * num_classes) if vector else FEWEST)
    fewest = f"{FEWEST_PER_CLASS} for each class" if vector else f"{FEWEST}"
    advice = f"; use at least {fewest}" if few else ""
    if gain is None or not gain.significant:
        if gain is None:
            reason = f"fewer than {FOLDS} validation inputs cannot show that a calibration helps"
        else:
            reason = (
                f"{str(calibration).partition(',')[0]}, fitted on {count} validation examples, does not lower the NLL "
                f"of examples held out from the fit significantly ({-gain.mean:+.4f}, standard error {gain.error:.4f})"
            )
        kept = "the predictions stay as they are" if vector else "the temperature stays 1"
        warn(f"{reason}, so {kept}{advice}")
        if isinstance(calibration, Temperature):
            return replace(calibration, temperature=1.0)
        return replace(calibration, scale=(1.0,) * num_classes, bias=(0.0,) * num_classes)
    edge = NEAR_THE_EDGE * math.log(LARGEST_TEMPERATURE)
    if isinstance(calibration, Temperature) and abs(math.log(calibration.temperature)) >= edge:
        all_right = bool(held_out.correct.all())
        why = "every validation example is predicted rightly, so a lower temperature always looks better; " * all_right
        warn(
            f"the {calibration} is at the edge of what is allowed: {why}"
            "use more validation examples, or remove it with dubio.reset_decisions(model)"
        )
    elif few:
        warn(f"{count} validation examples are few to calibrate by, so {calibration} is uncertain{advice}")
    return calibration


def _fit_temperature(
    log_probs: Float[Tensor, "*sample example class"], targets: Int[Tensor, " example"], per_draw: bool
) -> float:
    """The temperature of least negative log-likelihood, or 1 where that is lower."""
    scaled = functional.calibration.scaled_mixture if per_draw else functional.calibration.scaled_log_probs

    def nll(temperature: Tensor) -> Tensor:
        return functional.calibration.class_nll(scaled(log_probs, temperature), targets)

    free = torch.zeros((), dtype=torch.float64, device=log_probs.device, requires_grad=True)
    _minimise(lambda: nll(functional.calibration.bounded_temperature(free, LARGEST_TEMPERATURE)), [free])
    with torch.no_grad():
        best = functional.calibration.bounded_temperature(free, LARGEST_TEMPERATURE)
        return best.item() if nll(best) <= nll(torch.ones_like(best)) else 1.0


def _fit_vector(
    log_probs: Float[Tensor, "example class"], targets: Int[Tensor, " example"]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    scale = torch.ones(log_probs.shape[-1], dtype=torch.float64, device=log_probs.device, requires_grad=True)
    bias = torch.zeros_like(scale, requires_grad=True)

    def cost() -> Tensor:
        scaled = functional.calibration.vector_scaled_log_probs(log_probs, scale, bias)
        departure = functional.calibration.departure_from_identity(scale, bias)
        return functional.calibration.class_nll(scaled, targets) + RIDGE * departure

    _minimise(cost, [scale, bias])
    return tuple(scale.tolist()), tuple(bias.tolist())


def _minimise(cost: Callable[[], Tensor], parameters: list[Tensor]) -> None:
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=ITERATIONS, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        loss = cost()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)


def warn(message: str, stacklevel: int = 4) -> None:
    """Warn of a decision, where the user asked for it."""
    warnings.warn(message, DecisionWarning, stacklevel=stacklevel)


def predict_held_out(
    model: nn.Module, validation: Any, caller: str, num_samples: int, batch_size: int, seed: int, **options: Any
) -> HeldOut:
    """Predict validation data on which the network was not evaluated; messages name the ``caller``.

    ``options`` are those of ``predict``; by default no draws are kept.

    Raises:
        TypeError: the network is no classifier, or the targets are no labels.
        ValueError: the network was evaluated on these data, or they have weights, or labels beyond the classes.
    """
    likelihood = spec(model).likelihood
    if not isinstance(likelihood, Categorical):
        raise TypeError(
            f"{caller} is for networks that tell classes apart, converted with Categorical(), got {likelihood!r}"
        )
    batches = batches_from(validation, batch_size, name=NAME)
    fingerprint = check_unjudged(model, batches, caller)
    options = {"keep_samples": False} | options
    parts: list[ClassificationPredictive] = []
    targets: list[Tensor] = []
    for batch in batches.epoch(0):
        pred = predict(model, batch.inputs, num_samples, batch_size=batch_size, seed=seed, **options)
        assert isinstance(pred, ClassificationPredictive)
        parts.append(pred)
        targets.append(_labels(batch, pred))
    return HeldOut(joined(parts), torch.cat(targets), fingerprint)


def check_one_label_each(held_out: HeldOut, caller: str) -> None:
    """Refuse several labels for an input, such as those of pixels, which are not independent."""
    if held_out.targets.dim() > 1:
        raise ValueError(
            f"{caller} needs one label for each input, since those of one input depend on each other, "
            f"got targets of shape {tuple(held_out.targets.shape)}"
        )


def check_unjudged(model: nn.Module, batches: Batches, caller: str) -> str:
    """The fingerprint of validation data; data on which the network was evaluated are refused."""
    fingerprint = fingerprint_of_batches((batch.inputs, batch.targets) for batch in batches.epoch(0))
    if fingerprint.endswith("-0"):
        raise ValueError(f"{NAME} must hold at least one example, got none")
    if fingerprint in spec(model).evaluated:
        raise ValueError(
            f"{NAME} must be data that this network was not judged on, got those of an evaluation; {caller} would "
            "make their figures look better than they are: use validation data"
        )
    return fingerprint


def _labels(batch: Batch, pred: ClassificationPredictive) -> Tensor:
    targets = batch.targets if isinstance(batch.targets, Tensor) else torch.as_tensor(batch.targets, device="cpu")
    if batch.weight is not None:
        raise ValueError(f"{NAME} must come without weights, which decisions do not use; give (inputs, targets)")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"targets of {NAME} must be whole numbers that name classes, got {targets.dtype}")
    if targets.shape != pred.label.shape:
        raise ValueError(
            f"targets of {NAME} must have shape {tuple(pred.label.shape)} beside these predictions, "
            f"got {tuple(targets.shape)}"
        )
    num_classes = pred.log_probs.shape[-1]
    low, high = int(targets.min()), int(targets.max())
    if not 0 <= low <= high < num_classes:
        raise ValueError(
            f"targets of {NAME} must name classes from 0 to {num_classes - 1}, got {low if low < 0 else high}"
        )
    return targets.to(pred.label.device).long()
