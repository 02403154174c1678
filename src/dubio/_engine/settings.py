"""How noise is drawn: the settings that context managers put in force, one set per thread.

Three modes: *fresh* (the default: new noise each time, from the generator of the run, if it has one, else from torch's
global one), *frozen* (noise is a function of seed, posterior and draw index, so that draws repeat) and *off* (the mean
network). ``antithetic`` pairs each even draw with its mirror image.

The settings live in a ``threading.local`` that sets its fields in ``__init__``. Both are required: a ``ContextVar``
does not compile, and a class-attribute default makes a compiled network silently reuse the graph it was first traced
with (``tests/engine/test_traps.py``). The seed is a tensor for the same reason: a Python number would be a constant of
the compiled graph, and each new seed a recompilation.
"""

import dataclasses
import operator
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from dubio._engine.memory import parse_memory

if TYPE_CHECKING:
    from dubio._engine.host_rng import Stream, Watch
    from dubio._engine.passes import Pass


Mode = Literal["fresh", "frozen", "off"]
Estimator = Literal["weight", "local", "flipout"]


@dataclass(frozen=True, eq=False)
class Settings:
    """The settings of every pass that is opened under them."""

    mode: Mode = "fresh"
    seed: Tensor | None = None
    """0-dimensional int64 on the CPU; None unless frozen."""
    antithetic: bool = False
    estimator: Estimator | None = None
    """Overrides the estimator of every layer, if given."""
    first_row: int = 0
    """The number of the first row in the whole data: frozen noise of activations belongs to a row, not to a batch."""
    num_rows: int | None = None
    """Number of rows in the batch, if given: a layer that sees a multiple of them has folded positions into rows."""
    memory: int | None = None
    """Bytes that a run of several draws may take beyond the network and its inputs, if limited."""


class _Own:
    """The state of one thread.

    A plain object behind the thread-local: a compiled frame writes attributes of such an object back, but not those of
    the thread-local itself, and the hooks of a compiled network run in separate frames.
    """

    def __init__(self) -> None:
        self.settings: Settings = Settings()
        self.current: Pass | None = None
        self.stream: Stream | None = None
        """The source of random numbers in this thread; None for the global generators."""
        self.watch: Watch | None = None
        """Notices the draws of this thread, where a network is probed."""

    @property
    def private_stream(self) -> "Stream | None":
        """The stream in use, unless the global generators give its numbers."""
        return None if self.stream is None or self.stream.is_lent else self.stream


class _State(threading.local):
    def __init__(self) -> None:
        self.own = _Own()


STATE = _State()


class Using:
    """Context manager that changes settings in this thread and restores the former ones on exit."""

    def __init__(self, **changes: object) -> None:
        self._changes = changes
        self._former: list[Settings] = []

    def __enter__(self) -> None:
        self._former.append(STATE.own.settings)
        STATE.own.settings = dataclasses.replace(STATE.own.settings, **self._changes)  # type: ignore[arg-type]

    def __exit__(self, *error: object) -> None:
        STATE.own.settings = self._former.pop()


def fresh() -> Using:
    """New noise for every pass: the default, also inside ``frozen`` or ``noise_off``."""
    return Using(mode="fresh", seed=None)


def frozen(seed: int | Tensor = 0) -> Using:
    """The same draws every time: noise becomes a function of seed, posterior and draw index.

    Chunk size and executor do not change a draw. A plain ``model(inputs)`` is draw 0.

    >>> with dubio.frozen(seed=3):
    ...     a, b = model(inputs), model(inputs)  # equal
    """
    return Using(mode="frozen", seed=seed_tensor(seed))


def noise_off() -> Using:
    """The mean network: every stochastic layer computes with its means."""
    return Using(mode="off", seed=None)


def antithetic() -> Using:
    """Draws 2i and 2i + 1 mirror each other: their noise has opposite signs, so that odd errors cancel in the mean."""
    return Using(antithetic=True)


def memory_limit(limit: int | str) -> Using:
    """Limit the memory of a run of several draws, beyond the network and its inputs: bytes, or a text like ``"2 GiB"``.

    Draws run in chunks that fit; with gradients, chunks are recomputed in the backward pass where the graph of all
    draws would not fit. The limit changes no draw. A limit that not even one draw fits into is refused.

    >>> with dubio.memory_limit("512 MiB"):
    ...     draws = dubio.sample(model, inputs, num_samples=1000)
    """
    if isinstance(limit, str):
        return Using(memory=parse_memory(limit))
    if isinstance(limit, bool) or not hasattr(limit, "__index__"):
        raise TypeError(f"limit must be a number of bytes or a text such as '512 MiB', got {limit!r}")
    if operator.index(limit) < 1:
        raise ValueError(f"limit must be at least 1 byte, got {limit}")
    return Using(memory=operator.index(limit))


def settings_for_run(seed: int | Tensor | None) -> Settings:
    """The settings in force, with ``seed`` if given; noise that is off stays off."""
    settings = STATE.own.settings
    if seed is not None and settings.mode != "off":
        settings = dataclasses.replace(settings, mode="frozen", seed=seed_tensor(seed))
    if settings.mode == "fresh" and settings.antithetic:
        # A mirrored pair needs the same noise twice; with a seed drawn here it is a function of the draw again.
        settings = dataclasses.replace(settings, seed=new_seed(2**62))
    return settings


def generator_for(device: torch.device) -> torch.Generator | None:
    """The generator that the engine draws from in this thread; None for the global one.

    Compiled code always draws from the global one: it does not accept another (``host_rng.Stream.lent``).
    """
    if torch.compiler.is_compiling() or device.type == "meta":
        return None
    stream, watch = STATE.own.private_stream, STATE.own.watch
    if stream is not None:
        return stream.generator(device)
    # Passed explicitly under a watch, so that it can distinguish the engine's draws from those of the network.
    return None if watch is None else watch.default_generator(device)


def new_seed(most: int) -> Tensor:
    """A seed below a bound, from the generator that the engine draws from in this thread."""
    if (generator := generator_for(torch.device("cpu"))) is None:
        return torch.randint(most, (), device="cpu")
    return torch.randint(most, (), generator=generator, device="cpu")


def check_module(model: object) -> None:
    """Raise an error for anything but a network."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")


def device_of(model: nn.Module) -> torch.device | None:
    """The device of a network's first parameter; None without parameters."""
    return next((parameter.device for parameter in model.parameters()), None)


def check_num_samples(num_samples: int) -> None:
    """Raise an error for anything but a number of draws."""
    if not torch.compiler.is_compiling() and (isinstance(num_samples, bool) or not hasattr(num_samples, "__index__")):
        raise TypeError(f"num_samples must be an int, got {num_samples!r}")
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")


def seed_tensor(seed: int | Tensor) -> Tensor:
    """The seed as a 0-dimensional int64 tensor on the CPU."""
    if isinstance(seed, Tensor):
        if seed.dim() != 0 or seed.dtype != torch.int64 or seed.device.type != "cpu":
            raise ValueError(
                f"seed must be an int or a 0-dimensional int64 tensor on the CPU, got shape {tuple(seed.shape)}, "
                f"{seed.dtype} on {seed.device}"
            )
        return seed
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"seed must be an int, got {seed!r}")
    seed = operator.index(seed)
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must fit into 64 bits, got {seed}")
    return torch.tensor(seed, dtype=torch.int64, device="cpu")
