"""Time of pieces of work: medians over repetitions, after warm-ups."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch

TURN_MS = 20.0
"""How long a turn on a GPU should take."""


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


def alternating_times_ms(
    works: Mapping[str, Callable[[], object]],
    device: torch.device,
    seconds: float,
    warm_ups: int = 5,
    at_least: int = 3,
    at_most: int = 100,
) -> dict[str, list[float]]:
    """Times of pieces of work that take turns; each leaves once its repetitions took ``seconds``.

    On a GPU a turn is several repetitions in a row, as training makes them, and their mean is one time: the device is
    waited for once a turn, not after every step.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in list(works.values()) * warm_ups:
        timed_ms(work, device)
    in_a_row = {name: _turn_length(work, device) for name, work in works.items()}
    while True:
        going = [
            name
            for name, own in times.items()
            if len(own) < at_least or (sum(own) * in_a_row[name] < seconds * 1e3 and len(own) < at_most)
        ]
        if not going:
            return times
        for name in going:
            times[name].append(timed_ms(works[name], device, in_a_row[name]))


def _turn_length(work: Callable[[], object], device: torch.device) -> int:
    """Repetitions that fill a turn of a GPU; elsewhere nothing runs ahead, and each is a turn."""
    if device.type != "cuda":
        return 1
    return max(1, round(TURN_MS / timed_ms(work, device)))


def timed_ms(work: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Milliseconds of a piece of work, the mean of several in a row; the device is waited for before and after."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(times):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) * 1e3 / times
