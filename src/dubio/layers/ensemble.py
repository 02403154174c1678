"""An ensemble as draws: several networks of one kind, of which draw ``i`` is member ``i``, counted round and round.

Members are ordinary networks, each with parameters of its own. Mapped over draws they run as one network whose
parameters are stacked, which is what makes training them together fast; a loop runs one after another. Members with
batch norm are always looped in training: each has statistics of its own. Called by itself the network is a
member by chance or, with frozen noise, the first.
"""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.func import functional_call

from dubio.layers.leaf_loop import is_mapped
from dubio.layers.sources import Source
from dubio.sampling import LoopOnlyError, Pass, joined_pass

__all__ = ["Members", "num_members", "why_only_looped"]


class Members(Source):
    """Networks of one kind, one for each draw."""

    random = ("member",)
    """What is random about it."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.training = self.members.training = members[0].training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the member of this pass gives."""
        with joined_pass() as run:
            if run.off:
                raise ValueError("noise cannot be off: an ensemble has no mean network; take one of its .members")
            place = self._place(run)
            if not is_mapped(place) and not torch.compiler.is_compiling():
                return self.members[int(place)](*args, **kwargs)
            return self._stacked(place, args, kwargs)

    def is_noise(self, name: str) -> bool:
        """None of its parameters: they are ordinary networks'."""
        return False

    def describe(self) -> str:
        """What is random, in a few words."""
        return f"{len(self.members)} members"

    def _place(self, run: Pass) -> Int[Tensor, ""]:
        if run.draw is not None:
            return run.draw % len(self.members)
        if run.settings.seed is not None:  # a frozen call is draw 0
            return torch.zeros((), dtype=torch.int64)
        uniform = run.noise_for_weights(self, torch.empty(()), kind="uniform")
        return (uniform * len(self.members)).long().clamp_max(len(self.members) - 1)

    def _stacked(self, place: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reason = why_only_looped(self)
        if reason:
            raise LoopOnlyError(reason)
        states = [{**dict(member.named_parameters()), **dict(member.named_buffers())} for member in self.members]
        chosen = {name: _one_of([state[name] for state in states], place) for name in states[0]}
        return functional_call(self.members[0], chosen, args, kwargs)


def num_members(model: nn.Module) -> int | None:
    """How many members an ensemble has; None for any other network."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    return len(model.members) if isinstance(model, Members) else None


def why_only_looped(model: nn.Module) -> str:
    """Why the draws of a network are meant to be looped, which the compiler cannot do; "" where they are not."""
    if isinstance(model, Members) and model.training and any(map(_takes_statistics, model.members[0].modules())):
        return "batch statistics of the members of an ensemble cannot be mapped"
    return ""


def _one_of(tensors: list[Tensor], place: Int[Tensor, ""]) -> Tensor:
    """The tensor at ``place``, which is mapped unless the network is compiled: a stack of those of all draws."""
    if not torch.compiler.is_compiling():
        # What indexing would give, without the gathers and scatters of single numbers that a map makes of it.
        places = torch._C._functorch.get_unwrapped(place)
        if not is_mapped(places):
            level = torch._C._functorch.maybe_get_level(place)
            return torch._C._functorch._add_batch_dim(torch.stack([tensors[i] for i in places.tolist()]), 0, level)
    place = place.to(tensors[0].device).reshape(1)
    return torch.stack(tensors).index_select(0, place).squeeze(0)


def _takes_statistics(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase)
