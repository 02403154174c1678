"""An error that a network raises itself surfaces from the run that meets it: nothing runs it a second time.

Each network counts its calls and raises in one of them.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from attack_table import ALL, examples
from dubio import attacks
from dubio.attacks import target as target_module
from dubio.attacks.target import Recorder
from networks import mlp
from replayed_on_a_cpu import Replayed

ERRORS = (ValueError, KeyError, RuntimeError)
MESSAGE = "the network's own error"
SCORES: dict[str, Callable[..., Any]] = {
    "score": attacks.score,
    "transfer table": lambda net, inputs, labels: attacks.transfer_table(
        {"source": net}, attacks.PGD(steps=2), {"evaluated": net}, inputs, labels
    ),
    "audit": lambda net, inputs, labels: dubio.audit(net, (inputs, labels), epsilon=0.1, budget="tiny", progress=False),
}


class Raising(nn.Module):
    """Raises in its call of this number, and in all that follow."""

    def __init__(self, error: type[Exception], number: int = 1) -> None:
        super().__init__()
        self.error, self.number, self.calls = error, number, 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        if self.calls >= self.number:
            raise self.error(MESSAGE)
        return inputs


def plain(raising: Raising) -> nn.Module:
    return nn.Sequential(raising, mlp(6, 8, 4))


def converted(raising: Raising) -> nn.Module:
    return dubio.Bayes().convert(plain(raising))


def raising_in(net: nn.Module) -> Raising:
    return next(module for module in net.modules() if isinstance(module, Raising))


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("make", [plain, converted])
@pytest.mark.parametrize("name", [*ALL, *SCORES])
def test_an_error_of_the_network_surfaces_from_its_first_run(
    name: str, make: Callable[[Raising], nn.Module], error: type[Exception]
) -> None:
    net = make(Raising(error))
    run = ALL.get(name) or SCORES[name]
    with pytest.raises(error, match=MESSAGE):
        run(net, *examples())
    assert raising_in(net).calls == 1


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", [*ALL, "score", "transfer table"])
def test_an_error_of_a_function_surfaces_from_its_first_run(name: str, error: type[Exception]) -> None:
    raising = Raising(error)
    run = ALL.get(name) or SCORES[name]
    with pytest.raises(error, match=MESSAGE):
        run(lambda inputs: raising(inputs), *examples())
    assert raising.calls == 1


@pytest.mark.parametrize("number", [1, 3, 4, 5])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", ["pgd", "square"])
def test_an_error_under_a_memory_limit_is_no_reason_to_try_fewer_rows(
    name: str, error: type[Exception], number: int
) -> None:
    """Whether the run checks the network, measures its memory or plans its draws."""
    net = converted(Raising(error, number))
    with dubio.memory_limit("64 MiB"), pytest.raises(error, match=MESSAGE):
        ALL[name](net, *examples())
    assert raising_in(net).calls == number


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("make", [plain, converted])
@pytest.mark.parametrize("name", ALL)
def test_an_error_in_a_later_run_surfaces_from_that_run(
    name: str, make: Callable[[Raising], nn.Module], error: type[Exception]
) -> None:
    """The two draws of the check are the first runs; the third measures the memory, or climbs."""
    net = make(Raising(error, number=3))
    with pytest.raises(error, match=MESSAGE):
        ALL[name](net, *examples())
    assert raising_in(net).calls == 3


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("make", [plain, converted])
@pytest.mark.parametrize("name", ["pgd", "square", "ddn", "minimum norm"])
def test_an_error_in_the_last_run_surfaces_from_that_run(
    name: str, make: Callable[[Raising], nn.Module], error: type[Exception]
) -> None:
    attack = type(ALL[name])(**{**vars(ALL[name]), "num_samples": 4, "batch_size": 7, "seed": 0})
    torch.manual_seed(0)
    whole = make(Raising(error, number=10**9))
    attack(whole, *examples())
    net = copy.deepcopy(whole)
    raising_in(net).calls, raising_in(net).number = 0, raising_in(whole).calls
    with pytest.raises(error, match=MESSAGE):
        attack(net, *examples())
    assert 3 < raising_in(net).calls == raising_in(whole).calls


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_while_an_attack_is_recorded_is_no_reason_to_run_it_again(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attacks.Attack, "_recorder", lambda self, target, device: Recorder(device))
    monkeypatch.setattr(target_module, "Captured", Replayed)
    net = plain(Raising(error, number=4))
    with pytest.raises(error, match=MESSAGE):
        attacks.PGD(steps=20, batch_size=7)(net, *examples())
    assert raising_in(net).calls == 4


def test_a_source_that_raises_is_called_once() -> None:
    source = plain(Raising(ValueError))
    with pytest.raises(ValueError, match=MESSAGE):
        attacks.Transfer(attack=attacks.PGD(steps=2), source=source)(mlp(6, 8, 4), *examples())
    assert raising_in(source).calls == 1


def test_a_network_that_does_not_raise_is_attacked() -> None:
    net = converted(Raising(ValueError, number=10**9))
    torch.manual_seed(0)
    assert attacks.PGD(steps=2, num_samples=4)(net, *examples()).inputs.shape == (7, 6)
    assert raising_in(net).calls > 1
