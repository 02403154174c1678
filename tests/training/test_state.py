"""Generators in a checkpoint: those of the device that trains, whatever other GPUs there are."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dubio.training.checkpoints import TrainState, own_state, pack, unpack
from dubio.training.processes import Processes

NUM_GPUS = 4


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> dict[int, Tensor]:
    """The generators of a machine with several GPUs, of which the first is the current one."""
    states = {number: torch.full((16,), number, dtype=torch.uint8) for number in range(NUM_GPUS)}

    def number_of(device: Any) -> int:
        return torch.device(device).index or 0

    def set_state(state: Tensor, device: Any = "cuda") -> None:
        states[number_of(device)] = state

    def set_all(new: list[Tensor]) -> None:
        states.update(enumerate(new))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device="cuda": states[number_of(device)])
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(states.values()))
    monkeypatch.setattr(torch.cuda, "set_rng_state", set_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", set_all)
    return states


def packed(device: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return pack(model, optimizer, TrainState(), None, [own_state(model, Processes(0, 1, torch.device(device)))])


def resume(tensors: dict[str, Tensor], state: dict[str, Any], device: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unpack(model, optimizer, tensors, state, Processes(0, 1, torch.device(device)))


@pytest.mark.parametrize(("device", "kept"), [("cpu", []), ("cuda", [0]), ("cuda:2", [2])])
def test_the_generator_of_the_device_that_trains_is_kept_alone(
    device: str, kept: list[int], gpus: dict[int, Tensor]
) -> None:
    random = {name: tensor for name, tensor in packed(device)[0].items() if name.startswith("random/")}
    assert torch.equal(random.pop("random/cpu"), torch.get_rng_state())
    assert [int(tensor[0]) for tensor in random.values()] == kept


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_run_goes_on_on_any_gpu_and_leaves_the_others_alone(device: str, gpus: dict[int, Tensor]) -> None:
    tensors, state = packed("cuda:3")
    resume(tensors, state, device)
    own = torch.device(device).index or 0
    assert [int(value[0]) for value in gpus.values()] == [3 if number == own else number for number in range(NUM_GPUS)]


@pytest.mark.parametrize(("num_stored", "device", "expected"), [(8, "cuda:1", 11), (8, "cuda", 10), (1, "cuda:2", 10)])
def test_older_checkpoints_with_the_generators_of_all_gpus_are_read(
    num_stored: int, device: str, expected: int, gpus: dict[int, Tensor]
) -> None:
    tensors, state = packed("cpu")
    older = {f"random/cuda{i}": torch.full((16,), 10 + i, dtype=torch.uint8) for i in range(num_stored)}
    resume(tensors | older, state, device)
    own = torch.device(device).index or 0
    assert [int(gpus[number][0]) for number in range(NUM_GPUS)] == [
        expected if number == own else number for number in range(NUM_GPUS)
    ]


def test_a_run_of_a_gpu_goes_on_on_a_cpu(gpus: dict[int, Tensor]) -> None:
    tensors, state = packed("cuda:1")
    resume(tensors, state, "cpu")
    assert [int(value[0]) for value in gpus.values()] == list(range(NUM_GPUS))
