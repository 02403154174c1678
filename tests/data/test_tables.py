"""Tables: arrays in a .npz, columns in a .csv or a parquet file."""

import builtins
import contextlib
import io
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, strategies as st
from pyarrow import parquet

from dubio.data.examples import Examples, Splits
from dubio.data.files import DataError
from dubio.data.tables import read_table


def all_of(splits: Splits) -> tuple[torch.Tensor, torch.Tensor]:
    """Every example of a table that was split three ways, by the first feature."""
    parts = [part for part in (splits.train, splits.validation, splits.test) if part is not None]
    inputs, targets = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "targets"))
    order = inputs.flatten(1)[:, 0].argsort()
    return inputs[order], targets[order]


def write_csv(folder: Path, text: str) -> Path:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return path


def part(examples: Examples | None) -> Examples:
    assert examples is not None
    return examples


# .csv


def test_the_last_column_is_the_target_and_a_quarter_of_the_rows_is_for_testing(tmp_path: Path) -> None:
    rows = "\n".join(f"{row},{row / 10},{row % 3}" for row in range(40))
    path = write_csv(tmp_path, f"a,b,kind\n{rows}\n")
    splits = read_table(path)
    assert [len(part(examples)) for examples in (splits.train, splits.validation, splits.test)] == [27, 3, 10]
    inputs, targets = all_of(splits)
    torch.testing.assert_close(inputs, torch.stack([torch.arange(40.0), torch.arange(40.0) / 10], dim=1))
    assert targets.tolist() == [row % 3 for row in range(40)]
    assert part(splits.test).classes == ("0", "1", "2")
    assert part(splits.test).name == "table"
    assert part(read_table(path).test).fingerprint == part(splits.test).fingerprint


@pytest.mark.parametrize("name", ["target", "Label", "CLASS"])
def test_a_column_of_the_right_name_is_the_target_wherever_it_stands(name: str, tmp_path: Path) -> None:
    path = write_csv(tmp_path, f"a,{name},b\n" + "1,x,5\n2,y,6\n3,x,7\n4,z,8\n")
    inputs, targets = all_of(read_table(path, validation=0))
    assert inputs.tolist() == [[1, 5], [2, 6], [3, 7], [4, 8]]
    assert targets.tolist() == [0, 1, 0, 2]


def test_texts_are_classes_in_the_order_of_the_alphabet(tmp_path: Path) -> None:
    path = write_csv(tmp_path, 'a,b\n1,wide\n2,"deep, very"\n3,wide\n4,blue\n')
    splits = read_table(path, validation=0)
    assert part(splits.train).classes == ("blue", "deep, very", "wide")
    assert all_of(splits)[1].tolist() == [2, 1, 2, 0]


def test_numbers_with_a_fraction_are_for_regression(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "a,b\n1,1\n2,2.5\n3,-1e3\n4,0\n")
    splits = read_table(path, validation=0)
    assert part(splits.train).classes == ()
    targets = all_of(splits)[1]
    assert targets.dtype == torch.float32
    assert targets.tolist() == [[1.0], [2.5], [-1000.0], [0.0]]


def test_whole_numbers_are_classes_in_the_order_of_numbers_unless_said_otherwise(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "a,b\n1,10\n2,9\n3,-1\n4,10\n")
    splits = read_table(path, validation=0)
    assert part(splits.train).classes == ("-1", "9", "10")
    assert all_of(splits)[1].tolist() == [2, 1, 0, 2]
    assert all_of(read_table(path, validation=0, task="regression"))[1].tolist() == [[10.0], [9.0], [-1.0], [10.0]]


def test_a_mark_of_the_byte_order_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"\xef\xbb\xbfa,b\r\n\r\n1,x\r\n2,x\r\n\r\n3,y\r\n4,y\r\n")
    assert all_of(read_table(path, validation=0))[1].tolist() == [0, 0, 1, 1]


