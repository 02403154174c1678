"""Pickles without their teeth: arrays and containers come back, everything else is refused and nothing runs."""

import os
import pickle
import pickletools
import struct
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dubio.data.files import DataError
from dubio.data.pickles import parse_pickle

NESTED = {
    "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "wide": np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)),
    "labels": [0, 255, 256, 65536, -1, 10**12, 2.5, True, None],
    "names": ("one", b"two", "drei \N{LATIN SMALL LETTER U WITH DIAERESIS}", "x" * 300, b"y" * 300),
    "inner": {"list": [], "tuple": (), "pair": (1, (2, (3,)))},
}


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_arrays_and_containers_come_back(protocol: int) -> None:
    read = parse_pickle(pickle.dumps(NESTED, protocol), "file")
    assert read.keys() == NESTED.keys()
    for key in ("data", "wide"):
        np.testing.assert_array_equal(read[key], NESTED[key])
        assert read[key].dtype == NESTED[key].dtype
    assert [read[key] for key in ("labels", "names", "inner")] == [NESTED[key] for key in ("labels", "names", "inner")]


def test_a_pickle_of_python_2_has_its_texts_as_bytes_and_its_keys_as_texts() -> None:
    content = b"\x80\x02}q\x01(U\x05labelq\x02U\x03catq\x03U\x05againq\x04h\x03u."
    assert parse_pickle(content, "file") == {"label": b"cat", "again": b"cat"}


