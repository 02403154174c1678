"""Make copies of networks random, module by module, and back again.

Modules change their class in place, inside a copy of the network: shared submodules stay shared, hooks and attributes
stay where they are, and a single layer converts like a whole network.

- ``randomise`` draws parameters. Linear layers and convolutions get all three estimators; any other module that reads
  its parameters as attributes, a user's own included, computes with drawn parameters in its own ``forward``. Tied
  parameters get one posterior and so one draw.
- ``insert_noise``, ``with_activation_noise`` and ``randomise_dropout`` put noise before or behind layers.
- ``replace_head`` puts a head in place of the classifier.
- ``to_mean`` is the way back to an ordinary network.

``where`` says which layers a method applies to: a glob on the qualified name (``"head"``, ``"blocks.*.fc"``;
``"blocks.*"`` matches everything below ``blocks``), a module type, a callable of name and module, or a tuple of those,
of which one must match. None chooses every layer.
"""

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dubio._engine import Estimator, Inputs, arguments, attach, attach_alone, detach, isolated
from dubio.checks import did_you_mean
from dubio.nn import (
    BAYESIAN,
    DROPOUTS,
    MAPPABLE,
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
    Rewritten,
    Source,
    WeightSource,
    add_noise,
    draw_parameters,
    drawn_names,
    rewrite,
    takes_noise,
)

MakePosterior = Callable[[nn.Parameter, Tensor | None], WeightSource]
"""A posterior from the parameter that becomes its mean, and a mask of the elements that stay fixed."""
MakeNoises = Callable[[dict[str, nn.Module]], Sequence[InputSource]]
"""One source of noise for each of these layers, which come by name."""
Where = str | type[nn.Module] | Callable[[str, nn.Module], bool] | tuple["Where", ...] | None
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
DROPOUT = nn.modules.dropout._DropoutNd
PLACES = "noise goes before linear layers and convolutions"


class ConversionWarning(UserWarning):
    """Warns of something unexpected about a converted network."""


def randomise(
    net: nn.Module, make: MakePosterior, where: Where, strict: bool, *, estimator: Estimator, biases: bool, norms: bool
) -> nn.Module:
    """A copy of ``net`` whose chosen parameters are drawn; ``net`` itself is not changed."""
    model = plain_copy(net)
    holders = {name: m for name, m in model.named_modules(remove_duplicate=False) if own_parameters(m)}
    drawable = {name: module for name, module in holders.items() if norms or not is_norm(module)}
    chosen = {name: module for name, module in drawable.items() if chooses(where, name, module)}
    unconvertible = {name: reason for name, module in chosen.items() if (reason := why_unconvertible(module))}
    if strict:
        refuse_unconvertible(unconvertible)
    make_mappable(model)
    convertible = [module for name, module in chosen.items() if name not in unconvertible]
    posteriors = _make_posteriors(convertible, make, biases)
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
    """Return an ordinary copy whose parameters are the posterior means; ``model`` itself is not changed.

    The copy has the class, parameter names and outputs of the network that was converted, with its trained weights;
    removed weights are zeros.
    """
    if any(isinstance(module, Members) for module in model.modules()):
        raise ValueError("an ensemble has no mean network; each of its .members is an ordinary one")
    plain = copy_of(model)
    for module in list(plain.modules()):
        detach(module)
        while isinstance(module, Rewritten):
            module.dubio_restore()
        if isinstance(module, Head):
            plain = exchange(plain, module, module.plain())
    record = plain.__dict__.pop("dubio_spec", None)
    if getattr(getattr(record, "likelihood", None), "std", None) == "learned":
        plain._parameters.pop("observation_rho", None)
    return plain


