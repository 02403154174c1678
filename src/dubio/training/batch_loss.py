"""What is computed in a step of training: the loss of a batch, as it is or compiled, its metrics, layouts of images.

How images and filters lie in memory: GPUs convolve them fastest channels last.

A network may not take it: ``x.view(len(x), -1)`` wants its rows in one piece. So it is tried, and everything is put
back where it was if that fails (``test_a_network_that_does_not_run_channels_last_is_left_as_it_was``). After training,
filters stay so: their values are the same, and ``dubio.save`` writes them as ever.

A whole step of training, recorded as a CUDA graph: the tensors that it reads, and what it holds for.

A recording reads its batch from buffers and its learning rates from the tensors that the optimiser had then; both are
filled anew before every replay. What else it depends on, such as the mode of noise, is told as ``circumstances``: while
these are others, some module is in another mode, or the batch has another shape, it does not fit. It is outdated where
that lasts, and where parameters, buffers or the optimiser's state are no longer those that it reads and writes.

Invariants: ``tests/training/test_recording.py`` and ``test_replaying.py``, and ``test_captured.py`` on a GPU.

Whether the tensors that a recording reads and writes are where they were.

A recording knows parameters, buffers and what the optimiser keeps by their addresses. Whoever puts another tensor in
such a place (``optimizer.load_state_dict``, ``load_state_dict(assign=True)``, ``parameter.data = ...``) is not seen by
it, and what it goes on writing to may be somebody else's by then. So a ``Holding`` is asked before every replay; it
compares objects and addresses alone, some ten microseconds for an MLP, and fifty for a ResNet.

Which shape of batches is compiled and recorded: the first, unless another one comes again and again.

A short last batch runs as it is. A run that is taken up just before one must not take it for the rule, and data of ever
other shapes must not be compiled for each of them.
"""

import inspect
import warnings
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from dubio import functional
from dubio._engine import (
    Buffers,
    Captured,
    Inputs,
    Precision,
    arguments,
    as_it_is,
    channels_last,
    computing_in,
    image_channels,
    is_faster_channels_last,
    signature,
    unchanged,
)
from dubio.data import Batch
from dubio.likelihoods import match_shape
from dubio.objectives import Loss, Objective
from dubio.training.optimizers import match_layouts

if TYPE_CHECKING:
    from dubio.attacks import Attack


F = TypeVar("F", bound=Callable[..., Any])


BACKEND = "inductor"
"""What compiles."""


@runtime_checkable
class Attacking(Protocol):
    """An objective that attacks the inputs first: a part of the step that a compiler cannot follow as a whole."""

    @property
    def attack(self) -> "Attack":
        """How it does."""

    def attack_inputs(self, model: nn.Module, inputs: Any, targets: Tensor, through: Any) -> Tensor:
        """The inputs, attacked."""


class Place(NamedTuple):
    """Where in a run a batch stands; what an objective may ask for."""

    batch_index: int | Tensor | None = None
    num_batches: int | None = None
    epoch: float | Tensor | None = None
    num_parts: int = 1


class Learned(NamedTuple):
    """What came of a batch. Replays overwrite the tensors: read them before the next step, or copy them."""

    loss: Loss
    sums: Tensor
    """Number of examples, and for each metric of ``Step.names`` its sum over them; float64."""


