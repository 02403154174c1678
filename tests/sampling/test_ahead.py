"""Weights of looped draws, drawn ahead: the same numbers, in fewer launches, within memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.layers import posterior
from dubio.sampling import Pass, ahead, passes
from networks import mlp

INPUTS = torch.randn(6, 5)
METHODS = {
    "bayes": dubio.Bayes(init_std=0.3),
    "bayes, mixture prior": dubio.Bayes(init_std=0.3, prior=dubio.ScaleMixture(0.5, 1.0, 0.1)),
    "parametric noise": dubio.Pni(),
    "dropout": dubio.Dropout(),
    "ensemble": dubio.Ensemble(3),
}


@pytest.fixture
def slow_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU whose weights are drawn ahead, as those of a GPU are."""
    monkeypatch.setattr(ahead, "DEVICES", ("cpu",))


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many draws each call for noise was for."""
    calls: list[int] = []
    whole = passes.seeded_noise

    def spy(seed: Tensor, draw: Tensor, *rest: Any) -> Any:
        mapped = torch._C._functorch.is_batchedtensor(draw)
        calls.append(torch._C._functorch.get_unwrapped(draw).numel() if mapped else draw.numel())
        return whole(seed, draw, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(passes, "seeded_noise", spy)
        yield calls


def looped(model: nn.Module, num_samples: int = 20, **options: Any) -> Tensor:
    samples = dubio.predict(model, INPUTS, num_samples, seed=3, executor="loop", **options).samples
    assert samples is not None
    return samples


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_drawing_ahead_changes_no_draw(
    method: Any, batch_size: int | None, slow_launches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = method.convert(mlp(5, 8, 3))
    found = looped(model, batch_size=batch_size)
    with dubio.antithetic():
        mirrored = looped(model, batch_size=batch_size)
    monkeypatch.setattr(ahead, "DEVICES", ())
    torch.testing.assert_close(found, looped(model, batch_size=batch_size), rtol=0.0, atol=0.0)
    with dubio.antithetic():
        torch.testing.assert_close(mirrored, looped(model, batch_size=batch_size), rtol=0.0, atol=0.0)


def test_noise_is_drawn_for_many_draws_at_a_time(slow_launches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dubio.Bayes().convert(nn.Linear(5, 3))  # weights and biases
    with counted(monkeypatch) as calls:
        looped(model, batch_size=2)
    assert calls == [1, 1, 16, 16, 3, 3]
    monkeypatch.setattr(ahead, "DEVICES", ())
    with counted(monkeypatch) as calls:
        looped(model)
    assert calls == [1] * 40


def test_what_is_drawn_ahead_takes_a_share_of_the_memory(slow_launches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dubio.Bayes().convert(nn.Linear(5, 3))
    size = 4 * (15 + 3)
    monkeypatch.setattr(ahead, "memory_budget", lambda device: 5 * ahead.SHARE * size)
    with counted(monkeypatch) as calls:
        looped(model, 12)
    assert calls == [1, 1, 5, 5, 5, 5, 1, 1]
    monkeypatch.setattr(ahead, "memory_budget", lambda device: 1)
    with counted(monkeypatch) as calls:
        looped(model, 12)
    assert calls == [1] * 24
    monkeypatch.undo()
    monkeypatch.setattr(ahead, "DEVICES", ("cpu",))
    with dubio.memory_limit("1 GiB"):
        looped(model, 12)  # tries the network first
        with counted(monkeypatch) as calls:
            looped(model, 12)
    assert calls == [1] * 24


def test_weights_that_cannot_be_mapped_are_drawn_one_by_one(
    slow_launches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 3))
    whole, asked = posterior.GaussianPosterior.perturbation, []

    def unmapped(self: Any, run: Pass) -> Tensor:
        asked.append(run.mapped)
        if run.mapped:
            raise RuntimeError("not over draws")
        return whole(self, run)

    expected = looped(model, 5)
    monkeypatch.setattr(posterior.WeightSource, "perturbation", unmapped)
    torch.testing.assert_close(looped(model, 5), expected, rtol=0.0, atol=0.0)
    assert asked.count(True) == 1


def test_what_only_later_draws_ask_for_is_drawn_then(slow_launches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Alternating(nn.Module):
        """Takes another layer in every draw."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(5, 3) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            run = dubio.sampling.current_pass()
            return self.layers[0 if run is None or run.draw is None else int(run.draw) % 2](x)

    model = dubio.Bayes(init_std=0.3).convert(Alternating())
    found = looped(model, 6)
    monkeypatch.setattr(ahead, "DEVICES", ())
    torch.testing.assert_close(found, looped(model, 6), rtol=0.0, atol=0.0)
