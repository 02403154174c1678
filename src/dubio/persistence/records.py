"""Records: frozen values that go to a JSON file and back, with a format that says which kind they are; and metrics."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from dubio.codec import (
    MAX_BYTES,
    RecordError,
    check_fields,
    dump_json,
    fits,
    parse_json,
    read_file,
    read_json_lines,
    read_value,
    write_atomically,
)

__all__ = ["Record", "read_history"]

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
            raise RecordError(f"{cls.called} must have format {cls.format!r}, got {found!r}")
        return read_value(cls, {name: value for name, value in data.items() if name != "format"})

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all."""
        write_atomically(Path(path), f"{dump_json(self.to_json(), indent=1)}\n".encode())

    @classmethod
    def load(cls: type[R], path: str | Path) -> R:
        """Read it from a file."""
        content = read_file(Path(path), MAX_BYTES)
        try:
            return cls.from_json(parse_json(content, "it"))
        except ValueError as error:
            raise RecordError(f"{path} does not hold {cls.called}: {error}") from error


def read_history(file: Path) -> tuple[dict[str, Any], ...]:
    """The metrics of all epochs in ``metrics.jsonl``; none where there is no file."""
    history = tuple(read_json_lines(file, nan_is_null=True)) if file.exists() else ()
    for number, metrics in enumerate(history, start=1):
        if not fits(int, metrics.get("epoch")):
            raise RecordError(f"{file} must have an epoch in every line; was it written by dubio train?")
        check_fields(metrics, dict.fromkeys(metrics, float | None), f"line {number} of {file}")
    return history
