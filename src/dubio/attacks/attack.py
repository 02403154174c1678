"""What all attacks share: fields, checks, restarts, cutting the data by memory, progress, and the result.

An attack is a frozen value; calling it with a network, inputs and labels gives adversarial inputs,
``PGD(epsilon=8/255)(model, inputs, targets).inputs``. A new attack defines ``_climb``, which moves the inputs once. The
base runs the restarts and keeps the strongest of them for each example, as further draws see it. An attack with another
rule for the best point defines ``_perturb`` instead.

Invariants (``tests/attacks/test_attack_contract.py``): results lie in the ball and in the box exactly; the same seed
gives the same perturbations; batches change nothing for a network without noise.
"""

import dataclasses
import inspect
import math
import re
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, get_args, get_origin, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dubio import functional
from dubio._engine import (
    Through,
    as_it_is,
    check_num_samples,
    isolated,
    new_seed,
    seed_tensor,
    seeded_step,
    shrink_chunks,
    with_less_memory,
)
from dubio.attacks.target import AttackTarget, FewerRows, Model, Noise, Perturbed, Recorder, check_classifier
from dubio.checks import check_count, check_positive
from dubio.functional.adversarial import AttackLoss, AttackObjective, Norm

STEPS_TO_RECORD = 10
"""Steps from which on recording a CUDA graph pays for itself."""
PATIENCE = 2.0
"""Seconds after which an attack shows a progress bar."""
COUNTS = ("steps", "restarts", "tries", "bisections", "batch_size")
"""Fields that must be whole numbers of at least 1, in the attacks that have them."""
WHOLE_NUMBERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class AttackResult:
    """The result of an attack."""

    inputs: Float[Tensor, "batch ..."]
    loss: Float[Tensor, " batch"]
    """The objective that the attacker raised, per example, as the draws that selected the inputs see it."""
    norm: Float[Tensor, " batch"]
    """Size of each perturbation."""
    fooled: Bool[Tensor, " batch"]
    """Whether the selecting draws are fooled. Never report it: ``attacks.score`` uses new draws."""
    forwards: int
    """Forward passes that each example has cost, draws counted."""
    backwards: int
    seconds: float
    c: Float[Tensor, " batch"] | None = None
    """Weight of the distance (E-64), where the attack searches for it; NaN where there is no perturbation."""


class Progress:
    """Counts steps, and shows a bar on a terminal once they have taken longer than ``patience`` seconds."""

    def __init__(self, total: int, name: str, visible: bool = True, patience: float = PATIENCE) -> None:
        self._total, self._name, self._done = total, name, 0
        self._visible = visible and sys.stderr.isatty()
        self._began, self._patience = time.perf_counter(), patience
        self._bar: Any = None

    def tick(self, steps: int = 1, name: str | None = None) -> None:
        """Count steps; ``name`` says what runs now."""
        self._done += steps
        self._name = self._name if name is None else name
        if self._bar is None and self._visible and time.perf_counter() - self._began >= self._patience:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=None))
            times = (TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, *times, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._name, total=self._total)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, total=self._total, description=self._name)

    def expect(self, more: int) -> None:
        """Add steps to the total."""
        self._total += more

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


