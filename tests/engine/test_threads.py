"""Several threads: seeded functions give what they give alone, and no run changes the global generators."""

import copy
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dubio
from dubio import attacks
from dubio._engine.host_rng import Stream

THREADS = 8
INPUTS = torch.rand(6, 6, generator=torch.Generator().manual_seed(1))
TARGETS = torch.arange(6) % 3


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return dubio.Bayes(init_std=0.3).convert(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), *layers, nn.Linear(8, 3))).eval()


class OwnDropout(nn.Module):
    """Drops activations in eval mode, too, with numbers of torch's global generator."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.3, training=True)


class OwnScale(nn.Module):
    """Scales activations by numbers of Python and NumPy."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (0.5 + random.random() + np.random.rand())  # noqa: NPY002 - what networks use


class Augmented(Dataset[Any]):
    """Examples with noise from torch's global generator."""

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return INPUTS[row] + 0.1 * torch.rand(6), TARGETS[row]


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def fitted(model: nn.Module, data: Any = (INPUTS, TARGETS)) -> Tensor:
    own = copy.deepcopy(model)
    dubio.fit(own, data, epochs=2, batch_size=3, seed=0, progress=False)
    return weights(own)


def decided(model: nn.Module) -> Tensor:
    own, data = copy.deepcopy(model), (INPUTS, TARGETS)
    dubio.calibrate(own, data, num_samples=3)
    dubio.abstain(own, data, coverage=0.8, num_samples=3)
    dubio.conformal(own, data, coverage=0.5, num_samples=3)
    return dubio.predict(own, INPUTS, 3, seed=0).probs


def pruned(model: nn.Module) -> Tensor:
    own = copy.deepcopy(model)
    dubio.prune(own, 0.5, validation=(INPUTS, TARGETS), num_samples=3)
    return weights(own)


def elbo(model: nn.Module) -> Tensor:
    with dubio.frozen(seed=0):
        return dubio.ELBO(num_data=6)(model, INPUTS, TARGETS, 3).total


FUNCTIONS: dict[str, Callable[[nn.Module], Tensor]] = {
    "predict": lambda model: dubio.predict(model, INPUTS, 5, seed=0).probs,
    "sample": lambda model: dubio.sample(model, INPUTS, 3, seed=0).detach(),
    "evaluate": lambda model: torch.tensor(
        dubio.evaluate(model, (INPUTS, TARGETS), num_samples=3, num_resamples=5, seed=0).metrics["nll"].value
    ),
    "loss": lambda model: elbo(model).detach(),
    "gradients": lambda model: torch.cat(
        [gradient.flatten() for gradient in torch.autograd.grad(elbo(model), list(model.parameters()))]
    ),
    "score": lambda model: torch.tensor(
        attacks.score(model, INPUTS, TARGETS, num_samples=10, num_tries=3, seed=0).single.value
    ),
    "fgsm": lambda model: attacks.fgsm(model, INPUTS, TARGETS, epsilon=0.1, num_samples=2, seed=0),
    "pgd": lambda model: attacks.pgd(model, INPUTS, TARGETS, epsilon=0.1, steps=2, num_samples=2, seed=0),
    "square": lambda model: attacks.square(model, INPUTS, TARGETS, epsilon=0.1, steps=2, num_samples=2, seed=0),
    "decisions": decided,
    "prune": pruned,
    "fit": fitted,
}


def states() -> list[Any]:
    """The states of the global generators."""
    numpy = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return [torch.get_rng_state().tolist(), random.getstate(), numpy["key"].tolist(), numpy["pos"]]


@contextmanager
def drawing() -> Iterator[list[tuple[float, ...]]]:
    """Another thread that draws from all global generators of the process, and what it has drawn."""
    drawn: list[tuple[float, ...]] = []
    stop, begun = threading.Event(), threading.Event()

    def draw() -> None:
        while not stop.is_set():
            drawn.append((*torch.rand(2).tolist(), np.random.rand(), random.random()))  # noqa: NPY002
            begun.set()
            stop.wait(0.0001)

    thread = threading.Thread(target=draw)
    thread.start()
    begun.wait()
    try:
        yield drawn
    finally:
        stop.set()
        thread.join()


def in_threads(function: Callable[[], Tensor], calls: int = THREADS) -> list[Tensor]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda _: function(), range(calls)))


