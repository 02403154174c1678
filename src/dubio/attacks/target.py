"""The network under attack: log-probabilities of many draws, and the gradient of the attacker's loss.

A victim is a network or a bare function from inputs to logits. It is in eval mode while it is attacked, its parameters
ask for no gradients, and both are put back afterwards, as are its buffers (``tests/attacks/test_untouched.py``). Its
noise is *fresh* at every step, *frozen* to the same draws throughout, or *off*.

Random numbers of the attack itself come from here too. They belong to rows, so that cutting the data into batches
changes no attack on a network without noise (``test_the_batch_size_does_not_matter``).

Looks of an attacker, recorded as a CUDA graph: an attack of many steps looks at the same shapes again and again.

How many rows fit into memory at a time, found by trying a few.
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

Model = nn.Module | Callable[[Tensor], Tensor]


Noise = Literal["fresh", "frozen", "off"]


KEY = noise_key("attacks")


class LossAndGrad(NamedTuple):
    """What the attacker learns from one look at some inputs."""

    values: Float[Tensor, " batch"]
    """What the attacker raises."""
    fooled: Bool[Tensor, " batch"]
    """Whether the mean over the draws is another class (when targeted: the wanted one)."""
    gradient: Float[Tensor, "batch ..."]


Look = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


class Recorder:
    """Replays a look at inputs and labels of one shape; where it cannot be recorded, it says so once and for all."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: Buffers | None = None
        self._captured: Captured[tuple[Tensor, ...]] | None = None
        self._failed = False

    def __call__(self, look: Look, inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...] | None:
        """What the look gives, from its recording; None where there is none, and it must be taken."""
        if self._failed or not self._fits(inputs, labels):
            return None
        if self._captured is None:
            own = self._own
            self._captured = Captured(lambda: look(*own.values), self._device, WARM_UPS)
        self._own.copy((inputs, labels))
        try:
            return tuple(part.clone() for part in self._captured())
        except (RuntimeError, MemoryError):  # a network that asks for values while it runs, or no memory left
            self._failed = True
        # Outside of the handler, where nothing refers to the failed recording any more.
        self.close()
        free_memory()
        return None

    def close(self) -> None:
        """Let go of the recording, which holds whoever looks, who holds this."""
        self._captured = None

    @property
    def _own(self) -> Buffers:
        assert self._buffers is not None
        return self._buffers

    def _fits(self, inputs: Tensor, labels: Tensor) -> bool:
        if self._buffers is None:
            self._buffers = Buffers((inputs, labels))
        return signature((inputs, labels)) == self._buffers.signature


