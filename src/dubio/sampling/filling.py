"""Work on the parts of a tensor in several threads, where torch would use one.

Torch draws random numbers on one thread, and a prediction would wait for the noise of its weights with all other cores
idle. Threads are started for one call and gone when it returns: no fork can lose them, and nothing is to be shut down.
Starting one takes some 60 microseconds; a million normal numbers take three milliseconds and a half.

Invariant: what comes out does not depend on the number of threads (``test_threads_change_no_number``).
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["in_threads", "threads_for"]

WORTH_A_THREAD = 2**18
"""Numbers to draw for each thread at least: a millisecond of work, so that little is lost where cores are busy."""
WORTH_A_TURN = 2**13
"""Numbers to draw at a time at least: what Python does between two of them, it does in one thread."""

Part = TypeVar("Part")


def threads_for(out: Tensor, num_parts: int, at_a_time: int) -> int:
    """Threads in which the parts of a tensor are filled soonest, with so many numbers drawn at a time."""
    if out.device.type != "cpu" or at_a_time < WORTH_A_TURN:
        return 1
    return max(1, min(torch.get_num_threads(), num_parts, out.numel() // WORTH_A_THREAD))


def in_threads(work: Callable[[Sequence[Part]], None], parts: Sequence[Part], num_threads: int) -> None:
    """``work(parts)``, where each thread has a share of the parts: this one the first, and helpers the others."""
    own, helpers = [parts[::num_threads]], []
    for number in range(1, num_threads):
        helper = _Helper(work, parts[number::num_threads])
        try:
            helper.start()
            helpers.append(helper)
        except RuntimeError:  # the system has no more threads
            own.append(helper.share)
    try:
        for share in own:
            work(share)
    finally:
        for helper in helpers:
            helper.join()
    for helper in helpers:
        if helper.error is not None:
            raise helper.error


class _Helper(threading.Thread, Generic[Part]):
    """A thread that does a share of the work in the modes of the thread that made it."""

    def __init__(self, work: Callable[[Sequence[Part]], None], share: Sequence[Part]) -> None:
        super().__init__(name="dubio-filling")
        self.work, self.share = work, share
        self.inference = torch.is_inference_mode_enabled()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Do it, and keep what went wrong for the one who waits."""
        try:
            with torch.inference_mode(self.inference), torch.set_grad_enabled(False):
                self.work(self.share)
        except BaseException as error:
            self.error = error
