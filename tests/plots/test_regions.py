"""The picture of a classifier of the plane: its colours, sizes and legends tell what ``predict`` tells."""

import sys
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn

import dubio
from dubio.plots.classification import LARGEST, SMALLEST, areas
from dubio.plots.figures import class_colours

INPUTS = torch.randn(9, 2, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 0, 1, 1, 1, 0, 0])
LOW, HIGH = (-2.0, -1.0), (2.0, 3.0)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return dubio.Bayes(init_std=0.5).convert(dubio.models.mlp(2, 6, 3))


def draw(model: nn.Module, path: Path, **options: Any) -> Any:
    options = {"low": LOW, "high": HIGH, "resolution": 12, "num_samples": 5, "seed": 3, **options}
    return dubio.plots.draw_regions(model, INPUTS, LABELS, path, **options)


def texts(legend: Any) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize(
    "uncertainty", ["mutual_information", "entropy", "expected_entropy", "variation_ratio", "top_std"]
)
def test_regions_are_what_predict_says_of_their_places(model: nn.Module, uncertainty: str) -> None:
    regions = dubio.plots.regions_of(model, LOW, HIGH, 5, num_samples=7, uncertainty=uncertainty, seed=3)
    torch.testing.assert_close(regions.x, torch.linspace(-2.0, 2.0, 5))
    torch.testing.assert_close(regions.y, torch.linspace(-1.0, 3.0, 5))
    places = torch.tensor([[x, y] for y in regions.y for x in regions.x])
    result = dubio.predict(model, places, num_samples=7, seed=3)
    assert torch.equal(regions.label.flatten(), result.label)
    torch.testing.assert_close(regions.confidence.flatten(), result.confidence)
    torch.testing.assert_close(regions.uncertainty.flatten(), getattr(result, uncertainty))
    assert regions.uncertainty.std() > 0
    assert regions.num_classes == 3


def test_yes_or_no_is_two_classes() -> None:
    torch.manual_seed(0)
    model = dubio.Bayes(init_std=0.5).convert(nn.Linear(2, 1), likelihood=dubio.Bernoulli())
    regions = dubio.plots.regions_of(model, LOW, HIGH, 4, num_samples=6, seed=1)
    across, up = torch.meshgrid(regions.x, regions.y, indexing="xy")
    result = dubio.predict(model, torch.stack([across, up], dim=-1).flatten(0, 1), num_samples=6, seed=1)
    assert regions.num_classes == 2
    assert torch.equal(regions.label.flatten(), result.label.squeeze(1))
    torch.testing.assert_close(regions.uncertainty.flatten(), result.mutual_information.squeeze(1))