BAD_CSV = {
    "empty": ("", "is empty; its first line must name the columns"),
    "no rows": ("a,b\n", "must have at least one row after the names of its columns"),
    "no names": ("1,2\n3,4\n", "must begin with a line that names each column differently, got '1,2'"),
    "one name twice": ("a,a\n3,4\n", "must begin with a line that names each column differently"),
    "a column without a name": ("a,\n3,4\n", "must begin with a line that names each column differently"),
    "one column": ("a\n1\n", "must have inputs besides the target, got the column 'a' alone"),
    "two targets": ("label,a,class\n1,2,3\n", "must have one target, got columns label, class"),
    "a missing cell": ("a,b\n1,2\n3\n", "line 3 must have 2 cells, one for each column, got 1"),
    "a cell too many": ("a,b\n1,2,3\n", "line 2 must have 2 cells, one for each column, got 3"),
    "a text": (
        f"a,c\n{'1,x/2,y/' * 20}red,y\n".replace("/", "\n"),
        "line 42, column 'a' must hold a number, got 'red'",
    ),
    "infinity": ("a,b\n1,2\ninf,3\n1,2\n1,3\n", "line 3, column 'a' must hold a number, got 'inf'"),
    "a number for programmers": ("a,b\n1,2\n1_000,3\n1,2\n1,3\n", "line 3, column 'a' must hold a number, got '1_000'"),
    "a missing target": ("a,b\n1,2\n3,\n", "line 3, column 'b' must hold a target, got nothing; fill it in, or remove"),
    "a number past float32": (
        "a,b\n1,2\n1e300,3\n3,4\n5,6\n",
        "line 3, column 'a' is too large for float32, got 1e.300; scale the column",
    ),
    "an open quote": (
        'a,b\n1,2\n"1,2\n3,4\n5,6\n',
        r"is not a valid .csv: line 3: a quote opens here and is not closed",
    ),
    "a quote open after one of two lines": ('a,b\n"1\n""2",5" x\n"1\n2","x\n\n3,4\n', r"line 5: a quote opens here"),
    "a quote open for long": ('a,b\n1,x\n2,"x\n' + "3,y\n" * 50_000, r"line 3: a quote opens here and is not closed"),
    "text after a quote": ('a,b\n"1"2,3\n', r"line 2: ',' expected after '\"'"),
    "a NUL byte": ("a,b\n1,x\n2,x\0y\n", r"line 3, column 'b' must hold text, got a NUL byte in 'x.x00y'; take it out"),
    "a NUL byte in a name": ("a,b\0\n1,x\n", r"line 1, column 'b.x00' must hold text, got a NUL byte"),
    "too few rows": ("a,b\n1,2\n3,4\n", "table must have at least 4 examples, a quarter of them for testing, got 2"),
}


@pytest.mark.parametrize("kind", BAD_CSV)
def test_a_bad_csv_is_named_with_the_line_and_column(kind: str, tmp_path: Path) -> None:
    text, message = BAD_CSV[kind]
    with pytest.raises(DataError, match=message):
        read_table(write_csv(tmp_path, text))


@pytest.mark.parametrize("names", ["5.1,3.5,1.4,0.2,setosa", "70,46748.77,0,upgrade", "1,1.0,stay"])
def test_a_first_line_of_data_is_not_taken_for_names_unless_said(names: str, tmp_path: Path) -> None:
    cells = names.split(",")
    rows = "".join(f"{','.join(str(row + at) for at in range(len(cells) - 1))},{'ab'[row % 2]}\n" for row in range(40))
    path = write_csv(tmp_path, f"{names}\n{rows}")
    with pytest.raises(DataError, match=r"must begin with a line that names the columns, got what looks like data: "):
        read_table(path)
    assert part(read_table(path, target=cells[-1]).test).classes == ("a", "b")


@pytest.mark.parametrize("names", ["0,1,2,label", "2019,2020,2021,kind", "400.5,401,401.5,yield", "a,7,3b,y"])
def test_names_may_be_numbers_that_rise(names: str, tmp_path: Path) -> None:
    path = write_csv(
        tmp_path, names + "\n" + "".join(f"{row},{row + 1},{row * 7 % 5},{row % 2}\n" for row in range(40))
    )
    assert len(part(read_table(path).train)) == 27


