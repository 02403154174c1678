"""Make the parameters of a copied network random, module by module, and back again.

Linear layers and convolutions get all three estimators; any other module that reads its parameters as attributes, a
user's own included, computes with drawn parameters in its own ``forward``. Tied parameters get one posterior and so one
draw.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from dubio._engine import Estimator, attach, attach_alone, detach
from dubio.checks import did_you_mean
from dubio.conversion.choice import Where, chooses
from dubio.conversion.copying import copy_of, exchange, is_norm, make_mappable, own_parameters, plain_copy
from dubio.nn import (
    BAYESIAN,
    PLAIN,
    Drawn,
    GaussianPosterior,
    Head,
    InputPosterior,
    Masked,
    Members,
    Noised,
    RandomDropout,
    WeightSource,
    draw_parameters,
    drawn_class,
    drawn_names,
    plain_layer,
    restore_masked,
    restore_parameters,
)

__all__ = ["parameter_names", "randomise", "refuse_unconvertible", "share_draw", "to_mean", "why_unconvertible"]

MakePosterior = Callable[[nn.Parameter, Tensor | None], WeightSource]
"""A posterior from the parameter that becomes its mean, and a mask of the elements that stay fixed."""


def randomise(
    net: nn.Module,
    make_posterior: MakePosterior,
    *,
    estimator: Estimator,
    bayesian_bias: bool = True,
    norms: bool = False,
    where: Where = None,
    strict: bool = True,
) -> nn.Module:
    """A copy of ``net`` whose chosen parameters are drawn; ``net`` itself is untouched."""
    model = plain_copy(net)
    chosen = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if own_parameters(module) and (norms or not is_norm(module)) and chooses(where, name, module)
    }
    unconvertible = {name: reason for name, module in chosen.items() if (reason := why_unconvertible(module))}
    if strict:
        refuse_unconvertible(unconvertible)
    make_mappable(model)
    posteriors = _make_posteriors(
        [module for name, module in chosen.items() if name not in unconvertible], make_posterior, bayesian_bias
    )
    if not posteriors:
        raise ValueError(_nothing_to_convert(model, where, list(unconvertible)))
    for module in chosen.values():
        _draw(module, posteriors, estimator)
    _check_ties(model, posteriors)
    _mark_shared(model)
    return attach(model)


def refuse_unconvertible(reasons: Mapping[str, str]) -> None:
    """Raise where chosen modules, by name, cannot be made random for the reasons given."""
    if reasons:
        listed = "; ".join(f"{name or 'the network itself'}: {reason}" for name, reason in reasons.items())
        raise TypeError(
            f"cannot convert: {listed}. Choose other layers with where=..., or pass strict=False to leave these "
            "deterministic"
        )


def to_mean(model: nn.Module) -> nn.Module:
    """The ordinary network again: a copy whose parameters are the posterior means; ``model`` itself is untouched.

    It has the class, parameter names and outputs of the network that was converted, and what training made of its
    weights; weights that were removed are zeros.
    """
    if any(isinstance(module, Members) for module in model.modules()):
        raise ValueError("an ensemble has no mean network; each of its .members is an ordinary one")
    plain = copy_of(model)
    for module in list(plain.modules()):
        detach(module)
        if isinstance(module, Masked):
            restore_masked(module)
        if isinstance(module, Drawn):
            restore_parameters(module)
        elif isinstance(module, Noised):
            plain_layer(module)
        elif isinstance(module, Head):
            plain = exchange(plain, module, module.plain())
        elif isinstance(module, RandomDropout):
            module.__dict__.pop("dubio_noise_key", None)
            module.__class__ = module.dubio_plain_class  # type: ignore[assignment]
        elif type(module) in PLAIN:
            module.__class__ = PLAIN[type(module)]
    record = plain.__dict__.pop("dubio_spec", None)
    if getattr(getattr(record, "likelihood", None), "std", None) == "learned":
        plain._parameters.pop("observation_rho", None)
    return plain


def parameter_names(model: nn.Module) -> dict[str, str]:
    """For every parameter of a converted network, the name it had: ``fc.weight_posterior.mean`` was ``fc.weight``.

    A posterior's ``rho`` belongs to the same parameter as its ``mean``. Parameters of noise on inputs had no name.
    """
    noise = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, InputPosterior))
    return {
        name: name.rpartition(".")[0].removesuffix("_posterior") if _in_posterior(model, name) else name
        for name, _ in model.named_parameters(remove_duplicate=False)
        if not name.startswith(noise)
    }


def why_unconvertible(module: nn.Module) -> str:
    """Why the parameters of a module cannot be drawn; empty where they can."""
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        return f"{kind} keeps its parameters out of Python's reach"
    for name, parameter in module.named_parameters(recurse=False):
        if not parameter.is_floating_point():
            return f"{kind} has {name} of type {parameter.dtype}, over which no Gaussian can be put"
    return ""


def _nothing_to_convert(model: nn.Module, where: Where, unconvertible: list[str]) -> str:
    """Why no layer was made random."""
    if unconvertible:
        return f"nothing to convert: no Gaussian can be put over the parameters of {', '.join(unconvertible)}"
    holders = [name for name, module in model.named_modules() if own_parameters(module)]
    chosen = [name for name in holders if chooses(where, name, model.get_submodule(name))]
    if chosen:
        return f"nothing to convert: {', '.join(chosen)} normalise; norms=True makes such layers random"
    below = [name for name in holders if isinstance(where, str) and name.startswith(f"{where}.")]
    hint = f"; did you mean {where}.*?" if below else did_you_mean(where, holders)
    return f"nothing to convert: where={where!r} chooses no layer of this network that has parameters{hint}"


def _make_posteriors(
    modules: list[nn.Module], make_posterior: MakePosterior, bayesian_bias: bool
) -> dict[int, WeightSource]:
    """One posterior for each parameter of the modules, by identity of the parameter."""
    parameters = {
        id(parameter): parameter
        for module in modules
        for name, parameter in module.named_parameters(recurse=False)
        if bayesian_bias or "bias" not in name
    }
    fixed = {id(parameter): mask for module in modules for parameter, mask in _fixed(module)}
    return {key: make_posterior(parameter, fixed.get(key)) for key, parameter in parameters.items()}


def _fixed(module: nn.Module) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Parameters of which some elements are constants: the padding row of an embedding."""
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.padding_idx is not None:
        mask = torch.zeros_like(module.weight, dtype=torch.bool)
        mask[module.padding_idx] = True
        yield cast(nn.Parameter, module.weight), mask


