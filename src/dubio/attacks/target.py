"""The network under attack: log-probabilities of many draws, and the gradient of the attacker's objective.

A target is a network or a bare function from inputs to logits. During an attack it is in eval mode and its parameters
require no gradients; both are restored afterwards, as are its buffers (``tests/attacks/test_untouched.py``). Its noise
is *fresh* at every step, *frozen* to the same draws throughout, or *off*.

Random numbers of the attack itself come from here too. They belong to rows, so that cutting the data into batches
changes no attack on a network without noise (``test_the_batch_size_does_not_matter``).

Rows that fit into memory are estimated from the footprint of a few. Passes of an attack with many steps are recorded as
a CUDA graph, since all have the same shapes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dubio import functional
from dubio._engine import (
    HOST,
    LOCK,
    STATE,
    TORCH,
    Buffers,
    Call,
    Captured,
    DrawsItselfError,
    Executor,
    Footprint,
    HostState,
    Kind,
    Stream,
    Through,
    Using,
    Watch,
    as_it_is,
    eval_mode,
    follows_host,
    free_memory,
    fresh_noise,
    has_numbers_of_its_own,
    is_out_of_memory,
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
    shrink_chunks,
    signature,
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
T = TypeVar("T")

KEY = noise_key("attacks")
WARM_UPS = 2
"""Runs before a CUDA graph is recorded."""
ROWS_TO_TRY = 8
"""Rows that show what a network does and how much memory it takes."""
WATCHED = ("cpu", "cuda", "mps")
"""Devices whose random numbers are seen while they are drawn."""


class LossAndGrad(NamedTuple):
    """The attacker's objective at some inputs, and its gradient."""

    values: PerExample
    """The objective that the attacker raises."""
    fooled: Flags
    """Whether the mean over the draws predicts another class (when targeted: the target class)."""
    gradient: Inputs


class Recorder:
    """Replays a function of inputs and labels of one shape as a CUDA graph; gives up for good where that fails."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: Buffers | None = None
        self._captured: Captured[tuple[Tensor, ...]] | None = None
        self._failed = False

    def __call__(
        self, function: Callable[[Tensor, Tensor], tuple[Tensor, ...]], inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, ...] | None:
        """The function's outputs, replayed; None where they cannot be, and the caller runs the function."""
        if self._failed:
            return None
        buffers = self._buffers = self._buffers or Buffers((inputs, labels))
        if signature((inputs, labels)) != buffers.signature:
            return None
        if self._captured is None:
            self._captured = Captured(lambda: function(*buffers.values), self._device, WARM_UPS)
        buffers.copy((inputs, labels))
        try:
            return tuple(part.clone() for part in self._captured())
        except (RuntimeError, MemoryError):  # a network that reads values while it runs, or no memory left
            self._failed = True
        # Outside of the handler, where nothing refers to the failed recording any more.
        self.close()
        free_memory()
        return None

    def close(self) -> None:
        """Drop the recording: it refers to the target, which refers to this recorder."""
        self._captured = None


