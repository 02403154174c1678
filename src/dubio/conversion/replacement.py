"""Replace layers in a copy of a network.

Layers change their class in place, inside the copy: so shared submodules stay shared, hooks and attributes stay where
they are, and a bare layer converts like a whole network. Tied weights get one posterior.
"""

import copy
from collections.abc import Callable

from torch import nn
from torch.nn.parameter import is_lazy

from dubio.conversion.choice import Where, chooses
from dubio.layers import BAYESIAN, MAPPABLE, BayesianLayer, GaussianPosterior
from dubio.priors import Prior
from dubio.sampling import Estimator, attach

__all__ = ["is_norm", "own_parameters", "replace_layers"]

NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


def replace_layers(
    net: nn.Module,
    *,
    prior: Prior,
    estimator: Estimator,
    init_std: float,
    bayesian_bias: bool,
    where: Where,
    strict: bool,
) -> nn.Module:
    """A copy of ``net`` whose chosen layers draw their weights; ``net`` itself is untouched."""
    _check_source(net)
    model = copy.deepcopy(net)
    tied: dict[int, GaussianPosterior] = {}
    unconvertible = []
    for name, module in list(model.named_modules()):
        chosen = own_parameters(module) and not is_norm(module) and chooses(where, name, module)
        bayesian = BAYESIAN.get(type(module)) if "weight" in module._parameters else None  # a hook may compute it
        if chosen and bayesian is None:
            unconvertible.append(f"{name or 'the network itself'} ({type(module).__name__})")
        elif chosen and bayesian is not None:
            module.__class__ = bayesian
            module.estimator = estimator
            for parameter in ("weight", "bias") if bayesian_bias else ("weight",):
                _make_posterior(module, parameter, lambda weight: GaussianPosterior(weight, prior, init_std), tied)
        elif type(module) in MAPPABLE:
            module.__class__ = MAPPABLE[type(module)]
    if unconvertible and strict:
        raise TypeError(
            f"cannot convert {', '.join(unconvertible)}: there is no Bayesian form of such layers; choose layers with "
            "where=..., or pass strict=False to leave these deterministic"
        )
    if not tied:
        raise ValueError(f"nothing to convert: where={where!r} chooses no Linear or Conv1d-3d layer of this network")
    _check_ties(model, tied)
    return attach(model)


def own_parameters(module: nn.Module) -> list[str]:
    """Names of the parameters that a module holds itself."""
    return [name for name, parameter in module.named_parameters(recurse=False) if parameter is not None]


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises: its scales stay deterministic."""
    return isinstance(module, NORMS)


def _make_posterior(
    module: nn.Module,
    name: str,
    make: Callable[[nn.Parameter], GaussianPosterior],
    tied: dict[int, GaussianPosterior],
) -> None:
    weight = module._parameters.get(name)
    if weight is None:
        return
    if id(weight) not in tied:
        tied[id(weight)] = make(weight)
    del module._parameters[name]
    module.add_module(f"{name}_posterior", tied[id(weight)])


def _check_source(net: nn.Module) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    for name, module in net.named_modules():
        if isinstance(module, BayesianLayer | GaussianPosterior):
            raise ValueError(f"net is stochastic already: {name or 'it'} is a Bayesian {type(module).__name__}")
    if not any(True for _ in net.parameters()):
        raise ValueError(f"net must have parameters to make random, got a {type(net).__name__} without any")
    lazy = [name for name, parameter in net.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"net must be initialised, got lazy parameters {lazy}; run it once on an example before converting"
        )


def _check_ties(model: nn.Module, tied: dict[int, GaussianPosterior]) -> None:
    means = {id(posterior.mean) for posterior in tied.values()}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter_name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) in means and not isinstance(module, GaussianPosterior):
                raise ValueError(
                    f"cannot convert: {name}.{parameter_name} shares its weights with a layer that becomes random, "
                    "but stays deterministic itself; choose both or neither with where=..."
                )
