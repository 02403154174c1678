"""Several processes train as one does; none writes but the first, none goes on alone, and no work is lost."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import dubio
from dubio.attacks.gradient import FGSM
from dubio.data.batches import Batch, CropAndFlip, Loader, batches_from, shared_batches
from dubio.data.examples import Examples
from dubio.objectives import Adversarial
from dubio.training import checkpoints, processes, trainer
from dubio.training.batch_loss import Place
from dubio.training.processes import ALONE, LostProcessError, Processes, chosen_device
from dubio.training.steps import Step
from dubio.training.trainer import validate
from networks import Residual, mlp
from several_processes import in_interpreters, in_processes, values
from stopping import StopAfter

INPUTS = torch.randn(41, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(4, (41,), generator=torch.Generator().manual_seed(2))
WEIGHTS = torch.rand(41, generator=torch.Generator().manual_seed(3))
IMAGES = torch.randint(256, (41, 3, 6, 6), generator=torch.Generator().manual_seed(4)).to(torch.uint8)
CLASSES = ("a", "b", "c", "d")
CPU = torch.device("cpu")

pytestmark = pytest.mark.timeout(400)  # processes that share cores with others wait for one another


def make() -> nn.Module:
    torch.manual_seed(0)
    return dubio.Bayes(init_std=0.1).convert(mlp(5, 7, 4))


def make_residual(norm: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return dubio.Bayes(init_std=0.1).convert(Residual(norm))


def train(model: nn.Module, data: Any = None, held_out: Any = None, **options: Any) -> dict[str, Any]:
    """Train, and give the parameters and the metrics, but for the time it took."""
    arguments = {"epochs": 2, "batch_size": 10, "num_samples": 2, "progress": False, **options}
    run = dubio.fit(model, (INPUTS, TARGETS) if data is None else data, held_out, **arguments)
    history = [{name: value for name, value in line.items() if name != "seconds"} for line in run.history]
    return {"state": model.state_dict(), "history": history, "best": run.best_epoch, "early": run.stopped_early}


def assert_close(result: dict[str, Any], expected: dict[str, Any], case: str = "") -> None:
    for name, tensor in expected["state"].items():
        torch.testing.assert_close(
            result["state"][name], tensor, atol=1e-6, rtol=0.0, msg=lambda message: f"{case}: {message}"
        )
    assert [line.keys() for line in result["history"]] == [line.keys() for line in expected["history"]]
    for line, other in zip(result["history"], expected["history"], strict=True):
        assert all(math.isclose(line[name], other[name], rel_tol=1e-5, abs_tol=1e-6) for name in line), case
    assert (result["best"], result["early"]) == (expected["best"], expected["early"])


def assert_same(result: dict[str, Any], expected: dict[str, Any]) -> None:
    assert result["history"] == expected["history"]
    assert all(torch.equal(result["state"][name], tensor) for name, tensor in expected["state"].items())


HELD_OUT = (INPUTS[:25], TARGETS[:25])
HELD_IMAGES = (IMAGES[:25].float() / 255, TARGETS[:25])
ATTACK = FGSM(epsilon=0.1, bounds=(-9.0, 9.0), noise="off")
GEOMETRIC = dubio.ELBO(kl_weighting="geometric")
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "validation and patience": lambda: train(
        make(), held_out=(INPUTS, (TARGETS + 1) % 4), epochs=9, patience=1, lr=0.03
    ),
    "geometric weights": lambda: train(make(), objective=GEOMETRIC, accumulate=3, clip_norm=0.5),
    "weighted examples": lambda: train(make(), Examples(INPUTS, TARGETS, CLASSES), sample_weight=WEIGHTS, epochs=1),
    "a dataset": lambda: train(make(), TensorDataset(INPUTS, TARGETS), batch_size=20),
    "augmented images": lambda: train(
        make_residual(norm=False),
        Loader(Examples(IMAGES, TARGETS, CLASSES), 20, augment=CropAndFlip(1)),
        Examples(IMAGES[:25], TARGETS[:25], CLASSES),
        epochs=1,
    ),
    "attacked": lambda: train(make(), objective=Adversarial(attack=ATTACK), epochs=1, batch_size=20),
}


def test_a_group_is_opened_while_the_first_process_still_closes_the_one_before(tmp_path: Path) -> None:
    def twice(rank: int) -> list[dict[str, Any]]:
        destroy = processes.dist.destroy_process_group

        def destroy_late() -> None:
            time.sleep(1.0 - rank)  # the other process meets the store that is about to close
            destroy()

        processes.dist.destroy_process_group = destroy_late  # of this forked process alone
        return [train(make(), epochs=1) for _ in range(2)]

    first, second = values(tmp_path, twice)
    for result, other in zip(first, second, strict=True):
        assert_same(other, result)


@pytest.mark.feature("Several processes without noise train as one does, with the same batches (1e-6)")
def test_noise_off_two_processes_train_as_one(tmp_path: Path) -> None:
    """41 examples in batches of 10: the last batch has one row, and the second process none."""

    def all_cases(rank: int = 0) -> dict[str, Any]:
        with dubio.noise_off():
            return {name: case() for name, case in CASES.items()}

    first, second = values(tmp_path, all_cases)
    alone = all_cases()
    for name in CASES:
        assert_close(first[name], alone[name], name)
        assert_same(second[name], first[name])
    assert alone["validation and patience"]["early"]


def test_noise_off_three_processes_train_as_one(tmp_path: Path) -> None:
    with dubio.noise_off():
        for result in values(tmp_path, lambda rank: CASES["geometric weights"](), count=3):
            assert_close(result, CASES["geometric weights"]())


def test_held_out_data_are_judged_by_all_processes_together(tmp_path: Path) -> None:
    def task(rank: int) -> dict[str, float]:
        with Processes.here(CPU).joined() as joined:
            return judge(joined)

    def judge(joined: Processes) -> dict[str, float]:
        held_out = batches_from((INPUTS, TARGETS), 12, name="validation")
        return validate(make(), held_out, seed=3, device=CPU, processes=joined)

    alone = judge(ALONE)
    for count in (2, 5):  # four batches: the fifth process has none
        for result in values(tmp_path, task, count):
            assert result == pytest.approx(alone, rel=1e-12)


class Recording:
    """An objective of one's own, which takes no notice of processes and remembers what it found."""

    def __init__(self, inner: dubio.ELBO) -> None:
        self.inner, self.result = inner, []

    @property
    def num_data(self) -> int | None:
        return self.inner.num_data

    def with_num_data(self, num_data: int) -> "Recording":
        self.inner = self.inner.with_num_data(num_data)
        return self

    def __call__(
        self,
        model: nn.Module,
        inputs: Any,
        targets: Tensor,
        num_samples: int = 1,
        *,
        sample_weight: Tensor | None = None,
        batch_index: int | None = None,
        num_batches: int | None = None,
        epoch: float | None = None,
        num_parts: int = 1,
    ) -> dubio.Loss:
        loss = self.inner(model, inputs, targets, num_samples, sample_weight=sample_weight)
        self.result.append(loss.nll.item())
        return loss


