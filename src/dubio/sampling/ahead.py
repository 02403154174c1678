"""Weights of several looped draws, drawn at once.

A GPU has drawn the weights of a layer before the host has launched the next one, and a looped draw would launch them
anew for every layer. Here a posterior that is asked for one draw draws the next few as well, in one map. Seeded noise
is a function of its draw, so that no draw changes (``test_drawing_ahead_changes_no_draw``); a posterior whose tensors
changed meanwhile draws again (``test_weights_are_drawn_from_what_a_posterior_holds_at_the_time``).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dubio.sampling.passes import Pass, is_transformed
from dubio.sampling.settings import Settings
from dubio.sampling.silence import without_fallback_warnings

__all__ = ["DEVICES", "MOST", "SHARE", "Ahead"]

DEVICES = ("cuda",)
"""Where a launch takes longer than what it launches."""
MOST = 16
"""Draws at a time: more would save little more."""
SHARE = 4
"""What is drawn ahead may take one part in so many of what draws may."""

State = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Stack:
    """The perturbations of consecutive draws of one posterior."""

    draws: range
    tensor: Tensor
    state: State


class Ahead:
    """Draws for posteriors of a looped run, a few draws at a time.

    Args:
        settings: how noise is drawn in the run.
        num_samples: how many draws it has.
        most: how many draws to draw at a time.
    """

    def __init__(self, settings: Settings, num_samples: int, most: int) -> None:
        self._settings, self._num_samples, self._most = replace(settings), num_samples, most
        self._stacks: dict[int, _Stack] = {}
        self._left_alone: set[int] = set()
        """Posteriors that cannot be mapped, or that change from draw to draw."""

    @property
    def holds_any(self) -> bool:
        """Whether there is anything to let go of."""
        return bool(self._stacks)

    def stop(self) -> None:
        """Let go of everything, and draw nothing ahead any more."""
        self._stacks.clear()
        self._most = 1

    def perturbation(self, source: Any, run: Pass) -> Tensor | None:
        """How far the weights of a posterior lie from their means in a pass; None where it must draw itself."""
        key = id(source.mean)
        if run.draw is None or torch.is_grad_enabled() or is_transformed() or key in self._left_alone:
            return None
        draw, state = int(run.draw), _state(source)
        known = self._stacks.pop(key, None)
        if known is not None and draw in known.draws and known.state != state:
            self._left_alone.add(key)
            return None
        if known is None or draw not in known.draws:
            known = None  # before another takes its place
            known = self._drawn(source, draw, state)
        if known is None:
            return None
        self._stacks[key] = known
        return known.tensor[draw - known.draws.start]

    def _drawn(self, source: Any, first: int, state: State) -> _Stack | None:
        draws = range(first, min(first + self._most, self._num_samples))
        if len(draws) < 2:
            return None

        def perturbation(draw: Tensor) -> Tensor:
            drawn: Tensor = source.perturbation(Pass(self._settings, draw, mapped=True))
            return drawn

        try:
            with without_fallback_warnings():
                numbers = torch.arange(draws.start, draws.stop, device="cpu")
                return _Stack(draws, torch.func.vmap(perturbation, randomness="different")(numbers), state)
        except (RuntimeError, ValueError, TypeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self._left_alone.add(id(source.mean))
            return None


def _state(source: nn.Module) -> State:
    """Which tensors a posterior holds, and how often they were changed in place."""
    tensors = [*source._parameters.values(), *source._buffers.values()]
    return tuple((id(one), 0 if one.is_inference() else one._version) for one in tensors if one is not None)
