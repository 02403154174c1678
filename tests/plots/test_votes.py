"""The picture of single inputs: bars are votes, histograms the scores of the answer over draws."""

import sys
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn

import dubio
from dubio.plots.classification import BINS, RIGHT, WRONG

IMAGES = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(1))
NUM_CLASSES, NUM_DRAWS = 5, 30


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return dubio.Bayes(init_std=0.3).convert(dubio.models.mlp(16, 8, NUM_CLASSES))


def draw(model: nn.Module, path: Path, inputs: torch.Tensor = IMAGES, **options: Any) -> Any:
    return dubio.plots.draw_votes(model, inputs, path, **{"num_samples": NUM_DRAWS, "seed": 3, **options})


def widths(axes: Any) -> list[float]:
    return [bar.get_width() for bar in axes.patches]


def heights(axes: Any) -> list[float]:
    return [bar.get_height() for bar in axes.patches]


def test_votes_and_scores_are_those_of_predict(model: nn.Module) -> None:
    result = dubio.plots.votes_of(model, IMAGES, num_samples=NUM_DRAWS, seed=3)
    expected = dubio.predict(model, IMAGES, num_samples=NUM_DRAWS, seed=3)
    torch.testing.assert_close(result.votes, expected.votes)
    assert torch.equal(result.label, expected.label)
    torch.testing.assert_close(result.top_scores, expected.samples.exp()[:, torch.arange(3), expected.label])
    torch.testing.assert_close(result.top_scores.mean(dim=0), expected.confidence)
    assert result.top_scores.shape == (NUM_DRAWS, 3)
    assert (result.votes.amax(dim=1) < 1.0).any()


def test_the_answer_is_of_the_mean_probability_and_not_of_the_most_votes() -> None:
    """Three members: two lean to class 0, one is certain of class 1."""
    members = [nn.Linear(1, 2) for _ in range(3)]
    for member, bias in zip(members, (0.2, 0.2, -9.0), strict=True):
        nn.init.zeros_(member.weight)
        with torch.no_grad():
            member.bias.copy_(torch.tensor([bias, 0.0]))
    model = dubio.Ensemble().convert(members)
    result = dubio.plots.votes_of(model, torch.zeros(1, 1))
    torch.testing.assert_close(result.votes, torch.tensor([[2 / 3, 1 / 3]]))
    assert result.label.tolist() == [1]
    expected = torch.sigmoid(torch.tensor([-0.2, -0.2, 9.0])).unsqueeze(1)
    torch.testing.assert_close(result.top_scores, expected)


@pytest.mark.feature("draw_votes shows what draws take single inputs for, and how their scores of the answer spread")
def test_bars_are_votes_and_histograms_hold_every_draw(model: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "votes.png"
    rows = np.array(draw(model, path, names=["one", "two", "three"], classes=list("abcde")).axes).reshape(3, 3)
    result = dubio.plots.votes_of(model, IMAGES, num_samples=NUM_DRAWS, seed=3)
    for number, (image, votes, scores) in enumerate(rows.T):
        np.testing.assert_allclose(image.images[0].get_array(), IMAGES[number, 0])
        assert widths(votes) == pytest.approx(result.votes[number].tolist())
        blue = [bar.get_facecolor() == votes.patches[result.label[number]].get_facecolor() for bar in votes.patches]
        assert blue == [other == result.label[number] for other in range(NUM_CLASSES)]
        counts, _ = np.histogram(result.top_scores[:, number], bins=BINS, range=(0.0, 1.0))
        assert heights(scores) == pytest.approx((counts / NUM_DRAWS).tolist())
        assert sum(heights(scores)) == pytest.approx(1.0)
        sure = result.top_scores[:, number].mean().item()
        assert image.get_title() == f"{['one', 'two', 'three'][number]}\n{'abcde'[result.label[number]]} ({sure:.0%})"
    assert [label.get_text() for label in rows[1, 0].get_yticklabels()] == list("abcde")
    assert rows[1, 1].get_xlabel() == "share of 30 draws that vote for a class"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_right_answers_are_green_and_wrong_ones_red(model: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    labels = dubio.plots.votes_of(model, IMAGES, num_samples=NUM_DRAWS, seed=3).label.clone()
    labels[1] = (labels[1] + 1) % NUM_CLASSES
    rows = draw(model, tmp_path / "votes.png", labels=labels).axes[:3]
    assert [axes.title.get_color() for axes in rows] == [RIGHT, WRONG, RIGHT]
    rows = draw(model, tmp_path / "votes.png").axes[:3]
    assert {axes.title.get_color() for axes in rows} == {"black"}


def test_inputs_that_are_no_images_have_no_row_of_images(model: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = draw(model, tmp_path / "votes.svg", IMAGES[:1].flatten(1))
    votes, scores = figure.axes
    assert votes.get_title()
    assert (len(votes.patches), len(scores.patches)) == (NUM_CLASSES, BINS)


def test_colour_images_keep_their_channels_and_other_scales_are_stretched(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    torch.manual_seed(0)
    model = dubio.Bayes().convert(dubio.models.mlp(48, 8, 2))
    colour = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    colour[1] = 4.0 * colour[1] - 2.0
    plain, stretched = (
        np.asarray(axes.images[0].get_array()) for axes in draw(model, tmp_path / "v.png", colour).axes[:2]
    )
    np.testing.assert_allclose(plain, colour[0].permute(1, 2, 0))
    assert (stretched.min(), stretched.max()) == (0.0, 1.0)
    assert np.corrcoef(stretched.flatten(), colour[1].permute(1, 2, 0).flatten())[0, 1] == pytest.approx(1.0)


def test_what_cannot_be_drawn_is_refused(model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    path = tmp_path / "votes.png"
    for count in (0, 9):
        with pytest.raises(ValueError, match=f"inputs must be from 1 to 8 to be drawn side by side, got {count}; choo"):
            draw(model, path, torch.zeros(count, 16))
    with pytest.raises(
        ValueError, match=r"inputs must have rows, one for each input, got shape \(16,\); a single one is"
    ):
        draw(model, path, torch.zeros(16))
    built = dubio.Bayes().convert(dubio.models.lenet((1, 16, 16), 3))
    with pytest.raises(ValueError, match=r"inputs must have rows, one for each input, got shape \(1, 16, 16\)"):
        draw(built, path, torch.zeros(1, 16, 16))
    with pytest.raises(ValueError, match="names must be one per input, 3, got 1"):
        draw(model, path, names=["one"])
    with pytest.raises(ValueError, match="labels must be one per input"):
        draw(model, path, labels=torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="classes must be 5 names, one for each class, got 2"):
        draw(model, path, classes=["a", "b"])
    assert not path.exists()


def test_without_matplotlib_the_message_says_what_to_install(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'dubio\[plots\]'"):
        draw(model, tmp_path / "votes.png")
