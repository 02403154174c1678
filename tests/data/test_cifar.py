"""CIFAR batches, as pickles and as bytes: the same images either way, and damage has its message."""

import gzip
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from dubio.data.files import DataError
from dubio.data.image_sets import CifarForm, CifarSet, parse_cifar_binary, parse_cifar_pickle
from dubio.data.stored import md5_of

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
LABELS = [3, 0, 9, 3]
NAMES = [f"name {label}" for label in range(10)]


def binary(pixels: np.ndarray, *labels: list[int]) -> bytes:
    columns = [np.array(column, dtype=np.uint8)[:, None] for column in labels]
    return np.concatenate([*columns, pixels], axis=1).tobytes()


@pytest.mark.parametrize("encoded", [str, str.encode], ids=["texts", "bytes"])
def test_a_pickle_gives_planes_of_red_green_and_blue_and_its_labels(encoded) -> None:
    content = pickle.dumps({encoded("data"): PIXELS, encoded("labels"): LABELS}, 4)
    images, labels = parse_cifar_pickle(content, "batch", 10)
    assert images.shape == (4, 3, 32, 32)
    np.testing.assert_array_equal(images[1, 2, 5], PIXELS[1, 2 * 1024 + 5 * 32 :][:32])
    assert labels.tolist() == LABELS


def test_the_binary_form_gives_what_the_pickle_gives() -> None:
    from_pickle = parse_cifar_pickle(pickle.dumps({"data": PIXELS, "labels": LABELS}, 4), "batch", 10)
    from_bytes = parse_cifar_binary(binary(PIXELS, LABELS), "batch", 10)
    for one, other in zip(from_pickle, from_bytes, strict=True):
        np.testing.assert_array_equal(one, other)


def test_labels_of_cifar_100_are_the_fine_ones() -> None:
    coarse, fine = [1, 2, 3, 4], [11, 22, 33, 99]
    content = pickle.dumps({"data": PIXELS, "fine_labels": fine, "coarse_labels": coarse}, 4)
    assert parse_cifar_pickle(content, "train", 100)[1].tolist() == fine
    images, labels = parse_cifar_binary(binary(PIXELS, coarse, fine), "train.bin", 100)
    assert labels.tolist() == fine
    np.testing.assert_array_equal(images.reshape(4, -1), PIXELS)


BAD_BATCHES = {
    "no images": ({"labels": LABELS}, "must have an array 'data' of bytes.*got NoneType"),
    "a list": ({"data": PIXELS.tolist(), "labels": LABELS}, "must have an array 'data' of bytes.*got list"),
    "floats": ({"data": PIXELS / 255, "labels": LABELS}, r"got float64 \(4, 3072\)"),
    "one axis": ({"data": PIXELS[0], "labels": LABELS}, r"got uint8 \(3072,\)"),
    "MNIST": ({"data": PIXELS[:, :784], "labels": LABELS}, r"got uint8 \(4, 784\)"),
    "no labels": ({"data": PIXELS}, "must have a list of labels from 0 to 9"),
    "CIFAR-100": ({"data": PIXELS, "fine_labels": LABELS}, "is it another CIFAR"),
    "labels too large": ({"data": PIXELS, "labels": [0, 1, 2, 10]}, "labels from 0 to 9"),
    "labels that are texts": ({"data": PIXELS, "labels": ["cat"] * 4}, "labels from 0 to 9"),
    "too few labels": ({"data": PIXELS, "labels": LABELS[:3]}, "has 4 images, but 3 labels"),
}


@pytest.mark.parametrize("kind", BAD_BATCHES)
def test_a_bad_batch_is_named_with_what_is_wrong(kind: str) -> None:
    batch, message = BAD_BATCHES[kind]
    with pytest.raises(DataError, match=f"^batch .*{message}"):
        parse_cifar_pickle(pickle.dumps(batch, 4), "batch", 10)


@pytest.mark.parametrize("content", [b"", binary(PIXELS, LABELS)[:-1], binary(PIXELS, LABELS) + b"\0"])
def test_bytes_that_are_no_whole_records_are_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="must hold whole records of 3073 bytes, got"):
        parse_cifar_binary(content, "batch.bin", 10)


def test_binary_labels_too_large_are_refused() -> None:
    with pytest.raises(DataError, match="must hold labels from 0 to 9, got 10"):
        parse_cifar_binary(binary(PIXELS, [1, 2, 3, 10]), "batch.bin", 10)


def small_set() -> tuple[CifarSet, dict[str, bytes]]:
    """A CIFAR of two training batches and one for testing, in both forms, and the contents of its files."""
    pickles = {
        "py/one": pickle.dumps({"data": PIXELS[:2], "labels": LABELS[:2]}, 4),
        "py/two": pickle.dumps({"data": PIXELS[2:], "labels": LABELS[2:]}, 4),
        "py/test": pickle.dumps({b"data": PIXELS[::-1], b"labels": LABELS[::-1]}, 4),
        "py/meta": pickle.dumps({"label_names": NAMES}, 4),
    }
    plain = {
        "bin/one.bin": binary(PIXELS[:2], LABELS[:2]),
        "bin/two.bin": binary(PIXELS[2:], LABELS[2:]),
        "bin/test.bin": binary(PIXELS[::-1], LABELS[::-1]),
        "bin/names.txt": "\n".join([*NAMES, ""]).encode(),
    }
    files = pickles | plain
    forms = []
    for folder, ending, names in (("py", "", "meta"), ("bin", ".bin", "names.txt")):
        md5 = {name: md5_of(files[f"{folder}/{name}{ending}"]) for name in ("one", "two", "test")}
        train = tuple((f"{name}{ending}", md5[name]) for name in ("one", "two"))
        test = ((f"test{ending}", md5["test"]),)
        forms.append(CifarForm(folder, f"{folder}.tar.gz", train, test, (names, None), binary=folder == "bin"))
    return CifarSet(
        name="small", what="a few", place="py", num_classes=10, forms=tuple(forms), archive_md5="0" * 32
    ), files


