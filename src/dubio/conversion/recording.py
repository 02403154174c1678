"""The end of every conversion: the record that the network carries, and the proof on an example."""

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dubio._engine import Inputs, run, unchanged
from dubio.conversion.choice import ConversionWarning, consists_of
from dubio.conversion.copying import random_names
from dubio.conversion.proof import prove
from dubio.conversion.spec import Spec, attach_spec
from dubio.likelihoods import Bernoulli, Categorical, Likelihood

__all__ = ["finish", "warn_of_probabilities"]


def warn_of_probabilities(model: nn.Module, likelihood: Likelihood) -> None:
    """Warn of a network that ends in probabilities where the likelihood makes them itself, from logits."""
    *_, last = model.modules()
    if isinstance(last, nn.Softmax) and isinstance(likelihood, Categorical):
        remedy = "leave it out, or end in nn.LogSoftmax with likelihood=dubio.Categorical(output='log_probs')"
    elif isinstance(last, nn.Sigmoid) and isinstance(likelihood, Bernoulli):
        remedy = "leave it out"
    else:
        return
    warnings.warn(
        f"this network ends in {type(last).__name__}, and {likelihood!r} expects "
        f"{'log-probabilities' if getattr(likelihood, 'output', '') == 'log_probs' else 'logits'}; {remedy}",
        ConversionWarning,
        stacklevel=4,
    )


def finish(
    model: nn.Module, net: nn.Module | None, method: Any, likelihood: Likelihood, example: Inputs | None
) -> nn.Module:
    """Give a converted network its record; with an example, prove the conversion on it.

    Without ``net`` there is nothing that noise off could equal, and the network is only run.

    A function in the method's ``where`` is kept as the names that it chose.
    """
    if not isinstance(likelihood, Likelihood):
        raise TypeError(f"likelihood must be a Categorical, a Gaussian or a Bernoulli, got {likelihood!r}")
    if not consists_of(getattr(method, "where", None), str, type):
        method = replace(method, where=random_names(model))
    attach_spec(model, Spec(method, likelihood))
    warn_of_probabilities(model, likelihood)
    if example is not None and net is not None:
        prove(model, net, example)
    elif example is not None:
        with torch.no_grad(), unchanged(model):
            run(model, example)
    return model
