"""Modules whose class is rewritten in place: with drawn parameters, with noise, or with removed weights.

A rewritten module is an instance of a subclass of the class that it had, and ``rewrite`` makes it one. It keeps its
parameters under their names, its attributes and hooks, and the behaviour of its class, a user's own included. An aspect
is a mixin that knows the way back (``dubio_restore``) and what it adds (``dubio_describe``); aspects stack, and
``dubio.to_mean`` takes them off one by one:

- ``Drawn``: some parameters are properties. Read inside a pass, ``module.weight`` is the draw of its posterior, so the
  plain ``forward`` computes with drawn weights. Every module that reads its parameters as attributes can be drawn.
- ``NoisyInput`` and ``NoisyOutput``: ``forward`` passes the first input, or the output, through a child that is noise.
- ``Masked``: some parameters that are not drawn read as zero where the buffer ``weight_removed`` marks them. Posteriors
  have their own mask (``WeightSource.removed``); ``remove_weights`` and ``removed_of`` serve both.
- Layers of ``noise_layers.DROPOUTS``, which are always on, and of ``vmappable.MAPPABLE``, which can be mapped.

Pruned layers can also be smaller: ``keep_units`` removes outputs and inputs in place. ``Removed`` records what pruning
removed; ``rebuild`` repeats it on the network as converted, so that the tensors of a file fit.

Invariants: with noise off the plain forward runs on the means, so outputs are bitwise those of the source network
(T-43); a module changes its class and back without moving a tensor; removed weights are zero whatever an optimiser, a
checkpoint or a user does to the parameter (``tests/nn/test_masked.py``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from dubio._engine import Estimator, detach, outside_passes
from dubio.nn.sources import GaussianPosterior, InputSource, WeightSource

REMOVED = "_removed"
"""Ending of the buffer's name that marks removed weights of a parameter that is not drawn."""
BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
CONVOLUTIONS = (nn.modules.conv._ConvNd,)
RESIZABLE_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
UNCALLED = (nn.modules.linear.NonDynamicallyQuantizableLinear,)
"""Layers whose parameters torch reads without calling them."""

_CLASSES: dict[tuple[Any, ...], Any] = {}


class Rewritten(nn.Module):
    """A module whose class was rewritten. Names begin with ``dubio_``: aspects are mixed into users' own classes."""

    dubio_plain_class: ClassVar[type[nn.Module]]
    """The class that the module had, which may be rewritten itself."""

    def dubio_restore(self) -> None:
        """Give the module the class back that it had."""
        detach(self)
        self.__class__ = self.dubio_plain_class  # type: ignore[assignment]

    def dubio_describe(self) -> tuple[tuple[str, ...], str]:
        """What the aspect makes random, and a remark on it."""
        return (), ""


class Drawn(Rewritten):
    """A module with drawn parameters."""

    dubio_noise_key: int | None = None
    dubio_estimator: Estimator = "weight"
    dubio_estimator_remark: str = ""
    """Why the estimator is not the requested one."""
    dubio_shares_draw: bool = False
    """Whether other layers or calls see the same weights: then the weights themselves must be drawn."""
    dubio_parameter_order: tuple[str, ...]
    """Names of the plain module's own parameters, as it had them."""

    def dubio_restore(self) -> None:
        """Replace posteriors by parameters, which are their means."""
        order, parameters = self.dubio_parameter_order, dict(self._parameters)
        for name in drawn_names(self):
            posterior = self._modules.pop(f"{name}_posterior")
            assert isinstance(posterior, WeightSource)
            posterior.mean.data = posterior.location.detach()
            parameters[name] = posterior.mean
        for attribute in Drawn.__annotations__:
            self.__dict__.pop(attribute, None)
        Rewritten.dubio_restore(self)  # not that of an aspect below
        self._parameters.clear()
        self._parameters.update({name: parameters[name] for name in order})
        if isinstance(self, nn.RNNBase):
            self._init_flat_weights()

    def dubio_describe(self) -> tuple[tuple[str, ...], str]:
        """Which parameters are drawn, how, and whether their noise is trained."""
        names = tuple(drawn_names(self))
        posteriors = [self._modules[f"{name}_posterior"] for name in names]
        remark = f"{posteriors[0].describe()}, estimator {self.dubio_estimator}"  # type: ignore[union-attr, operator]
        remark += f" ({self.dubio_estimator_remark})" if self.dubio_estimator_remark else ""
        is_trained = any(isinstance(posterior, WeightSource) and posterior.learns_noise for posterior in posteriors)
        return names, remark if is_trained else f"{remark}; frozen: its scales will not be trained"

    def __repr__(self) -> str:
        """The plain module's text; nothing is drawn for it, also while a pass runs."""
        with outside_passes():
            return super().__repr__()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load a plain network's weights as means, where a checkpoint holds those; the scales stay as they are."""
        for name in drawn_names(self):
            posterior = posterior_of(self, name)
            if f"{prefix}{name}" in state_dict and posterior is not None:
                state_dict[f"{prefix}{name}_posterior.mean"] = state_dict.pop(f"{prefix}{name}")
                for key, value in posterior.state_dict(prefix=f"{prefix}{name}_posterior.").items():
                    state_dict.setdefault(key, value)
        super()._load_from_state_dict(state_dict, prefix, *args)


