"""Prefetched weights of looped draws: the same numbers, in fewer launches, within memory."""

import importlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import dubio
from dubio._engine import execute, passes
from networks import mlp

posterior = importlib.import_module("dubio.nn.sources")

INPUTS = torch.randn(6, 5)
NETWORKS = {
    "bayes": lambda: dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 3)),
    "mixture prior": lambda: dubio.Bayes(init_std=0.3, prior=dubio.ScaleMixture(0.5, 1.0, 0.1)).convert(mlp(5, 8, 3)),
    "parametric noise": lambda: dubio.PNI().convert(mlp(5, 8, 3)),
    "tied": lambda: dubio.Bayes(init_std=0.3).convert(Tied()),
    "pruned": lambda: pruned(),
    "recurrent": lambda: dubio.Bayes(init_std=0.3).convert(Recurrent()),
    "double": lambda: dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 3)).double(),
}


class Tied(nn.Module):
    """One layer, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.layer(x).relu()))


class Recurrent(nn.Module):
    """A layer that torch can map over nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(1, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.unsqueeze(-1))[0][:, -1])


class Tempered(nn.Module):
    """Runs a network with other widths than its own, from some draw on."""

    def __init__(self, net: nn.Module, first: int, how: str) -> None:
        super().__init__()
        self.net, self.first, self.how = net, first, how

    def forward(self, x: Tensor) -> Tensor:
        run = dubio._engine.current_pass()
        if run is None or run.draw is None or int(run.draw) < self.first:
            return self.net(x)
        more = 1.0 + float(run.draw)
        wider = {name: value + more for name, value in self.net.named_parameters() if name.endswith("rho")}
        if self.how == "swapped":
            return functional_call(self.net, wider, (x,))
        own = {name: value.clone() for name, value in self.net.named_parameters() if name in wider}
        self._set(wider)
        result = self.net(x)
        self._set(own)
        return result

    def _set(self, values: dict[str, Tensor]) -> None:
        for name, value in self.net.named_parameters():
            if name in values and self.how == "in place":
                value.copy_(values[name])
            elif name in values:
                value.data = values[name]


def pruned() -> nn.Module:
    model = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 3))
    dubio.prune(model, 0.5)
    return model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The same number of draws at a time, whatever the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many draws each call for noise was for."""
    calls: list[int] = []
    whole = passes.noise_in_pass

    def spy(seed: Tensor, draw: Tensor, *rest: Any) -> Any:
        mapped = torch._C._functorch.is_batchedtensor(draw)
        calls.append(torch._C._functorch.get_unwrapped(draw).numel() if mapped else draw.numel())
        return whole(seed, draw, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(passes, "noise_in_pass", spy)
        yield calls


def looped(model: nn.Module, num_samples: int = 20, **options: Any) -> Tensor:
    inputs = INPUTS.to(next(model.parameters()).dtype)
    samples = dubio.predict(model, inputs, num_samples, seed=3, executor="loop", **options).samples
    assert samples is not None
    return samples


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.usefixtures("unchecked")
def test_drawing_ahead_changes_no_draw(
    make: Callable[[], nn.Module], batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    with counted(monkeypatch) as calls:
        result = looped(model, batch_size=batch_size)
    assert set(calls) == {16, 4}
    with dubio.antithetic():
        mirrored = looped(model, batch_size=batch_size)
    monkeypatch.setattr(execute, "DEVICES", ())
    torch.testing.assert_close(result, looped(model, batch_size=batch_size), rtol=0.0, atol=0.0)
    with dubio.antithetic():
        torch.testing.assert_close(mirrored, looped(model, batch_size=batch_size), rtol=0.0, atol=0.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_a_gpu_drawing_ahead_changes_no_draw(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 3))
    model, images = dubio.Bayes(init_std=0.3).convert(nn.Sequential(*layers)).cuda(), torch.rand(9, 3, 8, 8).cuda()
    options: Any = {"seed": 3, "executor": "loop", "precision": precision}
    with counted(monkeypatch) as calls:
        result = dubio.predict(model, images, 20, **options).samples
    assert set(calls) == {16, 4}
    monkeypatch.setattr(execute, "DEVICES", ())
    torch.testing.assert_close(result, dubio.predict(model, images, 20, **options).samples, rtol=0.0, atol=0.0)


def test_noise_is_drawn_for_many_draws_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dubio.Bayes().convert(nn.Linear(5, 3))  # weights and biases
    with counted(monkeypatch) as calls:
        looped(model, batch_size=2)
    assert calls == [16, 16, 4, 4]
    monkeypatch.setattr(execute, "DEVICES", ())
    with counted(monkeypatch) as calls:
        looped(model)
    assert calls == [1] * 40


def test_what_is_drawn_ahead_takes_a_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dubio.Bayes().convert(nn.Linear(5, 3))
    parameters = 2 * 4 * (15 + 3)
    monkeypatch.setattr(execute, "memory_budget", lambda device: 5 * execute.SHARE * parameters)
    with counted(monkeypatch) as calls:
        looped(model, 11)
    assert calls == [5, 5, 5, 5, 1, 1]
    monkeypatch.setattr(execute, "memory_budget", lambda device: 1)
    with counted(monkeypatch) as calls:
        looped(model, 11)
    assert calls == [1] * 22
    monkeypatch.undo()
    with dubio.memory_limit("1 GiB"):
        looped(model, 11)  # tries the network first
        with counted(monkeypatch) as calls:
            looped(model, 11)
    assert calls == [1] * 22


@pytest.mark.parametrize(("threads", "expected"), [(2, [16, 4]), (3, [15, 5]), (5, [15, 5]), (32, [16, 4])])
def test_every_thread_has_as_many_draws(threads: int, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(threads)
    model = dubio.Bayes().convert(nn.Linear(5, 3, bias=False))
    with counted(monkeypatch) as calls:
        looped(model)
    assert calls == expected


def test_predictions_of_large_layers_draw_ahead_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dubio.Bayes().convert(nn.Linear(1000, 1000, bias=False))
    inputs = torch.rand(2, 1000)
    dubio.predict(model, inputs, 4, executor="loop")
    with counted(monkeypatch) as calls:
        dubio.predict(model, inputs, 6, executor="loop")
    assert calls == [6]


def test_no_more_than_one_stack_of_each_posterior_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Tensor]] = []
    most: list[int] = []
    whole = execute.WeightPrefetcher._drawn

    def spy(self: Any, *values: Any) -> Any:
        most.append(sum(one() is not None for one in alive))
        result = whole(self, *values)
        alive.append(weakref.ref(result.tensor))
        return result

    monkeypatch.setattr(execute.WeightPrefetcher, "_drawn", spy)
    looped(dubio.Bayes().convert(mlp(5, 8, 3)), 48)
    assert (len(most), max(most)) == (12, 3)  # of four posteriors, as one draws anew
    assert not any(one() is not None for one in alive)


def test_out_of_memory_with_weights_drawn_ahead_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(nn.Module):
        """Has no room beside weights that were drawn ahead."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            result, run = self.layer(x), dubio._engine.current_pass()
            if run is not None and run.ahead is not None and run.ahead.is_drawing:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return result

    model = dubio.Bayes(init_std=0.3).convert(Full())
    result = looped(model, 5)
    monkeypatch.setattr(execute, "DEVICES", ())
    torch.testing.assert_close(result, looped(model, 5), rtol=0.0, atol=0.0)


