"""One step of training: noise, forward, backward, clipping, update; eager, compiled, or recorded as a CUDA graph.

On a GPU the whole step is compiled and, after a few batches, recorded once and replayed from then on (``captured``);
the attack of adversarial training is part of it. Batches of another shape, such as a short last one, run eagerly. A
step that cannot be recorded is compiled, a step that cannot be compiled runs eagerly, and ``reason`` says why. On a CPU
``CompileTrial`` measures in long runs whether compiled steps are faster.

Invariants (``tests/training/test_stepping.py``, and ``test_captured.py`` on a GPU): all three modes give the same
numbers within the tolerance of floats; with ``fallback_random`` also where noise is drawn, from the same generator.

``StepCache`` keeps the step of the network that was trained last, with its optimizer, for the next run of it: other
weights, other labels, another seed. A recording reads and writes tensors where they are, so a step is reused while the
network is the same module, with the weights of the next run copied into it (``load_state_dict``), and while the options
of the run are the same; otherwise a new step is made. Invariants (``tests/training/test_keeping.py``): a run with a
cached step ends as one with a new step, bit for bit on a CPU; the optimizer keeps nothing of the run before.
"""

import statistics
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

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
    default_generator,
    free_memory,
    is_out_of_memory,
    notice,
    plan,
    rounding_products,
    shrink_chunks,
    signature,
    statistics_of,
)
from dubio.data import Batch
from dubio.objectives import Loss, Objective
from dubio.training import optimizers
from dubio.training.batch_loss import (
    AttackingObjective,
    BatchLoss,
    Layout,
    Place,
    Recording,
    Shapes,
    StepResult,
    first_line,
    without_graph,
)
from dubio.training.diagnosis import CHECK_EVERY, BrokenLossError, LossMonitor, culprit_of
from dubio.training.processes import ALONE, LostProcessError, Processes

