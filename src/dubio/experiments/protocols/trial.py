"""What a protocol is given: the settings of one cell, a seed, a device, and a place for what cells share."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dubio.persistence.atomic import write_atomically

try:
    import fcntl
except ImportError:  # where there is no such lock, two processes may make the same thing twice; the last one is kept
    fcntl = None  # type: ignore[assignment]

__all__ = ["Trial"]

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Trial:
    """One cell with one seed."""

    settings: dict[str, Any]
    seed: int
    device: torch.device
    shared: Path
    """Folder of what trials make once and share: trained networks, perturbed images."""
    pictures: Path
    """Where pictures of this trial go, as the beginning of their names: ``trial.picture("images")``."""
    tell: Callable[[str], None] = lambda text: None
    """Say how far it is, in a line."""

    def kept(self, what: dict[str, Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Tensors that other trials may have made already; made here where nobody has, one process at a time.

        Args:
            what: all that they depend on, as plain values: the seed, the data, every setting that has a part in them.
            make: makes them.
        """
        described = json.dumps(what, sort_keys=True)
        self.shared.mkdir(parents=True, exist_ok=True)
        file = self.shared / f"{hashlib.sha256(described.encode()).hexdigest()[:24]}.safetensors"
        with _locked(file.with_suffix(".lock")):
            if not file.is_file():
                made = {name: value.detach().cpu().contiguous() for name, value in make().items()}
                write_atomically(file, save(made, metadata={"what": described}))
        return {name: value.to(self.device) for name, value in load_file(file).items()}

    def trained(self, what: dict[str, Any], build: Callable[[], Module], train: Callable[[Module], object]) -> Module:
        """A network as it is after training, on the trial's device; trained once for all trials that describe it so.

        Args:
            what: see ``kept``.
            build: makes the network as it begins. Seed whatever it draws.
            train: trains it in place.
        """
        model = build().to(self.device)

        def state() -> dict[str, Tensor]:
            train(model)
            return model.state_dict()

        model.load_state_dict(self.kept({"network": what}, state))
        return model.eval()

    def picture(self, name: str) -> Path:
        """Where a picture of this name belongs."""
        self.pictures.parent.mkdir(parents=True, exist_ok=True)
        return self.pictures.with_name(f"{self.pictures.name}-{name}.png")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """For one process at a time."""
    with path.open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
