"""Networks that draw from Python's or NumPy's generator, or from torch's on the CPU: their draws are all different."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attack_table import bayesian_net, examples, plain_net
from dubio import attacks
from dubio._engine.host_rng import HostState, Stream, seeded

DRAW: dict[str, Callable[[int], int]] = {
    "python": lambda most: random.randint(0, most),
    "numpy": lambda most: int(np.random.randint(most + 1)),  # noqa: NPY002 - what networks use
}


class ResizeAndPad(nn.Module):
    """A random size and a random place, drawn on the host (Xie et al. 2018)."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, images: Tensor) -> Tensor:
        free = self.draw(4)
        left, top = self.draw(free), self.draw(free)
        small = F.interpolate(images, size=(12 - free, 12 - free))
        return F.pad(small, (left, free - left, top, free - top))


class OwnGenerator(nn.Module):
    """Adds a number of a generator that nobody else knows."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(0)

    def forward(self, images: Tensor) -> Tensor:
        return images + self.generator.random()


def defended(defence: nn.Module) -> nn.Module:
    return nn.Sequential(
        defence, nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 3)
    ).eval()


def images() -> tuple[Tensor, Tensor]:
    return torch.rand(4, 1, 8, 8), torch.arange(4) % 3


def checked(net: nn.Module, inputs: Tensor, labels: Tensor) -> attacks.target.AttackTarget:
    target = attacks.PGD(num_samples=20).target_for(net)
    target.check(inputs, labels)
    return target


def num_different(draws: Tensor) -> int:
    return len(draws.detach().unique(dim=0))


@pytest.mark.parametrize("host", DRAW)
def test_an_attacker_averages_over_draws_that_differ(host: str) -> None:
    net, (inputs, labels) = defended(ResizeAndPad(DRAW[host])), images()
    target = checked(net, inputs, labels)
    assert target.is_random
    assert target.num_samples == 20
    assert num_different(target.log_probs(inputs)) > 5
    seen: list[int] = []
    net.register_forward_hook(lambda *_: seen.append(1))
    target.loss_and_grad(inputs, labels)
    target.labels(inputs)
    assert len(seen) == 40


def test_a_generator_that_nobody_knows_is_looped_too() -> None:
    net, (inputs, labels) = defended(OwnGenerator()), images()
    target = checked(net, inputs, labels)
    assert target.draws_on_host
    assert num_different(target.log_probs(inputs)) == 20


class Bystander(nn.Module):
    """Draws on the host, and shows nothing of it."""

    def forward(self, images: Tensor) -> Tensor:
        random.random()
        return images


def test_numbers_that_do_not_show_make_no_network_random() -> None:
    inputs, labels = images()
    target = checked(defended(Bystander()), inputs, labels)
    assert not target.is_random
    assert not target.draws_on_host
    assert (target.num_samples, target.executor) == (1, "auto")


class Coin(nn.Module):
    """Ignores its inputs and says class 0 or 1, as a coin of the host falls."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, inputs: Tensor) -> Tensor:
        said = F.one_hot(torch.tensor(self.draw(1)), 2).to(inputs.dtype)
        return 40.0 * said + 0.0 * inputs.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("host", DRAW)
def test_the_score_is_that_of_fresh_draws(host: str) -> None:
    found = attacks.score(Coin(DRAW[host]), torch.rand(3, 5), torch.zeros(3, dtype=torch.int64), num_samples=100)
    assert 0.3 < found.single.value < 0.7


@pytest.mark.parametrize("host", DRAW)
def test_a_seed_makes_it_repeatable(host: str) -> None:
    net, (inputs, labels) = defended(ResizeAndPad(DRAW[host])), images()
    one, other = (attacks.PGD(steps=3, num_samples=4, seed=5)(net, inputs, labels) for _ in range(2))
    assert torch.equal(one.inputs, other.inputs)


@pytest.mark.parametrize("host", DRAW)
def test_frozen_noise_is_frozen_on_the_host(host: str) -> None:
    net, (inputs, labels) = defended(ResizeAndPad(DRAW[host])), images()
    target = checked(net, inputs, labels)
    frozen = target.on_new_draws()
    one, other = (frozen.evaluate(inputs, labels)[0] for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.equal(one, target.on_new_draws().evaluate(inputs, labels)[0])


@pytest.mark.parametrize("host", DRAW)
def test_a_seed_leaves_the_generators_of_the_host_where_they_were(host: str) -> None:
    generators = HostState()
    assert not generators.moved()
    with seeded(3, torch.device("cpu"), lend=True):
        DRAW[host](9)
    assert not generators.moved()
    DRAW[host](9)
    assert host in generators.moved().lower()


def test_what_the_host_draws_is_not_recorded() -> None:
    attack, cuda = attacks.PGD(steps=50), torch.device("cuda")
    inputs, labels = images()
    assert attack._recorder(checked(defended(ResizeAndPad(DRAW["python"])), inputs, labels), cuda) is None
    for net in (plain_net(), bayesian_net("weight")):
        assert attack._recorder(checked(net, *examples(net)), cuda) is not None


def test_a_seed_touches_no_generator_of_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(torch.Generator().manual_seed(number) for number in range(3))
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("all devices were seeded"))
    own: dict[torch.device, torch.Generator] = {}  # on the CPU, for a machine without a GPU
    make = lambda _, device: own.setdefault(device, torch.Generator().manual_seed(7))  # noqa: E731
    monkeypatch.setattr(Stream, "generator", make)
    states = [generator.get_state() for generator in (torch.default_generator, *gpus)]
    with seeded(7, torch.device("cuda", 1), lend=True):
        assert [generator.initial_seed() for generator in gpus] == [0, 7, 2]
        assert torch.rand(()) == torch.rand((), generator=gpus[1])
    now = [generator.get_state() for generator in (torch.default_generator, *gpus)]
    assert all(torch.equal(before, after) for before, after in zip(states, now, strict=True))
    with seeded(7, torch.device("cpu"), lend=True):
        assert torch.equal(gpus[1].get_state(), states[2])
