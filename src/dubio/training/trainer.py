"""The run itself: steps, epochs, checkpoints, and where it stands.

Invariants (``tests/training``): with a folder, a run that was killed at any point and resumed ends bit for bit as one
that was not, in eager steps on a CPU; compiled ones may round otherwise, where the first batch after it is a short one.
A checkpoint is whole or not there; a damaged one is named, and the one before it is used. ``metrics.jsonl`` holds every
epoch once, since a lock keeps other processes out of the folder. A run is not resumed with other data or another
configuration. Of several processes the first alone writes, all decide from the same numbers, and none goes on without
the others.

How a network does on data that it does not learn from, while it learns.

How the learning rate moves.
"""

import dataclasses
import math
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Using, run
from dubio.codec import (
    current_names,
    dump_json,
    read_json_lines,
    read_object,
    read_value,
    remove_unfinished,
    write_atomically,
)
from dubio.data import Batch, Batches, DataFingerprint
from dubio.io import locked, save, without_ties
from dubio.likelihoods import Gaussian, likelihood_of, match_shape, observation_scale, without_weights
from dubio.nn import num_trained
from dubio.objectives import Objective
from dubio.training.batch_loss import Place
from dubio.training.callbacks import Callback, Display, FitConfig, FitResult, Interrupted
from dubio.training.checkpoints import (
    CheckpointError,
    TrainState,
    checkpoints_in,
    latest_checkpoint,
    own_state,
    pack,
    read_checkpoint,
    remove_checkpoints,
    unpack,
    write_checkpoint,
)
from dubio.training.diagnosis import LOOK_EVERY, BrokenLossError, warn_of_collapse, what_is_not_finite
from dubio.training.optimizers import set_learning_rates
from dubio.training.processes import ALONE, LostProcessError, Processes
from dubio.training.steps import Step
from dubio.version import versions

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


ASK_EVERY = 20
"""Steps on a GPU between two questions whether some process was told to stop: the answer holds up what is queued."""


FREE = ("epochs", "num_parameters", "data", "versions")
"""What of a configuration may be another when a run is resumed, or is compared in a way of its own."""


MODEL = "model.safetensors"


VERSIONS = ("dubio", "torch")
"""Those on which numbers depend."""


Schedule = Literal["constant", "cosine", "linear"] | Callable[[float], float]