@dataclass(frozen=True)
class Attack:
    """Fields of every attack.

    Args:
        epsilon: how far an input may move, in ``norm``; None where the attack finds the smallest distance itself.
        norm: ``"linf"`` or ``"l2"``.
        num_samples: draws over which every loss and gradient is averaged (expectation over transformation). A network
            without noise is one draw.
        objective: what is averaged: ``"predictive"`` probabilities, ``"expected"`` losses, ``"mean_logit"``, or the
            ``"votes"`` of draws (for attacks without gradients).
        loss: ``"cross_entropy"``, ``"margin"`` or ``"dlr"``.
        noise: ``"fresh"`` at every step, ``"frozen"`` to the same draws, or ``"off"`` (the mean network).
        targeted: whether labels are the classes to reach, instead of those to leave.
        bounds: the interval that inputs lie in.
        seed: makes the attack repeatable; by default random numbers come from torch's generator.
        batch_size: examples at a time; by default as many as fit into memory.
    """

    epsilon: float | None = None
    norm: Norm = "linf"
    num_samples: int = 20
    objective: AttackObjective = "predictive"
    loss: AttackLoss = "cross_entropy"
    noise: Noise = "fresh"
    targeted: bool = False
    bounds: tuple[float, float] = (0.0, 1.0)
    seed: int | None = None
    batch_size: int | None = None

    _uses_gradients: ClassVar[bool] = True
    _never_synchronizes: ClassVar[bool] = False
    """Whether it moves inputs without reading any value from the device."""

    @property
    def is_capturable(self) -> bool:
        """Whether ``moved`` can be recorded as a CUDA graph."""
        return self._never_synchronizes and self.seed is None and self.noise != "frozen"

    def __post_init__(self) -> None:
        check_num_samples(self.num_samples)
        for field in dataclasses.fields(self):
            options, value = get_args(field.type), getattr(self, field.name)
            if get_origin(field.type) is Literal and value not in options:
                raise ValueError(f"{field.name} must be one of {', '.join(map(repr, options))}, got {value!r}")
            if field.name in COUNTS and not (field.name == "batch_size" and value is None):
                check_count(field.name, value)
            if field.name == "step_size" and value is not None:
                check_positive("step_size", value)
        if self.objective == "votes" and self._uses_gradients:
            raise ValueError("objective must not be 'votes' for an attack by gradients: votes have none; use Square")
        if self._num_restarts() > 1 and not getattr(self, "random_start", True):
            raise ValueError("restarts from the same point would be equal; leave random_start=True")
        low, high = bounds = (float(self.bounds[0]), float(self.bounds[1]))
        object.__setattr__(self, "bounds", bounds)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"bounds must be two finite numbers, the smaller one first, got {self.bounds}")
        if self.seed is not None:
            seed_tensor(self.seed)
        self._check_epsilon()

    def __call__(
        self, model: Model, inputs: Float[Tensor, "batch ..."], targets: Int[Tensor, " batch"], *, progress: bool = True
    ) -> AttackResult:
        """Attack a network (or a function from inputs to logits) on inputs whose labels are ``targets``."""
        self._check_call(model, inputs, targets)
        began, target, source = time.perf_counter(), self.target_for(model), self._source(model)
        with torch.inference_mode(False):
            inputs, targets = inputs.detach().clone(), targets.clone().long()  # copies outside of any graph
            with target.ready(self.seed, inputs, targets, self.batch_size):
                made = None if source is None else source[0](source[1], inputs, targets, progress=progress)
                pieces = _Pieces(self, target, inputs if made is None else made.inputs, targets, progress)
                with pieces.progress, closing(pieces):
                    with_less_memory(pieces.run, pieces.shrink)
            return self._collect(pieces.parts, inputs, began, made)

    def moved(
        self,
        model: Model,
        inputs: Float[Tensor, "batch ..."],
        targets: Int[Tensor, " batch"],
        through: Through[Callable[..., object]] = as_it_is,
    ) -> Float[Tensor, "batch ..."]:
        """The inputs as a call would move them, all at once: what a training step needs.

        Passes are not counted and, with one restart of FGSM or PGD, nothing is selected. Without a seed random numbers
        come from torch's generator. ``through`` runs the forward passes, compiled for example.
        """
        if (source := self._source(model)) is not None:
            return source[0].moved(source[1], inputs, targets, through)
        if not (inputs.is_cuda and torch.cuda.is_current_stream_capturing()):  # a capture cannot read values
            self._check_call(model, inputs, targets)
        generator = seeded_step(self.seed, inputs.device, compiled=through is not as_it_is)
        isolation = isolated(model, training=False, trainable=False)
        with torch.inference_mode(False), isolation, generator, torch.no_grad():
            target = replace(self.target_for(model), through=through, seeded=self.seed is not None)
            rows, moved, progress = self.batch_size or len(inputs), [], Progress(1, "", visible=False)
            run = self._climb if self._never_synchronizes and self._num_restarts() == 1 else self._perturb
            for first in range(0, len(inputs), rows):
                piece = slice(first, first + rows)
                part = replace(target, first_row=first)
                end = run(part, inputs[piece].detach(), targets[piece].long(), progress)
                moved.append(end.inputs if isinstance(end, Perturbed) else end)
            return torch.cat(moved)

    def target_for(self, model: Model) -> AttackTarget:
        """The network as this attack evaluates it."""
        seed = int(new_seed(2**31)) if self.seed is None else self.seed
        return AttackTarget(model, self.num_samples, self.objective, self.loss, self.noise, seed, self.targeted)

    def _source(self, model: Model) -> "tuple[Attack, Model] | None":
        """The attack, and the network attacked, that move the inputs of an attack that only evaluates them."""
        return None

    def _recorder(self, target: AttackTarget, device: torch.device) -> Recorder | None:
        """A recorder of CUDA graphs, on a GPU and for many steps.

        Frozen noise and numbers that the host draws cannot be recorded: a replay would repeat them.
        """
        pays = self._uses_gradients and self._num_steps() >= STEPS_TO_RECORD
        fits = device.type == "cuda" and isinstance(target.model, nn.Module) and target.noise != "frozen"
        return Recorder(device) if pays and fits and not target.draws_on_host else None

    def _collect(
        self, parts: "list[tuple[Perturbed, AttackTarget]]", inputs: Tensor, began: float, made: AttackResult | None
    ) -> AttackResult:
        pieces, used = zip(*parts, strict=True)
        earlier = (0, 0) if made is None else (made.forwards, made.backwards)
        adversarial, values = torch.cat([part.inputs for part in pieces]), torch.cat([part.values for part in pieces])
        if bool(values.isnan().any()):
            raise ValueError("the model must give finite logits, got NaN on inputs within the bounds of the attack")
        return AttackResult(
            adversarial,
            values,
            functional.adversarial.perturbation_norm(adversarial - inputs, self.norm),
            torch.cat([part.fooled for part in pieces]),
            forwards=earlier[0] + max(target.forwards for target in used),
            backwards=earlier[1] + max(target.backwards for target in used),
            seconds=time.perf_counter() - began,
            c=None if pieces[0].c is None else torch.cat([part.c for part in pieces]),
        )

    def _perturb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Perturbed:
        """Perturb some examples: the strongest of all restarts, each evaluated on draws of its own."""
        best: Perturbed | None = None
        for _ in range(self._num_restarts()):
            moved = self._climb(target, inputs, targets, progress)
            end = Perturbed(moved, *target.evaluate(moved, targets))
            best = end if best is None else stronger(best, end)
        assert best is not None
        return best

    def _climb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Tensor:
        """Move the inputs of some examples, once from a start."""
        raise TypeError(f"{type(self).__name__} is what attacks share, not an attack; see dubio.attacks")

    def _num_restarts(self) -> int:
        return int(getattr(self, "restarts", 1))

    def _num_steps(self) -> int:
        """Ticks of one piece, for the progress bar."""
        return int(getattr(self, "steps", 1)) * self._num_restarts()

    def _inside(self, candidate: Tensor, inputs: Tensor) -> Tensor:
        """The nearest allowed point: in the ball around the inputs, and in the box."""
        assert self.epsilon is not None
        return functional.adversarial.project_inputs(candidate, inputs, self.norm, self.epsilon).clamp(*self.bounds)

    def _start(self, target: AttackTarget, inputs: Tensor) -> Tensor:
        """A random point of the ball, or the inputs themselves with ``random_start=False``."""
        assert self.epsilon is not None
        if not getattr(self, "random_start", True):
            return inputs
        uniform, normal = (target.random(inputs.shape, kind, inputs) for kind in ("uniform", "normal"))
        moves = functional.adversarial.random_perturbation(uniform, normal, self.norm, self.epsilon)
        return self._inside(inputs + moves, inputs)

    def _check_epsilon(self) -> None:
        name, ball = type(self).__name__, type(self).epsilon is not None
        if not ball and self.epsilon is not None:
            raise ValueError(f"epsilon must be None for {name}, which has no ball to stay in, got {self.epsilon}")
        if ball and self.epsilon is None:
            raise ValueError(f"epsilon must be a number for {name}, which stays in a ball, got None")
        if self.epsilon is None:
            return
        low, high = self.bounds
        widest = high - low
        if not math.isfinite(self.epsilon) or self.epsilon < 0.0 or (self.norm == "linf" and self.epsilon > widest):
            hint = f"; did you mean {self.epsilon:g}/255?" if 1.0 < self.epsilon <= 255.0 and widest == 1.0 else ""
            limit = f"[0, {widest:g}]" if self.norm == "linf" else "at least 0 and finite"
            raise ValueError(
                f"epsilon must be {'in ' if self.norm == 'linf' else ''}{limit} for inputs in [{low:g}, {high:g}], "
                f"got {self.epsilon}{hint}"
            )

    def _check_call(self, model: Model, inputs: Tensor, targets: Tensor) -> None:
        check_classifier(model)
        kinds = [given.dtype if isinstance(given, Tensor) else type(given).__name__ for given in (inputs, targets)]
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            raise TypeError(
                f"inputs must be a tensor of real numbers, got {kinds[0]}; dubio.data.scaled converts images"
            )
        if not isinstance(targets, Tensor) or kinds[1] not in WHOLE_NUMBERS:
            raise TypeError(f"targets must be a tensor of whole numbers that name classes, got {kinds[1]}")
        if inputs.dim() < 2 or len(inputs) == 0:
            raise ValueError(f"inputs must be (batch, ...) with one example or more, got shape {tuple(inputs.shape)}")
        if targets.shape != inputs.shape[:1]:
            raise ValueError(
                f"targets must be one label per input, got shapes {tuple(targets.shape)} and {tuple(inputs.shape)}"
            )
        low, high = self.bounds
        if not bool(((inputs >= low) & (inputs <= high)).all()):
            raise ValueError(
                f"inputs must lie in bounds [{low:g}, {high:g}], got values from {inputs.min().item():g} to "
                f"{inputs.max().item():g}; normalisation belongs to the model, or pass bounds=(low, high)"
            )


