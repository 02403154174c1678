"""Attacks in little memory: rows at a time, limits, and what happens when it runs out."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from attack_table import ALL, examples, plain_net
from dubio import attacks
from dubio._engine import cuda_graphs as capturing, isolated
from dubio._engine.memory import Footprint
from dubio.attacks import attack as attack_module, target as target_module
from dubio.attacks.target import Perturbed, Recorder
from replayed_on_a_cpu import Replayed

MIB = 2**20


def images(rows: int = 16) -> tuple[Tensor, Tensor]:
    return torch.rand(rows, 3, 32, 32), torch.arange(rows) % 3


def large_activations() -> nn.Module:
    """A further row takes more than a MiB, weights next to nothing."""
    parts = nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return dubio.Bayes().convert(nn.Sequential(*parts)).eval()


def large_weights() -> nn.Module:
    """Drawn weights take 20 MiB, a further row a few KiB."""
    return dubio.Bayes().convert(nn.Sequential(nn.Linear(100, 2000), nn.ReLU(), nn.Linear(2000, 3))).eval()


def peak(attack: attacks.Attack, net: nn.Module, inputs: Tensor, labels: Tensor) -> int:
    with Footprint() as footprint:
        attack(net, inputs, labels, progress=False)
    return footprint.peak


@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.parametrize("limit", [2, 4])
@pytest.mark.usefixtures("unchecked")
def test_an_attack_keeps_a_limit_that_leaves_room_for_one_row(limit: int, batch_size: int | None) -> None:
    net, (inputs, labels) = large_activations(), images(6)
    attack = attacks.PGD(steps=2, num_samples=4, seed=0, batch_size=batch_size)
    with dubio.memory_limit(limit * MIB):
        assert peak(attack, net, inputs, labels) <= limit * MIB + 2 * inputs.nbytes


def test_a_score_keeps_a_limit_that_leaves_room_for_its_batch() -> None:
    with dubio.memory_limit(4 * MIB):
        attacks.score(large_activations(), *images(), num_samples=10, num_tries=2, batch_size=2)


def test_drawn_weights_are_not_charged_to_rows() -> None:
    net, inputs, labels = large_weights(), torch.rand(200, 100), torch.zeros(200, dtype=torch.int64)
    with isolated(net, training=False, trainable=False), torch.no_grad():
        target = attacks.PGD(num_samples=20).target_for(net)
        assert target.rows_at_a_time(inputs, labels) == 200


def test_rows_are_as_many_as_fit() -> None:
    net, (inputs, labels) = large_activations(), images(100)
    with isolated(net, training=False, trainable=False), torch.no_grad():
        few, many = (
            replace(attacks.PGD(), num_samples=n).target_for(net).rows_at_a_time(inputs, labels) for n in (2, 40)
        )
    assert 1 <= many < few < 100


# When it runs out


class Scarce(Footprint):
    """A device that has so many bytes and no more, and says so as torch does."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.times = capacity, 0

    def _count(self, tensor: Tensor, *details: Any) -> None:
        super()._count(tensor, *details)
        if self._alive > self.capacity:
            self.times += 1
            raise torch.OutOfMemoryError("CUDA out of memory.")


def small_net() -> nn.Module:
    torch.manual_seed(0)
    parts = nn.Linear(6, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 3)
    return dubio.Bayes(estimator="weight").convert(nn.Sequential(*parts)).eval()


def tables() -> tuple[Tensor, Tensor]:
    return torch.rand(32, 6), torch.arange(32) % 3


IN_LITTLE = {
    "pgd": attacks.PGD(steps=2),
    "fgsm on its own label": attacks.FGSM(label="own"),
    "apgd": attacks.APGD(steps=3),
    "ddn": attacks.DDN(norm="l2", steps=2),
}


@pytest.mark.parametrize("name", IN_LITTLE)
@pytest.mark.parametrize("share", [2, pytest.param(5, marks=pytest.mark.slow), 12])
@pytest.mark.usefixtures("unchecked")
def test_an_attack_that_runs_out_of_memory_gives_what_it_gives_in_plenty(name: str, share: int) -> None:
    attack = replace(IN_LITTLE[name], num_samples=16, seed=0, batch_size=32, noise="frozen")
    inputs, labels = tables()
    with Footprint() as footprint:
        plenty = attack(small_net(), inputs, labels, progress=False)
    with Scarce(footprint.peak // share) as scarce:
        little = attack(small_net(), inputs, labels, progress=False)
    assert scarce.times > 0
    torch.testing.assert_close(little.inputs, plenty.inputs, rtol=0.0, atol=1e-5)
    assert torch.equal(little.fooled, plenty.fooled)


def test_an_attack_for_which_nothing_is_left_says_so() -> None:
    rows: list[int] = []

    def breaking(inputs: Tensor) -> Tensor:
        if inputs.requires_grad:
            rows.append(len(inputs))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return inputs[:, :3]

    with pytest.raises(torch.OutOfMemoryError, match="ran out of memory with one draw of one input at a time"):
        attacks.PGD(steps=2, batch_size=20)(breaking, *tables())
    assert rows == [20, 10, 5, 3, 2, 1]


def test_draws_are_halved_before_rows_and_no_more_often_than_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack_module, "shrink_chunks", lambda net: True)
    rows: list[int] = []

    class OutOfMemory(attacks.PGD):
        def _perturb(self, target: object, inputs: Tensor, *rest: object) -> Perturbed:
            rows.append(len(inputs))
            raise torch.OutOfMemoryError("CUDA out of memory.")

    inputs, labels = tables()
    with pytest.raises(torch.OutOfMemoryError, match="ran out of memory with one draw of one input at a time"):
        OutOfMemory(num_samples=3)(small_net(), inputs[:4], labels[:4])
    assert rows == [4, 4, 4, 2, 2, 2, 1, 1, 1]


def test_a_recording_without_memory_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def run_out(self: object) -> None:
        calls.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(capturing.Captured, "__call__", run_out)
    recorder = Recorder(torch.device("cpu"))
    for _ in range(2):
        assert recorder(lambda inputs, labels: Perturbed(inputs, labels, labels > 0), *tables()) is None
        assert recorder._captured is None
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["pgd", "apgd", "ddn", "fmn", "minimum norm", "targeted fgsm"])
def test_a_recorded_attack_is_that_of_every_step_by_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = replace(ALL[name], seed=0, steps=30)
    net, (inputs, labels) = plain_net(), examples()
    eager = attack(net, inputs, labels)
    calls: list[int] = []
    monkeypatch.setattr(attacks.Attack, "_recorder", lambda self, target, device: Recorder(device))
    monkeypatch.setattr(target_module, "Captured", Replayed)
    network = net.register_forward_hook(lambda *_: calls.append(1))
    recorded = attack(net, inputs, labels)
    network.remove()
    assert 2 * len(calls) < eager.forwards
    assert (recorded.forwards, recorded.backwards) == (eager.forwards, eager.backwards)
    torch.testing.assert_close(recorded.inputs, eager.inputs)
    torch.testing.assert_close(recorded.loss, eager.loss)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_recording_is_let_go_of_whatever_happens(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Recorder):
        closed = 0

        def __call__(self, *look: object) -> None:
            raise error

        def close(self) -> None:
            Interrupted.closed += 1

    monkeypatch.setattr(attacks.Attack, "_recorder", lambda self, target, device: Interrupted(device))
    with pytest.raises(error):
        attacks.PGD(steps=2)(small_net(), *tables())
    assert Interrupted.closed == 1
