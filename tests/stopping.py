"""A callback that stops training, for tests of what becomes of it."""

import os
import signal

import dubio


class StopAfter:
    """Tells this process to stop at a step, as a signal would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, step: int, loss: dubio.Loss) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_epoch(self, metrics: dict[str, float]) -> None: ...

    def on_end(self, run: dubio.FitResult) -> None: ...
