"""What a protocol is given: the settings of one cell, a seed, a device, and a place for what cells share."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from dubio.codec import write_atomically
from dubio.version import hardware_of
from dubio_lab.results import commit_here

try:
    import fcntl
except ImportError:  # where there is no such lock, two processes may make the same thing twice; the last one is kept
    fcntl = None  # type: ignore[assignment]

__all__ = ["Learned", "Trial"]

JUDGING = 1000
"""Added to a trial's seed for draws that judge."""

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class Learned(Generic[Module]):
    """A network after training, and numbers along the way."""

    model: Module
    history: dict[str, Tensor]


@dataclass(frozen=True)
class Trial:
    """One cell with one seed."""

    settings: dict[str, Any]
    seed: int
    device: torch.device
    shared: Path
    """Folder of what trials make once and share: trained networks, perturbed images."""
    pictures: Path
    """Where pictures of this trial go, as the beginning of their names."""
    tell: Callable[[str], None] = lambda text: None
    """Say how far it is, in a line."""
    origins: dict[str, str] = field(default_factory=dict, compare=False)
    """Where what it shares was made: by the file, the commit and the hardware. Filled by ``kept``."""

    @property
    def judging_seed(self) -> int:
        """For draws that judge: not those that chose an epoch in training, which have the trial's own."""
        return JUDGING + self.seed

    def kept(self, what: dict[str, Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Tensors that other trials may have made already; made here where nobody has, one process at a time.

        Args:
            what: all that they depend on, as plain values: the seed, the data, every setting that has a part in them.
            make: makes them.
        """
        return {name: value.to(self.device) for name, value in self._kept(what, make).items()}

    def _kept(self, what: dict[str, Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The same where they lie, on the CPU."""
        self.shared.mkdir(parents=True, exist_ok=True)
        described, file = json.dumps(what, sort_keys=True), self._file(what)
        with _locked(file.with_suffix(".lock")):
            if not file.is_file():
                made = {name: value.detach().cpu().contiguous() for name, value in make().items()}
                origin = {"commit": str(commit_here()), "hardware": hardware_of(self.device)}
                write_atomically(file, save(made, metadata={"what": described, **origin}))
                shutil.rmtree(file.with_suffix(".training"), ignore_errors=True)
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
            self.origins[file.stem] = f"{metadata['commit']}, {metadata['hardware']}"
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118

    def _file(self, what: dict[str, Any]) -> Path:
        described = json.dumps(what, sort_keys=True)
        return self.shared / f"{hashlib.sha256(described.encode()).hexdigest()[:24]}.safetensors"

    def checkpoints(self, what: dict[str, Any]) -> Path:
        """Folder of the checkpoints of a training that ``learned`` describes so; removed when what it gave is kept.

        ``fit`` with this folder and ``resume=True`` goes on where a run was interrupted, or begins.
        """
        return self._file(self._learned(what)).with_suffix(".training")

    def _learned(self, what: dict[str, Any]) -> dict[str, Any]:
        return {"learned": what, "seed": self.seed}

    def learned(
        self, what: dict[str, Any], build: Callable[[], Module], train: Callable[[Module], dict[str, Tensor]]
    ) -> Learned[Module]:
        """A network as it is after training, on the trial's device, and how it went, in numbers on the CPU.

        It is trained once for all trials that describe it so.

        Args:
            what: all that the network and its history depend on but the seed, which is added; see ``kept``.
            build: makes the network as it begins; what it draws at random follows from the trial's seed.
            train: trains it in place and gives the numbers to keep.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = build().to(self.device)

        def make() -> dict[str, Tensor]:
            history = train(model)
            state = {f"model.{name}": value for name, value in model.state_dict().items()}
            return state | {f"history.{name}": value for name, value in history.items()}

        kept = self._kept(self._learned(what), make)
        model.load_state_dict(_behind("model.", kept))
        return Learned(model.eval(), _behind("history.", kept))

    def trained(self, what: dict[str, Any], build: Callable[[], Module], train: Callable[[Module], object]) -> Module:
        """A network as it is after training; ``learned`` without any numbers."""

        def only_train(model: Module) -> dict[str, Tensor]:
            train(model)
            return {}

        return self.learned(what, build, only_train).model

    def draw(self, name: str, draw: Callable[[Path], object]) -> None:
        """Draw a picture of this trial; where there is nothing to draw with, that is said and the numbers are kept.

        Args:
            name: the end of its file's name.
            draw: draws it into a file.
        """
        self.pictures.parent.mkdir(parents=True, exist_ok=True)
        try:
            draw(self.pictures.with_name(f"{self.pictures.name}-{name}.png"))
        except ImportError as missing:
            self.tell(f"no picture: {missing}")


def _behind(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """For one process at a time."""
    with path.open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
