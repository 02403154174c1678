"""What is computed in a step of training, apart from how: the loss of a batch, its metrics, the layout of images."""

from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio import functional
from dubio.objectives import Loss

if TYPE_CHECKING:
    from dubio.attacks import Attack

__all__ = [
    "Attacking",
    "Place",
    "compiled",
    "compute",
    "first_line",
    "images_channels_last",
    "to_channels_last",
    "without_graph",
]


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
        labels = functional.predictive_log_probs(loss.log_probs).argmax(dim=-1)
        values.append((labels == targets).float().mean())
    ones = torch.ones_like(values[0])
    metrics = torch.stack([ones, *values]).detach().double()
    return loss.total, loss.nll, loss.terms, loss.log_probs, metrics * len(targets)


def to_channels_last(model: nn.Module) -> None:
    """Lay out the weights of two-dimensional convolutions as GPUs like them best."""
    if any(isinstance(module, nn.Conv2d) for module in model.modules()):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def images_channels_last(values: Any) -> Any:
    """Images laid out likewise."""
    return pytree.tree_map_only(
        Tensor,
        lambda leaf: leaf.to(memory_format=torch.channels_last) if leaf.dim() == 4 else leaf,
        values,
    )


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