def parameter_names(model: nn.Module) -> dict[str, str]:
    """The original name of every parameter of a converted network: ``fc.weight`` for ``fc.weight_posterior.mean``.

    A posterior's ``rho`` has the same original name as its ``mean``. Parameters of noise on inputs are left out.
    """
    noise = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, InputPosterior))
    names = [name for name, _ in model.named_parameters(remove_duplicate=False) if not name.startswith(noise)]
    places = {name: name.rpartition(".")[0] for name in names}
    return {
        name: place.removesuffix("_posterior") if isinstance(model.get_submodule(place), WeightSource) else name
        for name, place in places.items()
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


def _make_posteriors(modules: list[nn.Module], make: MakePosterior, biases: bool) -> dict[int, WeightSource]:
    """One posterior for each parameter of the modules, by identity of the parameter."""
    named = [pair for module in modules for pair in module.named_parameters(recurse=False)]
    parameters = {id(parameter): parameter for name, parameter in named if biases or "bias" not in name}
    fixed: dict[int, Tensor] = {}  # the padding row of an embedding is constant
    for module in modules:
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.padding_idx is not None:
            fixed[id(module.weight)] = torch.zeros_like(module.weight, dtype=torch.bool)
            fixed[id(module.weight)][module.padding_idx] = True
    return {key: make(parameter, fixed.get(key)) for key, parameter in parameters.items()}


def _draw(module: nn.Module, posteriors: dict[int, WeightSource], estimator: Estimator) -> None:
    params = module.named_parameters(recurse=False, remove_duplicate=False)
    drawn_params = {name: posteriors[id(parameter)] for name, parameter in params if id(parameter) in posteriors}
    if not drawn_params:
        return
    base = type(module)
    if base in BAYESIAN and isinstance(drawn_params.get("weight"), GaussianPosterior):
        draw_parameters(module, BAYESIAN[base], drawn_params).dubio_estimator = estimator
        return
    drawn = draw_parameters(module, Drawn, drawn_params)
    attach_alone(drawn)
    if estimator != "weight":
        drawn.dubio_estimator_remark = f"{base.__name__} has no {estimator} form"


def _mark_shared(model: nn.Module) -> None:
    """Have weights drawn where several layers share them, or a layer is in several places of the network."""
    places = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    drawn = [module for module in model.modules() if isinstance(module, Drawn)]
    users = Counter(id(module._modules[f"{name}_posterior"]) for module in drawn for name in drawn_names(module))
    for module in drawn:
        tied = any(users[id(module._modules[f"{name}_posterior"])] > 1 for name in drawn_names(module))
        if tied or places[id(module)] > 1:
            share_draw(module, "tied weights share a draw" if tied else "a shared layer has one draw")


def share_draw(module: Drawn, remark: str) -> None:
    """Have the weights of a module drawn, whatever the estimator, since several calls or layers use them."""
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


def insert_noise(net: nn.Module, make: MakeNoises, *, where: Where, strict: bool, freeze: bool) -> nn.Module:
    """A copy of ``net`` with noise before its chosen layers.

    With ``freeze`` the network's own parameters are not trained, and its running statistics do not change.
    """
    model = plain_copy(net)
    chosen = _chosen_layers(model, where, strict)
    if not chosen:
        raise ValueError(_nothing_chosen(model, where))
    make_mappable(model)
    if freeze:
        model.requires_grad_(False)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.momentum = 0.0  # training still normalises by the batch, but does not change the statistics
    for layer, noise in zip(chosen.values(), make(chosen), strict=True):
        add_noise(layer, noise.to(next(layer.parameters())))
    return attach(model)


def randomise_dropout(net: nn.Module, rate: float | None, inserted: float, where: Where, strict: bool) -> nn.Module:
    """A copy of ``net`` in which the chosen dropout modules are always on and other chosen layers have a mask before.

    Without a choice: its dropout modules or, in a network that has none, a mask before every linear layer. A ``rate``
    overrides that of all modules.
    """
    model = plain_copy(net)
    dropouts = {name: module for name, module in model.named_modules() if type(module) in DROPOUTS}
    if strict:
        foreign = {n: m for n, m in model.named_modules() if isinstance(m, DROPOUT) and type(m) not in DROPOUTS}
        refuse_unconvertible({n: f"{type(m).__name__} is a custom dropout" for n, m in foreign.items()})
    if where is None:
        chosen = {} if dropouts else _chosen_layers(model, nn.Linear, strict=False)
    else:
        dropouts = {name: module for name, module in dropouts.items() if chooses(where, name, module)}
        chosen = _chosen_layers(model, where, strict)
    if not dropouts and not chosen:
        raise ValueError(_nothing_chosen(model, where))
    if not chosen and rate is None and not any(module.p for module in dropouts.values()):
        raise ValueError(f"p must be given: all dropout of this network has rate 0 ({', '.join(dropouts)})")
    _warn_of_hidden_dropout(model)
    make_mappable(model)
    for name, module in dropouts.items():
        p = module.p if rate is None else rate
        assert isinstance(p, float | int)
        if not 0.0 <= p < 1.0:
            raise ValueError(f"rates of dropout must be in [0, 1), got {p} at {name}")
        module.p = float(p)
        rewrite(module, DROPOUTS[type(module)])
    for layer in chosen.values():
        add_noise(layer, InputMask(inserted if rate is None else rate))
    return attach(model)


def _chosen_layers(
    model: nn.Module, where: Where, strict: bool, kind: type[nn.Module] = nn.Module, rule: str = f": {PLACES}"
) -> dict[str, nn.Module]:
    """Layers of a kind that ``where`` chooses for noise; with ``strict``, refuse other modules with parameters."""
    chosen = {name: module for name, module in model.named_modules() if chooses(where, name, module)}
    fitting = {name: module for name, module in chosen.items() if isinstance(module, kind) and takes_noise(module)}
    if strict and where is not None:
        others = {
            name: m for name, m in chosen.items() if name not in fitting and not isinstance(m, (*NORMS, *UNCALLED))
        }
        refuse_unconvertible({name: f"{type(m).__name__}{rule}" for name, m in others.items() if own_parameters(m)})
    return fitting


def _warn_of_hidden_dropout(model: nn.Module) -> None:
    """Warn of dropout inside torch's own attention and recurrent layers, which cannot be converted."""
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
    """The classifier where ``where`` is None: with an example, the linear layer that is called last.

    None stands for the linear layer that the network registered last, which needs no example.
    """
    if where is not None or example is None or not isinstance(net, nn.Module):
        return where
    linear: dict[nn.Module, str] = {m: name for name, m in net.named_modules() if isinstance(m, nn.Linear)}
    args, kwargs = arguments(example)
    with calls_of(linear) as called, torch.no_grad(), isolated(net, trial=True):
        net(*args, **kwargs)
    return None if not called or called[-1] is list(linear)[-1] else linear[called[-1]]


@contextmanager
def calls_of(modules: Iterable[nn.Module]) -> Iterator[list[nn.Module]]:
    """Lists these modules in the order of their calls inside the block."""
    called: list[nn.Module] = []
    handles = [module.register_forward_pre_hook(lambda module, _: called.append(module)) for module in modules]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def replace_head(net: nn.Module, make_head: Callable[[nn.Linear], Head], where: Where, strict: bool) -> nn.Module:
    """A copy of ``net`` whose classifier, the chosen linear layer or the last one, is replaced by a head."""
    model = plain_copy(net)
    chosen = _linear_layers(model, where, strict)
    if len(chosen) > 1:
        raise ValueError(f"where must choose one linear layer to put the head in its place, got {', '.join(chosen)}")
    make_mappable(model)
    layer = next(iter(chosen.values()))
    head = make_head(layer).to(layer.weight).train(layer.training)
    return attach(exchange(model, layer, head))


def with_activation_noise(
    net: nn.Module, make_noise: Callable[[int, int], ActivationNoise], where: Where, behind: bool, strict: bool
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
    chosen = _chosen_layers(model, where, strict, nn.Linear, " is no linear layer")
    if not chosen:
        listed = ", ".join(name or "the network itself" for name in linear)
        raise ValueError(f"nothing to convert: where={where!r} chooses no layer that is linear; it could be {listed}")
    return {name: linear[name] for name in chosen}


def plain_copy(net: nn.Module) -> nn.Module:
    """A copy of a network to convert; refuses networks that cannot be converted."""
    _check_source(net)
    return copy_of(net)


def copy_of(net: nn.Module) -> nn.Module:
    """A deep copy; the error names a tensor that prevents it."""
    try:
        return copy.deepcopy(net)
    except RuntimeError as error:  # a tensor that is not a leaf, kept on a module
        kept = ((f"{name}.{key}", value) for name, m in net.named_modules() for key, value in vars(m).items())
        computed = (name for name, value in kept if isinstance(value, Tensor) and value.grad_fn is not None)
        keeper = next(computed, "").lstrip(".")
        reason = f": {keeper} keeps a tensor that forward computed" if keeper else ""
        raise ValueError(
            f"the network must be copyable, but copy.deepcopy fails on it{reason}; remove it, or where it comes from "
            "torch.nn.utils.weight_norm or spectral_norm, use those of torch.nn.utils.parametrizations"
        ) from error


def make_mappable(model: nn.Module) -> None:
    """Replace layers that cannot be mapped over draws by layers that can."""
    for module in model.modules():
        if type(module) in MAPPABLE:
            rewrite(module, MAPPABLE[type(module)])


def exchange(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Replace a module wherever it is in the network; returns the network, which may be the new module itself."""
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
    """Names and modules of the network, without the submodules of its noise."""
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
    """Whether a module is a normalisation layer, whose scales stay deterministic by default."""
    return isinstance(module, NORMS)


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
    """Refuse a ``where`` that cannot choose layers."""
    parts = where if isinstance(where, tuple) else (where,)
    for part in parts:
        if isinstance(part, tuple):
            check_where(part)
        elif isinstance(part, type) and not issubclass(part, nn.Module):
            raise TypeError(f"where must name a module type, got {part.__name__}")
        elif not (part is None or isinstance(part, str) or callable(part)):
            raise TypeError(f"where must be a glob, a module type, a callable, or a tuple of those, got {part!r}")


def consists_of(where: Where, *kinds: type) -> bool:
    """Whether ``where`` consists of these kinds alone."""
    if isinstance(where, tuple):
        return all(consists_of(part, *kinds) for part in where)
    return where is None or isinstance(where, kinds)
