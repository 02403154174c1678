"""Diagnosis of runs that go wrong: posteriors that collapse to the prior, and losses that are not finite.

``LossMonitor`` records on the device whether every loss so far was finite, so that no step waits for the device.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dubio._engine import Using, run, tensors_in
from dubio.nn import GaussianPosterior, posteriors, sources
from dubio.training.optimizers import is_fused

ON_PRIOR = 0.02
"""Divergence, in nats, below which the posterior of a weight counts as its prior."""
LEARNED = 0.1
"""Accuracy, from 0 at chance to 1 at certainty, below which a network counts as untrained."""
CHECK_EVERY = 0.25
"""Seconds between two checks of a loss on a GPU: each waits for the device."""


class CollapseWarning(UserWarning):
    """Most posteriors equal the prior, and the network has learned nothing."""


class BrokenLossError(FloatingPointError):
    """The loss is not a finite number."""

    def __init__(self, value: float, culprit: str, num_steps: int) -> None:
        super().__init__(f"loss is {value}, from {culprit}")
        self.value, self.culprit = value, culprit
        self.num_steps = num_steps
        """Steps with a finite loss before it."""

    def __reduce__(self) -> tuple[type["BrokenLossError"], tuple[float, str, int]]:
        """Pickle the arguments: by default an exception is rebuilt from its message."""
        return type(self), (self.value, self.culprit, self.num_steps)


def warn_of_collapse(model: nn.Module, metrics: dict[str, float], num_classes: int | None) -> None:
    """Warn where most posteriors equal the prior while accuracy is at chance."""
    accuracy = metrics.get("val_accuracy", metrics.get("accuracy"))
    if accuracy is None or num_classes is None or accuracy > (1.0 - LEARNED) / num_classes + LEARNED:
        return
    on_prior, total = 0, 0
    for posterior in posteriors(model):
        if isinstance(posterior, GaussianPosterior) and posterior.has_closed_divergence:
            cost = posterior.divergence_per_weight()
            # The divergence of weights that are not random is 0.
            on_prior += int((cost < ON_PRIOR).sum()) - (cost.numel() - posterior.num_random)
            total += posterior.num_random
    if total and on_prior > 0.5 * total:
        warnings.warn(
            f"{on_prior / total:.0%} of the weights have gone back to the prior and accuracy is {accuracy:.3f}: "
            "the divergence has won over the data. Try a wider prior, fewer weights, more data, ELBO(beta=0.1) or "
            "ELBO(warmup=...)",
            CollapseWarning,
            stacklevel=5,
        )


def culprit_of(model: nn.Module, inputs: Any, nll: Tensor) -> str:
    """The source of a loss that is not finite: the first layer whose output is not finite."""
    if broken := _broken_parameter(model):
        return broken
    if bool(torch.isfinite(nll)):
        return "the loss itself"
    layers = (_first_broken_layer(model, inputs, mode) for mode in ("off", "fresh"))
    return next(filter(None, layers), "the outputs")


def what_is_not_finite(model: nn.Module, metrics: dict[str, float]) -> str:
    """The first parameter or metric that is not finite; empty where all are."""
    if broken := _broken_parameter(model):
        return f"{broken} is not finite"
    wrong = [name for name, value in metrics.items() if not math.isfinite(value)]
    return f"{wrong[0]} is {metrics[wrong[0]]}" if wrong else ""


def _broken_parameter(model: nn.Module) -> str:
    broken = (name for name, parameter in model.named_parameters() if not bool(parameter.isfinite().all()))
    return next((f"parameter {name}" for name in broken), "")


def _first_broken_layer(model: nn.Module, inputs: Any, mode: str) -> str:
    """The first layer whose output is not finite."""
    layers: list[str] = []
    names = {module: name for name, module in model.named_modules()}

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if any(leaf.is_floating_point() and not bool(leaf.isfinite().all()) for leaf in tensors_in(output)):
            layers.append(f"{names[module] or 'the network'} ({type(module).__name__})")

    leaves = [module for module in model.modules() if not any(True for _ in module.children()) or sources(module)]
    handles = [module.register_forward_hook(note) for module in leaves if module is not model]
    try:
        with torch.no_grad(), Using(mode=mode, seed=None):
            run(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return layers[0] if layers else ""


class LossMonitor:
    """Counts finite losses. A fused optimizer skips updates from the first loss on that is not finite."""

    def __init__(self, device: torch.device, optimizer: torch.optim.Optimizer) -> None:
        self._on_gpu = device.type == "cuda"
        self._steps = torch.zeros((), dtype=torch.int64, device=device)
        self._value = torch.zeros((), device=device)
        self._broken = torch.zeros((), device=device)
        self.attach(optimizer)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Set ``found_inf`` of an optimizer where it is fused, and remove it elsewhere."""
        if self._on_gpu and is_fused(optimizer):
            optimizer.found_inf = self._broken  # type: ignore[attr-defined]
        elif getattr(optimizer, "found_inf", None) is self._broken:
            del optimizer.found_inf  # type: ignore[attr-defined]

    @property
    def num_steps(self) -> int:
        """Steps with a finite loss."""
        return int(self._steps)

    def watch(self, total: Tensor, through: Callable[[Any], Any]) -> None:
        """Record a loss; ``through`` wraps the function that does it, such as to compile it."""
        if self._on_gpu:
            through(_record)(total.detach(), self._value, self._broken, self._steps)
        else:
            self._steps += 1

    def restart(self) -> None:
        """Reset all counts."""
        for tensor in (self._steps, self._value, self._broken):
            tensor.zero_()

    def first_broken(self) -> tuple[float, int] | None:
        """The first loss that is not finite, and the number of losses before it; None where all are finite."""
        if not self._on_gpu or not bool(self._broken):
            return None
        return self._value.item(), self.num_steps


def _record(total: Tensor, value: Tensor, broken: Tensor, steps: Tensor) -> None:
    """Keep the first loss that is not finite, and count those before it."""
    value.copy_(torch.where(broken > 0, value, total.float()))
    broken.copy_(torch.where(torch.isfinite(value), 0.0, 1.0))
    steps.add_(1 - broken.long())
