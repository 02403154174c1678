"""Time of a piece of work: the median over repetitions, after two warm-ups."""

import statistics
import time
from collections.abc import Callable, Mapping

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


def alternating_medians_ms(
    works: Mapping[str, Callable[[], object]], device: torch.device, repetitions: int = 25, warm_ups: int = 5
) -> dict[str, float]:
    """Medians of several pieces of work that take turns, so that a busy moment meets them all."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for repetition in range(repetitions + warm_ups):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if repetition >= warm_ups:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(own) * 1e3 for name, own in times.items()}