@pytest.mark.feature("Each process draws noise of its own, and all keep the same parameters")
def test_processes_draw_differently_and_keep_the_same_parameters(tmp_path: Path) -> None:
    same_rows = (INPUTS[:1].expand(40, 5), TARGETS[:1].expand(40))

    def task(rank: int) -> tuple[float, dict[str, Any]]:
        objective = Recording(dubio.ELBO())
        result = train(make(), same_rows, objective=objective)
        return objective.result[0], result

    (nll, first), (other_nll, second) = values(tmp_path, task)
    assert_same(second, first)
    assert nll != other_nll  # the same rows and the same network: the draws differ
    seeds = [Processes(rank, 3, CPU).own_seed(7) for rank in range(3)]
    assert seeds[0] == 7  # the first process draws as one process does
    assert len(set(seeds)) == 3


@pytest.mark.parametrize("weighting", ["uniform", "geometric"])
@pytest.mark.parametrize("num_rows", [1, 3, 5])
def test_the_divergence_counts_once(tmp_path: Path, weighting: Any, num_rows: int) -> None:
    """Examples that weigh nothing leave the divergence alone: a step of size 1 is its gradient."""
    objective = dubio.ELBO(num_data=20, kl_weighting=weighting)

    def task(rank: int) -> list[Tensor]:
        with Processes.here(CPU).joined() as joined:
            model = make()
            data = (INPUTS[:num_rows], TARGETS[:num_rows], torch.zeros(num_rows))
            step = Step(model, objective, torch.optim.SGD(model.parameters(), 1.0), processes=joined)
            before = [parameter.detach().clone() for parameter in model.parameters()]
            for batch in shared_batches(data, 5, name="train", rank=rank, num_ranks=2).epoch(0):
                step.learn(batch, Place(1, 5, 0.0, batch.num_parts))
            return [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]

    model = make()
    share = num_rows / 20 if weighting == "uniform" else 2.0**-2 / (1.0 - 2.0**-5)
    (dubio.divergence(model) * share / num_rows).backward()
    for moved in values(tmp_path, task):
        for result, parameter in zip(moved, model.parameters(), strict=True):
            torch.testing.assert_close(result, parameter.grad, atol=1e-6, rtol=1e-5)


