"""A plan for some draws, by arithmetic: what was found out about a network and what is wanted in, chunk and words out.

Where draws take ``shared + draws * each`` bytes, and the outputs of all of them, joined, ``kept``,

    chunk = (limit - shared - kept) // each,

and the least of these where several such lines were found (``trying``). Without a limit that someone set, the budget
counts ``each`` alone: it is there for speed.

Without gradients, drawn filters run looped from ``GROUPED_TO_LOOP`` numbers on that their convolutions write in a draw:
a GPU has enough to do with one draw then, and groups of them are slow. Not so where a forward changes the network, as
batch norms do in training mode: draws one after another change it more often.

With gradients all draws run at once, since the graph of each is kept and chunks alone would save nothing; where they do
not fit, chunks are computed anew in the backward pass, and ``kept`` counts a second set of gradients.
"""

import math
from dataclasses import dataclass, replace

from dubio.sampling.memory import memory_in_words
from dubio.sampling.trying import Found, Mechanism

__all__ = ["GIVEN_AWAY", "JOINED", "DoesNotFitError", "Plan", "Use", "Wanted", "choose", "refusal"]

TIMES = {1: "once", 2: "twice"}
GROUPED_TO_LOOP = 7 * 2**26
"""About 850 images of 32x32 in a ResNet-18. At 512, mapped draws are twice as fast; at 1,000 looped ones take a fifth
less where there are a hundred, and more where there are 20; at 2,000 they take less in either case
(``engine_h200.json`` and ``peers_h200.json`` in ``benchmarks/results``)."""
BYTES_PER_DRAW_TO_LOOP = 6 * 2**20
"""Of drawn weights and what they are multiplied with, on a CPU: 1-400-400-1 takes 130 ms mapped and 88 looped for 2,000
rows and ten draws on one core, where a draw has 24 MiB."""
FEW_DRAWS = 32
"""For fewer it takes half as many images again."""


class DoesNotFitError(ValueError):
    """A memory limit that leaves no room for a run."""


@dataclass(frozen=True)
class Plan:
    """How so many draws run, what that takes, and why."""

    executor: Mechanism
    num_samples: int
    chunk: int
    """Draws at a time."""
    recompute: bool
    """Whether chunks are computed anew in the backward pass."""
    bytes_per_draw: int
    """What a draw takes; 0 where nothing was measured."""
    bytes_in_all: int
    """The most that is alive at once, the outputs of all draws included."""
    limit: int | None
    """What a run may take, where anything limits it."""
    reason: str
    moving: tuple[tuple[str, str], ...] = ()
    """Tensors that a forward changes: name of the module, name of the tensor."""
    draws_itself: bool = True
    """Whether the network draws from torch's global generator itself; true where nobody has looked."""

    def __str__(self) -> str:
        at_a_time = "all at once" if self.chunk >= self.num_samples else f"{self.chunk} at a time"
        again = ", computed anew in the backward pass" if self.recompute else ""
        each, in_all = memory_in_words(self.bytes_per_draw), memory_in_words(self.bytes_in_all)
        limit = "no limit" if self.limit is None else f"limit {memory_in_words(self.limit)}"
        return "\n".join(
            [
                f"executor  {self.executor}",
                f"draws     {self.num_samples}, {at_a_time}{again}",
                f"memory    {each} a draw, {in_all} in all, {limit}" if self.bytes_in_all else "memory    not measured",
                f"why       {self.reason}",
            ]
        )


@dataclass(frozen=True)
class Use:
    """What becomes of outputs, for a limit that someone set."""

    kept: float = 0.0
    """How many times the outputs of all draws for these rows are in memory in the end, where they come in chunks."""
    beside: float = 0.0
    """How many times they are kept however they come."""
    consumed: int = 0
    """Bytes that are taken beside each byte of a chunk's outputs, once they are there."""
    advice: str = ""
    """What else helps where there is no room."""


JOINED = Use(kept=2.0)
"""All in one tensor: as they come and joined, or joined and their gradients."""
GIVEN_AWAY = Use()
"""Chunk by chunk to someone who keeps nothing."""


@dataclass(frozen=True)
class Wanted:
    """What a plan is asked for."""

    num_samples: int
    size: int
    """Number of elements of the inputs."""
    rows: int
    gradient_bytes: int | None
    """What the gradients of all parameters take; None without gradients."""
    limit: int | None
    strict: bool
    """Whether the limit was set by someone, and is kept or refused."""
    chunk: int | None = None
    """Draws at a time, at most, where asked for."""
    use: Use = JOINED
    most: int | None = None
    """Draws at a time, where more ran out of memory."""
    halvings: int = 0


