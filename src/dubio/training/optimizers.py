"""Optimisers: which parameters learn how fast, and what a CUDA graph needs of them.

A graph that is recorded once reads the learning rate from a tensor, so that a schedule can move it, and must not ask
the device for a value: torch's fused optimisers do neither harm. They also skip an update when told that the loss was
not finite, which keeps the parameters as they were until somebody looks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dubio.nn import noise_parameters

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

WAYS = ("foreach", "fused", "capturable")
"""Options of an optimiser that belong to the device and not to the run."""
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def parameter_groups(model: nn.Module, lr: float, noise_lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: those of the plain network, and those of its noise, which weight decay must not touch."""
    noise = [parameter for parameter in noise_parameters(model) if parameter.requires_grad]
    known = {id(parameter) for parameter in noise}
    weights = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    groups = [
        {"params": weights, "lr": lr, "initial_lr": lr, "weight_decay": weight_decay},
        {"params": noise, "lr": noise_lr, "initial_lr": noise_lr, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def check_updates(model: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float | None) -> None:
    """Refuse what would train nothing, or the wrong way."""
    if clip_norm is not None and not clip_norm > 0.0:
        raise ValueError(f"clip_norm must be positive, got {clip_norm}")
    own = {id(parameter) for parameter in model.parameters()}
    if not own:
        raise ValueError(f"model must have parameters to train, got a {type(model).__name__} without any")
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError("optimizer must update parameters of the model, got none of them")


def build_optimizer(make: MakeOptimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimiser that a user's function makes of parameter groups, if it did."""
    optimizer = make(groups)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "optimizer must return a torch.optim.Optimizer made from the parameter groups it is given, "
            f"got {optimizer!r}"
        )
    if any("initial_lr" not in group for group in optimizer.param_groups):
        raise ValueError(
            "optimizer must make its optimiser from the parameter groups it is given, which hold their learning rates "
            f"(lr and noise_lr of fit), such as lambda groups: torch.optim.{type(optimizer).__name__}(groups), got "
            f"{type(optimizer).__name__} with groups of its own"
        )
    return optimizer


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's learning rate to ``factor`` times the one it began with."""
    for group in optimizer.param_groups:
        rate = group["initial_lr"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state that another machine may have written, with how updates are made left as it is here."""
    ways = [{name: group[name] for name in WAYS if name in group} for group in optimizer.param_groups]
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, way, rate in zip(optimizer.param_groups, ways, rates, strict=True):
        group.update(way)
        if isinstance(rate, Tensor):  # the one that a recording reads
            group["lr"] = rate.fill_(group["lr"])
    _match_state(optimizer)


def match_layouts(optimizer: torch.optim.Optimizer) -> None:
    """Lay out what an optimiser keeps for each parameter as the parameter is: fused updates want nothing else."""
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def why_not_capturable(optimizer: torch.optim.Optimizer) -> str:
    """Why a step of this optimiser cannot be recorded; nothing where it can."""
    if type(optimizer) not in FUSED:
        return f"a {type(optimizer).__name__} has no fused form: Adam, AdamW and SGD have"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "a differentiable optimiser cannot be recorded"
    kinds = {parameter.dtype for group in optimizer.param_groups for parameter in group["params"]}
    if not all(kind.is_floating_point for kind in kinds):
        return "fused optimisers take real parameters alone"
    return ""


def make_capturable(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Switch an optimiser to its fused form, with learning rates and counts of steps as tensors on the device."""
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
        if "capturable" in group:
            group["capturable"] = True
        # One on a CPU would be read once, when the step is recorded.
        if not isinstance(group["lr"], Tensor) or group["lr"].device.type != device.type:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    optimizer._need_device_dtype_check_for_fused = False  # type: ignore[attr-defined]
    _match_state(optimizer)


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether all of its updates are."""
    return all(group.get("fused") for group in optimizer.param_groups)


def begins_at_zero(optimizer: torch.optim.Optimizer) -> bool:
    """Whether zeros are what an optimiser begins with; with dampening its first step is one of a kind."""
    return type(optimizer) in FUSED and not any(group.get("dampening") for group in optimizer.param_groups)


def forget(optimizer: torch.optim.Optimizer) -> None:
    """Set all that an optimiser remembers of its steps to zero, where it is."""
    optimizer.zero_grad(set_to_none=True)
    for values in optimizer.state.values():
        for value in values.values():
            if isinstance(value, Tensor):
                value.zero_()


def _match_state(optimizer: torch.optim.Optimizer) -> None:
    """Keep what belongs to parameters as they lie, and counts of fused steps on their device."""
    match_layouts(optimizer)
    for parameter, values in optimizer.state.items():
        if isinstance(values.get("step"), Tensor) and is_fused(optimizer):
            values["step"] = values["step"].to(parameter.device)
