"""A folder of images by class."""

import builtins
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dubio.data.files import DataError, DataWarning
from dubio.data.image_files import read_image_folder
from dubio.data.registry import load

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
    "size": (
        grey(1, 6, 4),
        None,
        r"must be as large as .*00\.png, 5x4 \(height x width\), got 6x4 .*: --resize HEIGHTxWIDTH, in Python resize=",
    ),
    "depth": (
        grey(1).astype(np.uint16),
        None,
        "must be grey or in colour with 8 bits a channel, got mode I(;16)?; convert it first",
    ),
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
    with pytest.raises(DataError, match=r"test/cat/1\.png must be as large as .*train/a dog/00\.png, 5x4 .*, got 8x8"):
        read_image_folder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"text" * 20, None], ids=["empty", "header", "text", "truncated"])
def test_an_image_that_cannot_be_read_is_named(content: bytes | None, tmp_path: Path) -> None:
    fill(tmp_path, 0, 4)
    path = tmp_path / "cat" / "broken.png"
    if content is None:
        save(path, np.random.default_rng(0).integers(0, 256, (5, 4), dtype=np.uint8))
        content = path.read_bytes()[:-30]
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cat/broken\.png is not a readable image: .") as refused:
        read_image_folder(tmp_path)
    assert "BytesIO" not in str(refused.value)


@pytest.mark.feature("Folders of images of several sizes and modes: resize, grey beside RGB, transparency, palettes")
@pytest.mark.parametrize("resize", [6, (6, 3)])
def test_images_of_several_sizes_are_resized(resize: int | tuple[int, int], tmp_path: Path) -> None:
    fill(tmp_path / "train", 0, 4)
    save(tmp_path / "train" / "cat" / "large.png", grey(77, 40, 9))
    save(tmp_path / "test" / "cat" / "wide.png", grey(88, 3, 30))
    splits = read_image_folder(tmp_path, 0, resize)
    assert splits.train is not None
    assert splits.test is not None
    assert splits.train.shape == splits.test.shape == (1, 6, 6 if resize == 6 else 3)
    assert {77, 0, 100} <= set(splits.train.inputs.flatten().tolist())  # an even image stays as it is
    assert splits.test.inputs.unique().tolist() == [88]
    assert load(tmp_path, validation=0, resize=resize).test.fingerprint == splits.test.fingerprint


def test_a_resized_image_is_averaged_and_not_sampled(tmp_path: Path) -> None:
    stripes = np.tile(np.array([0, 200], dtype=np.uint8), (8, 16))
    for number in range(4):
        save(tmp_path / "test" / "one" / f"{number}.png", stripes)
    splits = read_image_folder(tmp_path, resize=(2, 4))
    assert splits.test is not None
    assert (splits.test.inputs.float() - 100.0).abs().max() <= 20.0


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_one_image_in_colour_makes_all_of_them_rgb_and_a_warning_says_so(mode: str, tmp_path: Path) -> None:
    fill(tmp_path / "train", 0, 2)
    save(tmp_path / "test" / "cat" / "1.png", np.dstack([grey(51), grey(102), grey(204)]), mode)
    transparent = " and 1 is used without transparency" if mode == "RGBA" else ""
    with pytest.warns(DataWarning, match=f": of 5 images 4 grey are converted to RGB{transparent}$"):
        splits = read_image_folder(tmp_path, validation=0)
    assert splits.train is not None
    assert splits.test is not None
    assert splits.train.shape == splits.test.shape == (3, 5, 4)
    assert torch.equal(splits.train.inputs[:, 0], splits.train.inputs[:, 2])
    assert splits.test.inputs[0, :, 0, 0].tolist() == [51, 102, 204]


def test_grey_images_with_transparency_stay_grey(tmp_path: Path) -> None:
    for number in range(4):
        save(tmp_path / "one" / f"{number}.png", grey(9), "LA")
    with pytest.warns(DataWarning, match=": of 4 images 4 are used without transparency$"):
        splits = read_image_folder(tmp_path)
    assert splits.test is not None
    assert splits.test.inputs.shape == (1, 1, 5, 4)
    assert splits.test.inputs.unique().tolist() == [9]


@pytest.mark.parametrize("resize", [0, (3, 0), (4, 100_000)])
def test_a_size_that_no_image_can_have_is_refused(resize: int | tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="resize must be a height and a width from 1 to 4096 pixels, got"):
        read_image_folder(tmp_path, resize=resize)


def test_only_folders_of_images_are_resized() -> None:
    with pytest.raises(ValueError, match="resize belongs to folders of images, got 8 for digits; leave it out"):
        load("digits", resize=8)


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
    real_import = builtins.__import__

    def without_pillow(name, *args):
        if name == "PIL":
            raise ImportError(name)
        return real_import(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(ImportError, match=r"needs Pillow, which is missing: pip install 'dubio\[images\]'"):
        read_image_folder(tmp_path)