class BatchLoss:
    """The loss of a batch and the sums of its metrics; what was compiled is kept for the next batch.

    Args:
        model: a network, on its device.
        objective: what is minimised; one that attacks the inputs does so first.
        precision: of the network alone.
    """

    def __init__(self, model: nn.Module, objective: Objective, precision: Precision) -> None:
        self.model, self.objective, self.precision = model, objective, precision
        self.device = next(model.parameters()).device
        self.names: tuple[str, ...] = ()
        """Metrics whose sums follow the number of examples."""
        self._takes_parts = "num_parts" in inspect.signature(objective).parameters
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}

    def eager(self, batch: Batch, place: Place, num_samples: int) -> tuple[Loss, Tensor]:
        """Computed as it is."""
        return self._computed(as_it_is, batch, place, num_samples)

    def compiled(self, batch: Batch, place: Place, num_samples: int) -> tuple[Loss, Tensor]:
        """Computed by compiled code; raises what the compiler says where it gives up."""
        with warnings.catch_warnings():  # what the compiler says of itself is nothing that a user could act on
            warnings.filterwarnings("ignore", module=r"torch\._(inductor|dynamo|functorch)")
            return self._computed(self.through, batch, self.in_tensors(place), num_samples)

    def through(self, function: F) -> F:
        """A function compiled, the first time it is asked for."""
        if function not in self._compiled:
            self._compiled[function] = compiled(function, BACKEND, self.device)
        return cast(F, self._compiled[function])

    def forget(self) -> None:
        """Let go of what was compiled."""
        self._compiled.clear()

    def in_tensors(self, place: Place) -> Place:
        """Numbers that change from batch to batch, as tensors: a compiler would take plain ones for constants."""
        changing = (place.batch_index, place.epoch)
        index, epoch = (
            # Filled there: a number that is copied to a GPU would wait for it.
            value if value is None or isinstance(value, Tensor) else torch.full((), float(value), device=self.device)
            for value in changing
        )
        return Place(index, place.num_batches, epoch, place.num_parts)

    def _computed(
        self, through: Callable[[Any], Any], batch: Batch, place: Place, num_samples: int
    ) -> tuple[Loss, Tensor]:
        with computing_in(self.precision, self.device):
            attacked = None
            if isinstance(self.objective, Attacking):
                attacked = self.objective.attack_inputs(self.model, batch.inputs, batch.targets, through)
            place = place if self._takes_parts else place._replace(num_parts=1)
            given = (batch.inputs, batch.targets, batch.weight)
            found = through(compute)(self.objective, self.model, *given, num_samples, *place, attacked)
        total, nll, terms, log_probs, sums = found
        self.names = ("loss", "nll", *terms, *(() if log_probs is None else ("accuracy",)))
        return Loss(total, nll, terms, log_probs), sums


def without_graph(loss: Loss) -> Loss:
    """A loss that keeps nothing alive."""
    terms = {name: term.detach() for name, term in loss.terms.items()}
    return Loss(loss.total.detach(), loss.nll.detach(), terms, loss.log_probs)


def compute(
    objective: Any,
    model: nn.Module,
    inputs: Any,
    targets: Tensor,
    weight: Tensor | None,
    num_samples: int,
    batch_index: Tensor | int | None,
    num_batches: int | None,
    epoch: Tensor | float | None,
    num_parts: int,
    attacked: Tensor | None,
) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor | None, Tensor]:
    """Loss and metrics of a batch, as plain tensors."""
    more: dict[str, Any] = {} if attacked is None else {"attacked": attacked}
    if num_parts > 1:
        more["num_parts"] = num_parts
    loss = objective(
        model,
        inputs,
        targets,
        num_samples,
        sample_weight=weight,
        batch_index=batch_index,
        num_batches=num_batches,
        epoch=epoch,
        **more,
    )
    values = [loss.total, loss.nll, *loss.terms.values()]
    if loss.log_probs is not None:
        labels = functional.uncertainty.predictive_log_probs(loss.log_probs).argmax(dim=-1)
        values.append((labels == match_shape(targets, labels.shape)).float().mean())
    ones = torch.ones_like(values[0])
    metrics = torch.stack([ones, *values]).detach().double()
    return loss.total, loss.nll, loss.terms, loss.log_probs, metrics * len(targets)


def compiled(function: Any, backend: str, device: torch.device) -> Any:
    """A function compiled for the shapes it is first called with."""
    # On a CPU, compiled random numbers are slower than torch's own, and other ones.
    own_numbers = backend == "inductor" and device.type == "cpu"
    options: Any = {"fallback_random": True} if own_numbers else None
    # Of a copy: torch compiles a function for few networks only, and counts them over the whole process.
    copy = FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)
    copy.__kwdefaults__, copy.__defaults__ = function.__kwdefaults__, function.__defaults__
    return torch.compile(copy, dynamic=False, fullgraph=True, backend=backend, options=options)