@dataclass
class Trainer:
    """Everything a run needs."""

    model: nn.Module
    batches: Batches
    held_out: Batches | None
    objective: Objective
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    plan: FitConfig
    callbacks: tuple[Callback, ...]
    folder: Path | None
    device: torch.device
    step: Step
    processes: Processes
    fingerprints: Callable[[], dict[str, DataFingerprint | None]] = dict
    """Makes the fingerprints of the training and validation data, which a run with a folder keeps."""
    keep_step: bool = False
    """Whether what was compiled and recorded is kept for another run."""
    _num_classes: int | None = None
    _sums: Tensor | None = None
    """Sums over the examples since they were last gathered, on the device."""
    _looked: float = 0.0
    """When the device was last asked how it goes."""
    _first_step: int = 0
    """The step at which this run began or was taken up."""
    _previous: Path | None = None
    """The checkpoint that was written last, or that the run was resumed from."""

    def run(self, resume: bool, interrupted: threading.Event, display: Display) -> FitResult:
        """All epochs, from the start or from the checkpoint."""
        self.processes.broadcast(self.model)
        if self.processes.count > 1:
            self._check_agreement(resume)
        with ExitStack() as lock:
            if self.folder is not None:
                folder = self.folder
                self.processes.by_writer(lambda: lock.enter_context(locked(folder)))
            standing, best, history = self._start(resume)
            try:
                return self._run(standing, best, history, interrupted, display)
            except LostProcessError as error:
                raise LostProcessError(
                    f"training ended at step {standing.step + 1} of epoch {standing.epoch + 1}: {error}{self._kept()}"
                ) from error
            finally:
                if not self.keep_step:
                    self.step.close()

    def _run(
        self,
        standing: TrainState,
        best: dict[str, Tensor] | None,
        history: list[dict[str, float]],
        interrupted: threading.Event,
        display: Display,
    ) -> FitResult:
        self._first_step = standing.step
        self.step.settle(standing.compiled)
        self.model.train()
        began = time.perf_counter() - standing.seconds
        while not self._is_over(standing):
            for batch, last in self._batches_of(standing):
                complete = self._learn_from(batch, last, standing, display)
                if complete and self._is_told_to_stop(interrupted, standing):  # between two steps
                    standing.seconds = time.perf_counter() - began
                    self._stop(standing, best, history)
            standing.seconds = time.perf_counter() - began
            metrics = self._finish_epoch(standing)
            if self._improved(metrics, standing) and self.held_out is not None:
                best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
            history.append(metrics)
            self._keep(history, standing, best)
            display.epoch(metrics)
            for callback in self.callbacks:
                callback.on_epoch(metrics)
        return self._end(standing, best, history)

    def _start(self, resume: bool) -> tuple[TrainState, dict[str, Tensor] | None, list[dict[str, float]]]:
        if self.folder is None:
            if resume:
                raise ValueError("resume needs the folder of the run to go on with")
            return TrainState(), None, []
        config = self.processes.by_writer(lambda: self._open(resume))
        standing, best = self._load_checkpoint() if resume else (TrainState(), None)
        return standing, best, self.processes.by_writer(lambda: self._prepare_files(config, standing))

    def _open(self, resume: bool) -> dict[str, Any]:
        """Check the folder and the configuration that it holds; the configuration to be written there."""
        assert self.folder is not None
        remove_unfinished(self.folder)
        config = self._config()
        file = self.folder / "config.json"
        if file.exists() and not resume:
            raise FileExistsError(
                f"folder {self.folder} holds a run already; pass resume=True to go on, or another folder"
            )
        saved = current_names(read_object(file)) if file.exists() else None
        if saved is not None:
            _check_same(saved, config)
        elif resume and checkpoints_in(self.folder / "checkpoint"):
            warnings.warn(f"{file} is missing, so nothing tells whether this is the run that began here", stacklevel=2)
        data = self.fingerprints()
        if saved is not None:
            data = _checked_data(file, saved.get("data"), data)
            _warn_of_versions(saved.get("versions"))
        described = {part: None if one is None else dataclasses.asdict(one) for part, one in data.items()}
        return {**config, "data": described, "versions": {name: versions()[name] for name in VERSIONS}}

    def _load_checkpoint(self) -> tuple[TrainState, dict[str, Tensor] | None]:
        """Put the newest checkpoint back that is whole; of a run without any, the beginning."""
        assert self.folder is not None
        folder = self.folder / "checkpoint"
        paths = self.processes.by_writer(lambda: checkpoints_in(folder))
        damage = []
        for place, path in enumerate(paths):
            try:
                standing, best = self.processes.together(lambda path=path: self._read(path))  # type: ignore[misc]
            except CheckpointError as error:
                damage.append(str(error))
                continue
            if damage and self.processes.is_writer:
                warnings.warn(f"{'; '.join(damage)}; the run goes on from {path}, the one before", stacklevel=2)
            if self.processes.is_writer:  # older ones are left over where a process was killed before it removed them
                remove_checkpoints(paths[place + 2 :])
            self._previous = path
            return standing, best
        if damage:
            raise CheckpointError(
                f"cannot resume, no checkpoint is whole: {'; '.join(damage)}; put {folder} back from a copy, or begin "
                "another run"
            )
        return TrainState(), None

    def _read(self, path: Path) -> tuple[TrainState, dict[str, Tensor] | None]:
        tensors, state = read_checkpoint(path)
        try:
            return unpack(self.model, self.optimizer, tensors, state, self.processes)
        except torch.OutOfMemoryError:
            raise
        except KeyError as error:
            raise CheckpointError(f"{path} does not fit the run: it lacks {error}") from error
        except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path} does not fit the run: {error}") from error

    def _prepare_files(self, config: dict[str, Any], standing: TrainState) -> list[dict[str, float]]:
        """Write the configuration, and cut the metrics to the epochs that are over; these metrics.

        What was written after the checkpoint will be written again.
        """
        assert self.folder is not None
        metrics = self.folder / "metrics.jsonl"
        history = (
            read_json_lines(metrics, standing.epoch, nan_is_null=True) if standing.epoch and metrics.is_file() else []
        )
        if len(history) < standing.epoch:
            raise ValueError(f"cannot resume: {metrics} must hold {standing.epoch} epochs, got {len(history)}")
        if standing.epoch and self._is_over(standing):
            if (self.folder / MODEL).exists():  # else the run was killed just before it was written
                self._warn_of_nothing_left(standing)
        else:
            write_atomically(self.folder / "config.json", f"{dump_json(config, indent=1)}\n".encode())
        self._write_metrics(history)
        return history

    def _is_over(self, standing: TrainState) -> bool:
        return standing.epoch >= self.plan.epochs or self._out_of_patience(standing)

    def _warn_of_nothing_left(self, standing: TrainState) -> None:
        done = standing.epoch
        if done < self.plan.epochs:
            why = f"training stopped at epoch {done}, after {self.plan.patience} epochs without improvement"
            warnings.warn(f"{why}; nothing to train", stacklevel=2)
        else:
            more = f"add epochs, such as epochs={done + 10} (--epochs {done + 10})"
            warnings.warn(
                f"{done} of {self.plan.epochs} epochs are done already; nothing to train; {more}", stacklevel=2
            )

    def _batches_of(self, standing: TrainState) -> Iterator[tuple[Batch, bool]]:
        """The batches of the epoch that are left, and whether each is the last.

        Where their number is known none is fetched before its time: fetching may draw random numbers, and a run that
        is resumed must draw them in the same order.
        """
        batches = self.batches.epoch(standing.epoch, standing.batch)
        if self.batches.num_batches is None:
            yield from _with_last(batches)
        else:
            for number, batch in enumerate(batches, start=standing.batch + 1):
                yield batch, number == self.batches.num_batches

    def _learn_from(self, batch: Batch, last: bool, standing: TrainState, display: Display) -> bool:
        """Take a batch in; whether it completed a step."""
        batch = batch.to(self.device)
        if self.step.num_rows == 0:
            done = self._epochs_done(standing) / self.plan.epochs
            set_learning_rates(self.optimizer, schedule_factor(self.schedule, done))
        complete = (standing.batch + 1) % self.plan.accumulate == 0 or last
        place = Place(standing.batch, self.batches.num_batches, self._epochs_done(standing), batch.num_parts)
        try:
            loss, sums = self.step.learn(batch, place, complete)
            standing.batch += 1
            standing.step += complete
            if len(batch.targets):
                self._sums = sums.clone() if self._sums is None else self._sums.add_(sums)
            if last or self._is_time_to_look():
                self.step.check()
                display.batch(standing.epoch, standing.batch, loss.total.item())
        except BrokenLossError as error:
            raise self._explained(error, standing) from error
        if loss.log_probs is not None:
            self._num_classes = loss.log_probs.shape[-1]
        news = self.step.news()
        if news:
            display.note(news)
        if complete:
            for callback in self.callbacks:
                callback.on_step(standing.step, loss)
        return complete

    def _explained(self, error: BrokenLossError, standing: TrainState) -> FloatingPointError:
        step = standing.step + 1
        if self.device.type == "cuda" and self.plan.accumulate == 1:  # noticed some steps after it came
            step = self._first_step + error.num_steps + 1
        place = f"step {step} of epoch {standing.epoch + 1}"
        return FloatingPointError(f"loss is {error.value} at {place}, from {error.culprit}{self._kept()}")

    def _check_agreement(self, resume: bool) -> None:
        groups = [
            {name: str(group[name]) for name in group if name != "params"} for group in self.optimizer.param_groups
        ]
        beside = {
            "num_batches": self.batches.num_batches,
            "folder": None if self.folder is None else "given",
            "resume": resume,
            "validation": None if self.held_out is None else "given",
            "schedule": [schedule_factor(self.schedule, share / 8) for share in range(8)],
            "optimizer": [{name: str(value) for name, value in group.items() if name != "params"} for group in groups],
        }
        self.processes.check_alike({**self._config(), **beside})

    def _is_time_to_look(self) -> bool:
        """Whether to ask the device how it goes: always on a CPU, which has no queue to wait for."""
        now = time.perf_counter()
        if self.device.type == "cuda" and now - self._looked < LOOK_EVERY:
            return False
        self._looked = now
        return True

    def _is_told_to_stop(self, interrupted: threading.Event, standing: TrainState) -> bool:
        """Whether this process was interrupted, or some other: then all stop at the same step."""
        if self.processes.count > 1 and self.device.type == "cuda" and standing.step % ASK_EVERY:
            return False
        return self.processes.any(interrupted.is_set())

    def _epochs_done(self, standing: TrainState) -> float:
        """How many epochs are over; whole ones alone where nobody knows how many batches an epoch has."""
        return standing.epoch + (standing.batch / self.batches.num_batches if self.batches.num_batches else 0.0)

    def _gather_sums(self, standing: TrainState) -> None:
        """Take the sums over, from the devices of all processes to where they are kept."""
        own: dict[str, float] = {}
        if self._sums is not None:
            own = dict(zip(("examples", *self.step.names), self._sums.tolist(), strict=True))
        for sums in self.processes.gather(own):
            for name, value in sums.items():
                standing.sums[name] = standing.sums.get(name, 0.0) + value
        self._sums = None

    def _finish_epoch(self, standing: TrainState) -> dict[str, float]:
        self._gather_sums(standing)
        sums, standing.sums = standing.sums, {}
        if not sums:
            raise ValueError("train must hold at least one batch, got none")
        examples = sums.pop("examples")
        standing.epoch += 1
        standing.batch = 0
        metrics = {
            "epoch": standing.epoch,
            "step": standing.step,
            **{name: value / examples for name, value in sums.items()},
        }
        self.processes.average_buffers(self.model)
        if self.held_out is not None:
            metrics |= validate(self.model, self.held_out, self.plan.seed, self.device, processes=self.processes)
        self.processes.together(lambda: self._check_finite(metrics))
        return {**metrics, "seconds": round(standing.seconds, 3)}

    def _check_finite(self, metrics: dict[str, float]) -> None:
        broken = what_is_not_finite(self.model, metrics)
        if broken:
            raise FloatingPointError(f"{broken} after epoch {int(metrics['epoch'])}{self._kept()}")

    def _improved(self, metrics: dict[str, float], standing: TrainState) -> bool:
        value = metrics[self.plan.monitor]
        better = -value if self.plan.monitor.endswith("accuracy") else value
        if standing.best is not None and better >= standing.best:
            return False
        standing.best, standing.best_epoch = better, standing.epoch
        return True

    def _out_of_patience(self, standing: TrainState) -> bool:
        return self.plan.patience is not None and standing.epoch - standing.best_epoch >= self.plan.patience

    def _keep(self, history: list[dict[str, float]], standing: TrainState, best: dict[str, Tensor] | None) -> None:
        if self.folder is not None:
            self.processes.by_writer(lambda: self._append(history))
            self._save(standing, best)

    def _append(self, history: list[dict[str, float]]) -> None:
        """Write the metrics of the last epoch."""
        assert self.folder is not None
        self._restore_metrics(history[:-1])
        metrics = self.folder / "metrics.jsonl"
        try:
            with metrics.open("a") as lines:
                lines.write(f"{dump_json(history[-1])}\n")
                lines.flush()
                os.fsync(lines.fileno())  # a checkpoint without its metrics could not be resumed
        except OSError as error:
            raise OSError(f"cannot write to {metrics}: {error}{self._kept()}") from error

    def _restore_metrics(self, history: list[dict[str, float]]) -> None:
        """Write the metrics of all epochs again where their file was removed: without it no run can be resumed."""
        assert self.folder is not None
        metrics = self.folder / "metrics.jsonl"
        if not metrics.is_file():
            self._write_metrics(history)
            warnings.warn(f"{metrics} was removed during training; it is written again", stacklevel=2)

    def _write_metrics(self, history: list[dict[str, float]]) -> None:
        assert self.folder is not None
        metrics = self.folder / "metrics.jsonl"
        try:
            write_atomically(metrics, "".join(f"{dump_json(line)}\n" for line in history).encode())
        except OSError as error:
            raise OSError(f"cannot write to {metrics}: {error}{self._kept()}") from error

    def _save(self, standing: TrainState, best: dict[str, Tensor] | None) -> None:
        assert self.folder is not None
        self._gather_sums(standing)
        standing.compiled = self.step.settled
        own_states = self.processes.gather(own_state(self.model, self.processes))
        checkpoint = self.folder / "checkpoint"
        self.processes.by_writer(
            lambda: write_checkpoint(
                checkpoint, standing.step, *pack(self.model, self.optimizer, standing, best, own_states), self._previous
            )
        )
        if self.processes.is_writer:
            self._previous = latest_checkpoint(checkpoint)

    def _stop(self, standing: TrainState, best: dict[str, Tensor] | None, history: list[dict[str, float]]) -> None:
        if self.folder is None:
            raise Interrupted(f"training was interrupted at step {standing.step}; without a folder nothing was saved")
        self.processes.by_writer(lambda: self._restore_metrics(history))
        self._save(standing, best)
        raise Interrupted(
            f"training was interrupted at step {standing.step}; go on with resume=True, folder={self.folder}"
        )

    def _end(self, standing: TrainState, best: dict[str, Tensor] | None, history: list[dict[str, float]]) -> FitResult:
        if self.processes.is_writer:
            warn_of_collapse(self.model, history[-1], self._num_classes)  # before the best weights hide it
        if best is not None:
            self.model.load_state_dict(best)
        self.model.eval()
        how, capture_seconds = self.step.how, self.step.capture_seconds
        if self.folder is not None:
            file = self.folder / MODEL
            self.processes.by_writer(lambda: self._write_model(file))
        best_epoch = standing.best_epoch if best is not None else standing.epoch
        stopped = standing.epoch < self.plan.epochs
        run = FitResult(tuple(history), best_epoch, stopped, standing.seconds, self.folder, how, capture_seconds)
        for callback in self.callbacks:
            callback.on_end(run)
        return run

    def _write_model(self, path: Path) -> None:
        if hasattr(self.model, "dubio_spec"):
            save(self.model, path)
        else:  # a plain network has weights and nothing else to keep
            write_atomically(path, to_bytes(without_ties(self.model.state_dict())[0]))

    def _kept(self) -> str:
        """Which checkpoint is there, as the end of a message."""
        checkpoint = None if self.folder is None else latest_checkpoint(self.folder / "checkpoint")
        return "" if checkpoint is None else f"; the last good checkpoint is kept in {checkpoint}"

    def _config(self) -> dict[str, Any]:
        record = getattr(self.model, "dubio_spec", None)
        return {
            "method": _in_words(getattr(record, "method", None)),
            "likelihood": _in_words(getattr(record, "likelihood", None)),
            "objective": _in_words(self.objective),
            "optimizer": type(self.optimizer).__name__,
            "schedule": self.schedule
            if isinstance(self.schedule, str)
            else getattr(self.schedule, "__name__", "function"),
            "num_data": self.batches.num_data,
            "parameters": {name: list(tensor.shape) for name, tensor in self.model.state_dict().items()},
            "num_parameters": num_trained(self.model),
            "num_processes": self.processes.count,
            **dataclasses.asdict(self.plan),
        }


