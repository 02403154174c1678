"""The generators that a network may draw from: torch's, and those of Python and NumPy on the host.

What a network draws on the host while it runs elsewhere is a constant to everything that records or maps its forward:
a replay repeats it, and mapped draws share it. So an attack looks whether these generators have moved.
"""

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["HOST", "Generators", "seeded_generator", "seeded_host"]

HOST = {"python", "numpy"}
LARGEST_OF_NUMPY = 2**32


class Generators:
    """Where the generators stood that a network on this device may draw from."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._states = _states(device)

    def moved(self) -> set[str]:
        """Those that have been drawn from since: ``python``, ``numpy``, ``cpu``, or the kind of the device."""
        return {name for name, state in _states(self._device).items() if state != self._states[name]}


@contextmanager
def seeded_generator(seed: int | None, device: torch.device) -> Iterator[None]:
    """Begun anew where there is a seed: the generators of the host, torch's of this device and no other's; else none.

    They are where they were when the block is left.
    """
    if seed is None:
        yield
        return
    generators = torch.default_generator, _generator(device)  # the same one twice on a CPU
    states = [generator.get_state() for generator in generators]
    with seeded_host(seed):
        for generator in generators:
            generator.manual_seed(seed)
        try:
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)


@contextmanager
def seeded_host(seed: int) -> Iterator[None]:
    """Python's and NumPy's generators begun anew; where they were when the block is left."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the one that networks use
    random.seed(seed)
    np.random.seed(seed % LARGEST_OF_NUMPY)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _generator(device: torch.device) -> torch.Generator:
    """Torch's on this device."""
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return torch.mps._get_default_mps_generator() if device.type == "mps" else torch.default_generator


def _states(device: torch.device) -> dict[str, object]:
    states: dict[str, object] = {
        "python": random.getstate(),
        "numpy": pickle.dumps(np.random.get_state(legacy=False)),  # noqa: NPY002
        "cpu": torch.get_rng_state().tolist(),
    }
    return states | {device.type: _generator(device).get_state().tolist()}
