"""A reader of pickles with numpy arrays and plain containers, which does not run them.

A pickle is a program. Python's own reader imports the names in it and calls them. This reader supports only the
instructions that build numbers, texts, lists, tuples, dictionaries and arrays of numbers. It imports nothing and calls
nothing: an array is made from its type, shape and bytes, without numpy's hooks for pickles. All other instructions and
names are refused. Memory is proportional to the size of the file, because sizes in the pickle are compared with its
bytes first. ``tests/data/test_pickles.py`` tests this with pickles that try to break each rule.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dubio.data.files import DataError

NUMBERS = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"})
MAX_INSTRUCTIONS = 2**21
"""Ten times as many as CIFAR-100 has; an instruction of one byte can make an object of sixty bytes."""
TYPE, ARRAY, RECONSTRUCT, FROM_BUFFER = "dtype", "ndarray", "_reconstruct", "_frombuffer"
ADMITTED = {("numpy", TYPE), ("numpy", ARRAY)}
ADMITTED |= {("numpy.core.multiarray", RECONSTRUCT), ("numpy._core.multiarray", RECONSTRUCT)}
ADMITTED |= {("numpy.core.numeric", FROM_BUFFER), ("numpy._core.numeric", FROM_BUFFER)}


def parse_pickle(content: bytes, file: str) -> dict[str, Any]:
    """The dictionary in a pickle: its keys are texts, its values numbers, texts, containers and arrays.

    Texts of Python 2 become bytes, because it has one type for both.

    Raises:
        DataError: the pickle is damaged or has anything else. Nothing of it was run.
    """
    try:
        value = _Reader(content, file).read()
    except (IndexError, KeyError, struct.error, UnicodeDecodeError):
        raise DataError(f"{file} is not a whole pickle; fetch it again") from None
    if not isinstance(value, dict):
        raise DataError(f"{file} must hold a dictionary, got {type(value).__name__}")
    if any(isinstance(entry, _Array) and entry.value is None for entry in value.values()):
        raise DataError(f"{file} has an array without contents; fetch it again")
    return {_text(key): entry.value if isinstance(entry, _Array) else entry for key, entry in value.items()}


@dataclass(slots=True, eq=False)
class _Name:
    """One of the admitted names of numpy; the object itself has no behaviour."""

    name: str


@dataclass(slots=True, eq=False)
class _Type:
    """The type of the numbers of an array, such as ``u1``, and their byte order."""

    code: str
    order: str = "="


@dataclass(slots=True, eq=False)
class _Array:
    """An array, which is created first and filled later."""

    value: NDArray[Any] | None = None


class _Reader:
    """The state of the reader: a stack, a memory, and a position in the pickle."""

    def __init__(self, content: bytes, file: str) -> None:
        self.content, self.file, self.place = content, file, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memory: dict[int, Any] = {}

    def read(self) -> Any:
        """Execute the supported instructions up to the end."""
        left = MAX_INSTRUCTIONS
        while (code := self.take(1)[0]) != STOP:
            left -= 1
            if left < 0:
                self.refuse(f"has more than {MAX_INSTRUCTIONS} instructions")
            instruction = INSTRUCTIONS.get(code)
            if instruction is None:
                self.refuse(f"has the instruction 0x{code:02x}")
            instruction(self)
        return self.stack.pop()

    def take(self, count: int) -> bytes:
        """The next bytes."""
        end = self.place + count
        if end > len(self.content):
            raise DataError(f"{self.file} is truncated or not a pickle: it ends within an instruction; fetch it again")
        taken = self.content[self.place : end]
        self.place = end
        return taken

    def number(self, size: int, signed: bool = False) -> int:
        """The next integer of ``size`` bytes."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def line(self) -> str:
        """The next line of text."""
        end = self.content.find(b"\n", self.place, self.place + 256)
        if end < 0:
            raise DataError(f"{self.file} is truncated or not a pickle: a name has no end; fetch it again")
        return self.take(end + 1 - self.place)[:-1].decode()

    def since_mark(self) -> list[Any]:
        """Remove the items since the last mark from the stack and return them."""
        start = self.marks.pop()
        taken, self.stack[start:] = self.stack[start:], []
        return taken

    def name(self, module: Any, name: Any) -> None:
        """Push one of the admitted names."""
        if not isinstance(module, str) or not isinstance(name, str):  # a tuple might take years to print
            self.refuse("asks for a name that is not a text")
        if (module, name) not in ADMITTED:
            self.refuse(f"asks for {module[:80]}.{name[:80]}")
        self.stack.append(_Name(name))

    def call(self) -> None:
        """Create the object of an admitted name, a type or an array."""
        given, called = self.stack.pop(), self.stack.pop()
        kind = called.name if isinstance(called, _Name) else None
        if kind == TYPE and _are(given, (str, bytes), (int,), (int,)) and _text(given[0]) in NUMBERS:
            self.stack.append(_Type(_text(given[0])))
        elif kind == RECONSTRUCT and _are(given, (_Name,), (tuple,), (str, bytes)) and given[0].name == ARRAY:
            self.stack.append(_Array())
        elif kind == FROM_BUFFER and _are(given, (bytes, bytearray), (_Type,), (tuple,), (str, bytes)):
            self.stack.append(_Array(self.filled(given[2], given[1], _text(given[3]) == "F", given[0])))
        else:
            self.refuse("calls something that makes no array of numbers")

    def state(self) -> None:
        """Set the byte order of a type, or the contents of an array."""
        given, target = self.stack.pop(), self.stack[-1]
        order_alone = (str, bytes), *[(NoneType,)] * 3
        if isinstance(target, _Type) and isinstance(given, tuple) and _are(given[1:5], *order_alone):
            target.order = _text(given[1])
        elif isinstance(target, _Array) and _are(given, (int,), (tuple,), (_Type,), (int,), (bytes, bytearray)):
            target.value = self.filled(given[1], given[2], bool(given[3]), given[4])
        else:
            self.refuse("sets the state of something that is not an array of numbers")

    def filled(self, shape: Any, type: _Type, columns_first: bool, content: bytes) -> NDArray[Any]:
        """An array from its bytes."""
        if type.order not in ("<", ">", "|", "="):
            self.refuse("has an array whose numbers have no order of bytes")
        dtype = np.dtype(type.order + type.code)
        sizes = [size for size in shape if isinstance(size, int) and size > 0]
        if len(sizes) != len(shape) or len(shape) > 32 or math.prod(sizes) * dtype.itemsize != len(content):
            raise DataError(
                f"{self.file} has an array whose shape does not fit its {len(content)} bytes; fetch it again"
            )
        return np.frombuffer(content, dtype).reshape(sizes, order="F" if columns_first else "C")

    def entries(self, items: list[Any]) -> None:
        """Put keys and values into the dictionary on the stack."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            self.refuse("puts an entry into something that is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes):
                self.refuse("has a key that is not a text")
            target[key] = value

    def elements(self, items: list[Any]) -> None:
        """Put elements into the list on the stack."""
        target = self.stack[-1]
        if not isinstance(target, list):
            self.refuse("puts an element into something that is not a list")
        target.extend(items)

    def refuse(self, what: str) -> NoReturn:
        """Raise the error for a pickle with contents that are not supported."""
        raise DataError(
            f"{self.file} {what}: a pickle may hold only numpy arrays of numbers and plain containers; "
            "nothing of it was run, do not trust this file"
        )


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value


def _are(values: Any, *kinds: tuple[type, ...]) -> bool:
    return (
        isinstance(values, tuple)
        and len(values) == len(kinds)
        and all(isinstance(value, kind) for value, kind in zip(values, kinds, strict=True))
    )


def _push(make: Callable[[_Reader], Any]) -> Callable[[_Reader], None]:
    return lambda reader: reader.stack.append(make(reader))


def _tuple_of(count: int) -> Callable[[_Reader], None]:
    def push(reader: _Reader) -> None:
        items = tuple(reader.stack[-count:])
        if len(items) != count:
            raise IndexError
        reader.stack[-count:] = [items]

    return push


def _counted(size: int, text: bool = False) -> Callable[[_Reader], None]:
    """Bytes, or a text, with their number first."""
    if text:
        return _push(lambda reader: reader.take(reader.number(size)).decode("utf-8", "surrogatepass"))
    return _push(lambda reader: reader.take(reader.number(size)))


def _remember(index: Callable[[_Reader], int]) -> Callable[[_Reader], None]:
    return lambda reader: reader.memory.__setitem__(index(reader), reader.stack[-1])


STOP = ord(".")
INSTRUCTIONS: dict[int, Callable[[_Reader], object]] = {
    0x80: lambda reader: reader.take(1),  # version of the format
    0x95: lambda reader: reader.take(8),  # length of a section
    # numbers and the like
    ord("N"): _push(lambda reader: None),
    0x88: _push(lambda reader: True),
    0x89: _push(lambda reader: False),
    ord("K"): _push(lambda reader: reader.number(1)),
    ord("M"): _push(lambda reader: reader.number(2)),
    ord("J"): _push(lambda reader: reader.number(4, signed=True)),
    0x8A: _push(lambda reader: reader.number(reader.number(1), signed=True)),
    ord("G"): _push(lambda reader: struct.unpack(">d", reader.take(8))[0]),
    # texts and bytes
    **{code: _counted(size, text=True) for code, size in zip(b"X\x8c\x8d", (4, 1, 8), strict=True)},
    **{code: _counted(size) for code, size in zip(b"UT", (1, 4), strict=True)},  # texts of Python 2
    **{code: _counted(size) for code, size in zip(b"CB\x8e\x96", (1, 4, 8, 8), strict=True)},
    # containers
    ord("}"): _push(lambda reader: {}),
    ord("]"): _push(lambda reader: []),
    ord(")"): _push(lambda reader: ()),
    ord("("): lambda reader: reader.marks.append(len(reader.stack)),
    ord("t"): _push(lambda reader: tuple(reader.since_mark())),
    **{code: _tuple_of(count) for count, code in enumerate(b"\x85\x86\x87", start=1)},
    ord("a"): lambda reader: reader.elements([reader.stack.pop()]),
    ord("e"): lambda reader: reader.elements(reader.since_mark()),
    ord("s"): lambda reader: reader.entries([reader.stack.pop() for _ in range(2)][::-1]),
    ord("u"): lambda reader: reader.entries(reader.since_mark()),
    # memory
    ord("q"): _remember(lambda reader: reader.number(1)),
    ord("r"): _remember(lambda reader: reader.number(4)),
    0x94: _remember(lambda reader: len(reader.memory)),
    ord("h"): _push(lambda reader: reader.memory[reader.number(1)]),
    ord("j"): _push(lambda reader: reader.memory[reader.number(4)]),
    # arrays
    ord("c"): lambda reader: reader.name(reader.line(), reader.line()),
    0x93: lambda reader: reader.name(*[reader.stack.pop() for _ in range(2)][::-1]),
    ord("R"): _Reader.call,
    ord("b"): _Reader.state,
}