Fast = bool | Literal["auto"]
LONG = 600.0
"""Expected seconds of a run on a CPU from which a trial of the compiler is worth it."""
TRIALS = 5
"""Number of eager and of compiled steps that are timed."""


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
        self.num_samples, self.clip_norm, self.precision, self.fast = num_samples, clip_norm, precision, fast
        self.processes = processes
        self.device = next(model.parameters()).device
        self._batch_loss = BatchLoss(model, objective, precision)
        self.num_rows = 0
        """Examples whose gradients wait for the update."""
        self._reason = ""
        on_gpu = self.device.type == "cuda"
        self._compile = fast is True or (fast == "auto" and on_gpu)
        limited = STATE.own.settings.memory is not None  # compiled steps run all draws at once
        on_trial = fast == "auto" and not on_gpu and processes.count == 1 and not limited
        # Eager draws of batch norm run in a loop; compiled ones are mapped and share the statistics of a batch.
        on_trial = on_trial and not (num_samples > 1 and any(isinstance(part, _BatchNorm) for part in model.modules()))
        self._trial = CompileTrial(num_steps) if on_trial and num_steps else None
        self.settled: bool | None = None
        """Whether a trial on a CPU has decided for compiled steps; None before it, and where there is no trial."""
        self.draws_itself = False
        """Whether steps draw from torch's global generators, as ordinary dropout does; determined by the first step."""
        self._is_watched = True
        self._is_announced = False
        self._completed: set[tuple[Any, ...]] = set()
        """Variants of the step that have completed once, backward pass included."""
        self._shapes = Shapes()
        self._statistics = TensorSnapshot(model, ())
        self._last = Batch(None, torch.empty(0, device="cpu"))
        self._checked_at = 0.0
        self._recording: Recording | None = None
        self._capture = on_gpu and self._compile and not self._why_not_captured()
        if self._capture:
            optimizers.make_capturable(optimizer, self.device)
        self._layout = Layout(model, optimizer)
        self._monitor = LossMonitor(self.device, optimizer)
        self._is_updating = False
        """Whether the update has begun: a step cannot be repeated then."""

    @property
    def names(self) -> tuple[str, ...]:
        """Metrics that ``StepResult.sums`` holds after the number of examples."""
        return self._batch_loss.names

    @property
    def mode(self) -> str:
        """How most steps run: ``captured``, ``compiled`` or ``eager``."""
        if self._is_recorded and not (self._compile and self._shapes.differ):
            return "captured"
        return "compiled" if self._compile and not self._shapes.differ else "eager"

    @property
    def reason(self) -> str:
        """Why steps do not run in a faster mode; empty where nothing prevents it."""
        return "most batches have other shapes" if self._compile and self._shapes.differ else self._reason

    @property
    def _is_recorded(self) -> bool:
        return self._recording is not None and self._recording.is_ready

    @property
    def capture_seconds(self) -> float:
        """Duration of compiling and recording."""
        return self._recording.captured.seconds if self._recording is not None else 0.0

    def message(self) -> str:
        """A message about the mode of steps, once it is decided; empty before that and at later calls."""
        if self._is_announced or not (self._is_recorded or self.reason):
            return ""
        self._is_announced = True
        if self.reason:
            return f"steps run {self.mode}, since {self.reason}"
        return f"compiled and recorded the step in {self.capture_seconds:.1f} s"

    def settle(self, compiled: bool | None) -> None:
        """Apply the decision of an earlier trial; None leaves it open."""
        if compiled is not None and self._trial is not None:
            self._compile, self.settled, self._trial = compiled, compiled, None

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
        return not self._layout.identity.moved

    def restart(self) -> None:
        """Reset the optimizer and the counts for the next run of the network; compiled code and recording are kept."""
        optimizers.reset_state(self.optimizer)
        self._monitor.restart()
        self.num_rows = 0
        if self._recording is not None:
            self._recording.captured.seconds = 0.0

    def record_again(self) -> None:
        """Drop the recording, after a change that it does not follow, such as an attribute of a module."""
        self._recording = None

    def close(self) -> None:
        """Drop compiled code and the recording; ``mode`` and ``capture_seconds`` are then those of a new step."""
        self._recording = None
        self._batch_loss.reset()

    def learn(self, batch: Batch, place: Place, complete: bool = True) -> StepResult:
        """Add the gradients of a batch; where it completes a step, update the parameters.

        A step that runs out of memory before its update is repeated with fewer draws at a time, and one whose
        compiled code fails is repeated eagerly.
        """
        self._last = batch
        if len(batch.targets):
            self._check_memory(batch)
            if self._compile:
                self._layout.lay_out(batch.inputs)
        while True:
            waiting, self._is_updating = self.num_rows, False
            if not self._is_recorded:
                self._statistics = TensorSnapshot(self.model, statistics_of(self.model))
            try:
                with self._numbers():
                    result = self._learn(batch, place, complete)
                self._completed.add(self._variant)
                return result
            except Exception as error:
                if waiting or self._is_updating or not self._can_repeat(error):
                    raise
                message = "" if is_out_of_memory(error) else first_line(error)
            # Outside of the handler, whose traceback keeps the tensors of the failed step alive.
            self._prepare_repeat(message)

    @contextmanager
    def _numbers(self) -> Iterator[None]:
        """Draw from the generators of the run in a step, also where its code draws from torch's global generators.

        Compiled code always does. Whether a network, an objective or an optimizer does is observed in the first step,
        and in a step after the global generator has moved, which may have been another thread.
        """
        stream = STATE.own.stream
        if stream is None or stream.is_lent:
            yield
        elif self._compile or self.draws_itself or (self._trial is not None and self._trial.compiled_next):
            with stream.lent(self.device):
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
        return [default_generator(device).get_state() for device in {torch.device("cpu"), self.device}]

    def _learn(self, batch: Batch, place: Place, complete: bool) -> StepResult:
        if not complete and self._capture:
            self._give_up_recording("several batches make up a step")
        if len(batch.targets) and self._shapes.notice(signature((batch.inputs, batch.targets, batch.weight))):
            self.close()
        is_whole = complete and self.num_rows == 0
        if is_whole and self._capture and (result := self._learn_captured(batch, place)) is not None:
            return result
        with rounding_products(self.precision):
            trial = self._trial if is_whole else None
            if trial is not None:
                self._compile = trial.compiled_next
            began = time.perf_counter()
            result = self._add_gradients(batch, place)
            if complete:
                self._update()
            if trial is not None:
                trial.note(time.perf_counter() - began)
                self.settle(trial.choice)
        return result

    def _trained(self) -> list[nn.Parameter]:
        """All parameters that get gradients, each once: an objective may have some of its own."""
        return list(dict.fromkeys((*self.model.parameters(), *self._updated())))

    def _updated(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _drop_gradients(self) -> None:
        """Drop all gradients; those of parameters that are not updated would accumulate."""
        for parameter in self._trained():
            parameter.grad = None

    def _update(self) -> None:
        """Divide the sum of gradients over the rows of all processes by their number, and update."""
        trained = self._trained()
        rows = self.processes.sum_gradients(trained, self.num_rows)
        for parameter in trained:
            if parameter.grad is not None:
                parameter.grad /= rows
        self._apply_gradients()
        self.num_rows = 0

    def _apply_gradients(self) -> None:
        """Clip the gradients, and update."""
        self._is_updating = True
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._updated(), self.clip_norm)
        self._monitor.attach(self.optimizer)
        self.optimizer.step()

    @property
    def _variant(self) -> tuple[Any, ...]:
        """The code that runs: compiled for a shape, or eager."""
        return (self._compile, self._shapes.chosen if self._compile else None)

    def _check_memory(self, batch: Batch) -> None:
        """Fall back to eager steps where a memory limit needs fewer draws at a time: compiled ones run all at once."""
        limited = STATE.own.settings.memory is not None and self.num_samples > 1
        if not (limited and self._compile) or self._shapes.chosen is not None:
            return
        planned = plan(self.model, batch.inputs, self.num_samples, gradients=True, collecting=("divergence", "penalty"))
        if planned.chunk < self.num_samples or planned.recompute:
            if self.fast is True:
                raise ValueError(f"fast must be 'auto' or False under this memory limit: {planned.reason}")
            self._fall_back("eager", "the memory limit leaves no room for all draws at once")

    def _can_repeat(self, error: Exception) -> bool:
        """Whether a failed step may be repeated with less memory or eagerly."""
        if is_out_of_memory(error):
            return self.fast is not True if self._compile else self.num_samples > 1
        is_final = isinstance(error, BrokenLossError | LostProcessError)
        return self._compile and self._variant not in self._completed and self.fast is not True and not is_final

    def _prepare_repeat(self, message: str) -> None:
        self.num_rows = 0
        self._drop_gradients()
        self._statistics.put_back(self.model)
        if self._compile:
            reason = f"the compiler gave up: {message}" if message else "all draws at once ran out of memory"
            self._fall_back("eager", reason)
            free_memory()
        elif not shrink_chunks(self.model):
            raise torch.OutOfMemoryError(
                "a step of training ran out of memory with one draw at a time; try a smaller batch_size, or more of "
                "accumulate"
            )

    def is_check_due(self) -> bool:
        """Whether to call ``check``: always on a CPU, which has no queue to wait for."""
        now = time.perf_counter()
        if self.device.type == "cuda" and now - self._checked_at < CHECK_EVERY:
            return False
        self._checked_at = now
        return True

    def check(self) -> None:
        """Raise where a step since the last check had a loss that is not finite; waits for the device."""
        if (broken := self._monitor.first_broken()) is not None:
            value, num_steps = broken
            culprit = culprit_of(self.model, self._last.to(self.device).inputs, torch.tensor(value))
            raise BrokenLossError(value, culprit, num_steps)

    def _add_gradients(self, batch: Batch, place: Place) -> StepResult:
        """Backward pass of the loss times its rows: batches of a step count by them, and the sum is divided once."""
        if self.num_rows == 0:
            self._drop_gradients()
        rows = len(batch.targets)
        if rows == 0:  # other processes have all rows of this batch
            zero = torch.zeros((), device=self.device)
            self._monitor.watch(zero, as_it_is)
            return StepResult(Loss(zero, zero, {}, None), zero.double().expand(1 + len(self.names)))
        loss, sums = self._loss(batch, place)
        if self.device.type != "cuda" and not bool(torch.isfinite(loss.total)):
            culprit = culprit_of(self.model, batch.inputs, loss.nll)
            raise BrokenLossError(loss.total.item(), culprit, self._monitor.num_steps)
        (loss.total * rows).backward()
        self.num_rows += rows
        self._monitor.watch(loss.total, as_it_is)
        return StepResult(without_graph(loss), sums)

    def _loss(self, batch: Batch, place: Place) -> StepResult:
        """The loss and its sums, by compiled code where that is possible."""
        shapes = signature((batch.inputs, batch.targets, batch.weight))
        if not self._compile or shapes != self._shapes.chosen:  # other shapes would be compiled again
            return self._batch_loss.eager(batch, place, self.num_samples)
        try:
            return self._batch_loss.compiled(batch, place, self.num_samples)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._layout.undo()  # only compiled code needs it, and it may be the cause
            self._statistics.put_back(self.model)
            result = self._batch_loss.eager(batch, place, self.num_samples)  # raises errors that the batch causes
            if self.fast is True:
                raise
            self._fall_back("eager", f"the compiler gave up: {first_line(error)}")
            return result

    def _learn_captured(self, batch: Batch, place: Place) -> StepResult | None:
        """Replay or record the whole step; None where the batch has another shape, or recording fails."""
        values = (batch.inputs, batch.targets, batch.weight, self._batch_loss.in_tensors(place))
        if signature(values[:3]) != self._shapes.chosen or STATE.own.settings.seed is not None:  # replays have one seed
            return None
        if self._recording is not None and self._recording.is_outdated:
            self._recording = None  # before another one is made
        if self._recording is None or not optimizers.is_fused(self.optimizer):
            # Again: a user may have loaded a state, or set a rate.
            optimizers.make_capturable(self.optimizer, self.device)
        settings = STATE.own.settings
        noise = (settings.mode, settings.antithetic, settings.estimator, settings.memory)
        circumstances = (*noise, self.clip_norm, self.num_samples)
        if self._recording is None:
            this: Any = weakref.proxy(self)  # the recording is held by this object, and must not keep it alive
            laid_out, work = self._layout.of(values), partial(Step._whole_step, this)
            self._recording = Recording(work, laid_out, circumstances, self.model, self.optimizer, self.device)
        elif not self._recording.fits(values, circumstances):
            return None
        recording = self._recording  # the step may give it up while it is recorded
        recording.read(values)
        try:
            # A replay rounds as its recording did; setting the precision takes as long as the launch.
            with nullcontext() if recording.is_ready else rounding_products(self.precision):
                result = recording()
        except RuntimeError as error:
            if self.fast is True or is_out_of_memory(error):
                raise
            self._statistics.put_back(self.model)
            self._fall_back("compiled", f"its recording failed: {first_line(error)}")
            return None
        if recording.replaced:
            self._give_up_recording(f"every step puts another tensor in place of {recording.replaced}")
        return result

    def _give_up_recording(self, reason: str) -> None:
        self._refuse_if_required(reason)
        self._fall_back("compiled", reason)

    def _whole_step(self, inputs: Any, targets: Tensor, weight: Tensor | None, place: Place) -> StepResult:
        self._drop_gradients()
        loss, sums = self._loss(Batch(inputs, targets, weight), place)
        loss.total.backward()
        self._monitor.watch(loss.total, self._batch_loss.through if self._compile else as_it_is)
        self._apply_gradients()
        return StepResult(without_graph(loss), sums)

    def _why_not_captured(self) -> str:
        self._reason = optimizers.why_not_capturable(self.optimizer)
        if self.processes.count > 1:
            self._reason = "several processes share it"
        if isinstance(self.objective, AttackingObjective) and not self.objective.attack.is_capturable:
            attack = type(self.objective.attack).__name__
            self._reason = f"{attack} asks for values while it runs, or has a seed of its own"
        self._refuse_if_required(self._reason)
        return self._reason

    def _refuse_if_required(self, reason: str) -> None:
        if reason and self.fast is True:
            raise ValueError(f"fast must be 'auto' or False here: the step cannot be recorded, since {reason}")

    def _fall_back(self, mode: Literal["compiled", "eager"], reason: str) -> None:
        self._capture, self._reason = False, reason
        self._compile = mode == "compiled"
        self._recording = None
        if self._trial is not None:
            self.settled, self._trial = self._compile, None
        if not self._compile:
            self._layout.undo()


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
