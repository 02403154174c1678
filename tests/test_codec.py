"""The strict JSON reader, files written whole or not at all, and text that is safe to show."""

import dataclasses
import json
import os
import stat
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings, strategies as st

from dubio.codec import (
    RecordError,
    dump_json,
    fits,
    parse_json,
    printable,
    read_file,
    read_json,
    read_json_lines,
    read_value,
    write_atomically,
)
from dubio.evaluation.records import Evaluation


@pytest.mark.feature("Every record is read by one strict JSON reader, whose errors name the file")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "at most 64 levels"),
        ("[" * 65 + "]" * 65, "at most 64 levels"),
        ('{"a": ' * 300 + "1" + "}" * 300, "at most 64 levels"),
        ('{"a": NaN}', "numbers must be finite, got NaN"),
        ("-Infinity", "numbers must be finite, got -Infinity"),
        ("1e400", "within the range of a float, got 1e400"),
        ("1" + "0" * 400, "at most 64 bits"),
        ("1" + "0" * 5000, "at most 64 bits"),
        ("18446744073709551616", "at most 64 bits"),
        ('{"a": 1, "b": 2, "a": 3}', "each key must occur once, got 'a' twice"),
        (b"\xff{}", "invalid start byte"),
        ("{", "Expecting property name"),
        ("", "Expecting value"),
    ],
)
def test_what_is_no_strict_json_is_refused_with_the_name_of_the_file(text: str | bytes, reason: str) -> None:
    with pytest.raises(RecordError, match=rf"^some\.json cannot be read: .*{reason}"):
        parse_json(text, "some.json")


def test_what_json_can_say_is_read() -> None:
    value = {"a": [1, -0.5, None, True, "\u00e4\ud800"], "b": {"c": 2**64 - 1, "d": -(2**63)}}
    assert parse_json(json.dumps(value), "it") == value
    assert parse_json("[" * 64 + "]" * 64, "it")


def test_numbers_that_are_not_finite_are_written_as_null() -> None:
    text = dump_json({"a": float("nan"), "b": (float("inf"), 1.5), "c": {"d": float("-inf")}})
    assert parse_json(text, "it") == {"a": None, "b": [None, 1.5], "c": {"d": None}}


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:0123456789eE+-.NaInfty \\u', max_size=60))
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    try:
        value = parse_json(text, "it")
    except RecordError:
        return
    assert parse_json(dump_json(value), "it") == value


def test_a_line_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"epoch": 1}\n{"epoch": NaN}\n{"epoch": 3')
    with pytest.raises(RecordError, match=r"metrics\.jsonl cannot be read: line 2: numbers must be finite, got NaN"):
        read_json_lines(path)
    assert read_json_lines(path, nan_is_null=True) == [{"epoch": 1}, {"epoch": None}]  # the third is being written
    assert read_json_lines(path, count=1) == [{"epoch": 1}]
    with pytest.raises(RecordError, match="line 3"):
        read_json_lines(path, whole=True, nan_is_null=True)
    path.write_text("[]\n")
    with pytest.raises(RecordError, match="must hold objects, got a list in line 1"):
        read_json_lines(path)


@dataclasses.dataclass(frozen=True)
class Inner:
    share: float
    kind: Literal["a", "b"] = "a"


@dataclasses.dataclass(frozen=True)
class Outer:
    count: int
    inner: tuple[Inner, ...] = ()
    either: dict[str, str | bool] = dataclasses.field(default_factory=dict)
    pair: tuple[str, int] = ("", 0)
    maybe: float | None = None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"count": True}, "Outer.count has a value of the wrong kind, True"),
        ({"count": 1.0}, "Outer.count has a value of the wrong kind, 1.0"),
        ({"count": 1, "inner": [{"share": 10**400}]}, r"Outer.inner\[0\].share .* of more than 64 bits"),
        ({"count": 1, "inner": [{"share": "x"}]}, r"Outer.inner\[0\].share has a value of the wrong kind, 'x'"),
        ({"count": 1, "inner": [{"share": 1, "kind": []}]}, r"Outer.inner\[0\].kind"),
        ({"count": 1, "either": {"x": 1}}, "Outer.either.x has a value of the wrong kind, 1"),
        ({"count": 1, "pair": ["x"]}, "Outer.pair has a value of the wrong kind"),
        ({"count": 1, "maybe": float("nan")}, "Outer.maybe has a value of the wrong kind, nan"),
        ({"count": 1, "colour": 2}, r"Outer has unknown fields \['colour'\]"),
        ({}, "Outer cannot be read: .*count"),
        ([], "Outer has a value of the wrong kind"),
        ({"count": "x" * 10**6}, r"wrong kind, 'x{199}\.\.\."),
    ],
)
def test_fields_of_the_wrong_type_are_named(data: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        read_value(Outer, data)


def test_fields_of_the_right_type_are_read() -> None:
    data = {"count": 3, "inner": [{"share": 1}], "either": {"x": True, "y": "z"}, "pair": ["a", 2], "maybe": None}
    assert read_value(Outer, data) == Outer(3, (Inner(1.0),), {"x": True, "y": "z"}, ("a", 2))


def test_no_class_and_no_function_comes_from_a_file() -> None:
    assert not fits(type[int] | None, "int")
    assert fits(str | type[int], "int")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
@pytest.mark.timeout(10)
def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name, kind in (("fifo", "a FIFO"), ("device", "a device"), ("folder", "a folder")):
        with pytest.raises(RecordError, match=rf"{name} must be a regular file, got {kind}"):
            read_json(tmp_path / name)
        with pytest.raises(RecordError, match=rf"{name} must be a regular file, got {kind}"):
            Evaluation.load(tmp_path / name)


def test_a_file_beyond_its_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(RecordError, match="sparse must have at most 1000 bytes, got more"):
        read_file(tmp_path / "sparse", 1000)


def test_a_link_that_waits_for_the_writer_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    monkeypatch.setattr("os.urandom", bytes)
    (tmp_path / f".unfinished-{os.getpid()}-{bytes(8).hex()}").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    monkeypatch.undo()
    (tmp_path / "file").symlink_to(tmp_path / "victim")
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_names_of_unfinished_files_cannot_be_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    rename = os.replace
    monkeypatch.setattr("os.replace", lambda old, new: (names.append(Path(old).name), rename(old, new)))
    for _ in range(2):
        write_atomically(tmp_path / "file", b"new")
    assert len(set(names)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb\x07", r"a\x1b[31mb\x07"),
        ("a\x9bb\x7f\r", r"a\x9bb\x7f\x0d"),
        ("a\u202eb\u2066c\u2028", r"a\u202eb\u2066c\u2028"),
        ("caf\udce9", r"caf\xe9"),
        ("\ud800", r"\ud800"),
        ("two\nlines\tand \u00e4 \u4e16", "two\nlines\tand \u00e4 \u4e16"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown
    printable(text).encode()
