"""What all attacks share: fields, checks, cutting the data by memory, and the result.

An attack is a frozen value; calling it with a network, inputs and labels gives adversarial inputs. A new attack says
in ``_perturb`` how it moves the inputs; everything else, the contract test included, it gets from here.

``pgd(model, inputs, targets, epsilon=8/255)`` for ``PGD(epsilon=8/255)(model, inputs, targets).inputs``.

A bar for attacks that take long: shown after some seconds, on a terminal only.
"""

import dataclasses
import inspect
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, get_args, runtime_checkable

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
from dubio.functional.adversarial import AttackLoss, AttackObjective, Norm

STEPS_TO_RECORD = 10
"""Steps from which on recording a look pays for itself."""


@dataclass(frozen=True, eq=False)
class Perturbed:
    """What an attack made of some examples."""

    inputs: Float[Tensor, "batch ..."]
    values: Float[Tensor, " batch"]
    """What the attacker raises, as the draws that selected the inputs see it."""
    fooled: Bool[Tensor, " batch"]
    """Whether those draws take the inputs for another class (when targeted: for the wanted one)."""
    c: Float[Tensor, " batch"] | None = None
    """Weight of the distance (E-64), where the attack searches for it; NaN where it found no perturbation."""

    def or_where(self, chosen: Bool[Tensor, " batch"], other: "Perturbed") -> "Perturbed":
        """The other attempt for those examples that are chosen."""
        return Perturbed(
            torch.where(functional.adversarial.as_rows(chosen, self.inputs), other.inputs, self.inputs),
            torch.where(chosen, other.values, self.values),
            torch.where(chosen, other.fooled, self.fooled),
        )


@dataclass(frozen=True, eq=False)
class AttackResult:
    """The result of an attack."""

    inputs: Float[Tensor, "batch ..."]
    loss: Float[Tensor, " batch"]
    """What the attacker raised, per example, as the draws that selected the inputs see it."""
    norm: Float[Tensor, " batch"]
    """Size of each perturbation."""
    fooled: Bool[Tensor, " batch"]
    """Whether the selecting draws are fooled. Chosen by, never to be reported: ``attacks.score`` draws anew."""
    forwards: int
    """Forward passes that each example has cost, draws counted."""
    backwards: int
    seconds: float
    c: Float[Tensor, " batch"] | None = None
    """Weight of the distance (E-64), where the attack searches for it; NaN where it found no perturbation."""


