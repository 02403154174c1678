"""The run itself: steps, epochs, validation, checkpoints and the files of a run.

Invariants (``tests/training``): with a folder, a run that was killed at any point and resumed ends bit for bit as one
that was not, in eager steps on a CPU; compiled ones may round otherwise where the first batch after it is a short one.
A checkpoint is complete or does not exist; a damaged one is named, and the one before it is used. ``metrics.jsonl``
holds every epoch once, since a lock keeps other processes out of the folder. A run is not resumed with other data or
another configuration. Of several processes only the first writes; all decide from the same numbers, and none goes on
without the others.
"""

import math
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from dubio import codec, functional
from dubio._engine import Precision, Using, check_precision, run
from dubio.checks import check_choice
from dubio.data import Batch, Batches, DataFingerprint
from dubio.io import locked, save, without_ties
from dubio.likelihoods import Gaussian, likelihood_of, match_shape, observation_scale, without_weights
from dubio.nn import num_trained
from dubio.objectives import Objective
from dubio.training import checkpoints
from dubio.training.batch_loss import Place, StepResult, metric_names, metric_sums
from dubio.training.callbacks import Callback, Display, FitResult, Interrupted
from dubio.training.checkpoints import CheckpointError, TrainState, write_checkpoint
from dubio.training.diagnosis import BrokenLossError, warn_of_collapse, what_is_not_finite
from dubio.training.optimizers import MakeOptimizer, set_learning_rates
from dubio.training.processes import ALONE, LostProcessError, Processes
from dubio.training.steps import Fast, Step
from dubio.version import versions

Schedule = Literal["constant", "cosine", "linear"] | Callable[[float], float]
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
STOP_CHECK_EVERY = 20
"""Steps on a GPU between two checks whether a process was interrupted: each check waits for the queue."""
FREE = ("epochs", "num_parameters", "data", "versions")
"""Parts of a configuration that may change when a run is resumed, or are compared separately."""
MODEL = "model.safetensors"
UNRECORDED = ("objective", "optimizer", "schedule", "callbacks", "folder", "resume", "device", "fast")
"""Options that ``config.json`` describes in another form, or that a resumed run may change."""
VALIDATION_SAMPLES = 10
VERSIONS = ("dubio", "torch")
"""Packages whose version may change numbers."""


@dataclass(frozen=True)
class FitConfig:
    """The options of a run, with all defaults resolved; ``fit`` describes them."""

    objective: Objective
    epochs: int
    batch_size: int
    lr: float
    noise_lr: float
    optimizer: MakeOptimizer
    schedule: Schedule
    num_samples: int
    weight_decay: float
    clip_norm: float | None
    accumulate: int
    patience: int | None
    monitor: str
    callbacks: tuple[Callback, ...]
    folder: Path | None
    resume: bool
    seed: int
    device: torch.device
    precision: Precision
    fast: Fast

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "num_samples", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "noise_lr"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0.0):
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if self.weight_decay < 0.0:
            raise ValueError(f"weight_decay must be at least 0, got {self.weight_decay}")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise ValueError(f"clip_norm must be positive, got {self.clip_norm}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least 1 epoch, got {self.patience}")
        check_choice("monitor", self.monitor, ("val_nll", "val_accuracy", "loss", "nll"))
        check_precision(self.precision)


