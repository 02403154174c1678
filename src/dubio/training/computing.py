"""What is computed in a step of training: the loss of a batch, as it is or compiled, its metrics, layouts of images."""

import inspect
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Precision, as_it_is, computing_in
from dubio.data import Batch
from dubio.likelihoods import match_shape
from dubio.objectives import Loss, Objective

if TYPE_CHECKING:
    from dubio.attacks import Attack

__all__ = [
    "Attacking",
    "BatchLoss",
    "Learned",
    "Place",
    "compiled",
    "compute",
    "first_line",
    "without_graph",
]

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
