"""Datasets by name and by path: present and missing files, downloads, and their messages."""

import functools
import gzip
import http.server
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dubio import data
from dubio.data import registry
from dubio.data.files import DataError
from dubio.data.image_sets import KMNIST, MNIST, IdxSet
from dubio.data.stored import DownloadError, md5_of

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def contents() -> dict[str, bytes]:
    """A small MNIST of 20 and 6 images of 2x3 pixels."""
    random = np.random.default_rng(0)
    contents = []
    for count in (20, 6):
        contents += [
            idx(random.integers(0, 256, (count, 2, 3), dtype=np.uint8)),
            idx(np.arange(count, dtype=np.uint8) % 10),
        ]
    return dict(zip(FILES, contents, strict=True))


def small(like: IdxSet, mirror: str = "http://127.0.0.1:9/") -> IdxSet:
    """A dataset like another, with the checksums of the small files."""
    raw = list(contents().values())
    md5 = tuple((md5_of(content), md5_of(gzip.compress(content, mtime=0))) for content in raw)
    return replace(like, mirrors=(mirror,), md5=md5)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of all data in which mnist and kmnist are small; no files yet."""
    monkeypatch.setitem(registry.STORED, "mnist", small(MNIST))
    monkeypatch.setitem(registry.STORED, "kmnist", small(KMNIST))
    return tmp_path


def write(folder: Path, place: str, names: tuple[str, ...] = FILES, packed: bool = False) -> None:
    (folder / place).mkdir(parents=True, exist_ok=True)
    for name in names:
        content = contents()[name]
        path = folder / place / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [False, True], ids=["raw", "gzipped"])
def test_a_name_gives_the_three_parts(folder: Path, packed: bool) -> None:
    write(folder, "MNIST/raw", packed=packed)
    splits = data.load("mnist", folder=folder, validation=5)
    assert splits.train is not None
    assert splits.validation is not None
    assert splits.test is not None
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [15, 5, 6]
    assert splits.test.shape == (1, 2, 3)
    expected = np.frombuffer(contents()["t10k-images-idx3-ubyte"][16:], dtype=np.uint8).reshape(6, 1, 2, 3)
    np.testing.assert_array_equal(splits.test.inputs, expected)
    assert splits.test.targets.tolist() == [0, 1, 2, 3, 4, 5]


def test_names_are_found_however_they_are_written(folder: Path) -> None:
    write(folder, "MNIST/raw")
    for name in ("MNIST", "mnist", "M-nist"):
        assert data.load(name, folder=str(folder)).test is not None
    assert registry.find_name("CIFAR-10") == "cifar10"
    assert registry.find_name("fashion_mnist") == "fashionmnist"


def test_the_folder_is_the_one_given_or_that_of_the_environment_or_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "MNIST/raw")
    monkeypatch.setenv("DUBIO_DATA", str(folder))
    assert data.load("mnist").test is not None
    monkeypatch.setenv("DUBIO_DATA", str(folder / "elsewhere"))
    assert data.load("mnist", folder=folder).test is not None
    monkeypatch.delenv("DUBIO_DATA")
    assert data.data_folder() == Path("data")


def test_what_is_missing_is_named_with_its_address_and_its_place(folder: Path) -> None:
    write(folder, "MNIST/raw", FILES[1:])
    with pytest.raises(FileNotFoundError) as refused:
        data.load("mnist", folder=folder)
    message = str(refused.value)
    assert message.startswith(f"mnist lacks MNIST/raw/train-images-idx3-ubyte in {folder}: ")
    assert f"dubio data --data-dir {folder} --download mnist" in message
    assert "put http://127.0.0.1:9/train-images-idx3-ubyte.gz" in message
    assert message.endswith(f"in {folder}/MNIST/raw")


def test_the_test_part_alone_opens_kmnist_but_not_mnist(folder: Path) -> None:
    for place in ("KMNIST/raw", "MNIST/raw"):
        write(folder, place, FILES[1:])  # as the real one: labels for training, but no images
    splits = data.load("kmnist", folder=folder)
    assert (splits.train, splits.validation) == (None, None)
    assert splits.test is not None
    assert len(splits.test) == 6
    with pytest.raises(FileNotFoundError, match="mnist lacks"):
        data.load("mnist", folder=folder)
    assert len(data.load_test("mnist", folder=folder)) == 6


def test_a_file_with_another_content_is_refused(folder: Path) -> None:
    write(folder, "MNIST/raw")
    changed = bytearray(contents()["t10k-images-idx3-ubyte"])
    changed[-1] ^= 1
    (folder / "MNIST/raw/t10k-images-idx3-ubyte").write_bytes(changed)
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte is not the official file: its md5 must be"):
        data.load("mnist", folder=folder)


# downloads


@pytest.fixture
def mirror(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that a server offers as the mirror of mnist."""
    offered = tmp_path_factory.mktemp("mirror")
    for name, content in contents().items():
        (offered / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
    handler = functools.partial(Quiet, directory=str(offered))
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    address = f"http://127.0.0.1:{serving.server_address[1]}/"
    monkeypatch.setitem(registry.STORED, "mnist", small(MNIST, address))
    yield offered
    serving.shutdown()
    serving.server_close()
    thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *unused: object) -> None:
        pass


