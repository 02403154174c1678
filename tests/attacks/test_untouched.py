"""T-63: a network is after an attack what it was before, whatever happens in between."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from attack_table import ALL, examples
from dubio import attacks
from dubio._engine import isolated


class Counter(nn.Module):
    """Counts its calls in buffers, in place and by putting new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("in_place", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.in_place += 1
        self.replaced = self.replaced + 1
        return inputs


def training_net(convert: bool) -> nn.Module:
    """A network in the middle of its training: statistics, dropout, mixed flags, gradients, a frozen parameter."""
    net: nn.Module = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), Counter(), nn.Linear(8, 4)
    )
    if convert:
        net = dubio.Bayes(estimator="local").convert(net)
    net.train()
    net(torch.rand(9, 6)).square().mean().backward()
    next(net.parameters()).requires_grad_(False)
    list(net.children())[3].eval()
    return net


def snapshot(net: nn.Module) -> dict[str, Any]:
    """All that must stay: values, gradients and which tensors hold them, flags."""
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    return {
        "tensors": {name: (id(tensor), tensor.detach().clone()) for name, tensor in tensors.items()},
        "wanting": {name: parameter.requires_grad for name, parameter in net.named_parameters()},
        "gradients": {
            name: (id(parameter.grad), None if parameter.grad is None else parameter.grad.clone())
            for name, parameter in net.named_parameters()
        },
        "modes": {name: module.training for name, module in net.named_modules()},
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["wanting"] == after["wanting"]
    assert before["modes"] == after["modes"]
    for kind in ("tensors", "gradients"):
        assert before[kind].keys() == after[kind].keys()
        for name, (holder, value) in before[kind].items():
            assert after[kind][name][0] == holder, name
            assert value is after[kind][name][1] is None or torch.equal(value, after[kind][name][1]), name


def test_the_snapshot_sees_what_a_forward_in_training_mode_changes() -> None:
    net = training_net(convert=False)
    before = snapshot(net)
    net(torch.rand(9, 6))
    with pytest.raises(AssertionError):
        assert_same(before, snapshot(net))


@pytest.mark.parametrize("convert", [False, True])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("ignore::dubio._engine.ExecutorWarning")  # the counter keeps a tensor on itself
def test_t63_an_attack_leaves_the_network_as_it_was(name: str, convert: bool) -> None:
    net = training_net(convert)
    inputs, labels = examples(copy.deepcopy(net).eval())
    before, generator = snapshot(net), torch.get_rng_state()
    attack = ALL[name]
    type(attack)(**{**vars(attack), "seed": 1, "num_samples": 2})(net, inputs, labels)
    assert_same(before, snapshot(net))
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("calls", [1, 4, 6])
@pytest.mark.parametrize("name", ["pgd", "apgd", "square", "ddn", "minimum norm"])
def test_t63_also_when_the_attack_is_interrupted(name: str, calls: int) -> None:
    net = nn.Sequential(Failing(calls), training_net(convert=False))
    inputs, labels = examples(copy.deepcopy(net[1]).eval())
    before, generator = snapshot(net), torch.get_rng_state()
    attack = ALL[name]
    with pytest.raises(KeyboardInterrupt):
        type(attack)(**{**vars(attack), "seed": 1})(net, inputs, labels)
    assert_same(before, snapshot(net))
    assert torch.equal(torch.get_rng_state(), generator)


class Failing(nn.Module):
    """Is interrupted in one of its calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls -= 1
        if self.calls == 0:
            raise KeyboardInterrupt
        return inputs


def test_a_source_is_left_as_it_was_too() -> None:
    source = training_net(convert=False)
    before = snapshot(source)
    attacks.Transfer(attack=attacks.PGD(steps=2), source=source)(training_net(convert=False), *examples())
    assert_same(before, snapshot(source))


@pytest.mark.parametrize(
    "judge", [attacks.score, lambda net, inputs, labels: attacks.strongest(net, [fake(inputs)], labels)]
)
def test_judging_leaves_the_network_as_it_was(judge: Callable[..., Any]) -> None:
    net = training_net(convert=False)
    before = snapshot(net)
    judge(net, *examples())
    assert_same(before, snapshot(net))


def fake(inputs: Tensor) -> attacks.AttackResult:
    rows = torch.zeros(len(inputs))
    return attacks.AttackResult(inputs, rows, rows, rows.bool(), 0, 0, 0.0)


def test_the_network_is_in_eval_mode_meanwhile_and_asks_for_no_gradients() -> None:
    net = training_net(convert=False)
    with isolated(net, training=False, trainable=False):
        assert not any(module.training for module in net.modules())
        assert not any(parameter.requires_grad for parameter in net.parameters())
