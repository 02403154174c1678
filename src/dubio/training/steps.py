"""One step of training: noise, forward, backward, clipping, update; eager, compiled, or recorded as a CUDA graph.

There is a class for each mode, and ``choose_step`` takes the fastest one that can be used:

- ``EagerStep`` runs every batch eagerly. A step that runs out of memory is repeated with fewer draws at a time.
- ``CompiledStep`` compiles the loss for batches of one shape; others, such as a short last one, run eagerly.
- ``CapturedStep`` records the whole compiled step on a GPU after a few batches and replays it from then on; the attack
  of adversarial training is part of it. What a recording does not follow runs compiled.

Each hands a batch that it cannot take to the slower one, and keeps in ``obstacle`` why it cannot be used any more. On a
CPU ``CompileTrial`` measures in long runs whether compiled steps are faster. ``Step`` is what users and ``fit`` call.

Invariants (``tests/training/test_stepping.py``, and ``test_captured.py`` on a GPU): all three modes give the same
numbers within the tolerance of floats; with ``fallback_random`` also where noise is drawn, from the same generator.

``StepCache`` keeps the step of the network that was trained last, with its optimizer, for the next run of it: other
weights, other labels, another seed. A recording reads and writes tensors where they are, so a step is reused while the
network is the same module, with the weights of the next run copied into it (``load_state_dict``), and while the options
of the run are the same; otherwise a new step is made. Invariants (``tests/training/test_keeping.py``): a run with a
cached step ends as one with a new step, bit for bit on a CPU; the optimizer keeps nothing of the run before.
"""

import inspect
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dubio._engine import (
    STATE,
    TORCH,
    Precision,
    TensorSnapshot,
    Watch,
    as_it_is,
    check_precision,
    computing_in,
    default_generator,
    notice,
    plan,
    rounding_products,
    shrink_chunks,
    signature,
    statistics_of,
    with_less_memory,
)
from dubio.data import Batch
from dubio.objectives import Adversarial, BatchContext, BatchObjective, Loss, Objective
from dubio.training import optimizers
from dubio.training.batch_loss import (
    Layout,
    Place,
    Recording,
    Shapes,
    StepResult,
    compiled,
    compute,
    first_line,
    in_tensors,
)
from dubio.training.diagnosis import CHECK_EVERY, BrokenLossError, LossMonitor, culprit_of
from dubio.training.processes import ALONE, LostProcessError, Processes

F = TypeVar("F", bound=Callable[..., Any])
Fast = bool | Literal["auto"]
LONG = 600.0
"""Expected seconds of a run on a CPU from which a trial of the compiler is worth it."""
NOT_OF_COMPILER = (BrokenLossError, LostProcessError, torch.OutOfMemoryError)
"""Errors of a compiled step that an eager one would raise, too, or that ``shrink`` handles."""
TRIALS = 5
"""Number of eager and of compiled steps that are timed."""


class StepMode(StrEnum):
    """How steps of training run."""

    CAPTURED = "captured"
    """Compiled, recorded as a CUDA graph, and replayed."""
    COMPILED = "compiled"
    EAGER = "eager"


