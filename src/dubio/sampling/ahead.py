"""Weights of several looped draws, drawn at once.

A GPU has drawn the weights of a layer before the host has launched the next one, so that of a looped draw nearly half
the time would go into launches for noise. The first draw tells which posteriors are asked; the perturbations of the
next few come from one map over draws. Seeded noise is a function of its draw, so that nothing else changes.
"""

import torch
from torch import Tensor

from dubio.sampling.drawing import Call, Perturbations
from dubio.sampling.memory import tensor_bytes
from dubio.sampling.passes import KeptDraw, Pass
from dubio.sampling.planning import memory_budget

__all__ = ["Ahead"]

DEVICES = ("cuda",)
"""Where launches take longer than what they launch."""
MOST = 16
"""Draws at a time: a launch for each would be a sixteenth of what it was."""
SHARE = 4
"""Weights may take one part in so many of what draws may."""


class Ahead:
    """What posteriors draw for one draw of a run after another.

    Args:
        call: the network, and how noise is drawn for it.
        num_samples: how many draws the run has.
    """

    def __init__(self, call: Call, num_samples: int) -> None:
        self._call, self._num_samples = call, num_samples
        self._device = call.rows_and_device()[1]
        self._wanted = (
            self._device.type in DEVICES
            and call.settings.mode == "frozen"
            and call.settings.memory is None  # a limit counts one draw at a time
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
        )
        self._first = KeptDraw()
        self._size = 1
        """Bytes of what posteriors draw for a draw."""
        self._waiting: dict[int, Perturbations] = {}

    def of(self, draw: int) -> Perturbations:
        """What is known of a draw; what is missing is drawn as the network asks for it. Draws come in order."""
        if not self._wanted:
            return {}
        if draw == 0:
            return self._first
        if draw not in self._waiting:
            self._waiting = self._drawn(draw)
        return self._waiting.pop(draw, {})

    def _drawn(self, first: int) -> dict[int, Perturbations]:
        """The perturbations of some draws, by their numbers."""
        if self._first:
            self._size = max(tensor_bytes(list(self._first.values())), 1)
            self._first.clear()
        fitting = memory_budget(self._device) // SHARE // self._size
        count = min(MOST, fitting, self._num_samples - first)
        if not self._first.asked or count < 2:
            return {}
        numbers = torch.arange(first, first + count, device="cpu")
        try:
            stacked = torch.func.vmap(self._perturbations, randomness="different")(numbers)
        except (RuntimeError, ValueError, TypeError):  # a posterior of someone's own that cannot be mapped
            self._wanted = False
            return {}
        return {first + i: {key: tensor[i] for key, tensor in stacked.items()} for i in range(count)}

    def _perturbations(self, draw: Tensor) -> dict[int, Tensor]:
        run = Pass(self._call.settings, draw, mapped=True)
        for perturbation in self._first.asked:
            perturbation(run)
        return run.drawn
