"""Noise, drawn by the engine: shapes and kinds in, tensors out.

Fresh noise comes from the generator of the run, if it has one (``host_rng``), else from torch's global one. Seeded
noise is a pure function of (seed, key, call, draw): each draw has its own generator, so that cutting the draws into
chunks, looping over them or mapping them changes nothing. Noise that belongs to rows (activations) is drawn in blocks
of ``ROWS`` rows, each from its own generator, so that cutting the data into batches changes nothing either.
``torch.randn`` does not guarantee this: the first rows of a longer draw agree with a shorter one only where the number
of elements is a multiple of 16.

The seeded draw is a custom operator with a vmap rule: under ``vmap`` the rule receives all draw indices at once and
draws outside the map; under ``torch.compile`` it stays one opaque call, generators included. On a GPU with Triton all
draws are one launch (``triton_kernel``). The same seed gives other numbers on other devices, and without Triton.

On a CPU, large draws of one call are drawn in several threads, since torch draws random numbers on one. Threads are
started for one call and end with it, so that a fork cannot lose them. Starting one takes some 60 microseconds; a
million normal numbers take three milliseconds and a half.

Invariant: the numbers do not depend on the number of threads (``test_threads_change_no_number``).
"""

import hashlib
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

from dubio._engine.settings import generator_for

_functorch: Any = torch._C._functorch
ROWS = 32
WORTH_A_THREAD = 2**18
"""Numbers to draw for each thread at least: a millisecond of work, so that little is lost where cores are busy."""
WORTH_A_TURN = 2**13
"""Numbers to draw at a time at least: what Python does between two draws runs in one thread."""

Kind = Literal["normal", "uniform", "sign"]
Part = TypeVar("Part")


def noise_key(name: str) -> int:
    """A stable 63-bit number for a name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def fresh_noise(shape: Sequence[int], kind: Kind, dtype: torch.dtype, device: torch.device) -> Tensor:
    """New noise from the generator of this thread's run, or from torch's global one."""
    generator = generator_for(device)
    # An argument only where there is one: compiled and exported code knows no generators.
    options: dict[str, Any] = {} if generator is None else {"generator": generator}
    if kind == "normal":
        return torch.randn(shape, dtype=dtype, device=device, **options)
    if kind == "uniform":
        return torch.rand(shape, dtype=dtype, device=device, **options)
    return torch.randint(2, shape, device=device, **options).to(dtype) * 2 - 1


def noise_of_draws(
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
    numbers: list[int] = draw.reshape(-1).tolist()
    if dtype == torch.float32 and _launches_at_once(out.device):
        from dubio._engine.triton_kernel import fill

        rows, first = (shape[0], first_row) if by_row and shape else (1, 0)
        fill(out, numbers, _digest(base, 0), kind, antithetic, rows, first)
        return out.reshape((*draw.shape, *shape))

    def fill_draws(share: Sequence[tuple[Tensor, int]]) -> None:
        generator = torch.Generator(device=device)  # one for all draws: seeding it again costs less than a new one
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


seeded_noise = torch.library.custom_op("dubio::seeded_noise", noise_of_draws, mutates_args=())
"""``noise_of_draws`` as an operator, which compiled, exported and mapped code calls."""


def noise_in_pass(seed: Tensor, draw: Tensor, *options: Any) -> Tensor:
    """``seeded_noise`` of a draw, or of mapped draws.

    In eager code, noise is drawn without the operator, and outside of the map: to call it, or its rule for maps, takes
    longer than to draw the noise of a small layer.
    """
    is_compiling = torch.compiler.is_compiling()
    # A mode, such as one that counts memory, sees the operator and not what it consists of.
    by_operator = is_compiling or torch._C._len_torch_dispatch_stack() > 0
    draw_noise: Callable[..., Tensor] = seeded_noise if by_operator else noise_of_draws
    if is_compiling or _functorch.peek_interpreter_stack() is None:
        return draw_noise(seed, draw, *options)
    numbers = _functorch.get_unwrapped(draw) if _functorch.is_batchedtensor(draw) else draw
    if numbers is draw or _functorch.is_functorch_wrapped_tensor(numbers):  # another map, or several
        noise: Tensor = seeded_noise(seed, draw, *options)
        return noise
    with temporarily_pop_interpreter_stack():
        drawn = draw_noise(seed, numbers, *options)
    batched: Tensor = _functorch._add_batch_dim(drawn, 0, _functorch.maybe_get_level(draw))
    return batched


@cache
def _launches_at_once(device: torch.device) -> bool:
    """Whether Triton is installed and compiles for this device; tried once."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from dubio._engine.triton_kernel import fill

        fill(torch.empty(1, 1, device=device), [0], 0, "normal", antithetic=False, num_rows=1, first_row=0)
    except ImportError:
        return False
    except Exception as error:  # such as a missing compiler for C
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
        target.random_(2, generator=generator)  # zeros and ones, which the caller turns into signs


@lru_cache(maxsize=4096)
def _digest(base: str, block: int) -> int:
    """64 bits that identify a block of rows of some noise, the same for all draws."""
    return int.from_bytes(hashlib.blake2b(f"{base}/{block}".encode(), digest_size=8).digest(), "big")


def threads_for(out: Tensor, num_parts: int, at_a_time: int) -> int:
    """The number of threads that fills the parts of a tensor fastest, with ``at_a_time`` numbers drawn at a time."""
    if out.device.type != "cpu" or at_a_time < WORTH_A_TURN:
        return 1
    return max(1, min(torch.get_num_threads(), num_parts, out.numel() // WORTH_A_THREAD))


def in_threads(work: Callable[[Sequence[Part]], None], parts: Sequence[Part], num_threads: int) -> None:
    """``work(parts)`` with a share of the parts for each thread: the first for this one, the others for helpers."""
    if num_threads == 1:
        work(parts)
        return
    inference, errors = torch.is_inference_mode_enabled(), dict[int, BaseException]()

    def help_with(number: int) -> None:
        try:
            with torch.inference_mode(inference), torch.set_grad_enabled(False):
                work(parts[number::num_threads])
        except BaseException as error:  # raised by the thread that waits for this one
            errors[number] = error

    numbers, helpers = [0], []
    for number in range(1, num_threads):
        helper = threading.Thread(target=help_with, args=(number,), name="dubio-filling")
        try:
            helper.start()
            helpers.append(helper)
        except RuntimeError:  # the system has no more threads
            numbers.append(number)
    try:
        for number in numbers:
            work(parts[number::num_threads])
    finally:
        for helper in helpers:
            helper.join()
    if errors:
        raise errors[min(errors)]


@seeded_noise.register_fake
def _(seed: Tensor, draw: Tensor, key: int, call: int, shape: Sequence[int], *options: Any) -> Tensor:
    _, dtype, device = options[:3]
    return torch.empty((*draw.shape, *shape), dtype=dtype, device=device)


@seeded_noise.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], seed: Tensor, draw: Tensor, *options: Any) -> tuple[Tensor, int]:
    if in_dims[0] is not None:
        raise RuntimeError("frozen noise cannot be mapped over seeds; map over draws with dubio.sample instead")
    assert in_dims[1] is not None
    return seeded_noise(seed, draw.movedim(in_dims[1], 0), *options), 0