@dataclass
class AttackTarget:
    """A network or function, and how the attacker evaluates it; counts the passes that each example has cost."""

    model: Model
    num_samples: int
    objective: AttackObjective
    loss: AttackLoss
    noise: Noise
    seed: int
    targeted: bool = False
    first_row: int = 0
    is_random: bool = True
    """Whether two passes may differ; set by ``check``."""
    through: Through[Callable[..., object]] = as_it_is
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
            return self._draws(inputs)

    def evaluate(self, inputs: Inputs, labels: Labels, goals: Labels | None = None) -> tuple[PerExample, Flags]:
        """The objective that the attacker raises, per example, and whether the mean over the draws is fooled.

        The objective is the loss of the true label, or minus that of the target class; with ``goals``, minus that of
        the goals.
        """
        self.forwards += self.num_samples
        return self._evaluate(inputs, labels, goals)

    def labels(self, inputs: Inputs) -> Labels:
        """The classes that the mean over the draws predicts."""
        assert isinstance(self.model, nn.Module)
        self.forwards += self.num_samples
        forward = cast(Callable[..., Tensor], self.through(_network_log_probs))
        with torch.no_grad(), self._noise_for(inputs):
            log_probs = forward(self.model, inputs, self.num_samples, self.executor)
            return functional.uncertainty.predictive_log_probs(log_probs).argmax(dim=-1)

    def values(self, inputs: Inputs, labels: Labels) -> PerExample:
        """The objective that the attacker raises, per example."""
        return self.evaluate(inputs, labels)[0]

    def compare(self, one: Inputs, other: Inputs, labels: Labels) -> tuple[PerExample, PerExample]:
        """The objective at two points on the same draws, new ones at each call.

        On draws of its own, a point that was lucky once is hard to beat, and a small change is lost in the noise.
        """
        self._num_random += 1
        frozen = replace(self, noise="frozen", seed=noise_key(f"{self.seed}/compare/{self._num_random}"))
        values = frozen.values(one, labels), frozen.values(other, labels)
        self.forwards += frozen.forwards
        return values

    def loss_and_grad(self, inputs: Inputs, labels: Labels) -> LossAndGrad:
        """The objective, whether the target is fooled, and the gradient: that of the average over draws."""
        self.forwards += self.num_samples
        self.backwards += self.num_samples
        replayed = None if self.recorder is None else self.recorder(self._loss_and_grad, inputs, labels)
        return self._loss_and_grad(inputs, labels) if replayed is None else LossAndGrad(*replayed)

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

    @torch.no_grad()
    def check(self, inputs: Inputs, labels: Labels, batch_size: int | None = None) -> None:
        """Refuse what cannot be attacked, by running a few rows; a network without noise is one draw from then on.

        Raises:
            DrawsItselfError: the model draws from a global generator, and the run has generators of its own.
        """
        two = replace(self, num_samples=2, executor="loop", noise="off" if self.noise == "off" else "fresh")
        few = ROWS_TO_TRY if STATE.own.settings.memory is None else 1  # their footprint is not measured yet
        rows = min(few, len(inputs), batch_size or len(inputs))
        with LOCK if may_draw_on_host(self.model) else nullcontext():  # otherwise its draws would disturb a seeded run
            host = HostState()
            with Watch() as watch:
                tried, draws = _with_fewer_rows(lambda rows: (inputs[:rows], two.log_probs(inputs[:rows])), rows)
            moved = host.moved() != ""  # perhaps by another thread
            follows = moved and self._follows_host(tried)
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
        if self.draws_itself and has_numbers_of_its_own():
            raise DrawsItselfError(type(self.model).__name__)

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

        def planned(rows: int) -> int:
            with self._noise_for(inputs[:rows]), torch.set_grad_enabled(with_gradient):
                leaf = inputs[:rows].detach().requires_grad_(with_gradient)
                call = Call(cast(nn.Module, self.model), (leaf,), {}, STATE.own.settings)
                plan_for(call, self.num_samples, self.executor)
            return rows

        one_row, rows = peak_of(1), 1
        few = min(ROWS_TO_TRY, len(inputs), budget // max(one_row, 1) if is_limited else ROWS_TO_TRY)
        if few > 1:
            per_row = max(1, (peak_of(few) - one_row) // (few - 1))
            rows = max(1, min(len(inputs), budget // (per_row * self.num_samples)))
        return _with_fewer_rows(planned, rows) if is_limited and isinstance(self.model, nn.Module) else rows

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

    def _draws(self, inputs: Tensor) -> Tensor:
        if isinstance(self.model, nn.Module):
            return _network_log_probs(self.model, inputs, self.num_samples, self.executor)
        outputs = torch.stack([self.model(inputs) for _ in range(self.num_samples)])
        return Categorical().log_probs(outputs)

    def _evaluate(self, inputs: Tensor, labels: Tensor, goals: Tensor | None = None) -> tuple[Tensor, Tensor]:
        classes = labels if goals is None else goals
        with self._noise_for(inputs):
            if isinstance(self.model, nn.Module):
                loss = cast(Callable[..., tuple[Tensor, Tensor]], self.through(_network_loss))
                values, right = loss(
                    self.model, inputs, classes, labels, self.num_samples, self.objective, self.loss, self.executor
                )
            else:
                values, right = _loss(self._draws(inputs), classes, labels, self.objective, self.loss)
        raised = -values if self.targeted or goals is not None else values
        return raised, right if self.targeted else ~right

    def _loss_and_grad(self, inputs: Tensor, labels: Tensor) -> LossAndGrad:
        leaf = inputs.detach().requires_grad_(True)
        with torch.enable_grad():
            values, fooled = self._evaluate(leaf, labels)
            gradient = _gradient(values, leaf)
        return LossAndGrad(values.detach(), fooled, gradient)

    def _follows_host(self, few: Tensor) -> bool:
        """Whether outputs depend on numbers of Python and NumPy, which may serve others, such as a type checker."""
        noise: Noise = "off" if self.noise == "off" else "frozen"
        still = replace(self, num_samples=1, executor="loop", noise=noise, draws_itself=False)

        def outputs() -> Tensor:
            with redirected(Stream(self.seed)), still._noise_for(few):
                return still._draws(few)

        return follows_host(outputs)


class MemoryBackoff:
    """What an attack tries after an out-of-memory error: half as many draws at a time, then half as many rows."""

    def __init__(self, model: object, rows: int, num_samples: int) -> None:
        self.rows = rows
        self._model, self._num_samples = model, num_samples
        self._halvings = 0

    def take_less(self) -> None:
        """Halve draws first, as that changes nothing else; raises where one draw of one row is too much."""
        # Halved no more often than there are draws to halve: another process may have used up the memory.
        may_halve = isinstance(self._model, nn.Module) and self._halvings < self._num_samples.bit_length()
        if may_halve and shrink_chunks(cast(nn.Module, self._model)):
            self._halvings += 1
        elif self.rows > 1:
            self.rows, self._halvings = -(-self.rows // 2), 0
        else:
            raise torch.OutOfMemoryError(
                "the attack ran out of memory with one draw of one input at a time; it needs more memory, or smaller "
                "inputs"
            )
        free_memory()


@contextmanager
def untouched(model: Model) -> Iterator[None]:
    """A network in eval mode whose parameters require no gradients; all is restored at the end of the block."""
    if not isinstance(model, nn.Module):
        yield
        return
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    buffers = [
        (module, name, buffer, buffer._version, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_inference()
    ]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with eval_mode(model):
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        with torch.no_grad():
            for module, name, buffer, version, value in buffers:
                module._buffers[name] = buffer
                if buffer._version != version:  # writing an unchanged buffer would spoil a graph of the caller
                    buffer.copy_(value)


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


def _network_log_probs(
    model: nn.Module, inputs: Tensor, num_samples: int, executor: Executor
) -> Float[Tensor, "sample batch class"]:
    likelihood = likelihood_of(model)
    assert isinstance(likelihood, Categorical)
    return likelihood.log_probs(run(model, inputs, num_samples, executor=executor).outputs)


def _network_loss(
    model: nn.Module,
    inputs: Tensor,
    classes: Tensor,
    labels: Tensor,
    num_samples: int,
    objective: AttackObjective,
    loss: AttackLoss,
    executor: Executor,
) -> tuple[Tensor, Tensor]:
    return _loss(_network_log_probs(model, inputs, num_samples, executor), classes, labels, objective, loss)


def _loss(
    log_probs: Float[Tensor, "sample batch class"],
    classes: Labels,
    labels: Labels,
    objective: AttackObjective,
    loss: AttackLoss,
) -> tuple[PerExample, Flags]:
    """The loss of some classes, and whether the mean over the draws predicts the labels."""
    values = functional.adversarial.averaged_attack_loss(log_probs, classes, objective, loss)
    return values, functional.uncertainty.predictive_log_probs(log_probs).argmax(dim=-1) == labels


def _with_fewer_rows(run_rows: Callable[[int], T], rows: int) -> T:
    """Call with so many rows, with half as many, and so on, where memory or its limit is too small."""
    while True:
        try:
            return run_rows(rows)
        except (RuntimeError, ValueError, MemoryError) as error:
            is_refused = isinstance(error, ValueError) and STATE.own.settings.memory is not None
            if rows == 1 or not (is_refused or is_out_of_memory(error)):
                raise
        # Outside of the handler, where nothing refers to the failed attempt any more.
        free_memory()
        rows = -(-rows // 2)
