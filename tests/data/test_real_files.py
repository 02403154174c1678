"""The real files: counts, shapes and histograms of labels; checksums are compared while they are read."""

import gzip
import shutil
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from dubio import data
from dubio.data.examples import Examples, Splits
from dubio.data.files import DataError
from dubio.data.image_sets import CIFAR10, read_drawings, read_idx

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def timed_load(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Splits:
    start = time.perf_counter()
    splits = data.load(name, folder=folder, validation=0)
    with capsys.disabled():
        print(f"\n{name}: read in {time.perf_counter() - start:.2f} s")  # noqa: T201
    return splits


def histogram(examples: Examples | None) -> list[int]:
    assert examples is not None
    return torch.bincount(examples.targets, minlength=len(examples.classes)).tolist()


def check(examples: Examples | None, count: int, shape: tuple[int, ...], mean: float) -> Examples:
    """As many images of bytes as there should be, and as bright as they should be."""
    assert examples is not None
    assert len(examples) == count
    assert examples.shape == shape
    assert examples.inputs.dtype == torch.uint8
    assert (int(examples.inputs.min()), int(examples.inputs.max())) == (0, 255)
    assert examples.inputs.float().mean().item() / 255 == pytest.approx(mean, abs=5e-4)
    return examples


@pytest.mark.feature(
    "MNIST, FashionMNIST, KMNIST, Omniglot, CIFAR-10 and CIFAR-100 are read from torchvision's folders"
)
def test_the_real_mnist(real, capsys) -> None:
    splits = timed_load("mnist", real("mnist"), capsys)
    check(splits.train, 60000, (1, 28, 28), 0.1307)
    check(splits.test, 10000, (1, 28, 28), 0.1325)
    assert (histogram(splits.train), histogram(splits.test)) == (MNIST_TRAIN, MNIST_TEST)


def test_the_real_fashionmnist(real, capsys) -> None:
    splits = timed_load("fashionmnist", real("fashionmnist"), capsys)
    check(splits.train, 60000, (1, 28, 28), 0.2860)
    check(splits.test, 10000, (1, 28, 28), 0.2868)
    assert (histogram(splits.train), histogram(splits.test)) == ([6000] * 10, [1000] * 10)


def test_the_real_kmnist_opens_with_its_test_part_alone(real, capsys) -> None:
    splits = timed_load("kmnist", real("kmnist"), capsys)
    assert (splits.train, splits.validation) == (None, None)
    check(splits.test, 10000, (1, 28, 28), 0.1846)
    assert histogram(splits.test) == [1000] * 10


def test_gzipped_files_give_what_the_raw_ones_give(real, tmp_path: Path) -> None:
    raw = real("kmnist") / "KMNIST/raw"
    (tmp_path / "KMNIST/raw").mkdir(parents=True)
    for name in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (tmp_path / "KMNIST/raw" / f"{name}.gz").write_bytes(gzip.compress((raw / name).read_bytes(), compresslevel=1))
    gzipped, plain = (data.load_test("kmnist", folder=folder) for folder in (tmp_path, real("kmnist")))
    assert gzipped.fingerprint == plain.fingerprint


@pytest.mark.parametrize("damage", ["truncated", "swapped", "changed", "of another dataset", "empty"])
def test_real_files_with_damage_are_refused(damage: str, real, tmp_path: Path) -> None:
    shutil.copytree(real("kmnist", "mnist") / "KMNIST", tmp_path / "KMNIST")
    images, labels = (tmp_path / "KMNIST/raw" / f"t10k-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    content = bytearray(images.read_bytes())
    if damage == "truncated":
        images.write_bytes(content[: len(content) // 2])
    elif damage == "swapped":
        images.write_bytes(labels.read_bytes())
        labels.write_bytes(content)
    elif damage == "changed":
        content[5000] ^= 1
        images.write_bytes(content)
    elif damage == "of another dataset":
        shutil.copy(real("mnist") / "MNIST/raw" / images.name, images)
    else:
        images.write_bytes(b"")
    messages = {"truncated": "is truncated", "swapped": "are images and labels swapped", "empty": "is empty"}
    with pytest.raises(DataError, match=messages.get(damage, "is not the official file")) as refused:
        data.load("kmnist", folder=tmp_path)
    assert str(refused.value).startswith(str(images))


def test_the_default_validation_part_is_a_tenth_and_repeats(real) -> None:
    first, again = (data.load("mnist", folder=real("mnist")) for _ in range(2))
    assert [len(part) for part in (first.train, first.validation)] == [54000, 6000]
    assert first.validation.fingerprint == again.validation.fingerprint
    assert min(histogram(first.validation)) > 500
    papers = data.load("mnist", folder=real("mnist"), validation=10000)
    assert [len(part) for part in (papers.train, papers.validation)] == [50000, 10000]


@pytest.mark.slow
def test_the_real_cifar_10(real, capsys) -> None:
    splits = timed_load("cifar10", real("cifar10"), capsys)
    train = check(splits.train, 50000, (3, 32, 32), 0.4734)
    check(splits.test, 10000, (3, 32, 32), 0.4767)
    means = [train.inputs[:, channel].float().mean().item() / 255 for channel in range(3)]
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    assert (histogram(splits.train), histogram(splits.test)) == ([5000] * 10, [1000] * 10)
    assert train.classes[:3] == ("airplane", "automobile", "bird")


@pytest.mark.slow
def test_the_real_cifar_100_has_its_fine_labels(real, capsys) -> None:
    splits = timed_load("cifar100", real("cifar100"), capsys)
    train = check(splits.train, 50000, (3, 32, 32), 0.4782)
    check(splits.test, 10000, (3, 32, 32), 0.4794)
    assert (histogram(splits.train), histogram(splits.test)) == ([500] * 100, [100] * 100)
    assert (train.classes[0], train.classes[99]) == ("apple", "worm")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_binary_form_has_the_checksums_of_the_official_one_and_gives_the_same(name, real, tmp_path: Path) -> None:
    dataset = data.registry.STORED[name]
    pickles, plain = dataset.forms
    expected = data.load_test(name, folder=real(name))
    labels = [expected.targets.numpy().astype(np.uint8)[:, None]]
    if name == "cifar100":
        batch = data.pickles.parse_pickle((real(name) / pickles.folder / "test").read_bytes(), "test")
        labels.insert(0, np.array(batch["coarse_labels"], dtype=np.uint8)[:, None])
    folder = tmp_path / plain.folder
    folder.mkdir()
    records = np.concatenate([*labels, expected.inputs.flatten(1).numpy()], axis=1)
    (folder / plain.test[0][0]).write_bytes(records.tobytes())
    (folder / plain.names[0]).write_text("\n".join(expected.classes) + "\n")
    assert data.load_test(name, folder=tmp_path).fingerprint == expected.fingerprint


@pytest.mark.slow
def test_an_archive_of_cifar_is_read_without_being_extracted(real, tmp_path: Path) -> None:
    folder = real("cifar10")
    with tarfile.open(tmp_path / CIFAR10.forms[0].archive, "w:gz", compresslevel=1) as archive:
        for name in ("readme.html", "batches.meta", "test_batch"):
            if (folder / CIFAR10.place / name).is_file():
                archive.add(folder / CIFAR10.place / name, arcname=f"{CIFAR10.place}/{name}")
    expected = data.load_test("cifar10", folder=folder)
    assert data.load_test("cifar10", folder=tmp_path).fingerprint == expected.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-python.tar.gz"]


@pytest.mark.slow
def test_t27_omniglot_has_light_strokes_on_a_dark_ground(real, capsys) -> None:
    splits = timed_load("omniglot", real("omniglot"), capsys)
    train = check(splits.train, 19280, (1, 28, 28), 0.0778)
    test = check(splits.test, 13180, (1, 28, 28), 0.0843)
    assert (histogram(train), histogram(test)) == ([20] * 964, [20] * 659)
    assert not set(train.classes) & set(test.classes)
    for part in (train, test):
        images = part.tensors[0]
        assert 0.05 < images.mean() < 0.25
        assert images.median() == 0.0
        edge = torch.cat([images[:, :, 0].flatten(), images[:, :, -1].flatten()])
        assert edge.mean() < 0.02


@pytest.mark.slow
def test_the_archive_of_omniglot_gives_what_its_folder_gives(real, tmp_path: Path) -> None:
    folder = real("omniglot") / "omniglot-py" / "images_evaluation"
    alphabets = sorted(folder.iterdir())[:2]
    with zipfile.ZipFile(tmp_path / "images_evaluation.zip", "w") as archive:
        for alphabet in alphabets:
            shutil.copytree(alphabet, tmp_path / "extracted" / alphabet.name)
            for file in alphabet.rglob("*.png"):
                archive.write(file, f"images_evaluation/{file.relative_to(folder)}")
    packed, extracted = (read_drawings(tmp_path / name) for name in ("images_evaluation.zip", "extracted"))
    assert packed.fingerprint == extracted.fingerprint
    assert packed.classes == extracted.classes


@pytest.mark.slow
def test_unseen_data_have_the_shape_of_those_that_were_seen(real) -> None:
    folder = real("mnist", "fashionmnist", "kmnist", "omniglot", "cifar10", "cifar100")
    for name, others in data.OOD_PAIRS.items():
        seen = data.load_test(name, folder=folder)
        unseen = data.ood_sets(name, folder=folder)
        assert tuple(unseen) == others
        assert all(examples.shape == seen.shape for examples in unseen.values())
        assert all(len(examples) >= 10000 for examples in unseen.values())


def test_labels_alone_can_be_read(real) -> None:
    labels = read_idx(real("kmnist") / "KMNIST/raw/train-labels-idx1-ubyte", axes=1)
    assert np.bincount(labels).tolist() == [6000] * 10
