"""Noise from outside of torch: such networks are looped, and a probe of them has no side effects."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dubio
from dubio._engine.host_rng import Stream, redirected
from dubio._engine.planner import plans
from networks import mlp

INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))


class Jittered(nn.Module):
    """Scales its inputs by a number from somewhere."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layers, self.draw = mlp(5, 7, 4), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x * (1.0 + self.draw()))


class Own(nn.Module):
    """The same, with its own generator."""

    def __init__(self, generator: random.Random | np.random.Generator | np.random.RandomState) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        return x * (1.0 + self.generator.uniform(0.0, 1.0))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "Python's random": lambda: Jittered(lambda: random.random()),
    "Python's random ": lambda: Jittered(lambda: random.randint(0, 10**6) / 10**6),
    "numpy.random": lambda: Jittered(lambda: np.random.rand()),  # noqa: NPY002
    "0.generator": lambda: nn.Sequential(Own(random.Random(0)), mlp(5, 4)),
    "0.generator ": lambda: nn.Sequential(Own(np.random.default_rng(0)), mlp(5, 4)),
    "0.generator  ": lambda: nn.Sequential(Own(np.random.RandomState(0)), mlp(5, 4)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_noise_from_outside_of_torch_are_looped(name: str) -> None:
    model = NETWORKS[name]().eval()
    with torch.no_grad():
        assert len(dubio.sample(model, INPUTS, 16).unique(dim=0)) == 16
    (plan,) = plans(model).values()
    assert plan.executor == "loop"
    assert plan.reason.startswith(f"mapped draws would share what it draws from {name.strip()}; ")
    predictive = dubio.predict(model, INPUTS, 20)
    assert float(predictive.mutual_information.max()) > 0.0


def test_a_trial_leaves_generators_outside_of_torch_where_they_were() -> None:
    generators = np.random.default_rng(0), random.Random(0), np.random.RandomState(0)
    expected = [generator.uniform(0.0, 1.0) for generator in copy.deepcopy(generators)]
    dubio.plan(nn.Sequential(*(Own(generator) for generator in generators)), INPUTS, 16)
    assert [generator.uniform(0.0, 1.0) for generator in generators] == expected


def test_networks_without_such_noise_are_mapped() -> None:
    model = nn.Sequential(Own(np.random.default_rng(0)), mlp(5, 4))
    model[0].forward = lambda x: x  # type: ignore[method-assign]
    assert dubio.plan(model, INPUTS, 16).executor == "vmap"


def test_noise_from_outside_of_torch_comes_back_where_draws_are_computed_anew() -> None:
    outcomes = []
    for limit in ("1 GiB", "20 KiB"):
        torch.manual_seed(0)
        generator = np.random.default_rng(0)
        net = nn.Sequential(Own(generator), mlp(5, 7, 4))
        model = dubio.Bayes(init_std=0.1).convert(net).double()
        with dubio.memory_limit(limit):
            draws = dubio.sample(model, INPUTS.double(), 16, seed=1)
            result = torch.autograd.grad(draws.square().sum(), list(model.parameters()))
        (plan,) = plans(model).values()
        assert plan.recompute == (limit == "20 KiB")
        outcomes.append((draws, result, model[0].generator.uniform()))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-10, atol=1e-12)


class Checked(nn.Module):
    """Draws from Python's random and ignores the numbers, as a random check of types does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp(5, 7, 4)

    def forward(self, x: Tensor) -> Tensor:
        random.getrandbits(32)
        return self.layers(x)


@pytest.mark.parametrize("method", [dubio.Bayes(), dubio.Dropout()])
def test_numbers_of_python_that_no_output_follows_are_no_noise(method: Any) -> None:
    model = method.convert(Checked()).train()
    assert dubio.plan(model, INPUTS, 16).executor == "vmap"


BAYESIAN = dubio.Bayes().convert(mlp(5, 4))
OPERATORS: dict[str, Callable[[], Any]] = {
    "rand": lambda: torch.rand(5),
    "randn": lambda: torch.randn(20),
    "randint": lambda: torch.randint(9, (5,)),
    "randint from": lambda: torch.randint(3, 9, (5,)),
    "randperm": lambda: torch.randperm(9),
    "rand_like": lambda: torch.rand_like(INPUTS),
    "randn_like": lambda: torch.randn_like(INPUTS),
    "randint_like": lambda: torch.randint_like(INPUTS, 9),
    "randint_like from": lambda: torch.randint_like(INPUTS, 3, 9),
    "bernoulli": lambda: torch.bernoulli(torch.full((9,), 0.5)),
    "normal": lambda: torch.normal(torch.zeros(9), 1.0),
    "in place": lambda: torch.empty(9).uniform_().exponential_(),
    "multinomial": lambda: torch.multinomial(torch.ones(9), 4),
    "dropout": lambda: F.dropout(INPUTS, 0.5),
    "rrelu": lambda: F.rrelu(-INPUTS, training=True),
    "attention": lambda: F.scaled_dot_product_attention(*[torch.ones(1, 1, 4, 8)] * 3, dropout_p=0.5),
    "lstm": lambda: nn.LSTM(5, 3, num_layers=2, dropout=0.5)(INPUTS)[0].detach(),
    "the global generator by name": lambda: torch.rand(5, generator=torch.default_generator),
    "mapped dropout": lambda: torch.func.vmap(lambda x: F.dropout(x, 0.5), randomness="different")(INPUTS),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_redirected_draws_are_those_of_torchs_seed_and_leave_torchs_generator_alone(name: str) -> None:
    torch.manual_seed(5)
    expected, before = OPERATORS[name](), torch.get_rng_state()
    with redirected(Stream(5)) as watch:
        result = OPERATORS[name]()
    assert torch.equal(result, expected)
    assert torch.equal(torch.get_rng_state(), before)
    assert watch.itself


@pytest.mark.parametrize(
    "quiet",
    [
        lambda: F.scaled_dot_product_attention(*[torch.ones(1, 1, 4, 8)] * 3),
        lambda: F.dropout(INPUTS, 0.5, training=False),
        lambda: F.rrelu(INPUTS, training=False),
        lambda: torch.rand(5, generator=torch.Generator()),
        lambda: dubio.sample(BAYESIAN, INPUTS, 2),
    ],
    ids=["attention", "dropout", "rrelu", "a generator of its own", "a network of dubio's"],
)
def test_what_draws_nothing_from_a_global_generator_is_not_noticed(quiet: Callable[[], Any]) -> None:
    with redirected(Stream(5)) as watch:
        quiet()
    assert not watch.itself