def kept(folder: Path) -> dict[str, Any]:
    """What a finished run left."""
    from safetensors.torch import load_file

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, len(lines) + 1))  # every epoch once
    assert not list(folder.rglob(".*"))  # nothing half-written
    return {"state": load_file(folder / "model.safetensors"), "history": [{**line, "seconds": 0} for line in lines]}


@pytest.mark.feature("A run of several processes that was interrupted resumes bit for bit")
@pytest.mark.parametrize("step", [3, pytest.param(9, marks=pytest.mark.slow)])
def test_an_interrupted_run_of_two_processes_resumes_exactly(tmp_path: Path, step: int) -> None:
    """With batch statistics, which each process gathers from its own rows, and noise of its own."""
    data = (IMAGES.float() / 255, TARGETS)

    def go(name: str, **options: Any) -> Callable[[int], dict[str, Any]]:
        return lambda rank: train(make_residual(), data, HELD_IMAGES, folder=tmp_path / name, **options)

    whole = values(tmp_path, go("whole"))
    cut = in_processes(tmp_path, go("cut", callbacks=[StopAfter(step)]))
    message = f"Interrupted: training was interrupted at step {step}; go on with resume=True, folder={tmp_path / 'cut'}"
    assert [ended.error for ended in cut] == [message, message]
    for result, expected in zip(values(tmp_path, go("cut", resume=True)), whole, strict=True):
        assert_same(result, expected)
    assert_same(kept(tmp_path / "cut"), kept(tmp_path / "whole"))


class Deadly(Dataset[tuple[Tensor, Tensor]]):
    """Examples, of which fetching so many ends the process at once."""

    def __init__(self, deadly_rank: int | None, num_fetched: int) -> None:
        self.rank, self.left = deadly_rank, num_fetched

    def __len__(self) -> int:
        return len(TARGETS)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        self.left -= 1
        if self.left == 0 and os.environ.get("RANK") == str(self.rank):
            os.kill(os.getpid(), signal.SIGKILL)
        return INPUTS[row], TARGETS[row]


@pytest.mark.filterwarnings("ignore:the training data .Deadly. have no fingerprint")
@pytest.mark.feature("A process that dies ends the run with a clear error, and nothing checkpointed is lost")
@pytest.mark.parametrize("dies", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_process_that_dies_ends_the_run_and_loses_nothing(tmp_path: Path, dies: int) -> None:
    def go(name: str, deadly: int | None = None, **options: Any) -> Callable[[int], dict[str, Any]]:
        return lambda rank: train(make(), Deadly(deadly, 30), HELD_OUT, folder=tmp_path / name, **options)

    values(tmp_path, go("whole"))
    ended = in_processes(tmp_path, go("cut", dies))  # in the second epoch
    assert ended[dies].signal == signal.SIGKILL
    message = ended[1 - dies].error
    assert re.match(r"LostProcessError: training ended at step [78] ", message)
    assert " of epoch 2: another process ended, or cannot be reached (" in message
    checkpoint = tmp_path / "cut" / "checkpoint" / "step-0000000005"
    assert message.endswith(f"; the last good checkpoint is kept in {checkpoint}")
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]
    values(tmp_path, go("cut", resume=True))
    assert_same(kept(tmp_path / "cut"), kept(tmp_path / "whole"))


def test_the_first_process_alone_writes_and_calls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(StopAfter):
        def on_step(self, step: int, loss: dubio.Loss) -> None:
            calls.append(step)

    calls: list[int] = []
    write = checkpoints.write_checkpoint
    monkeypatch.setattr(trainer, "write_checkpoint", lambda *args: (calls.append(-1), write(*args)))

    def task(rank: int) -> list[int]:
        train(make(), callbacks=[Counting(0)], folder=tmp_path / "run", progress=True)
        return calls

    first, second = values(tmp_path, task)
    assert first == [*range(1, 6), -1, *range(6, 11), -1]
    assert second == []
    assert json.loads((tmp_path / "run" / "config.json").read_text())["num_processes"] == 2


