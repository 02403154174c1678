"""How many rows a prediction takes at a time, where nobody says: as many as memory allows, found by trying the network.

A further batch costs what does not depend on rows: on a CPU, adding the perturbations to the means of all weights; on a
GPU, the launch of every kernel for every chunk of draws. So batches are large. On a CPU they stop where the activations
of a draw leave the cache (784-1200-1200-10, 6,144 rows, four draws, two cores: 0.97 s in batches of 256, 0.73 s of
1,024, 0.72 s of 2,048, 0.79 s of 6,144); on a GPU where several draws would no longer fit together. Under a memory
limit one draw of a batch takes half of it at most, and trials double their rows until they know.
"""

import weakref
from typing import Any

import torch
from torch import nn

from dubio._engine import (
    ROWS,
    STATE,
    Call,
    Footprint,
    circumstances,
    memory_budget,
    one_draw,
    row_lines,
    settings_for_run,
    unchanged,
)
from dubio.prediction.reading import Block

__all__ = ["MODEST_ROWS", "WORTH_A_TRIAL", "rows_at_a_time"]

MODEST_ROWS = 256
"""Rows that are taken together without a trial."""
WORTH_A_TRIAL = 8192
"""Rows times draws from which on a trial of at most ``MODEST_ROWS`` rows costs little."""
BYTES_IN_CACHE = 32 * 2**20
"""Activations of one draw that a CPU works on well."""
SEVERAL_DRAWS = 8
"""Draws that should fit together on a GPU."""

_KNOWN: weakref.WeakKeyDictionary[nn.Module, dict[Any, int]] = weakref.WeakKeyDictionary()


def rows_at_a_time(model: nn.Module, block: Block, num_samples: int, seed: int | None) -> int:
    """Rows of a batch: all of the block, or batches of about one size."""
    limit, few = STATE.own.settings.memory, block.num_rows <= MODEST_ROWS
    if limit is None and (few or block.num_rows * num_samples < WORTH_A_TRIAL):
        return MODEST_ROWS
    known, key = _KNOWN.setdefault(model, {}), _key(model, block, seed)
    try:
        if key not in known:
            known[key] = _bytes_per_row(model, block, seed) if limit is None else _within(model, block, seed, limit)
    except (RuntimeError, ValueError, TypeError):  # the run itself tells what is wrong, or that nothing is
        return MODEST_ROWS
    if limit is not None:
        return _evenly(block.num_rows, known[key])
    per_row, device = known[key], block.tensors()[0].device
    if device.type == "cpu":
        rows = min(max(MODEST_ROWS, BYTES_IN_CACHE // per_row), memory_budget(device) // per_row)
    else:
        rows = memory_budget(device) // (per_row * min(num_samples, SEVERAL_DRAWS))
    return _evenly(block.num_rows, max(1, rows))


def _evenly(num_rows: int, most: int) -> int:
    """Rows of each of as few batches as can be, so that the last is no remnant; in whole blocks of the rows' noise."""
    if ROWS <= most < num_rows:
        most = most // ROWS * ROWS
    rows = -(-num_rows // -(-num_rows // most))
    return rows if rows < ROWS else -(-rows // ROWS) * ROWS


def _key(model: nn.Module, block: Block, seed: int | None) -> tuple[Any, ...]:
    """What the answer depends on."""
    limit = STATE.own.settings.memory
    form = [(leaf.shape[1:], leaf.dtype, leaf.device) for leaf in block.tensors()]
    is_autocast = torch.is_autocast_enabled(form[0][2].type)
    network = circumstances(Call(model, block.args, block.kwargs, settings_for_run(seed)))
    return str(form), STATE.own.settings.estimator, is_autocast, limit, limit and block.num_rows, network


def _bytes_per_row(model: nn.Module, block: Block, seed: int | None) -> int:
    """What a further row takes while one draw runs, from the peaks of two trials."""
    half = MODEST_ROWS // 2
    fewer, more = (_tried(model, block, rows, seed).peak for rows in (half, MODEST_ROWS))
    return max(1, (more - fewer) // half)


def _within(model: nn.Module, block: Block, seed: int | None, limit: int) -> int:
    """Rows of which one draw takes half of a limit at most, where so few can be had; no trial takes more."""
    on_cpu = block.tensors()[0].device.type == "cpu"
    rows, last = 1, None
    while rows < block.num_rows:
        tried = _tried(model, block, rows, seed)
        room = min(limit // 2, BYTES_IN_CACHE) if on_cpu and rows >= MODEST_ROWS else limit // 2
        lines = [(0, tried.peak)] if last is None else row_lines(last, tried)
        unit = rows if last is None else rows // 2
        if max(shared + 2 * rows // unit * each for shared, each in lines) > room:
            return max(1, min(max(0, room - shared) * unit // max(each, 1) for shared, each in lines))
        rows, last = 2 * rows, tried
    return rows


def _tried(model: nn.Module, block: Block, rows: int, seed: int | None) -> Footprint:
    """What one draw of some rows took."""
    few = block.first(rows).copied()  # a network may change its inputs
    call = Call(model, few.args, few.kwargs, settings_for_run(seed))
    footprint = Footprint()
    with unchanged(model), footprint:
        one_draw(call, torch.zeros((), dtype=torch.int64, device="cpu"))
    return footprint