@dataclass(eq=False)
class EagerStep:
    """A step that runs eagerly, and what all kinds of steps share; ``Step`` describes the fields."""

    model: nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    num_samples: int
    clip_norm: float | None
    precision: Precision
    processes: Processes
    num_rows: int = 0
    """Examples whose gradients wait for the update."""
    mode = StepMode.EAGER
    """How most batches run."""
    obstacle = ""
    """Why steps of this kind cannot be used, as a sentence; empty where they can."""

    def __post_init__(self) -> None:
        objective = self.objective
        self.device = next(self.model.parameters()).device
        self.layout = Layout(self.model, self.optimizer)
        self.monitor = LossMonitor(self.device, self.optimizer)
        self.loss_of: Callable[[BatchContext], Loss] = partial(BatchContext.loss_of, objective=objective)
        if isinstance(objective, BatchObjective):
            self.loss_of = objective.loss_of
        self._attack = objective.attack_inputs if isinstance(objective, Adversarial) else None
        self._takes_parts = "num_parts" in inspect.signature(objective).parameters
        self._statistics = TensorSnapshot(self.model, ())

    def learn(self, batch: Batch, place: Place, complete: bool) -> StepResult:
        """Add the gradients of a batch; where it completes a step, update the parameters."""
        if self.num_samples > 1:
            self.keep_statistics()
        self.drop_gradients()
        with self.rounding():
            if len(batch.targets):
                with self.computing():
                    loss = self.loss_of(self.context(batch, place))
            else:  # other processes have all rows of this batch
                zero = torch.zeros((), device=self.device)
                loss = Loss(zero, zero, {}, None)
            return StepResult(self.finish(batch, loss, complete), None)

    def shrink(self, error: Exception) -> bool:
        """Undo a step that ran out of memory, and halve the draws at a time; False where there is only one."""
        if self.num_samples == 1 or not self.undo():
            return False
        if not shrink_chunks(self.model):
            raise torch.OutOfMemoryError(
                "a step of training ran out of memory with one draw at a time; try a smaller batch_size, or more of "
                "accumulate"
            ) from error
        return True

    def keep_statistics(self) -> None:
        """Copy the buffers that a forward may change: not masks of removed weights, nor centres of priors."""
        moving = [
            (path, name)
            for path, name in statistics_of(self.model)
            if name not in getattr(self.model.get_submodule(path), "dubio_constant_buffers", ())
        ]
        self._statistics = TensorSnapshot(self.model, moving)

    def undo(self) -> bool:
        """Undo a failed attempt; False where gradients of other batches would get lost, or the update has begun."""
        if self.num_rows:
            return False
        self.drop_gradients()
        self._statistics.put_back(self.model)
        return True

    def drop_gradients(self) -> None:
        """Drop all gradients where a step begins; those of parameters that are not updated would accumulate."""
        if not self.num_rows:
            for parameter in (*self.model.parameters(), *self._updated()):
                parameter.grad = None

    def rounding(self) -> AbstractContextManager[None]:
        """A block in which products are rounded as the precision says."""
        return nullcontext() if self.precision == "fp32" else rounding_products(self.precision)

    def computing(self) -> AbstractContextManager[None]:
        """A block for a forward pass in the precision."""
        return nullcontext() if self.precision == "fp32" else computing_in(self.precision, self.device)

    def context(self, batch: Batch, place: Place, through: Callable[[Any], Any] = as_it_is) -> BatchContext:
        """The batch as an objective sees it, attacked where the objective attacks."""
        attacked = None
        if self._attack is not None:
            attacked = self._attack(self.model, batch.inputs, batch.targets, through)
        place = place if self._takes_parts else place._replace(num_parts=1)
        data = batch.inputs, batch.targets, self.num_samples, batch.weight
        return BatchContext(self.model, *data, *place, attacked=attacked)

    def finish(self, batch: Batch, loss: Loss, complete: bool, through: Callable[[Any], Any] = as_it_is) -> Loss:
        """The backward pass and, where the batch completes a step, the update; returns the loss without its graph.

        Where several batches or processes share a step, each counts by its rows, and the sum is divided once.
        """
        total, rows, on_gpu = loss.total, len(batch.targets), self.device.type == "cuda"
        is_shared = not complete or self.num_rows > 0 or self.processes.count > 1
        if not on_gpu and not math.isfinite(value := total.item()):
            raise BrokenLossError(value, culprit_of(self.model, batch.inputs, loss.nll), self.monitor.num_steps)
        if rows:
            (total * rows if is_shared else total).backward()
        self.monitor.watch(total, through)
        rows += self.num_rows
        if complete:
            if is_shared:
                self._average_gradients(rows)
            if not (on_gpu and torch.cuda.is_current_stream_capturing()):  # what a graph records is not done yet
                self.num_rows = max(rows, 1)  # a step whose update has begun cannot be repeated
            if self.clip_norm is not None:
                nn.utils.clip_grad_norm_(self._updated(), self.clip_norm)
            self.monitor.attach(self.optimizer)
            self.optimizer.step()
        self.num_rows = 0 if complete else rows
        terms = {name: term.detach() for name, term in loss.terms.items()}
        return Loss(total.detach(), loss.nll.detach(), terms, loss.log_probs)

    def _average_gradients(self, rows: int) -> None:
        """Divide the sum of gradients over the rows of all processes by their number."""
        trained = list(dict.fromkeys((*self.model.parameters(), *self._updated())))  # an objective may have parameters
        count = self.processes.sum_gradients(trained, rows)
        for parameter in trained:
            if parameter.grad is not None:
                parameter.grad /= count

    def _updated(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


class CompiledStep:
    """A step whose loss is compiled for batches of one shape.

    Args:
        eager: runs batches of other shapes, and all batches once compiled code has failed.
        is_required: whether an error is raised where a step cannot be compiled or recorded.
    """

    def __init__(self, eager: EagerStep, is_required: bool) -> None:
        self.eager, self.is_required = eager, is_required
        self.obstacle = ""
        self.shapes = Shapes()
        self.fits = False
        """Whether the present batch is one for compiled code."""
        self.is_proven = False
        """Whether compiled code has completed a batch, backward pass included."""
        self._code: dict[Callable[..., Any], Callable[..., Any]] = {}

    @property
    def mode(self) -> StepMode:
        """How most batches run."""
        return StepMode.EAGER if self.shapes.differ else StepMode.COMPILED

    def notice(self, batch: Batch) -> None:
        """Count a batch by its shape, and decide whether it is one for compiled code."""
        self.fits = False
        if self.obstacle or not len(batch.targets):
            return
        self._check_memory(batch)
        self.eager.layout.lay_out(batch.inputs)
        shape = signature((batch.inputs, batch.targets, batch.weight))
        if self.shapes.notice(shape):
            self.reset()
        # Code that may fail is first used where no gradients of other batches would get lost.
        self.fits = shape == self.shapes.chosen and (self.is_proven or not self.eager.num_rows)

    def learn(self, batch: Batch, place: Place, complete: bool) -> StepResult:
        """Learn from a batch by compiled code; eagerly where that is for another shape, or fails the first time."""
        if self.obstacle or not self.fits:
            return self.eager.learn(batch, place, complete)
        self.eager.keep_statistics()
        step = partial(self.run, batch.inputs, batch.targets, batch.weight, place, complete)
        if self.is_proven:
            return step()
        result, failure = self.try_out(step, batch, place)
        if result is None:
            self.give_up(f"the compiler gave up: {failure}")
            return self.eager.learn(batch, place, complete)
        return result

    def try_out(self, step: Callable[[], StepResult], batch: Batch, place: Place) -> tuple[StepResult | None, str]:
        """The result of a step, or why it fails; errors that the batch causes, or an eager step too, are raised."""
        try:
            return step(), ""
        except NOT_OF_COMPILER:
            raise
        except Exception as error:
            if self.is_required:
                self.eager.loss_of(self.eager.context(batch, place))
                raise
            if not self.eager.undo():
                raise
            return None, first_line(error)

    def run(self, inputs: Any, targets: Tensor, weight: Tensor | None, place: Place, complete: bool) -> StepResult:
        """Learn from a batch by compiled code."""
        eager, batch = self.eager, Batch(inputs, targets, weight)
        eager.drop_gradients()
        with eager.rounding(), nullcontext() if self.is_proven else warnings.catch_warnings():
            if not self.is_proven:  # a user cannot act on warnings of the compiler; backward passes compile late
                warnings.filterwarnings("ignore", module=r"torch\._(inductor|dynamo|functorch)")
            with eager.computing():
                context = eager.context(batch, in_tensors(place, eager.device), self.through)
                total, nll, terms, log_probs, sums = self.through(compute)(eager.loss_of, context)
            loss = eager.finish(batch, Loss(total, nll, terms, log_probs), complete, self.through)
        self.is_proven = True
        return StepResult(loss, sums)

    def shrink(self, error: Exception) -> bool:
        """Undo a step that ran out of memory; one that was compiled runs eagerly from now on."""
        if self.obstacle or not self.fits:
            return self.eager.shrink(error)
        if self.is_required or not self.eager.undo():
            return False
        self.give_up("all draws at once ran out of memory")
        return True

    def give_up(self, obstacle: str) -> None:
        """Run eagerly from now on."""
        self.obstacle = obstacle
        self.reset()
        self.eager.layout.undo()  # only compiled code needs it, and it may be the cause

    def reset(self) -> None:
        """Drop compiled code."""
        self._code.clear()
        self.is_proven = False

    def through(self, function: F) -> F:
        """Return the compiled function; it is compiled at the first call."""
        if function not in self._code:
            self._code[function] = compiled(function, self.eager.device)
        return cast(F, self._code[function])

    def _check_memory(self, batch: Batch) -> None:
        """Give up where a memory limit needs fewer draws at a time: compiled ones run all at once."""
        model, draws = self.eager.model, self.eager.num_samples
        if STATE.own.settings.memory is None or draws == 1 or self.shapes.chosen is not None:
            return
        planned = plan(model, batch.inputs, draws, gradients=True, collecting=("divergence", "penalty"))
        if planned.chunk < draws or planned.recompute:
            if self.is_required:
                raise ValueError(f"fast must be 'auto' or False under this memory limit: {planned.reason}")
            self.give_up("the memory limit leaves no room for all draws at once")


class CapturedStep:
    """A compiled step that is recorded as a CUDA graph, with its update, for batches of one shape.

    Args:
        compiled: runs what the recording does not follow, and everything once a recording has failed.
        obstacle: why steps cannot be recorded; empty where they can.
    """

    def __init__(self, compiled: CompiledStep, obstacle: str) -> None:
        self.compiled, self.eager, self.shrink = compiled, compiled.eager, compiled.shrink
        self.recording: Recording | None = None
        self._obstacle = ""
        self._shape: tuple[Any, ...] | None = None
        """The shape of batches that was chosen when the recording was made."""
        if obstacle:
            self.give_up(obstacle)
        else:
            optimizers.make_capturable(self.eager.optimizer, self.eager.device)

    @property
    def mode(self) -> StepMode:
        """How most batches run."""
        is_recorded = self.recording is not None and self.recording.is_ready
        return StepMode.CAPTURED if is_recorded and not self.compiled.shapes.differ else self.compiled.mode

    @property
    def obstacle(self) -> str:
        """Why steps cannot be recorded; empty where they can."""
        return self._obstacle or self.compiled.obstacle

    def learn(self, batch: Batch, place: Place, complete: bool) -> StepResult:
        """Replay or record the whole step; batches of another shape, and frozen noise, are handed on."""
        if not complete and not self.obstacle:
            self.give_up("several batches make up a step")
        values = (batch.inputs, batch.targets, batch.weight, in_tensors(place, self.eager.device))
        is_whole = complete and self.compiled.fits and not self.eager.num_rows
        recording = self._recording_for(values) if is_whole and not self.obstacle else None
        if recording is None:
            return self.compiled.learn(batch, place, complete)
        recording.read(values)
        if recording.is_ready:
            return recording()
        self.eager.keep_statistics()
        result, failure = self.compiled.try_out(recording, batch, place)
        if result is None:
            if self.compiled.is_proven:
                self.give_up(f"the recording failed: {failure}")
            else:
                self.compiled.give_up(f"the compiler gave up: {failure}")
            return self.compiled.learn(batch, place, complete)
        if recording.replaced:
            self.give_up(f"every step puts another tensor in place of {recording.replaced}")
        return result

    def give_up(self, obstacle: str) -> None:
        """Do without a recording from now on; raises where it is required."""
        if self.compiled.is_required:
            raise ValueError(f"fast must be 'auto' or False here: the step cannot be recorded, since {obstacle}")
        self._obstacle, self.recording = obstacle, None

    def _recording_for(self, values: tuple[Any, ...]) -> Recording | None:
        """The recording for a batch, which may be a new one; None where the present one does not fit."""
        settings = STATE.own.settings
        if settings.seed is not None:  # replays would have one seed
            return None
        if self._shape != self.compiled.shapes.chosen or (self.recording is not None and self.recording.is_outdated):
            self.recording = None  # before another one is made
        model, optimizer, device = self.eager.model, self.eager.optimizer, self.eager.device
        if self.recording is None or not optimizers.is_fused(optimizer):
            # Again: a user may have loaded a state, or set a rate.
            optimizers.make_capturable(optimizer, device)
        circumstances = (settings.mode, settings.antithetic, settings.estimator, settings.memory)
        if self.recording is None:
            work, first = partial(self.compiled.run, complete=True), self.eager.layout.of(values)
            self.recording = Recording(work, first, circumstances, model, optimizer, device)
            self._shape = self.compiled.shapes.chosen
        elif not self.recording.fits(values, circumstances):
            return None
        return self.recording


TrainingStep = EagerStep | CompiledStep | CapturedStep
"""All have one protocol, ``mode``, ``obstacle``, ``learn`` and ``shrink``, which ``EagerStep`` describes."""


def choose_step(steps: Sequence[TrainingStep]) -> tuple[TrainingStep, str]:
    """The first of some kinds of steps that can be used, fastest first, and why it is not a faster one.

    The last one can always be used; the reason is empty for the first.
    """
    reason = ""
    for step in steps:
        if not step.obstacle:
            break
        reason = step.obstacle
    return step, reason


class Step:
    """A step of training, compiled and recorded where that is possible.

    ``step(inputs, targets)`` learns from a batch and returns its ``Loss``, whose tensors the next step may overwrite. A
    recording follows changes of learning rates, of noise and module modes, and of tensors that were replaced. After a
    change of other options of the optimizer, or of plain attributes of modules, call ``record_again()``. After the last
    batch, call ``check()``: it raises where some loss was not finite.

    >>> step = dubio.Step(model, method.objective(len(data)), torch.optim.Adam(model.parameters()), num_samples=10)
    >>> for inputs, targets in batches:
    ...     loss = step(inputs, targets)

    Args:
        model: a converted network, on its device, in training mode.
        objective: the objective to minimize.
        optimizer: updates the parameters.
        num_samples: number of draws in each step.
        clip_norm: largest norm of the gradient.
        precision: ``"fp32"``, ``"tf32"`` or ``"bf16"``.
        fast: ``True`` compiles, and on a GPU records; ``False`` does neither; ``"auto"`` does both on a GPU and falls
            back where a step does not support it; on a CPU it compiles where a trial shows compiled steps to be faster.
        num_steps: number of steps of the run, for that trial; without it there is no trial.
        processes: the processes that share every step. With several, it is not recorded, and there is no trial.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        *,
        num_samples: int = 1,
        clip_norm: float | None = None,
        precision: Precision = "fp32",
        fast: Fast = "auto",
        num_steps: int | None = None,
        processes: Processes = ALONE,
    ) -> None:
        check_precision(precision)
        optimizers.check_updates(model, optimizer, clip_norm)
        if not isinstance(fast, bool) and fast != "auto":
            raise ValueError(f"fast must be True, False or 'auto', got {fast!r}")
        self.model, self.objective, self.optimizer = model, objective, optimizer
        self._eager = EagerStep(model, objective, optimizer, num_samples, clip_norm, precision, processes)
        self._compiled = CompiledStep(self._eager, is_required=fast is True)
        self._captured: CapturedStep | None = None
        self._trial: CompileTrial | None = None
        self.settled: bool | None = None
        """Whether a trial on a CPU has decided for compiled steps; None before it, and where there is no trial."""
        kinds: list[TrainingStep] = [self._eager]
        if fast is True or (fast and self._eager.device.type == "cuda"):
            kinds.insert(0, self._compiled)
        if fast and self._eager.device.type == "cuda":
            self._captured = CapturedStep(self._compiled, why_not_captured(objective, optimizer, processes))
            kinds.insert(0, self._captured)
        elif fast == "auto" and num_steps and processes.count == 1 and may_try_compiled(model, num_samples):
            self._trial = CompileTrial(num_steps)
        self._use(kinds)
        self.draws_itself = False
        """Whether steps draw from torch's global generators, as ordinary dropout does; determined by the first step."""
        self._is_watched = True
        self._is_announced = False
        self._last = Batch(None, torch.empty(0, device="cpu"))
        self._checked_at = 0.0

    def _use(self, kinds: Sequence[TrainingStep]) -> None:
        self._kinds = kinds
        self._step, self._reason = choose_step(kinds)

    @property
    def num_rows(self) -> int:
        """Examples whose gradients wait for the update."""
        return self._eager.num_rows

    @property
    def mode(self) -> StepMode:
        """How most steps run."""
        return self._step.mode

    @property
    def reason(self) -> str:
        """Why steps do not run in a faster mode, as a sentence; empty where nothing prevents it."""
        differ = self._step is not self._eager and self._compiled.shapes.differ
        return "most batches have other shapes" if differ else self._reason

    @property
    def capture_seconds(self) -> float:
        """Duration of compiling and recording."""
        recording = None if self._captured is None else self._captured.recording
        return 0.0 if recording is None else recording.captured.seconds

    def message(self) -> str:
        """A message about the mode of steps, once it is decided; empty before that and at later calls."""
        if self._is_announced or not (self.reason or self.mode == StepMode.CAPTURED):
            return ""
        self._is_announced = True
        if self.reason:
            return f"steps run {self.mode}, since {self.reason}"
        return f"compiled and recorded the step in {self.capture_seconds:.1f} s"

    def settle(self, compiled: bool | None) -> None:
        """Apply the decision of a trial; None leaves it open."""
        if compiled is not None and self._trial is not None:
            self.settled, self._trial = compiled, None
            self._use([self._compiled, self._eager] if compiled or self._compiled.obstacle else [self._eager])

    def __call__(
        self,
        inputs: Any,
        targets: Tensor,
        weight: Tensor | None = None,
        *,
        batch_index: int | None = None,
        num_batches: int | None = None,
        epoch: float | None = None,
    ) -> Loss:
        """Learn from one batch. On a GPU a loss that is not finite raises up to ``CHECK_EVERY`` seconds later."""
        batch = Batch(inputs, targets, weight)
        loss = self.learn(batch, Place(batch_index, num_batches, epoch)).loss
        if self.is_check_due():
            self.check()
        return loss

    @property
    def is_in_place(self) -> bool:
        """Whether parameters and buffers are where the step left them: a recording uses no others."""
        return not self._eager.layout.identity.moved

    def restart(self) -> None:
        """Reset the optimizer and the counts for the next run of the network; compiled code and recording are kept."""
        optimizers.reset_state(self.optimizer)
        self._eager.monitor.restart()
        self._eager.num_rows = 0
        if self._captured is not None and self._captured.recording is not None:
            self._captured.recording.captured.seconds = 0.0

    def record_again(self) -> None:
        """Drop the recording, after a change that it does not follow, such as an attribute of a module."""
        if self._captured is not None:
            self._captured.recording = None

    def close(self) -> None:
        """Drop compiled code and the recording; ``mode`` and ``capture_seconds`` are then those of a new step."""
        self.record_again()
        self._compiled.reset()

    def learn(self, batch: Batch, place: Place, complete: bool = True) -> StepResult:
        """Add the gradients of a batch; where it completes a step, update the parameters.

        A step that runs out of memory before its update is repeated with fewer draws at a time, and one whose
        compiled code fails is repeated eagerly.
        """
        self._last, step = batch, self._step
        trial = self._trial if complete and not self.num_rows else None
        if trial is not None and trial.compiled_next:
            step = self._compiled
        if trial is not None or step is not self._eager:
            self._compiled.notice(batch)
        began = time.perf_counter()
        with self._numbers(step):
            result = with_less_memory(partial(step.learn, batch, place, complete), step.shrink)
        if trial is not None:
            trial.note(time.perf_counter() - began)
            self.settle(False if step.obstacle else trial.choice)
        if self._step.obstacle:
            self._use(self._kinds)
        return result

    @contextmanager
    def _numbers(self, step: TrainingStep) -> Iterator[None]:
        """Draw from the generators of the run in a step, also where its code draws from torch's global generators.

        Compiled code always does. Whether a network, an objective or an optimizer does is observed in the first step,
        and in a step after the global generator has moved, which may have been another thread.
        """
        stream = STATE.own.stream
        if stream is None or stream.is_lent:
            yield
        elif step is not self._eager or self.draws_itself:
            with stream.lent(self._eager.device):
                yield
        elif self._is_watched:
            with Watch() as watch:
                yield
            self.draws_itself, self._is_watched = watch.itself, False
            if watch.itself:
                notice(self.model, TORCH)
        else:
            before = self._global_states()
            yield
            self._is_watched = any(not torch.equal(*pair) for pair in zip(self._global_states(), before, strict=True))

    def _global_states(self) -> list[Tensor]:
        return [default_generator(device).get_state() for device in {torch.device("cpu"), self._eager.device}]

    def is_check_due(self) -> bool:
        """Whether to call ``check``: always on a CPU, which has no queue to wait for."""
        now = time.perf_counter()
        if self._eager.device.type == "cuda" and now - self._checked_at < CHECK_EVERY:
            return False
        self._checked_at = now
        return True

    def check(self) -> None:
        """Raise where a step since the last check had a loss that is not finite; waits for the device."""
        if (broken := self._eager.monitor.first_broken()) is not None:
            value, num_steps = broken
            culprit = culprit_of(self.model, self._last.to(self._eager.device).inputs, torch.tensor(value))
            raise BrokenLossError(value, culprit, num_steps)


def why_not_captured(objective: Objective, optimizer: torch.optim.Optimizer, processes: Processes) -> str:
    """Why steps cannot be recorded; empty where they can."""
    if isinstance(objective, Adversarial) and not objective.attack.is_capturable:
        return f"{type(objective.attack).__name__} asks for values while it runs, or has a seed of its own"
    return "several processes share each step" if processes.count > 1 else optimizers.why_not_capturable(optimizer)


def may_try_compiled(model: nn.Module, num_samples: int) -> bool:
    """Whether a trial may choose compiled steps: where they keep within memory, and give the numbers of eager ones."""
    if STATE.own.settings.memory is not None:  # compiled steps run all draws at once
        return False
    # Eager draws of batch norm run in a loop; compiled ones are mapped and share the statistics of a batch.
    return num_samples == 1 or not any(isinstance(part, _BatchNorm) for part in model.modules())


class StepCache:
    """Keeps the compiled and recorded step of a network for its next run: ``dubio.fit(model, ..., steps=steps)``.

    >>> steps = dubio.StepCache()
    >>> for seed, labels in enumerate(label_sets):
    ...     model.load_state_dict(first_weights[seed])
    ...     dubio.fit(model, (inputs, labels), seed=seed, steps=steps)
    """

    def __init__(self) -> None:
        self._step: Step | None = None
        self._key: tuple[Any, ...] = ()
        self.num_made = 0
        """Number of steps that were made."""

    def step_for(self, model: nn.Module, key: tuple[Any, ...], make: Callable[[], Step]) -> Step:
        """Return the cached step, reset, where it fits; else make a new one and keep it.

        Args:
            model: the network.
            key: everything else that a step depends on, as values that can be compared.
            make: makes a new step.
        """
        step = self._step
        fits = step is not None and step.model is model and step.is_in_place and _are_equal(self._key, key)
        if step is not None and fits and optimizers.begins_at_zero(step.optimizer):
            step.restart()
            return step
        if step is not None:  # frees the memory of its recording before another step is made
            step.close()
        self._step = None
        self._step = step = make()
        self._key = key
        self.num_made += 1
        return step


class CompileTrial:
    """Decides on a CPU whether compiled steps are faster; it times both on batches of a run that proves to be long."""

    def __init__(self, num_steps: int) -> None:
        self._left = num_steps
        self._times: dict[bool, list[float]] = {False: [], True: []}
        self._is_long = False
        self.choice: bool | None = None
        """Whether steps are compiled from now on; None before the decision."""

    @property
    def compiled_next(self) -> bool:
        """Whether the next step is compiled."""
        return self._is_long and len(self._times[True]) <= len(self._times[False]) - TRIALS

    def note(self, seconds: float) -> None:
        """Record the duration of a step."""
        compiled = self.compiled_next
        self._times[compiled].append(seconds)
        self._left -= 1
        eager = self._times[False]
        if not self._is_long and len(eager) == TRIALS + 1:  # the first one warms up
            self._is_long = statistics.median(eager[1:]) * self._left > LONG
            self.choice = None if self._is_long else False
        elif len(self._times[True]) == TRIALS + 1:
            self.choice = statistics.median(self._times[True][1:]) < statistics.median(eager[1:])


def _are_equal(one: object, other: object) -> bool:
    """Whether two values are equal; False where the comparison raises, as that of tensors does."""
    try:
        return bool(one == other)
    except Exception:
        return False
