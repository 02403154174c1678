"""What went wrong, in plain words: a posterior that fell back on its prior, a loss that is no number.

Whether every loss so far was finite: kept on the device, so that no step has to wait for an answer.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine import Using, run
from dubio.nn import GaussianPosterior, posteriors, sources
from dubio.objectives import Loss
from dubio.training.optimizers import is_fused

ON_PRIOR = 0.02
"""Divergence, in nats, below which a weight says nothing that its prior does not."""


LEARNED = 0.1
"""Share of the way from chance to certainty below which a network has learned nothing."""


class CollapseWarning(UserWarning):
    """Most posteriors sit on the prior and the network has learned nothing."""


def warn_of_collapse(model: nn.Module, metrics: dict[str, float], num_classes: int | None) -> None:
    """Warn where most weights have gone back to the prior while accuracy is at chance."""
    accuracy = metrics.get("val_accuracy", metrics.get("accuracy"))
    if accuracy is None or num_classes is None or accuracy > (1.0 - LEARNED) / num_classes + LEARNED:
        return
    on_prior, total = 0, 0
    for posterior in posteriors(model):
        if isinstance(posterior, GaussianPosterior) and posterior.has_closed_divergence:
            cost = posterior.divergence_per_weight()
            on_prior += int((cost < ON_PRIOR).sum()) - (cost.numel() - posterior.num_random)  # others cost nothing
            total += posterior.num_random
    if total and on_prior > 0.5 * total:
        warnings.warn(
            f"{on_prior / total:.0%} of the weights have gone back to the prior and accuracy is {accuracy:.3f}: "
            "the divergence has won over the data. Try a wider prior, fewer weights, more data, ELBO(beta=0.1) or "
            "ELBO(warmup=...)",
            CollapseWarning,
            stacklevel=6,
        )


def culprit_of(model: nn.Module, inputs: Any, loss: Loss) -> str:
    """Where a loss that is not finite comes from: the first layer that gives something not finite."""
    broken = _broken_parameter(model)
    if broken:
        return broken
    if bool(torch.isfinite(loss.nll)):
        return "the loss itself"
    for mode in ("off", "fresh"):
        layer = _first_broken_layer(model, inputs, mode)
        if layer:
            return layer
    return "the outputs"


def what_is_not_finite(model: nn.Module, metrics: dict[str, float]) -> str:
    """Which parameter or metric is no longer a finite number; nothing where all are."""
    broken = _broken_parameter(model)
    if broken:
        return f"{broken} is not finite"
    wrong = [name for name, value in metrics.items() if not math.isfinite(value)]
    return f"{wrong[0]} is {metrics[wrong[0]]}" if wrong else ""


def _broken_parameter(model: nn.Module) -> str:
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"parameter {name}"
    return ""


def _first_broken_layer(model: nn.Module, inputs: Any, mode: str) -> str:
    """The first layer that gives something not finite."""
    found: list[str] = []
    names = {module: name for name, module in model.named_modules()}

    def note(module: nn.Module, args: Any, output: Any) -> None:
        numbers = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        if any(not bool(leaf.isfinite().all()) for leaf in numbers):
            found.append(f"{names[module] or 'the network'} ({type(module).__name__})")

    leaves = [module for module in model.modules() if not any(True for _ in module.children()) or sources(module)]
    handles = [module.register_forward_hook(note) for module in leaves if module is not model]
    try:
        with torch.no_grad(), Using(mode=mode, seed=None):
            run(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else ""


LOOK_EVERY = 0.25
"""Seconds between two looks at a GPU: each waits until it has caught up."""


class BrokenLossError(FloatingPointError):
    """The loss is not a finite number."""

    def __init__(self, value: float, culprit: str, num_steps: int) -> None:
        super().__init__(f"loss is {value}, from {culprit}")
        self.value, self.culprit = value, culprit
        self.num_steps = num_steps
        """Steps that went well before."""

    def __reduce__(self) -> tuple[type["BrokenLossError"], tuple[float, str, int]]:
        """As it was made: an exception is by default made again from its message."""
        return type(self), (self.value, self.culprit, self.num_steps)


class Health:
    """Watches losses. A fused optimiser leaves the parameters alone from the first one on that is not finite."""

    def __init__(self, device: torch.device, optimizer: torch.optim.Optimizer) -> None:
        self._on_gpu = device.type == "cuda"
        self._steps = torch.zeros((), dtype=torch.int64, device=device)
        self._value = torch.zeros((), device=device)
        self._broken = torch.zeros((), device=device)
        self.tell(optimizer)

    def tell(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimiser know of broken losses, where it is fused; others would not take it."""
        if self._on_gpu and is_fused(optimizer):
            optimizer.found_inf = self._broken  # type: ignore[attr-defined]
        elif getattr(optimizer, "found_inf", None) is self._broken:
            del optimizer.found_inf  # type: ignore[attr-defined]

    @property
    def num_steps(self) -> int:
        """Steps with a finite loss."""
        return int(self._steps)

    def watch(self, total: Tensor, through: Callable[[Any], Any]) -> None:
        """Take note of a loss; ``through`` says how that is run, such as compiled."""
        if self._on_gpu:
            through(_take_note)(total.detach(), self._value, self._broken, self._steps)
        else:
            self._steps += 1

    def restart(self) -> None:
        """Forget all losses."""
        for kept in (self._steps, self._value, self._broken):
            kept.zero_()

    def first_broken(self) -> tuple[float, int] | None:
        """The first loss that is not finite, and how many were before it."""
        if not self._on_gpu or not bool(self._broken):
            return None
        return self._value.item(), self.num_steps


def _take_note(total: Tensor, value: Tensor, broken: Tensor, steps: Tensor) -> None:
    """Keep the first loss that is not finite, and count those before it."""
    value.copy_(torch.where(broken > 0, value, total.float()))
    broken.copy_(torch.where(torch.isfinite(value), 0.0, 1.0))
    steps.add_(1 - broken.long())
