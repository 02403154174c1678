"""Whether a compiled step is faster on a CPU: both ways take turns on real batches once a run proves long."""

import statistics

__all__ = ["Trial"]

LONG = 600.0
"""Seconds that a run on a CPU must be expected to last before it is worth a trial of the compiler."""
TRIALS = 5
"""Steps that are timed, eager and compiled each."""


class Trial:
    """Times of steps, and what they say."""

    def __init__(self, num_steps: int) -> None:
        self._left = num_steps
        self._times: dict[bool, list[float]] = {False: [], True: []}
        self._is_long = False
        self.choice: bool | None = None
        """Whether steps are compiled from now on; None until it is known."""

    @property
    def compiled_next(self) -> bool:
        """Whether the next step is a compiled one."""
        return self._is_long and len(self._times[True]) <= len(self._times[False]) - TRIALS

    def note(self, seconds: float) -> None:
        """Take note of how long a step took."""
        compiled = self.compiled_next
        self._times[compiled].append(seconds)
        self._left -= 1
        eager = self._times[False]
        if not self._is_long and len(eager) == TRIALS + 1:  # the first one warms up
            self._is_long = statistics.median(eager[1:]) * self._left > LONG
            self.choice = None if self._is_long else False
        elif len(self._times[True]) == TRIALS + 1:
            self.choice = statistics.median(self._times[True][1:]) < statistics.median(eager[1:])
