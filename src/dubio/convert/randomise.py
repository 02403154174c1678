"""Make the parameters of a copied network random, module by module, and back again.

Linear layers and convolutions get all three estimators; any other module that reads its parameters as attributes, a
user's own included, computes with drawn parameters in its own ``forward``. Tied parameters get one posterior and so one
draw.

Put noise before the layers of a copied network, and make its own dropout random.

Layers change their class in place and keep their parameters under the same names (``layers.noised``).

Which layer is a network's classifier, and putting something in its place.

Copies of networks, made ready to become random, and what is random in them already.

Modules change their class in place, inside the copy: so shared submodules stay shared, hooks and attributes stay where
they are, and a bare layer converts like a whole network.

``where``: which layers a method applies to.

A glob on the qualified name (``"head"``, ``"blocks.*.fc"``; ``"blocks.*"`` reaches everything below ``blocks``), a
module type, a callable of name and module, or a tuple of those, of which one must agree. None chooses every layer.
"""

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dubio._engine import Estimator, Inputs, arguments, attach, attach_alone, detach, unchanged
from dubio.checks import did_you_mean
from dubio.nn import (
    BAYESIAN,
    DROPOUTS,
    MAPPABLE,
    PLAIN,
    UNCALLED,
    ActivationNoise,
    Drawn,
    GaussianPosterior,
    Head,
    InputMask,
    InputPosterior,
    InputSource,
    Masked,
    Members,
    Noised,
    NoisyInput,
    NoisyOutput,
    RandomDropout,
    Source,
    WeightSource,
    add_noise,
    draw_parameters,
    drawn_names,
    plain_layer,
    restore_masked,
    restore_parameters,
    rewritten_class,
    takes_noise,
)

MakePosterior = Callable[[nn.Parameter, Tensor | None], WeightSource]
"""A posterior from the parameter that becomes its mean, and a mask of the elements that stay fixed."""


Where = str | type[nn.Module] | Callable[[str, nn.Module], bool] | tuple["Where", ...] | None


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
    drawn = draw_parameters(module, rewritten_class(Drawn, base, plain, tuple(own)), own)
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


DROPOUT = nn.modules.dropout._DropoutNd


PLACES = "noise goes before linear layers and convolutions"


def insert_noise(
    net: nn.Module,
    make_noise: Callable[[dict[str, nn.Module]], Sequence[InputSource]],
    *,
    where: Where = None,
    strict: bool = True,
    freeze: bool = False,
) -> nn.Module:
    """A copy of ``net`` with noise before its chosen layers; ``make_noise`` gives one source for each, by name.

    With ``freeze`` the network's own parameters are not trained, and its running statistics stay.
    """
    model = plain_copy(net)
    chosen = _layers(model, where, strict)
    if not chosen:
        raise ValueError(_nothing_chosen(model, where))
    make_mappable(model)
    if freeze:
        _freeze(model)
    for layer, noise in zip(chosen.values(), make_noise(chosen), strict=True):
        add_noise(layer, noise.to(next(layer.parameters())))
    return attach(model)


def randomise_dropout(
    net: nn.Module, rate: float | None, inserted_rate: float, where: Where, strict: bool
) -> nn.Module:
    """A copy of ``net`` in which the chosen dropout modules are always on and other chosen layers have a mask before.

    Without a choice: its dropout modules or, in a network that has none, a mask before every linear layer. A ``rate``
    overrides that of all modules.
    """
    model = plain_copy(net)
    own = {name: module for name, module in model.named_modules() if type(module) in DROPOUTS}
    if strict:
        foreign = {n: m for n, m in model.named_modules() if isinstance(m, DROPOUT) and type(m) not in DROPOUTS}
        refuse_unconvertible({n: f"{type(m).__name__} is a dropout of its own kind" for n, m in foreign.items()})
    if where is None:
        chosen = {} if own else _layers(model, nn.Linear, strict=False)
    else:
        own = {name: module for name, module in own.items() if chooses(where, name, module)}
        chosen = _layers(model, where, strict)
    if not own and not chosen:
        raise ValueError(_nothing_chosen(model, where))
    if not chosen and rate is None and not any(module.p for module in own.values()):
        raise ValueError(f"p must be given: all dropout of this network has rate 0 ({', '.join(own)})")
    _warn_of_hidden_dropout(model)
    make_mappable(model)
    for name, module in own.items():
        p = module.p if rate is None else rate
        assert isinstance(p, float | int)
        if not 0.0 <= p < 1.0:
            raise ValueError(f"rates of dropout must be in [0, 1), got {p} at {name}")
        module.p = float(p)
        module.__class__ = DROPOUTS[type(module)]
    for layer in chosen.values():
        add_noise(layer, InputMask(inserted_rate if rate is None else rate))
    return attach(model)