@pytest.mark.filterwarnings("ignore::dubio.DecisionWarning")
@pytest.mark.feature("Seeded calls in several threads give what they give alone, and touch no global generator")
@pytest.mark.parametrize("calls", [THREADS, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_in_threads_equal_serial_ones(name: str, calls: int) -> None:
    function, model = FUNCTIONS[name], network()
    expected, before = function(copy.deepcopy(model)), states()
    assert all(torch.equal(result, expected) for result in in_threads(lambda: function(model), calls))
    assert states() == before


@pytest.mark.filterwarnings("ignore::dubio.DecisionWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_another_thread_that_draws_changes_nothing_and_draws_nothing_twice(name: str) -> None:
    function, model = FUNCTIONS[name], network()
    expected = function(copy.deepcopy(model))
    with drawing() as drawn:
        for _ in range(2):  # each on a network that was never tried before
            assert torch.equal(function(copy.deepcopy(model)), expected)
    for numbers in zip(*((draw[:2], draw[2], draw[3]) for draw in drawn), strict=True):
        assert len(set(numbers)) == len(drawn)


def test_fit_beside_predictions_equals_fit_alone() -> None:
    model, other, stop = network(), network(), threading.Event()
    alone = fitted(model)

    def predict() -> None:
        while not stop.is_set():
            dubio.predict(copy.deepcopy(other), INPUTS, 3)

    thread = threading.Thread(target=predict)
    thread.start()
    try:
        assert all(torch.equal(fitted(model), alone) for _ in range(2))
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("layer", [OwnDropout, OwnScale])
@pytest.mark.parametrize("name", ["score", "pgd", "square"])
def test_seeded_attacks_on_a_network_that_draws_itself_take_turns(name: str, layer: type[nn.Module]) -> None:
    function, model = FUNCTIONS[name], network(layer())
    before, expected = states(), function(model)
    assert all(torch.equal(result, expected) for result in in_threads(lambda: function(model)))
    assert states() == before
    kind = "torch's" if layer is OwnDropout else "NumPy's or Python's"
    assert f"draws from {kind} global generator itself" in str(dubio.describe(model))


def test_fits_with_ordinary_dropout_take_turns() -> None:
    model = network(nn.Dropout(0.5))
    before, expected = states(), fitted(model)
    assert all(torch.equal(result, expected) for result in in_threads(lambda: fitted(model)))
    assert states() == before
    assert not torch.equal(expected, fitted(network()))


@pytest.mark.parametrize(
    "make",
    [
        Augmented,
        lambda: DataLoader(Augmented(), 2),
        lambda: DataLoader(TensorDataset(INPUTS, TARGETS), 2, shuffle=True),
    ],
    ids=["dataset", "loader", "shuffled"],
)
def test_reading_data_that_draw_changes_no_number_of_the_process(make: Callable[[], Any]) -> None:
    model = network()
    before, expected = states(), fitted(model, make())
    assert states() == before
    with drawing() as drawn:
        assert torch.equal(fitted(model, make()), expected)
    assert len({draw[:2] for draw in drawn}) == len(drawn)


def test_a_network_without_noise_is_none_beside_another_thread_that_draws() -> None:
    model = network()
    with drawing():
        for _ in range(3):
            attacks.fgsm(model, INPUTS, TARGETS, epsilon=0.1, noise="off")
            assert dubio.plan(copy.deepcopy(model), INPUTS, 3).executor == "vmap"
        for _ in range(3):  # which compares runs of two networks that draw the same
            with pytest.warns(UserWarning, match="dropout is called as a function"):
                dubio.Bayes().convert(nn.Sequential(OwnDropout(), nn.Linear(6, 3)), example=INPUTS)


def test_attacks_in_several_threads_all_run_in_eval_mode() -> None:
    modes: list[bool] = []

    class Watching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            modes.append(self.training)
            return x

    model, together = network(Watching()).train(), threading.Barrier(2, timeout=20)

    def attack(steps: int) -> None:
        together.wait()
        attacks.pgd(model, INPUTS, TARGETS, epsilon=0.1, steps=steps, num_samples=1, seed=0)

    threads = [threading.Thread(target=attack, args=(steps,)) for steps in (1, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(modes)
    assert model.training


def test_a_network_that_begins_to_draw_later_is_noticed_in_the_next_step() -> None:
    model = network(nn.Dropout(0.0)).train()
    with Stream(0).in_use():
        step = dubio.Step(model, dubio.ELBO(num_data=6), torch.optim.SGD(model.parameters(), lr=0.01), fast=False)
        for _ in range(2):
            step(INPUTS, TARGETS)
        assert not step.draws_itself
        model.get_submodule("2").p = 0.5
        for _ in range(2):
            step(INPUTS, TARGETS)
        assert step.draws_itself
        before = states()
        step(INPUTS, TARGETS)
        assert states() == before
