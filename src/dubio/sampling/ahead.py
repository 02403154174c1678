"""Weights of several looped draws, drawn at once.

A GPU has drawn the weights of a layer before the host has launched the next one, and a looped draw would launch them
anew for every layer. On a CPU the noise of one draw comes from one thread, that of several from as many (``filling``),
and what is the same for all draws, their scale, is computed once. So a posterior that is asked for one draw draws the
next few as well, in one map. Seeded noise is a function of its draw, so that no draw changes
(``test_drawing_ahead_changes_no_draw``); a posterior whose tensors are others meanwhile, or were changed in place,
draws again (``test_weights_are_drawn_from_what_a_posterior_holds_at_the_time``). What is changed through ``.data`` is
not seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dubio.sampling.drawing import Call
from dubio.sampling.memory import is_out_of_memory, tensor_bytes
from dubio.sampling.passes import Pass, is_transformed
from dubio.sampling.planning import memory_budget
from dubio.sampling.settings import Settings
from dubio.sampling.silence import without_fallback_warnings

__all__ = ["Ahead", "ahead_of"]

DEVICES = ("cuda", "cpu")
"""Where several draws at once take less time than one by one."""
MOST = 16
"""Draws at a time: more would save little more."""
SHARE = 4
"""What is drawn ahead may take one part in so many of what draws may."""


@dataclass(frozen=True)
class _Held:
    """A tensor as a posterior held it; it is kept, so that no other one can take its place in memory."""

    tensor: Tensor
    values: Tensor
    version: int

    @classmethod
    def now(cls, tensor: Tensor) -> "_Held":
        """As it is."""
        return cls(tensor, tensor.detach(), 0 if tensor.is_inference() else tensor._version)

    def is_still(self, tensor: Tensor) -> bool:
        """Whether that is the same tensor, in the same place, and unchanged."""
        if tensor is not self.tensor or tensor.data_ptr() != self.values.data_ptr():
            return False
        return tensor.is_inference() or tensor._version == self.version


@dataclass(frozen=True)
class _Stack:
    """The perturbations of consecutive draws of one posterior, and what they were drawn from."""

    draws: range
    tensor: Tensor
    held: Sequence[_Held]

    def is_of(self, source: nn.Module) -> bool:
        """Whether a posterior still holds what they were drawn from."""
        tensors = _tensors(source)
        return len(tensors) == len(self.held) and all(
            held.is_still(tensor) for held, tensor in zip(self.held, tensors, strict=True)
        )


class Ahead:
    """Draws for posteriors of a looped run, a few draws at a time.

    Args:
        settings: how noise is drawn in the run.
        num_samples: how many draws it has.
        most: how many draws to draw at a time.
    """

    def __init__(self, settings: Settings, num_samples: int, most: int) -> None:
        self._settings, self._num_samples, self._most = settings, num_samples, most
        self._stacks: dict[int, _Stack] = {}
        self._left_alone: dict[int, nn.Module] = {}
        """Posteriors that cannot be mapped, or that change from draw to draw."""

    @property
    def is_drawing(self) -> bool:
        """Whether anything is drawn ahead."""
        return self._most > 1

    def stop(self) -> None:
        """Let go of everything, and draw nothing ahead any more."""
        self._stacks.clear()
        self._most = 1

    def perturbation(self, source: Any, run: Pass) -> Tensor | None:
        """How far the weights of a posterior lie from their means in a pass; None where it must draw itself."""
        key = id(source.mean)
        if run.draw is None or run.collecting or torch.is_grad_enabled() or is_transformed() or key in self._left_alone:
            return None
        draw = int(run.draw)
        known = self._stacks.pop(key, None)
        if known is not None and draw in known.draws and not known.is_of(source):
            self._left_alone[key] = source
            return None
        if known is None or draw not in known.draws:
            known = None  # before another takes its place
            known = self._drawn(source, draw)
        if known is None:
            return None
        self._stacks[key] = known
        return known.tensor[draw - known.draws.start]

    def _drawn(self, source: Any, first: int) -> _Stack | None:
        draws = range(first, min(first + self._most, self._num_samples))
        if len(draws) < 2:
            return None

        def perturbation(draw: Tensor) -> Tensor:
            drawn: Tensor = source.perturbation(Pass(self._settings, draw, mapped=True))
            return drawn

        held = [_Held.now(tensor) for tensor in _tensors(source)]
        numbers = torch.arange(draws.start, draws.stop, device="cpu")
        try:
            with without_fallback_warnings():
                return _Stack(draws, torch.func.vmap(perturbation, randomness="different")(numbers), held)
        except (RuntimeError, ValueError, TypeError) as error:
            if is_out_of_memory(error):
                raise
        self._left_alone[id(source.mean)] = source
        return None


def ahead_of(call: Call, num_samples: int) -> Ahead | None:
    """Who draws weights of looped draws ahead, where that saves time; what it holds is in no limit."""
    device = call.rows_and_device()[1]
    is_frozen = call.settings.mode == "frozen" and call.settings.memory is None
    if device.type not in DEVICES or not is_frozen or torch.compiler.is_compiling():
        return None
    weights = max(tensor_bytes(list(call.model.parameters())), 1)
    most = min(MOST, memory_budget(device) // SHARE // weights)
    return Ahead(call.settings, num_samples, most if device.type == "cuda" else _busy(most, torch.get_num_threads()))


def _busy(most: int, threads: int) -> int:
    """So many draws at most that no thread has fewer of them than another, where there are enough."""
    return most if most < threads else most - most % threads


def _tensors(source: nn.Module) -> list[Tensor]:
    """All that a posterior draws from."""
    return [*source.parameters(), *source.buffers()]