def _in_words(value: object) -> str:
    """What it is, and not where: of a user's own class, whose objects may say no more than their address."""
    return ADDRESS.sub("", repr(value))


def _check_same(known: dict[str, Any], now: dict[str, Any]) -> None:
    known = {"num_processes": 1, **known}  # older ones do not say
    differing = [name for name in {**known, **now} if known.get(name) != now.get(name) and name not in FREE]
    if differing:
        listed = "; ".join(_difference(name, known.get(name), now.get(name)) for name in sorted(differing))
        raise ValueError(f"cannot resume with another configuration: {listed}")


def _checked_data(file: Path, saved: Any, now: dict[str, DataFingerprint | None]) -> dict[str, DataFingerprint | None]:
    """The fingerprints to be kept from now on; refuses data that are not those that the run began with."""
    if not isinstance(saved, dict):
        warnings.warn(
            f"{file} has no fingerprints of the data, as in older versions, so a change of the data is not noticed",
            stacklevel=2,
        )
        return now
    changes, without_hash, kept = [], [], dict(now)
    for part, own in now.items():
        try:
            before = None if saved.get(part) is None else read_value(DataFingerprint, saved[part])
        except ValueError as error:
            raise ValueError(f"{file} cannot be read: the fingerprint of the {part} data is damaged: {error}") from None
        name = f"the {'training' if part == 'train' else part} data"
        if before is None and own is None:
            continue
        if before is None or own is None:
            changes.append(f"{name} {'were not given before' if before is None else 'are missing now'}")
        else:
            changes += [change] if (change := own.change_from(before, name)) else []
            if before.ordered is None or own.ordered is None:
                without_hash.append(f"{name} ({own.kind})")
            if own.ordered is None:
                kept[part] = before
    if changes:
        raise ValueError(
            f"cannot resume with other data: {'; '.join(changes)}; resume with the data that the run began with, or "
            "begin another run"
        )
    if without_hash:
        warnings.warn(
            f"{' and '.join(without_hash)} have no fingerprint, as they are not in memory: a change is not noticed",
            stacklevel=2,
        )
    return kept


