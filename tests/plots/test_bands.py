"""The picture of a regression: filled bands are quantiles of draws, dotted lines those of targets."""

import sys
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dubio

INPUTS = torch.linspace(0.0, 1.0, 11).unsqueeze(1)
TARGETS = INPUTS.square()
PLACES = torch.linspace(-1.0, 2.0, 7).unsqueeze(1)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return dubio.Bayes(init_std=0.3).convert(dubio.models.mlp(1, 6, 1), likelihood=dubio.Gaussian(0.2))


def draw(model: nn.Module, path: Path, **options: Any) -> Any:
    options = {"grid": (-1.0, 2.0), "levels": (0.5, 0.9), "num_samples": 9, "seed": 3, **options}
    return dubio.plots.draw_bands(model, INPUTS, TARGETS, path, **options)


def edges(band: Any, places: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper edge of a filled band: its outline goes along one and back along the other."""
    (outline,) = (path.vertices for path in band.get_paths())
    sides = [[y for x, y in outline if abs(x - place) < 1e-6] for place in places.tolist()]
    return np.array([min(side) for side in sides]), np.array([max(side) for side in sides])


def test_bands_are_quantiles_of_the_draws_and_of_the_targets(model: nn.Module) -> None:
    bands = dubio.plots.bands_of(model, PLACES, levels=(0.5, 0.8), num_samples=21, seed=3)
    result = dubio.predict(model, PLACES, num_samples=21, seed=3)
    draws = result.samples.squeeze(-1).numpy()
    np.testing.assert_allclose(bands.median, np.median(draws, axis=0), rtol=1e-6)
    for number, (level, (low, high)) in enumerate(zip((0.5, 0.8), bands.of_draws, strict=True)):
        expected = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        np.testing.assert_allclose(torch.stack([low, high]), expected, rtol=1e-5, atol=1e-6)
        interval = torch.stack(result.interval(level)).squeeze(-1)
        torch.testing.assert_close(bands.of_targets[number], interval)
    assert torch.equal(bands.places, PLACES.squeeze(1))
    assert (bands.levels, bands.num_samples) == ((0.5, 0.8), 21)


def test_noise_widens_a_band(model: nn.Module) -> None:
    bands = dubio.plots.bands_of(model, PLACES, levels=(0.95,), num_samples=40)
    (of_draws,), (of_targets,) = bands.of_draws, bands.of_targets
    assert (of_targets[1] - of_targets[0] > of_draws[1] - of_draws[0]).all()


def test_a_network_that_predicts_its_noise_has_one_band_too() -> None:
    torch.manual_seed(0)
    model = dubio.Bayes().convert(dubio.models.mlp(1, 6, 2), likelihood=dubio.Gaussian("output"))
    assert dubio.plots.bands_of(model, PLACES, num_samples=3).of_draws.shape == (2, 2, 7)


def test_an_ensemble_has_as_many_draws_as_members(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model = dubio.Ensemble(members=3).convert(dubio.models.mlp(1, 6, 1), likelihood=dubio.Gaussian(0.2))
    assert draw(model, tmp_path / "bands.png").axes[0].lines[0].get_label() == "median of 3 draws"


@pytest.mark.feature("draw_bands shows the median of a regression's draws, bands of them, and with the noise added")
def test_what_is_drawn_are_the_bands(model: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "bands.png"
    figure = draw(model, path, truth=torch.square)
    (axes,) = figure.axes
    places = torch.linspace(-1.0, 2.0, 281).unsqueeze(1)
    bands = dubio.plots.bands_of(model, places, levels=(0.5, 0.9), num_samples=9, seed=3)
    wide, narrow, points = axes.collections
    for drawn, expected in zip((narrow, wide), bands.of_draws, strict=True):
        np.testing.assert_allclose(edges(drawn, bands.places), expected, rtol=1e-6)
    median, low, high, truth = axes.lines
    np.testing.assert_array_equal(median.get_ydata(), bands.median)
    np.testing.assert_array_equal([low.get_ydata(), high.get_ydata()], bands.of_targets[1])
    np.testing.assert_allclose(truth.get_ydata(), places.squeeze(1).square(), rtol=1e-6)
    np.testing.assert_array_equal(points.get_offsets(), torch.cat([INPUTS, TARGETS], dim=1))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "middle 90 % of the draws",
        "middle half of the draws",
        "median of 9 draws",
        "90 % of targets, noise added",
        "true curve, without noise",
        "11 points of data",
    ]
    assert axes.get_xlim() == (-1.0, 2.0)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_noise_and_truth_can_be_left_out(model: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = draw(model, tmp_path / "bands.png", noise=False).axes
    assert [line.get_label() for line in axes.lines] == ["median of 9 draws"]


def test_by_default_the_picture_goes_a_quarter_beyond_the_data(model: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert draw(model, tmp_path / "bands.png", grid=None).axes[0].get_xlim() == (-0.25, 1.25)


def test_what_cannot_be_drawn_is_refused(model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    draw_bands, path = dubio.plots.draw_bands, tmp_path / "bands.png"
    with pytest.raises(ValueError, match=r"inputs must be numbers, of shape \(n, 1\), got \(11, 2\)"):
        draw_bands(model, torch.zeros(11, 2), TARGETS, path)
    with pytest.raises(ValueError, match=r"targets must be one number per input, got shapes \(3, 1\) and \(11, 1\)"):
        draw_bands(model, INPUTS, TARGETS[:3], path)
    with pytest.raises(ValueError, match=r"grid must be \(low, high\) with low below high, got \(1.0, 0.0\)"):
        draw(model, path, grid=(1.0, 0.0))
    for levels in ((), (0.5, 0.5), (0.9, 0.5), (0.5, 1.0)):
        with pytest.raises(ValueError, match="levels must be probabilities between 0 and 1, each above the one bef"):
            draw(model, path, levels=levels)
    with pytest.raises(ValueError, match=r"places must be numbers, of shape \(n, 1\), got \(7,\)"):
        dubio.plots.bands_of(model, PLACES.squeeze(1))
    with pytest.raises(ValueError, match=r"model must be one for regression, got one for classes; convert with like"):
        draw(dubio.Bayes().convert(nn.Linear(1, 3)), path)
    with pytest.raises(ValueError, match="model must have one output, got 3 for one input"):
        draw(dubio.Bayes().convert(nn.Linear(1, 3), likelihood=dubio.Gaussian()), path)
    assert not path.exists()


def test_without_matplotlib_the_message_says_what_to_install(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'dubio\[plots\]'"):
        draw(model, tmp_path / "bands.png")
