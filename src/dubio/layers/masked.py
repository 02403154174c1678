"""Parameters that are not drawn and of which some weights were removed.

A masked module is an instance of a subclass of its class in which such parameters have become properties: they read as
the parameter, zero where the buffer ``weight_removed`` says so. The parameter keeps its name and its place, gets no
gradient where weights were removed, and what a plain checkpoint holds there is not seen.

A distribution of weights has a mask of its own (``WeightSource.removed``); ``remove_weights`` and ``removed_of`` do not
ask which of the two a parameter is.

Invariants: removed weights are zero whatever an optimiser, a checkpoint or a user does to the parameter
(``tests/layers/test_masked.py``); a module changes its class and back without moving a tensor.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from dubio.layers import drawn, noised
from dubio.layers.drawn import REMOVED, Drawn, plain_value, posterior_of
from dubio.layers.noised import Noised
from dubio.layers.posterior import WeightSource

__all__ = ["Masked", "masked_tensors", "num_trained", "remove_weights", "removed_of", "restore_masked"]


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


_CLASSES: dict[tuple[type[nn.Module], tuple[str, ...]], type[Masked]] = {}


def _masked_class(base: type[nn.Module], names: tuple[str, ...]) -> type[Masked]:
    """The subclass of ``base`` in which ``names`` have masks."""
    if (base, names) not in _CLASSES:
        members: dict[str, Any] = {
            "__doc__": f"``{base.__name__}`` with removed weights.",
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__reduce_ex__": _reduce,
            "dubio_unmasked_class": base,
            "dubio_masked_names": names,
            **{name: _property(name) for name in names},
        }
        _CLASSES[base, names] = type(base.__name__, (Masked, base), members)
    return _CLASSES[base, names]


def _property(name: str) -> property:
    return property(lambda self: plain_value(self, name), doc=f"``{name}``, zero where weights were removed.")


def _reduce(self: Masked, protocol: Any) -> tuple[Any, ...]:
    """Pickle a class made at run time by what it was made of, which may be a class made at run time itself."""
    base = self.dubio_unmasked_class
    if issubclass(base, Noised):
        recipe = noised.recipe_of(base)
    elif issubclass(base, Drawn) and "__reduce_ex__" in vars(base):
        recipe = drawn.recipe_of(base)
    else:
        recipe = _empty, (base,)
    return _rebuild, (*recipe, self.dubio_masked_names), self.__getstate__()


def _rebuild(make: Any, parts: tuple[Any, ...], names: tuple[str, ...]) -> nn.Module:
    module: nn.Module = make(*parts)
    module.__class__ = _masked_class(type(module), names)
    return module


def _empty(base: type[nn.Module]) -> nn.Module:
    return base.__new__(base)
