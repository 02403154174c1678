"""New data without labels: tables by their encoder, arrays, images; a chunk at a time, in order."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from dubio.data import tables as module
from dubio.data.encoder import TableEncoder
from dubio.data.files import DataError
from dubio.data.registry import load
from dubio.data.tables import read_new

ROWS = "age,city,grade\n" + "".join(f"{20 + n % 7},{['Ulm', 'Bonn'][n % 2]},{'ab'[n % 2]}\n" for n in range(40))


@pytest.fixture
def encoder(tmp_path: Path) -> TableEncoder:
    (tmp_path / "train.csv").write_text(ROWS)
    train = load(tmp_path / "train.csv").train
    assert train is not None
    assert train.encoder is not None
    return train.encoder


def test_a_table_needs_no_target_and_its_columns_may_stand_in_any_order(tmp_path: Path, encoder: TableEncoder) -> None:
    (tmp_path / "a.csv").write_text("age,city\n30,Ulm\n31,Bonn\n")
    (tmp_path / "b.csv").write_text("city,grade,age\nUlm,nonsense,30\nBonn,,31\n")
    (one,), (other,) = (list(read_new(tmp_path / name, encoder=encoder)) for name in ("a.csv", "b.csv"))
    torch.testing.assert_close(one.inputs, other.inputs)
    assert list(one.names) == [0, 1]
    assert not one.remarks
    assert not other.remarks


def test_json_lines_are_read_as_the_table_of_the_same_cells(tmp_path: Path, encoder: TableEncoder) -> None:
    (tmp_path / "a.csv").write_text("age,city\n30,Ulm\n,Bonn\n31.5,\n")
    rows = [{"age": 30, "city": "Ulm"}, {"city": "Bonn"}, {"age": 31.5, "city": None}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (table,), (lines,) = (list(read_new(tmp_path / name, encoder=encoder)) for name in ("a.csv", "a.jsonl"))
    torch.testing.assert_close(table.inputs, lines.inputs)


def test_a_text_that_training_did_not_have_is_counted(tmp_path: Path, encoder: TableEncoder) -> None:
    (tmp_path / "a.csv").write_text("age,city\n30,Ulm\n31,Rome\n32,Oslo\n")
    (rows,) = read_new(tmp_path / "a.csv", encoder=encoder)
    assert [*rows.remarks.values()] == [2]


def test_large_tables_come_in_chunks_whose_rows_are_numbered_on(
    tmp_path: Path, encoder: TableEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ROWS", 7)
    rows = [{"age": n, "city": "Ulm"} for n in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    chunks = list(read_new(tmp_path / "a.jsonl", encoder=encoder))
    assert [len(chunk.inputs) for chunk in chunks] == [7, 7, 6]
    assert [name for chunk in chunks for name in chunk.names] == list(range(20))


def test_an_npz_needs_inputs_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(6.0).reshape(3, 2))
    (rows,) = read_new(tmp_path / "x.npz", shape=(2,))
    assert rows.inputs.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert rows.total == 3


def test_images_of_a_folder_are_named_and_get_the_channels_of_the_network(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "in" / "deep").mkdir(parents=True)
    image.new("L", (4, 3), 51).save(tmp_path / "in" / "deep" / "b.png")
    image.new("RGB", (4, 3), (255, 0, 0)).save(tmp_path / "in" / "a.png")
    image.new("L", (4, 3)).save(tmp_path / "in" / ".hidden.png")
    (rows,) = read_new(tmp_path / "in", shape=(3, 3, 4))
    assert list(rows.names) == ["a.png", "deep/b.png"]
    torch.testing.assert_close(rows.inputs[1], torch.full((3, 3, 4), 0.2))
    assert [*rows.remarks.values()] == [1]
    (grey,) = read_new(tmp_path / "in" / "a.png", shape=(1, 3, 4))
    torch.testing.assert_close(grey.inputs, torch.full((1, 1, 3, 4), 76 / 255))


@pytest.mark.parametrize("shape", [(3, 3, 4), (36,)])
def test_grey_and_coloured_images_are_read_together_also_by_a_network_that_flattens_them(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("L", (4, 3), 76).save(tmp_path / "a.png")
    image.new("RGB", (4, 3), (255, 0, 0)).save(tmp_path / "b.png")
    (rows,) = read_new(tmp_path, shape=shape)
    assert rows.inputs.shape == (2, 3, 3, 4)
    assert rows.remarks == {"grey images were read as coloured ones": 1}
    (grey,) = read_new(tmp_path / "b.png", shape=(12,))
    torch.testing.assert_close(grey.inputs, torch.full((1, 1, 3, 4), 76 / 255))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"age\n30\n", "lacks city"),
        ("a.csv", b"age,city\n", "at least one row"),
        ("a.jsonl", b"", "at least one row, got none"),
        ("a.jsonl", b"[1]\n", "line 1 must be a JSON object"),
        ("a.jsonl", b'{"age": 1}\n{"age"', "line 2 must be a JSON object"),
        ("a.jsonl", b"[" * 100_000, "line 1 must be a JSON object"),
        ("a.jsonl", b'{"age": 1, "city": "Ulm", "age": 2}\n', "line 1 must be .* each key must occur once"),
        ("a.npz", b"zip?", "is not a readable .npz"),
        ("a.txt", b"hello", "is not a readable image"),
    ],
)
def test_what_is_no_data_is_refused(
    tmp_path: Path, encoder: TableEncoder, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_new(tmp_path / name, encoder=encoder))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.npz", "a.png"])
def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path, encoder: TableEncoder, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="must be a regular file, got a FIFO"):
        list(read_new(tmp_path / name, encoder=encoder))


def test_what_the_network_does_not_read_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"inputs of shape \(3,\), as the network was trained on, got \(2,\)"):
        list(read_new(tmp_path / "x.npz", shape=(3,)))
    (tmp_path / "a.csv").write_text("age\n30\n")
    with pytest.raises(DataError, match="the network was not trained on such a table"):
        list(read_new(tmp_path / "a.csv"))
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="must hold images, got none"):
        list(read_new(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        list(read_new(tmp_path / "nothing.csv"))
