"""One step of training: noise, forward, backward, clipping, update - eager, compiled, or recorded as a CUDA graph.

On a GPU the whole step is compiled and, after a few batches, recorded once and replayed from then on (``captured``);
what attacks a batch in adversarial training is part of it. Batches of another shape, such as a short last one, run as
they are. What cannot be recorded is compiled, what cannot be compiled runs eagerly, and ``how`` says which and why.

Invariants (``tests/training/test_stepping.py``, and ``test_captured.py`` on a GPU): all three ways give the same
numbers within the tolerance of floats; with ``fallback_random`` also where noise is drawn, from the same generator.

Steps that outlive a run: the same network is trained again, and compiled and recorded once.

Compiling takes seconds, and so do many runs of a small network: other weights, other labels, another seed.
``StepCache`` keeps the step of the network that was trained last, with its optimiser. A recording reads and writes
tensors where they are, so it fits as long as the network is the same module, with the weights of the next run copied
into it (``load_state_dict``), and as long as it is trained in the same way; else a new step is made.

Invariants (``tests/training/test_keeping.py``): a run with a kept step ends as one with a new step, bit for bit on a
CPU; nothing of the run before is left in the optimiser.

Gradients of one step, from none to the update: dropped, summed over batches and processes, clipped, taken.

Whether a compiled step is faster on a CPU: both ways take turns on real batches once a run proves long.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
from dubio.training.batch_loss import (
    Attacking,
    BatchLoss,
    Layout,
    Learned,
    Place,
    Recording,
    Shapes,
    first_line,
    unheld,
    without_graph,
)
from dubio.training.diagnosis import LOOK_EVERY, BrokenLossError, Health, culprit_of
from dubio.training.optimizers import (
    begins_at_zero,
    check_updates,
    forget,
    is_fused,
    make_capturable,
    why_not_capturable,
)
from dubio.training.processes import ALONE, LostProcessError, Processes

Fast = bool | Literal["auto"]


class CompileTrial:
    """Times of steps, and what they say."""

    def __init__(self, num_steps: int) -> None:
        self._left = num_steps
        self._times: dict[bool, list[float]] = {False: [], True: []}
        self._is_long = False
        self.choice: bool | None = None
        """Whether steps are compiled from now on; None until it is known."""

    @property
    def compiled_next(self) -> bool:
        """Whether the next step is a compiled one."""
        return self._is_long and len(self._times[True]) <= len(self._times[False]) - TRIALS

    def note(self, seconds: float) -> None:
        """Take note of how long a step took."""
        compiled = self.compiled_next
        self._times[compiled].append(seconds)
        self._left -= 1
        eager = self._times[False]
        if not self._is_long and len(eager) == TRIALS + 1:  # the first one warms up
            self._is_long = statistics.median(eager[1:]) * self._left > LONG
            self.choice = None if self._is_long else False
        elif len(self._times[True]) == TRIALS + 1:
            self.choice = statistics.median(self._times[True][1:]) < statistics.median(eager[1:])


class Step:
    """A step of training, as fast as it can be made.

    ``step(inputs, targets)`` learns from a batch and gives its ``Loss``, whose tensors the next step may overwrite. A
    recording sees learning rates that are set later, other modes of noise or of modules, and tensors that are put in
    the place of others; for other options of the optimiser, or plain attributes of modules that are set later, call
    ``record_again()``. After the last batch, ``check()`` tells whether some loss was not finite.

    >>> step = dubio.Step(model, method.objective(len(data)), torch.optim.Adam(model.parameters()), num_samples=10)
    >>> for inputs, targets in batches:
    ...     loss = step(inputs, targets)

    Args:
        model: a converted network, on its device, in training mode.
        objective: what is minimised.
        optimizer: what updates the parameters.
        num_samples: draws for each step.
        clip_norm: largest norm of the gradient.
        precision: ``"fp32"``, ``"tf32"`` or ``"bf16"``.
        fast: ``True`` compiles, and on a GPU records; ``False`` does neither; ``"auto"`` does on a GPU, and on a CPU
            where a trial shows it to be worth it, and falls back where it cannot be done.
        num_steps: how many steps there will be, for that trial; without it there is none.
        processes: those that share every step. With several it is neither recorded nor tried compiled.
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
        check_updates(model, optimizer, clip_norm)
        if not isinstance(fast, bool) and fast != "auto":
            raise ValueError(f"fast must be True, False or 'auto', got {fast!r}")
        self.model, self.objective, self.optimizer = model, objective, optimizer
        self.num_samples, self.clip_norm, self.precision, self.fast = num_samples, clip_norm, precision, fast
        self.processes = processes
        self.device = next(model.parameters()).device
        self._of_batch = BatchLoss(model, objective, precision)
        self.num_rows = 0
        """Examples whose gradients wait for the update."""
        self.why = ""
        """Why the step is not as fast as it might be, where something stood in the way."""
        on_gpu = self.device.type == "cuda"
        self._compile = fast is True or (fast == "auto" and on_gpu)
        limited = STATE.own.settings.memory is not None  # compiled, all draws run at once
        on_trial = fast == "auto" and not on_gpu and processes.count == 1 and not limited
        # Draws that are looped eagerly are mapped when compiled, and share the statistics of a batch then.
        on_trial = on_trial and not (num_samples > 1 and any(isinstance(part, _BatchNorm) for part in model.modules()))
        self._trial = CompileTrial(num_steps) if on_trial and num_steps else None
        self.settled: bool | None = None
        """What a trial on a CPU has decided: whether steps are compiled. None before, and where there is no trial."""
        self.draws_itself = False
        """Whether steps draw from torch's global generators themselves, as ordinary dropout does; known after one."""
        self._is_watched = True
        self._told = False
        self._proved: set[tuple[Any, ...]] = set()
        """Ways in which a step, backward pass included, was ever finished."""
        self._shapes = Shapes()
        self._statistics = TensorSnapshot(model, ())
        self._last = Batch(None, torch.empty(0, device="cpu"))
        self._looked = time.perf_counter()
        self._recording: Recording | None = None
        self._capture = on_gpu and self._compile and not self._why_not_captured()
        if self._capture:
            make_capturable(optimizer, self.device)
        self._layout = Layout(model, optimizer)
        self._health = Health(self.device, optimizer)
        self._gradients = Update(model, optimizer, clip_norm, processes, self._health)

    @property
    def names(self) -> tuple[str, ...]:
        """Metrics that ``Learned.sums`` holds after the number of examples."""
        return self._of_batch.names

    @property
    def how(self) -> str:
        """How steps run: ``captured``, ``compiled`` or ``eager``, and why where something stood in the way."""
        if self._compile and self._shapes.differ:
            return "mostly eager, since most batches have other shapes"
        way = "captured" if self._is_recorded else "compiled" if self._compile else "eager"
        return f"{way}, since {self.why}" if self.why else way

    @property
    def _is_recorded(self) -> bool:
        return self._recording is not None and self._recording.is_ready

    @property
    def capture_seconds(self) -> float:
        """How long compiling and recording took."""
        return self._recording.seconds if self._recording is not None else 0.0

    def news(self) -> str:
        """What there is to say about how steps run, once: that they are recorded, or what stands in the way."""
        slower = self.why or (self._compile and self._shapes.differ)
        if self._told or not (self._is_recorded or slower):
            return ""
        self._told = True
        return f"steps run {self.how}" if slower else f"compiled and recorded the step in {self.capture_seconds:.1f} s"

    def settle(self, compiled: bool | None) -> None:
        """Go by what an earlier trial has decided, where it has."""
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
        """Learn from one batch. On a GPU a loss that is not finite is told within ``LOOK_EVERY`` seconds of it."""
        batch = Batch(inputs, targets, weight)
        loss = self.learn(batch, Place(batch_index, num_batches, epoch)).loss
        if time.perf_counter() - self._looked > LOOK_EVERY:
            self._looked = time.perf_counter()
            self.check()
        return loss

    @property
    def is_in_place(self) -> bool:
        """Whether parameters and buffers are where the step has left them: what was recorded knows no others."""
        return self._layout.is_in_place

    def restart(self) -> None:
        """Forget every step so far, and keep what was compiled and recorded: for the network's next run."""
        forget(self.optimizer)
        self._health.restart()
        self.num_rows = 0
        if self._recording is not None:
            self._recording.forget_seconds()

    def record_again(self) -> None:
        """Let go of what was recorded: for what a recording cannot see, such as an attribute of a module."""
        self._recording = None

    def close(self) -> None:
        """Let go of what was compiled and recorded; ``how`` and ``capture_seconds`` are then those of a new step."""
        self._recording = None
        self._of_batch.forget()

    def learn(self, batch: Batch, place: Place, complete: bool = True) -> Learned:
        """Take a batch in; where it completes a step, update the parameters.

        A step that runs out of memory before its update is taken again with fewer draws at a time, and one whose
        compiled code fails is taken again eagerly.
        """
        self._last = batch
        if len(batch.targets):
            self._check_memory(batch)
            if self._compile:
                self._layout.lay_out(batch.inputs)
        while True:
            waiting, self._gradients.is_under_way = self.num_rows, False
            if not self._is_recorded:
                self._statistics = TensorSnapshot(self.model, statistics_of(self.model))
            try:
                with self._numbers():
                    learned = self._learn(batch, place, complete)
                self._proved.add(self._way)
                return learned
            except Exception as error:
                if waiting or self._gradients.is_under_way or not self._can_try_again(error):
                    raise
                said = "" if is_out_of_memory(error) else first_line(error)
            # Outside of the handler, where nothing refers to the failed step any more.
            self._try_again(said)

    @contextmanager
    def _numbers(self) -> Iterator[None]:
        """Random numbers of the run for a step, also where something in it draws from torch's global generators.

        Compiled code does always. Whether a network, an objective or an optimiser does is seen in the first step, and
        in one after the global generator has moved, which may have been another thread.
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

    def _learn(self, batch: Batch, place: Place, complete: bool) -> Learned:
        if not complete and self._capture:
            self._give_up_recording("several batches make up a step")
        if len(batch.targets) and self._shapes.notice(signature((batch.inputs, batch.targets, batch.weight))):
            self.close()
        if complete and self.num_rows == 0 and self._capture:
            learned = self._learn_captured(batch, place)
            if learned is not None:
                return learned
        with rounding_products(self.precision):
            if self._trial is not None and complete and self.num_rows == 0:
                return self._learn_on_trial(self._trial, batch, place)
            learned = self._add_gradients(batch, place)
            if complete:
                self._update()
        return learned

    def _update(self) -> None:
        self._gradients.divide_and_take(self.num_rows)
        self.num_rows = 0

    @property
    def _way(self) -> tuple[Any, ...]:
        """What is run: code for some shape, or what needs no compiler."""
        return (self._compile, self._shapes.chosen if self._compile else None)

    def _check_memory(self, batch: Batch) -> None:
        """Leave the compiler out of it where a limit wants fewer draws at a time: compiled, they run all at once."""
        limited = STATE.own.settings.memory is not None and self.num_samples > 1
        if not (limited and self._compile) or self._shapes.chosen is not None:
            return
        planned = plan(self.model, batch.inputs, self.num_samples, gradients=True, collecting=("divergence", "penalty"))
        if planned.chunk < self.num_samples or planned.recompute:
            if self.fast is True:
                raise ValueError(f"fast must be 'auto' or False under this memory limit: {planned.reason}")
            self._fall_back("eager", "the memory limit leaves no room for all draws at once")

    def _can_try_again(self, error: Exception) -> bool:
        """Whether a step that failed may be taken again in another way."""
        if is_out_of_memory(error):
            return self.fast is not True if self._compile else self.num_samples > 1
        mine = isinstance(error, BrokenLossError | LostProcessError)
        return self._compile and self._way not in self._proved and self.fast is not True and not mine

    def _try_again(self, said: str) -> None:
        self.num_rows = 0
        self._gradients.begin()
        self._statistics.put_back(self.model)
        if self._compile:
            self._fall_back("eager", f"the compiler gave up: {said}" if said else "all draws at once ran out of memory")
            free_memory()
        elif not shrink_chunks(self.model):
            raise torch.OutOfMemoryError(
                "a step of training ran out of memory with one draw at a time; try a smaller batch_size, or more of "
                "accumulate"
            )

    def check(self) -> None:
        """Raise where some step since the last look had a loss that is not finite; waits for the device."""
        broken = self._health.first_broken()
        if broken is not None:
            value, num_steps = broken
            loss, inputs = Loss(torch.tensor(value), torch.tensor(value), {}, None), self._last.to(self.device).inputs
            raise BrokenLossError(value, culprit_of(self.model, inputs, loss), num_steps)

    def _add_gradients(self, batch: Batch, place: Place) -> Learned:
        """Backward of the loss times its rows: batches of one step count by them, and the sum is divided once."""
        if self.num_rows == 0:
            self._gradients.begin()
        rows = len(batch.targets)
        if rows == 0:  # other processes have all rows of this batch
            return self._nothing_learned()
        loss, sums = self._loss(batch, place)
        if self.device.type != "cuda" and not bool(torch.isfinite(loss.total)):
            raise BrokenLossError(loss.total.item(), culprit_of(self.model, batch.inputs, loss), self._health.num_steps)
        (loss.total * rows).backward()
        self.num_rows += rows
        self._health.watch(loss.total, as_it_is)
        return Learned(without_graph(loss), sums)

    def _nothing_learned(self) -> Learned:
        nothing = torch.zeros((), device=self.device)
        self._health.watch(nothing, as_it_is)
        return Learned(Loss(nothing, nothing, {}, None), nothing.double().expand(1 + len(self.names)))

    def _loss(self, batch: Batch, place: Place) -> tuple[Loss, Tensor]:
        """The loss and its sums, compiled where that works."""
        shapes = signature((batch.inputs, batch.targets, batch.weight))
        if not self._compile or shapes != self._shapes.chosen:  # each further shape would be compiled anew
            return self._of_batch.eager(batch, place, self.num_samples)
        try:
            return self._of_batch.compiled(batch, place, self.num_samples)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._layout.undo()  # it is for the compiler only, and the fault may be there
            self._statistics.put_back(self.model)
            found = self._of_batch.eager(batch, place, self.num_samples)  # raises what is the batch's own fault
            if self.fast is True:
                raise
            self._fall_back("eager", f"the compiler gave up: {first_line(error)}")
            return found

    def _learn_captured(self, batch: Batch, place: Place) -> Learned | None:
        """The whole step from its recording; None where the batch has another shape, or recording fails."""
        values = (batch.inputs, batch.targets, batch.weight, self._of_batch.in_tensors(place))
        if signature(values[:3]) != self._shapes.chosen or STATE.own.settings.seed is not None:  # replays have one seed
            return None
        if self._recording is not None and self._recording.is_outdated:
            self._recording = None  # before another takes its place
        if self._recording is None or not is_fused(self.optimizer):
            make_capturable(self.optimizer, self.device)  # again: somebody may have loaded a state, or set a rate
        circumstances = self._circumstances()
        if self._recording is None:
            laid_out, work = self._layout.of(values), unheld(self._whole_step)
            self._recording = Recording(work, laid_out, circumstances, self.model, self.optimizer, self.device)
        elif not self._recording.fits(values, circumstances):
            return None
        self._recording.read(values)
        try:
            # A replay rounds as its recording did; to say so takes as long as to launch it.
            with nullcontext() if self._recording.is_ready else rounding_products(self.precision):
                learned = Learned(*self._recording())
        except RuntimeError as error:
            if self.fast is True or is_out_of_memory(error):
                raise
            self._statistics.put_back(self.model)
            self._fall_back("compiled", f"its recording failed: {first_line(error)}")
            return None
        if self._recording.replaced:
            self._give_up_recording(f"every step puts another tensor in place of {self._recording.replaced}")
        return learned

    def _give_up_recording(self, why: str) -> None:
        self._refuse_if_asked_for(why)
        self._fall_back("compiled", why)

    def _circumstances(self) -> tuple[Any, ...]:
        """What a recording depends on beside its tensors; while it is other than then, steps run as they are."""
        settings = STATE.own.settings
        noise = (settings.mode, settings.antithetic, settings.estimator, settings.memory)
        return (*noise, self.clip_norm, self.num_samples)

    def _whole_step(self, inputs: Any, targets: Tensor, weight: Tensor | None, place: Place) -> tuple[Loss, Tensor]:
        self._gradients.begin()
        loss, sums = self._loss(Batch(inputs, targets, weight), place)
        loss.total.backward()
        self._health.watch(loss.total, self._of_batch.through if self._compile else as_it_is)
        self._gradients.take()
        return without_graph(loss), sums

    def _learn_on_trial(self, trial: CompileTrial, batch: Batch, place: Place) -> Learned:
        """A step like any other, timed; after enough of them the faster way is kept."""
        self._compile = trial.compiled_next
        began = time.perf_counter()
        learned = self._add_gradients(batch, place)
        self._update()
        trial.note(time.perf_counter() - began)
        self.settle(trial.choice)
        return learned

    def _why_not_captured(self) -> str:
        self.why = why_not_capturable(self.optimizer)
        if self.processes.count > 1:
            self.why = "several processes share it"
        if isinstance(self.objective, Attacking) and not self.objective.attack.is_capturable:
            self.why = f"{type(self.objective.attack).__name__} asks for values while it runs, or has a seed of its own"
        if self.why:
            self._refuse_if_asked_for(self.why)
        return self.why

    def _refuse_if_asked_for(self, why: str) -> None:
        if self.fast is True:
            raise ValueError(f"fast must be 'auto' or False here: the step cannot be recorded, since {why}")

    def _fall_back(self, way: Literal["compiled", "eager"], why: str) -> None:
        self._capture, self.why = False, why
        self._compile = way == "compiled"
        self._recording = None
        if self._trial is not None:
            self.settled, self._trial = self._compile, None
        if not self._compile:
            self._layout.undo()


class StepCache:
    """What one run leaves to the next: ``dubio.fit(model, ..., steps=steps)``, again and again.

    >>> steps = dubio.StepCache()
    >>> for seed, labels in enumerate(label_sets):
    ...     model.load_state_dict(first_weights[seed])
    ...     dubio.fit(model, (inputs, labels), seed=seed, steps=steps)
    """

    def __init__(self) -> None:
        self._step: Step | None = None
        self._way: tuple[Any, ...] = ()
        self.num_made = 0
        """How often a step had to be made."""

    def step_for(self, model: nn.Module, way: tuple[Any, ...], make: Callable[[], Step]) -> Step:
        """The step that was kept, as if it were new; or a new one, which is kept from now on.

        Args:
            model: the network.
            way: everything else that a step depends on, as values that can be compared.
            make: makes a new step.
        """
        step = self._step
        fits = step is not None and step.model is model and step.is_in_place and _are_equal(self._way, way)
        if step is not None and fits and begins_at_zero(step.optimizer):
            step.restart()
            return step
        if step is not None:  # lets go of what was recorded before another is made
            step.close()
        self._step = None
        self._step = step = make()
        self._way = way
        self.num_made += 1
        return step


def _are_equal(one: object, other: object) -> bool:
    """Whether two values are equal, where they can tell: tensors cannot."""
    try:
        return bool(one == other)
    except Exception:
        return False


class Update:
    """What is done with gradients, by everyone in the same way.

    Args:
        model: the network that learns.
        optimizer: what updates it, and parameters that an objective may have beside it.
        clip_norm: largest norm of the gradient of what is updated.
        processes: those that share every step.
        health: what tells the optimiser that a loss was not finite.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        clip_norm: float | None,
        processes: Processes,
        health: Health,
    ) -> None:
        self._model, self._optimizer, self._clip_norm = model, optimizer, clip_norm
        self._processes, self._health = processes, health
        self.is_under_way = False
        """Whether parameters are being changed: there is no way back then."""

    def begin(self) -> None:
        """Drop all gradients: those of what is not updated would go on adding up."""
        for parameter in self._learning():
            parameter.grad = None

    def divide_and_take(self, num_rows: int) -> None:
        """Divide what was summed over rows by their number, in all processes, and update."""
        learning = self._learning()
        rows = self._processes.sum_gradients(learning, num_rows)
        for parameter in learning:
            if parameter.grad is not None:
                parameter.grad /= rows
        self.take()

    def take(self) -> None:
        """Clip the gradients that there are, and update."""
        self.is_under_way = True
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._updated(), self._clip_norm)
        self._health.tell(self._optimizer)
        self._optimizer.step()

    def _learning(self) -> list[nn.Parameter]:
        """All that gets gradients, each once."""
        return list(dict.fromkeys((*self._model.parameters(), *self._updated())))

    def _updated(self) -> list[nn.Parameter]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]


LONG = 600.0
"""Seconds that a run on a CPU must be expected to last before it is worth a trial of the compiler."""


TRIALS = 5
"""Steps that are timed, eager and compiled each."""
