"""Records: frozen values that go to a JSON file and back, with a format that says which kind they are."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from dubio.persistence.atomic import write_atomically
from dubio.persistence.reading import read_value

__all__ = ["Record"]

R = TypeVar("R", bound="Record")


class Record:
    """What all records share; each is a frozen dataclass of plain values."""

    format: ClassVar[str]
    """The first field of the file."""
    called: ClassVar[str]
    """What messages call it: ``an evaluation``."""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {"format": self.format, **asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def from_json(cls: type[R], data: Any) -> R:
        """Back from JSON."""
        if not isinstance(data, dict) or data.get("format") != cls.format:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"{cls.called} must have format {cls.format!r}, got {found!r}")
        return read_value(cls, {name: value for name, value in data.items() if name != "format"})

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all."""
        write_atomically(Path(path), (json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n").encode())

    @classmethod
    def load(cls: type[R], path: str | Path) -> R:
        """Read it from a file."""
        try:
            return cls.from_json(json.loads(Path(path).read_text()))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} does not hold {cls.called}: {error}") from error