def first_line(error: Exception) -> str:
    """Kind of an error, and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


class Layout:
    """Where the parameters of a network lie, and how: filters channels last, where that is faster and it runs so.

    Args:
        model: the network.
        optimizer: whose state lies as the parameters do.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._is_tried = False
        self._before: list[tuple[nn.Parameter, Tensor]] = []
        self._channels: set[int] = set()
        self._places = _places(model)

    @property
    def is_last(self) -> bool:
        """Whether filters lie channels last."""
        return bool(self._before)

    @property
    def is_in_place(self) -> bool:
        """Whether parameters and buffers are where they were left: a recording knows no others."""
        return self._places == _places(self._model)

    def lay_out(self, inputs: Inputs) -> None:
        """Lay out filters, tried with a batch; from the second time on, leave all as it is."""
        if self._is_tried:
            return
        leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        if leaves and is_faster_channels_last(leaves[0].device):
            self._try_out(inputs)
        self._take_places()
        self._is_tried = True

    def of(self, values: Any) -> Any:
        """Values laid out likewise, where they are images: have as many channels as some convolution takes."""
        return channels_last(values, self._channels) if self.is_last else values

    def undo(self) -> None:
        """Lay filters out as they were."""
        if self.is_last:
            for filters, values in self._before:
                filters.data = values.copy_(filters.data)
            self._before = []
            self._take_places()

    def _try_out(self, inputs: Inputs) -> None:
        convolutions = [module for module in self._model.modules() if isinstance(module, nn.Conv2d)]
        self._channels = image_channels(self._model)
        runs = False
        try:
            for filters in {id(each): each for module in convolutions for each in module.parameters()}.values():
                if not is_lazy(filters) and filters.dim() == 4:
                    self._before.append((filters, filters.data))
                    filters.data = filters.data.to(memory_format=torch.channels_last)
            runs = bool(self._before) and _runs(self._model, self.of(inputs))
        finally:
            if not runs:
                self.undo()

    def _take_places(self) -> None:
        """Go by where parameters are now."""
        match_layouts(self._optimizer)
        self._places = _places(self._model)


def _places(model: nn.Module) -> tuple[tuple[Any, ...], ...]:
    """Where parameters and buffers are and how they lie, and which are trained."""
    return tuple((*_place(tensor), tensor.requires_grad) for tensor in (*model.parameters(), *model.buffers()))


def _place(tensor: Tensor) -> tuple[Any, ...]:
    try:
        return tensor.data_ptr(), tensor.stride(), tensor.dtype
    except RuntimeError:  # a sparse one, for which the object must do
        return (id(tensor),)


def _runs(model: nn.Module, inputs: Inputs) -> bool:
    args, kwargs = arguments(inputs)
    try:
        with torch.no_grad(), unchanged(model):  # a fresh draw: not all have a mean network, or can be frozen
            model(*args, **kwargs)
    except Exception:  # its own fault, or that of the layout
        return False
    return True


class Recording:
    """A step for batches of one shape, under circumstances that stay.

    Args:
        work: the whole step, from the tensors of a batch to what came of it.
        values: the tensors of a first batch; those of all further ones are copied to where copies of these are.
        circumstances: what the step depends on beside its tensors.
        model: the network that learns.
        optimizer: what updates it, whose learning rates are tensors on the device.
        device: the GPU.
    """

    def __init__(
        self,
        work: Callable[..., tuple[Loss, Tensor]],
        values: tuple[Any, ...],
        circumstances: tuple[Any, ...],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
    ) -> None:
        self._buffers = buffers = Buffers(values)
        self._captured = Captured(lambda: work(*buffers.values), device)  # not of self: a circle would outlive us
        self._circumstances, self._model, self._optimizer = circumstances, model, optimizer
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._holding = Holding(model, optimizer)
        self._num_misfits = 0
        self._gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        self.replaced = ""
        """What the step puts another tensor in place of every time, as a replay does not: then it must not be used."""

    @property
    def is_ready(self) -> bool:
        """Whether the next step is a replay."""
        return self._captured.is_ready

    @property
    def seconds(self) -> float:
        """How long warming up and recording took, since it was last forgotten."""
        return self._captured.seconds

    def forget_seconds(self) -> None:
        """Count them from here on."""
        self._captured.seconds = 0.0

    @property
    def is_outdated(self) -> bool:
        """Whether another recording should take its place."""
        return self.is_ready and (self._num_misfits >= OTHERS_TO_CHANGE or bool(self._holding.moved))

    def fits(self, values: tuple[Any, ...], circumstances: tuple[Any, ...]) -> bool:
        """Whether a batch can be learned from by it."""
        is_alike = signature(values) == self._buffers.signature and circumstances == self._circumstances
        fits = is_alike and self._holding.has_same_modes
        self._num_misfits = 0 if fits else self._num_misfits + 1
        return fits

    def read(self, values: tuple[Any, ...]) -> None:
        """Take over a batch that fits, and the present learning rates."""
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if group["lr"] is not rate:  # somebody has set another: the recording reads the one it knows
                group["lr"] = rate.copy_(group["lr"]) if isinstance(group["lr"], Tensor) else rate.fill_(group["lr"])
        self._buffers.copy(values)

    def __call__(self) -> tuple[Loss, Tensor]:
        """Learn from the batch that was read; the next call overwrites what is given."""
        if self.is_ready:
            self._put_gradients_back()
            return self._captured()
        before = Holding(self._model, self._optimizer)
        found = self._captured()
        if self.is_ready:
            self.replaced = before.moved
            self._holding = Holding(self._model, self._optimizer)
            trained = (parameter for group in self._optimizer.param_groups for parameter in group["params"])
            self._gradients = [(parameter, parameter.grad) for parameter in trained]
        return found

    def _put_gradients_back(self) -> None:
        """Let parameters have the gradients that replays write, also after a batch that was learned from otherwise."""
        for parameter, gradient in self._gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient


def unheld(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that does not keep its object alive, as a recording of it would that the object holds itself."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        present = reference()
        assert present is not None
        return present(*args)

    return call


class Holding:
    """The tensors of a network and its optimiser as they are when this is made.

    Args:
        model: the network.
        optimizer: what updates it, with all that it keeps.
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
            (value, value.data_ptr(), value.requires_grad, label)
            for _, _, value, label in self._entries
            if isinstance(value, Tensor) and not is_lazy(value) and value.layout == torch.strided
        ]
        for values in optimizer.state.values():
            self._entries += [(values, name, value, f"the optimiser's {name}") for name, value in values.items()]

    @property
    def has_same_modes(self) -> bool:
        """Whether every module is in training or in eval mode, as it was."""
        return all(module.training is mode for module, mode in self._modes)

    @property
    def moved(self) -> str:
        """The name of something that is not where it was, or is not trained as it was; nothing where all is."""
        optimizer = self._optimizer
        groups = optimizer.param_groups
        if optimizer.state is not self._state or len(groups) != len(self._groups):
            return "what the optimiser keeps"
        if any(group is not known for group, known in zip(groups, self._groups, strict=True)):
            return "a group of the optimiser"
        for holder, name, value, label in self._entries:
            if holder.get(name) is not value:
                return label
        for tensor, place, is_trained, label in self._tensors:
            if tensor.data_ptr() != place or tensor.requires_grad is not is_trained:
                return label
        return ""


OTHERS_TO_CHANGE = 4
"""Batches of another shape in a row after which that one is chosen."""


MOST_CHANGES = 2
"""How often that may happen."""


ENOUGH = 8
"""Batches after which it can be said whether they have one shape."""


class Shapes:
    """The shape that was chosen, and how batches compare with it."""

    def __init__(self) -> None:
        self.chosen: tuple[Any, ...] | None = None
        self._num_others = 0
        self._num_changes = 0
        self._num_fitting = 0
        self._num_noticed = 0

    @property
    def differ(self) -> bool:
        """Whether most batches have another shape than the chosen one."""
        return self._num_noticed >= ENOUGH and 2 * self._num_fitting < self._num_noticed

    def notice(self, shape: tuple[Any, ...]) -> bool:
        """Take note of a batch; whether another shape is chosen from now on."""
        self._num_noticed += 1
        if shape == self.chosen:
            self._num_fitting += 1
            self._num_others = 0
            return False
        self._num_others += 1
        if self.chosen is None:
            self.chosen = shape
            self._num_others = 0
            return True
        if self._num_others < OTHERS_TO_CHANGE or self._num_changes == MOST_CHANGES:
            return False
        self.chosen, self._num_others = shape, 0
        self._num_changes += 1
        return True