@dataclass
class Trainer:
    """A run of training: everything that it needs, and its state."""

    model: nn.Module
    batches: Batches
    held_out: Batches | None
    config: FitConfig
    step: Step
    processes: Processes
    fingerprints: Callable[[], dict[str, DataFingerprint | None]] = dict
    """Computes the fingerprints of the training and validation data, which a run with a folder stores."""
    keep_step: bool = False
    """Whether compiled code and the recording are kept for another run."""
    _state: TrainState = field(default_factory=TrainState)
    _best: dict[str, Tensor] | None = None
    """Weights of the best epoch, where there is validation."""
    _history: list[dict[str, float]] = field(default_factory=list)
    _num_classes: int | None = None
    _sums: Tensor | None = None
    """Sums over the examples since they were last gathered, on the device."""
    _metrics: tuple[str, ...] = ()
    """The names of the sums after the number of examples."""
    _previous: Path | None = None
    """The checkpoint that was written last, or that the run was resumed from."""

    @property
    def folder(self) -> Path:
        """The folder of the run; only used where there is one."""
        assert self.config.folder is not None
        return self.config.folder

    def run(self, interrupted: threading.Event, display: Display) -> FitResult:
        """Train all epochs, from the start or from the checkpoint."""
        with self._opened():
            state = self._state
            began = time.perf_counter() - state.seconds
            while not self._is_over():
                for batch, last in self._remaining_batches():
                    batch = batch.to(self.config.device)
                    place = self._begin_batch(batch)
                    complete = (state.batch + 1) % self.config.accumulate == 0 or last
                    self._finish_batch(batch, self.step.learn(batch, place, complete), complete, last, display)
                    if complete and self._is_interrupted(interrupted):  # between two steps
                        state.seconds = time.perf_counter() - began
                        self._stop()
                state.seconds = time.perf_counter() - began
                self._finish_epoch(display)
            return self._end()

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """The run between its preparation and its end, with errors that say where it ended."""
        self.processes.broadcast(self.model)
        if self.processes.count > 1:
            self._check_agreement()
        with ExitStack() as lock:
            if self.config.folder is not None:
                self.processes.by_writer(lambda: lock.enter_context(locked(self.folder)))
            self._start()
            state = self._state
            first_step = state.step
            self.step.settle(state.compiled)
            self.model.train()
            try:
                yield
            except LostProcessError as error:
                place = f"step {state.step + 1} of epoch {state.epoch + 1}"
                raise LostProcessError(f"training ended at {place}: {error}{self._kept()}") from error
            except BrokenLossError as error:
                step = state.step + 1
                if self.config.device.type == "cuda" and self.config.accumulate == 1:  # noticed some steps later
                    step = first_step + error.num_steps + 1
                place = f"step {step} of epoch {state.epoch + 1}"
                raise FloatingPointError(
                    f"loss is {error.value} at {place}, from {error.culprit}{self._kept()}"
                ) from error
            finally:
                if not self.keep_step:
                    self.step.close()

    def _start(self) -> None:
        if self.config.folder is None:
            if self.config.resume:
                raise ValueError("resume needs the folder of the run to go on with")
            return
        config = self.processes.by_writer(self._open)
        if self.config.resume:
            self._load_checkpoint()
        self._history = self.processes.by_writer(lambda: self._prepare_files(config))

    def _open(self) -> dict[str, Any]:
        """Check the folder and its configuration; return the configuration to be written there."""
        codec.remove_unfinished(self.folder)
        config = self._config()
        file = self.folder / "config.json"
        if file.exists() and not self.config.resume:
            raise FileExistsError(
                f"folder {self.folder} holds a run already; pass resume=True to go on, or another folder"
            )
        saved = codec.current_names(codec.read_object(file)) if file.exists() else None
        if saved is not None:
            _check_same(saved, config)
        elif self.config.resume and checkpoints.checkpoints_in(self.folder / "checkpoint"):
            warnings.warn(f"{file} is missing, so nothing tells whether this is the run that began here", stacklevel=2)
        data = self.fingerprints()
        if saved is not None:
            data = _checked_data(file, saved.get("data"), data)
            _warn_of_versions(saved.get("versions"))
        described = {part: None if each is None else asdict(each) for part, each in data.items()}
        return {**config, "data": described, "versions": {name: versions()[name] for name in VERSIONS}}

    def _load_checkpoint(self) -> None:
        """Restore the newest complete checkpoint; a run without any starts from the beginning."""
        folder = self.folder / "checkpoint"
        paths = self.processes.by_writer(lambda: checkpoints.checkpoints_in(folder))
        damage = []
        for place, path in enumerate(paths):
            try:
                self._state, self._best = self.processes.together(lambda path=path: self._read(path))  # type: ignore[misc]
            except CheckpointError as error:
                damage.append(str(error))
                continue
            if damage and self.processes.is_writer:
                warnings.warn(f"{'; '.join(damage)}; the run goes on from {path}, the one before", stacklevel=2)
            if self.processes.is_writer:  # older ones remain where a process was killed before it removed them
                checkpoints.remove_checkpoints(paths[place + 2 :])
            self._previous = path
            return
        if damage:
            raise CheckpointError(
                f"cannot resume, no checkpoint is whole: {'; '.join(damage)}; put {folder} back from a copy, or begin "
                "another run"
            )

    def _read(self, path: Path) -> tuple[TrainState, dict[str, Tensor] | None]:
        tensors, plain = checkpoints.read_checkpoint(path)
        try:
            state, best = checkpoints.unpack(self.model, self.step.optimizer, tensors, plain, self.processes)
            if self.batches.num_batches is not None and state.batch > self.batches.num_batches:
                raise ValueError(f"batch must be at most {self.batches.num_batches}, got {state.batch}")
        except torch.OutOfMemoryError:
            raise
        except KeyError as error:
            raise CheckpointError(f"{path} does not fit the run: it lacks {error}") from error
        except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path} does not fit the run: {error}") from error
        return state, best

    def _prepare_files(self, config: dict[str, Any]) -> list[dict[str, float]]:
        """Write the configuration, and cut the metrics to the completed epochs; return these metrics.

        Metrics that were written after the checkpoint will be written again.
        """
        metrics, epoch = self.folder / "metrics.jsonl", self._state.epoch
        history = codec.read_json_lines(metrics, epoch, nan_is_null=True) if epoch and metrics.is_file() else []
        if len(history) < epoch:
            raise ValueError(f"cannot resume: {metrics} must hold {epoch} epochs, got {len(history)}")
        if epoch and self._is_over():
            if (self.folder / MODEL).exists():  # otherwise the run was killed just before it was written
                self._warn_of_nothing_left()
        else:
            codec.write_atomically(self.folder / "config.json", f"{codec.dump_json(config, indent=1)}\n".encode())
        self._write_metrics(history)
        return history

    def _is_over(self) -> bool:
        state, patience = self._state, self.config.patience
        is_out_of_patience = patience is not None and state.epoch - state.best_epoch >= patience
        return state.epoch >= self.config.epochs or is_out_of_patience

    def _warn_of_nothing_left(self) -> None:
        done, epochs = self._state.epoch, self.config.epochs
        reason = f"training stopped at epoch {done}, after {self.config.patience} epochs without improvement"
        more = ""
        if done >= epochs:
            reason = f"{done} of {epochs} epochs are done already"
            more = f"; add epochs, such as epochs={done + 10} (--epochs {done + 10})"
        warnings.warn(f"{reason}; nothing to train{more}", stacklevel=2)

    def _remaining_batches(self) -> Iterator[tuple[Batch, bool]]:
        """The remaining batches of the epoch, and whether each is the last.

        Where their number is given, no batch is fetched ahead: fetching may draw random numbers, and a run that is
        resumed must draw them in the same order.
        """
        batches, num_batches = self.batches.epoch(self._state.epoch, self._state.batch), self.batches.num_batches
        if num_batches is not None:
            for number, batch in enumerate(batches, start=self._state.batch + 1):
                yield batch, number == num_batches
            return
        waiting = next(batches, None)
        while waiting is not None:
            following = next(batches, None)
            yield waiting, following is None
            waiting = following

    def _begin_batch(self, batch: Batch) -> Place:
        """Set the learning rates of a step that begins; return the place of the batch in the run."""
        state = self._state
        # Only completed epochs count where the number of batches is not given.
        epochs_done = state.epoch + (state.batch / self.batches.num_batches if self.batches.num_batches else 0.0)
        if self.step.num_rows == 0:
            factor = schedule_factor(self.config.schedule, epochs_done / self.config.epochs)
            set_learning_rates(self.step.optimizer, factor)
        return Place(state.batch, self.batches.num_batches, epochs_done, batch.num_parts)

    def _finish_batch(self, batch: Batch, result: StepResult, complete: bool, last: bool, display: Display) -> None:
        """Count a batch that was learned from, and report it."""
        state, (loss, sums) = self._state, result
        state.batch += 1
        state.step += complete
        if len(batch.targets):
            sums = metric_sums(loss, batch.targets) if sums is None else sums
            self._sums = sums.clone() if self._sums is None else self._sums.add_(sums)
            self._metrics = metric_names(loss)
        if last or self.step.is_check_due():
            self.step.check()
            display.batch(state.epoch, state.batch, loss.total.item())
        if loss.log_probs is not None:
            self._num_classes = loss.log_probs.shape[-1]
        if message := self.step.message():
            display.note(message)
        if complete:
            for callback in self.config.callbacks:
                callback.on_step(state.step, loss)

    def _check_agreement(self) -> None:
        groups = self.step.optimizer.param_groups
        others = {
            "num_batches": self.batches.num_batches,
            "folder": None if self.config.folder is None else "given",
            "resume": self.config.resume,
            "validation": None if self.held_out is None else "given",
            "schedule": [schedule_factor(self.config.schedule, share / 8) for share in range(8)],
            "optimizer": [{name: str(value) for name, value in group.items() if name != "params"} for group in groups],
        }
        self.processes.check_alike({**self._config(), **others})

    def _is_interrupted(self, interrupted: threading.Event) -> bool:
        """Whether this process or another one was interrupted; all stop at the same step."""
        several_gpus = self.processes.count > 1 and self.config.device.type == "cuda"
        return not (several_gpus and self._state.step % STOP_CHECK_EVERY) and self.processes.any(interrupted.is_set())

    def _gather_sums(self) -> None:
        """Add the sums of the devices of all processes to those of the state."""
        local: dict[str, float] = {}
        if self._sums is not None:
            local = dict(zip(("examples", *self._metrics), self._sums.tolist(), strict=True))
        for sums in self.processes.gather(local):
            for name, value in sums.items():
                self._state.sums[name] = self._state.sums.get(name, 0.0) + value
        self._sums = None

    def _finish_epoch(self, display: Display) -> None:
        self._gather_sums()
        state = self._state
        sums, state.sums = state.sums, {}
        if not sums:
            raise ValueError("train must hold at least one batch, got none")
        examples = sums.pop("examples")
        state.epoch += 1
        state.batch = 0
        metrics = {"epoch": state.epoch, "step": state.step, **{name: value / examples for name, value in sums.items()}}
        self.processes.average_buffers(self.model)
        if self.held_out is not None:
            config = self.config
            metrics |= validate(self.model, self.held_out, config.seed, config.device, processes=self.processes)
        self.processes.together(lambda: self._check_finite(metrics))
        metrics["seconds"] = round(state.seconds, 3)
        if self._improved(metrics) and self.held_out is not None:
            self._best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self._history.append(metrics)
        if self.config.folder is not None:
            self.processes.by_writer(self._append_metrics)
            self._save()
        display.epoch(metrics)
        for callback in self.config.callbacks:
            callback.on_epoch(metrics)

    def _check_finite(self, metrics: dict[str, float]) -> None:
        if broken := what_is_not_finite(self.model, metrics):
            raise FloatingPointError(f"{broken} after epoch {self._state.epoch}{self._kept()}")

    def _improved(self, metrics: dict[str, float]) -> bool:
        state, value = self._state, metrics[self.config.monitor]
        better = -value if self.config.monitor.endswith("accuracy") else value
        if state.best is not None and better >= state.best:
            return False
        state.best, state.best_epoch = better, state.epoch
        return True

    def _append_metrics(self) -> None:
        """Write the metrics of the last epoch."""
        self._restore_metrics(self._history[:-1])
        self._write_metrics(self._history[-1:], append=True)

    def _restore_metrics(self, history: list[dict[str, float]]) -> None:
        """Write the metrics of all epochs again where their file was removed: a run cannot be resumed without it."""
        metrics = self.folder / "metrics.jsonl"
        if not metrics.is_file():
            self._write_metrics(history)
            warnings.warn(f"{metrics} was removed during training; it is written again", stacklevel=2)

    def _write_metrics(self, history: list[dict[str, float]], append: bool = False) -> None:
        metrics, text = self.folder / "metrics.jsonl", "".join(f"{codec.dump_json(line)}\n" for line in history)
        try:
            if append:
                with metrics.open("a") as lines:
                    lines.write(text)
                    lines.flush()
                    os.fsync(lines.fileno())  # a checkpoint without its metrics could not be resumed
            else:
                codec.write_atomically(metrics, text.encode())
        except OSError as error:
            raise OSError(f"cannot write to {metrics}: {error}{self._kept()}") from error

    def _save(self) -> None:
        self._gather_sums()
        self._state.compiled = self.step.settled
        own_states = self.processes.gather(checkpoints.own_state(self.model, self.processes))
        checkpoint = self.folder / "checkpoint"

        def write() -> None:
            parts = checkpoints.pack(self.model, self.step.optimizer, self._state, self._best, own_states)
            write_checkpoint(checkpoint, self._state.step, *parts, self._previous)

        self.processes.by_writer(write)
        if self.processes.is_writer:
            self._previous = checkpoints.latest_checkpoint(checkpoint)

    def _stop(self) -> None:
        place = f"training was interrupted at step {self._state.step}"
        if self.config.folder is None:
            raise Interrupted(f"{place}; without a folder nothing was saved")
        self.processes.by_writer(lambda: self._restore_metrics(self._history))
        self._save()
        raise Interrupted(f"{place}; go on with resume=True, folder={self.folder}")

    def _end(self) -> FitResult:
        state = self._state
        if self.processes.is_writer:
            warn_of_collapse(self.model, self._history[-1], self._num_classes)  # before the best weights are loaded
        if self._best is not None:
            self.model.load_state_dict(self._best)
        self.model.eval()
        best_epoch = state.epoch if self._best is None else state.best_epoch
        ended = tuple(self._history), best_epoch, state.epoch < self.config.epochs, state.seconds, self.config.folder
        result = FitResult(*ended, self.step.mode, self.step.reason, self.step.capture_seconds)
        if self.config.folder is not None:
            self.processes.by_writer(lambda: self._write_model(self.folder / MODEL))
        for callback in self.config.callbacks:
            callback.on_end(result)
        return result

    def _write_model(self, path: Path) -> None:
        if hasattr(self.model, "dubio_spec"):
            save(self.model, path)
        else:  # a plain network has only weights
            codec.write_atomically(path, to_bytes(without_ties(self.model.state_dict())[0]))

    def _kept(self) -> str:
        """The end of a message that names the last checkpoint."""
        folder = self.config.folder
        checkpoint = None if folder is None else checkpoints.latest_checkpoint(folder / "checkpoint")
        return "" if checkpoint is None else f"; the last good checkpoint is kept in {checkpoint}"

    def _config(self) -> dict[str, Any]:
        spec, schedule = getattr(self.model, "dubio_spec", None), self.config.schedule
        return {
            "method": _description(getattr(spec, "method", None)),
            "likelihood": _description(getattr(spec, "likelihood", None)),
            "objective": _description(self.config.objective),
            "optimizer": type(self.step.optimizer).__name__,
            "schedule": schedule if isinstance(schedule, str) else getattr(schedule, "__name__", "function"),
            "num_data": self.batches.num_data,
            "parameters": {name: list(tensor.shape) for name, tensor in self.model.state_dict().items()},
            "num_parameters": num_trained(self.model),
            "num_processes": self.processes.count,
            **{name: value for name, value in vars(self.config).items() if name not in UNRECORDED},
        }