class Progress:
    """Counts steps, and shows them once the attack has taken longer than ``PATIENCE`` seconds, until it is over."""

    def __init__(self, total: int, name: str, wanted: bool = True) -> None:
        self._total, self._name, self._done = total, name, 0
        self._wanted = wanted and sys.stderr.isatty()
        self._began = time.perf_counter()
        self._bar: Any = None

    def tick(self) -> None:
        """One step is over."""
        self._done += 1
        if not self._wanted:
            return
        if self._bar is None and time.perf_counter() - self._began > PATIENCE:
            self._open()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, total=self._total)

    def expect(self, more: int) -> None:
        """There will be more steps than thought."""
        self._total += more

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *failure: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _open(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            self._wanted = False
            return
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(self._name, total=self._total)


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
        targeted: whether labels are those wanted, instead of those to leave.
        bounds: what inputs lie in.
        seed: makes the attack repeatable; by default torch's generator goes on.
        batch_size: examples at a time; by default as memory suggests.
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
    _asks_nothing: ClassVar[bool] = False
    """Whether it moves inputs without asking the device for any value."""

    @property
    def is_capturable(self) -> bool:
        """Whether ``moved`` can be recorded as a CUDA graph."""
        return self._asks_nothing and self.seed is None and self.noise != "frozen"

    def __post_init__(self) -> None:
        check_num_samples(self.num_samples)
        choices = {"norm": Norm, "objective": AttackObjective, "loss": AttackLoss, "noise": Noise}
        for name, kind in choices.items():
            if getattr(self, name) not in get_args(kind):
                options = ", ".join(map(repr, get_args(kind)))
                raise ValueError(f"{name} must be one of {options}, got {getattr(self, name)!r}")
        if self.objective == "votes" and self._uses_gradients:
            raise ValueError("objective must not be 'votes' for an attack by gradients: votes have none; use Square")
        low, high = bounds = (float(self.bounds[0]), float(self.bounds[1]))
        object.__setattr__(self, "bounds", bounds)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"bounds must be two finite numbers, the smaller one first, got {self.bounds}")
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        if self.seed is not None:
            seed_tensor(self.seed)
        self._check_epsilon()

    def __call__(
        self, model: Model, inputs: Float[Tensor, "batch ..."], targets: Int[Tensor, " batch"], *, progress: bool = True
    ) -> AttackResult:
        """Attack a network (or a function from inputs to logits) on inputs whose labels are ``targets``."""
        return self._run(model, inputs, targets, progress=progress)

    def moved(
        self,
        model: nn.Module,
        inputs: Float[Tensor, "batch ..."],
        targets: Int[Tensor, " batch"],
        through: Through[Callable[..., object]] = as_it_is,
    ) -> Float[Tensor, "batch ..."]:
        """The inputs as a call would move them, all at once and no more: what a step of training needs.

        Nothing is counted and, with one restart, nothing selected. Without a seed random numbers come from torch's
        generator. ``through`` says how looks at the network are run, such as compiled.
        """
        if not (inputs.is_cuda and torch.cuda.is_current_stream_capturing()):  # nobody can be asked then
            self._check_call(model, inputs, targets)
        numbers = seeded_step(self.seed, inputs.device, compiled=through is not as_it_is)
        with torch.inference_mode(False), untouched(model), numbers, torch.no_grad():
            victim = replace(self.victim(model), through=through, seeded=self.seed is not None)
            rows, moved = self.batch_size or len(inputs), []
            for first in range(0, len(inputs), rows):
                piece = slice(first, first + rows)
                part = replace(victim, first_row=first)
                moved.append(self._moved(part, inputs[piece].detach(), targets[piece].long()))
            return torch.cat(moved)

    def _run(
        self, model: Model, inputs: Tensor, targets: Tensor, first_row: int = 0, *, progress: bool = False
    ) -> AttackResult:
        """What a call does, on rows of which the first is row ``first_row`` of the whole data."""
        self._check_call(model, inputs, targets)
        began = time.perf_counter()
        with torch.inference_mode(False), untouched(model), torch.no_grad():
            inputs, targets = inputs.detach().clone(), targets.clone().long()  # one's own, outside of any graph

            def attack() -> AttackResult:
                victim = self.victim(model)
                victim.check(inputs, targets, self.batch_size)
                rows = min(self.batch_size or victim.rows_at_a_time(inputs, targets, self._uses_gradients), len(inputs))
                with Progress(-(-len(inputs) // rows) * self._num_steps(), type(self).__name__, progress) as ticker:
                    part = replace(victim, first_row=first_row)
                    perturbed, victims = self._in_pieces(part, inputs, targets, rows, ticker)
                return self._collect(perturbed, inputs, victims, began)

            return seeded_run(self.seed, inputs.device, attack)

    def _in_pieces(
        self, victim: AttackTarget, inputs: Tensor, targets: Tensor, rows: int, ticker: Progress
    ) -> tuple[list[Perturbed], list[AttackTarget]]:
        """Some rows after the others, each piece seen by a victim of its own.

        What runs out of memory begins anew with fewer draws at a time, then with fewer rows: with the same noise, if it
        is frozen.
        """
        found: list[Perturbed] = []
        victims: list[AttackTarget] = []
        done, recorder = 0, self._recorder(victim, inputs.device)
        thrift = MemoryBackoff(victim.model, rows, victim.num_samples)
        try:
            while done < len(inputs):
                piece = slice(done, done + thrift.rows)
                part = replace(victim, first_row=victim.first_row + done, recorder=recorder)
                try:
                    found.append(self._perturb(part, inputs[piece], targets[piece], ticker))
                    victims.append(part)
                    done += thrift.rows
                    continue
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                # Outside of the handler, where nothing refers to the failed attempt any more.
                if recorder is not None:
                    recorder.close()
                recorder = None
                thrift.take_less()
                ticker.expect(self._num_steps())
        finally:
            if recorder is not None:
                recorder.close()
        return found, victims

    def _recorder(self, victim: AttackTarget, device: torch.device) -> Recorder | None:
        """What replays the looks at a network on a GPU, where there are many.

        Frozen noise cannot be recorded, nor what the host draws: a replay would repeat it.
        """
        many = self._uses_gradients and self._num_steps() >= STEPS_TO_RECORD
        fits = device.type == "cuda" and isinstance(victim.model, nn.Module) and victim.noise != "frozen"
        return Recorder(device) if many and fits and not victim.draws_on_host else None

    def _collect(
        self, found: list[Perturbed], inputs: Tensor, victims: list[AttackTarget], began: float
    ) -> AttackResult:
        adversarial = torch.cat([part.inputs for part in found])
        values = torch.cat([part.values for part in found])
        if bool(values.isnan().any()):
            raise ValueError("the model must give finite logits, got NaN on inputs within the bounds of the attack")
        return AttackResult(
            adversarial,
            values,
            functional.adversarial.perturbation_norm(adversarial - inputs, self.norm),
            torch.cat([part.fooled for part in found]),
            forwards=max(victim.forwards for victim in victims),
            backwards=max(victim.backwards for victim in victims),
            seconds=time.perf_counter() - began,
            c=None if found[0].c is None else torch.cat([part.c for part in found if part.c is not None]),
        )

    def _perturb(self, victim: AttackTarget, inputs: Tensor, targets: Tensor, ticker: Progress) -> Perturbed:
        """Move the inputs of some examples."""
        raise TypeError(f"{type(self).__name__} is what attacks share, not an attack; see dubio.attacks")

    def _num_steps(self) -> int:
        """Ticks of one piece, for the progress bar."""
        return 1

    def _moved(self, victim: AttackTarget, inputs: Tensor, targets: Tensor) -> Tensor:
        """The inputs of some examples, moved."""
        return self._perturb(victim, inputs, targets, Progress(1, "", wanted=False)).inputs

    def victim(self, model: Model) -> AttackTarget:
        """The network as this attack looks at it."""
        seed = int(new_seed(2**31)) if self.seed is None else self.seed
        return AttackTarget(model, self.num_samples, self.objective, self.loss, self.noise, seed, self.targeted)

    def _select(self, victim: AttackTarget, inputs: Tensor, targets: Tensor) -> Perturbed:
        """Look at candidates with draws of their own."""
        return Perturbed(inputs, *victim.judge(inputs, targets))

    def _inside(self, candidate: Tensor, inputs: Tensor) -> Tensor:
        """The nearest allowed point: in the ball around the inputs, and in the box."""
        assert self.epsilon is not None
        return functional.adversarial.project_inputs(candidate, inputs, self.norm, self.epsilon).clamp(*self.bounds)

    def _random_start(self, victim: AttackTarget, inputs: Tensor) -> Tensor:
        assert self.epsilon is not None
        uniform, normal = (victim.random(inputs.shape, kind, inputs) for kind in ("uniform", "normal"))
        return self._inside(
            inputs + functional.adversarial.random_perturbation(uniform, normal, self.norm, self.epsilon), inputs
        )

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
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            kind = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
            raise TypeError(f"inputs must be a tensor of real numbers, got {kind}; dubio.data.scaled makes images such")
        if not isinstance(targets, Tensor) or not _names_classes(targets):
            kind = targets.dtype if isinstance(targets, Tensor) else type(targets).__name__
            raise TypeError(f"targets must be a tensor of whole numbers that name classes, got {kind}")
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


def _names_classes(targets: Tensor) -> bool:
    return not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)


def stronger(one: Perturbed, other: Perturbed) -> Perturbed:
    """Of two attempts at the same examples, for each the one that fools; of two that do or do not, the larger value."""
    same = one.fooled == other.fooled
    return one.or_where(torch.where(same, other.values > one.values, other.fooled), other)


def check_count(name: str, count: int) -> None:
    """Refuse what does not count."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}")


@runtime_checkable
class ShortForm(Protocol):
    """A function of a network, inputs, labels and the fields of an attack, that gives adversarial inputs."""

    def __call__(self, model: Model, inputs: Tensor, targets: Tensor, **fields: Any) -> Tensor:
        """Adversarial inputs."""


def short_form(attack: type[Attack]) -> ShortForm:
    """The short form of an attack; ``help`` shows its fields as keyword arguments."""

    def attack_inputs(model: Model, inputs: Tensor, targets: Tensor, **fields: Any) -> Tensor:
        return attack(**fields)(model, inputs, targets).inputs

    name = re.sub(r"(?<!^)(?=[A-Z])", "_", attack.__name__).lower()
    kinds = inspect.Parameter
    wanted = [kinds(argument, kinds.POSITIONAL_OR_KEYWORD) for argument in ("model", "inputs", "targets")]
    wanted += [kinds(field.name, kinds.KEYWORD_ONLY, default=field.default) for field in dataclasses.fields(attack)]
    attack_inputs.__name__ = attack_inputs.__qualname__ = name
    attack_inputs.__doc__ = f"``{attack.__name__}(...)(model, inputs, targets).inputs``.\n\n    {attack.__doc__}"
    attack_inputs.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined]
    return attack_inputs


PATIENCE = 2.0
