"""``calibrate``: a temperature, or a scale and a bias for each class, that makes held-out targets most probable (E-66).

A calibration is kept only where it lowers the negative log-likelihood of examples that it was not fitted on: the
validation data are cut into folds, each is judged by the fit to the others, and the mean of the paired differences, and
of one for a typical error, must exceed its standard error: fewer than 5 % of calibrated networks are given another.

Invariants (T-67, ``tests/calibration/test_calibrating.py``): a temperature leaves the accuracy as it is, the
negative log-likelihood on the validation data does not grow, and logits multiplied by s give a temperature s times as
large.

Predictions on held-out data, and the refusal to decide by data that judged the network.
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
"""Share of the way, in logarithms, from which a temperature counts as being at the edge."""


RIDGE = 1e-3
"""Price of a vector scaling's departure from the identity, which keeps it finite where classes are few or separable."""


ITERATIONS = 100


FOLDS = 5


STANDARD_ERRORS = 1.0
"""By how many standard errors the folds must gain for a calibration to be kept. With the one typical error that is
counted beside them, temperatures of calibrated networks were kept in at most 2 % of 60 repetitions, with 18 to 200
examples."""


FEWEST = 100
"""Validation examples below which ``calibrate`` warns. Fitted to calibrated networks without folds,
temperatures were between 0.5 and 1.7 on 18 examples and worse than none in 78 % of the repetitions, and between
0.75 and 1.26 on 100."""


FEWEST_PER_CLASS = 20
"""The same for each class, for a vector scaling, which has two numbers for each class."""


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
    """Find how much milder or sharper predictions should be, and keep it with the network: ``predict`` applies it.

    It changes ``predict`` alone: ``sample``, training and attacks work with the network as it is. A threshold and sets
    chosen before are dropped, with a warning, since they were chosen on other probabilities.

    A fit that does not significantly lower the negative log-likelihood of validation examples held out from it, by
    cross-validation, is replaced by one that changes nothing (temperature 1), with a ``DecisionWarning``. Fewer than
    100 examples also give a ``DecisionWarning``.

    Args:
        model: a converted network that tells classes apart; its record is changed.
        validation: data that it neither learned from nor is judged on, in any form that ``fit`` takes.
        kind: ``"temperature"``, one number, which never changes a label; or ``"vector"``, a scale and a bias for each
            class, which may, and needs many examples of each.
        per_draw: a temperature on the probabilities of each draw, before averaging; keeps all draws in memory.
        num_samples: how many draws; predict with about as many.
        batch_size: rows at a time.
        seed: which draws.

    Returns:
        The ``Temperature`` or ``VectorScaling``, also found as ``dubio.spec(model).calibration``.

    Raises:
        ValueError: the network was judged on these data.
    """
    if kind not in ("temperature", "vector"):
        raise ValueError(f"kind must be 'temperature' or 'vector', got {kind!r}")
    if kind == "vector" and per_draw:
        raise ValueError("per_draw goes with kind='temperature'; kind='vector' works on the mean prediction")
    held_out = predict_held_out(
        model,
        validation,
        asked_by="calibrate",
        num_samples=num_samples,
        batch_size=batch_size,
        seed=seed,
        decisions=False,
        keep_samples=per_draw,
    )
    pred = held_out.predictive
    log_probs = pred.samples if per_draw else pred.log_probs
    assert log_probs is not None
    with torch.device("cpu"):  # whatever the default device is
        calibration = _fit(log_probs.double(), held_out.targets, kind, per_draw, held_out.fingerprint)
        gain = _gain_on_folds(log_probs.double(), held_out.targets, kind, per_draw)
    calibration = _checked(calibration, gain, held_out)
    _keep(model, calibration)
    return calibration


class _Gain(NamedTuple):
    """How much lower the negative log-likelihood of held-out examples is with a calibration than without."""

    mean: float
    error: float

    @property
    def significant(self) -> bool:
        return self.mean > STANDARD_ERRORS * self.error


def _fit(
    log_probs: Float[Tensor, "*sample_and_example class"],
    targets: Int[Tensor, "example *rest"],
    kind: str,
    per_draw: bool,
    fingerprint: str = "",
) -> Calibration:
    """The calibration of least negative log-likelihood on these examples."""
    exact = log_probs.flatten(1 if per_draw else 0, -2)
    if kind == "vector":
        return VectorScaling(*_fit_vector(exact, targets.flatten()), fingerprint)
    return Temperature(_fit_temperature(exact, targets.flatten(), per_draw), per_draw, fingerprint)


