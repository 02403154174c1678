"""Optimizers: parameter groups, states that are loaded and checked, and the options that CUDA graphs need.

A graph is recorded once. It reads the learning rate from a tensor, so that a schedule can change it, and must not wait
for a value of the device. The fused optimizers of torch meet both conditions. They also skip an update where a loss was
not finite (``found_inf``), which keeps the parameters unchanged until the error is raised.
"""

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dubio.nn import noise_parameters

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

DEVICE_OPTIONS = ("foreach", "fused", "capturable")
"""Options of an optimizer that depend on the device and not on the run."""
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def parameter_groups(model: nn.Module, lr: float, noise_lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: the weights, and the parameters of the noise, which have no weight decay."""
    noise = [parameter for parameter in noise_parameters(model) if parameter.requires_grad]
    noise_ids = {id(parameter) for parameter in noise}
    weights = [p for p in model.parameters() if p.requires_grad and id(p) not in noise_ids]
    groups = [
        {"params": weights, "lr": lr, "initial_lr": lr, "weight_decay": weight_decay},
        {"params": noise, "lr": noise_lr, "initial_lr": noise_lr, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def check_updates(model: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float | None) -> None:
    """Refuse an optimizer that trains no parameter of the model, and a bad ``clip_norm``."""
    if clip_norm is not None and not clip_norm > 0.0:
        raise ValueError(f"clip_norm must be positive, got {clip_norm}")
    if not (ids := {id(parameter) for parameter in model.parameters()}):
        raise ValueError(f"model must have parameters to train, got a {type(model).__name__} without any")
    if not any(id(parameter) in ids for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError("optimizer must update parameters of the model, got none of them")


def build_optimizer(make: MakeOptimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Call a user's function with parameter groups, and check the optimizer that it returns."""
    optimizer = make(groups)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "optimizer must return a torch.optim.Optimizer made from the parameter groups it is given, "
            f"got {optimizer!r}"
        )
    if any("initial_lr" not in group for group in optimizer.param_groups):
        raise ValueError(
            "optimizer must make its optimizer from the parameter groups it is given, which hold their learning rates "
            f"(lr and noise_lr of fit), such as lambda groups: torch.optim.{type(optimizer).__name__}(groups), got "
            f"{type(optimizer).__name__} with groups of its own"
        )
    return optimizer


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of every group to ``factor`` times its initial one."""
    for group in optimizer.param_groups:
        rate = group["initial_lr"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state, which may come from another machine, and keep the options that depend on the device.

    A state that the optimizer cannot go on with raises and leaves the optimizer unchanged.
    """
    groups, slots = optimizer.param_groups, optimizer.state
    try:
        optimizer.load_state_dict(state)
        _check_groups(optimizer.param_groups, groups)
        _check_slots(optimizer)
    except Exception:
        optimizer.__setstate__({"state": slots, "param_groups": groups})
        raise
    for group, former in zip(optimizer.param_groups, groups, strict=True):
        group.update({name: former[name] for name in DEVICE_OPTIONS if name in former})
        if isinstance(former["lr"], Tensor):  # the tensor that a recording reads
            group["lr"] = former["lr"].fill_(group["lr"])
    _match_state(optimizer)