def _description(value: object) -> str:
    """The ``repr`` of a value without addresses, which objects of a user's class may have."""
    return ADDRESS.sub("", repr(value))


def _check_same(saved: dict[str, Any], now: dict[str, Any]) -> None:
    saved = {"num_processes": 1, **saved}  # older configurations lack it
    changes = []
    for name in sorted(_differing(saved, now) - set(FREE)):
        before, after = saved.get(name), now.get(name)
        if name == "parameters" and isinstance(before, dict) and isinstance(after, dict):
            first = min(_differing(before, after))
            was, present = before.get(first, "not there"), after.get(first, "not there")
            changes.append(f"parameter {first} was {was}, is {present}")
        else:
            changes.append(f"{name} was {before!r}, is {after!r}")
    if changes:
        raise ValueError(f"cannot resume with another configuration: {'; '.join(changes)}")


def _differing(saved: dict[str, Any], now: dict[str, Any]) -> set[str]:
    return {name for name in {**saved, **now} if saved.get(name) != now.get(name)}


def _checked_data(file: Path, saved: Any, now: dict[str, DataFingerprint | None]) -> dict[str, DataFingerprint | None]:
    """The fingerprints to store from now on; refuses data that are not those of the run."""
    if not isinstance(saved, dict):
        warnings.warn(
            f"{file} has no fingerprints of the data, as in older versions, so a change of the data is not noticed",
            stacklevel=2,
        )
        return now
    changes, without_hash, kept = [], [], dict(now)
    for part, present in now.items():
        try:
            before = None if saved.get(part) is None else codec.read_value(DataFingerprint, saved[part])
        except ValueError as error:
            raise ValueError(f"{file} cannot be read: the fingerprint of the {part} data is damaged: {error}") from None
        name = f"the {'training' if part == 'train' else part} data"
        if before is None and present is None:
            continue
        if before is None or present is None:
            changes.append(f"{name} {'were not given before' if before is None else 'are missing now'}")
        else:
            changes += [change] if (change := present.change_from(before, name)) else []
            if before.ordered is None or present.ordered is None:
                without_hash.append(f"{name} ({present.kind})")
            if present.ordered is None:
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
    """Warn that a run goes on with another dubio or torch; older runs do not store their versions."""
    if not isinstance(saved, dict):
        return
    now = versions()
    if other := [name for name in VERSIONS if saved.get(name) != now[name]]:
        before, after = (" and ".join(f"{name} {each.get(name)}" for name in other) for each in (saved, now))
        warnings.warn(
            f"the run was trained with {before} and goes on with {after}; its numbers may differ from those of a run "
            "that was not interrupted",
            stacklevel=2,
        )


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

    Several processes evaluate batches in turn, and all get the numbers that one process would get.
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
            right = (labels == match_shape(batch.targets, labels.shape)).float().mean().item()
            sums["right"] += right * len(batch.targets)
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
    """The factor of the learning rate when the share ``done`` of the training, from 0 to 1, is completed."""
    if callable(schedule):
        return float(schedule(done))
    factors = {"constant": 1.0, "cosine": 0.5 * (1.0 + math.cos(math.pi * done)), "linear": 1.0 - done}
    if schedule not in tuple(factors):
        raise ValueError(f"schedule must be 'constant', 'cosine', 'linear' or a function, got {schedule!r}")
    return factors[schedule]