def test_what_is_missing_is_downloaded_where_that_is_asked_for(mirror: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        data.load("mnist", folder=tmp_path)
    splits = data.load("mnist", folder=tmp_path, download=True)
    assert splits.train is not None
    assert len(splits.train) == 18
    assert sorted(path.name for path in (tmp_path / "MNIST/raw").iterdir()) == sorted(f"{name}.gz" for name in FILES)


def test_for_the_test_part_nothing_else_is_downloaded(mirror: Path, tmp_path: Path) -> None:
    assert len(data.load_test("mnist", folder=tmp_path, download=True)) == 6
    assert sorted(path.name for path in (tmp_path / "MNIST/raw").iterdir()) == [f"{FILES[2]}.gz", f"{FILES[3]}.gz"]


def test_a_damaged_mirror_leaves_nothing_that_could_be_taken_for_the_dataset(mirror: Path, tmp_path: Path) -> None:
    (mirror / "t10k-labels-idx1-ubyte.gz").write_bytes(b"<html>sorry</html>")
    with pytest.raises(DownloadError, match=r"t10k-labels-idx1-ubyte\.gz could not be downloaded"):
        data.fetch("mnist", tmp_path)
    assert registry.status(tmp_path)[0].missing == ("MNIST/raw/t10k-labels-idx1-ubyte",)
    with pytest.raises(FileNotFoundError, match="mnist lacks MNIST/raw/t10k-labels-idx1-ubyte"):
        data.load("mnist", folder=tmp_path)


def test_only_names_can_be_downloaded(tmp_path: Path) -> None:
    data.fetch("digits", tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"the dataset to download must be one of mnist, .*, got the path"):
        data.fetch(str(tmp_path), tmp_path)


@pytest.mark.parametrize("dataset", registry.STORED.values(), ids=registry.STORED)
def test_every_file_that_is_downloaded_is_one_that_is_looked_for(dataset, tmp_path: Path) -> None:
    assert isinstance(dataset, data.stored.StoredSet)
    assert [dataset.missing(tmp_path, part) == dataset.files(part) for part in ("train", "test")] == [True, True]
    for part in ("train", "test"):
        for remote in dataset.remotes(part):
            path = tmp_path / remote.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            assert len(remote.md5) == 32
            assert all(url.startswith("http") and url.endswith(path.name) for url in remote.urls)
        assert dataset.missing(tmp_path, part) == ()


# status


def test_the_status_tells_what_is_there_and_where_the_rest_goes(folder: Path) -> None:
    write(folder, "MNIST/raw", packed=True)
    write(folder, "KMNIST/raw", FILES[1:])
    rows = {row.name: row for row in data.status(folder)}
    assert tuple(rows) == data.NAMES
    assert (rows["mnist"].state, rows["mnist"].missing) == ("present", ())
    assert (rows["kmnist"].state, rows["kmnist"].missing) == ("incomplete", ("KMNIST/raw/train-images-idx3-ubyte",))
    assert (rows["cifar10"].state, rows["cifar10"].place) == ("missing", "cifar-10-batches-py")
    assert (rows["omniglot"].state, rows["omniglot"].place) == ("missing", "omniglot-py")
    assert {rows[name].state for name in registry.EMBEDDED} == {"embedded"}


# paths


def test_a_path_may_stand_wherever_a_name_may(tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays.npz", x=np.zeros((8, 2)), y=np.arange(8) % 2)
    (tmp_path / "table.csv").write_text("a,b\n1,x\n2,y\n3,x\n4,y\n")
    for number in range(8):
        (tmp_path / "photos" / "cat").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 4), dtype=np.uint8)).save(tmp_path / "photos" / "cat" / f"{number}.png")
    for name, shape in (("arrays.npz", (2,)), ("table.csv", (1,)), ("photos", (1, 4, 4))):
        for source in (tmp_path / name, str(tmp_path / name)):
            splits = data.load(source, validation=1)
            assert splits.test is not None
            assert splits.test.shape == shape
            assert splits.validation is not None
            assert len(splits.validation) == 1
            assert len(data.load_test(source)) == len(splits.test)


def test_a_name_wins_over_a_folder_of_the_same_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "MNIST/raw")
    (folder / "mnist").mkdir()
    monkeypatch.chdir(folder)
    assert data.load("mnist", folder=".").test is not None
    with pytest.raises(DataError, match="must hold a folder of images for each class"):
        data.load(Path("mnist"))


def test_task_is_for_tables(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b\n1,5\n2,6\n3,7\n4,8\n")
    test = data.load(tmp_path / "table.csv", task="regression").test
    assert test is not None
    assert test.targets.dtype == torch.float32
    with pytest.raises(ValueError, match="task is for tables, got 'regression' for digits; leave task out"):
        data.load("digits", task="regression")


def test_an_unknown_name_brings_the_list_of_names_and_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"data must be mnist, .*, clusters, or the path .* got 'mnits'; did you mean 'mni"
    ):
        data.load("mnits")
    with pytest.raises(ValueError, match=r"data must be mnist, .* got 'xyz'$"):
        data.load("xyz")


@pytest.mark.parametrize("source", ["no/such/folder", "missing.csv", Path("missing")])
def test_a_path_where_nothing_is_is_named(source: str | Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"there is no folder or table '{source}'"):
        data.load(source)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"a file that ends in \.npz, \.csv, \.parquet, got '.*notes\.txt'"):
        data.load(tmp_path / "notes.txt")


def test_data_without_a_test_part_cannot_be_tested_on(tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays.npz", x_train=np.zeros((8, 2)), y_train=np.arange(8) % 2)
    assert data.load(tmp_path / "arrays.npz").test is None
    with pytest.raises(ValueError, match=r"arrays\.npz must have a test part, got none"):
        data.load_test(tmp_path / "arrays.npz")