def _check_groups(groups: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Refuse parameter groups that lack an option, or have one of another kind."""
    for group, former in zip(groups, expected, strict=True):
        for name, value in former.items():
            if name not in group:
                raise ValueError(f"a parameter group of the optimizer must have {name}, got {', '.join(group)}")
            if name not in ("params", *DEVICE_OPTIONS) and not _is_alike(group[name], value):
                raise ValueError(f"{name} of the optimizer must be a value such as {value!r}, got {group[name]!r}")


def _is_alike(value: object, expected: object) -> bool:
    """Whether a value has the kind of another: a bool, a number, or a sequence of as many values."""
    match expected:
        case bool():
            return isinstance(value, bool)
        case int() | float():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case Tensor():
            return isinstance(value, int | float | Tensor) and torch.as_tensor(value).numel() == expected.numel()
        case tuple() | list():
            if not isinstance(value, tuple | list):
                return False
            return len(value) == len(expected) and all(map(_is_alike, value, expected))
    return True


def _check_slots(optimizer: torch.optim.Optimizer) -> None:
    """Refuse a state that lacks a tensor which the optimizer keeps for a parameter, or has one of another shape."""
    for parameter, expected in _first_state(optimizer).items():
        values = optimizer.state.get(parameter, {})
        for name, value in expected.items() if values else ():  # else it had no gradient so far
            if name not in values:
                raise ValueError(f"the optimizer's state must have {name}, got {', '.join(values)}")
            shape = tuple(torch.as_tensor(values[name]).shape)
            if isinstance(value, Tensor) and shape != value.shape:
                raise ValueError(f"{name} of the optimizer must have shape {tuple(value.shape)}, got {shape}")


def _first_state(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, dict[str, Any]]:
    """The state of each parameter after a first step of a copy on the meta device; empty where it cannot take one."""
    if not type(optimizer).__module__.startswith("torch.optim"):  # the step of a user's optimizer may have effects
        return {}
    twins: dict[nn.Parameter, nn.Parameter] = {}
    try:
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            twin = twins[parameter] = nn.Parameter(torch.empty_like(parameter, device="meta"))
            twin.grad = torch.empty_like(twin)
        groups = [
            {**group, **dict.fromkeys(DEVICE_OPTIONS, False), "lr": float(group["lr"]), "params": params}
            for group in optimizer.param_groups
            for params in [[twins[parameter] for parameter in group["params"]]]
        ]
        stepped = copy.copy(optimizer)
        stepped.__setstate__({"state": defaultdict(dict), "param_groups": groups})
        stepped.step()
    except Exception:  # such as LBFGS, which needs a closure, and uninitialized parameters
        return {}
    return {parameter: stepped.state.get(twin, {}) for parameter, twin in twins.items()}


def match_layouts(optimizer: torch.optim.Optimizer) -> None:
    """Give the state of each parameter the memory layout of the parameter, which fused updates need."""
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def why_not_capturable(optimizer: torch.optim.Optimizer) -> str:
    """Why a step of this optimizer cannot be recorded; empty where it can."""
    if type(optimizer) not in FUSED:
        return f"a {type(optimizer).__name__} has no fused form: Adam, AdamW and SGD have"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "a differentiable optimizer cannot be recorded"
    if not all(p.dtype.is_floating_point for group in optimizer.param_groups for p in group["params"]):
        return "fused optimizers take floating-point parameters only"
    return ""


def make_capturable(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Switch an optimizer to its fused form, with learning rates and step counts as tensors on the device."""
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
        if "capturable" in group:
            group["capturable"] = True
        # A tensor on a CPU would be read once, when the step is recorded.
        if not isinstance(group["lr"], Tensor) or group["lr"].device.type != device.type:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    optimizer._need_device_dtype_check_for_fused = False  # type: ignore[attr-defined]
    _match_state(optimizer)


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether all updates of the optimizer are fused."""
    return all(group.get("fused") for group in optimizer.param_groups)


def begins_at_zero(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a state of zeros is that of a new optimizer; with dampening the first step differs from all others."""
    return type(optimizer) in FUSED and not any(group.get("dampening") for group in optimizer.param_groups)


def reset_state(optimizer: torch.optim.Optimizer) -> None:
    """Drop gradients and fill the state of an optimizer with zeros, in place."""
    optimizer.zero_grad(set_to_none=True)
    for values in optimizer.state.values():
        for value in values.values():
            if isinstance(value, Tensor):
                value.zero_()


def _match_state(optimizer: torch.optim.Optimizer) -> None:
    """Match the layout of the state to the parameters, and move the step counts of fused updates to their device."""
    match_layouts(optimizer)
    for parameter, values in optimizer.state.items():
        if isinstance(values.get("step"), Tensor) and is_fused(optimizer):
            values["step"] = values["step"].to(parameter.device)
