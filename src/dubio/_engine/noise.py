"""Noise, drawn by the engine: shapes and kinds in, tensors out.

Fresh noise comes from the generator of a run that has one (``host_rng``), else from torch's global one. Seeded noise is
a pure function of (seed, key, call, draw): one generator per draw, so that cutting the draws into chunks, looping over
them or mapping them changes nothing. Noise that belongs to rows (activations) is drawn in blocks of ``ROWS`` rows, each
from a generator of its own, so that cutting the data into batches changes nothing either. ``torch.randn`` gives no such
promise: the first rows of a longer draw agree with a shorter one only where the number of elements is a multiple of 16.

The seeded draw is a custom operator with a vmap rule: under ``vmap`` the rule receives all draw indices at once and
draws outside the map; under ``torch.compile`` it stays one opaque call, generators included. On a GPU with Triton all
draws are one launch (``noise_kernel``); on a CPU, large draws of one call are drawn in several threads (``filling``).
The same seed gives other numbers on other devices, and without Triton.

Work on the parts of a tensor in several threads, where torch would use one.

Torch draws random numbers on one thread, and a prediction would wait for the noise of its weights with all other cores
idle. Threads are started for one call and gone when it returns: no fork can lose them, and nothing is to be shut down.
Starting one takes some 60 microseconds; a million normal numbers take three milliseconds and a half.

Invariant: what comes out does not depend on the number of threads (``test_threads_change_no_number``).
"""

import hashlib
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from dubio._engine.settings import generator_for

Kind = Literal["normal", "uniform", "sign"]


ROWS = 32


def noise_key(name: str) -> int:
    """A stable 63-bit number for a name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def fresh_noise(shape: Sequence[int], kind: Kind, dtype: torch.dtype, device: torch.device) -> Tensor:
    """New noise from the generator of this thread's run, or from torch's global one."""
    generator = generator_for(device)
    # An argument only where there is one: compiled and exported code knows no generators.
    own: dict[str, Any] = {} if generator is None else {"generator": generator}
    if kind == "normal":
        return torch.randn(shape, dtype=dtype, device=device, **own)
    if kind == "uniform":
        return torch.rand(shape, dtype=dtype, device=device, **own)
    return torch.randint(2, shape, device=device, **own).to(dtype) * 2 - 1


@torch.library.custom_op("dubio::seeded_noise", mutates_args=())
def seeded_noise(
    seed: Tensor,
    draw: Tensor,
    key: int,
    call: int,
    shape: Sequence[int],
    kind: str,
    dtype: torch.dtype,
    device: torch.device,
    antithetic: bool,
    by_row: bool,
    first_row: int,
) -> Tensor:
    """Noise of ``shape`` for each draw index in ``draw``: `(*draw.shape, *shape)`, a function of the arguments alone.

    ``antithetic`` gives draw 2i + 1 the mirrored noise of draw 2i (signs are shared by the pair). With ``by_row`` the
    first axis of ``shape`` counts rows, of which the first is row ``first_row`` of the whole data.
    """
    out = torch.empty((draw.numel(), *shape), dtype=dtype, device=device)
    base = f"{int(seed)}/{key}/{call}"
    if out.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("frozen noise cannot be recorded: a replay would have the seed of the recording")
    if dtype == torch.float32 and _launches_at_once(out.device):
        from dubio._engine.triton_kernel import fill

        rows, first = (shape[0], first_row) if by_row and shape else (1, 0)
        fill(out, draw.reshape(-1).tolist(), _digest(base, 0), kind, antithetic, rows, first)
        return out.reshape((*draw.shape, *shape))
    numbers = draw.reshape(-1).tolist()

    def fill_draws(share: Sequence[tuple[Tensor, int]]) -> None:
        generator = torch.Generator(device=device)  # one for all draws: seeding it anew costs less than making another
        for target, number in share:
            source = number // 2 if antithetic else number
            if by_row and shape:
                _fill_rows(target, generator, base, source, kind, first_row)
            else:
                _fill(target, generator, base, 0, source, kind)

    targets = list(zip(out, numbers, strict=True))
    at_a_time = math.prod(shape[1:]) * min(ROWS, shape[0]) if by_row and shape else math.prod(shape)
    in_threads(fill_draws, targets, threads_for(out, len(targets), at_a_time))
    if kind == "sign":
        out.mul_(2).sub_(1)
    for target, number in targets:
        if antithetic and number % 2 == 1 and kind != "sign":
            target.neg_()
            if kind == "uniform":
                target.add_(1.0)
    return out.reshape((*draw.shape, *shape))


@cache
def _launches_at_once(device: torch.device) -> bool:
    """Whether Triton is there and compiles for this device, which is tried once."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from dubio._engine.triton_kernel import fill

        fill(torch.empty(1, 1, device=device), [0], 0, "normal", antithetic=False, num_rows=1, first_row=0)
    except ImportError:
        return False
    except Exception as error:  # no compiler for C, for one
        why = str(error).partition("\n")[0] or type(error).__name__
        warnings.warn(f"frozen noise is launched draw by draw, since Triton cannot compile: {why}", stacklevel=2)
        return False
    return True


def _fill_rows(target: Tensor, generator: torch.Generator, base: str, draw: int, kind: str, first_row: int) -> None:
    rows, done = target.shape[0], 0
    while done < rows:
        block, skip = divmod(first_row + done, ROWS)
        take = min(ROWS - skip, rows - done)
        if take == ROWS:
            _fill(target[done : done + take], generator, base, block, draw, kind)
        else:
            whole = torch.empty((ROWS, *target.shape[1:]), dtype=target.dtype, device=target.device)
            _fill(whole, generator, base, block, draw, kind)
            target[done : done + take] = whole[skip : skip + take]
        done += take


def _fill(target: Tensor, generator: torch.Generator, base: str, block: int, draw: int, kind: str) -> None:
    digest = _digest(base, block)
    # The CPU generator uses the lower 32 bits of a seed only: counting draws there keeps those of one posterior apart.
    low = (digest + draw) & 0xFFFFFFFF
    generator.manual_seed(((digest >> 33) << 32) | low)
    if kind == "normal":
        target.normal_(generator=generator)
    elif kind == "uniform":
        target.uniform_(generator=generator)
    else:
        target.random_(2, generator=generator)  # zeros and ones, of which the caller makes signs


@lru_cache(maxsize=4096)
def _digest(base: str, block: int) -> int:
    """64 bits that stand for a block of rows of some noise, the same for all draws."""
    return int.from_bytes(hashlib.blake2b(f"{base}/{block}".encode(), digest_size=8).digest(), "big")


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


@seeded_noise.register_fake
def _(
    seed: Tensor,
    draw: Tensor,
    key: int,
    call: int,
    shape: Sequence[int],
    kind: str,
    dtype: torch.dtype,
    device: torch.device,
    antithetic: bool,
    by_row: bool,
    first_row: int,
) -> Tensor:
    return torch.empty((*draw.shape, *shape), dtype=dtype, device=device)


def _map_draws(info: Any, in_dims: tuple[Any, ...], seed: Tensor, draw: Tensor, *rest: Any) -> tuple[Tensor, int]:
    if in_dims[0] is not None:
        raise RuntimeError("frozen noise cannot be mapped over seeds; map over draws with dubio.sample instead")
    assert in_dims[1] is not None
    return seeded_noise(seed, draw.movedim(in_dims[1], 0), *rest), 0


seeded_noise.register_vmap(_map_draws)
