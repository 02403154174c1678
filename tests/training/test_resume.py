"""Whatever ends a run, resuming it gives what an uninterrupted run gives, bit for bit."""

import json
import os
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import dubio
from dubio.training import checkpoints, trainer
from networks import Residual, mlp
from stopping import StopAfter

INPUTS = torch.randn(70, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(4, (70,), generator=torch.Generator().manual_seed(2))


def make() -> nn.Module:
    torch.manual_seed(0)
    return dubio.Bayes(init_std=0.1).convert(mlp(5, 7, 4))


def train(folder: Path, *, resume: bool = False, epochs: int = 6, **options: object) -> tuple[nn.Module, dubio.Run]:
    model = make()
    arguments = {"batch_size": 16, "schedule": "cosine", "progress": False, "num_samples": 2, **options}
    run = dubio.fit(
        model, (INPUTS, TARGETS), (INPUTS[:20], TARGETS[:20]), epochs=epochs, folder=folder, resume=resume, **arguments
    )
    return model, run


def outcome(folder: Path) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Weights and metrics of a finished run, but for the time it took."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, len(lines) + 1))  # every epoch once
    assert not list(folder.rglob(".*"))  # nothing half-written
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors"), [{**line, "seconds": 0} for line in lines]


def assert_same(folder: Path, other: Path) -> None:
    (weights, metrics), (other_weights, other_metrics) = outcome(folder), outcome(other)
    assert metrics == other_metrics
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


@pytest.mark.feature("An interrupted run saves itself and resumes bit for bit")
@pytest.mark.parametrize("step", [1, 5, 7, 23])
def test_an_interrupted_run_resumes_exactly(tmp_path: Path, step: int) -> None:
    train(tmp_path / "whole")
    with pytest.raises(dubio.Interrupted, match=rf"interrupted at step {step}; go on with resume=True"):
        train(tmp_path / "cut", callbacks=[StopAfter(step)])
    train(tmp_path / "cut", resume=True)
    assert_same(tmp_path / "cut", tmp_path / "whole")


class Shaken(Dataset[tuple[Tensor, Tensor]]):
    """Examples with noise from torch's generator, drawn when they are fetched."""

    def __len__(self) -> int:
        return len(TARGETS)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return INPUTS[row] + 0.1 * torch.randn(5), TARGETS[row]


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("step", [3, 5, 8])
def test_a_run_on_a_shuffled_loader_resumes_exactly(tmp_path: Path, step: int, own_generator: bool) -> None:
    def go(folder: Path, **options: object) -> None:
        generator = torch.Generator().manual_seed(4) if own_generator else None
        loader = DataLoader(Shaken(), 16, shuffle=True, generator=generator)
        dubio.fit(make(), loader, epochs=3, folder=folder, progress=False, **options)  # type: ignore[arg-type]

    go(tmp_path / "whole")
    with pytest.raises(dubio.Interrupted):
        go(tmp_path / "cut", callbacks=[StopAfter(step)])
    go(tmp_path / "cut", resume=True)
    assert_same(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_that_dies_between_checkpoints_resumes_exactly(
    tmp_path: Path, accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Die after the metrics of an epoch were written and before its checkpoint."""
    train(tmp_path / "whole", accumulate=accumulate)
    calls = []

    def dying(*args: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise OSError("no space left on device")
        checkpoints.write_checkpoint(*args)

    monkeypatch.setattr(trainer, "write_checkpoint", dying)
    with pytest.raises(OSError, match="no space left"):
        train(tmp_path / "cut", accumulate=accumulate)
    monkeypatch.undo()
    assert len((tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()) == 3
    train(tmp_path / "cut", resume=True, accumulate=accumulate)
    assert_same(tmp_path / "cut", tmp_path / "whole")


def test_a_finished_run_can_be_trained_on(tmp_path: Path) -> None:
    train(tmp_path / "whole", epochs=6, schedule="constant")
    train(tmp_path / "grown", epochs=4, schedule="constant")
    train(tmp_path / "grown", epochs=6, schedule="constant", resume=True)
    assert_same(tmp_path / "grown", tmp_path / "whole")


def test_a_half_written_checkpoint_is_not_taken_for_one(tmp_path: Path) -> None:
    tensors, state = {"a": torch.arange(3)}, {"b": 1}
    checkpoints.write_checkpoint(tmp_path, 3, tensors, state)
    (tmp_path / ".unfinished-99").mkdir()
    found = checkpoints.latest_checkpoint(tmp_path)
    assert found is not None
    assert found.name == "step-0000000003"
    checkpoints.write_checkpoint(tmp_path, 5, tensors, state)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-0000000005"]


def test_resuming_with_another_configuration_says_what_differs(tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(ValueError, match=r"another configuration: batch_size was 16, is 8; lr was 0.002, is 0.1"):
        train(tmp_path, resume=True, batch_size=8, lr=0.1)
    with pytest.raises(FileExistsError, match="holds a run already; pass resume=True"):
        train(tmp_path)
    other = dubio.Bayes(init_std=0.1).convert(mlp(5, 9, 4))
    with pytest.raises(ValueError, match=r"parameter 0\.bias_posterior\.mean was \[7\], is \[9\]"):
        dubio.fit(other, (INPUTS, TARGETS), (INPUTS, TARGETS), folder=tmp_path, resume=True, progress=False)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match=r"cannot resume: .*metrics\.jsonl must hold 6 epochs, got 0"):
        train(tmp_path, resume=True)


def test_a_second_signal_does_not_wait_for_the_step(tmp_path: Path) -> None:
    class Twice(StopAfter):
        def on_step(self, step: int, loss: dubio.Loss) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stopped:
        train(tmp_path, callbacks=[Twice(1)])
    assert not isinstance(stopped.value, dubio.Interrupted)


def test_batch_statistics_resume_too(tmp_path: Path) -> None:
    images, labels = torch.randn(24, 3, 8, 8), torch.randint(4, (24,))

    def go(folder: Path, **options: object) -> None:
        torch.manual_seed(0)
        model = dubio.Bayes().convert(Residual())
        dubio.fit(model, (images, labels), epochs=3, batch_size=8, folder=folder, progress=False, **options)

    go(tmp_path / "whole")
    with pytest.raises(dubio.Interrupted):
        go(tmp_path / "cut", callbacks=[StopAfter(4)])
    go(tmp_path / "cut", resume=True)
    assert_same(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.slow
def test_fifty_kills_at_random_points_change_nothing(tmp_path: Path) -> None:
    """SIGKILL, which nothing can catch, at fifty random moments of several runs."""
    train(tmp_path / "whole", epochs=12)
    chance, kills, number = random.Random(0), 0, 0
    while kills < 50 or number < 2:  # on a busy machine a run may take all of fifty
        folder = tmp_path / f"run{number}"
        finished = False
        while not finished:
            child = os.fork()
            if child == 0:
                try:
                    train(folder, epochs=12, resume=folder.exists())
                    os._exit(0)
                except BaseException:
                    os._exit(1)
            time.sleep(chance.uniform(0.0, 0.3))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                kills += 1
            else:
                assert os.WEXITSTATUS(status) == 0
                finished = True
        assert_same(folder, tmp_path / "whole")
        number += 1


class FullDisk:
    """Lets no file grow beyond a kilobyte after an epoch, as a full disk would."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_step(self, step: int, loss: dubio.Loss) -> None:
        pass

    def on_epoch(self, metrics: dict[str, float]) -> None:
        if metrics["epoch"] == self.epoch:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def on_end(self, run: dubio.Run) -> None:
        pass


def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(OSError, match=r"cannot write the checkpoint of step 15 to .*; the one before is kept"):
            train(tmp_path / "full", callbacks=[FullDisk(2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in (tmp_path / "full" / "checkpoint").iterdir()] == ["step-0000000010"]
    train(tmp_path / "full", resume=True)
    assert_same(tmp_path / "full", tmp_path / "whole")


def test_a_checkpoint_of_the_same_step_never_leaves_a_moment_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.write_checkpoint(tmp_path, 7, {"a": torch.zeros(2)}, {"turn": 1})
    monkeypatch.setattr(checkpoints.os, "rename", lambda *paths: pytest.fail("killed here"))
    with pytest.raises(pytest.fail.Exception):
        checkpoints.write_checkpoint(tmp_path, 7, {"a": torch.ones(2)}, {"turn": 2})
    monkeypatch.undo()
    assert checkpoints.read_checkpoint(checkpoints.latest_checkpoint(tmp_path))[1] == {"turn": 1}
    checkpoints.write_checkpoint(tmp_path, 7, {"a": torch.ones(2)}, {"turn": 3})
    assert checkpoints.read_checkpoint(checkpoints.latest_checkpoint(tmp_path))[1] == {"turn": 3}
    assert len(list(tmp_path.glob("step-*"))) == 1


class Own:
    """An objective of a user's own, which says of itself no more than its address."""

    kept: ClassVar[list["Own"]] = []  # alive, so that no two have the same one

    def __init__(self, inner: dubio.Elbo) -> None:
        self.inner = inner
        self.kept.append(self)

    @property
    def num_data(self) -> int | None:
        return self.inner.num_data

    def with_num_data(self, num_data: int) -> "Own":
        return Own(self.inner.with_num_data(num_data))

    def __call__(self, *given: Any, **options: Any) -> dubio.Loss:
        return self.inner(*given, **options)


def test_a_run_with_an_objective_of_ones_own_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(dubio.Interrupted):
        train(tmp_path, callbacks=[StopAfter(5)], objective=Own(dubio.Elbo()))
    assert "0x" not in json.loads((tmp_path / "config.json").read_text())["objective"]
    train(tmp_path, resume=True, objective=Own(dubio.Elbo()))


def own_loss(likelihood: Any, outputs: Tensor, targets: Tensor, scale: Tensor | None) -> Tensor:
    return 0.5 * likelihood.nll(outputs, targets, scale)


def other_loss(likelihood: Any, outputs: Tensor, targets: Tensor, scale: Tensor | None) -> Tensor:
    return 2.0 * likelihood.nll(outputs, targets, scale)


ATTACK = dubio.attacks.Fgsm(epsilon=0.1, bounds=(-10.0, 10.0))


@pytest.mark.parametrize("wrap", [lambda inner: inner, lambda inner: dubio.Adversarial(inner, ATTACK)])
def test_a_run_is_not_resumed_with_another_loss(tmp_path: Path, wrap: Any) -> None:
    with pytest.raises(dubio.Interrupted):
        train(tmp_path, callbacks=[StopAfter(5)], objective=wrap(dubio.Elbo(losses=own_loss)))
    assert f"losses={__name__}.own_loss" in json.loads((tmp_path / "config.json").read_text())["objective"]
    for other in (dubio.Elbo(losses=other_loss), dubio.Elbo()):
        with pytest.raises(ValueError, match="cannot resume with another configuration: objective was"):
            train(tmp_path, resume=True, objective=wrap(other))
    train(tmp_path, resume=True, objective=wrap(dubio.Elbo(losses=own_loss)))
