"""Modules whose parameters are drawn, whatever they compute.

A drawn module is an instance of a subclass of its plain class in which some parameters have become properties: read
inside a pass, ``module.weight`` is the draw of its posterior, so the plain class's own ``forward`` computes with drawn
weights and nothing needs to be written again. This holds for every module that reads its parameters as attributes,
torch's and a user's own; which parameters are drawn is part of the class.

Invariants: with noise off the plain forward runs on the means, so outputs are bitwise those of the source network where
no rule at the leaf is needed; a module changes its class and back without moving a tensor.

Layers whose inputs pass through a source of noise first, or whose outputs do afterwards.

A noised layer is an instance of a subclass of its plain class whose ``forward`` hands the first input, or the output,
to a child that is the noise, and goes on as before: the layer keeps its parameters, their names and its class's
behaviour, a user's own linear layer included. With noise off the plain forward runs alone, so outputs are bitwise those
of the source network (T-43); a module changes its class and back without moving a tensor.

Parameters that are not drawn and of which some weights were removed.

A masked module is an instance of a subclass of its class in which such parameters have become properties: they read as
the parameter, zero where the buffer ``weight_removed`` says so. The parameter keeps its name and its place, gets no
gradient where weights were removed, and what a plain checkpoint holds there is not seen.

A distribution of weights has a mask of its own (``WeightSource.removed``); ``remove_weights`` and ``removed_of`` do not
ask which of the two a parameter is.

Invariants: removed weights are zero whatever an optimiser, a checkpoint or a user does to the parameter
(``tests/nn/test_masked.py``); a module changes its class and back without moving a tensor.

Layers with fewer units: linear layers, convolutions and batch norms cut down in place, and cut down again on load.

``Removed`` is what a network's record keeps of its pruning: with it, and the network as it was converted, ``rebuild``
gives a network of the right shapes and masks for the tensors of a file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from dubio._engine import Estimator, detach, outside_passes
from dubio.nn.noise_layers import ActivationNoise
from dubio.nn.sources import GaussianPosterior, InputSource, WeightSource

REMOVED = "_removed"
"""How the buffer is called, after its parameter, that marks removed weights of a parameter that is not drawn."""


class Drawn(nn.Module):
    """What all drawn modules share. Names begin with ``dubio_``: the class is mixed into users' own."""

    dubio_noise_key: int | None = None
    dubio_estimator: Estimator = "weight"
    dubio_estimator_remark: str = ""
    """Why the estimator is not the one that was asked for."""
    dubio_shares_draw: bool = False
    """Whether other layers or calls see the same weights: then the weights themselves must be drawn."""
    dubio_plain_class: type[nn.Module]
    dubio_parameter_order: tuple[str, ...]
    """Names of the plain module's own parameters, as it had them."""

    def __repr__(self) -> str:
        """What the plain module would be printed as; nothing is drawn for it, also while a pass runs."""
        with outside_passes():
            return super().__repr__()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take a plain network's weights as means, where a checkpoint holds those; the scales stay as they are."""
        for name in drawn_names(self):
            posterior = posterior_of(self, name)
            if f"{prefix}{name}" in state_dict and posterior is not None:
                state_dict[f"{prefix}{name}_posterior.mean"] = state_dict.pop(f"{prefix}{name}")
                kept = posterior.state_dict(prefix=f"{prefix}{name}_posterior.")
                state_dict.update({key: value for key, value in kept.items() if key not in state_dict})
        super()._load_from_state_dict(state_dict, prefix, *args)


def posterior_of(module: nn.Module, name: str) -> WeightSource | None:
    """The posterior of a parameter of a module, where it is drawn."""
    return getattr(module, f"{name}_posterior", None)


def gaussian_of(module: nn.Module, name: str) -> GaussianPosterior | None:
    """The same, where it is a Gaussian."""
    posterior = posterior_of(module, name)
    return posterior if isinstance(posterior, GaussianPosterior) else None


def drawn_value(module: nn.Module, name: str) -> Tensor | None:
    """A parameter of a module in the running pass; outside any pass, its mean."""
    posterior = posterior_of(module, name)
    return plain_value(module, name) if posterior is None else posterior.draw()


