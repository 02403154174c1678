"""How many rows a prediction takes at a time, where nobody says: as many as memory allows, found by trying the network.

A further batch costs what does not depend on rows: on a CPU, adding the perturbations to the means of all weights; on a
GPU, the launch of every kernel for every chunk of draws. So batches are large. On a CPU they stop where the activations
of a draw leave the cache (784-1200-1200-10, 6,144 rows, three draws, one core: 1.21 s in batches of 256, 1.04 s of
1,024, 1.09 s of 6,144); on a GPU where several draws would no longer fit together.
"""

import weakref
from typing import Any

import torch
from torch import nn

from dubio.prediction.reading import Block
from dubio.sampling.drawing import Call, one_draw
from dubio.sampling.noise import ROWS
from dubio.sampling.planning import Footprint, memory_budget, unchanged
from dubio.sampling.settings import STATE, settings_for_run

__all__ = ["MODEST_ROWS", "WORTH_A_TRIAL", "rows_at_a_time"]

MODEST_ROWS = 256
"""Rows that are taken together without a trial."""
WORTH_A_TRIAL = 8192
"""Rows times draws from which on a trial of at most ``MODEST_ROWS`` rows costs little."""
BYTES_IN_CACHE = 16 * 2**20
"""Activations of one draw that a CPU works on well."""
SEVERAL_DRAWS = 8
"""Draws that should fit together on a GPU."""

_BYTES_PER_ROW: weakref.WeakKeyDictionary[nn.Module, dict[Any, int]] = weakref.WeakKeyDictionary()


def rows_at_a_time(model: nn.Module, block: Block, num_samples: int, seed: int | None) -> int:
    """Rows of a batch: all of the block, or batches of about one size."""
    if block.num_rows <= MODEST_ROWS or block.num_rows * num_samples < WORTH_A_TRIAL:
        return MODEST_ROWS
    device = block.tensors()[0].device
    try:
        per_row = _bytes_per_row(model, block, seed)
    except (RuntimeError, ValueError, TypeError):  # the run itself tells what is wrong, or that nothing is
        return MODEST_ROWS
    if device.type == "cpu":
        rows = min(max(MODEST_ROWS, BYTES_IN_CACHE // per_row), memory_budget(device) // per_row)
    else:
        rows = memory_budget(device) // (per_row * min(num_samples, SEVERAL_DRAWS))
    return _evenly(block.num_rows, max(1, rows))


def _evenly(num_rows: int, most: int) -> int:
    """Rows of each of as few batches as can be, so that the last is no remnant; in whole blocks of the rows' noise."""
    rows = -(-num_rows // -(-num_rows // most))
    return rows if rows < ROWS else -(-rows // ROWS) * ROWS


def _bytes_per_row(model: nn.Module, block: Block, seed: int | None) -> int:
    """What a further row takes while one draw runs, from the peaks of two trials; remembered beside the network."""
    form = [(leaf.shape[1:], leaf.dtype, leaf.device) for leaf in block.tensors()]
    key = (str(form), STATE.own.settings.estimator, torch.is_autocast_enabled(form[0][2].type))
    known = _BYTES_PER_ROW.setdefault(model, {})
    if key not in known:
        half = MODEST_ROWS // 2
        fewer, more = (_peak(model, block, rows, seed) for rows in (half, MODEST_ROWS))
        known[key] = max(1, (more - fewer) // half)
    return known[key]


def _peak(model: nn.Module, block: Block, rows: int, seed: int | None) -> int:
    """The most bytes alive at once while one draw of some rows runs."""
    few = block.first(rows).copied()  # a network may change its inputs
    call = Call(model, few.args, few.kwargs, settings_for_run(seed))
    footprint = Footprint()
    with unchanged(model), footprint:
        one_draw(call, torch.zeros((), dtype=torch.int64, device="cpu"))
    return footprint.peak