def test_a_csv_of_other_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes("a,b\n1,gr\xfcn\n".encode("latin1"))
    with pytest.raises(DataError, match=r"table\.csv must be text in UTF-8, got byte 0xfc at 8; save it as UTF-8"):
        read_table(path)


def read_csv_bytes(content: bytes) -> Splits:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        path.write_bytes(content)
        return read_table(path)


cells = st.sampled_from(["a", "b", "target", "1", "-2.5", "1e400", "nan", "", "x", " 7 ", '"', '"q"', "9" * 5000, "\0"])
lines = st.lists(cells, min_size=1, max_size=4).map(",".join)
texts = st.lists(lines, max_size=6).map("\n".join).map(str.encode)
proper = st.lists(st.sampled_from(["1,2", "3,x", "4,0.5"]), max_size=6).map(
    lambda rows: "\n".join(["a,b", *rows]).encode()
)


@given(st.one_of(st.binary(), texts, proper))
def test_any_bytes_are_a_table_or_a_data_error(content: bytes) -> None:
    try:
        splits = read_csv_bytes(content)
    except DataError:
        return
    inputs, targets = all_of(splits)
    assert inputs.ndim == 2
    assert len(inputs) == len(targets) > 0
    assert inputs.isfinite().all()
    assert targets.isfinite().all()


# .npz


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(("x", "y"), [("x", "y"), ("inputs", "targets"), ("inputs", "labels")])
def test_arrays_of_known_names_are_split(x: str, y: str, tmp_path: Path) -> None:
    path = save(tmp_path / "t.npz", **{x: np.arange(8.0).reshape(8, 1), y: np.arange(8) % 2, "other": np.zeros(3)})
    splits = read_table(path, validation=0)
    assert all_of(splits)[0].flatten().tolist() == list(range(8))
    assert all_of(splits)[1].tolist() == [0, 1] * 4
    assert len(part(splits.test)) == 2


def test_parts_of_their_own_stay_apart_and_share_their_classes(tmp_path: Path) -> None:
    path = save(
        tmp_path / "t.npz",
        x_train=np.arange(10, dtype=np.float32),
        y_train=np.array(["b", "a"] * 5),
        x_test=np.array([20.0, 30.0]),
        y_test=np.array(["a", "long"]),
    )
    splits = read_table(path, validation=0.2)
    assert [len(part(examples)) for examples in (splits.train, splits.validation, splits.test)] == [8, 2, 2]
    test = part(splits.test)
    assert test.inputs.tolist() == [[20.0], [30.0]]
    assert [test.classes[label] for label in test.targets.tolist()] == ["a", "long"]