def plain_value(module: nn.Module, name: str) -> Tensor | None:
    """A parameter that is not drawn, zero where weights were removed (``layers.masked``)."""
    parameter, removed = module._parameters.get(name), module._buffers.get(f"{name}{REMOVED}")
    return parameter if parameter is None or removed is None else parameter.masked_fill(removed, 0.0)


def drawn_names(module: nn.Module) -> list[str]:
    """Names of the parameters of a module that are drawn."""
    return [
        name.removesuffix("_posterior")
        for name, child in module._modules.items()
        if isinstance(child, WeightSource) and name.endswith("_posterior")
    ]


def drawn_property(name: str) -> property:
    """An attribute that is the draw of its posterior in a pass, and its mean outside."""
    return property(
        lambda self: drawn_value(self, name), doc=f"``{name}`` of the running pass; outside any pass, its mean."
    )


_CLASSES: dict[tuple[type[nn.Module], type[nn.Module], tuple[str, ...]], type[Drawn]] = {}


def drawn_class(plain: type[nn.Module], base: type[nn.Module], names: tuple[str, ...]) -> type[Drawn]:
    """The subclass of ``base`` in which ``names`` are drawn; ``plain`` is the class to go back to."""
    key = (plain, base, names)
    if key not in _CLASSES:
        members: dict[str, Any] = {
            "__doc__": f"``{plain.__name__}`` with drawn parameters.",
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
            "__reduce_ex__": _reduce,
            "dubio_plain_class": plain,
            **{name: drawn_property(name) for name in names},
        }
        _CLASSES[key] = type(plain.__name__, (Drawn, base), members)
    return _CLASSES[key]


def draw_parameters(module: nn.Module, drawn: type[Drawn], posteriors: Mapping[str, WeightSource]) -> Drawn:
    """Turn a plain module into a drawn one, in place: its class changes, posteriors take the place of parameters."""
    order = tuple(module._parameters)
    for name, posterior in posteriors.items():
        if hasattr(module, f"{name}_posterior"):
            raise ValueError(
                f"cannot convert a {type(module).__name__}: it has a {name}_posterior of its own beside {name}"
            )
        del module._parameters[name]
        module.add_module(f"{name}_posterior", posterior)
    module.__class__ = drawn
    assert isinstance(module, Drawn)
    module.dubio_parameter_order = order
    return module


def restore_parameters(module: nn.Module) -> None:
    """Turn a drawn module back into a plain one, in place: its parameters are the posterior means."""
    assert isinstance(module, Drawn)
    order, plain = module.dubio_parameter_order, module.dubio_plain_class
    own = dict(module._parameters)
    for name in drawn_names(module):
        posterior = module._modules.pop(f"{name}_posterior")
        assert isinstance(posterior, WeightSource)
        posterior.mean.data = posterior.location.detach()
        own[name] = posterior.mean
    for attribute in Drawn.__annotations__:
        module.__dict__.pop(attribute, None)
    detach(module)
    module.__class__ = plain  # type: ignore[assignment]
    module._parameters.clear()
    module._parameters.update({name: own[name] for name in order})
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()


def _reduce(self: Drawn, protocol: Any) -> tuple[Any, ...]:
    """Pickle a class made at run time by what it was made of."""
    return *recipe_of(type(self)), self.__getstate__()


def recipe_of(kind: type[Drawn]) -> tuple[Any, tuple[Any, ...]]:
    """What makes an empty module of a class that was made at run time, and of what."""
    names = tuple(name for name, member in vars(kind).items() if isinstance(member, property))
    return _rebuild, (kind.dubio_plain_class, kind.__mro__[2], names)


