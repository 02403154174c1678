"""The record a converted network carries: which method made it, what its outputs mean, and what was decided since."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dubio import functional
from dubio.calibrators import Calibration, DecisionWarning, PredictionSets, Threshold, decisions_of, removal_message
from dubio.likelihoods import Gaussian, Likelihood

__all__ = ["Spec", "attach_spec", "change_spec", "drop_decisions", "forget_decisions", "spec"]


@dataclass(frozen=True)
class Spec:
    """All that is known of a converted network. Immutable; kept by deepcopy, pickle and ``save``."""

    method: Any
    likelihood: Likelihood
    calibration: Calibration | None = None
    """What ``dubio.calibrate`` found: a ``Temperature`` or a ``VectorScaling``."""
    threshold: Threshold | None = None
    """What ``dubio.abstain`` found: when a prediction is accepted."""
    sets: PredictionSets | None = None
    """What ``dubio.conformal`` found: which classes go into a set."""
    pruning: Any = None
    """What ``dubio.prune`` removed."""
    evaluated: tuple[str, ...] = ()
    """Fingerprints of the data that the network was judged on, which must not decide anything about it any more."""


def spec(model: nn.Module) -> Spec:
    """The record of a converted network."""
    found = getattr(model, "dubio_spec", None)
    if not isinstance(found, Spec):
        raise ValueError(f"this {type(model).__name__} was not converted by a dubio method, so it carries no spec")
    return found


def attach_spec(model: nn.Module, record: Spec) -> None:
    """Give a network its record, and the parameter that its likelihood learns."""
    likelihood = record.likelihood
    if isinstance(likelihood, Gaussian) and likelihood.std == "learned":
        start = functional.variational.inverse_softplus(torch.tensor(likelihood.INITIAL_STD))
        first = next(model.parameters())
        model.register_parameter("observation_rho", nn.Parameter(start.to(first)))
    model.dubio_spec = record  # type: ignore[assignment]


def change_spec(model: nn.Module, **changes: Any) -> None:
    """Give a network a record that differs in some fields."""
    model.dubio_spec = replace(spec(model), **changes)  # type: ignore[assignment]


def forget_decisions(model: nn.Module) -> None:
    """Take back what ``calibrate``, ``abstain`` and ``conformal`` decided: ``predict`` gives what the network says."""
    change_spec(model, calibration=None, threshold=None, sets=None)


def drop_decisions(model: nn.Module, cause: str) -> None:
    """Take decisions back because ``cause`` changes predictions; warns, where there are any, at the caller's caller."""
    removed = list(decisions_of(model).made)
    if not removed:
        return
    forget_decisions(model)
    warnings.warn(removal_message(cause, removed), DecisionWarning, stacklevel=3)