@dataclass
class AttackTarget:
    """A network or function, and how it is looked at; counts the passes that each example has cost."""

    model: Model
    num_samples: int
    objective: AttackObjective
    loss: AttackLoss
    noise: Noise
    seed: int
    targeted: bool = False
    first_row: int = 0
    is_random: bool = True
    """Whether looking twice may show two things; found out by ``check``."""
    through: Through[Callable[..., object]] = as_it_is
    """How looks at a network are run."""
    seeded: bool = True
    """Whether the attack's own random numbers come from its seed, or from torch's generator as it stands."""
    recorder: Recorder | None = None
    """Replays looks, where that pays."""
    executor: Executor = "auto"
    """How draws are run; looped where mapped ones would share what the host draws, found out by ``check``."""
    draws_on_host: bool = False
    """Whether a recording would repeat what the host draws; found out by ``check``."""
    draws_itself: bool = True
    """Whether the model may draw from a global generator itself; found out by ``check``."""
    forwards: int = field(default=0, init=False)
    backwards: int = field(default=0, init=False)
    _num_asked: int = field(default=0, init=False)

    def log_probs(self, inputs: Float[Tensor, "batch ..."]) -> Float[Tensor, "sample batch class"]:
        """Log-probabilities of all draws, differentiable."""
        self.forwards += self.num_samples
        return self._log_probs(inputs)

    def _log_probs(self, inputs: Tensor) -> Tensor:
        with self._looking_at(inputs):
            return self._draws(inputs)

    def _draws(self, inputs: Tensor) -> Tensor:
        if not isinstance(self.model, nn.Module):
            return Categorical().log_probs(self._call_function(self.model, inputs))
        return _network_log_probs(self.model, inputs, self.num_samples, self.executor)

    def judge(
        self,
        inputs: Float[Tensor, "batch ..."],
        labels: Int[Tensor, " batch"],
        goals: Int[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, " batch"], Bool[Tensor, " batch"]]:
        """What the attacker raises, per example, and whether the mean over the draws is fooled.

        Raised is the loss of the true label, or minus that of the wanted one; with ``goals``, minus that of those.
        """
        self.forwards += self.num_samples
        return self._judge(inputs, labels, goals)

    def _judge(self, inputs: Tensor, labels: Tensor, goals: Tensor | None = None) -> tuple[Tensor, Tensor]:
        seen = labels if goals is None else goals
        if isinstance(self.model, nn.Module):
            judge = cast(Callable[..., tuple[Tensor, Tensor]], self.through(_judge_network))
            with self._looking_at(inputs):
                values, right = judge(
                    self.model, inputs, seen, labels, self.num_samples, self.objective, self.loss, self.executor
                )
        else:
            values, right = _judge(self._log_probs(inputs), seen, labels, self.objective, self.loss)
        raised = -values if self.targeted or goals is not None else values
        return raised, right if self.targeted else ~right

    def labels(self, inputs: Float[Tensor, "batch ..."]) -> Int[Tensor, " batch"]:
        """What the mean over the draws takes the inputs for."""
        assert isinstance(self.model, nn.Module)
        self.forwards += self.num_samples
        look = cast(Callable[..., Tensor], self.through(_network_log_probs))
        with torch.no_grad(), self._looking_at(inputs):
            log_probs = look(self.model, inputs, self.num_samples, self.executor)
            return functional.uncertainty.predictive_log_probs(log_probs).argmax(dim=-1)

    def values(self, inputs: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """What the attacker raises, per example."""
        return self.judge(inputs, labels)[0]

    def compare(
        self, one: Float[Tensor, "batch ..."], other: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """What the attacker raises at two points, as the same draws see it: new ones at each call.

        Seen by draws of its own, a point that was lucky once is hard to beat, and a small change is lost in the noise.
        """
        self._num_asked += 1
        twin = replace(self, noise="frozen", seed=noise_key(f"{self.seed}/compare/{self._num_asked}"))
        values = twin.values(one, labels), twin.values(other, labels)
        self.forwards += twin.forwards
        return values

    def look(self, inputs: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"]) -> LossAndGrad:
        """What the attacker raises, whether it has won, and the gradient: that of the average over draws."""
        replayed = None if self.recorder is None else self.recorder(self._view, inputs, labels)
        found = self._view(inputs, labels) if replayed is None else LossAndGrad(*replayed)
        self.forwards += self.num_samples
        self.backwards += self.num_samples
        return found

    def _view(self, inputs: Tensor, labels: Tensor) -> LossAndGrad:
        leaf = inputs.detach().requires_grad_(True)
        with torch.enable_grad():
            values, fooled = self._judge(leaf, labels)
            gradient = _gradient(values, leaf)
        return LossAndGrad(values.detach(), fooled, gradient)

    def gradient(self, values: Float[Tensor, " batch"], leaf: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Gradient of a sum over examples with respect to the inputs."""
        self.backwards += self.num_samples
        return _gradient(values, leaf)

    def random(self, shape: Sequence[int], kind: Kind, like: Tensor) -> Tensor:
        """Random numbers for the rows at hand: a function of the seed, the row and how often was asked before."""
        if not self.seeded:
            return fresh_noise(shape, kind, like.dtype, like.device)
        self._num_asked += 1
        found: Tensor = seeded_noise(
            seed_tensor(self.seed),
            torch.zeros((), dtype=torch.int64),
            KEY,
            self._num_asked,
            shape,
            kind,
            like.dtype,
            like.device,
            antithetic=False,
            by_row=True,
            first_row=self.first_row,
        )
        return found

    def __post_init__(self) -> None:
        """Look at all members of an ensemble, each once: fewer draws would spare some, more would repeat them."""
        members = num_members(self.model) if isinstance(self.model, nn.Module) else None
        self.num_samples = members or self.num_samples

    @torch.no_grad()
    def check(
        self, inputs: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"], batch_size: int | None = None
    ) -> None:
        """Refuse what cannot be attacked, by running a few rows; a network without noise is one draw from then on.

        Raises:
            DrawsItselfError: the model draws from a global generator, and the run has generators of its own.
        """
        wanted = self.num_samples
        two = replace(self, num_samples=2, executor="loop", noise="off" if self.noise == "off" else "fresh")
        rows = min(rows_to_try(), len(inputs), batch_size or len(inputs))
        with LOCK if may_draw_on_host(self.model) else nullcontext():  # else its draws would disturb a seeded run
            host = HostState()
            with Watch() as watch:
                few, draws = with_fewer_rows(lambda rows: (inputs[:rows], two.log_probs(inputs[:rows])), rows)
            moved = host.moved() != ""  # maybe by another thread
            follows = moved and self._follows_the_host(few)
            if follows and has_numbers_of_its_own():  # the run begins anew
                host.put_back()
        differ = not torch.equal(draws[0], draws[-1])
        # Draws that are few and discrete may agree by chance: whether numbers were drawn tells more.
        random = bool(watch.devices) or differ
        by_host = follows and (isinstance(self.model, nn.Module) or not random)  # functions run draw by draw anyway
        random |= by_host
        self.check_logits(draws, labels)
        if self.noise == "off" and random:
            raise ValueError(
                "noise='off' needs a model whose noise dubio draws; this one is random still, "
                "so choose noise='fresh' or 'frozen', or give Transfer a source"
            )
        self.num_samples = wanted if random else 1
        self.is_random = random
        drew = moved or bool(watch.devices)
        by_host |= differ and not drew and self._needs_a_generator(inputs.device)
        self.draws_on_host = by_host or bool(watch.devices - {inputs.device.type})
        self.executor = "loop" if by_host else "auto"
        self.draws_itself = watch.itself or follows
        for drawn, what in ((watch.itself, TORCH), (follows, HOST)):
            if drawn:
                notice(self.model, what)
        if self.draws_itself and has_numbers_of_its_own():
            raise DrawsItselfError(type(self.model).__name__)

    def _follows_the_host(self, few: Tensor) -> bool:
        """Whether what Python and NumPy draw shows: they may serve others, such as one who checks types at random."""
        still = replace(
            self, num_samples=1, executor="loop", noise="off" if self.noise == "off" else "frozen", draws_itself=False
        )

        def look() -> Tensor:
            with redirected(Stream(self.seed)), still._looking_at(few):
                return still._draws(few)

        return follows_host(look)

    def _needs_a_generator(self, device: torch.device) -> bool:
        """Whether draws that differ have been drawn, if by one that nobody knows: members of an ensemble have not."""
        watched = device.type in ("cpu", "cuda", "mps")
        return watched and isinstance(self.model, nn.Module) and num_members(self.model) is None

    def rows_at_a_time(
        self, inputs: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"], with_gradient: bool = True
    ) -> int:
        """How many examples, with all their draws, fit into the memory budget; found by attacking a few."""
        probe = replace(self, num_samples=1)

        def peak_of(rows: int) -> int:
            footprint = Footprint()
            with footprint:
                (probe.look if with_gradient else probe.judge)(inputs[:rows], labels[:rows])
            return footprint.peak

        def planned(rows: int) -> int:
            with self._looking_at(inputs[:rows]), torch.set_grad_enabled(with_gradient):
                leaf = inputs[:rows].detach().requires_grad_(with_gradient)
                call = Call(cast(nn.Module, self.model), (leaf,), {}, STATE.own.settings)
                plan_for(call, self.num_samples, self.executor)
            return rows

        rows = rows_that_fit(peak_of, len(inputs), self.num_samples, inputs.device)
        limited = STATE.own.settings.memory is not None and isinstance(self.model, nn.Module)
        return with_fewer_rows(planned, rows) if limited else rows

    def check_logits(self, log_probs: Tensor, labels: Tensor) -> None:
        """Refuse outputs that are no logits of classes, labels that name none, and a loss that says nothing."""
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
    def _looking_at(self, inputs: Tensor) -> Iterator[None]:
        """The noise as the attacker wants it, for rows that stand where they stand."""
        seed = seed_tensor(self.seed) if self.noise == "frozen" else None
        settings = Using(mode=self.noise, seed=seed, first_row=self.first_row, num_rows=len(inputs))
        # A model's own noise is frozen as the engine freezes its own.
        own_seed = self.seed if self.noise == "frozen" else None
        with seeded(own_seed, inputs.device, lend=self.draws_itself), settings:
            yield

    def _call_function(self, function: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        return torch.stack([function(inputs) for _ in range(self.num_samples)])


def _gradient(values: Float[Tensor, " batch"], leaf: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
    found = torch.autograd.grad(values.sum(), leaf, allow_unused=True)[0] if values.requires_grad else None
    if found is None:
        raise ValueError(
            "the model's outputs must depend on its inputs through differentiable operations to be attacked by "
            "gradients; attacks.Square and attacks.RandomNoise need none"
        )
    return found


def _network_log_probs(
    model: nn.Module, inputs: Tensor, num_samples: int, executor: Executor
) -> Float[Tensor, "sample batch class"]:
    likelihood = likelihood_of(model)
    assert isinstance(likelihood, Categorical)
    return likelihood.log_probs(run(model, inputs, num_samples, executor=executor).outputs)


def _judge_network(
    model: nn.Module,
    inputs: Tensor,
    seen: Tensor,
    labels: Tensor,
    num_samples: int,
    objective: AttackObjective,
    loss: AttackLoss,
    executor: Executor,
) -> tuple[Tensor, Tensor]:
    return _judge(_network_log_probs(model, inputs, num_samples, executor), seen, labels, objective, loss)


def _judge(
    log_probs: Float[Tensor, "sample batch class"],
    seen: Int[Tensor, " batch"],
    labels: Int[Tensor, " batch"],
    objective: AttackObjective,
    loss: AttackLoss,
) -> tuple[Float[Tensor, " batch"], Bool[Tensor, " batch"]]:
    """The loss of the labels that are looked at, and whether the mean over the draws names the others."""
    values = functional.adversarial.averaged_attack_loss(log_probs, seen, objective, loss)
    return values, functional.uncertainty.predictive_log_probs(log_probs).argmax(dim=-1) == labels


def check_classifier(model: Model) -> None:
    """Refuse what does not give logits of classes."""
    if isinstance(model, nn.Module):
        likelihood = likelihood_of(model)
        if not isinstance(likelihood, Categorical):
            raise TypeError(f"attacks need a classifier, got a network with likelihood {likelihood}")
    elif not callable(model):
        raise TypeError(f"model must be a torch.nn.Module or a function of inputs, got {type(model).__name__}")


@contextmanager
def untouched(model: Model) -> Iterator[None]:
    """A network in eval mode whose parameters ask for no gradients; all as it was when the block is left."""
    if not isinstance(model, nn.Module):
        yield
        return
    wanting = [parameter for parameter in model.parameters() if parameter.requires_grad]
    buffers = [
        (module, name, buffer, buffer._version, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_inference()
    ]
    for parameter in wanting:
        parameter.requires_grad_(False)
    try:
        with eval_mode(model):
            yield
    finally:
        for parameter in wanting:
            parameter.requires_grad_(True)
        with torch.no_grad():
            for module, name, buffer, version, value in buffers:
                module._buffers[name] = buffer
                if buffer._version != version:  # writing into one that is as it was would spoil a graph of the caller
                    buffer.copy_(value)


WARM_UPS = 2


ROWS_TO_TRY = 8


T = TypeVar("T")


class MemoryBackoff:
    """How an attack goes on when memory has run out: with half as many draws at a time, then half as many rows."""

    def __init__(self, model: object, rows: int, num_samples: int) -> None:
        self.rows = rows
        self._model, self._num_samples = model, num_samples
        self._halvings = 0

    def take_less(self) -> None:
        """Draws at a time first, as that changes nothing else; raises where one draw of one row is too much."""
        # Halved no more often than there are draws to halve: it may be another's memory that ran out.
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


def rows_to_try() -> int:
    """A few rows, to see what a network does with them; under a limit one, since nobody knows yet what it takes."""
    return ROWS_TO_TRY if STATE.own.settings.memory is None else 1


def with_fewer_rows(look: Callable[[int], T], rows: int) -> T:
    """What a look at so many rows gives; at half as many, and half of these, where memory or its limit is too small."""
    while True:
        try:
            return look(rows)
        except (RuntimeError, ValueError, MemoryError) as error:
            refused = isinstance(error, ValueError) and STATE.own.settings.memory is not None
            if rows == 1 or not (refused or is_out_of_memory(error)):
                raise
        # Outside of the handler, where nothing refers to the failed look any more.
        free_memory()
        rows = -(-rows // 2)


def rows_that_fit(peak_of: Callable[[int], int], most: int, num_samples: int, device: torch.device) -> int:
    """Rows whose own part of ``num_samples`` draws fits into the budget; ``peak_of`` tells what rows take in one draw.

    What a draw takes whatever its rows, such as drawn weights, is the same in every batch: fewer rows would only make
    more of it.
    """
    budget = memory_budget(device)
    one = peak_of(1)
    more = min(ROWS_TO_TRY, most, most if STATE.own.settings.memory is None else budget // max(one, 1))
    if more < 2:
        return 1
    per_row = max(1, (peak_of(more) - one) // (more - 1))
    return max(1, min(most, budget // (per_row * num_samples)))
