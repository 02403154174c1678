"""Whatever ends a run, resuming it gives what an uninterrupted run gives, bit for bit."""

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import time
import warnings
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import dubio
from dubio.training import checkpoints, trainer
from networks import Residual, mlp
from stopping import StopAfter

INPUTS = torch.randn(70, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(4, (70,), generator=torch.Generator().manual_seed(2))

pytestmark = pytest.mark.usefixtures("unchecked")


def make() -> nn.Module:
    torch.manual_seed(0)
    return dubio.Bayes(init_std=0.1).convert(mlp(5, 7, 4))


def train(
    folder: Path, *, resume: bool = False, epochs: int = 6, **options: object
) -> tuple[nn.Module, dubio.FitResult]:
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
    with pytest.warns(UserWarning, match=r"the training data \(DataLoader\) have no fingerprint, as they"):
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
    checkpoint = checkpoints.latest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.name == "step-0000000003"
    checkpoints.write_checkpoint(tmp_path, 5, tensors, state)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-0000000005"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted; not to be changed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was interrupted at step 13; to be copied."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(dubio.Interrupted):
        train(folder, callbacks=[StopAfter(13)])
    return folder


def newest(folder: Path) -> Path:
    return checkpoints.checkpoints_in(folder / "checkpoint")[0]


def test_the_two_newest_checkpoints_are_kept_with_their_hashes(whole: Path) -> None:
    kept = [path.name for path in checkpoints.checkpoints_in(whole / "checkpoint")]
    assert kept == ["step-0000000030", "step-0000000025"]
    sums = (newest(whole) / "SHA256SUMS").read_text().splitlines()
    for line in sums:
        digest, name = line.split("  ")
        assert hashlib.sha256((newest(whole) / name).read_bytes()).hexdigest() == digest
    assert sorted(line.split("  ")[1] for line in sums) == ["state.json", "tensors.safetensors"]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 0x40
    file.write_bytes(content)


@pytest.mark.feature("A damaged checkpoint is named, and the run goes on from the one before it")
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("tensors.safetensors", cut),
        ("tensors.safetensors", empty),
        ("tensors.safetensors", flip),
        ("tensors.safetensors", Path.unlink),
        ("state.json", cut),
        ("state.json", flip),
        ("state.json", Path.unlink),
        ("SHA256SUMS", cut),
        ("SHA256SUMS", empty),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, whole: Path, stopped: Path, name: str, damage: Any
) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(stopped, folder)
    damage(newest(folder) / name)
    with pytest.warns(UserWarning, match=rf"step-0000000013 is damaged: .*{name}.*; the run goes on from .*0010, the"):
        train(folder, resume=True)
    assert_same(folder, whole)
    assert len(list((folder / "checkpoint").iterdir())) == 2  # the damaged one is gone


