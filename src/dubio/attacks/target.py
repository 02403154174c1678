"""The network under attack: log-probabilities of many draws, and the gradient of the attacker's objective.

A target is a network or a bare function from inputs to logits. During an attack (``ready``) it is in eval mode and its
parameters require no gradients; both are restored afterwards, as are its buffers (``tests/attacks/test_untouched.py``).
Its noise is *fresh* at every step, *frozen* to the same draws throughout, or *off*.

Random numbers of the attack itself come from here too. They belong to rows, so that cutting the data into batches
changes no attack on a network without noise (``test_the_batch_size_does_not_matter``).

Rows that fit into memory are estimated from the footprint of a few. Passes of an attack with many steps are recorded as
a CUDA graph, since all have the same shapes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio import functional
from dubio._engine import (
    HOST,
    LOCK,
    STATE,
    TORCH,
    Buffers,
    Call,
    Captured,
    DoesNotFitError,
    Draws,
    Executor,
    Footprint,
    HostState,
    Kind,
    Stream,
    Through,
    Using,
    Watch,
    as_it_is,
    follows_host,
    fresh_noise,
    generator_state,
    has_numbers_of_its_own,
    is_raised_by_user,
    isolated,
    may_draw_on_host,
    memory_budget,
    noise_key,
    notice,
    plan_for,
    redirected,
    run,
    seed_tensor,
    seeded,
    seeded_noise,
    set_generator_state,
    signature,
    with_less_memory,
)
from dubio.functional.adversarial import AttackLoss, AttackObjective
from dubio.likelihoods import Categorical, likelihood_of
from dubio.nn import num_members

Inputs = Float[Tensor, "batch ..."]
Labels = Int[Tensor, " batch"]
PerExample = Float[Tensor, " batch"]
Flags = Bool[Tensor, " batch"]

Model = nn.Module | Callable[[Tensor], Tensor]
Noise = Literal["fresh", "frozen", "off"]

KEY = noise_key("attacks")
WARM_UPS = 2
"""Runs before a CUDA graph is recorded."""
ROWS_TO_TRY = 8
"""Rows that show what a network does and how much memory it takes."""
WATCHED = ("cpu", "cuda", "mps")
"""Devices whose random numbers are seen while they are drawn."""


class Perturbed(NamedTuple):
    """Perturbed inputs of some examples, and what the attacker measures there."""

    inputs: Inputs
    values: PerExample
    """The objective that the attacker raises, as the draws that selected the inputs see it."""
    fooled: Flags
    """Whether the mean over those draws predicts another class (when targeted: the target class)."""
    c: PerExample | None = None
    """Weight of the distance (E-64), where the attack searches for it; NaN where there is no perturbation."""
    grad: Inputs | None = None

    @property
    def gradient(self) -> Inputs:
        """Gradient of the values, which ``loss_and_grad`` gives."""
        assert self.grad is not None
        return self.grad

    def or_where(self, chosen: Flags, other: "Perturbed") -> "Perturbed":
        """The other one for those examples that are chosen."""

        def choose(mine: Tensor | None, theirs: Tensor | None) -> Any:
            if mine is None or theirs is None:
                return None
            return torch.where(functional.adversarial.as_rows(chosen, mine), theirs, mine)

        return Perturbed(*map(choose, self, other))


class Recorder:
    """Replays a function of tensors of one shape as a CUDA graph; gives up for good where that fails."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: Buffers | None = None
        self._captured: Captured[Perturbed] | None = None
        self._failed = False

    def __call__(self, function: Callable[..., Perturbed], *values: Tensor | None) -> Perturbed | None:
        """What the function gives, replayed; None where it cannot be, and the caller runs the function."""
        return with_less_memory(lambda: self._replay(function, values), self._give_up, also=(RuntimeError,))

    def close(self) -> None:
        """Drop the recording: it refers to the target, which refers to this recorder."""
        self._captured = None

    def _replay(self, function: Callable[..., Perturbed], values: tuple[Tensor | None, ...]) -> Perturbed | None:
        if self._failed:
            return None
        buffers = self._buffers = self._buffers or Buffers(values)
        if signature(values) != buffers.signature:
            return None
        if self._captured is None:
            self._captured = Captured(lambda: function(*buffers.values), self._device, WARM_UPS)
        buffers.copy(values)
        return cast(Perturbed, pytree.tree_map_only(Tensor, torch.clone, self._captured()))

    def _give_up(self, error: Exception) -> bool:
        """A network that reads values while it runs cannot be recorded; nor can one for which no memory is left."""
        self._failed = True
        self.close()
        return isinstance(error, torch.OutOfMemoryError) or not is_raised_by_user(error)


