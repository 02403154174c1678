"""Modules whose parameters are drawn, whatever they compute.

A drawn module is an instance of a subclass of its plain class in which some parameters have become properties: read
inside a pass, ``module.weight`` is the draw of its posterior, so the plain class's own ``forward`` computes with drawn
weights and nothing needs to be written again. This holds for every module that reads its parameters as attributes,
torch's and a user's own; which parameters are drawn is part of the class.

Invariants: with noise off the plain forward runs on the means, so outputs are bitwise those of the source network where
no rule at the leaf is needed; a module changes its class and back without moving a tensor.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from dubio._engine import Estimator, detach, outside_passes
from dubio.layers.posterior import GaussianPosterior, WeightSource

__all__ = [
    "Drawn",
    "draw_parameters",
    "drawn_class",
    "drawn_names",
    "drawn_property",
    "gaussian_of",
    "plain_value",
    "posterior_of",
    "restore_parameters",
]


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