class Noised(Rewritten):
    """A layer with noise."""

    dubio_noise_name: ClassVar[str]
    """Which child is the noise."""

    @property
    def dubio_noise(self) -> InputSource:
        """The noise."""
        noise = self._modules[self.dubio_noise_name]
        assert isinstance(noise, InputSource)
        return noise

    def dubio_restore(self) -> None:
        """Remove the noise."""
        del self._modules[self.dubio_noise_name]
        Rewritten.dubio_restore(self)  # not that of an aspect below

    def dubio_describe(self) -> tuple[tuple[str, ...], str]:
        """Where the noise is, and of what kind."""
        place = f"{self.dubio_noise_name.removesuffix('_noise')}s"
        return (place,), f"{place}: {self.dubio_noise.describe()}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load a plain network's weights, where a checkpoint holds those; the noise stays as it is."""
        noise = self.dubio_noise.state_dict(prefix=f"{prefix}{self.dubio_noise_name}.")
        if noise and not any(key in state_dict for key in noise):
            state_dict.update(noise)
        super()._load_from_state_dict(state_dict, prefix, *args)


class NoisyInput(Noised):
    """A layer with noise on its first input."""

    dubio_noise_name = "input_noise"
    input_noise: InputSource

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The plain layer's output for the noisy input of this pass."""
        return super().forward(self.input_noise(input), *args, **kwargs)


class NoisyOutput(Noised):
    """A layer with noise on its outputs, whose scale may depend on the inputs."""

    dubio_noise_name = "output_noise"
    output_noise: nn.Module

    def forward(self, input: Tensor) -> Any:
        """The plain layer's output with the noise of this pass."""
        return self.output_noise(super().forward(input), input)


class Masked(Rewritten):
    """A module with removed weights."""

    dubio_masked_names: tuple[str, ...]
    """Which parameters have a mask."""

    def dubio_restore(self) -> None:
        """Turn removed weights into zeros of the parameters."""
        for name in self.dubio_masked_names:
            parameter, value = self._parameters[name], plain_value(self, name)
            assert parameter is not None
            assert value is not None
            parameter.data = value.detach()
            del self._buffers[f"{name}{REMOVED}"]
        Rewritten.dubio_restore(self)  # not that of an aspect below

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load a plain network's weights, where a checkpoint holds those; removed weights stay removed."""
        for name in self.dubio_masked_names:
            state_dict.setdefault(f"{prefix}{name}{REMOVED}", self._buffers[f"{name}{REMOVED}"])
        super()._load_from_state_dict(state_dict, prefix, *args)


@dataclass(frozen=True)
class Removed:
    """What was removed from a network."""

    weights: tuple[str, ...] = ()
    """Parameters of which some weights were removed."""
    sizes: tuple[tuple[str, int, int], ...] = ()
    """Layers that were made smaller, with the inputs and outputs that they have now."""
    units: tuple[tuple[str, int], ...] = ()
    """Layers that lost outputs, with their first number of outputs."""

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in self.weights):
            raise ValueError(f"weights must be names of parameters, got {self.weights!r}")
        if not all(tuple(map(type, size)) == (str, int, int) for size in self.sizes):
            raise ValueError(f"sizes must be names of layers with their inputs and outputs, got {self.sizes!r}")
        if not all(tuple(map(type, unit)) == (str, int) for unit in self.units):
            raise ValueError(f"units must be names of layers with their first number of outputs, got {self.units!r}")