def test_out_of_memory_in_drawing_ahead_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dubio.Bayes(init_std=0.3).convert(nn.Linear(5, 3, bias=False))
    expected, whole = looped(model, 5), posterior.GaussianPosterior.scale

    def scale(self: Any, noise: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(noise):
            raise RuntimeError("CUDA error: out of memory")
        return whole(self, noise)

    monkeypatch.setattr(posterior.GaussianPosterior, "scale", scale)
    torch.testing.assert_close(looped(model, 5), expected, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("how", ["swapped", "in place", "other data"])
@pytest.mark.parametrize("first", [0, 3])
def test_weights_are_drawn_from_what_a_posterior_holds_at_the_time(
    first: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = dubio.Bayes(init_std=0.3).convert(Tempered(mlp(5, 8, 3), first, how))
    result = looped(model, 6)
    monkeypatch.setattr(execute, "DEVICES", ())
    torch.testing.assert_close(result, looped(model, 6), rtol=0.0, atol=0.0)


def test_weights_that_cannot_be_mapped_are_drawn_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dubio.Bayes(init_std=0.3).convert(nn.Linear(5, 3))
    whole, mapped = posterior.GaussianPosterior.scale, []

    def unmapped(self: Any, noise: Tensor) -> Tensor:
        mapped.append(torch._C._functorch.is_batchedtensor(noise))
        if mapped[-1]:
            raise RuntimeError("not over draws")
        return whole(self, noise)

    expected = looped(model, 5)
    monkeypatch.setattr(posterior.GaussianPosterior, "scale", unmapped)
    torch.testing.assert_close(looped(model, 5), expected, rtol=0.0, atol=0.0)
    assert mapped.count(True) == 2  # tried once for weights and once for biases


@pytest.mark.filterwarnings("error")
def test_nothing_is_said_of_operators_that_torch_maps_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = posterior.GaussianPosterior.scale
    monkeypatch.setattr(
        posterior.GaussianPosterior, "scale", lambda self, noise: whole(self, torch.renorm(noise, 2, 0, 1e6))
    )
    looped(dubio.Bayes().convert(nn.Linear(5, 3, bias=False)), 5)


def test_gradients_and_maps_of_the_network_itself_draw_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Transformed(nn.Module):
        """Differentiates and maps its layer."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                inputs = x.detach().requires_grad_()
                (slope,) = torch.autograd.grad(self.layer(inputs).square().sum(), inputs)
            return torch.func.vmap(self.layer)(x + slope)

    model = dubio.Bayes(init_std=0.3).convert(Transformed())
    result = looped(model, 5)
    monkeypatch.setattr(execute, "DEVICES", ())
    torch.testing.assert_close(result, looped(model, 5), rtol=0.0, atol=0.0)


def test_widths_have_gradients_where_a_layer_was_read_without_them_before() -> None:
    class Twice(nn.Module):
        """Runs its layer without gradients, and then with them."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)
            self.gradients: list[Tensor | None] = []

        def forward(self, x: Tensor) -> Tensor:
            result = self.layer(x)
            with torch.enable_grad():
                again = self.layer(x)
                rho = self.layer.weight_posterior.rho
                self.gradients += torch.autograd.grad(again.sum(), rho, allow_unused=True)
            torch.testing.assert_close(again.detach(), result)
            return result

    model = dubio.Bayes(init_std=0.3).convert(Twice())
    looped(model, 4)
    assert all(gradient is not None and gradient.abs().sum() > 0.0 for gradient in model.gradients)
    assert len(model.gradients) >= 4
