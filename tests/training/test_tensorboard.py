"""What TensorBoard reads back is what training did, also when the run was interrupted, died, and was resumed."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import dubio
from networks import mlp

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

INPUTS = torch.randn(70, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(4, (70,), generator=torch.Generator().manual_seed(2))
STEPS_PER_EPOCH = 5  # of 16, 16, 16, 16 and 6 examples

Curves = dict[str, dict[int, float]]


def wait_for_the_next_second() -> None:
    """TensorBoard reads files in the order of their names, which begin with the second they were opened in."""
    time.sleep(1.01 - time.time() % 1.0)


def train(board: Path, folder: Path | None = None, **options: object) -> dubio.FitResult:
    torch.manual_seed(0)
    model: nn.Module = dubio.Bayes(init_std=0.1).convert(mlp(5, 7, 4))
    callbacks = [dubio.TensorBoard(board), *options.pop("callbacks", ())]  # type: ignore[misc]
    arguments = {"epochs": 3, "batch_size": 16, "progress": False, "folder": folder, **options}
    return dubio.fit(model, (INPUTS, TARGETS), (INPUTS[:20], TARGETS[:20]), callbacks=callbacks, **arguments)


def curves(board: Path) -> Curves:
    """Every curve as TensorBoard shows it: step -> value. A step that it would show twice is an error."""
    events = accumulators.EventAccumulator(str(board), size_guidance={accumulators.SCALARS: 0}).Reload()
    result: Curves = {}
    for tag in events.Tags()[accumulators.SCALARS]:
        points = [(event.step, event.value) for event in events.Scalars(tag)]
        assert len(dict(points)) == len(points), f"{tag} has a step twice"
        result[tag] = dict(points)
    return result


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dubio.FitResult, Curves]:
    """A run from start to end, and its curves."""
    board = tmp_path_factory.mktemp("board")
    return train(board), curves(board)


def assert_same_but_for_time(result: Curves, expected: Curves) -> None:
    assert result.keys() == expected.keys()
    for tag in set(expected) - {"epoch/seconds"}:
        assert result[tag] == expected[tag], tag


@pytest.mark.feature("dubio.TensorBoard writes every step and every epoch, and goes on where a resumed run does")
def test_the_curves_are_the_history(whole: tuple[dubio.FitResult, Curves]) -> None:
    run, result = whole

    names = set(run.history[0]) - {"epoch", "step"}
    assert {"loss", "nll", "divergence", "accuracy", "val_nll", "val_accuracy", "seconds"} == names
    assert result.keys() == {f"epoch/{name}" for name in names} | {"step/loss", "step/nll", "step/divergence"}
    for name in names:
        expected = {int(metrics["step"]): metrics[name] for metrics in run.history}
        assert result[f"epoch/{name}"] == pytest.approx(expected, rel=1e-6)


def test_the_steps_of_an_epoch_have_the_mean_of_the_epoch(whole: tuple[dubio.FitResult, Curves]) -> None:
    run, result = whole

    rows = [16, 16, 16, 16, 6]
    for name in ("loss", "nll", "divergence"):
        assert list(result[f"step/{name}"]) == list(range(1, 3 * STEPS_PER_EPOCH + 1))
        values = torch.tensor(list(result[f"step/{name}"].values()), dtype=torch.float64).view(3, STEPS_PER_EPOCH)
        means = (values * torch.tensor(rows)).sum(dim=1) / sum(rows)
        assert means.tolist() == pytest.approx([metrics[name] for metrics in run.history], rel=1e-6)


class StopAfter:
    """Sends this process a signal at a step."""

    def __init__(self, step: int, number: signal.Signals) -> None:
        self.step, self.number = step, number

    def on_step(self, step: int, loss: dubio.Loss) -> None:
        if step == self.step:
            os.kill(os.getpid(), self.number)

    def on_epoch(self, metrics: dict[str, float]) -> None: ...

    def on_end(self, run: dubio.FitResult) -> None: ...


def interrupt(board: Path, folder: Path, step: int) -> None:
    with pytest.raises(dubio.Interrupted):
        train(board, folder, callbacks=[StopAfter(step, signal.SIGTERM)])


def kill(board: Path, folder: Path, step: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any thread beside a fork
        child = os.fork()
    if child == 0:
        train(board, folder, callbacks=[StopAfter(step, signal.SIGKILL)])
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.parametrize("step", [7, 10], ids=["middle of an epoch", "end of an epoch"])
@pytest.mark.parametrize("end", [interrupt, kill])
def test_a_resumed_run_has_the_curves_of_a_whole_one(
    tmp_path: Path, whole: tuple[dubio.FitResult, Curves], step: int, end: Callable[[Path, Path, int], None]
) -> None:
    end(tmp_path / "cut", tmp_path / "run", step)
    assert curves(tmp_path / "cut")["step/divergence"].keys() == set(range(1, step + 1))  # nothing was left unwritten
    wait_for_the_next_second()
    train(tmp_path / "cut", tmp_path / "run", resume=True)
    assert_same_but_for_time(curves(tmp_path / "cut"), whole[1])


def test_a_run_that_is_trained_on_goes_on_with_its_steps(tmp_path: Path, whole: tuple[dubio.FitResult, Curves]) -> None:
    train(tmp_path / "grown", tmp_path / "run", epochs=2)
    wait_for_the_next_second()
    train(tmp_path / "grown", tmp_path / "run", epochs=3, resume=True)
    assert_same_but_for_time(curves(tmp_path / "grown"), whole[1])


def test_the_file_is_closed_at_the_end(tmp_path: Path) -> None:
    board = dubio.TensorBoard(tmp_path / "board")
    train(tmp_path / "other", callbacks=[board])
    assert board._writer is None
    wait_for_the_next_second()
    train(tmp_path / "another", callbacks=[board])  # it can be used again
    assert max(curves(tmp_path / "board")["step/loss"]) == 3 * STEPS_PER_EPOCH


def test_it_is_a_callback(tmp_path: Path) -> None:
    assert isinstance(dubio.TensorBoard(tmp_path), dubio.Callback)


def test_a_missing_tensorboard_is_named_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"^dubio.TensorBoard needs tensorboard, .*: pip install tensorboard$"):
        dubio.TensorBoard(tmp_path / "board")
    assert not (tmp_path / "board").exists()


def test_a_folder_that_is_a_file_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "board").write_text("")
    with pytest.raises(FileExistsError, match="board"):
        dubio.TensorBoard(tmp_path / "board")
