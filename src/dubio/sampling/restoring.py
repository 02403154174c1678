"""What a run changes on a network, put back afterwards, or set to what it was when the run began.

A forward may move buffers (running statistics, the vectors of a spectral norm), keep tensors as attributes, rescale
rows of an embedding and use generators. ``unchanged`` undoes all of it and tells which tensors moved; ``Beginning``
remembers these few, so that a run can be done again from where it began without moving anything a second time.
``Standing`` puts them back after a run that failed.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dubio.sampling.outside import Outside

__all__ = ["Beginning", "Standing", "statistics_of", "unchanged"]

MOST_STATISTICS = 2**20
"""Bytes of a buffer up to which it is taken for a statistic that training moves."""


@contextmanager
def unchanged(model: nn.Module) -> Iterator[list[tuple[str, str]]]:
    """Put back what a run may change: buffers, tensors kept as attributes, rows that an embedding rescales, generators.

    Gives a list that names, in the end, module and name of every tensor that the run has changed. Raises where a module
    keeps a mapped tensor, which would be dead once the map is over.
    """
    before = [(path, module, _tensors_on(module)) for path, module in model.named_modules()]
    values = [
        {name: tensor.clone() for name, tensor in module._buffers.items() if tensor is not None}
        for _, module, _ in before
    ]
    rescaled = [
        (parameter, parameter.detach().clone())
        for module in model.modules()
        if getattr(module, "max_norm", None) is not None
        for parameter in module.parameters()
    ]
    keeper, outside = None, Outside(model)
    moved: list[tuple[str, str]] = []
    with torch.random.fork_rng(devices=_cuda_devices(model)):
        try:
            yield moved
        finally:
            outside.put_back()
            for (path, module, tensors), saved in zip(before, values, strict=True):
                if any(torch._C._functorch.is_batchedtensor(tensor) for _, tensor in _tensors_on(module).values()):
                    keeper = keeper or module
                moved += [(path, name) for name in _put_back(module, tensors, saved)]
            with torch.no_grad():
                for parameter, value in rescaled:
                    parameter.copy_(value)
    if keeper is not None:
        raise RuntimeError(f"a {type(keeper).__name__} keeps a tensor of the forward on itself")


class Standing:
    """What some tensors on a network hold, such as running statistics; ``moving`` names module and tensor of each.

    It does not refer to the network, so that it may be kept beside it.
    """

    def __init__(self, model: nn.Module, moving: Collection[tuple[str, str]]) -> None:
        places = [(path, name, _holder(model.get_submodule(path), name)) for path, name in moving]
        self._tensors = [(path, name, holder[name]) for path, name, holder in places if holder is not None]
        self._values = [tensor.detach().clone() for _, _, tensor in self._tensors]

    def put_back(self, model: nn.Module) -> None:
        """Undo what a run has moved since."""
        for (path, name, tensor), value in zip(self._tensors, self._values, strict=True):
            tensor.data.copy_(value)  # graphs of other runs may keep it, and need not mind
            holder = _holder(model.get_submodule(path), name)
            if holder is not None:
                holder[name] = tensor


class Beginning:
    """What a run of a network begins with: modes, generators, and the tensors that it moves."""

    def __init__(self, model: nn.Module, moving: Collection[tuple[str, str]]) -> None:
        self._model = model
        self._training = [module.training for module in model.modules()]
        self._devices = _cuda_devices(model)
        self._outside = Outside(model)
        self._generators = torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in self._devices]
        places = [(_holder(model.get_submodule(path), name), name) for path, name in moving]
        self._tensors = [(holder, name) for holder, name in places if holder is not None]
        self._values = [holder[name].detach().clone() for holder, name in self._tensors]

    @contextmanager
    def again(self) -> Iterator[None]:
        """The network as it was, for a run that leaves no trace."""
        modules = list(self._model.modules())
        training = [module.training for module in modules]
        now, outside = [holder[name] for holder, name in self._tensors], Outside(self._model)
        with torch.random.fork_rng(devices=self._devices):
            torch.set_rng_state(self._generators[0])
            for device, state in zip(self._devices, self._generators[1], strict=True):
                torch.cuda.set_rng_state(state, device)
            self._outside.put_back()
            self._set(self._training, [value.clone() for value in self._values])
            try:
                yield
            finally:
                self._set(training, now)
                outside.put_back()

    def _set(self, training: Collection[bool], tensors: Collection[Tensor]) -> None:
        for module, mode in zip(self._model.modules(), training, strict=True):
            module.training = mode
        for (holder, name), tensor in zip(self._tensors, tensors, strict=True):
            holder[name] = tensor


def statistics_of(model: nn.Module) -> tuple[tuple[str, str], ...]:
    """Buffers that a forward may move, where no trial tells: small dense ones, of modules in training mode."""
    return tuple(
        (path, name)
        for path, module in model.named_modules()
        if module.training
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.layout == torch.strided and buffer.nbytes <= MOST_STATISTICS
    )


def _holder(module: nn.Module, name: str) -> dict[str, Any] | None:
    """Where a module keeps a tensor of this name, if it does; one that a map has left there is dead."""
    holders: tuple[dict[str, Any], ...] = (module._buffers, module.__dict__)
    found = next((holder for holder in holders if isinstance(holder.get(name), Tensor)), None)
    return None if found is None or torch._C._functorch.is_batchedtensor(found[name]) else found


def _cuda_devices(model: nn.Module) -> list[int]:
    return sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})


def _tensors_on(module: nn.Module) -> dict[str, tuple[dict[str, Any], Tensor]]:
    """Buffers of a module and tensors among its attributes, with what holds each."""
    holders: tuple[dict[str, Any], ...] = (module.__dict__, module._buffers)
    return {name: (holder, value) for holder in holders for name, value in holder.items() if isinstance(value, Tensor)}


def _put_back(
    module: nn.Module, tensors: dict[str, tuple[dict[str, Any], Tensor]], values: dict[str, Tensor]
) -> list[str]:
    """The names of what had changed."""
    moved = [name for name, (holder, tensor) in tensors.items() if holder.get(name) is not tensor]
    for name, (holder, tensor) in tensors.items():
        holder[name] = tensor
    with torch.no_grad():
        for name, value in values.items():
            buffer = module._buffers[name]
            assert buffer is not None
            if name not in moved and not buffer.is_meta and not torch.equal(buffer, value):
                moved.append(name)
            buffer.copy_(value)
    return moved