def _gain_on_folds(
    log_probs: Float[Tensor, "*sample_and_example class"],
    targets: Int[Tensor, "example *rest"],
    kind: str,
    per_draw: bool,
) -> _Gain | None:
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
        plain, own = log_probs.index_select(axis, test), targets[test].unsqueeze(-1)
        applied = fitted.apply(plain)
        before, after = (
            functional.uncertainty.predictive_log_probs(part) if per_draw else part for part in (plain, applied)
        )
        gains[test] = (after - before).gather(-1, own).reshape(len(test), -1).mean(dim=1)
    missed = _gain_of_a_miss(log_probs, _fit(log_probs, targets, kind, per_draw), per_draw) * count / targets.numel()
    return _Gain((gains.sum().item() + missed) / (count + 1), gains.std().item() / math.sqrt(count))


def _gain_of_a_miss(log_probs: Float[Tensor, "*any class"], calibration: Calibration, per_draw: bool) -> float:
    """What the calibration gains on a typical example where the second most probable class is the target.

    This one example is added to the sum over the held-out ones: a few that are nearly all right otherwise support any
    sharpening, whose cost is in errors too rare to be among them.
    """
    applied = calibration.apply(log_probs)
    before, after = (
        functional.uncertainty.predictive_log_probs(part) if per_draw else part for part in (log_probs, applied)
    )
    second = before.topk(2, dim=-1).indices[..., 1:]
    return (after - before).gather(-1, second).median().item()


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions beside their targets, on the device of the predictions."""

    predictive: ClassificationPredictive
    targets: Int[Tensor, "example *rest"]
    fingerprint: str

    @property
    def correct(self) -> Bool[Tensor, "example *rest"]:
        """Whether each prediction is right."""
        return self.predictive.label == self.targets


def _checked(calibration: Calibration, gain: _Gain | None, held_out: HeldOut) -> Calibration:
    """The calibration, or one that changes nothing where the folds do not support it; warns in words."""
    count = held_out.targets.numel()
    vector = isinstance(calibration, VectorScaling)
    num_classes = held_out.predictive.log_probs.shape[-1]
    few = count < (max(FEWEST, FEWEST_PER_CLASS * num_classes) if vector else FEWEST)
    fewest = f"{FEWEST_PER_CLASS} for each class" if vector else f"{FEWEST}"
    advice = f"; use at least {fewest}" if few else ""
    at_edge = isinstance(calibration, Temperature) and _at_edge(calibration)
    if gain is None or not gain.significant:
        if gain is None:
            reason = f"fewer than {FOLDS} validation inputs cannot show that a calibration helps"
        else:
            reason = (
                f"{str(calibration).partition(',')[0]}, fitted on {count} validation examples, does not lower the NLL "
                f"of examples held out from the fit significantly ({-gain.mean:+.4f}, standard error {gain.error:.4f})"
            )
        kept = "the predictions stay as they are" if vector else "the temperature stays 1"
        _warn(f"{reason}, so {kept}{advice}")
        return _unchanged(calibration)
    if at_edge:
        _warn_at_the_edge(calibration, bool(held_out.correct.all()))
    elif few:
        _warn(f"{count} validation examples are few to calibrate by, so {calibration} is uncertain{advice}")
    return calibration


def _unchanged(calibration: Calibration) -> Calibration:
    """A calibration of the same kind that changes nothing."""
    if isinstance(calibration, Temperature):
        return replace(calibration, temperature=1.0)
    count = len(calibration.scale)
    return replace(calibration, scale=(1.0,) * count, bias=(0.0,) * count)


def _fit_temperature(
    log_probs: Float[Tensor, "*sample example class"], targets: Int[Tensor, " example"], per_draw: bool
) -> float:
    """The temperature of least negative log-likelihood, and never one of a larger than 1 has."""
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
        return functional.calibration.class_nll(
            scaled, targets
        ) + RIDGE * functional.calibration.departure_from_identity(scale, bias)

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


def _at_edge(found: Temperature) -> bool:
    return abs(math.log(found.temperature)) >= NEAR_THE_EDGE * math.log(LARGEST_TEMPERATURE)


def _warn_at_the_edge(found: Calibration, all_right: bool) -> None:
    why = "every validation example is predicted rightly, so a lower temperature always looks better; " * all_right
    _warn(
        f"the {found} is at the edge of what is allowed: {why}"
        "use more validation examples, or remove it with dubio.reset_decisions(model)",
        stacklevel=5,
    )


def _warn(message: str, stacklevel: int = 4) -> None:
    warnings.warn(message, DecisionWarning, stacklevel=stacklevel)


def _keep(model: nn.Module, calibration: Calibration) -> None:
    record = spec(model)
    removed = [name for name in ("threshold", "sets") if getattr(record, name) is not None]
    change_spec(model, calibration=calibration, threshold=None, sets=None)
    if removed:
        _warn(removal_message("calibrating", removed))


NAME = "validation"


def predict_held_out(
    model: nn.Module,
    validation: Any,
    *,
    asked_by: str,
    num_samples: int,
    batch_size: int,
    seed: int,
    decisions: bool,
    keep_samples: bool = False,
) -> HeldOut:
    """Predict validation data, after a look at whether they may decide anything; ``asked_by`` goes into messages.

    Raises:
        TypeError: the network does not tell classes apart, or the targets are no labels.
        ValueError: the network was judged on these data, or they have weights, or labels beyond the classes.
    """
    likelihood = spec(model).likelihood
    if not isinstance(likelihood, Categorical):
        raise TypeError(
            f"{asked_by} is for networks that tell classes apart, converted with Categorical(), got {likelihood!r}"
        )
    batches = batches_from(validation, batch_size, name=NAME)
    fingerprint = check_unjudged(model, batches, asked_by)
    parts: list[ClassificationPredictive] = []
    targets: list[Tensor] = []
    for batch in batches.epoch(0):
        found = predict(
            model,
            batch.inputs,
            num_samples,
            keep_samples=keep_samples,
            batch_size=batch_size,
            seed=seed,
            decisions=decisions,
        )
        assert isinstance(found, ClassificationPredictive)
        parts.append(found)
        targets.append(_labels(batch, found))
    return HeldOut(joined(parts), torch.cat(targets), fingerprint)


def check_one_label_each(held_out: HeldOut, asked_by: str) -> None:
    """Refuse several labels for an input, such as those of pixels, which are no independent examples."""
    if held_out.targets.dim() > 1:
        raise ValueError(
            f"{asked_by} needs one label for each input, since those of one input depend on each other, "
            f"got targets of shape {tuple(held_out.targets.shape)}"
        )


def check_unjudged(model: nn.Module, batches: Batches, asked_by: str) -> str:
    """The fingerprint of data that may decide something about a network; those that judged it are refused."""
    fingerprint = fingerprint_of_batches((batch.inputs, batch.targets) for batch in batches.epoch(0))
    if fingerprint.endswith("-0"):
        raise ValueError(f"{NAME} must hold at least one example, got none")
    if fingerprint in spec(model).evaluated:
        raise ValueError(
            f"{NAME} must be data that this network was not judged on, got those of an evaluation; {asked_by} would "
            "make their figures look better than they are: use validation data"
        )
    return fingerprint


def _labels(batch: Batch, found: ClassificationPredictive) -> Tensor:
    targets = batch.targets if isinstance(batch.targets, Tensor) else torch.as_tensor(batch.targets, device="cpu")
    if batch.weight is not None:
        raise ValueError(f"{NAME} must come without weights, which decisions do not use; give (inputs, targets)")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"targets of {NAME} must be whole numbers that name classes, got {targets.dtype}")
    if targets.shape != found.label.shape:
        raise ValueError(
            f"targets of {NAME} must have shape {tuple(found.label.shape)} beside these predictions, "
            f"got {tuple(targets.shape)}"
        )
    num_classes = found.log_probs.shape[-1]
    low, high = int(targets.min()), int(targets.max())
    if not 0 <= low <= high < num_classes:
        raise ValueError(
            f"targets of {NAME} must name classes from 0 to {num_classes - 1}, got {low if low < 0 else high}"
        )
    return targets.to(found.label.device).long()
