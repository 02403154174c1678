"""Omniglot: drawings become light on dark and smaller, from a folder or an archive."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dubio.data.files import DataError
from dubio.data.image_sets import OMNIGLOT, read_drawings
from dubio.data.stored import md5_of

CHARACTERS = ("Greek/character01", "Greek/character02", "Braille/character01")


def png(ink: np.ndarray) -> bytes:
    """Dark strokes on white, one bit a pixel, as the authors' files are."""
    file = io.BytesIO()
    Image.fromarray(~ink).save(file, format="PNG")
    return file.getvalue()


def drawings() -> dict[str, bytes]:
    """Two drawings of each of three characters; the ink of drawing n covers the n-th fifteenth of the page."""
    files = {}
    for number in range(6):
        ink = np.zeros((105, 105), dtype=bool)
        ink[7 * number : 7 * (number + 1)] = True
        files[f"{CHARACTERS[number % 3]}/{number:04d}.png"] = png(ink)
    return files


def write_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def write_archive(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images_evaluation/", "")
        archive.writestr("__MACOSX/images_evaluation/Greek/character01/._0000.png", "junk")
        for name, content in files.items():
            archive.writestr(f"images_evaluation/{name}", content)
    return path


def test_strokes_become_light_on_dark_and_keep_their_share_of_the_page(tmp_path: Path) -> None:
    examples = read_drawings(write_folder(tmp_path, drawings()))
    assert examples.inputs.dtype == torch.uint8
    assert examples.shape == (1, 28, 28)
    means = examples.tensors[0].mean(dim=(1, 2, 3))
    torch.testing.assert_close(means, torch.full((6,), 7 / 105), atol=1 / 255, rtol=0)
    first = examples.inputs[examples.targets == 1][0, 0]  # ink in the topmost fifteenth
    assert first[0].min() == 255
    assert first[2:].max() == 0


def test_a_label_is_a_character_of_an_alphabet(tmp_path: Path) -> None:
    examples = read_drawings(write_folder(tmp_path, drawings()))
    assert examples.classes == ("Braille/character01", "Greek/character01", "Greek/character02")
    assert examples.targets.tolist() == [0, 0, 1, 1, 2, 2]


def test_an_archive_gives_what_its_folder_gives(tmp_path: Path) -> None:
    from_folder = read_drawings(write_folder(tmp_path / "folder", drawings()))
    archive = write_archive(tmp_path / "images_evaluation.zip", drawings())
    from_archive = read_drawings(archive, md5=md5_of(archive.read_bytes()))
    assert torch.equal(from_folder.inputs, from_archive.inputs)
    assert torch.equal(from_folder.targets, from_archive.targets)
    assert from_folder.classes == from_archive.classes
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["images_evaluation.zip"]


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty", "unofficial"])
def test_a_damaged_archive_is_named(damage: str, tmp_path: Path) -> None:
    path = write_archive(tmp_path / "images_evaluation.zip", drawings())
    if damage != "unofficial":
        path.write_bytes({"truncated": path.read_bytes()[:-40], "foreign": b"<html>" * 99, "empty": b""}[damage])
    md5 = "0" * 32 if damage == "unofficial" else None
    message = "is not the official file" if damage == "unofficial" else r"is not a whole \.zip: "
    with pytest.raises(DataError, match=rf"images_evaluation\.zip {message}"):
        read_drawings(path, md5=md5)


def test_a_file_whose_bytes_in_the_archive_are_damaged_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "images_evaluation.zip", drawings())
    content = bytearray(path.read_bytes())
    place = content.index(b"character02/0001.png") + 40
    content[place : place + 8] = bytes(8)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"is not a whole \.zip: "):
        read_drawings(path)


def test_a_drawing_that_cannot_be_read_or_has_another_size_is_named(tmp_path: Path) -> None:
    files = drawings()
    broken = "Greek/character02/0001.png"
    for content, message in (
        (files[broken][:60], "is not a readable image: "),
        (png(np.zeros((28, 28), dtype=bool)), r"must be grey with 105x105 pixels, got shape \(1, 28, 28\)"),
    ):
        root = write_folder(tmp_path, files | {broken: content})
        with pytest.raises(DataError, match=rf"{broken} {message}"):
            read_drawings(root)


def test_a_folder_without_drawings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must hold drawings as alphabet/character/\*\.png, got none"):
        read_drawings(tmp_path)


def test_a_set_that_lacks_drawings_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "omniglot-py" / "images_evaluation", drawings())
    assert OMNIGLOT.missing(tmp_path, "test") == ()
    assert OMNIGLOT.missing(tmp_path, "train") == ("omniglot-py/images_background",)
    with pytest.raises(DataError, match="must hold 13180 drawings of 659 characters, got 6 of 3; extract the archive"):
        OMNIGLOT.read(tmp_path, "test")
