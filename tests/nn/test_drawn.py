"""Modules whose parameters are drawn: their class changes and nothing else of them."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.nn.rewrite import Drawn, drawn_names
from dubio.nn.sources import posteriors


class Named(nn.Module):
    """A user's module that has every name which a careless library would take."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.estimator = nn.Linear(5, 4)
        self.shares_draw, self.noise_key, self.plain_class = "mine", 3, "also mine"
        self.prior = nn.Parameter(torch.randn(4))

    def _value(self, x: Tensor) -> Tensor:
        return self.estimator(x)

    def _posterior(self, x: Tensor) -> Tensor:
        return x * self.scale + self.prior

    def draw(self, x: Tensor) -> Tensor:
        return self._posterior(self._value(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(x)


def test_a_users_own_names_stay_the_users_own() -> None:
    net, inputs = Named(), torch.randn(3, 5)
    model = dubio.Bayes(init_std=0.3).convert(net)
    with dubio.noise_off():
        assert torch.equal(model(inputs), net(inputs))
    assert not torch.equal(model(inputs), model(inputs))
    for twin in (model, copy.deepcopy(model), dubio.to_mean(model)):
        assert (twin.shares_draw, twin.noise_key, twin.plain_class) == ("mine", 3, "also mine")
        assert isinstance(twin.estimator, nn.Linear)
    assert type(dubio.to_mean(model)) is Named
    assert set(vars(dubio.to_mean(model))) == set(vars(net))


def test_a_drawn_module_is_an_instance_of_its_plain_class_and_looks_like_it() -> None:
    net = Named()
    model = dubio.Bayes().convert(nn.Sequential(net))[0]
    assert isinstance(model, Named)
    assert isinstance(model, Drawn)
    assert (type(model).__name__, type(model).__module__) == ("Named", Named.__module__)
    assert drawn_names(model) == ["scale", "prior"]
    assert [name for name, _ in model.named_parameters(recurse=False)] == []
    assert torch.equal(model.scale, net.scale)  # outside any pass, the mean
    assert type(model) is type(dubio.Bayes().convert(nn.Sequential(Named()))[0])  # one class for all of them
    other = dubio.Bayes(where="0").convert(nn.Sequential(Named(), nn.Linear(2, 2)))[0]
    assert type(other) is type(model)


def test_a_parameter_is_read_as_the_draw_of_the_running_pass() -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x * self.scale, self.scale, getattr(self, "scale")  # noqa: B009

    model = dubio.Bayes(init_std=0.3).convert(Reading())
    for executor in ("vmap", "loop"):
        outputs, first, second = dubio.sample(model, torch.ones(1, 4), 3, seed=1, executor=executor)
        assert torch.equal(first, second)
        torch.testing.assert_close(outputs[:, 0], first, rtol=0.0, atol=0.0)
        assert (first[0] != first[1]).all()
    (posterior,) = posteriors(model)
    assert model.scale is posterior.mean


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_are_of_the_same_class_and_give_the_same_draws(copied: Any) -> None:
    model, inputs = dubio.Bayes(init_std=0.3).convert(Named()), torch.randn(3, 5)
    model(inputs).sum().backward()
    twin = copied(model)
    assert type(twin) is type(model)
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}
    assert torch.equal(dubio.sample(twin, inputs, 3, seed=1), dubio.sample(model, inputs, 3, seed=1))


def test_a_part_called_by_itself_draws_for_that_call() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Named()

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x)

    model, inputs = dubio.Bayes(init_std=0.3).convert(Wrapped()), torch.randn(3, 5)
    assert not torch.equal(model.part(inputs), model.part(inputs))
    assert dubio._engine.current_pass() is None
    with dubio.frozen(seed=1):
        assert torch.equal(model.part(inputs), model(inputs))


def test_one_parameter_under_two_names_is_one_draw() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4))
            self.again = self.weight

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight * self.again

    model = dubio.Bayes(init_std=1.0).convert(Twice())
    assert len(posteriors(model)) == 1
    assert (dubio.sample(model, torch.ones(1, 4), 50) > 0).all()
    plain = dubio.to_mean(model)
    assert plain.weight is plain.again


@pytest.mark.parametrize("estimator", ["local", "weight"])
def test_a_network_that_is_printed_while_it_runs_draws_the_same(estimator: Any) -> None:
    """Torch's compiler does so, too: before 2.12 it prints modules that it has met twice."""

    class Printing(nn.Module):
        def __init__(self, prints: bool) -> None:
            super().__init__()
            self.layers, self.prints = nn.Sequential(nn.Linear(4, 3), nn.Embedding(2, 3)), prints

        def forward(self, x: Tensor) -> Tensor:
            if self.prints:
                said.append(repr(self))
            return self.layers[0](x) + self.layers[1](torch.zeros(len(x), dtype=torch.int64))

    said: list[str] = []
    silent, printing = (dubio.Bayes(estimator=estimator, init_std=0.3).convert(Printing(on)) for on in (False, True))
    printing.load_state_dict(silent.state_dict())
    inputs, draws = torch.randn(5, 4), []
    for model in (silent, printing):
        torch.manual_seed(3)
        draws += [model(inputs), dubio.sample(model, inputs, 2, executor="loop")]
    assert all(map(torch.equal, draws[:2], draws[2:]))
    assert said == [repr(printing)] * 3