def test_what_is_no_checkpoint_does_not_stand_in_the_way(tmp_path: Path, whole: Path, stopped: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(stopped, folder)
    (folder / "checkpoint" / "step-0000009999").mkdir()
    (folder / "checkpoint" / "step-0000000030").symlink_to("nowhere")  # where the last checkpoint would be written
    with pytest.warns(UserWarning, match=r"step-0000009999 is damaged: it has no tensors.safetensors and no"):
        train(folder, resume=True)
    assert_same(folder, whole)


def test_without_a_whole_checkpoint_every_damaged_one_is_named(tmp_path: Path, stopped: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(stopped, folder)
    for path in (folder / "checkpoint").iterdir():
        flip(path / "tensors.safetensors")
    with pytest.raises(ValueError, match=r"no checkpoint is whole: .*step-0000000013 .*step-0000000010 is"):
        train(folder, resume=True)


def sign(checkpoint: Path) -> None:
    """Make the hashes of a checkpoint match what is in it."""
    lines = [
        f"{hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("state.json", "tensors.safetensors")
    ]
    (checkpoint / "SHA256SUMS").write_text("".join(lines))


def groups(state: dict[str, Any]) -> list[dict[str, Any]]:
    return state["optimizer"]["param_groups"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: state.pop("optimizer"), "lacks 'optimizer'"),
        (
            lambda state: state["standing"].update(epoch="2"),
            "state.json: standing.epoch has a value of the wrong kind, '2'",
        ),
        (lambda state: state["standing"].update(epoch=-(2**62)), "epoch must be at least 0, got -"),
        (lambda state: state.update(tied={"0.bias": "nowhere"}), "lacks 'nowhere'"),
        (lambda state: state["optimizer"].update(param_groups=[]), "different number of parameter groups"),
        (lambda state: groups(state)[0].pop("lr"), "a parameter group of the optimizer must have lr, got "),
        (
            lambda state: groups(state)[1].update(lr="fast"),
            "lr of the optimizer must be a value such as .*, got 'fast'",
        ),
        (
            lambda state: groups(state)[0].update(initial_lr=None),
            "initial_lr of the optimizer must be a value .*, got None",
        ),
        (lambda state: groups(state)[0].update(betas=[0.9]), r"betas of the optimizer must be .*, got \[0\.9\]"),
        (
            lambda state: groups(state)[0].update(amsgrad=True),
            "the optimizer's state must have max_exp_avg_sq, got exp_avg",
        ),
        (lambda state: state["standing"].update(best_epoch=7), "best_epoch must be at most epoch, 1, got 7"),
        (lambda state: state["standing"].update(batch=6), "batch must be at most 5, got 6"),
        (
            lambda state: state["standing"].update(sums={"loss": 1.0}),
            "sums must hold examples, at least 1, loss and nll",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_in_words(tmp_path: Path, change: Any, reason: str) -> None:
    train(tmp_path, epochs=1)
    file = newest(tmp_path) / "state.json"
    state = json.loads(file.read_text())
    change(state)
    file.write_text(json.dumps(state))
    sign(file.parent)
    with pytest.raises(checkpoints.CheckpointError, match=rf"step-0000000005 does not fit the run: .*{reason}"):
        train(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("optimizer/0/exp_avg_sq", None, "the optimizer's state must have exp_avg_sq, got exp_avg, step"),
        ("optimizer/0/step", None, "lacks 'step'"),
        ("optimizer/0/exp_avg", lambda tensor: tensor[:1], "exp_avg of the optimizer must have shape .*, got "),
        ("random/cpu", None, "lacks 'random'"),
        ("random/cpu", lambda tensor: tensor[:100], "state of a cpu generator must have shape .*, got .100,. and"),
        ("random/cpu", lambda tensor: tensor.float(), "a cpu generator must have .* type torch.uint8, got .*float32"),
        (
            "best/0.weight_posterior.mean",
            lambda tensor: tensor[:1],
            "best weights: 0.weight_posterior.mean must have .*, got .1,",
        ),
        ("best/0.weight_posterior.mean", None, "best weights: 0.weight_posterior.mean must have shape .*, got None"),
    ],
)
def test_tensors_of_a_checkpoint_that_do_not_fit_are_refused_in_words(
    tmp_path: Path, name: str, change: Any, reason: str
) -> None:
    train(tmp_path, epochs=1)
    file = newest(tmp_path) / "tensors.safetensors"
    tensors = load_file(file)
    tensor = tensors.pop(name)
    if change is not None:
        tensors[name] = change(tensor).contiguous()
    save_file(tensors, file)
    sign(file.parent)
    with pytest.raises(checkpoints.CheckpointError, match=rf"step-0000000005 does not fit the run: .*{reason}"):
        train(tmp_path, resume=True)


def test_checkpoints_of_older_versions_are_read(tmp_path: Path, whole: Path, stopped: Path) -> None:
    shutil.copytree(stopped, tmp_path / "old")
    for path in (tmp_path / "old" / "checkpoint").iterdir():
        (path / "SHA256SUMS").unlink()
    config = tmp_path / "old" / "config.json"
    saved = json.loads(config.read_text())
    del saved["data"], saved["versions"]
    config.write_text(json.dumps(saved))
    with pytest.warns(UserWarning, match=r"config.json has no fingerprints of the data, as in older versions"):
        train(tmp_path / "old", resume=True)
    assert_same(tmp_path / "old", whole)
    assert json.loads(config.read_text())["data"]["train"]["num_examples"] == 70


def test_a_checkpoint_left_over_by_a_kill_is_removed(tmp_path: Path, whole: Path) -> None:
    """Killed between writing the last checkpoint and removing an older one: no later checkpoint follows."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.copytree(newest(folder), folder / "checkpoint" / "step-0000000020")
    with pytest.warns(UserWarning, match="nothing to train"):
        train(folder, resume=True)
    assert {path.name[-2:] for path in (folder / "checkpoint").iterdir()} == {"30", "25"}


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_all_files_have_the_mode_that_new_files_have(tmp_path: Path, mask: int) -> None:
    former = os.umask(mask)
    try:
        train(tmp_path, epochs=1)
    finally:
        os.umask(former)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 6
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~mask}


OTHER = torch.where(torch.arange(70)[:, None] == 3, INPUTS + 0.5, INPUTS)


@pytest.mark.feature("A run is not resumed with other data, and the message names the difference")
@pytest.mark.parametrize(
    ("data", "held_out", "message"),
    [
        ((OTHER, TARGETS), (INPUTS[:20], TARGETS[:20]), "the training data has other rows"),
        ((INPUTS, TARGETS.roll(1)), (INPUTS[:20], TARGETS[:20]), "the training data has other rows"),
        ((INPUTS.flip(0), TARGETS.flip(0)), (INPUTS[:20], TARGETS[:20]), "the training data has the same rows in ano"),
        ((INPUTS, TARGETS), (INPUTS[:19], TARGETS[:19]), "the validation data had 20 examples, has 19"),
        ((INPUTS, TARGETS), (INPUTS[1:21], TARGETS[1:21]), "the validation data has other rows"),
        ((INPUTS, TARGETS), None, "the validation data are missing now"),
    ],
)
def test_other_data_are_refused_and_the_difference_is_named(
    tmp_path: Path, data: Any, held_out: Any, message: str
) -> None:
    options: dict[str, Any] = {"monitor": "loss", "folder": tmp_path, "progress": False}
    dubio.fit(make(), (INPUTS, TARGETS), (INPUTS[:20], TARGETS[:20]), epochs=1, **options)
    with pytest.raises(ValueError, match=f"cannot resume with other data: {message}.*; resume with the data"):
        dubio.fit(make(), data, held_out, epochs=2, resume=True, **options)


def test_classes_that_were_renamed_are_named(tmp_path: Path) -> None:
    def data(*classes: str) -> dubio.data.Examples:
        return dubio.data.Examples(INPUTS, TARGETS, classes)

    dubio.fit(make(), data("a", "b", "c", "d"), epochs=1, folder=tmp_path, progress=False)
    for classes, difference in (
        (("b", "c", "d", "zz"), "'a' is missing and 'zz' is new"),
        (("b", "a", "c", "d"), "class 0 was 'a', is 'b'"),
    ):
        with pytest.raises(ValueError, match=f"the training data has other classes: {difference}; resume with"):
            dubio.fit(make(), data(*classes), epochs=2, folder=tmp_path, resume=True, progress=False)
    with pytest.raises(ValueError, match="class"):
        dubio.fit(make(), (INPUTS, TARGETS), epochs=2, folder=tmp_path, resume=True, progress=False)


def test_without_its_configuration_a_run_is_resumed_with_a_warning(tmp_path: Path, stopped: Path, whole: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(stopped, folder)
    (folder / "config.json").unlink()
    with pytest.warns(UserWarning, match=r"config\.json is missing, so nothing tells whether this is the run"):
        train(folder, resume=True)
    assert_same(folder, whole)


def test_another_torch_is_told_and_taken(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    config = tmp_path / "config.json"
    saved = json.loads(config.read_text())
    assert saved["versions"] == {"dubio": dubio.__version__, "torch": torch.__version__}
    config.write_text(json.dumps({**saved, "versions": {**saved["versions"], "torch": "2.0.0"}}))
    with pytest.warns(UserWarning, match=r"was trained with torch 2\.0\.0 and goes on with torch 2.*may differ"):
        train(tmp_path, resume=True, epochs=2)
    assert json.loads(config.read_text())["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", r"config\.json cannot be read: "),
        ("config.json", "[]", r"config\.json must hold an object, got a list"),
        ("metrics.jsonl", '{"epoch": 1}\n{"epo\n', r"metrics\.jsonl cannot be read: line 2: "),
        ("metrics.jsonl", '{"epoch": 1}\n[]\n', r"metrics\.jsonl must hold objects, got a list in line 2"),
        ("metrics.jsonl", '{"epoch": 1}\n{"epoch": 2}', r"metrics\.jsonl must hold 2 epochs, got 1"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    train(tmp_path, epochs=2)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        train(tmp_path, resume=True, epochs=3)


def test_nothing_left_to_train_is_said_and_changes_nothing(tmp_path: Path) -> None:
    train(tmp_path, epochs=3)
    before = outcome(tmp_path)[0], (tmp_path / "config.json").read_text()
    with (tmp_path / "metrics.jsonl").open("a") as lines:
        lines.write('{"epoch": 4}\n')  # killed before the checkpoint of that epoch
    with pytest.warns(UserWarning, match=r"3 of 2 epochs are done already; nothing to train; add epochs, such as"):
        _, run = train(tmp_path, resume=True, epochs=2)
    assert len(run.history) == 3
    after = outcome(tmp_path)[0], (tmp_path / "config.json").read_text()
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    assert before[1] == after[1]


class Removes:
    """Removes the metrics of the run after an epoch."""

    def __init__(self, file: Path, step: int) -> None:
        self.file, self.step = file, step

    def on_step(self, step: int, loss: dubio.Loss) -> None:
        if step == self.step:
            self.file.unlink()

    def on_epoch(self, metrics: dict[str, float]) -> None: ...

    def on_end(self, run: dubio.FitResult) -> None: ...


def test_metrics_that_were_removed_during_training_are_written_again(tmp_path: Path, whole: Path) -> None:
    file = tmp_path / "cut" / "metrics.jsonl"
    with (
        pytest.warns(UserWarning, match=r"metrics\.jsonl was removed during training; it is written again"),
        pytest.raises(dubio.Interrupted),
    ):
        train(tmp_path / "cut", callbacks=[Removes(file, 12), StopAfter(13)])
    assert len(file.read_text().splitlines()) == 2
    with pytest.warns(UserWarning, match="removed during training"):
        train(tmp_path / "cut", resume=True, callbacks=[Removes(file, 24)])
    assert_same(tmp_path / "cut", whole)


@pytest.mark.feature("Two processes never train the same run folder at once")
def test_a_folder_that_is_being_trained_in_is_refused_and_its_process_named(tmp_path: Path) -> None:
    class Resumes(Removes):
        """Resumes the same run in another process, in the middle of training."""

        error = ""

        def on_step(self, step: int, loss: dubio.Loss) -> None:
            if step == 7:
                read, write = os.pipe()
                if not (child := os.fork()):
                    try:
                        train(tmp_path, resume=True)
                    except BlockingIOError as error:
                        os.write(write, str(error).encode())
                    finally:
                        os._exit(0)
                os.waitpid(child, 0)
                self.error = os.read(read, 1000).decode()

    callback = Resumes(tmp_path, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: a test runner may have threads
        train(tmp_path, callbacks=[callback])
    assert callback.error == f"{tmp_path} is in use by process {os.getpid()}; wait until it has finished, or stop it"
    outcome(tmp_path)


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


def test_a_run_killed_before_its_model_was_written_is_finished_without_a_warning(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    train(tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.*nothing to train")  # killed when all was written
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

    def on_end(self, run: dubio.FitResult) -> None:
        pass


def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(OSError, match=r"cannot write the checkpoint of step 15 to .*; the one before is kept"):
            train(tmp_path / "full", callbacks=[FullDisk(2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name for path in (tmp_path / "full" / "checkpoint").iterdir()} == {
        "step-0000000010",
        "step-0000000005",
    }
    train(tmp_path / "full", resume=True)
    assert_same(tmp_path / "full", tmp_path / "whole")


def test_a_disk_that_is_full_at_the_first_checkpoint_keeps_none(tmp_path: Path) -> None:
    tensors, limits = {"a": torch.zeros(1000)}, resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
        with pytest.raises(OSError, match="; there is no other, so the run cannot be resumed"):
            checkpoints.write_checkpoint(tmp_path, 3, tensors, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


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

    def __init__(self, inner: dubio.ELBO) -> None:
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
        train(tmp_path, callbacks=[StopAfter(5)], objective=Own(dubio.ELBO()))
    assert "0x" not in json.loads((tmp_path / "config.json").read_text())["objective"]
    train(tmp_path, resume=True, objective=Own(dubio.ELBO()))


def own_loss(likelihood: Any, outputs: Tensor, targets: Tensor, scale: Tensor | None) -> Tensor:
    return 0.5 * likelihood.nll(outputs, targets, scale)


def other_loss(likelihood: Any, outputs: Tensor, targets: Tensor, scale: Tensor | None) -> Tensor:
    return 2.0 * likelihood.nll(outputs, targets, scale)


ATTACK = dubio.attacks.FGSM(epsilon=0.1, bounds=(-10.0, 10.0))


@pytest.mark.parametrize("wrap", [lambda inner: inner, lambda inner: dubio.Adversarial(inner, ATTACK)])
def test_a_run_is_not_resumed_with_another_loss(tmp_path: Path, wrap: Any) -> None:
    with pytest.raises(dubio.Interrupted):
        train(tmp_path, callbacks=[StopAfter(5)], objective=wrap(dubio.ELBO(losses=own_loss)))
    assert f"losses={__name__}.own_loss" in json.loads((tmp_path / "config.json").read_text())["objective"]
    for other in (dubio.ELBO(losses=other_loss), dubio.ELBO()):
        with pytest.raises(ValueError, match="cannot resume with another configuration: objective was"):
            train(tmp_path, resume=True, objective=wrap(other))
    train(tmp_path, resume=True, objective=wrap(dubio.ELBO(losses=own_loss)))
