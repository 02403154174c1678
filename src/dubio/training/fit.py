"""``fit``: train a stochastic network, with progress, checkpoints and resuming.

It resolves the defaults of the method into a ``FitConfig``, checks arguments and data, and starts a ``Trainer``.
"""

import inspect
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dubio import functional
from dubio._engine import STATE, Precision, Stream, check_module, is_plain, warn_of_plain
from dubio.convert import drop_decisions, warn_of_probabilities
from dubio.data import DataFingerprint, Examples, Loader, batches_from, scaled, shared_batches
from dubio.likelihoods import Gaussian, likelihood_of, observation_scale
from dubio.methods import Ensemble, Method, Recipe
from dubio.objectives import ELBO, Adversarial, Objective
from dubio.training.callbacks import Callback, FitResult, display_for
from dubio.training.optimizers import MakeOptimizer, build_optimizer, parameter_groups
from dubio.training.processes import Processes, chosen_device
from dubio.training.steps import Fast, Step, StepCache
from dubio.training.trainer import FitConfig, Schedule, Trainer, schedule_factor

ROWS_ON_A_GPU = 4096
"""Rows of a validation batch on a GPU, which small batches leave idle."""
FAR_OFF = 1000.0
"""Standard deviations between targets and initial outputs beyond which a warning is given."""