def _draw(module: nn.Module, posteriors: dict[int, WeightSource], estimator: Estimator) -> None:
    own = {
        name: posteriors[id(parameter)]
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        if id(parameter) in posteriors
    }
    if not own:
        return
    base = type(module)
    if base in BAYESIAN and isinstance(own.get("weight"), GaussianPosterior):
        draw_parameters(module, BAYESIAN[base], own).dubio_estimator = estimator
        return
    plain = PLAIN.get(base, base)
    drawn = draw_parameters(module, drawn_class(plain, base, tuple(own)), own)
    attach_alone(drawn)
    if estimator != "weight":
        drawn.dubio_estimator_remark = f"{plain.__name__} has no {estimator} form"


def _mark_shared(model: nn.Module) -> None:
    """Where weights are seen by several layers, or a layer stands in several places, the weights must be drawn."""
    places = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    drawn = [module for module in model.modules() if isinstance(module, Drawn)]
    users = Counter(id(module._modules[f"{name}_posterior"]) for module in drawn for name in drawn_names(module))
    for module in drawn:
        tied = any(users[id(module._modules[f"{name}_posterior"])] > 1 for name in drawn_names(module))
        if tied or places[id(module)] > 1:
            share_draw(module, "tied weights share a draw" if tied else "a shared layer has one draw")


def share_draw(module: Drawn, remark: str) -> None:
    """Have the weights of a module drawn, whatever the estimator, since several calls or layers see them."""
    module.dubio_shares_draw = True
    if module.dubio_estimator != "weight":
        module.dubio_estimator = "weight"
        module.dubio_estimator_remark = remark


def _check_ties(model: nn.Module, posteriors: dict[int, WeightSource]) -> None:
    means = {id(posterior.mean) for posterior in posteriors.values()}
    for name, module in model.named_modules():
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in means and not isinstance(module, WeightSource):
                whole = f"{name}.{parameter_name}".lstrip(".")
                raise ValueError(
                    f"cannot convert: {whole} shares its weights with a layer that becomes random, "
                    "but stays deterministic itself; choose both or neither with where=..."
                )


def _in_posterior(model: nn.Module, name: str) -> bool:
    return isinstance(model.get_submodule(name.rpartition(".")[0]), WeightSource)