def test_what_one_process_refuses_all_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def go(rank: int, **options: Any) -> dict[str, Any]:
        return train(make(), folder=tmp_path / "run", **options)

    def errors(**options: Any) -> list[str]:
        return [ended.error for ended in in_processes(tmp_path, lambda rank: go(rank, **options))]

    values(tmp_path, go)
    taken, also_taken = errors()
    assert taken == also_taken
    assert taken.startswith(f"FileExistsError: folder {tmp_path / 'run'} holds a run already; pass resume=True")
    with pytest.raises(ValueError, match=r"another configuration: num_processes was 2, is 1$"):
        go(0, resume=True)
    monkeypatch.setattr(trainer, "write_checkpoint", lambda *args: os.open(tmp_path / "no" / "such", os.O_WRONLY))
    full, also_full = errors(resume=True, epochs=3)
    assert full == also_full
    assert full.startswith("FileNotFoundError: [Errno 2] No such file or directory")


def test_a_folder_of_before_counts_as_that_of_one_process(tmp_path: Path) -> None:
    train(make(), folder=tmp_path, epochs=1)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("num_processes") == 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert len(train(make(), folder=tmp_path, epochs=2, resume=True)["history"]) == 2


def test_a_loss_that_is_no_number_is_told_by_the_process_that_met_it(tmp_path: Path) -> None:
    def task(rank: int) -> dict[str, Any]:
        return train(make(), Loader(Examples(INPUTS * (1 if rank == 0 else 1e38), TARGETS, CLASSES), 10))

    first, second = in_processes(tmp_path, task)
    assert second.error.startswith("FloatingPointError: loss is ")
    assert first.error.startswith("LostProcessError: training ended at step 1 of epoch 1: another process ended")


def test_networks_that_differ_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    models = [mlp(5, 7, 4), mlp(5, 8, 4)]
    first, second = in_processes(tmp_path, lambda rank: dubio.fit(models[rank], (INPUTS, TARGETS), progress=False))
    message = "ValueError: every process must train the same network: 0.weight is "
    narrow, wide = ("(7, 5) of torch.float32 in process 0", "(8, 5) of torch.float32 in process 1")
    assert first.error == f"{message}{narrow} and {wide}"
    assert second.error == f"{message}{wide} and {narrow}"


def test_processes_that_would_train_in_different_ways_are_refused(tmp_path: Path) -> None:
    def task(rank: int) -> None:
        torch.manual_seed(0)
        dubio.fit(mlp(5, 7, 4), (INPUTS, TARGETS), batch_size=10 + rank, progress=False)

    first, second = in_processes(tmp_path, task)
    message = "ValueError: every process must train alike: batch_size is"
    assert first.error == f"{message} 10 in process 0 and 11 in process 1"
    assert second.error == f"{message} 11 in process 1 and 10 in process 0"


@pytest.mark.parametrize("what", ["folder", "validation", "schedule", "optimizer", "dtype"])
def test_processes_that_would_wait_in_vain_are_refused(tmp_path: Path, what: str) -> None:
    def task(rank: int) -> None:
        torch.manual_seed(0)
        options: dict[str, Any] = {
            "folder": {"folder": tmp_path / "run"},
            "validation": {"validation": (INPUTS, TARGETS), "monitor": "loss"},
            "schedule": {"schedule": lambda done: 1.0 - 0.5 * done},
            "optimizer": {"optimizer": lambda groups: torch.optim.SGD(groups, momentum=0.5)},
            "dtype": {},
        }[what]
        others: dict[str, Any] = {
            "schedule": {"schedule": lambda done: 1.0},
            "optimizer": {"optimizer": lambda groups: torch.optim.SGD(groups, momentum=0.9)},
        }.get(what, {})
        model, inputs = mlp(5, 7, 4), INPUTS
        if rank and what == "dtype":
            model, inputs = model.double(), inputs.double()
        dubio.fit(model, (inputs, TARGETS), progress=False, epochs=1, **(others if rank else options))

    message = "ValueError: every process must train " + (
        "the same network: " if what == "dtype" else f"alike: {what} is "
    )
    for ended in in_processes(tmp_path, task):
        assert ended.error.startswith(message), ended.error