class _Pieces:
    """Moves some rows after the others, each piece with an ``AttackTarget`` that counts its passes.

    After an out-of-memory error a piece starts again with fewer draws at a time, then with fewer rows, and with the
    same noise where it is frozen.
    """

    def __init__(self, attack: Attack, target: AttackTarget, inputs: Tensor, targets: Tensor, visible: bool) -> None:
        self._attack, self._target, self._inputs, self._targets = attack, target, inputs, targets
        rows = attack.batch_size or target.rows_at_a_time(inputs, targets, attack._uses_gradients)
        self._size = FewerRows(min(rows, len(inputs)))
        self._halvings, self._done = 0, 0
        self._recorder = attack._recorder(target, inputs.device)
        num_ticks = -(-len(inputs) // self._size.rows) * attack._num_steps()
        self.progress = Progress(num_ticks, type(attack).__name__, visible)
        self.parts: list[tuple[Perturbed, AttackTarget]] = []

    def run(self) -> None:
        """Move the rows that are left."""
        while self._done < len(self._inputs):
            piece = slice(self._done, self._done + self._size.rows)
            part = replace(self._target, first_row=self._done, recorder=self._recorder)
            end = self._attack._perturb(part, self._inputs[piece], self._targets[piece], self.progress)
            self.parts.append((end, part))
            self._done += self._size.rows

    def shrink(self, error: Exception) -> bool:
        """Halve draws first, as that changes nothing else; raises where one draw of one row is too much."""
        self.close()
        model = self._target.model
        # Halved no more often than there are draws to halve: another process may have used up the memory.
        may_halve = self._halvings < self._target.num_samples.bit_length()
        if may_halve and isinstance(model, nn.Module) and shrink_chunks(model):
            self._halvings += 1
        elif self._size.halve():
            self._halvings = 0
        else:
            raise torch.OutOfMemoryError(
                "the attack ran out of memory with one draw of one input at a time; it needs more memory, or smaller "
                "inputs"
            )
        self.progress.expect(self._attack._num_steps())
        return True

    def close(self) -> None:
        """Drop the recording, which refers to what it has recorded."""
        if self._recorder is not None:
            self._recorder.close()
        self._recorder = None


@runtime_checkable
class ShortForm(Protocol):
    """A function of a network, inputs, labels and the fields of an attack, that gives adversarial inputs."""

    def __call__(self, model: Model, inputs: Tensor, targets: Tensor, **fields: Any) -> Tensor:
        """Adversarial inputs."""


def short_form(attack: type[Attack]) -> ShortForm:
    """The short form of an attack; ``help`` shows its fields as keyword arguments."""

    def attack_inputs(model: Model, inputs: Tensor, targets: Tensor, **fields: Any) -> Tensor:
        return attack(**fields)(model, inputs, targets).inputs

    kinds = inspect.Parameter
    params = [kinds(argument, kinds.POSITIONAL_OR_KEYWORD) for argument in ("model", "inputs", "targets")]
    params += [kinds(field.name, kinds.KEYWORD_ONLY, default=field.default) for field in dataclasses.fields(attack)]
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", attack.__name__).lower()
    attack_inputs.__name__ = attack_inputs.__qualname__ = name
    attack_inputs.__doc__ = f"``{attack.__name__}(...)(model, inputs, targets).inputs``.\n\n    {attack.__doc__}"
    attack_inputs.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
    return attack_inputs


def stronger(one: Perturbed, other: Perturbed) -> Perturbed:
    """Of two attempts at the same examples, for each the one that fools; of two that do or do not, the larger value."""
    same = one.fooled == other.fooled
    return one.or_where(torch.where(same, other.values > one.values, other.fooled), other)