def _warn_of_versions(saved: Any) -> None:
    """Warn that a run goes on with another dubio or torch; older runs do not say which they had."""
    if not isinstance(saved, dict):
        return
    now = versions()
    other = [name for name in VERSIONS if saved.get(name) != now[name]]
    if other:
        before, after = (" and ".join(f"{name} {versions.get(name)}" for name in other) for versions in (saved, now))
        warnings.warn(
            f"the run was trained with {before} and goes on with {after}; its numbers may differ from those of a run "
            "that was not interrupted",
            stacklevel=2,
        )


def _difference(name: str, known: Any, now: Any) -> str:
    if name != "parameters" or not isinstance(known, dict):
        return f"{name} was {known!r}, is {now!r}"
    other = sorted(key for key in {**known, **now} if known.get(key) != now.get(key))
    return f"parameter {other[0]} was {known.get(other[0], 'not there')}, is {now.get(other[0], 'not there')}"


def _with_last(batches: Iterator[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Each batch, and whether it is the last."""
    waiting = next(batches, None)
    while waiting is not None:
        following = next(batches, None)
        yield waiting, following is None
        waiting = following


VALIDATION_SAMPLES = 10


@torch.no_grad()
def validate(
    model: nn.Module,
    held_out: Batches,
    seed: int,
    device: torch.device,
    num_samples: int = VALIDATION_SAMPLES,
    processes: Processes = ALONE,
) -> dict[str, float]:
    """Negative log-likelihood of the mean prediction (E-14), and accuracy, from the same draws in every epoch.

    Several processes judge batches in turn, and all get the numbers that one process would get.
    """
    likelihood = without_weights(likelihood_of(model))
    sums = {"nll": 0.0, "right": 0.0, "examples": 0.0}
    model.eval()
    for batch in islice(held_out.epoch(0), processes.rank, None, processes.count):
        batch = batch.to(device)
        with Using(estimator="weight"):
            outputs = run(model, batch.inputs, num_samples, seed=seed).outputs
        nll = likelihood.nll(outputs, batch.targets, observation_scale(model))
        sums["nll"] -= (torch.logsumexp(-nll.double(), dim=0) - math.log(len(nll))).sum().item()
        sums["examples"] += len(batch.targets)
        if not isinstance(likelihood, Gaussian):
            labels = functional.uncertainty.predictive_log_probs(likelihood.log_probs(outputs)).argmax(dim=-1)
            sums["right"] += (labels == match_shape(batch.targets, labels.shape)).float().mean().item() * len(
                batch.targets
            )
    model.train()
    parts = processes.gather(sums)
    sums = {name: sum(part[name] for part in parts) for name in sums}
    if sums["examples"] == 0.0:
        raise ValueError("validation must hold at least one example, got none")
    metrics = {"val_nll": sums["nll"] / sums["examples"]}
    if not isinstance(likelihood, Gaussian):
        metrics["val_accuracy"] = sums["right"] / sums["examples"]
    return metrics


def schedule_factor(schedule: Schedule, done: float) -> float:
    """What the learning rate is multiplied with when ``done`` of the training, from 0 to 1, is over."""
    if callable(schedule):
        return float(schedule(done))
    if schedule not in ("constant", "cosine", "linear"):
        raise ValueError(f"schedule must be 'constant', 'cosine', 'linear' or a function, got {schedule!r}")
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    if schedule == "linear":
        return 1.0 - done
    return 1.0