def _rebuild(plain: type[nn.Module], base: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    kind = drawn_class(plain, base, names)
    return kind.__new__(kind)


CONVOLUTIONS = (nn.modules.conv._ConvNd,)


UNCALLED = (nn.modules.linear.NonDynamicallyQuantizableLinear,)
"""Layers whose parameters torch reads without calling them."""


class Noised(nn.Module):
    """What all noised layers share. Names begin with ``dubio_``: the class is mixed into users' own."""

    dubio_plain_class: type[nn.Module]
    dubio_noise_name: ClassVar[str]
    """Which child is the noise."""

    @property
    def dubio_noise(self) -> InputSource:
        """The noise."""
        noise = self._modules[self.dubio_noise_name]
        assert isinstance(noise, InputSource)
        return noise

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take a plain network's weights, where a checkpoint holds those; the noise stays as it is."""
        noise = self.dubio_noise.state_dict(prefix=f"{prefix}{self.dubio_noise_name}.")
        if noise and not any(key in state_dict for key in noise):
            state_dict.update(noise)
        super()._load_from_state_dict(state_dict, prefix, *args)


class NoisyInput(Noised):
    """A layer with noise on its first input."""

    dubio_noise_name = "input_noise"
    input_noise: InputSource

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The plain layer's output for inputs as this pass sees them."""
        return super().forward(self.input_noise(input), *args, **kwargs)


class NoisyOutput(Noised):
    """A layer with noise on its outputs, which may look at the inputs."""

    dubio_noise_name = "output_noise"
    output_noise: ActivationNoise

    def forward(self, input: Tensor) -> Any:
        """The plain layer's output as this pass sees it."""
        return self.output_noise(super().forward(input), input)


def takes_noise(module: nn.Module) -> bool:
    """Whether noise can be put before a module: linear layers and convolutions."""
    return isinstance(module, (nn.Linear, *CONVOLUTIONS)) and not isinstance(module, UNCALLED)


def channels_of(module: nn.Module) -> tuple[int, int]:
    """How many channels the inputs of a layer have, and on which axis, counted from the last."""
    if isinstance(module, nn.Linear):
        return module.in_features, -1
    assert isinstance(module, CONVOLUTIONS)
    return module.in_channels, -len(module.kernel_size) - 1


def noise_input(module: nn.Module, noise: InputSource) -> None:
    """Put noise before a layer, in place: its class changes, and it gets a child ``input_noise``."""
    _noise(module, noise, NoisyInput)


def noise_output(module: nn.Module, noise: ActivationNoise) -> None:
    """Put noise behind a layer, in place: its class changes, and it gets a child ``output_noise``."""
    _noise(module, noise, NoisyOutput)


def plain_layer(module: nn.Module) -> None:
    """Take the noise off again, in place."""
    assert isinstance(module, Noised)
    del module._modules[module.dubio_noise_name]
    module.__class__ = module.dubio_plain_class  # type: ignore[assignment]


def _noise(module: nn.Module, noise: nn.Module, mixin: type[Noised]) -> None:
    if hasattr(module, mixin.dubio_noise_name):
        raise ValueError(f"cannot convert a {type(module).__name__}: it has an {mixin.dubio_noise_name} of its own")
    module.__class__ = _noised_class(mixin, type(module))
    module.add_module(mixin.dubio_noise_name, noise)


_NOISED_CLASSES: dict[tuple[type[Noised], type[nn.Module]], type[Noised]] = {}


def _noised_class(mixin: type[Noised], plain: type[nn.Module]) -> type[Noised]:
    """The subclass of ``plain`` with noise."""
    if (mixin, plain) not in _NOISED_CLASSES:
        members: dict[str, Any] = {
            "__doc__": f"``{plain.__name__}`` with {mixin.dubio_noise_name}.",
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
            "__reduce_ex__": _reduce_noised,
            "dubio_plain_class": plain,
        }
        _NOISED_CLASSES[mixin, plain] = type(plain.__name__, (mixin, plain), members)
    return _NOISED_CLASSES[mixin, plain]


def _reduce_noised(self: Noised, protocol: Any) -> tuple[Any, ...]:
    """Pickle a class made at run time by what it was made of."""
    return *noised_recipe_of(type(self)), self.__getstate__()


def noised_recipe_of(kind: type[Noised]) -> tuple[Any, tuple[Any, ...]]:
    """What makes an empty module of a class that was made at run time, and of what."""
    return _rebuild_noised, (kind.__mro__[1], kind.dubio_plain_class)


def _rebuild_noised(mixin: type[Noised], plain: type[nn.Module]) -> nn.Module:
    kind = _noised_class(mixin, plain)
    return kind.__new__(kind)


class Masked(nn.Module):
    """What all masked modules share. Names begin with ``dubio_``: the class is mixed into users' own."""

    dubio_unmasked_class: type[nn.Module]
    dubio_masked_names: tuple[str, ...]
    """Which parameters have a mask."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take a plain network's weights, where a checkpoint holds those; what was removed stays removed."""
        for name in self.dubio_masked_names:
            state_dict.setdefault(f"{prefix}{name}{REMOVED}", self._buffers[f"{name}{REMOVED}"])
        super()._load_from_state_dict(state_dict, prefix, *args)


def remove_weights(module: nn.Module, name: str, mask: Bool[Tensor, "*shape"]) -> None:
    """Remove weights of a parameter of a module, in place; those removed before stay so."""
    posterior = posterior_of(module, name)
    if posterior is not None:
        posterior.remove(mask)
        return
    if not isinstance(module, Masked) or name not in module.dubio_masked_names:
        if hasattr(module, f"{name}{REMOVED}"):
            raise ValueError(f"cannot prune a {type(module).__name__}: it has a {name}{REMOVED} of its own")
        _mask(module, name)
    removed, parameter = module._buffers[f"{name}{REMOVED}"], module._parameters[name]
    assert removed is not None
    assert parameter is not None
    with torch.no_grad():
        removed |= mask
        parameter.masked_fill_(removed, 0.0)


def removed_of(module: nn.Module, name: str) -> Bool[Tensor, "*shape"] | None:
    """Which weights of a parameter were removed; None where none was."""
    posterior = posterior_of(module, name)
    if posterior is not None:
        return posterior.removed
    return module._buffers[f"{name}{REMOVED}"] if _is_masked(module, name) else None


def restore_masked(module: nn.Module) -> None:
    """Turn a masked module back into what it was, in place: removed weights are zeros of its parameters."""
    assert isinstance(module, Masked)
    for name in module.dubio_masked_names:
        parameter, value = module._parameters[name], plain_value(module, name)
        assert parameter is not None
        assert value is not None
        parameter.data = value.detach()
        del module._buffers[f"{name}{REMOVED}"]
    module.__class__ = module.dubio_unmasked_class  # type: ignore[assignment]


def masked_tensors(model: nn.Module) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Of each parameter with removed weights its name, its mask's name, and the names of all tensors that it masks."""
    for place, module in model.named_modules():
        prefix = f"{place}." if place else ""
        if isinstance(module, WeightSource) and module.removed is not None:
            own = {**module._parameters, **module._buffers}
            names = [key for key, tensor in own.items() if tensor is not None and tensor.shape == module.mean.shape]
            yield (
                place.removesuffix("_posterior"),
                f"{prefix}removed",
                tuple(f"{prefix}{key}" for key in names if key != "removed"),
            )
        if isinstance(module, Masked):
            for name in module.dubio_masked_names:
                yield f"{prefix}{name}", f"{prefix}{name}{REMOVED}", (f"{prefix}{name}",)


def num_trained(model: nn.Module) -> int:
    """Numbers that training moves: parameters that take gradients, less those of removed weights."""
    total = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    own = {name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter.requires_grad}
    gone = (
        int(model.get_buffer(mask).sum()) * len(own.intersection(names)) for _, mask, names in masked_tensors(model)
    )
    return total - sum(gone)


def _is_masked(module: nn.Module, name: str) -> bool:
    return isinstance(module, Masked) and name in module.dubio_masked_names


def _mask(module: nn.Module, name: str) -> None:
    """Give a parameter a mask that removes nothing yet."""
    names = (*module.dubio_masked_names, name) if isinstance(module, Masked) else (name,)
    base = module.dubio_unmasked_class if isinstance(module, Masked) else type(module)
    parameter = module._parameters[name]
    assert parameter is not None
    module.register_buffer(f"{name}{REMOVED}", torch.zeros_like(parameter, dtype=torch.bool))
    module.__class__ = _masked_class(base, names)


_MASKED_CLASSES: dict[tuple[type[nn.Module], tuple[str, ...]], type[Masked]] = {}


def _masked_class(base: type[nn.Module], names: tuple[str, ...]) -> type[Masked]:
    """The subclass of ``base`` in which ``names`` have masks."""
    if (base, names) not in _MASKED_CLASSES:
        members: dict[str, Any] = {
            "__doc__": f"``{base.__name__}`` with removed weights.",
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__reduce_ex__": _reduce_masked,
            "dubio_unmasked_class": base,
            "dubio_masked_names": names,
            **{name: _property(name) for name in names},
        }
        _MASKED_CLASSES[base, names] = type(base.__name__, (Masked, base), members)
    return _MASKED_CLASSES[base, names]


def _property(name: str) -> property:
    return property(lambda self: plain_value(self, name), doc=f"``{name}``, zero where weights were removed.")


def _reduce_masked(self: Masked, protocol: Any) -> tuple[Any, ...]:
    """Pickle a class made at run time by what it was made of, which may be a class made at run time itself."""
    base = self.dubio_unmasked_class
    if issubclass(base, Noised):
        recipe = noised_recipe_of(base)
    elif issubclass(base, Drawn) and "__reduce_ex__" in vars(base):
        recipe = recipe_of(base)
    else:
        recipe = _empty, (base,)
    return _rebuild_masked, (*recipe, self.dubio_masked_names), self.__getstate__()


def _rebuild_masked(make: Any, parts: tuple[Any, ...], names: tuple[str, ...]) -> nn.Module:
    module: nn.Module = make(*parts)
    module.__class__ = _masked_class(type(module), names)
    return module


def _empty(base: type[nn.Module]) -> nn.Module:
    return base.__new__(base)


BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


RESIZABLE_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Removed:
    """What was removed from a network."""

    weights: tuple[str, ...] = ()
    """Parameters of which some weights were removed."""
    sizes: tuple[tuple[str, int, int], ...] = ()
    """Layers that were cut down, with the inputs and outputs that they have now."""
    units: tuple[tuple[str, int], ...] = ()
    """Layers that lost outputs, with as many as they had at first."""

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in self.weights):
            raise ValueError(f"weights must be names of parameters, got {self.weights!r}")
        if not all(tuple(map(type, size)) == (str, int, int) for size in self.sizes):
            raise ValueError(f"sizes must be names of layers with their inputs and outputs, got {self.sizes!r}")
        if not all(tuple(map(type, own)) == (str, int) for own in self.units):
            raise ValueError(f"units must be names of layers with their first number of outputs, got {self.units!r}")


