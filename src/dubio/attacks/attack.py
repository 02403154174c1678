"""What all attacks share: fields, checks, cutting the data by memory, and the result.

An attack is a frozen value; calling it with a network, inputs and labels gives adversarial inputs. A new attack says
in ``_perturb`` how it moves the inputs; everything else, the contract test included, it gets from here.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dubio import functional
from dubio.attacks.progress import Ticker
from dubio.attacks.victims import Model, Noise, Victim, untouched
from dubio.functional.adversarial import AttackLoss, AttackObjective, Norm
from dubio.likelihoods import Categorical, likelihood_of
from dubio.sampling.settings import check_num_samples

__all__ = ["Attack", "Attacked", "Perturbed"]


@dataclass(frozen=True, eq=False)
class Perturbed:
    """What an attack made of some examples."""

    inputs: Float[Tensor, "batch ..."]
    values: Float[Tensor, " batch"]
    """What the attacker raises, as the draws that selected the inputs see it."""
    fooled: Bool[Tensor, " batch"]
    """Whether those draws take the inputs for another class (when targeted: for the wanted one)."""


@dataclass(frozen=True, eq=False)
class Attacked:
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


@dataclass(frozen=True)
class Attack:
    """Fields of every attack.

    Args:
        epsilon: how far an input may move, in ``norm``; None where the attack finds the smallest distance itself.
        norm: ``"linf"`` or ``"l2"``.
        num_samples: draws over which every loss and gradient is averaged (expectation over transformation). A network
            without noise is one draw.
        objective: what is averaged: ``"predictive"`` probabilities, ``"expected"`` losses or ``"mean_logit"``.
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

    def __post_init__(self) -> None:
        check_num_samples(self.num_samples)
        choices = {"norm": Norm, "objective": AttackObjective, "loss": AttackLoss, "noise": Noise}
        for name, kind in choices.items():
            if getattr(self, name) not in get_args(kind):
                options = ", ".join(map(repr, get_args(kind)))
                raise ValueError(f"{name} must be one of {options}, got {getattr(self, name)!r}")
        low, high = self.bounds
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"bounds must be two finite numbers, the smaller one first, got {self.bounds}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        self._check_epsilon()

    def __call__(
        self, model: Model, inputs: Float[Tensor, "batch ..."], targets: Int[Tensor, " batch"], *, progress: bool = True
    ) -> Attacked:
        """Attack a network (or a function from inputs to logits) on inputs whose labels are ``targets``."""
        self._check_call(model, inputs, targets)
        began = time.perf_counter()
        with untouched(model), _randomness(self.seed, inputs.device), torch.no_grad():
            victim = self._victim(model)
            victim.check(inputs, targets)
            rows = self.batch_size or victim.rows_at_a_time(inputs, targets)
            count = -(-len(inputs) // rows)
            parts, ticker = [], Ticker(count * self._num_steps(), type(self).__name__, progress)
            for first in range(0, len(inputs), rows):
                part = replace(victim, first_row=first)
                piece = slice(first, first + rows)
                parts.append((part, self._perturb(part, inputs[piece], targets[piece], ticker)))
            ticker.close()
        perturbed = [part for _, part in parts]
        adversarial = torch.cat([part.inputs for part in perturbed])
        return Attacked(
            adversarial,
            torch.cat([part.values for part in perturbed]),
            functional.perturbation_norm(adversarial - inputs, self.norm),
            torch.cat([part.fooled for part in perturbed]),
            forwards=max(part.forwards for part, _ in parts),
            backwards=max(part.backwards for part, _ in parts),
            seconds=time.perf_counter() - began,
        )

    def _perturb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Perturbed:
        """Move the inputs of some examples."""
        raise TypeError(f"{type(self).__name__} is what attacks share, not an attack; see dubio.attacks")

    def _num_steps(self) -> int:
        """Ticks of one piece, for the progress bar."""
        return 1

    def _victim(self, model: Model) -> Victim:
        seed = int(torch.randint(2**31, ())) if self.seed is None else self.seed
        return Victim(model, self.num_samples, self.objective, self.loss, self.noise, seed, self.targeted)

    def _select(self, victim: Victim, inputs: Tensor, targets: Tensor) -> Perturbed:
        """Look at candidates with draws of their own."""
        log_probs = victim.log_probs(inputs)
        values = functional.averaged_attack_loss(log_probs, targets, self.objective, self.loss)
        labels = functional.predictive_log_probs(log_probs).argmax(dim=-1)
        if self.targeted:
            return Perturbed(inputs, -values, labels == targets)
        return Perturbed(inputs, values, labels != targets)

    def _inside(self, candidate: Tensor, inputs: Tensor) -> Tensor:
        """The nearest allowed point: in the ball around the inputs, and in the box."""
        assert self.epsilon is not None
        within = inputs + functional.project_perturbation(candidate - inputs, self.norm, self.epsilon)
        if self.norm == "linf":  # a sum is rounded, and may be rounded out of the ball
            within = torch.where((within - inputs).abs() > self.epsilon, torch.nextafter(within, inputs), within)
        return within.clamp(*self.bounds)

    def _random_start(self, inputs: Tensor) -> Tensor:
        assert self.epsilon is not None
        uniform, normal = torch.rand_like(inputs), torch.randn_like(inputs)
        return self._inside(inputs + functional.random_perturbation(uniform, normal, self.norm, self.epsilon), inputs)

    def _check_epsilon(self) -> None:
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
        if isinstance(model, nn.Module) and not isinstance(likelihood_of(model), Categorical):
            raise TypeError(f"attacks need a classifier, got a network with likelihood {likelihood_of(model)}")
        if not isinstance(model, nn.Module) and not callable(model):
            raise TypeError(f"model must be a torch.nn.Module or a function of inputs, got {type(model).__name__}")
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            kind = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
            raise TypeError(f"inputs must be a tensor of real numbers, got {kind}; dubio.data.scaled makes images such")
        if len(inputs) == 0 or targets.shape != inputs.shape[:1]:
            raise ValueError(
                f"targets must be one label per input, got shapes {tuple(targets.shape)} and {tuple(inputs.shape)}"
            )
        if targets.is_floating_point() or targets.dtype == torch.bool:
            raise TypeError(f"targets must be whole numbers that name classes, got {targets.dtype}")
        low, high = self.bounds
        if not bool(((inputs >= low) & (inputs <= high)).all()):
            raise ValueError(
                f"inputs must lie in bounds [{low:g}, {high:g}], got values from {inputs.min().item():g} to "
                f"{inputs.max().item():g}; normalisation belongs to the model, or pass bounds=(low, high)"
            )


@contextmanager
def _randomness(seed: int | None, device: torch.device) -> Iterator[None]:
    """A generator of one's own where there is a seed; else torch's, which goes on."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
