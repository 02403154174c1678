"""Where a run stands: everything that, put back, makes it go on as if it had never stopped."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dubio.persistence.tensors import with_ties, without_ties
from dubio.training.optimising import load_keeping_the_way

__all__ = ["Standing", "pack", "unpack"]


@dataclass
class Standing:
    """Counters and sums of a run."""

    epoch: int = 0
    """Epochs that are over."""
    batch: int = 0
    """Batches of the present epoch that are over."""
    step: int = 0
    """Optimiser steps that were taken."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums over the examples of the present epoch."""
    best: float | None = None
    best_epoch: int = 0
    seconds: float = 0.0
    compiled: bool | None = None
    """Whether steps are compiled, once a trial on a CPU has decided it."""


def pack(
    model: nn.Module, optimizer: torch.optim.Optimizer, standing: Standing, best: dict[str, Tensor] | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and plain values of a run."""
    packed = optimizer.state_dict()
    weights, tied = without_ties(model.state_dict())
    tensors = {f"model/{name}": tensor for name, tensor in weights.items()}
    tensors |= {f"best/{name}": tensor for name, tensor in (best or {}).items()}
    tensors["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors |= {f"random/cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    plain: dict[str, dict[str, Any]] = {}
    for place, values in packed["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{place}/{name}"] = value
            else:
                plain.setdefault(str(place), {})[name] = value
    groups = [
        {name: value.item() if isinstance(value, Tensor) else value for name, value in group.items()}
        for group in packed["param_groups"]
    ]
    slots = {"state": plain, "param_groups": groups}
    return tensors, {"standing": asdict(standing), "tied": tied, "optimizer": slots}


def unpack(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], state: dict[str, Any]
) -> tuple[Standing, dict[str, Tensor] | None]:
    """Put a run's tensors and values back."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        parts.setdefault(kind, {})[rest] = tensor
    model.load_state_dict(with_ties(parts["model"], state["tied"]))
    slots: dict[int, dict[str, Any]] = {
        int(place): dict(values) for place, values in state["optimizer"]["state"].items()
    }
    for name, tensor in parts.get("optimizer", {}).items():
        place, _, key = name.partition("/")
        slots.setdefault(int(place), {})[key] = tensor
    load_keeping_the_way(optimizer, {"state": slots, "param_groups": state["optimizer"]["param_groups"]})
    random = parts["random"]
    torch.set_rng_state(random.pop("cpu"))
    if random and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([random[f"cuda{i}"] for i in range(len(random))])
    return Standing(**state["standing"]), parts.get("best")