def removed_from(
    model: nn.Module, shrunk: Sequence[str] = (), units: Mapping[str, int] | None = None
) -> Removed | None:
    """What was removed from a network, where the named layers were cut down; None where nothing was.

    ``units`` tells how many outputs layers had at first.
    """
    weights = tuple(name for name, _, _ in masked_tensors(model))
    found = {name: _sizes(model.get_submodule(name)) for name in sorted(set(shrunk))}
    sizes = tuple((name, *size) for name, size in found.items() if size is not None)
    return Removed(weights, sizes, tuple(sorted((units or {}).items()))) if weights or sizes else None


def rebuild(model: nn.Module, removed: Removed) -> None:
    """Cut a network down, and give it masks that remove nothing yet, so that the tensors of a pruned one fit."""
    for name, inputs, outputs in removed.sizes:
        layer = _part(model, name)
        found = _sizes(layer)
        if found is None or not (0 < inputs <= found[0] and 0 < outputs <= found[1]):
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

    Parameters are other objects afterwards, since theirs is another shape: an optimiser is to be made anew.
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
    """Keep some entries of a parameter along an axis, with all that goes along with it: scales, masks, centres."""
    posterior = posterior_of(layer, name)
    holder = layer if posterior is None else posterior
    whole = layer._parameters.get(name) if posterior is None else posterior.mean
    if whole is None:
        return
    size = whole.shape[axis]
    wanted = {name, f"{name}_removed"} if posterior is None else {*holder._parameters, *holder._buffers}
    for store in (holder._parameters, holder._buffers):
        for key in [key for key in store if key in wanted]:
            tensor = store[key]
            if tensor is None or tensor.dim() <= axis or tensor.shape[axis] != size:
                continue
            part = tensor.detach().index_select(axis, kept.to(tensor.device))
            is_parameter = isinstance(tensor, nn.Parameter)
            store[key] = nn.Parameter(part, requires_grad=tensor.requires_grad) if is_parameter else part  # type: ignore[assignment]


def _sizes(layer: nn.Module) -> tuple[int, int] | None:
    """Inputs and outputs of a layer; None where it is none that can be cut down."""
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