def test_a_gradient_lies_as_its_parameter_also_where_a_process_had_none(tmp_path: Path) -> None:
    def task(rank: int) -> tuple[Tensor, tuple[int, ...]]:
        filters = nn.Parameter(torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last))
        if rank == 0:
            filters.grad = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
        with Processes.here(CPU).joined() as joined:
            joined.sum_gradients([filters], 1 - rank)
        assert filters.grad is not None
        return filters.grad, filters.grad.stride()

    (first, strides), (second, other_strides) = values(tmp_path, task)
    assert torch.equal(first, second)
    assert strides == other_strides


def test_sparse_gradients_are_summed(tmp_path: Path) -> None:
    def task(rank: int) -> Tensor:
        rows = nn.Embedding(4, 2, sparse=True)
        rows(torch.tensor([rank, 2])).sum().backward()
        with Processes.here(CPU).joined() as joined:
            joined.sum_gradients(rows.parameters(), 2)
        assert rows.weight.grad is not None
        return rows.weight.grad

    expected = torch.tensor([1.0, 1.0, 2.0, 0.0]).unsqueeze(1).expand(4, 2)
    for result in values(tmp_path, task):
        torch.testing.assert_close(result, expected)


def test_networks_begin_as_that_of_the_first_process(tmp_path: Path) -> None:
    def task(rank: int) -> dict[str, Tensor]:
        torch.manual_seed(rank)
        model = Residual()
        with Processes.here(CPU).joined() as joined:
            joined.broadcast(model)
        return model.state_dict()

    first, second = values(tmp_path, task)
    torch.manual_seed(0)
    for name, tensor in Residual().state_dict().items():
        assert torch.equal(first[name], tensor)
        assert torch.equal(second[name], tensor)


def test_a_distributed_sampler_is_used_as_it_is(tmp_path: Path) -> None:
    def loader(rank: int, count: int = 2) -> DataLoader[Any]:
        sampler = DistributedSampler(TensorDataset(INPUTS, TARGETS), count, rank, seed=5)
        return DataLoader(sampler.dataset, 9, sampler=sampler)

    def go(rank: int, name: str, **options: Any) -> dict[str, Any]:
        return train(make(), loader(rank), folder=tmp_path / name, **options)

    whole = values(tmp_path, lambda rank: go(rank, "whole"))
    in_processes(tmp_path, lambda rank: go(rank, "cut", callbacks=[StopAfter(4)]))
    for result, expected in zip(values(tmp_path, lambda rank: go(rank, "cut", resume=True)), whole, strict=True):
        assert_same(result, expected)
    assert json.loads((tmp_path / "cut" / "config.json").read_text())["num_data"] == 41
    orders = values(tmp_path, lambda rank: [_first_row(loader(rank), rank, epoch) for epoch in range(2)])
    assert len({tuple(row.tolist()) for rows in orders for row in rows}) == 4  # other rows in each process and epoch


def _first_row(loader: DataLoader[Any], rank: int, epoch: int) -> Tensor:
    batches = shared_batches(loader, 10, name="train", rank=rank, num_ranks=2)
    batch = next(batches.epoch(epoch))
    assert batch.num_parts == 2
    return batch.inputs[0]


@pytest.mark.parametrize(
    ("data", "batch_size", "message"),
    [
        (
            DataLoader(TensorDataset(INPUTS, TARGETS)),
            10,
            "a Dataset or a DataLoader with a DistributedSampler for several",
        ),
        ([(INPUTS, TARGETS)], 10, "which share every batch, got list"),
        ((INPUTS, TARGETS), 1, "batch_size must be at least the number of processes that share a batch, 2, got 1"),
        (
            Loader(Examples(INPUTS, TARGETS, CLASSES), rank=2, num_ranks=3),
            10,
            "must have rank=1 and num_ranks=2 in this process, or neither, got rank=2 and num_ranks=3",
        ),
        (
            DataLoader(TensorDataset(INPUTS), sampler=DistributedSampler(TensorDataset(INPUTS), 3, 0)),
            10,
            "must have rank=1 and num_replicas=2 in this process, got rank=0 and num_replicas=3",
        ),
    ],
)
def test_data_that_cannot_be_shared_are_refused(data: Any, batch_size: int, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        shared_batches(data, batch_size, name="train", rank=1, num_ranks=2)


def test_a_loader_that_deals_out_rows_itself_is_used_as_it_is() -> None:
    loader = Loader(Examples(INPUTS, TARGETS, CLASSES), 10, rank=1, num_ranks=2)
    batches = list(shared_batches(loader, 10, name="train", rank=1, num_ranks=2).epoch(0))
    assert [len(batch.targets) for batch in batches] == [10, 10]
    assert {batch.num_parts for batch in batches} == {2}


class Named(Dataset[dict[str, Tensor]]):
    """Examples whose parts have names."""

    def __len__(self) -> int:
        return len(TARGETS)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"inputs": INPUTS[row], "targets": TARGETS[row]}