def _freeze(model: nn.Module) -> None:
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.momentum = 0.0  # training normalises by the batch still, and leaves no trace


def _layers(model: nn.Module, where: Where, strict: bool) -> dict[str, nn.Module]:
    """The layers that ``where`` chooses for noise; with ``strict``, refuse other modules with parameters but norms."""
    chosen = {name: module for name, module in model.named_modules() if chooses(where, name, module)}
    if strict and where is not None:
        others = {
            name: m
            for name, m in chosen.items()
            if own_parameters(m) and not takes_noise(m) and not is_norm(m) and not isinstance(m, UNCALLED)
        }
        refuse_unconvertible({name: f"{type(module).__name__}: {PLACES}" for name, module in others.items()})
    return {name: module for name, module in chosen.items() if takes_noise(module)}


def _warn_of_hidden_dropout(model: nn.Module) -> None:
    """Dropout inside torch's own attention and recurrent layers is out of reach."""
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout:
            warnings.warn(
                f"the dropout inside {name or 'the network'} ({type(module).__name__}) stays as it is, random in "
                "training mode only",
                ConversionWarning,
                stacklevel=4,
            )


def _nothing_chosen(model: nn.Module, where: Where) -> str:
    possible = [name or "the network itself" for name, module in model.named_modules() if takes_noise(module)]
    listed = f"; it could be {', '.join(possible[:5])}" if possible else ", of which this network has none"
    return f"nothing to convert: where={where!r} chooses no layer, and {PLACES}{listed}"


def classifier_of(net: nn.Module, where: Where, example: Inputs | None) -> Where:
    """Which layer is the classifier where nobody chose: the linear layer called last, if an example shows it.

    None is the last one that the network registered, which needs no example.
    """
    if where is not None or example is None or not isinstance(net, nn.Module):
        return where
    linear = {module: name for name, module in net.named_modules() if isinstance(module, nn.Linear)}
    called: list[str] = []
    handles = [module.register_forward_pre_hook(lambda own, _: called.append(linear[own])) for module in linear]
    args, kwargs = arguments(example)
    try:
        with torch.no_grad(), unchanged(net):
            net(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return None if not called or called[-1] == list(linear.values())[-1] else called[-1]


def replace_head(
    net: nn.Module, make_head: Callable[[nn.Linear], Head], where: Where, strict: bool = True
) -> nn.Module:
    """A copy of ``net`` with a head in the place of its classifier: the linear layer chosen, by default the last."""
    model = plain_copy(net)
    chosen = _linear_layers(model, where, strict)
    if len(chosen) > 1:
        raise ValueError(f"where must choose one linear layer to put the head in its place, got {', '.join(chosen)}")
    make_mappable(model)
    layer = next(iter(chosen.values()))
    head = make_head(layer).to(layer.weight).train(layer.training)
    return attach(exchange(model, layer, head))


def with_activation_noise(
    net: nn.Module, make_noise: Callable[[int, int], ActivationNoise], where: Where, behind: bool, strict: bool = True
) -> nn.Module:
    """A copy of ``net`` with noise before, or behind, its chosen linear layers, by default the last."""
    model = plain_copy(net)
    chosen = _linear_layers(model, where, strict)
    make_mappable(model)
    for layer in chosen.values():
        width = layer.out_features if behind else layer.in_features
        noise = make_noise(layer.in_features, width).to(layer.weight).train(layer.training)
        add_noise(layer, noise, NoisyOutput if behind else NoisyInput)
    return attach(model)


def _linear_layers(model: nn.Module, where: Where, strict: bool) -> dict[str, nn.Linear]:
    """The linear layers that ``where`` chooses; with ``strict``, refuse other modules with parameters but norms."""
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and takes_noise(m)}
    if not linear:
        raise ValueError("nothing to convert: the network has no linear layer, which its classifier must be")
    if where is None:
        last = list(linear)[-1]
        return {last: linear[last]}
    chosen = {name: module for name, module in linear.items() if chooses(where, name, module)}
    others = {
        name: f"{type(module).__name__} is no linear layer"
        for name, module in model.named_modules()
        if name not in chosen
        and own_parameters(module)
        and not is_norm(module)
        and not isinstance(module, UNCALLED)
        and chooses(where, name, module)
    }
    if strict:
        refuse_unconvertible(others)
    if not chosen:
        listed = ", ".join(name or "the network itself" for name in linear)
        raise ValueError(f"nothing to convert: where={where!r} chooses no layer that is linear; it could be {listed}")
    return chosen


NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def plain_copy(net: nn.Module) -> nn.Module:
    """A copy of a network that can be converted; refuses what cannot."""
    _check_source(net)
    return copy_of(net)


def copy_of(net: nn.Module) -> nn.Module:
    """A copy, or why there is none."""
    try:
        return copy.deepcopy(net)
    except RuntimeError as error:  # a tensor that is not a leaf, kept on a module
        keeper = next((f"{name}.{key}".lstrip(".") for name, key in _computed_tensors(net)), None)
        kept = f": {keeper} keeps a tensor that forward computed" if keeper else ""
        raise ValueError(
            f"the network must be copyable, but copy.deepcopy fails on it{kept}; remove it, or where it comes from "
            "torch.nn.utils.weight_norm or spectral_norm, use those of torch.nn.utils.parametrizations"
        ) from error


def make_mappable(model: nn.Module) -> None:
    """Put layers that can be mapped over draws in the place of those that cannot."""
    for module in model.modules():
        module.__class__ = MAPPABLE.get(type(module), type(module))


def exchange(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Put a module wherever another one stands; returns the network, which may be the new one itself."""
    if model is old:
        return new
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new
    return model


def is_random(module: nn.Module) -> bool:
    """Whether conversion made this very module random."""
    return isinstance(module, Drawn | Head | Members | Noised | RandomDropout)


def random_names(model: nn.Module) -> tuple[str, ...]:
    """Names of the modules that conversion made random."""
    return tuple(name for name, module in model.named_modules() if is_random(module))


def visible_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules of the network itself: all but the inside of its noise."""
    hidden: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.startswith(hidden):
            continue
        if isinstance(module, Source):
            hidden = (*hidden, f"{name}." if name else "")
            if not is_random(module):
                continue
        yield name, module


def own_parameters(module: nn.Module) -> list[str]:
    """Names of the parameters that a module holds itself."""
    return [name for name, parameter in module._parameters.items() if parameter is not None]


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises: its scales stay deterministic unless asked for."""
    return isinstance(module, NORMS)


def _computed_tensors(net: nn.Module) -> Iterator[tuple[str, str]]:
    """Modules that keep tensors with a history, and under which name."""
    for name, module in net.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                yield name, key


def _check_source(net: nn.Module) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    for name, module in net.named_modules():
        if is_random(module) or isinstance(module, Source):
            raise ValueError(
                f"net is stochastic already: {name or 'it'} is a random {type(module).__name__}; "
                "dubio.to_mean(net) makes it plain again"
            )
        if isinstance(module, Masked):
            raise ValueError(
                f"net is pruned: weights of {name or 'it'} were removed and would come back; dubio.to_mean(net) makes "
                "them zeros that training may move"
            )
    if not any(True for _ in net.parameters()):
        raise ValueError(f"net must have parameters to make random, got a {type(net).__name__} without any")
    lazy = [name for name, parameter in net.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"net must be initialised, got lazy parameters {lazy}; run it once on an example before converting"
        )


class ConversionWarning(UserWarning):
    """Something about a converted network that its owner should know."""


def chooses(where: Where, name: str, module: nn.Module) -> bool:
    """Whether ``where`` chooses this module."""
    if where is None:
        return True
    if isinstance(where, tuple):
        return any(chooses(part, name, module) for part in where)
    if isinstance(where, str):
        return fnmatchcase(name, where)
    if isinstance(where, type):
        return isinstance(module, where)
    return bool(where(name, module))


def check_where(where: object) -> None:
    """Refuse what cannot choose layers."""
    parts = where if isinstance(where, tuple) else (where,)
    for part in parts:
        if isinstance(part, tuple):
            check_where(part)
        elif isinstance(part, type) and not issubclass(part, nn.Module):
            raise TypeError(f"where must name a module type, got {part.__name__}")
        elif not (part is None or isinstance(part, str) or callable(part)):
            raise TypeError(f"where must be a glob, a module type, a callable, or a tuple of those, got {part!r}")


def consists_of(where: Where, *kinds: type) -> bool:
    """Whether a choice is made of these kinds alone."""
    if isinstance(where, tuple):
        return all(consists_of(part, *kinds) for part in where)
    return where is None or isinstance(where, kinds)
