"""The record a converted network carries: which method made it, and what its outputs mean."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dubio import functional
from dubio.likelihoods import Gaussian, Likelihood

__all__ = ["Spec", "attach_spec", "spec"]


@dataclass(frozen=True)
class Spec:
    """Method and likelihood of a converted network. Immutable; kept by deepcopy and pickle."""

    method: Any
    likelihood: Likelihood


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
        start = functional.inverse_softplus(torch.tensor(likelihood.INITIAL_STD))
        first = next(model.parameters())
        model.register_parameter("observation_rho", nn.Parameter(start.to(first)))
    model.dubio_spec = record  # type: ignore[assignment]