class FewerRows:
    """How many rows an attempt takes: after each that ran out of memory, half as many."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def halve(self, error: Exception | None = None) -> bool:
        """Halve the rows; returns whether there were more than one."""
        self.rows, before = -(-self.rows // 2), self.rows
        return before > 1


@dataclass
class AttackTarget:
    """A network or function, and how the attacker evaluates it; counts the passes that each example has cost."""

    model: Model
    num_samples: int
    objective: AttackObjective = "predictive"
    loss: AttackLoss = "margin"
    noise: Noise = "fresh"
    seed: int = 0
    targeted: bool = False
    first_row: int = 0
    is_random: bool = True
    """Whether two passes may differ; set by ``check``."""
    through: Through[Callable[..., Any]] = as_it_is
    """Runs forward passes of a network, compiled for example."""
    seeded: bool = True
    """Whether the attack's own random numbers come from its seed, or from torch's generator."""
    recorder: Recorder | None = None
    """Replays passes with gradients, where that pays."""
    executor: Executor = "auto"
    """How draws are run; ``check`` sets a loop where mapped draws would share numbers that the host draws."""
    draws_on_host: bool = False
    """Whether a recording would repeat numbers that the host draws; set by ``check``."""
    draws_itself: bool = True
    """Whether the model may draw from a global generator itself; set by ``check``."""
    forwards: int = field(default=0, init=False)
    backwards: int = field(default=0, init=False)
    _num_random: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Run all members of an ensemble, each once: fewer draws would leave some out, more would repeat them."""
        members = num_members(self.model) if isinstance(self.model, nn.Module) else None
        self.num_samples = members or self.num_samples

    def log_probs(self, inputs: Inputs) -> Float[Tensor, "sample batch class"]:
        """Log-probabilities of all draws, differentiable."""
        self.forwards += self.num_samples
        with self._noise_for(inputs):
            return self._likelihood.log_probs(self._draws(inputs).outputs)

    def labels(self, inputs: Inputs) -> Labels:
        """The classes that the mean over the draws predicts."""
        with torch.no_grad():
            return functional.uncertainty.predictive_log_probs(self.log_probs(inputs)).argmax(dim=-1)

    def evaluate(self, inputs: Inputs, labels: Labels, goals: Labels | None = None) -> tuple[PerExample, Flags]:
        """The objective that the attacker raises, per example, and whether the mean over the draws is fooled.

        The objective is the loss of the true label, or minus that of the target class; with ``goals``, minus that of
        the goals.
        """
        self.forwards += self.num_samples
        with self._noise_for(inputs):
            return self._measured(self._draws(inputs), labels, goals)

    def evaluate_pieces(self, inputs: Inputs, labels: Labels, rows: int) -> tuple[PerExample, Flags]:
        """``evaluate``, so many rows at a time."""
        pieces = [
            replace(self, first_row=first).evaluate(inputs[first : first + rows], labels[first : first + rows])
            for first in range(0, len(inputs), rows)
        ]
        values, fooled = zip(*pieces, strict=True)
        return torch.cat(values), torch.cat(fooled)

    def loss_and_grad(self, inputs: Inputs, labels: Labels, goals: Labels | None = None) -> Perturbed:
        """What ``evaluate`` gives, and the gradient of the objective: that of the average over draws."""
        self.forwards += self.num_samples
        self.backwards += self.num_samples
        if self.recorder is not None:
            replayed = self.recorder(replace(self, recorder=None).loss_and_grad, inputs, labels, goals)
            if replayed is not None:
                return replayed
        leaf = inputs.detach().requires_grad_(True)
        with torch.enable_grad(), self._noise_for(inputs):
            values, fooled = self._measured(self._draws(leaf), labels, goals)
            gradient = _gradient(values, leaf)
        return Perturbed(inputs, values.detach(), fooled, grad=gradient)

    def on_new_draws(self) -> "AttackTarget":
        """The same with fresh noise frozen to new draws, which compare several points.

        On draws of its own, a point that was lucky once is hard to beat, and a small change is lost in the noise.
        """
        self._num_random += 1
        return replace(self, noise="frozen", seed=noise_key(f"{self.seed}/compare/{self._num_random}"))

    def gradient(self, values: PerExample, leaf: Inputs) -> Inputs:
        """Gradient of a sum over examples with respect to the inputs."""
        self.backwards += self.num_samples
        return _gradient(values, leaf)

    def random(self, shape: Sequence[int], kind: Kind, like: Tensor) -> Tensor:
        """Random numbers for these rows: a function of the seed, the row and the number of calls before."""
        if not self.seeded:
            return fresh_noise(shape, kind, like.dtype, like.device)
        self._num_random += 1
        key = seed_tensor(self.seed), torch.zeros((), dtype=torch.int64), KEY, self._num_random
        noise: Tensor = seeded_noise(
            *key, shape, kind, like.dtype, like.device, antithetic=False, by_row=True, first_row=self.first_row
        )
        return noise

    @contextmanager
    def ready(
        self, seed: int | None, inputs: Inputs, labels: Labels, batch_size: int | None = None
    ) -> Iterator["AttackTarget"]:
        """A block that attacks or evaluates the target, once it is checked, with random numbers of a seed.

        Without a seed the generators of this thread go on. A model that draws from a global generator itself gets its
        numbers from there, under the lock, and is checked again with them.
        """
        stream, places = STATE.own.private_stream, {torch.device("cpu"), inputs.device}
        states = {} if seed is not None or stream is None else {place: generator_state(place) for place in places}
        with torch.no_grad(), isolated(self.model, training=False, trainable=False):
            with seeded(seed, inputs.device):
                self.check(inputs, labels, batch_size)
                if not (self.draws_itself and has_numbers_of_its_own()):
                    yield self
                    return
            for place, state in states.items():
                set_generator_state(place, state)
            with stream.lent(inputs.device) if stream and seed is None else seeded(seed, inputs.device, lend=True):
                self.check(inputs, labels, batch_size)
                yield self

    @torch.no_grad()
    def check(self, inputs: Inputs, labels: Labels, batch_size: int | None = None) -> None:
        """Refuse what cannot be attacked, by running a few rows; a network without noise is one draw from then on.

        Numbers that the model draws from a global generator itself do not come from generators of the run yet: where
        ``draws_itself`` is set, ``ready`` lends them, and checks again.
        """
        two = replace(self, num_samples=2, executor="loop", noise="off" if self.noise == "off" else "fresh")
        few = ROWS_TO_TRY if STATE.own.settings.memory is None else 1  # their footprint is not measured yet
        fewer = FewerRows(min(few, len(inputs), batch_size or len(inputs)))
        with LOCK if may_draw_on_host(self.model) else nullcontext():  # otherwise its draws would disturb a seeded run
            host = HostState()
            with Watch() as watch:
                draws = with_less_memory(
                    lambda: two.log_probs(inputs[: fewer.rows]), fewer.halve, also=(DoesNotFitError,)
                )
            moved = host.moved() != ""  # perhaps by another thread
            follows = moved and follows_host(self._frozen_outputs(inputs[: fewer.rows]))
            if follows and has_numbers_of_its_own():  # the run starts again
                host.put_back()
        differ = not torch.equal(draws[0], draws[-1])
        # Few discrete draws may agree by chance, so numbers drawn count as well.
        random = bool(watch.devices) or differ
        by_host = follows and (isinstance(self.model, nn.Module) or not random)  # functions run draw by draw anyway
        random |= by_host
        self.check_logits(draws, labels)
        if self.noise == "off" and random:
            raise ValueError(
                "noise='off' needs a model whose noise dubio draws; this one is random still, "
                "so choose noise='fresh' or 'frozen', or give Transfer a source"
            )
        self.num_samples = self.num_samples if random else 1
        self.is_random = random
        # Draws that differ without any number drawn come from an unseen generator, or from members of an ensemble.
        is_network = isinstance(self.model, nn.Module) and num_members(self.model) is None
        by_host |= differ and not (moved or watch.devices) and is_network and inputs.device.type in WATCHED
        self.draws_on_host = by_host or bool(watch.devices - {inputs.device.type})
        self.executor = "loop" if by_host else "auto"
        self.draws_itself = watch.itself or follows
        for drawn, what in ((watch.itself, TORCH), (follows, HOST)):
            if drawn:
                notice(self.model, what)

    def rows_at_a_time(self, inputs: Inputs, labels: Labels, with_gradient: bool = True) -> int:
        """How many examples, with all their draws, fit into the memory budget, from the footprint of a few.

        Memory that a draw takes whatever its rows, such as drawn weights, is the same for every batch and not counted.
        """
        single = replace(self, num_samples=1)
        budget, is_limited = memory_budget(inputs.device), STATE.own.settings.memory is not None

        def peak_of(rows: int) -> int:
            footprint = Footprint()
            with footprint:
                (single.loss_and_grad if with_gradient else single.evaluate)(inputs[:rows], labels[:rows])
            return footprint.peak

        def plan() -> None:
            rows = inputs[: fewer.rows].detach().requires_grad_(with_gradient)
            with self._noise_for(rows), torch.set_grad_enabled(with_gradient):
                call = Call(cast(nn.Module, self.model), (rows,), {}, STATE.own.settings)
                plan_for(call, self.num_samples, self.executor)

        one_row, fewer = peak_of(1), FewerRows(1)
        few = min(ROWS_TO_TRY, len(inputs), budget // max(one_row, 1) if is_limited else ROWS_TO_TRY)
        if few > 1:
            per_row = max(1, (peak_of(few) - one_row) // (few - 1))
            fewer.rows = max(1, min(len(inputs), budget // (per_row * self.num_samples)))
        if is_limited and isinstance(self.model, nn.Module):
            with_less_memory(plan, fewer.halve, also=(DoesNotFitError,))
        return fewer.rows

    def check_logits(self, log_probs: Tensor, labels: Tensor) -> None:
        """Refuse outputs that are no logits of classes, labels that name no class, and a loss that is constant."""
        if log_probs.dim() != 3:
            raise ValueError(f"the model must give one row of logits per input, got shape {tuple(log_probs.shape[1:])}")
        if not bool(log_probs.isfinite().any(dim=-1).all()):
            raise ValueError("the model must give finite logits, got NaN or infinite ones")
        num_classes = log_probs.shape[-1]
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= num_classes:
            wrong = low if low < 0 else high
            raise ValueError(f"targets must name classes from 0 to {num_classes - 1}, got {wrong}")
        if self.loss == "dlr" and num_classes < 3:
            raise ValueError("loss 'dlr' needs three classes or more, being constant for two; use 'margin'")

    @contextmanager
    def _noise_for(self, inputs: Tensor) -> Iterator[None]:
        """The noise of the attack, for rows of which the first is ``first_row``."""
        is_frozen = self.noise == "frozen"
        seed = seed_tensor(self.seed) if is_frozen else None
        settings = Using(mode=self.noise, seed=seed, first_row=self.first_row, num_rows=len(inputs))
        # Numbers that a model draws itself are frozen as those of the engine are.
        with seeded(self.seed if is_frozen else None, inputs.device, lend=self.draws_itself), settings:
            yield

    @property
    def _draws(self) -> Callable[[Tensor], Draws]:
        """Runs all draws; it adds no frame to those above the modules of a network."""
        if isinstance(self.model, nn.Module):
            return partial(self.through(run), self.model, num_samples=self.num_samples, executor=self.executor)
        return partial(_call, self.model, self.num_samples)

    @property
    def _likelihood(self) -> Categorical:
        likelihood = likelihood_of(self.model) if isinstance(self.model, nn.Module) else Categorical()
        assert isinstance(likelihood, Categorical)
        return likelihood

    def _measured(self, draws: Draws, labels: Tensor, goals: Tensor | None) -> tuple[Tensor, Tensor]:
        """The objective that the attacker raises, and whether the mean over the draws is fooled."""
        log_probs, classes = self._likelihood.log_probs(draws.outputs), labels if goals is None else goals
        values = functional.adversarial.averaged_attack_loss(log_probs, classes, self.objective, self.loss)
        right = functional.uncertainty.predictive_log_probs(log_probs).argmax(dim=-1) == labels
        return -values if self.targeted or goals is not None else values, right if self.targeted else ~right

    def _frozen_outputs(self, few: Tensor) -> Callable[[], Tensor]:
        """Runs the model so that only numbers of Python and NumPy, which may serve others too, change its outputs."""
        noise: Noise = "off" if self.noise == "off" else "frozen"
        still = replace(self, num_samples=1, executor="loop", noise=noise, draws_itself=False)

        def outputs() -> Tensor:
            with redirected(Stream(self.seed)):
                return still.log_probs(few)

        return outputs


def check_classifier(model: Model) -> None:
    """Refuse a model that does not give logits of classes."""
    if isinstance(model, nn.Module):
        likelihood = likelihood_of(model)
        if not isinstance(likelihood, Categorical):
            raise TypeError(f"attacks need a classifier, got a network with likelihood {likelihood}")
    elif not callable(model):
        raise TypeError(f"model must be a torch.nn.Module or a function of inputs, got {type(model).__name__}")


def _gradient(values: PerExample, leaf: Inputs) -> Inputs:
    gradient = torch.autograd.grad(values.sum(), leaf, allow_unused=True)[0] if values.requires_grad else None
    if gradient is None:
        raise ValueError(
            "the model's outputs must depend on its inputs through differentiable operations to be attacked by "
            "gradients; attacks.Square and attacks.RandomNoise need none"
        )
    return gradient


def _call(function: Callable[[Tensor], Tensor], num_samples: int, inputs: Tensor) -> Draws:
    """Draws of a bare function, one after another."""
    return Draws(torch.stack([function(inputs) for _ in range(num_samples)]), {})
