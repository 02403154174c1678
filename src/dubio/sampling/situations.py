"""What a trial of a network depends on: while all of it stays the same, what was found holds.

Asked at every call, so it is a walk without copies: about half a microsecond for a module and as much for a parameter.
"""

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio.sampling.drawing import Call

__all__ = ["circumstances", "situation"]

PLAIN = (type(None), bool, int, float, str)
"""Types of arguments beside tensors that say all about themselves."""


def situation(call: Call, executor: str) -> str:
    """In words, for people."""
    device = call.rows_and_device()[1].type
    parts = [
        *([] if device == "cpu" else [f"on {device}"]),
        "training mode" if call.model.training else "eval mode",
        "with gradients" if torch.is_grad_enabled() else "without gradients",
        *(["autocast"] if torch.is_autocast_enabled(device) else []),
        *([f"estimator {call.settings.estimator}"] if call.settings.estimator else []),
        *([] if executor == "auto" else [f"executor {executor}"]),
    ]
    return ", ".join(parts)


def circumstances(call: Call) -> tuple[object, ...]:
    """Kind and mode of every module; shape, type and learning of every parameter.

    Under a limit also what is collected, and the form of the arguments but for the number of their rows: memory goes by
    all of it, and with rows alone it grows as they do.
    """
    found: list[object] = [] if call.settings.memory is None else _form(call)
    waiting: list[nn.Module] = [call.model]
    seen: set[int] = set()
    while waiting:
        module = waiting.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        found += (type(module), module.training)
        for parameter in module._parameters.values():
            if parameter is not None:
                found += (parameter.shape, parameter.dtype, parameter.requires_grad)
        waiting += module._modules.values()  # type: ignore[arg-type]  # a place may be empty
    return tuple(found)


def _form(call: Call) -> list[object]:
    found: list[object] = [*sorted(call.collecting), *call.kwargs]
    for leaf in pytree.tree_leaves((call.args, call.kwargs)):
        if isinstance(leaf, Tensor):
            found += (leaf.dim(), leaf.shape[1:], leaf.dtype, leaf.requires_grad)
        else:
            found.append(leaf if isinstance(leaf, PLAIN) else type(leaf))
    return found
