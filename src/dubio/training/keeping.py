"""Steps that outlive a run: the same network is trained again, and compiled and recorded once.

Compiling takes seconds, and so do many runs of a small network: other weights, other labels, another seed. ``Steps``
keeps the step of the network that was trained last, with its optimiser. A recording reads and writes tensors where they
are, so it fits as long as the network is the same module, with the weights of the next run copied into it
(``load_state_dict``), and as long as it is trained in the same way; else a new step is made.

Invariants (``tests/training/test_keeping.py``): a run with a kept step ends as one with a new step, bit for bit on a
CPU; nothing of the run before is left in the optimiser.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from dubio.training.optimising import begins_at_zero
from dubio.training.stepping import Step

__all__ = ["Steps"]


class Steps:
    """What one run leaves to the next: ``dubio.fit(model, ..., steps=steps)``, again and again.

    >>> steps = dubio.Steps()
    >>> for seed, labels in enumerate(label_sets):
    ...     model.load_state_dict(first_weights[seed])
    ...     dubio.fit(model, (inputs, labels), seed=seed, steps=steps)
    """

    def __init__(self) -> None:
        self._step: Step | None = None
        self._way: tuple[Any, ...] = ()
        self.num_made = 0
        """How often a step had to be made."""

    def step_for(self, model: nn.Module, way: tuple[Any, ...], make: Callable[[], Step]) -> Step:
        """The step that was kept, as if it were new; or a new one, which is kept from now on.

        Args:
            model: the network.
            way: everything else that a step depends on, as values that can be compared.
            make: makes a new step.
        """
        step = self._step
        fits = step is not None and step.model is model and step.is_in_place and _are_equal(self._way, way)
        if step is not None and fits and begins_at_zero(step.optimizer):
            step.restart()
            return step
        if step is not None:  # lets go of what was recorded before another is made
            step.close()
        self._step = None
        self._step = step = make()
        self._way = way
        self.num_made += 1
        return step


def _are_equal(one: object, other: object) -> bool:
    """Whether two values are equal, where they can tell: tensors cannot."""
    try:
        return bool(one == other)
    except Exception:
        return False
