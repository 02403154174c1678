"""Regression with bands: the example itself, held to what it promises."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import dubio

pytest.importorskip("matplotlib")

EXAMPLE = Path(__file__).parents[2] / "examples" / "regression_bands.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example in its full size, whatever the environment says."""
    monkeypatch.delenv("DUBIO_TINY", raising=False)
    spec = importlib.util.spec_from_file_location("regression_bands", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.feature(
    "Regression bands hold the true curve, and are three times as wide far from the data as among them"
)
@pytest.mark.parametrize("seed", [0])
def test_bands_hold_the_truth_and_are_three_times_as_wide_far_from_the_data(
    example: ModuleType, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    model = example.train(example.points(seed), seed, progress=False)
    bands = dubio.plots.bands_of(model, example.GRID, levels=example.LEVELS, seed=seed)
    inside, outside = example.mean_width(bands, 0.1, 0.4), example.mean_width(bands, 0.8, 1.2)
    misfit = (bands.median - example.truth(bands.places)).abs()
    among = misfit[(bands.places >= 0.05) & (bands.places <= 0.45)].mean().item()
    with capsys.disabled():
        print(  # noqa: T201
            f"\nseed {seed}: interquartile width {inside:.3f} on [0.1, 0.4], {outside:.3f} on [0.8, 1.2], "
            f"ratio {outside / inside:.2f}; median off by {among:.3f} among the data"
        )
    assert among < 0.05  # a network that has learned nothing is wide or narrow anywhere
    assert outside >= 3.0 * inside
    truth, beyond = example.truth(bands.places), (bands.places < 0.0) | (bands.places > 0.51)
    for edges, places in ((bands.of_targets[-1], torch.ones_like(beyond)), (bands.of_draws[-1], beyond)):
        assert ((edges[0] <= truth) & (truth <= edges[1]))[places].all()


def test_a_width_is_that_between_the_quartiles(example: ModuleType) -> None:
    """Of bands that are 1 wide up to 0.5 and 4 wide beyond, with ends that belong to the interval."""
    places = example.GRID.squeeze(1)
    wide = torch.where(places > 0.5025, 4.0, 1.0)
    edges = torch.stack([torch.stack([0 * wide, wide]), torch.stack([0 * wide - 9.0, 0 * wide + 9.0])])
    bands = dubio.plots.Bands(places, 0.5 * wide, (0.5, 0.9), edges, edges, 100)
    assert example.mean_width(bands, 0.1, 0.4) == 1.0
    assert example.mean_width(bands, 0.8, 1.2) == 4.0
    assert example.mean_width(bands, 0.5, 0.505) == pytest.approx(2.5)
