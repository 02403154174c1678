"""The picture of a Wasserstein embedding: its points are the clouds that the network compares."""

import sys
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio import functional
from dubio.plots.figures import class_colours

NUM_CLASSES, NUM_POINTS = 3, 5
INPUTS = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 0, 1, 1, 1, 0, 0, 1, 0, 1])  # one 2, and none at the end


def network(method: dubio.Wasserstein) -> nn.Module:
    torch.manual_seed(0)
    return method.convert(dubio.models.mlp(4, 6, NUM_CLASSES)).eval()


def embedding(**fields: object) -> nn.Module:
    return network(dubio.Wasserstein(dim=2, num_points=NUM_POINTS, hidden=8, **fields))  # type: ignore[arg-type]


def offsets(collection: object) -> np.ndarray:
    return np.asarray(collection.get_offsets())  # type: ignore[attr-defined]


def points(clouds: Tensor) -> np.ndarray:
    return clouds.flatten(0, -2).numpy()


@pytest.mark.parametrize("prototype", ["generated", "free"])
def test_clouds_are_those_that_the_network_compares_in_draw_0(prototype: str) -> None:
    """The entropic distance needs nothing but the clouds, so that the logits can be computed from them."""
    model = embedding(distance="sinkhorn", prototype=prototype)
    of_inputs, of_classes = dubio.plots.clouds_of(model, INPUTS, seed=3)
    assert of_inputs.shape == (12, NUM_POINTS, 2)
    assert of_classes.shape == (NUM_CLASSES, NUM_POINTS, 2)
    logits = dubio.sample(model, INPUTS, num_samples=2, seed=3)
    expected = -functional.wasserstein.sinkhorn_matrix(of_inputs, of_classes, 1.0, 20)
    torch.testing.assert_close(logits[0], expected)
    assert not torch.allclose(logits[1], expected)


@pytest.mark.feature("draw_embedding shows the clouds of inputs and classes of a Wasserstein network in the plane")
def test_the_points_drawn_are_the_clouds(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model, path = embedding(), tmp_path / "new" / "embedding.png"
    figure = dubio.plots.draw_embedding(model, INPUTS, LABELS, path, num_inputs=8, seed=5, classes=["a", "b", "c"])
    of_inputs, of_classes = dubio.plots.clouds_of(model, INPUTS[:8], seed=5)
    (axes,) = figure.axes
    assert len(axes.collections) == 2 * NUM_CLASSES
    drawn = zip(axes.collections[:NUM_CLASSES], axes.collections[NUM_CLASSES:], strict=True)
    for number, (inputs, own) in enumerate(drawn):
        np.testing.assert_array_equal(offsets(inputs), points(of_inputs[LABELS[:8] == number]))
        np.testing.assert_array_equal(offsets(own), points(of_classes[number]))
        np.testing.assert_array_equal(inputs.get_facecolor()[0, :3], own.get_facecolor()[0, :3])
        assert own.get_linewidth()[0] > 0.0 == inputs.get_linewidth()[0]
        assert own.get_label() == "abc"[number]
    assert axes.get_aspect() == 1.0
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    assert path.read_bytes().startswith(b"\x89PNG")


def test_classes_without_an_input_are_drawn_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = dubio.plots.draw_embedding(embedding(), INPUTS[:2], LABELS[:2], tmp_path / "embedding.svg")
    assert [len(offsets(drawn)) for drawn in figure.axes[0].collections] == [5, 5, 0, 5, 5, 5]


def test_the_network_is_left_as_it_was() -> None:
    model = embedding().train()
    before, hooks = torch.random.get_rng_state(), [len(module._forward_pre_hooks) for module in model.modules()]
    dubio.plots.clouds_of(model, INPUTS)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks
    assert model.training


def test_colours_differ_however_many_classes_there_are() -> None:
    pytest.importorskip("matplotlib")
    for count in (2, 10, 11, 47):
        assert len(set(class_colours(count))) == count


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    draw, path = dubio.plots.draw_embedding, tmp_path / "embedding.png"
    with pytest.raises(ValueError, match=r"dim must be 2 to be drawn, got 64; train with Wasserstein\(dim=2\)"):
        draw(network(dubio.Wasserstein()), INPUTS, LABELS, path)
    with pytest.raises(ValueError, match=r"model must have a Wasserstein head, got a \w+ without one; convert"):
        draw(dubio.Bayes().convert(nn.Linear(4, 3)), INPUTS, LABELS, path)
    with pytest.raises(ValueError, match="num_inputs must be a whole number of at least 1, got 0"):
        draw(embedding(), INPUTS, LABELS, path, num_inputs=0)
    with pytest.raises(ValueError, match="classes must be 3 names, one for each class, got 2"):
        draw(embedding(), INPUTS, LABELS, path, classes=["a", "b"])
    with pytest.raises(ValueError, match="labels must be one per input"):
        draw(embedding(), INPUTS, LABELS[:3], path)
    assert not path.exists()


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'dubio\[plots\]'"):
        dubio.plots.draw_embedding(embedding(), INPUTS, LABELS, tmp_path / "embedding.png")
