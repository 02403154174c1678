"""A prediction with its best number of rows at a time, found in the run that measures it.

The more rows for each forward pass, the rarer a library draws its weights; the fewer, the more of them stay in a cache.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from timing import timed_ms
from torch import Tensor

from peers.contestants import Contestant
from peers.nets import Net

ROWS_TO_TRY = {"cpu": (256, 1_000), "cuda": (2_500,)}
"""Rows for each forward pass, beside all of them."""
TRIES = 2


@dataclass(frozen=True)
class Prediction:
    """What is timed, warmed up; its rows at a time, None where the library sizes its own; milliseconds; its shape."""

    work: Callable[[], Tensor]
    rows: int | None
    milliseconds: float
    shape: tuple[int, ...]


def best_prediction(one: Contestant, net: Net, num_samples: int, images: Tensor) -> Prediction:
    """The fastest among the numbers of rows; what runs out of memory with some of them is timed with the others."""
    tried: list[Prediction] = []
    failures: list[Exception] = []
    for rows in (None,) if one.sizes_batches else rows_to_try(images):
        try:
            tried.append(_timed(one, net, num_samples, images, rows))
        except Exception as error:
            failures.append(error)
    if not tried:
        raise failures[0]
    return min(tried, key=lambda prediction: prediction.milliseconds)


def rows_to_try(images: Tensor) -> tuple[int, ...]:
    """Numbers of rows at a time for some images, the last of them all."""
    return (*(rows for rows in ROWS_TO_TRY[images.device.type] if rows < len(images)), len(images))


def rows_in_words(device: torch.device) -> str:
    """What is tried, as a record keeps it."""
    return f"fastest of {', '.join(f'{rows:,}' for rows in ROWS_TO_TRY[device.type])} and all rows at a time"


def _timed(one: Contestant, net: Net, num_samples: int, images: Tensor, rows: int | None) -> Prediction:
    work = one.prediction(net, num_samples, images, rows)
    shape = tuple(work().shape)
    return Prediction(work, rows, min(timed_ms(work, images.device) for _ in range(TRIES)), shape)