def write(root: Path, files: dict[str, bytes], kind: str) -> None:
    folder, _, packed = kind.partition(" ")
    chosen = {name: content for name, content in files.items() if name.startswith(f"{folder}/")}
    if packed:
        with tarfile.open(root / f"{folder}.tar.gz", "w:gz") as archive:
            for name, content in {f"{folder}/readme": b"", **chosen}.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return
    (root / folder).mkdir()
    for name, content in chosen.items():
        (root / name).write_bytes(content)


@pytest.mark.parametrize("kind", ["py", "bin", "py packed", "bin packed"])
def test_every_form_gives_the_same_examples_in_the_order_of_the_batches(kind: str, tmp_path: Path) -> None:
    small, files = small_set()
    write(tmp_path, files, kind)
    assert small.missing(tmp_path, "train") == small.missing(tmp_path, "test") == ()
    train, test = small.read(tmp_path, "train"), small.read(tmp_path, "test")
    assert torch.equal(train.inputs.flatten(1), torch.tensor(PIXELS))
    assert train.targets.tolist() == LABELS
    assert train.classes == tuple(NAMES)
    assert torch.equal(test.inputs, train.inputs.flip(0))
    assert not list(tmp_path.rglob("*unfinished*"))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    small, files = small_set()
    assert small.missing(tmp_path, "train") == ("py/one", "py/two", "py/meta")
    write(tmp_path, files, "bin")
    (tmp_path / "bin/two.bin").unlink()
    assert small.missing(tmp_path, "train") == ("bin/two.bin",)
    assert small.missing(tmp_path, "test") == ()


def test_a_batch_that_is_not_the_official_one_is_refused(tmp_path: Path) -> None:
    small, files = small_set()
    other = pickle.dumps({"data": PIXELS[:2], "labels": [1, 1]}, 4)
    write(tmp_path, files | {"py/one": other}, "py")
    with pytest.raises(DataError, match="py/one is not the official file: its md5 must be"):
        small.read(tmp_path, "train")


def test_a_batch_that_runs_code_is_refused_out_of_an_archive_as_well(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trace"),)

    small, files = small_set()
    write(tmp_path, files | {"py/two": pickle.dumps({"data": PIXELS, "labels": Evil()}, 4)}, "py packed")
    with pytest.raises(DataError, match=r"py\.tar\.gz/py/two asks for (posix|nt)\.mkdir"):
        small.read(tmp_path, "train")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty", "lacking", "no tar"])
def test_a_damaged_archive_is_named(damage: str, tmp_path: Path) -> None:
    small, files = small_set()
    if damage == "lacking":
        del files["py/two"]
    write(tmp_path, files, "py packed")
    path = tmp_path / "py.tar.gz"
    whole = path.read_bytes()
    path.write_bytes(
        {
            "truncated": whole[: len(whole) // 2],
            "foreign": b"<html>" * 99,
            "empty": b"",
            "lacking": whole,
            "no tar": gzip.compress(b"text" * 999),
        }[damage]
    )
    lacking = damage == "lacking"
    message = "lacks py/two" if lacking else r"is not a whole \.tar\.gz: "
    with pytest.raises(DataError, match=rf"py\.tar\.gz {message}"):
        small.read(tmp_path, "train")


@pytest.mark.parametrize("names", [NAMES[:9], "airplane", [1] * 10])
def test_wrong_names_of_classes_are_refused(names: object, tmp_path: Path) -> None:
    small, files = small_set()
    write(tmp_path, files | {"py/meta": pickle.dumps({"label_names": names}, 4)}, "py")
    with pytest.raises(DataError, match="meta must hold the names of 10 classes"):
        small.read(tmp_path, "test")


values = st.one_of(
    st.none(), st.integers(), st.sampled_from(["", "a"]), st.lists(st.integers(-1, 11), max_size=4), st.just(PIXELS[:2])
)
batches = st.dictionaries(st.sampled_from(["data", "labels", "fine_labels", b"data", b"labels"]), values)


@given(st.one_of(st.binary(), batches.map(lambda batch: pickle.dumps(batch, 4))), st.sampled_from([10, 100]))
def test_any_bytes_are_a_batch_or_a_data_error_as_pickle(content: bytes, num_classes: int) -> None:
    check_batch(parse_cifar_pickle, content, num_classes)


records = st.integers(1, 3).flatmap(lambda count: st.sampled_from([3072, 3073, 3074]).map(lambda size: size * count))


@given(
    st.one_of(st.binary(), records.flatmap(lambda size: st.binary(min_size=1, max_size=1).map(lambda b: b * size))),
    st.sampled_from([10, 100]),
)
def test_any_bytes_are_a_batch_or_a_data_error_as_records(content: bytes, num_classes: int) -> None:
    check_batch(parse_cifar_binary, content, num_classes)


def check_batch(parse, content: bytes, num_classes: int) -> None:
    try:
        images, labels = parse(content, "batch", num_classes)
    except DataError:
        return
    assert images.dtype == np.uint8
    assert images.shape == (len(labels), 3, 32, 32)
    assert labels.dtype == np.int64
    assert 0 <= labels.min() <= labels.max() < num_classes