@pytest.mark.feature("draw_regions shows the classes of the plane, how sure a network is of them, and doubt as size")
def test_points_have_the_colours_of_their_classes_and_the_sizes_of_their_doubt(
    model: nn.Module, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "regions.png"
    (axes,) = draw(model, path, classes=("a", "b", "c")).axes
    grid, *points = axes.collections
    result = dubio.predict(model, INPUTS, num_samples=5, seed=3)
    places = torch.from_numpy(np.asarray(grid.get_offsets())).float()
    on_grid = dubio.predict(model, places, num_samples=5, seed=3).mutual_information
    most = max(on_grid.max().item(), result.mutual_information.max().item())
    np.testing.assert_allclose(grid.get_sizes(), areas(on_grid, most), rtol=1e-4)
    for number, (drawn, colour) in enumerate(zip(points, class_colours(3), strict=True)):
        own = LABELS.eq(number)
        np.testing.assert_array_equal(drawn.get_offsets(), INPUTS[own])
        np.testing.assert_allclose(drawn.get_sizes(), areas(result.mutual_information[own], most), rtol=1e-5)
        np.testing.assert_array_equal(drawn.get_facecolor()[0], colour)
    assert (axes.get_xlim(), axes.get_ylim()) == ((-2.0, 2.0), (-1.0, 3.0))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_background_is_the_class_and_paler_where_less_sure(model: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = draw(model, tmp_path / "regions.png").axes
    (image,) = axes.images
    pixels = np.asarray(image.get_array())
    regions = dubio.plots.regions_of(model, LOW, HIGH, 12, num_samples=5, seed=3)
    colours = np.array(class_colours(3))[:, :3]
    strength = 0.4 * (regions.confidence.numpy() - 1 / 3) / (2 / 3)
    expected = 1.0 - strength[..., None] * (1.0 - colours[regions.label.numpy()])
    np.testing.assert_allclose(pixels, expected, atol=1e-6)
    assert image.origin == "lower"
    step = 4.0 / 11  # a pixel lies around its place
    np.testing.assert_allclose(image.get_extent(), [-2 - step / 2, 2 + step / 2, -1 - step / 2, 3 + step / 2])


def test_legends_explain_colours_and_sizes(model: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = draw(model, tmp_path / "regions.svg", classes=("a", "b", "c"), uncertainty="variation_ratio").axes
    upper, lower = (child for child in axes.get_children() if type(child).__name__ == "Legend")
    assert texts(upper) == ["a", "b", "c"]
    assert lower.get_title().get_text() == "size: variation ratio\n(share of draws)"
    grid, *points = axes.collections
    largest = max(drawn.get_sizes().max() for drawn in (grid, *points))
    sizes = [handle.get_markersize() ** 2 for handle in lower.legend_handles]
    assert largest == pytest.approx(LARGEST)
    assert sizes == pytest.approx([SMALLEST, (SMALLEST + LARGEST) / 2, LARGEST])
    assert texts(lower)[0] == "0"
    assert float(texts(lower)[2]) == pytest.approx(2 * float(texts(lower)[1]), rel=0.1)


def test_without_doubt_all_dots_are_smallest(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = draw(dubio.models.mlp(2, 6, 3), tmp_path / "regions.png", uncertainty="variation_ratio").axes
    assert {size for drawn in axes.collections for size in drawn.get_sizes()} == {SMALLEST}
    assert texts(axes.get_legend()) == ["0"]


def test_by_default_the_picture_goes_a_quarter_beyond_the_data(model: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = draw(model, tmp_path / "regions.png", low=None, high=None).axes
    least, most = INPUTS.amin(dim=0), INPUTS.amax(dim=0)
    expected = torch.stack([least - (most - least) / 4, most + (most - least) / 4], dim=1)
    np.testing.assert_allclose([axes.get_xlim(), axes.get_ylim()], expected, rtol=1e-6)


def test_what_cannot_be_drawn_is_refused(model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    draw_regions, path = dubio.plots.draw_regions, tmp_path / "regions.png"
    with pytest.raises(ValueError, match=r"inputs must be points of the plane, of shape \(n, 2\), got \(9, 3\)"):
        draw_regions(model, torch.zeros(9, 3), LABELS, path)
    with pytest.raises(ValueError, match=r"labels must be one per input, got shapes \(3,\) and \(9, 2\)"):
        draw_regions(model, INPUTS, LABELS[:3], path)
    with pytest.raises(TypeError, match=r"labels must be whole numbers that name classes, got torch.float32"):
        draw_regions(model, INPUTS, LABELS.float(), path)
    with pytest.raises(ValueError, match="labels must be from 0 to 2, got 3 to 5"):
        draw_regions(model, INPUTS, LABELS + 3, path, num_samples=2)
    with pytest.raises(ValueError, match="classes must be 3 names, one for each class, got 2"):
        draw(model, path, classes=("a", "b"))
    with pytest.raises(ValueError, match="resolution must be a whole number of at least 2, got 1"):
        draw(model, path, resolution=1)
    with pytest.raises(ValueError, match=r"low below high on both axes, got \(-2.0, 3.0\) and \(2.0, 3.0\)"):
        draw(model, path, low=(-2.0, 3.0))
    with pytest.raises(ValueError, match=r"uncertainty must be one of mutual_information, .*, got 'seed'"):
        draw(model, path, uncertainty="seed")
    with pytest.raises(ValueError, match="model must tell classes apart to be drawn, got one for regression; see dr"):
        draw(dubio.Bayes().convert(nn.Linear(2, 1), likelihood=dubio.Gaussian()), path)
    with pytest.raises(ValueError, match=r"model must give one class for each input, got answers of shape \(4,\)"):
        draw(nn.Sequential(nn.Linear(2, 12), nn.Unflatten(1, (4, 3))), path)
    assert not path.exists()


def test_without_matplotlib_the_message_says_what_to_install(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'dubio\[plots\]'"):
        draw(model, tmp_path / "regions.png")
    assert dubio.plots.regions_of(model, LOW, HIGH, 2, num_samples=2).label.shape == (2, 2)