@pytest.mark.parametrize("num_data", [41, 42, 43, 45, 47])
def test_processes_share_every_row_of_every_batch(num_data: int) -> None:
    """Row by row; of a last batch with less than two rows for each, fewer have a part."""
    inputs, targets = INPUTS.repeat(2, 1)[:num_data], torch.arange(num_data)

    def parts(data: Any) -> list[list[Batch]]:
        return [
            list(shared_batches(data, 10, name="train", seed=0, rank=rank, num_ranks=3).epoch(2)) for rank in range(3)
        ]

    whole = list(batches_from((inputs, targets), 10, name="train", seed=0).epoch(2))
    num_parts = {1: 1, 2: 1, 3: 1, 5: 2, 7: 3, 10: 3}
    for data in ((inputs, targets), Examples(inputs, targets.float()), TensorDataset(inputs, targets)):
        for joint, *own in zip(whole, *parts(data), strict=True):
            sharing = num_parts[len(joint.targets)]
            assert [part.num_parts for part in own] == [sharing] * 3
            assert [len(part.targets) for part in own[sharing:]] == [0] * (3 - sharing)
            for rank, part in enumerate(own[:sharing]):
                assert torch.equal(part.inputs, joint.inputs[rank::sharing])
                assert torch.equal(part.targets, joint.targets[rank::sharing].to(part.targets.dtype))


@pytest.mark.parametrize(
    ("data", "got"),
    [
        (TensorDataset(INPUTS, TARGETS, WEIGHTS, TARGETS), "list"),
        (Named(), "dict with the keys inputs, targets; give an iterable of pairs, .*"),
    ],
)
def test_items_that_are_no_batch_are_refused_as_with_one_process(data: Any, got: str) -> None:
    for num_ranks in (1, 2):
        batches = shared_batches(data, 10, name="train", rank=0, num_ranks=num_ranks)
        with pytest.raises(TypeError, match=rf"^a batch must be \(inputs, targets\) or .*, got {got}$"):
            next(batches.epoch(0))


def test_a_short_last_batch_leaves_no_process_with_a_single_row(tmp_path: Path) -> None:
    """Batch normalisation refuses one row; 43 examples in batches of 10 leave three to two processes."""
    inputs, targets = torch.cat([INPUTS, INPUTS[:2]]), torch.cat([TARGETS, TARGETS[:2]])

    def task(rank: int) -> dict[str, Any]:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 4))
        return train(network, (inputs, targets), num_samples=1)

    first, second = values(tmp_path, task)
    assert_same(second, first)
    assert len(first["history"]) == 2


def test_statistics_are_averaged_and_what_is_equal_stays_as_it_is(tmp_path: Path) -> None:
    constant = torch.tensor([0.1, math.inf, -math.inf, 1e-45])

    def task(rank: int) -> tuple[dict[str, Tensor], list[str]]:
        module = nn.Module()
        module.register_buffer("constant", constant.clone())
        module.register_buffer("mean", torch.tensor([1.0, 2.0]) * rank)
        module.register_buffer("count", torch.tensor(7 - rank))
        with Processes.here(CPU).joined() as joined:
            own = sorted(joined.own_buffers(module))
            joined.average_buffers(module)
        return dict(module.named_buffers()), own

    result = values(tmp_path, task, count=3)
    assert [own for _, own in result] == [[], ["count", "mean"], ["count", "mean"]]
    for buffers, _ in result:
        assert torch.equal(buffers["constant"], constant)
        torch.testing.assert_close(buffers["mean"], torch.tensor([1.0, 2.0]))
        assert buffers["count"] == 7


