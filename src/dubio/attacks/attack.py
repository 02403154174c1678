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
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, Literal, Protocol, get_args, get_origin, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dubio import functional
from dubio._engine import (
    Through,
    as_it_is,
    check_num_samples,
    is_out_of_memory,
    new_seed,
    seed_tensor,
    seeded_run,
    seeded_step,
)
from dubio.attacks.target import AttackTarget, MemoryBackoff, Model, Noise, Recorder, check_classifier, untouched
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
class Perturbed:
    """Perturbed inputs of some examples, and what the attacker measures there."""

    inputs: Float[Tensor, "batch ..."]
    values: Float[Tensor, " batch"]
    """The objective that the attacker raises, as the draws that selected the inputs see it."""
    fooled: Bool[Tensor, " batch"]
    """Whether those draws predict another class (when targeted: the target class)."""
    c: Float[Tensor, " batch"] | None = None
    """Weight of the distance (E-64), where the attack searches for it; NaN where there is no perturbation."""
    gradient: Float[Tensor, "batch ..."] | None = None
    """Gradient of the values, where the attack goes on from here."""

    def or_where(self, chosen: Bool[Tensor, " batch"], other: "Perturbed") -> "Perturbed":
        """The other one for those examples that are chosen."""
        rows = functional.adversarial.as_rows(chosen, self.inputs)
        mine, theirs = self.gradient, other.gradient
        return Perturbed(
            torch.where(rows, other.inputs, self.inputs),
            torch.where(chosen, other.values, self.values),
            torch.where(chosen, other.fooled, self.fooled),
            gradient=None if mine is None or theirs is None else torch.where(rows, theirs, mine),
        )


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
    """Counts steps, and shows a bar on a terminal once the attack has taken longer than ``PATIENCE`` seconds."""

    def __init__(self, total: int, name: str, visible: bool = True) -> None:
        self._total, self._name, self._done = total, name, 0
        self._visible = visible and sys.stderr.isatty()
        self._began = time.perf_counter()
        self._bar: Any = None

    def tick(self) -> None:
        """Count one step."""
        self._done += 1
        if self._bar is None and self._visible and time.perf_counter() - self._began > PATIENCE:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._name, total=self._total)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, total=self._total)

    def expect(self, more: int) -> None:
        """Add steps to the total."""
        self._total += more

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *failure: object) -> None:
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
        return self._run(model, inputs, targets, show_progress=progress)

    def moved(
        self,
        model: nn.Module,
        inputs: Float[Tensor, "batch ..."],
        targets: Int[Tensor, " batch"],
        through: Through[Callable[..., object]] = as_it_is,
    ) -> Float[Tensor, "batch ..."]:
        """The inputs as a call would move them, all at once: what a training step needs.

        Passes are not counted and, with one restart of FGSM or PGD, nothing is selected. Without a seed random numbers
        come from torch's generator. ``through`` runs the forward passes, compiled for example.
        """
        if not (inputs.is_cuda and torch.cuda.is_current_stream_capturing()):  # a capture cannot read values
            self._check_call(model, inputs, targets)
        generator = seeded_step(self.seed, inputs.device, compiled=through is not as_it_is)
        with torch.inference_mode(False), untouched(model), generator, torch.no_grad():
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

    def _run(
        self, model: Model, inputs: Tensor, targets: Tensor, first_row: int = 0, *, show_progress: bool = False
    ) -> AttackResult:
        """Attack rows of which the first is row ``first_row`` of the whole data."""
        self._check_call(model, inputs, targets)
        began = time.perf_counter()
        with torch.inference_mode(False), untouched(model), torch.no_grad():
            inputs, targets = inputs.detach().clone(), targets.clone().long()  # copies outside of any graph

            def attack() -> AttackResult:
                target = self.target_for(model)
                target.check(inputs, targets, self.batch_size)
                rows = min(self.batch_size or target.rows_at_a_time(inputs, targets, self._uses_gradients), len(inputs))
                num_ticks = -(-len(inputs) // rows) * self._num_steps()
                with Progress(num_ticks, type(self).__name__, show_progress) as progress:
                    parts = self._in_pieces(replace(target, first_row=first_row), inputs, targets, rows, progress)
                return self._collect(parts, inputs, began)

            return seeded_run(self.seed, inputs.device, attack)

    def _in_pieces(
        self, target: AttackTarget, inputs: Tensor, targets: Tensor, rows: int, progress: Progress
    ) -> list[tuple[Perturbed, AttackTarget]]:
        """Perturb some rows after the others, each piece with an ``AttackTarget`` that counts its passes.

        After an out-of-memory error a piece starts again with fewer draws at a time, then with fewer rows, and with the
        same noise where it is frozen.
        """
        parts: list[tuple[Perturbed, AttackTarget]] = []
        done, recorder = 0, self._recorder(target, inputs.device)
        backoff = MemoryBackoff(target.model, rows, target.num_samples)
        try:
            while done < len(inputs):
                piece = slice(done, done + backoff.rows)
                part = replace(target, first_row=target.first_row + done, recorder=recorder)
                try:
                    parts.append((self._perturb(part, inputs[piece], targets[piece], progress), part))
                    done += backoff.rows
                    continue
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                # Outside of the handler, where nothing refers to the failed attempt any more.
                if recorder is not None:
                    recorder.close()
                recorder = None
                backoff.take_less()
                progress.expect(self._num_steps())
        finally:
            if recorder is not None:
                recorder.close()
        return parts

    def _recorder(self, target: AttackTarget, device: torch.device) -> Recorder | None:
        """A recorder of CUDA graphs, on a GPU and for many steps.

        Frozen noise and numbers that the host draws cannot be recorded: a replay would repeat them.
        """
        pays = self._uses_gradients and self._num_steps() >= STEPS_TO_RECORD
        fits = device.type == "cuda" and isinstance(target.model, nn.Module) and target.noise != "frozen"
        return Recorder(device) if pays and fits and not target.draws_on_host else None

    def _collect(self, parts: list[tuple[Perturbed, AttackTarget]], inputs: Tensor, began: float) -> AttackResult:
        pieces, used = zip(*parts, strict=True)
        adversarial, values = torch.cat([part.inputs for part in pieces]), torch.cat([part.values for part in pieces])
        if bool(values.isnan().any()):
            raise ValueError("the model must give finite logits, got NaN on inputs within the bounds of the attack")
        return AttackResult(
            adversarial,
            values,
            functional.adversarial.perturbation_norm(adversarial - inputs, self.norm),
            torch.cat([part.fooled for part in pieces]),
            forwards=max(target.forwards for target in used),
            backwards=max(target.backwards for target in used),
            seconds=time.perf_counter() - began,
            c=None if pieces[0].c is None else torch.cat([part.c for part in pieces]),
        )

    def _perturb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Perturbed:
        """Perturb some examples: the strongest of all restarts, each evaluated on draws of its own."""
        climbs = (self._climb(target, inputs, targets, progress) for _ in range(self._num_restarts()))
        return reduce(stronger, (Perturbed(moved, *target.evaluate(moved, targets)) for moved in climbs))

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
