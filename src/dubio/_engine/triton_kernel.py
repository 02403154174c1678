"""Seeded noise for all draws in one launch, on a GPU that Triton compiles for.

A generator gives numbers one after another, so that ``noise`` seeds one again for every draw and every few rows:
hundreds of launches where the noise itself takes one. Philox counts instead: a number is a function of a key, which
identifies the draw, and of a counter, which is its position. So a number does not depend on the other draws and rows of
a launch, and nothing is seeded. A call of Philox gives four numbers; they are stored a quarter of a row apart, so that
writes are coalesced.

This module imports Triton; ``noise`` imports it where it is needed.

Reference: Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3; Box and Muller 1958.
"""

from collections.abc import Sequence

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

# mypy: disable-error-code="no-untyped-def, untyped-decorator"


KINDS = ("normal", "uniform", "sign")
BLOCK = 512
MOST_DRAWS = 2**16 - 1
"""Along the second axis of a grid."""


@triton.jit
def _normal(first, second):
    """Two independent normal numbers from two of 32 random bits."""
    radius = tl.sqrt(-2.0 * tl.log((first.to(tl.float32) + 0.5) * 2.0**-32))
    angle = second.to(tl.float32) * (6.283185307179586 * 2.0**-32)
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def _sign(bits):
    """1 or -1 by the highest bit."""
    return tl.where((bits >> 31) == 0, 1.0, -1.0)


@triton.jit(do_not_specialize=["low", "high", "first_draw", "first_row", "calls", "width"])
def _fill(
    out,
    low,
    high,
    first_draw,
    first_row,
    calls,
    width,
    kind: tl.constexpr,
    antithetic: tl.constexpr,
    block: tl.constexpr,
):
    """A block of calls of Philox for one draw, four numbers each."""
    number = tl.program_id(1)
    draw = first_draw + number
    source = draw // 2 if antithetic else draw
    key = (high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | (low + source).to(tl.uint32)
    call = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    calls_per_row = (width + 3) // 4
    row, place = call // calls_per_row, call % calls_per_row
    zero = (place * 0).to(tl.uint32)
    one, two, three, four = tl.philox(key, place.to(tl.uint32), (first_row + row).to(tl.uint32), zero, zero)
    if kind == 0:
        first, second = _normal(one, two)
        third, fourth = _normal(three, four)
    elif kind == 1:
        first, second = tl.uint_to_uniform_float(one), tl.uint_to_uniform_float(two)
        third, fourth = tl.uint_to_uniform_float(three), tl.uint_to_uniform_float(four)
    else:
        first, second = _sign(one), _sign(two)
        third, fourth = _sign(three), _sign(four)
    if antithetic and kind != 2:
        mirrored = draw % 2 == 1
        whole = 1.0 if kind == 1 else 0.0
        first, second = tl.where(mirrored, whole - first, first), tl.where(mirrored, whole - second, second)
        third, fourth = tl.where(mirrored, whole - third, third), tl.where(mirrored, whole - fourth, fourth)
    begin = out + number.to(tl.int64) * (calls // calls_per_row) * width + row * width
    valid = call < calls
    tl.store(begin + place, first, mask=valid & (place < width))
    tl.store(begin + calls_per_row + place, second, mask=valid & (calls_per_row + place < width))
    tl.store(begin + 2 * calls_per_row + place, third, mask=valid & (2 * calls_per_row + place < width))
    tl.store(begin + 3 * calls_per_row + place, fourth, mask=valid & (3 * calls_per_row + place < width))


def fill(
    out: Tensor, draws: Sequence[int], digest: int, kind: str, antithetic: bool, num_rows: int, first_row: int
) -> None:
    """Fill each row of ``out``, `(draw, ...)` in float32, with the noise of its draw.

    Args:
        out: the tensor to fill; contiguous.
        draws: the number of each draw.
        digest: 64 bits that identify this noise, the same for all draws.
        kind: "normal", "uniform" or "sign".
        antithetic: whether draw 2i + 1 mirrors draw 2i.
        num_rows: rows of data in the noise of a draw; 1 where it does not belong to rows.
        first_row: the number of the first of them in all data.
    """
    if out.numel() == 0:
        return
    width = out[0].numel() // num_rows
    calls = num_rows * triton.cdiv(width, 4)
    grid = triton.cdiv(calls, BLOCK)
    done = 0
    with torch.cuda.device_of(out):
        for first, count in _runs(draws):
            _fill[(grid, count)](
                out[done],
                _signed(digest),
                _signed(digest >> 33),
                first,
                first_row,
                calls,
                width,
                kind=KINDS.index(kind),
                antithetic=antithetic,
                block=BLOCK,
                enable_fp_fusion=False,  # the same numbers by every version of Triton, and 1 - u where it is stored
            )
            done += count


def _runs(draws: Sequence[int]) -> list[tuple[int, int]]:
    """The first of consecutive numbers and their count, at most as many as one launch takes."""
    runs: list[tuple[int, int]] = []
    for draw in draws:
        if runs and draw == sum(runs[-1]) and runs[-1][1] < MOST_DRAWS:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((draw, 1))
    return runs


def _signed(number: int) -> int:
    """The lower 32 bits, as a signed number: a larger one would have the kernel compiled again."""
    low = number & 0xFFFFFFFF
    return low - 2**32 if low >= 2**31 else low