class Evil:
    """Pickles to a call of one's choice."""

    def __init__(self, called: Any, *args: object) -> None:
        self.called, self.args = called, args

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self.called, self.args


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("place", ["whole", "value", "inside"])
def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(protocol: int, place: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    evil = Evil(os.mkdir, str(trace))
    content = pickle.dumps({"whole": evil, "value": {"data": evil}, "inside": {"data": [1, (evil,)]}}[place], protocol)
    with pytest.raises(DataError, match="nothing of it was run, do not trust this file"):
        parse_pickle(content, "file")
    assert not trace.exists()
    pickle.loads(content)
    assert trace.exists()  # the pickle does what it was made for


def test_a_refusal_names_what_was_asked_for() -> None:
    with pytest.raises(DataError, match=r"^batch asks for builtins\.eval: a pickle may hold only numpy arrays"):
        parse_pickle(pickle.dumps({"data": Evil(eval, "1")}, 4), "batch")


FOREIGN = {
    "dictionary of another kind": OrderedDict(a=1),
    "set": {"a": {1, 2}},
    "complex number": {"a": 1j},
    "array of objects": {"a": np.array([[], {}], dtype=object)},
    "array with fields": {"a": np.zeros(2, dtype=[("b", "u1")])},
    "array of texts": {"a": np.array(["b"])},
    "array of dates": {"a": np.array(["2020-01-01"], dtype="datetime64[D]")},
    "number of numpy": {"a": np.int64(3)},
    "masked array": {"a": np.ma.masked_array([1], [True])},
    "key that is a number": {1: 2},
    "key that is a tuple": {("a",): 2},
}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_array_of_numbers_and_no_plain_container_is_refused(kind: str, protocol: int) -> None:
    with pytest.raises(DataError, match=r"nothing of it was run|does not fit"):
        parse_pickle(pickle.dumps(FOREIGN[kind], protocol), "file")


def test_what_is_no_dictionary_is_refused() -> None:
    with pytest.raises(DataError, match="file must hold a dictionary, got list"):
        parse_pickle(pickle.dumps([1, 2]), "file")


GLOBAL = b"cnumpy\nndarray\n"
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n" + GLOBAL + b"K\x00\x85C\x01b\x87R"
BYTES = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"


def state(shape: bytes, type: bytes, content: bytes) -> bytes:
    """An array with a state of one's choice, as the entry of a dictionary."""
    return b"\x80\x04}U\x01a" + RECONSTRUCT + b"(K\x01" + shape + type + b"\x89" + content + b"tbs."


TRICKS = {
    "array with more than it has bytes": state(b"J\xff\xff\xff\x7f\x85", BYTES, b"C\x04abcd"),
    "array of negative length": state(b"J\xff\xff\xff\xff\x85", BYTES, b"C\x04abcd"),
    "array of two negative lengths": state(b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86", BYTES, b"C\x01a"),
    "array without rows": state(b"K\x00\x85", BYTES, b"C\x00"),
    "array of objects": state(b"K\x01\x85", b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R", b"]K\x01a"),
    "array without a type": state(b"K\x01\x85", b"N", b"C\x01a"),
    "array that was never filled": b"}U\x01a" + RECONSTRUCT + b"s.",
    "array of another class": b"}U\x01acnumpy.core.multiarray\n_reconstruct\nU\x03intK\x00\x85U\x01b\x87Rs.",
    "state for a name": b"}U\x01a" + GLOBAL + b"}U\x08__code__K\x01sbs.",
    "state for a dictionary": b"}U\x01a}}bs.",
    "call of a call": b"}U\x01a" + RECONSTRUCT + b")Rs.",
    "name below a name": b"}U\x01a\x8c\x05numpy\x8c\x13ndarray.__getitem__\x93s.",
    "name that takes years to print": b"}U\x01a)" + b"q\x00h\x00\x86" * 60 + b"\x8c\x05dtype\x93s.",
    "key nested too deep to hash": b"}" + b")" + b"\x85" * 30000 + b"K\x01s.",
    "text longer than the file": b"}U\x01a\x8d" + struct.pack("<Q", 2**62) + b"abc",
    "bytes longer than the file": b"}U\x01a\x8e" + struct.pack("<Q", 2**40) + b"abc",
    "memory at a place far away": b"}r\xff\xff\xff\xffU\x01aj\xfe\xff\xff\xffs.",
    "name without an end": b"c" + b"a" * 500,
    "persistent name": b"}U\x01aU\x01bQs.",
    "extension": b"}U\x01a\x82\x01s.",
    "instance of a class": b"(cos\nsystem\nU\x04true\x81.",
    "tuple of nothing": b"\x87.",
    "mark that is not there": b"}u.",
    "nothing": b"",
    "end": b".",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_tricks_end_in_a_data_error(trick: str) -> None:
    with pytest.raises(DataError):
        parse_pickle(TRICKS[trick], "file")


def test_a_place_in_memory_far_away_costs_nothing() -> None:
    assert parse_pickle(b"}r\xff\xff\xff\xffU\x01aK\x01s.", "file") == {"a": 1}


def test_reading_imports_nothing() -> None:
    content = b"}U\x01acantigravity\nx\ns."
    with pytest.raises(DataError, match=r"asks for antigravity\.x"):
        parse_pickle(content, "file")
    assert "antigravity" not in sys.modules


def test_a_pickle_cut_anywhere_is_refused() -> None:
    content = pickle.dumps({"data": np.arange(6, dtype=np.uint8), "labels": [1, 2, 300]}, 4)
    for end in range(len(content)):
        with pytest.raises(DataError):
            parse_pickle(content[:end], "file")


instructions = st.sampled_from([code.code.encode("latin1") for code in pickletools.opcodes])
pieces = st.one_of(
    instructions, st.binary(max_size=6), st.sampled_from([GLOBAL, RECONSTRUCT, BYTES, b"U\x01a", b"K\x01"])
)
programs = st.lists(pieces, max_size=40).map(b"".join)


@given(st.one_of(st.binary(), programs, programs.map(lambda middle: b"}(U\x01a" + middle + b"u.")))
def test_any_bytes_are_a_dictionary_or_a_data_error(content: bytes) -> None:
    try:
        read = parse_pickle(content, "file")
    except DataError:
        return
    assert all(isinstance(key, str) for key in read)
    assert all(value.dtype.kind in "biuf" for value in read.values() if isinstance(value, np.ndarray))