@pytest.mark.parametrize("shape", [(8, 5, 4), (8, 1, 5, 4), (8, 5, 4, 1), (8, 3, 5, 4), (8, 5, 4, 3)])
def test_bytes_with_rows_and_columns_are_images(shape: tuple[int, ...], tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    splits = read_table(save(tmp_path / "t.npz", x_test=pixels, y_test=np.arange(8)))
    test = part(splits.test)
    channels = 3 if 3 in shape else 1
    assert test.inputs.dtype == torch.uint8
    assert test.shape == (channels, 5, 4)
    last = (
        pixels.reshape(8, 5, 4, -1)
        if shape[-1] == channels
        else pixels.reshape(8, channels, 5, 4).transpose(0, 2, 3, 1)
    )
    np.testing.assert_array_equal(test.inputs.permute(0, 2, 3, 1), last)


def test_bytes_in_rows_are_numbers_as_they_are(tmp_path: Path) -> None:
    splits = read_table(save(tmp_path / "t.npz", x_test=np.array([[0, 255]], dtype=np.uint8), y_test=np.array([1.5])))
    assert part(splits.test).inputs.tolist() == [[0.0, 255.0]]
    assert part(splits.test).targets.tolist() == [[1.5]]


X = np.arange(8.0).reshape(4, 2)
Y = np.array([0, 1, 0, 1])
BAD_NPZ: dict[str, tuple[dict[str, Any], str]] = {
    "no arrays": ({}, "must have arrays x and y, or x_train, y_train, x_test and y_test, got none of these"),
    "other arrays": ({"a": X}, "got none of these"),
    "whole and parts": ({"x": X, "y": Y, "x_test": X, "y_test": Y}, "got x, x_test, y, y_test"),
    "no targets": ({"x": X}, "one of targets, y or targets or labels, got x$"),
    "no inputs": ({"y_test": Y}, "one array of inputs, x_test or inputs_test, .* got y_test$"),
    "targets twice": ({"x": X, "y": Y, "labels": Y}, "got x, y, labels"),
    "uneven": ({"x": X, "y": Y[:3]}, r"as many rows in x as in y, and at least one, got shapes \(4, 2\) and \(3,\)"),
    "no rows": ({"x": X[:0], "y": Y[:0]}, "and at least one"),
    "one number": ({"x": np.array(1.0), "y": np.array(1)}, r"got shapes \(\) and \(\)"),
    "texts as inputs": ({"x": np.array(["a"] * 4), "y": Y}, "must have numbers as inputs, got <U1"),
    "objects": ({"x": X, "y": np.array([{}] * 4, dtype=object)}, r"is not a readable \.npz of numbers and texts"),
    "a gap": ({"x": np.where(X == 5, np.nan, X), "y": Y}, "must have finite inputs, got nan in example 2"),
    "a gap in targets": ({"x": X, "y": np.array([1, 2, np.inf, 3])}, "must have finite targets, got inf in example 2"),
    "five channels": ({"x": np.zeros((4, 5, 5, 5), dtype=np.uint8), "y": Y}, "images with 1 or 3 channels"),
    "labels in rows": (
        {"x": X, "y": np.stack([Y, Y], 1)},
        r"one label for each example, got targets of shape \(4, 2\)",
    ),
    "dates": ({"x": X, "y": Y.astype("datetime64[D]")}, "whole numbers or texts as classes, got datetime64"),
    "kinds mixed": (
        {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y.astype(str)},
        "must have targets of one kind and shape",
    ),
}


@pytest.mark.parametrize("kind", BAD_NPZ)
def test_a_bad_npz_is_named_with_what_is_wrong(kind: str, tmp_path: Path) -> None:
    arrays, message = BAD_NPZ[kind]
    with pytest.raises(DataError, match=rf"^.*t\.npz .*{message}"):
        read_table(save(tmp_path / "t.npz", **arrays))


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, X)
    return file.getvalue()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + bytes(50), b"<html>", npy(), pickle.dumps({"x": X})])
def test_what_is_no_npz_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"t\.npz is not a readable \.npz of numbers and texts: "):
        read_table(path)


def test_a_truncated_npz_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "t.npz", x=X, y=Y)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="is not a readable"):
        read_table(path)


def test_an_npz_with_damaged_characters_is_refused(tmp_path: Path) -> None:
    texts = np.array(list("abab")).view(np.uint32)
    texts[2] += 2**25  # no character has this number
    path = save(tmp_path / "a.npz", x=np.ones((4, 2)), y=texts.view("U1"))
    with pytest.raises(DataError, match=r"a\.npz is not a readable \.npz of numbers and texts"):
        read_table(path)


def test_task_makes_classes_of_whole_numbers_that_are_floats(tmp_path: Path) -> None:
    path = save(tmp_path / "t.npz", x_test=X, y_test=Y.astype(float))
    assert part(read_table(path).test).classes == ()
    assert part(read_table(path, task="classification").test).classes == ("0", "1")
    save(path, x_test=X, y_test=Y + 0.5)
    with pytest.raises(DataError, match=r"must have whole numbers or texts as classes, got 0\.5 in example 0"):
        read_table(path, task="classification")


def test_texts_are_no_targets_of_a_regression(tmp_path: Path) -> None:
    path = save(tmp_path / "t.npz", x=X, y=np.array(list("abcd")))
    with pytest.raises(DataError, match="must have numbers to regress on, got <U1"):
        read_table(path, task="regression")


