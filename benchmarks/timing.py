"""Time of a piece of work: the median over repetitions, after two warm-ups."""

import statistics
import time
from collections.abc import Callable

import torch


def median_ms(work: Callable[[], object], device: torch.device, repetitions: int = 7) -> float:
    times = []
    for repetition in range(repetitions + 2):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if repetition >= 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3
