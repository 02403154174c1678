"""The loss of a batch as compiled code computes it, its metrics, and what a recorded step depends on.

- ``compute`` is what is compiled: the loss of a batch and the sums of its metrics, as plain tensors.
- ``Layout`` stores convolution filters channels last, which GPUs convolve fastest. A network may not support it
  (``x.view(len(x), -1)`` needs contiguous rows), so it is tried first and undone where the trial fails
  (``test_a_network_that_does_not_run_channels_last_is_left_as_it_was``). Filters stay so after training; their values
  are the same, and ``dubio.save`` writes them as usual.
- ``Recording`` is a whole step recorded as a CUDA graph. It reads its batch from buffers and its learning rates from
  the tensors that the optimizer had when it was recorded; both are filled before every replay. It fits while its
  ``circumstances`` (such as the noise mode), the mode of every module and the shapes of the batch are unchanged. It is
  outdated where they differ for several batches, and where ``TensorIdentity`` reports a change.
- ``TensorIdentity`` tells whether parameters, buffers and the state of the optimizer are the tensors that a recording
  reads and writes. A recording addresses memory, so it does not see tensors that were replaced
  (``optimizer.load_state_dict``, ``load_state_dict(assign=True)``, ``parameter.data = ...``), and their former memory
  may be in use elsewhere. The check compares objects and addresses; it takes about ten microseconds for an MLP and
  fifty for a ResNet.
- ``Shapes`` chooses the shape of batches that is compiled and recorded: the first one, until another one comes several
  times in a row. A short last batch runs eagerly; data whose shape keeps changing are not compiled for each shape.

Invariants: ``tests/training/test_layout.py``, ``test_recording.py`` and ``test_replaying.py``, and ``test_captured.py``
on a GPU.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from dubio import functional
from dubio._engine import (
    Buffers,
    Captured,
    Inputs,
    arguments,
    channels_last,
    image_channels,
    is_faster_channels_last,
    isolated,
    signature,
)
from dubio.likelihoods import match_shape
from dubio.objectives import BatchContext, Loss
from dubio.training.optimizers import match_layouts

F = TypeVar("F", bound=Callable[..., Any])
BACKEND = "inductor"
"""Backend of ``torch.compile``."""
OTHERS_TO_CHANGE = 4
"""Consecutive batches of another shape after which that shape is chosen."""
MOST_CHANGES = 2
"""How many times the chosen shape may change."""
MIN_BATCHES = 8
"""Batches after which ``Shapes.differ`` may be true."""


class Place(NamedTuple):
    """The place of a batch in a run, which an objective may need."""

    batch_index: int | Tensor | None = None
    num_batches: int | None = None
    epoch: float | Tensor | None = None
    num_parts: int = 1


class StepResult(NamedTuple):
    """What a step leaves; the next step may overwrite its tensors."""

    loss: Loss
    sums: Tensor | None
    """The ``metric_sums`` of the loss, where compiled code has computed them."""


def in_tensors(place: Place, device: torch.device) -> Place:
    """Convert numbers that change from batch to batch to tensors: a compiler treats plain numbers as constants."""
    index, epoch = (
        # ``full`` fills on the device: copying a number to a GPU would wait for it.
        value if value is None or isinstance(value, Tensor) else torch.full((), float(value), device=device)
        for value in (place.batch_index, place.epoch)
    )
    return place._replace(batch_index=index, epoch=epoch)


def metric_names(loss: Loss) -> tuple[str, ...]:
    """Names of the metrics of a loss."""
    return ("loss", "nll", *loss.terms, *(() if loss.log_probs is None else ("accuracy",)))


def metric_sums(loss: Loss, targets: Tensor) -> Tensor:
    """The number of examples, and for each of ``metric_names`` its sum over them; float64."""
    values = [loss.total, loss.nll, *loss.terms.values()]
    if loss.log_probs is not None:
        labels = functional.uncertainty.predictive_log_probs(loss.log_probs).argmax(dim=-1)
        values.append((labels == match_shape(targets, labels.shape)).float().mean())
    return torch.stack([torch.ones_like(values[0]), *values]).detach().double() * len(targets)


def compute(
    loss_of: Callable[[BatchContext], Loss], batch: BatchContext
) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor | None, Tensor]:
    """Loss and metrics of a batch, as plain tensors."""
    loss = loss_of(batch)
    return loss.total, loss.nll, loss.terms, loss.log_probs, metric_sums(loss, batch.targets)


def compiled(function: Any, device: torch.device) -> Any:
    """Compile a function for the shapes of its first call."""
    # On a CPU, compiled random numbers are slower than those of torch, and different.
    draws_slowly = BACKEND == "inductor" and device.type == "cpu"
    options: Any = {"fallback_random": True} if draws_slowly else None
    # A copy, since torch limits how often one function is compiled in a process.
    copy = FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)
    copy.__kwdefaults__, copy.__defaults__ = function.__kwdefaults__, function.__defaults__
    return torch.compile(copy, dynamic=False, fullgraph=True, backend=BACKEND, options=options)


def first_line(error: Exception) -> str:
    """The class of an error and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