def rewrite(module: nn.Module, aspect: type[Rewritten], names: tuple[str, ...] = ()) -> None:
    """Change the class of a module, in place, to a subclass with an aspect.

    Args:
        module: the module; its parameters, attributes and hooks stay where they are.
        aspect: a mixin, or a class that was made for the module's class already, such as a Bayesian layer.
        names: parameters that become properties.
    """
    base = type(module)
    has_class = hasattr(aspect, "dubio_plain_class")
    module.__class__ = aspect if has_class else _class_of((aspect, base, names))


def plain_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The class that instances had before they were rewritten."""
    while issubclass(kind, Rewritten):
        kind = kind.dubio_plain_class
    return kind


def _class_of(recipe: Any) -> Any:
    """The subclass with an aspect, made once: an aspect, a base, which may be a recipe itself, and names."""
    if not isinstance(recipe, tuple):
        return recipe
    aspect, base, names = recipe[0], _class_of(recipe[1]), recipe[2]
    key = (aspect, base, names)
    if key not in _CLASSES:
        named = plain_class(base)
        getter = plain_value if issubclass(aspect, Masked) else drawn_value
        members: dict[str, Any] = {"__doc__": f"``{named.__name__}``, {aspect.__name__.lower()}.", "dubio_recipe": key}
        members |= {"__module__": named.__module__, "__qualname__": named.__qualname__, "__reduce_ex__": _reduce}
        members |= {name: drawn_property(name, getter) for name in names}
        members["dubio_plain_class"] = base
        if issubclass(aspect, Masked):
            members |= {"dubio_masked_names": names, "dubio_constant_buffers": tuple(f"{n}{REMOVED}" for n in names)}
        _CLASSES[key] = type(named.__name__, (aspect, base), members)
    return _CLASSES[key]


def _reduce(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
    """Pickle an instance of a rewritten class by the recipe of its class."""
    return _empty, (_recipe(type(self)),), self.__getstate__()


def _recipe(kind: type[nn.Module]) -> Any:
    """The recipe of a rewritten class, nested where its base is itself rewritten; an ordinary class is its own."""
    if "dubio_recipe" not in vars(kind):
        return kind
    aspect, base, names = vars(kind)["dubio_recipe"]
    return aspect, _recipe(base), names


def _empty(recipe: Any) -> Any:
    kind = _class_of(recipe)
    return kind.__new__(kind)


def posterior_of(module: nn.Module, name: str) -> WeightSource | None:
    """The posterior of a parameter of a module, where it is drawn."""
    return getattr(module, f"{name}_posterior", None)


def gaussian_of(module: nn.Module, name: str) -> GaussianPosterior | None:
    """The posterior of a parameter of a module, where it is a Gaussian."""
    posterior = posterior_of(module, name)
    return posterior if isinstance(posterior, GaussianPosterior) else None


def drawn_value(module: nn.Module, name: str) -> Tensor | None:
    """A parameter of a module in the running pass; outside any pass, its mean."""
    posterior = posterior_of(module, name)
    return plain_value(module, name) if posterior is None else posterior.draw()


def plain_value(module: nn.Module, name: str) -> Tensor | None:
    """A parameter that is not drawn, zero where weights were removed."""
    parameter, removed = module._parameters.get(name), module._buffers.get(f"{name}{REMOVED}")
    return parameter if parameter is None or removed is None else parameter.masked_fill(removed, 0.0)


def drawn_names(module: nn.Module) -> list[str]:
    """Names of the parameters of a module that are drawn."""
    children = [name for name, child in module._modules.items() if isinstance(child, WeightSource)]
    return [name.removesuffix("_posterior") for name in children if name.endswith("_posterior")]


def drawn_property(name: str, getter: Callable[[nn.Module, str], Tensor | None] = drawn_value) -> property:
    """An attribute that is the draw of its posterior in a pass, and its mean outside."""
    return property(lambda self: getter(self, name), doc=f"``{name}`` of the running pass; outside any pass, its mean.")


def draw_parameters(module: nn.Module, aspect: type[Drawn], posteriors: Mapping[str, WeightSource]) -> Drawn:
    """Turn a plain module into a drawn one, in place: its class changes, and posteriors replace parameters."""
    order = tuple(module._parameters)
    for name, posterior in posteriors.items():
        if hasattr(module, f"{name}_posterior"):
            raise ValueError(
                f"cannot convert a {type(module).__name__}: it has a {name}_posterior of its own beside {name}"
            )
        del module._parameters[name]
        module.add_module(f"{name}_posterior", posterior)
    rewrite(module, aspect, tuple(posteriors))
    assert isinstance(module, Drawn)
    module.dubio_parameter_order = order
    return module


def takes_noise(module: nn.Module) -> bool:
    """Whether noise can be put before a module: linear layers and convolutions."""
    return isinstance(module, (nn.Linear, *CONVOLUTIONS)) and not isinstance(module, UNCALLED)


def channels_of(module: nn.Module) -> tuple[int, int]:
    """The number of channels of a layer's inputs, and their axis, counted from the last."""
    if isinstance(module, nn.Linear):
        return module.in_features, -1
    assert isinstance(module, CONVOLUTIONS)
    return module.in_channels, -len(module.kernel_size) - 1