@dataclass(frozen=True)
class _Takes:
    """What a run takes for the inputs at hand, in bytes."""

    lines: tuple[tuple[int, int], ...]
    each: int
    kept: int
    """For what all draws leave: outputs, and gradients of parameters."""
    beside: int
    """For what is kept of them however they come; part of the lines."""

    def at_once(self, draws: int) -> int:
        """What draws take that run at the same time."""
        return max(shared + draws * each for shared, each in self.lines)

    def fitting(self, limit: int) -> int:
        """How many draws at a time fit into a limit; fewer than one where none does."""
        left = limit - self.kept
        return min((left - shared) // max(each, 1) for shared, each in self.lines)


def choose(found: Found, wanted: Wanted) -> Plan | None:
    """The plan; None where a strict limit cannot be kept."""
    why = _why_looped(found, wanted)
    if why:
        found = replace(found, executor="loop", reason=f"{why}; {found.reason}")
    takes = _takes(found, wanted)
    gradients = wanted.gradient_bytes is not None
    careful = wanted.strict or gradients
    at_once = takes.at_once(wanted.num_samples) if careful else wanted.num_samples * takes.each
    fits = wanted.limit is None or at_once <= wanted.limit
    most = min(wanted.most or wanted.num_samples, wanted.num_samples)
    recompute = gradients and not found.obstacle and (not fits or most < wanted.num_samples)
    if found.executor == "loop":
        chunk = 1
    elif gradients and not recompute:
        chunk = wanted.chunk or wanted.num_samples
    elif fits or wanted.limit is None or not (careful or wanted.chunk is None):
        chunk = min(wanted.chunk or most, most)
    else:
        fitting = takes.fitting(wanted.limit) if careful else wanted.limit // max(takes.each, 1)
        chunk = min(wanted.chunk or most, most, fitting)
    chunk = max(1, min(chunk, wanted.num_samples))
    in_chunks = chunk < wanted.num_samples and (recompute or not gradients)
    in_all = takes.kept + takes.at_once(chunk) if in_chunks else takes.at_once(wanted.num_samples)
    if wanted.strict and wanted.limit is not None and in_all > wanted.limit:
        return None
    words = _words(found, wanted, takes, chunk, recompute)
    return Plan(
        found.executor,
        wanted.num_samples,
        chunk,
        recompute,
        takes.each,
        in_all,
        wanted.limit,
        words,
        found.moving,
        found.draws_itself,
    )


def _why_looped(found: Found, wanted: Wanted) -> str:
    """Why draws that can be mapped are faster one by one; nothing where they are not."""
    if found.executor == "loop":
        return ""
    gradients = wanted.gradient_bytes is not None
    # Where there are gradients all rows were tried; rows that are only predicted may be many more.
    scale = 1.0 if gradients else max(1.0, _scale(found, wanted))
    if scale * found.streamed > BYTES_PER_DRAW_TO_LOOP:
        return "draws of this size run faster one by one on a CPU"
    if gradients or found.moving:
        return ""
    enough = GROUPED_TO_LOOP if wanted.num_samples >= FEW_DRAWS else 1.5 * GROUPED_TO_LOOP
    is_grouped = _scale(found, wanted) * found.grouped >= enough
    return "so many rows are convolved faster draw by draw" if is_grouped else ""


def refusal(found: Found, wanted: Wanted) -> DoesNotFitError:
    """Why a limit cannot be kept, and what to do."""
    takes = _takes(found, wanted)
    one, left = memory_in_words(takes.at_once(1) - takes.beside), takes.kept + takes.beside
    limit = memory_in_words(wanted.limit or 0)
    if wanted.gradient_bytes is not None and found.obstacle:
        return DoesNotFitError(
            f"memory_limit must leave room for the graph of {wanted.num_samples} draws, {one} each at {wanted.rows} "
            f"rows, since they cannot be computed anew: {found.obstacle}; got {limit}; give fewer rows or draws at a "
            "time, or allow more"
        )
    kept = f" and {memory_in_words(left)} for what all draws leave" if left else ""
    return DoesNotFitError(
        f"memory_limit must leave room for one draw, {one} at {wanted.rows} rows{kept}, got {limit}; "
        f"give fewer rows at a time (batch_size), {wanted.use.advice}or allow more"
    )


def _takes(found: Found, wanted: Wanted) -> _Takes:
    scale = max(1.0, _scale(found, wanted))
    lines = tuple((math.ceil(scale * shared), math.ceil(scale * each)) for shared, each in found.lines)
    output = math.ceil(scale * found.bytes_per_output)
    if found.executor == "loop":  # every draw repeats everything
        lines = ((0, max(shared + each for shared, each in lines)),)
    each = max(each for _, each in lines)
    kept, beside = (math.ceil(times * wanted.num_samples * output) for times in (wanted.use.kept, wanted.use.beside))
    if wanted.strict:
        lines = (*lines, (0, (1 + wanted.use.consumed) * output))
        lines = tuple((shared + beside, each) for shared, each in lines)
    return _Takes(lines, each, kept + (wanted.gradient_bytes or 0), beside)


def _scale(found: Found, wanted: Wanted) -> float:
    """How many times what was tried is wanted."""
    return wanted.size / max(found.size, 1)


def _words(found: Found, wanted: Wanted, takes: _Takes, chunk: int, recompute: bool) -> str:
    if chunk >= wanted.num_samples:
        amount = f"all {wanted.num_samples} draws at once"
    else:
        amount = f"{chunk} draws at a time" if chunk > 1 else "one draw at a time"
    if found.executor == "loop" and wanted.gradient_bytes is not None and not recompute:
        amount += f", the graphs of all {wanted.num_samples} kept"
    amount += f": {memory_in_words(takes.each)} each"
    if wanted.limit is not None:
        amount += f" within a {'limit' if wanted.strict else 'budget'} of {memory_in_words(wanted.limit)}"
    if recompute:
        amount += ", computed anew in the backward pass"
    if wanted.chunk == chunk and found.executor != "loop":
        amount += ", as asked for"
    if wanted.halvings:
        times = TIMES.get(wanted.halvings, f"{wanted.halvings} times")
        amount += f"; halved {times} after running out of memory"
    return f"{found.reason}; {amount}"