def test_an_unknown_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="task must be 'classification', 'regression' or None"):
        read_table.__wrapped__(save(tmp_path / "t.npz", x=X, y=Y), task="guessing")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a table must end in \.npz, \.csv, \.parquet, got '.*xlsx'"):
        read_table(tmp_path / "t.xlsx")


# parquet


def test_a_parquet_file_gives_what_a_csv_gives(tmp_path: Path) -> None:
    columns = {"label": ["b", "a", "b", "c"], "x": [1.5, 2.0, 3.0, 4.0], "n": [1, 2, 3, 4], "yes": [True, False] * 2}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    splits = read_table(tmp_path / "t.parquet", validation=0)
    inputs, targets = all_of(splits)
    assert inputs.tolist() == [[1.5, 1, 1], [2, 2, 0], [3, 3, 1], [4, 4, 0]]
    assert [part(splits.test).classes[label] for label in targets.tolist()] == columns["label"]


def test_texts_of_a_parquet_file_may_be_stored_by_their_numbers(tmp_path: Path) -> None:
    labels = pa.array(["b", "a", "b", "b"]).dictionary_encode()
    parquet.write_table(pa.table({"x": pa.array([1, 2, 3, 4], pa.uint8()), "y": labels}), tmp_path / "t.parquet")
    splits = read_table(tmp_path / "t.parquet", validation=0)
    assert part(splits.train).classes == ("a", "b")
    assert all_of(splits)[1].tolist() == [1, 0, 1, 1]


BAD_PARQUET = {
    "a gap among the targets": (
        {"a": [1, 2, 3], "b": [1, None, 3]},
        "row 1, column 'b' must hold a target, got nothing",
    ),
    "lists": ({"a": [[1], [2, 3]], "b": [1, 2]}, "must have numbers, texts or dates in column 'a', got list<"),
    "lists as targets": ({"a": [1, 2], "b": [[1], [2]]}, "must have numbers, texts or dates in column 'b', got list<"),
    "one column": ({"a": [1, 2]}, "got the column 'a' alone"),
    "no rows": ({"a": [], "b": []}, "must have columns and at least one row, got 2 and 0"),
}


@pytest.mark.parametrize("kind", BAD_PARQUET)
def test_a_bad_parquet_file_is_named_with_its_column(kind: str, tmp_path: Path) -> None:
    columns, message = BAD_PARQUET[kind]
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(40) + b"PAR1", b"text" * 9])
def test_what_is_no_parquet_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"t\.parquet is not a readable parquet file: "):
        read_table(tmp_path / "t.parquet")


def test_targets_of_numbers_but_one_with_a_trailing_null_are_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "x,y\n" + "".join(f"{row},{row}.5{chr(0) * (row == 4)}\n" for row in range(20)))
    with pytest.raises(DataError, match="line 6, column 'y' must hold text, got a NUL byte"):
        read_table(path, task="regression")


@pytest.mark.parametrize("rows", [0, 1])
def test_a_parquet_file_whose_parts_hold_fewer_rows_than_it_says_is_refused(rows: int, tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": [1.0, 2.0], "y": [0, 1]}), file, compression="none")
    content = bytearray(file.read_bytes())
    for place in range(len(content)):  # the number of rows of the one group, wherever this version of pyarrow writes it
        changed = bytearray(content)
        changed[place] = 2 * rows  # as thrift writes it
        with contextlib.suppress(Exception):
            read = parquet.ParquetFile(io.BytesIO(changed))
            if (read.metadata.num_rows, sum(batch.num_rows for batch in read.iter_batches())) == (2, rows):
                break
    else:
        pytest.skip("this version of pyarrow writes the number of rows otherwise")
    file.write_bytes(changed)
    with pytest.raises(DataError, match=f"t.parquet is damaged: it says that it has 2 rows, and holds {rows}"):
        read_table(file, task="regression")


def test_without_pyarrow_the_extra_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_pyarrow(name, *args):
        if name == "pyarrow":
            raise ImportError(name)
        return real_import(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(ImportError, match=r"needs pyarrow, which is missing: pip install 'dubio\[tables\]'"):
        read_table(tmp_path / "t.parquet")