def add_noise(module: nn.Module, noise: InputSource, aspect: type[Noised] = NoisyInput) -> None:
    """Put noise before a layer, or behind it (``NoisyOutput``), in place: its class changes, and it gets a child."""
    if hasattr(module, aspect.dubio_noise_name):
        raise ValueError(f"cannot convert a {type(module).__name__}: it has an {aspect.dubio_noise_name} of its own")
    rewrite(module, aspect)
    module.add_module(aspect.dubio_noise_name, noise)


def remove_weights(module: nn.Module, name: str, mask: Bool[Tensor, "*shape"]) -> None:
    """Remove weights of a parameter of a module, in place; those removed before stay so."""
    posterior = posterior_of(module, name)
    if posterior is not None:
        posterior.remove(mask)
        return
    parameter = module._parameters[name]
    assert parameter is not None
    masked = module.dubio_masked_names if isinstance(module, Masked) else ()
    if name not in masked:
        if hasattr(module, f"{name}{REMOVED}"):
            raise ValueError(f"cannot prune a {type(module).__name__}: it has a {name}{REMOVED} of its own")
        module.register_buffer(f"{name}{REMOVED}", torch.zeros_like(parameter, dtype=torch.bool))
        if isinstance(module, Masked):
            module.__class__ = module.dubio_plain_class  # type: ignore[assignment]
        rewrite(module, Masked, (*masked, name))
    removed = module._buffers[f"{name}{REMOVED}"]
    assert removed is not None
    with torch.no_grad():
        removed |= mask
        parameter.masked_fill_(removed, 0.0)


def removed_of(module: nn.Module, name: str) -> Bool[Tensor, "*shape"] | None:
    """Which weights of a parameter were removed; None where none was."""
    posterior = posterior_of(module, name)
    if posterior is not None:
        return posterior.removed
    is_masked = isinstance(module, Masked) and name in module.dubio_masked_names
    return module._buffers[f"{name}{REMOVED}"] if is_masked else None


def masked_tensors(model: nn.Module) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Of each parameter with removed weights its name, its mask's name, and the names of all tensors that it masks."""
    for place, module in model.named_modules():
        prefix = f"{place}." if place else ""
        if isinstance(module, WeightSource) and module.removed is not None:
            names = tuple(f"{prefix}{key}" for key, _ in module.same_shape(module.mean.shape))
            yield place.removesuffix("_posterior"), f"{prefix}removed", names
        if isinstance(module, Masked):
            for name in module.dubio_masked_names:
                yield f"{prefix}{name}", f"{prefix}{name}{REMOVED}", (f"{prefix}{name}",)


def num_trained(model: nn.Module) -> int:
    """The number of trained parameters: those that require gradients, less those of removed weights."""
    total = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    trained = {name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter.requires_grad}
    removed = (
        int(model.get_buffer(mask).sum()) * len(trained.intersection(names)) for _, mask, names in masked_tensors(model)
    )
    return total - sum(removed)