class Layout:
    """The memory layout of a network's parameters: filters channels last where that is faster and supported.

    Args:
        model: the network.
        optimizer: its optimizer, whose state has the layout of the parameters.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._is_tried = False
        self._before: list[tuple[nn.Parameter, Tensor]] = []
        self._channels: set[int] = set()
        self.identity = TensorIdentity(model, optimizer)
        """Where this object left parameters and buffers: a recording uses no others."""

    @property
    def is_last(self) -> bool:
        """Whether filters lie channels last."""
        return bool(self._before)

    def lay_out(self, inputs: Inputs) -> None:
        """Lay out filters after a trial with a batch; later calls change nothing."""
        if self._is_tried:
            return
        leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        if leaves and is_faster_channels_last(leaves[0].device):
            self._try_out(inputs)
        self._update_identity()
        self._is_tried = True

    def of(self, values: Any) -> Any:
        """Lay out those values that are images: their number of channels is that of some convolution."""
        return channels_last(values, self._channels) if self.is_last else values

    def undo(self) -> None:
        """Restore the former layout of the filters."""
        if self.is_last:
            for filters, values in self._before:
                filters.data = values.copy_(filters.data)
            self._before = []
            self._update_identity()

    def _try_out(self, inputs: Inputs) -> None:
        convolutions = [module for module in self._model.modules() if isinstance(module, nn.Conv2d)]
        self._channels = image_channels(self._model)
        runs = False
        try:
            for filters in dict.fromkeys(each for module in convolutions for each in module.parameters()):
                if not is_lazy(filters) and filters.dim() == 4:
                    self._before.append((filters, filters.data))
                    filters.data = filters.data.to(memory_format=torch.channels_last)
            runs = self.is_last and _runs(self._model, self.of(inputs))
        finally:
            if not runs:
                self.undo()

    def _update_identity(self) -> None:
        match_layouts(self._optimizer)
        self.identity = TensorIdentity(self._model, self._optimizer)


def _runs(model: nn.Module, inputs: Inputs) -> bool:
    args, kwargs = arguments(inputs)
    try:
        # A fresh draw: not every network has a mean or can be frozen.
        with torch.no_grad(), isolated(model, trial=True):
            model(*args, **kwargs)
    except Exception:  # an error of the network, or of the layout
        return False
    return True


class Recording:
    """A step for batches of one shape, under fixed circumstances.

    Args:
        work: the whole step, a function of the tensors of a batch.
        values: the tensors of the first batch; later batches are copied into copies of them.
        circumstances: what the step depends on besides its tensors.
        model: the network that is trained.
        optimizer: its optimizer, whose learning rates are tensors on the device.
        device: the GPU.
    """

    def __init__(
        self,
        work: Callable[..., StepResult],
        values: tuple[Any, ...],
        circumstances: tuple[Any, ...],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
    ) -> None:
        self._buffers = buffers = Buffers(values)
        self.captured = Captured(lambda: work(*buffers.values), device)  # without self: a cycle would delay its end
        self._circumstances, self._model, self._optimizer = circumstances, model, optimizer
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._identity = TensorIdentity(model, optimizer)
        self._num_misfits = 0
        self._gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        self.replaced = ""
        """Name of a tensor that the eager step replaces each time. A replay does not, so it must not be used."""

    @property
    def is_ready(self) -> bool:
        """Whether the next step is a replay."""
        return self.captured.is_ready

    @property
    def is_outdated(self) -> bool:
        """Whether another recording should take its place."""
        return self.is_ready and (self._num_misfits >= OTHERS_TO_CHANGE or bool(self._identity.moved))

    def fits(self, values: tuple[Any, ...], circumstances: tuple[Any, ...]) -> bool:
        """Whether the recording can process a batch."""
        is_alike = signature(values) == self._buffers.signature and circumstances == self._circumstances
        fits = is_alike and self._identity.has_same_modes
        self._num_misfits = 0 if fits else self._num_misfits + 1
        return fits

    def read(self, values: tuple[Any, ...]) -> None:
        """Copy a batch that fits, and the present learning rates."""
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if group["lr"] is not rate:  # the recording reads the tensor that it was recorded with
                group["lr"] = rate.copy_(group["lr"]) if isinstance(group["lr"], Tensor) else rate.fill_(group["lr"])
        self._buffers.copy(values)

    def __call__(self) -> StepResult:
        """Take a step with the batch that was read; the next call overwrites the result."""
        if self.is_ready:
            for parameter, gradient in self._gradients:  # an eager step in between may have replaced them
                if parameter.grad is not gradient:
                    parameter.grad = gradient
            return self.captured()
        before = TensorIdentity(self._model, self._optimizer)
        result = self.captured()
        if self.is_ready:
            self.replaced = before.moved
            self._identity = TensorIdentity(self._model, self._optimizer)
            trained = (parameter for group in self._optimizer.param_groups for parameter in group["params"])
            self._gradients = [(parameter, parameter.grad) for parameter in trained]
        return result


class TensorIdentity:
    """The tensors of a network and its optimizer at the time of construction.

    Args:
        model: the network.
        optimizer: its optimizer, with its state.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self._state = optimizer, optimizer.state
        self._groups = list(optimizer.param_groups)
        self._modes = [(module, module.training) for module in model.modules()]
        self._entries: list[tuple[dict[Any, Any], Any, Any, str]] = []
        for path, module in model.named_modules():
            for holder in (module._parameters, module._buffers, module._modules):
                self._entries += [(holder, name, value, f"{path}.{name}".lstrip(".")) for name, value in holder.items()]
        self._tensors = [
            (value, value.data_ptr(), value.stride(), value.requires_grad, label)
            for _, _, value, label in self._entries
            if isinstance(value, Tensor) and not is_lazy(value) and value.layout == torch.strided
        ]
        for values in optimizer.state.values():
            self._entries += [(values, name, value, f"the optimizer's {name}") for name, value in values.items()]

    @property
    def has_same_modes(self) -> bool:
        """Whether every module is in the mode, training or eval, that it was in."""
        return all(module.training is mode for module, mode in self._modes)

    @property
    def moved(self) -> str:
        """Name of a tensor that was moved, replaced, frozen or unfrozen; empty where there is none."""
        groups = self._optimizer.param_groups
        if self._optimizer.state is not self._state or len(groups) != len(self._groups):
            return "the optimizer's state"
        if any(group is not former for group, former in zip(groups, self._groups, strict=True)):
            return "a group of the optimizer"
        for holder, name, value, label in self._entries:
            if holder.get(name) is not value:
                return label
        for tensor, address, strides, is_trained, label in self._tensors:
            if tensor.data_ptr() != address or tensor.stride() != strides or tensor.requires_grad is not is_trained:
                return label
        return ""


class Shapes:
    """The chosen shape of batches, and how many batches have it."""

    def __init__(self) -> None:
        self.chosen: tuple[Any, ...] | None = None
        self._num_others = self._num_changes = self._num_fitting = self._num_seen = 0

    @property
    def differ(self) -> bool:
        """Whether most batches have another shape than the chosen one."""
        return self._num_seen >= MIN_BATCHES and 2 * self._num_fitting < self._num_seen

    def notice(self, shape: tuple[Any, ...]) -> bool:
        """Count a batch; return whether its shape becomes the chosen one."""
        self._num_seen += 1
        if shape == self.chosen:
            self._num_fitting += 1
            self._num_others = 0
            return False
        self._num_others += 1
        if self.chosen is not None:
            if self._num_others < OTHERS_TO_CHANGE or self._num_changes == MOST_CHANGES:
                return False
            self._num_changes += 1
        self.chosen, self._num_others = shape, 0
        return True
