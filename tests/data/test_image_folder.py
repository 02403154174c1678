"""A folder of images by class."""

import builtins
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dubio.data import DataError, read_image_folder

ENDINGS = (".png", ".PNG", ".bmp", ".pgm")


def save(path: Path, pixels: np.ndarray, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path)


def grey(value: int, height: int = 5, width: int = 4) -> np.ndarray:
    return np.full((height, width), value, dtype=np.uint8)


def fill(folder: Path, start: int, count: int) -> None:
    """Images of two classes; their value tells which is which."""
    for number in range(count):
        save(folder / "cat" / f"{number:02d}{ENDINGS[number % 4]}", grey(start + number))
        save(folder / "a dog" / f"{number:02d}.png", grey(start + 100 + number))


def test_folders_for_training_and_testing_are_its_parts(tmp_path: Path) -> None:
    fill(tmp_path / "train", 0, 20)
    fill(tmp_path / "test", 50, 3)
    splits = read_image_folder(tmp_path, validation=4)
    assert splits.train is not None
    assert splits.test is not None
    assert splits.validation is not None
    assert splits.test.classes == ("a dog", "cat")
    assert splits.test.shape == (1, 5, 4)
    assert splits.test.name == tmp_path.name
    assert splits.test.inputs[:, 0, 0, 0].tolist() == [150, 151, 152, 50, 51, 52]
    assert splits.test.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert (len(splits.train), len(splits.validation)) == (36, 4)
    values = torch.cat([splits.train.inputs, splits.validation.inputs])[:, 0, 0, 0]
    assert sorted(values.tolist()) == [*range(20), *range(100, 120)]


def test_without_such_folders_a_quarter_is_for_testing_and_always_the_same(tmp_path: Path) -> None:
    fill(tmp_path, 0, 10)
    first, second = read_image_folder(tmp_path), read_image_folder(tmp_path)
    parts = [part for part in (first.train, first.validation, first.test) if part is not None]
    assert [len(part) for part in parts] == [14, 1, 5]
    assert len(torch.cat([part.inputs[:, 0, 0, 0] for part in parts]).unique()) == 20
    assert first.test is not None
    assert second.test is not None
    assert first.test.fingerprint == second.test.fingerprint
    assert first.test.name == tmp_path.name


def test_coloured_images_have_three_channels_in_the_order_of_their_colours(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    for number in range(4):
        save(tmp_path / "test" / "one" / f"{number}.png", pixels)
    splits = read_image_folder(tmp_path)
    assert splits.train is None
    assert splits.test is not None
    np.testing.assert_array_equal(splits.test.inputs[0], pixels.transpose(2, 0, 1))


def test_hidden_files_and_other_files_are_passed_over(tmp_path: Path) -> None:
    fill(tmp_path / "test", 0, 1)
    (tmp_path / "test" / "cat" / ".hidden.png").write_bytes(b"junk")
    (tmp_path / "test" / "cat" / "notes.txt").write_text("about cats")
    (tmp_path / "test" / "empty").mkdir()
    splits = read_image_folder(tmp_path)
    assert splits.test is not None
    assert splits.test.classes == ("a dog", "cat")
    assert len(splits.test) == 2


ODD = {
    "size": (grey(1, 6, 4), None, r"must be like .*00\.png, grey 4x5, got grey 4x6"),
    "colour": (grey(1), "RGB", r"must be like .*00\.png, grey 4x5, got RGB 4x5"),
    "transparency": (grey(1), "LA", "must be grey or RGB with 8 bits a channel, got mode LA; convert it first"),
}


@pytest.mark.parametrize("kind", ODD)
def test_the_first_image_that_differs_is_named(kind: str, tmp_path: Path) -> None:
    pixels, mode, message = ODD[kind]
    fill(tmp_path, 0, 4)
    save(tmp_path / "cat" / "odd.png", pixels, mode)
    save(tmp_path / "cat" / "odd later.png", pixels, mode)
    with pytest.raises(DataError, match=rf"cat/odd later\.png {message}"):
        read_image_folder(tmp_path)


def test_test_images_must_be_like_those_for_training(tmp_path: Path) -> None:
    fill(tmp_path / "train", 0, 2)
    save(tmp_path / "test" / "cat" / "1.png", grey(0, 8, 8))
    with pytest.raises(DataError, match=r"test/cat/1\.png must be like .*train/a dog/00\.png, grey 4x5, got grey 8x8"):
        read_image_folder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"text" * 20, None], ids=["empty", "header", "text", "truncated"])
def test_an_image_that_cannot_be_read_is_named(content: bytes | None, tmp_path: Path) -> None:
    fill(tmp_path, 0, 4)
    path = tmp_path / "cat" / "broken.png"
    if content is None:
        save(path, np.random.default_rng(0).integers(0, 256, (5, 4), dtype=np.uint8))
        content = path.read_bytes()[:-30]
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cat/broken\.png is not a readable image: ."):
        read_image_folder(tmp_path)


def test_an_unknown_class_among_the_tests_is_named(tmp_path: Path) -> None:
    fill(tmp_path / "train", 0, 2)
    save(tmp_path / "test" / "horse" / "1.png", grey(0))
    with pytest.raises(DataError, match=r"test must have no class that .*train has not, got horse"):
        read_image_folder(tmp_path)


def test_a_folder_without_images_says_how_they_should_lie(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"must hold a folder of images for each class, such as .*/cat/1\.png; got none"
    ):
        read_image_folder(tmp_path)


def test_without_pillow_the_extra_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 0, 4)
    found = builtins.__import__

    def without_pillow(name, *args):
        if name == "PIL":
            raise ImportError(name)
        return found(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(ImportError, match=r"needs Pillow, which is missing: pip install 'dubio\[images\]'"):
        read_image_folder(tmp_path)