def removed_from(
    model: nn.Module, shrunk: Sequence[str] = (), units: Mapping[str, int] | None = None
) -> Removed | None:
    """What was removed from a network, of which the layers in ``shrunk`` were made smaller; None where nothing was.

    ``units`` holds the first number of outputs of layers.
    """
    weights = tuple(name for name, _, _ in masked_tensors(model))
    sizes = tuple(
        (name, *size) for name in sorted(set(shrunk)) if (size := _sizes(model.get_submodule(name))) is not None
    )
    return Removed(weights, sizes, tuple(sorted((units or {}).items()))) if weights or sizes else None


def rebuild(model: nn.Module, removed: Removed) -> None:
    """Make a network's layers smaller, and add masks that remove nothing yet, so that a pruned one's tensors fit."""
    for name, inputs, outputs in removed.sizes:
        layer = _part(model, name)
        size = _sizes(layer)
        if size is None or not (0 < inputs <= size[0] and 0 < outputs <= size[1]):
            raise ValueError(f"{name} was cut down to {inputs} inputs and {outputs} outputs, which it cannot be here")
        keep_units(layer, outputs=torch.arange(outputs), inputs=torch.arange(inputs))
    for name in removed.weights:
        place, _, parameter = name.rpartition(".")
        layer = _part(model, place)
        posterior = posterior_of(layer, parameter)
        whole = posterior.mean if posterior is not None else layer._parameters.get(parameter)
        if whole is None:
            raise ValueError(f"weights of {name} were removed, which this network has not")
        remove_weights(layer, parameter, torch.zeros_like(whole, dtype=torch.bool))


def keep_units(
    layer: nn.Module, *, outputs: Int[Tensor, " output"] | None = None, inputs: Int[Tensor, " input"] | None = None
) -> None:
    """Keep some outputs and some inputs of a linear layer or a convolution, or some features of a batch norm, in place.

    The parameters are new objects afterwards, so an optimiser must be built again.
    """
    if outputs is not None:
        for name in ("weight", "bias"):
            _select(layer, name, 0, outputs)
        for name in ("running_mean", "running_var"):
            buffer = layer._buffers.get(name)
            if buffer is not None:
                layer._buffers[name] = buffer[outputs.to(buffer.device)].clone()
    if inputs is not None and not isinstance(layer, BATCH_NORMS):
        _select(layer, "weight", 1, inputs)
    attributes = {"num_features": outputs, "out_features": outputs, "out_channels": outputs}
    attributes |= {"in_features": inputs, "in_channels": inputs}
    for attribute, kept in attributes.items():
        if kept is not None and hasattr(layer, attribute):
            setattr(layer, attribute, len(kept))


def _select(layer: nn.Module, name: str, axis: int, kept: Int[Tensor, " kept"]) -> None:
    """Keep some entries of a parameter along an axis, and of its scales, masks and centres."""
    posterior = posterior_of(layer, name)
    holder = layer if posterior is None else posterior
    whole = layer._parameters.get(name) if posterior is None else posterior.mean
    if whole is None:
        return
    size = whole.shape[axis]
    names = {name, f"{name}{REMOVED}"} if posterior is None else {*holder._parameters, *holder._buffers}
    for store in (holder._parameters, holder._buffers):
        for key, tensor in list(store.items()):
            if key not in names or tensor is None or tensor.dim() <= axis or tensor.shape[axis] != size:
                continue
            part = tensor.detach().index_select(axis, kept.to(tensor.device))
            is_parameter = isinstance(tensor, nn.Parameter)
            store[key] = nn.Parameter(part, requires_grad=tensor.requires_grad) if is_parameter else part  # type: ignore[assignment]


def _sizes(layer: nn.Module) -> tuple[int, int] | None:
    """Inputs and outputs of a layer; None for one that cannot be made smaller."""
    if isinstance(layer, BATCH_NORMS):
        return layer.num_features, layer.num_features
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return (layer.in_channels, layer.out_channels) if isinstance(layer, RESIZABLE_CONVOLUTIONS) else None


def _part(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise ValueError(f"{name} was pruned, which this network has not") from None
