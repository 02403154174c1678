"""An ensemble as draws: several networks of one architecture, where draw ``i`` is member ``i`` modulo their number.

Members are ordinary networks with their own parameters and buffers. Mapped over draws they run as one network with
stacked parameters, which makes joint training fast; a loop runs one after another. In both, batch statistics are those
of each member, and in training every member keeps the buffers that its run changed. A call outside of several draws
runs a random member or, with frozen noise, the first.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.func import functional_call

from dubio._engine import LoopOnlyError, Numbers, Pass, is_mapped, joined_pass, mark_drawn
from dubio.nn.sources import Source


class Members(Source):
    """Networks of one kind, one for each draw."""

    random = ("member",)
    """What is random about it."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.training = self.members.training = members[0].training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the member of this pass."""
        with joined_pass() as run:
            if run.off:
                raise ValueError("noise cannot be off: an ensemble has no mean network; take one of its .members")
            place = self._place(run)
            if not is_mapped(place) and not torch.compiler.is_compiling():
                return self.members[int(place)](*args, **kwargs)
            modes = [[module.training for module in member.modules()] for member in self.members]
            if any(mode != modes[0] for mode in modes):
                raise LoopOnlyError("some members are in training mode and others not")
            states = [{**dict(member.named_parameters()), **dict(member.named_buffers())} for member in self.members]
            chosen = {name: _one_of([state[name] for state in states], place) for name in states[0]}
            chosen |= run.moved.get(id(self), {})  # of an earlier call in this pass
            run.drawn[id(self)] = place
            former, run.alone = run.alone, True
            try:
                outputs = functional_call(self.members[0], chosen, args, kwargs)
            finally:
                run.alone = former
            moved = {name: chosen[name] for name, _ in self.members[0].named_buffers()} if any(modes[0]) else {}
            if moved and run.mapped:
                run.moved[id(self)] = moved
            elif moved:
                self._keep(place, moved)
            return outputs

    def member_names(self) -> list[str]:
        """The names of its members."""
        return [f"members.{place}" for place in range(len(self.members))]

    @torch.no_grad()
    def accept_buffers(self, draws: Numbers, moved: Mapping[str, Tensor]) -> None:
        """Give every member the buffers that its draw changed."""
        for row in range(draws.num_draws):
            buffers = dict(self.members[(draws.first + row) % len(self.members)].named_buffers())
            for name, tensor in moved.items():
                buffers[name].copy_(tensor[row])

    def is_noise(self, name: str) -> bool:
        """False: its parameters are those of ordinary networks."""
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

    @torch.no_grad()
    def _keep(self, place: Tensor, moved: Mapping[str, Tensor]) -> None:
        """Give the member at a place its changed buffers; under the compiler the place is a tensor."""
        if is_mapped(place):
            if any(isinstance(module, nn.modules.batchnorm._NormBase) for module in self.members[0].modules()):
                raise RuntimeError("members of an ensemble cannot keep batch statistics under a vmap around it")
            return
        for number, member in enumerate(self.members):
            for name, buffer in member.named_buffers():
                buffer.copy_(torch.where(place.to(buffer.device) == number, moved[name], buffer))


def num_members(model: nn.Module) -> int | None:
    """How many members an ensemble has; None for any other network."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    return len(model.members) if isinstance(model, Members) else None


def _one_of(tensors: list[Tensor], place: Int[Tensor, ""]) -> Tensor:
    """The tensor at ``place``, which is mapped unless the network is compiled: a stack of those of all draws."""
    if not torch.compiler.is_compiling():
        # The same as indexing, which a map would turn into gathers and scatters of single numbers.
        places = torch._C._functorch.get_unwrapped(place)
        if not is_mapped(places):
            level = torch._C._functorch.maybe_get_level(place)
            stack = torch.stack([tensors[i] for i in places.tolist()])
            mark_drawn(stack)
            return torch._C._functorch._add_batch_dim(stack, 0, level)
    place = place.to(tensors[0].device).reshape(1)
    return torch.stack(tensors).index_select(0, place).squeeze(0)