def test_gradients_are_summed_wherever_some_process_has_one(tmp_path: Path) -> None:
    def task(rank: int) -> tuple[float, list[Tensor | None]]:
        shared, second, unused, double = (nn.Parameter(torch.zeros(2, 3)) for _ in range(4))
        double.data = double.data.double()
        shared.grad = torch.full((2, 3), 1.0 + rank)
        double.grad = torch.full((2, 3), 0.1 * (1 + rank), dtype=torch.float64)
        second.grad = torch.arange(6.0).view(2, 3).t().contiguous().t() if rank else None
        with Processes.here(CPU).joined() as joined:
            rows = joined.sum_gradients([shared, second, unused, double], 3 + rank)
        return float(rows), [parameter.grad for parameter in (shared, second, unused, double)]

    for rows, (shared, second, unused, double) in values(tmp_path, task):
        assert rows == 7
        assert torch.equal(shared, torch.full((2, 3), 3.0))
        assert torch.equal(second, torch.arange(6.0).view(2, 3))
        assert unused is None
        torch.testing.assert_close(double, torch.full((2, 3), 0.3, dtype=torch.float64))


OPENED_AND_CLOSED = """
import os
import torch
from dubio.training import Processes

with Processes.here(torch.device("cpu")).joined() as processes:
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])  # imports the compiler
    assert processes.gather(processes.rank) == [0, 1]
tasks = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
print([name for name in tasks if "gloo" in name])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs the threads of a process by name")
def test_no_thread_of_a_group_outlives_it() -> None:
    ended = in_interpreters(OPENED_AND_CLOSED)
    assert [(one.returncode, one.stdout.strip()) for one in ended] == [(0, "[]")] * 2, ended


ON_ONE_DEVICE = """
import torch
import torch._dynamo  # before a group is opened: see docs/processes.md
import torch.distributed as dist
import dubio

dist.init_process_group("cpu:gloo,cuda:gloo")  # nccl wants a GPU for each process
torch.manual_seed(0)
inputs, targets = torch.randn(41, 5), torch.randint(4, (41,))
results = {}
for name, noise in (("noise off", dubio.noise_off), ("noise on", dubio.fresh)):
    torch.manual_seed(1)
    layers = (torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 4))
    model = dubio.Bayes(init_std=0.1).convert(torch.nn.Sequential(*layers))
    with noise():
        run = dubio.fit(
            model, (inputs, targets), (inputs, targets), epochs=3, batch_size=10, num_samples=2, accumulate=2,
            clip_norm=0.5, seed=3, device=DEVICE, precision="fp32", progress=False,
        )
    results[name] = {key: tensor.cpu() for key, tensor in model.state_dict().items()}
    results[name]["nll"] = torch.tensor([line["val_nll"] for line in run.history])
torch.save(results, f"{FOLDER}/{dist.get_world_size()}-{dist.get_rank()}.pt")
dist.destroy_process_group()
"""
GPU = pytest.param("cuda:0", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.slow), GPU])
def test_two_processes_share_one_device(tmp_path: Path, device: str) -> None:
    """With a group that the script has opened; on a GPU the steps of two are compiled, and those of one recorded."""
    script = f"DEVICE, FOLDER = {device!r}, {str(tmp_path)!r}\n" + ON_ONE_DEVICE
    for count in (1, 2):
        ended = in_interpreters(script, count)
        assert [one.returncode for one in ended] == [0] * count, ended
    alone, first, second = (torch.load(tmp_path / f"{which}.pt") for which in ("1-0", "2-0", "2-1"))
    torch.testing.assert_close(first["noise off"], alone["noise off"], atol=1e-6, rtol=1e-5)
    assert not torch.equal(first["noise on"]["0.weight_posterior.mean"], first["noise off"]["0.weight_posterior.mean"])
    for kind, tensors in first.items():
        assert all(torch.equal(second[kind][name], tensor) for name, tensor in tensors.items())


BY_NCCL = """
import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from dubio.training import Processes

dist.init_process_group("cpu:gloo,cuda:nccl")
device = torch.device("cuda:0")
torch.cuda.set_device(device)
model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1).double()).to(device)
(model[:2](torch.rand(4, 3, device=device)).sum() + model[2](torch.ones(1, 2, device=device).double()).sum()).backward()
model[0].bias.grad = None
before = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
processes = Processes(0, 2, device)  # of which the other does not answer: what is sent comes back as it was
assert float(processes.sum_gradients(model.parameters(), 4)) == 4
for parameter, gradient in zip(model.parameters(), before):
    assert (parameter.grad is None) == (gradient is None)
    assert gradient is None or torch.equal(parameter.grad, gradient)