def fit(
    model: nn.Module,
    train: Any,
    validation: Any = None,
    *,
    objective: Objective | None = None,
    epochs: int | None = None,
    batch_size: int = 128,
    lr: float | None = None,
    noise_lr: float | None = None,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule = "constant",
    num_samples: int | None = None,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    accumulate: int = 1,
    patience: int | None = None,
    monitor: str = "val_nll",
    num_data: int | None = None,
    sample_weight: Tensor | None = None,
    callbacks: Sequence[Callback] = (),
    folder: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: torch.device | str | None = None,
    precision: Precision = "fp32",
    fast: Fast = "auto",
    steps: StepCache | None = None,
    progress: bool = True,
) -> FitResult:
    """Train a network in place; under ``torchrun``, by several processes together.

    Args:
        model: a converted network.
        train: ``dubio.data.Examples`` (or its ``Loader``, to augment), ``(inputs, targets)``, a ``Dataset``, a
            ``DataLoader``, or an iterable of batches.
        validation: the same, or None; with it the best epoch's weights are kept.
        objective: the objective to minimize; by default that of the method. Its ``num_data`` is filled in.
        epochs: number of passes over the data; None, here and below, means the default of the method.
        batch_size: examples in a batch, where the data do not come in batches; several processes share each batch.
        lr: learning rate.
        noise_lr: learning rate of the noise's own parameters; by default a multiple of ``lr`` that the method sets.
        optimizer: builds an optimizer from parameter groups, each with its learning rate; Adam by default.
        schedule: ``"constant"``, ``"cosine"``, ``"linear"``, or a function of the completed share of training.
        num_samples: number of draws in each step.
        weight_decay: weight decay of all parameters except those of the noise.
        clip_norm: largest norm of the gradient.
        accumulate: number of batches in one step.
        patience: epochs without improvement after which training stops.
        monitor: the metric that must improve: ``"val_nll"``, ``"val_accuracy"``, ``"loss"`` or ``"nll"``.
        num_data: number of training examples; needed where the data do not have a length.
        sample_weight: one weight per training example, or one for each example and draw.
        callbacks: objects with ``on_step``, ``on_epoch`` and ``on_end``, such as ``dubio.TensorBoard(folder)``; called
            in the first process only.
        folder: folder of the run, with its configuration, fingerprints of the data, metrics, checkpoints and best
            weights. It is locked until ``fit`` returns.
        resume: continue from the newest complete checkpoint in the folder. Other data or another configuration are
            refused; ``epochs`` may change.
        seed: seed of the order of the data and of the noise.
        device: device to train on; by default that of the network.
        precision: ``"fp32"``; ``"tf32"`` rounds factors of products on a GPU; ``"bf16"`` runs under autocast.
        fast: ``"auto"`` compiles the step and records it as a CUDA graph on a GPU, and compiles it on a CPU in long
            runs where a trial shows that to be faster; ``True`` requires it, ``False`` runs eagerly.
        steps: a cache of the compiled and recorded step for the next run of the same network; see ``dubio.StepCache``.
        progress: whether to show progress.
    """
    check_module(model)
    if not any(True for _ in model.parameters()):
        raise ValueError(f"model must have parameters to train, got a {type(model).__name__} without any")
    if is_plain(model):
        warn_of_probabilities(model, likelihood_of(model))
        if not any(isinstance(part, _DropoutNd) for part in model.modules()):
            warn_of_plain(model, "it is trained as an ordinary network")
    if optimizer is not None and not callable(optimizer):
        raise TypeError(
            f"optimizer must make an optimizer from parameter groups, such as torch.optim.SGD, got {optimizer!r}"
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise TypeError(f"callbacks must have on_step, on_epoch and on_end, got {callback!r}")
    if monitor == "val_accuracy" and isinstance(likelihood_of(model), Gaussian):
        raise ValueError("monitor must not be 'val_accuracy' for numbers, which are never exactly right; use 'val_nll'")
    if steps is not None and resume:
        raise ValueError("steps must be None for a run that is resumed: its optimizer is read from the checkpoint")
    schedule_factor(schedule, 0.0)
    method = getattr(getattr(model, "dubio_spec", None), "method", None)
    recipe = method.recipe if isinstance(method, Method) else Recipe()
    lr = recipe.lr if lr is None else lr
    if objective is None:
        objective = method.objective() if isinstance(method, Method) else ELBO()
    processes = Processes.here(torch.device(device) if device is not None else chosen_device(model))
    config = FitConfig(
        objective=objective,
        epochs=recipe.epochs if epochs is None else epochs,
        batch_size=batch_size,
        lr=lr,
        noise_lr=lr * recipe.noise_ratio if noise_lr is None else noise_lr,
        optimizer=optimizer or torch.optim.Adam,
        schedule=schedule,
        num_samples=recipe.num_samples if num_samples is None else num_samples,
        weight_decay=weight_decay,
        clip_norm=clip_norm,
        accumulate=accumulate,
        patience=patience,
        monitor=monitor if validation is not None or not monitor.startswith("val_") else "loss",
        callbacks=tuple(callbacks) if processes.is_writer else (),
        folder=Path(folder) if folder else None,
        resume=resume,
        seed=seed,
        device=processes.device,
        precision=precision,
        fast=fast,
    )
    model.to(config.device)
    if isinstance(method, Ensemble):
        sample_weight = _member_weights(method, train, config, sample_weight)
    _start_observation_noise(model, train)
    batches = shared_batches(
        train,
        batch_size,
        name="train",
        rank=processes.rank,
        num_ranks=processes.count,
        seed=seed,
        sample_weight=sample_weight,
        device=config.device,
    )
    held_out = None
    if validation is not None:
        rows = max(batch_size, ROWS_ON_A_GPU) if config.device.type == "cuda" else batch_size
        held_out = batches_from(validation, rows, name="validation", device=config.device)
    count = next((n for n in (num_data, objective.num_data, batches.num_data) if n is not None), None)
    if count is None:
        raise ValueError("num_data must be given for training data without a length")
    config = replace(config, objective=objective.with_num_data(count))
    if processes.count > 1 and processes.is_writer:
        _warn_of_parts(config.objective)
    if isinstance(config.objective, Adversarial):
        _check_bounds(train, config.objective.attack.bounds)
    num_steps = None if batches.num_batches is None else config.epochs * batches.num_batches // accumulate

    def make_step() -> Step:
        groups = parameter_groups(model, config.lr, config.noise_lr, weight_decay)
        return Step(
            model,
            config.objective,
            build_optimizer(config.optimizer, groups),
            num_samples=config.num_samples,
            clip_norm=clip_norm,
            precision=precision,
            fast=fast,
            num_steps=num_steps,
            processes=processes,
        )

    def fingerprints() -> dict[str, DataFingerprint | None]:
        held_out_data = None if validation is None else DataFingerprint.of(validation)
        return {"train": DataFingerprint.of(train, sample_weight), "validation": held_out_data}

    trial_steps = num_steps if config.device.type == "cpu" and fast == "auto" else None  # decides about the trial
    rates = (config.lr, config.noise_lr, weight_decay, config.optimizer)
    options = (config.num_samples, clip_norm, precision, fast, processes, accumulate > 1, STATE.own.settings.memory)
    key = (config.objective, *rates, *options, trial_steps)
    step = make_step() if steps is None else steps.step_for(model, key, make_step)
    trainer = Trainer(model, batches, held_out, config, step, processes, fingerprints, keep_step=steps is not None)
    drop_decisions(model, "training")
    numbers = Stream(processes.own_seed(seed))
    shown = display_for(progress and processes.is_writer, config.epochs, batches.num_batches)
    with processes.joined(), numbers.in_use(), _signals() as interrupted, shown as display:
        return trainer.run(interrupted, display)


def _member_weights(method: Ensemble, train: Any, config: FitConfig, sample_weight: Tensor | None) -> Tensor | None:
    """The weights of examples and draws, with the bootstrap counts of an ensemble's members."""
    if config.num_samples % method.members:
        raise ValueError(
            f"num_samples must be a multiple of the {method.members} members, of which each is trained, "
            f"got {config.num_samples}"
        )
    if not method.bootstrap:
        return sample_weight
    is_pair = isinstance(train, tuple | list) and len(train) == 2 and isinstance(train[1], Tensor)
    if not (is_pair or isinstance(train, Examples)):
        raise ValueError(
            "bootstrap needs train as dubio.data.Examples or (inputs, targets): each example has its weights"
        )
    counts = method.example_weights(len(train[1]) if is_pair else len(train), config.seed)
    assert counts is not None
    counts = counts.repeat(1, config.num_samples // method.members)
    return counts if sample_weight is None else counts * sample_weight.cpu().unsqueeze(1)


@torch.no_grad()
def _start_observation_noise(model: nn.Module, train: Any) -> None:
    """Initialize a learned observation noise with the spread of the training targets, unless it was trained before.

    A step changes it by about the learning rate, so a noise that starts far off would stay there, as would intervals.
    """
    likelihood, targets = likelihood_of(model), _in_memory(train)[1]
    if not isinstance(likelihood, Gaussian) or not isinstance(targets, Tensor):
        return
    if targets.is_complex() or len(targets) < 2:
        return
    targets = targets.double()
    values = likelihood.standardise(targets)
    if float(values.square().mean().sqrt()) > FAR_OFF:
        warnings.warn(
            f"the targets (mean {targets.mean():.3g}, standard deviation {targets.std():.3g}) are far from what this "
            "network starts at, so training may take very long; convert it with "
            "likelihood=dubio.Gaussian.for_targets(train_targets, ...), which standardises them",
            stacklevel=3,
        )
    spread = values.var(dim=0).mean().sqrt()
    rho = observation_scale(model)
    if rho is None or not bool(spread > 0.0):
        return
    initial = functional.variational.inverse_softplus(torch.tensor(likelihood.INITIAL_STD, device="cpu"))
    if torch.equal(rho, initial.to(rho)):
        rho.fill_(functional.variational.inverse_softplus(spread))


def _in_memory(train: Any) -> tuple[Any, Any]:
    """All inputs and targets of the training data, where they are in memory."""
    data = train.examples if isinstance(train, Loader) else train
    if isinstance(data, Examples):
        return data.inputs, data.targets
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        return None, None
    inputs, targets = (
        torch.from_numpy(part) if isinstance(part, np.ndarray) and part.dtype.kind in "fiu" else part
        for part in data[:2]
    )
    return inputs, targets


def _warn_of_parts(objective: Objective) -> None:
    if "num_parts" not in inspect.signature(objective).parameters:
        warnings.warn(
            f"objective {type(objective).__name__} takes no num_parts, and sees of each batch the rows of one process: "
            "what it divides by their number, such as a divergence by batches, counts once in every process",
            stacklevel=3,
        )


def _check_bounds(train: Any, bounds: tuple[float, float]) -> None:
    """Refuse inputs in memory that lie outside of the bounds of the attack; a recorded step cannot check them."""
    inputs = _in_memory(train)[0]
    if not isinstance(inputs, Tensor):
        return
    low, high = scaled(torch.stack(inputs.aminmax())).tolist()
    if not bounds[0] <= low <= high <= bounds[1]:
        raise ValueError(
            f"train must lie in the bounds of the attack, [{bounds[0]:g}, {bounds[1]:g}], got values from {low:g} to "
            f"{high:g}; normalisation belongs to the model, or give the attack bounds=(low, high)"
        )


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that no exception ends a step; a second Ctrl-C raises.

    A second SIGTERM does not raise: torchrun forwards its own one to processes that have received one already.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def note(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set() and number == signal.SIGINT:  # without waiting for the end of the step
            raise KeyboardInterrupt
        interrupted.set()

    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupted
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
