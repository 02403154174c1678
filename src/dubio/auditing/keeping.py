"""What an audit has done so far, on disk: an interrupted one goes on from there."""

import dataclasses
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from dubio.auditing.values import CheckRecord
from dubio.codec import check_regular, dump_json, parse_json, read_json, read_value, write_atomically

__all__ = ["Keeper", "Kept"]

FOLDER = "audit-parts"


@dataclass(frozen=True, eq=False)
class Kept:
    """An attack's result, as far as an audit needs it."""

    inputs: Tensor
    forwards: int
    backwards: int
    seconds: float


@dataclass(frozen=True)
class _Cost:
    """What the file of an attack says beside its images."""

    forwards: int
    backwards: int
    seconds: float


class Keeper:
    """Keeps attacks and checks that are finished; without a folder, keeps nothing.

    ``settings`` say which audit this is: parts of another one are not taken for its own.
    """

    def __init__(self, folder: Path | None, settings: dict[str, Any]) -> None:
        self._folder = None if folder is None else folder / FOLDER
        if self._folder is None:
            return
        said = json.dumps(settings, sort_keys=True, default=str)
        marker = self._folder / "settings.json"
        if self._folder.is_dir() and (not marker.is_file() or marker.read_bytes() != said.encode()):
            shutil.rmtree(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(marker, said.encode())

    def find(self, name: str) -> Kept | None:
        """The result of an attack of this audit, where it is finished."""
        file = self._file(name, "safetensors")
        if file is None or not file.is_file():
            return None
        try:
            check_regular(file)
            with safe_open(file, framework="pt") as content:
                cost = read_value(_Cost, parse_json((content.metadata() or {})["dubio"], str(file)))
                return Kept(content.get_tensor("inputs"), cost.forwards, cost.backwards, cost.seconds)
        except (SafetensorError, KeyError, ValueError):
            return None  # written by something else, or damaged: run it again

    def keep(self, name: str, result: Kept) -> Kept:
        """Keep the result of an attack, and give it back."""
        file = self._file(name, "safetensors")
        if file is not None:
            cost = {"forwards": result.forwards, "backwards": result.backwards, "seconds": result.seconds}
            images = {"inputs": result.inputs.cpu().contiguous()}
            write_atomically(file, to_bytes(images, {"dubio": dump_json(cost)}))
        return result

    def find_check(self, id: str) -> CheckRecord | None:
        """A check of this audit, where it is finished."""
        file = self._file(f"check {id}", "json")
        if file is None or not file.is_file():
            return None
        try:
            return read_value(CheckRecord, read_json(file))
        except ValueError:
            return None

    def keep_check(self, record: CheckRecord) -> None:
        """Keep a finished check."""
        file = self._file(f"check {record.id}", "json")
        if file is not None:
            write_atomically(file, dump_json(dataclasses.asdict(record)).encode())

    def finish(self) -> None:
        """Throw the parts away: the audit is whole."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, name: str, ending: str) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}.{ending}"