processes.average_buffers(model)
assert all(torch.equal(buffer, statistics[name]) for name, buffer in model.named_buffers())
assert processes.own_buffers(model) == {}
assert processes.any(True) and not processes.any(False)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nccl_takes_all_that_is_sent() -> None:
    """In a group of one: several would want a GPU each."""
    ended = in_interpreters(BY_NCCL, 1)
    assert [one.returncode for one in ended] == [0], ended


def test_one_process_is_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(processes.dist, "init_process_group", lambda *args, **options: pytest.fail("joined"))
    monkeypatch.setattr(processes.dist, "all_reduce", lambda *args, **options: pytest.fail("talked"))
    assert len(train(make())["history"]) == 2


def test_processes_that_cannot_meet_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"WORLD_SIZE is set but MASTER_ADDR and MASTER_PORT not; start .* torchrun"):
        train(make())
    with pytest.raises(ValueError, match="device must be cpu or cuda for several processes, got mps"):
        Processes.here(torch.device("mps"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert Processes.here(torch.device("cuda")).device == torch.device("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(
        ValueError, match=r"another GPU for each process of a machine, got cuda:1 where there are 1; start"
    ):
        Processes.here(torch.device("cuda"))
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ValueError, match=r"WORLD_SIZE in the environment must be a whole number, .* got 'two'"):
        Processes.here(CPU)


def test_an_error_that_cannot_be_sent_is_told_all_the_same(tmp_path: Path) -> None:
    class OddError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    def task(rank: int) -> None:
        def fail() -> None:
            if rank == 1:
                raise OddError(1, 2)

        with Processes.here(CPU).joined() as joined:
            joined.together(fail)

    assert [ended.error for ended in in_processes(tmp_path, task)] == [
        "RuntimeError: OddError: 1 and 2",
        "OddError: 1 and 2",
    ]


def test_a_lost_process_is_a_runtime_error() -> None:
    assert issubclass(LostProcessError, RuntimeError)


MANY_FITS = """
import torch
import dubio

inputs, targets = torch.rand(12, 3), torch.arange(12) % 2
model = dubio.Deterministic().convert(torch.nn.Linear(3, 2))
for number in range(4):
    dubio.fit(model, (inputs, targets), epochs=1, batch_size=6, progress=False)
"""


class Jittered(Dataset[Any]):
    """Rows that are moved at random when they are fetched."""

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return torch.rand(5), TARGETS[row]


def test_processes_augment_their_rows_with_numbers_of_their_own() -> None:
    data = Jittered()
    loaders = [DataLoader(data, 4, sampler=DistributedSampler(data, 2, rank)) for rank in range(2)]
    first, second = (next(batches_from(loader, 4, name="train").epoch(0)).inputs for loader in loaders)
    assert not torch.equal(first, second)


@pytest.mark.slow
def test_a_script_that_torchrun_starts_may_train_again_and_again(tmp_path: Path) -> None:
    script = tmp_path / "many.py"
    script.write_text(MANY_FITS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    ended = subprocess.run(launch, capture_output=True, text=True, timeout=150)
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.parametrize(("local_rank", "expected"), [("0", "cuda:0"), ("1", "cuda"), ("5", "cuda:0")])
def test_the_first_gpu_stands_for_that_of_the_process(
    monkeypatch: pytest.MonkeyPatch, local_rank: str, expected: str
) -> None:
    class OnGpu(nn.Module):
        def parameters(self, recurse: bool = True) -> Any:
            return iter([SimpleNamespace(device=torch.device("cuda", 0))])

    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert chosen_device(OnGpu()) == torch.device(expected)


class Unaware(dubio.ELBO):
    """An objective that cannot be told of parts."""

    def __call__(
        self,
        model: nn.Module,
        inputs: Any,
        targets: Tensor,
        num_samples: int = 1,
        *,
        sample_weight: Tensor | None = None,
        batch_index: int | None = None,
        num_batches: int | None = None,
        epoch: float | None = None,
    ) -> dubio.Loss:
        return super().__call__(model, inputs, targets, num_samples)


def test_an_objective_that_cannot_be_told_of_parts_is_warned_of(tmp_path: Path) -> None:
    def task(rank: int) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dubio.fit(make(), (INPUTS, TARGETS), objective=Unaware(), epochs=1, progress=False)
        return [str(one.message) for one in caught if "num_parts" in str(one.message)]

    first, second = values(tmp_path, task)
    assert len(first) == 1
    assert first[0].startswith("objective Unaware takes no num_parts")
    assert second == []
