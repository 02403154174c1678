"""Objectives: what ``fit`` and custom training loops minimize.

``ELBO`` is the variational free energy, the mean negative log-likelihood plus the divergence from the prior, per
example: ``total = mean nll + beta * pi_i / B_i * KL`` (E-5). With uniform weights this is ``mean nll + beta * KL / N``,
whatever the batch size. Summed over an epoch, each batch weighted by its size, it is the free energy of the whole data
(E-1), also with a short last batch and with accumulated batches (``tests/objectives/test_elbo.py``). Reference:
Blundell et al. 2015, sections 3.1 and 3.4.

The others change one part of it:

- ``Alpha``: alpha-divergences for any sampler, ``total = mean_n -(1/alpha) log mean_k p(y_n | x_n, draw k)^alpha +
  beta * KL / N`` (E-30, E-35). Reference: Li and Gal 2017; Hernandez-Lobato et al. 2016 for the energy that it
  approximates.
- ``BootstrapSoft`` and ``BootstrapHard``: training with wrong labels. A part of each target is replaced with the
  predicted probabilities (E-68) or the predicted class (E-69). Reference: Reed et al. 2015, Training Deep Neural
  Networks on Noisy Labels with Bootstrapping.
- ``EnsembleLoss``: the sum of the losses of an ensemble's members, each trained as if it were alone.
- ``Adversarial``: the loss of attacked inputs, alone or beside that of clean inputs (E-59). ``weight = 0`` and
  ``label = "true"`` is min-max training (Madry et al. 2018). With ``label = "own"`` the attack moves away from the
  class that the network predicts for the clean input: an attack that uses the true label can be recognized by it (label
  leaking). The attack runs the network in eval mode and restores it: only the two training passes update batch
  statistics.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from types import FunctionType
from typing import Any, Literal, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Draws, Executor, Inputs, Through, as_it_is, isolated, run
from dubio.attacks import PGD, Attack
from dubio.checks import check_choice
from dubio.functional.variational import KlWeighting
from dubio.likelihoods import Categorical, Gaussian, Likelihood, likelihood_of, observation_scale
from dubio.nn import closed_divergence, closed_entropy, divergence, weight_matrices

Losses = Callable[[Likelihood, Tensor, Tensor, Tensor | None], Tensor]
"""Computes the loss of every draw and example from a likelihood, outputs, targets and the learned observation noise."""
ObjectiveT = TypeVar("ObjectiveT", bound="BatchObjective")
WrapperT = TypeVar("WrapperT", bound="_Wrapper")


@dataclass(frozen=True)
class Loss:
    """The number to minimize and its parts."""

    total: Float[Tensor, ""]
    """Per example: call ``total.backward()``."""
    nll: Float[Tensor, ""]
    """Mean negative log-likelihood over draws and examples."""
    terms: dict[str, Float[Tensor, ""]]
    """The other parts of the total, before weighting."""
    log_probs: Float[Tensor, "sample batch ..."] | None
    """Log-probabilities of classes per draw, without gradient; None for real targets."""


@dataclass(frozen=True)
class BatchContext:
    """A batch, its place in the run and how it is sampled; ``ELBO.__call__`` describes the fields."""

    model: nn.Module
    inputs: Inputs
    targets: Tensor
    num_samples: int = 1
    sample_weight: Tensor | None = None
    batch_index: int | Tensor | None = None
    num_batches: int | None = None
    epoch: float | Tensor | None = None
    num_parts: int = 1
    seed: int | Tensor | None = None
    executor: Executor = "auto"
    attacked: Tensor | None = None

    def loss_of(self, objective: Callable[..., Loss]) -> Loss:
        """Call an objective with this batch; options that not every objective takes are passed where they are set."""
        options = {name: getattr(self, name) for name in ("sample_weight", "batch_index", "num_batches", "epoch")}
        for name, default in (("num_parts", 1), ("seed", None), ("executor", "auto"), ("attacked", None)):
            if getattr(self, name) is not default:
                options[name] = getattr(self, name)
        return objective(self.model, self.inputs, self.targets, self.num_samples, **options)


@runtime_checkable
class Objective(Protocol):
    """The protocol of an objective: called with a network, inputs and targets, it returns a ``Loss``."""

    @property
    def num_data(self) -> int | None:
        """Number of training examples, or None where it is not set."""

    def with_num_data(self, num_data: int) -> "Objective":
        """Return the same objective for this number of training examples."""

    def __call__(
        self,
        model: nn.Module,
        inputs: Inputs,
        targets: Tensor,
        num_samples: int = 1,
        *,
        sample_weight: Tensor | None = None,
        batch_index: int | None = None,
        num_batches: int | None = None,
        epoch: float | None = None,
    ) -> Loss:
        """The loss of one batch."""


class BatchObjective(ABC):
    """Base class of the objectives: it collects the arguments of a call in a ``BatchContext``."""

    @abstractmethod
    def compute(self, batch: BatchContext) -> Loss:
        """Compute the loss of one batch."""

    @property
    def loss_of(self) -> Callable[[BatchContext], Loss]:
        """``compute``, or the call of a subclass that has one of its own."""
        has_own_call = type(self).__call__ is not BatchObjective.__call__
        return partial(BatchContext.loss_of, objective=self) if has_own_call else self.compute

    def with_num_data(self: ObjectiveT, num_data: int) -> ObjectiveT:
        """Return this objective for the given number of training examples."""
        return cast(ObjectiveT, replace(cast(Any, self), num_data=num_data))

    def __call__(
        self,
        model: nn.Module,
        inputs: Inputs,
        targets: Shaped[Tensor, "batch ..."],
        num_samples: int = 1,
        *,
        sample_weight: Float[Tensor, "batch ..."] | None = None,
        batch_index: int | Tensor | None = None,
        num_batches: int | None = None,
        epoch: float | Tensor | None = None,
        num_parts: int = 1,
        seed: int | Tensor | None = None,
        executor: Executor = "auto",
        attacked: Float[Tensor, "batch ..."] | None = None,
    ) -> Loss:
        """Compute the loss of one batch.

        Args:
            model: a converted network.
            inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments.
            targets: one per row, as the likelihood of the network expects them.
            num_samples: number of draws over which the expectation is taken.
            sample_weight: multiplies the negative log-likelihood of each example, or `(batch, sample)` of each draw.
            batch_index: index of the batch in the epoch, from 0 (for geometric weights).
            num_batches: number of batches in an epoch (for geometric weights).
            epoch: number of epochs trained so far, for the warm-up; may be fractional. It and ``batch_index`` may be
                tensors, which a captured step reads again at each replay.
            num_parts: number of processes that share the batch, each with a part of it (for geometric weights).
            seed: freezes the draws.
            executor: ``"vmap"``, ``"loop"`` or ``"auto"``.
            attacked: for ``Adversarial``, the inputs that ``attack_inputs`` returned; None attacks them here.
        """
        options = (batch_index, num_batches, epoch, num_parts, seed, executor, attacked)
        return self.compute(BatchContext(model, inputs, targets, num_samples, sample_weight, *options))


class _FreeEnergy(BatchObjective):
    """Base class of the objectives that add a divergence to a loss; ``ELBO`` describes the fields."""

    num_data: int | None
    beta: float
    gamma: float
    kl_weighting: KlWeighting
    warmup: int
    l2: float
    l2_per: Literal["weight", "unit"] = "weight"
    losses: Losses | None = None

    def __post_init__(self) -> None:
        if self.num_data is not None and self.num_data < 1:
            raise ValueError(f"num_data must be at least 1, got {self.num_data}")
        for name in ("beta", "gamma", "l2"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} must be finite and at least 0, got {value}")
        check_choice("l2_per", self.l2_per, ("weight", "unit"))
        check_choice("kl_weighting", self.kl_weighting, ("uniform", "geometric", "none"))
        if self.warmup < 0:
            raise ValueError(f"warmup must be at least 0 epochs, got {self.warmup}")

    def compute(self, batch: BatchContext) -> Loss:
        """Compute the loss of one batch."""
        self._check_batch(batch)
        model, seed = batch.model, batch.seed
        likelihood = likelihood_of(model)
        collecting = ("divergence", "penalty", *(("entropy",) if self.gamma else ()))
        draws = run(model, batch.inputs, batch.num_samples, seed=seed, executor=batch.executor, collecting=collecting)
        nll_per_example = (self.losses or _nll)(likelihood, draws.outputs, batch.targets, observation_scale(model))
        nll_per_example, energy_per_example = self._weighted(nll_per_example, batch.sample_weight)
        kl = self._divergence(model, draws, batch.num_samples, seed)

        share = self._share(len(energy_per_example), batch)
        entropy = self._entropy(model, draws)
        weighted = functional.variational.weighted_divergence(kl, self._beta(batch.epoch), entropy, self.gamma)
        penalties = self._penalties(model, draws)
        total = functional.variational.minibatch_cost(energy_per_example.unsqueeze(0), weighted, share)
        total = sum(penalties.values(), total)
        terms = {"divergence": kl} | ({} if entropy is None else {"entropy": entropy}) | penalties
        log_probs = None if isinstance(likelihood, Gaussian) else likelihood.log_probs(draws.outputs.detach())
        return Loss(total, nll_per_example.mean(), terms, log_probs)

    def energy(self, nll_per_example: Float[Tensor, "sample batch"]) -> Float[Tensor, " batch"]:
        """Reduce the losses of all draws to one per example: their mean (E-2)."""
        return nll_per_example.mean(dim=0)

    def _check_batch(self, batch: BatchContext) -> None:
        """Refuse a batch before the network runs on it."""
        if not isinstance(batch.targets, Tensor):
            raise TypeError(
                f"targets must be a tensor, got {type(batch.targets).__name__}; use torch.as_tensor(targets)"
            )
        if batch.attacked is not None:
            raise ValueError("attacked must be None for every objective but Adversarial, got a tensor")

    def _share(self, batch_size: int, batch: BatchContext) -> float | Tensor:
        """The share of the divergence that this batch carries."""
        if self.num_data is None:
            raise ValueError(
                "num_data must be given: ELBO(num_data=len(training_data)), since the divergence counts once"
            )
        if self.kl_weighting == "geometric":
            if batch.batch_index is None or batch.num_batches is None:
                raise ValueError("geometric weights need batch_index and num_batches in the call")
            return functional.variational.kl_share("geometric", batch.batch_index, batch.num_batches) / batch.num_parts
        return functional.variational.kl_share(self.kl_weighting, 0, 1, min(batch_size / self.num_data, 1.0))

    def _beta(self, epoch: float | Tensor | None) -> float | Tensor:
        if self.warmup == 0:
            return self.beta
        if epoch is None:
            raise ValueError("a warm-up needs the epoch in the call")
        return self.beta * functional.variational.warmup_share(epoch, self.warmup)

    def _weighted(
        self, losses: Float[Tensor, "sample batch"], weight: Tensor | None
    ) -> tuple[Float[Tensor, "sample batch"], Float[Tensor, " batch"]]:
        """Weighted losses of draws and of examples, with one weight for each example, or for each example and draw."""
        if weight is None:
            return losses, self.energy(losses)
        # On a GPU the check would wait for the device.
        is_checked = weight.device.type == "cpu" and weight.numel() and not torch.compiler.is_compiling()
        if is_checked and not bool((weight.isfinite() & (weight >= 0)).all()):
            raise ValueError(f"sample_weight must be finite and at least 0, got {weight.min().item():g}")
        if weight.dim() == 2 and weight.shape == losses.mT.shape:
            losses = losses * weight.mT
            return losses, self.energy(losses)
        if weight.shape != losses.shape[1:]:
            raise ValueError(
                f"sample_weight must have one weight per example, {losses.shape[1]}, got shape {tuple(weight.shape)}"
            )
        return losses * weight, self.energy(losses) * weight

    def _entropy(self, model: nn.Module, draws: Draws) -> Tensor | None:
        """The entropy of the posterior, where it is rewarded."""
        if not self.gamma:
            return None
        closed, estimated = closed_entropy(model), draws.terms.get("entropy")
        if not (terms := [term.mean() for term in (closed, estimated) if term is not None]):
            raise ValueError(f"gamma must be 0 for a network without a posterior, got {self.gamma}")
        return torch.stack(terms).sum()

    def _penalties(self, model: nn.Module, draws: Draws) -> dict[str, Tensor]:
        """Terms that are added without weighting: penalties of layers, and the squares of weights."""
        penalties = {name: term.mean() for name, term in draws.terms.items() if name not in ("divergence", "entropy")}
        if not self.l2:
            return penalties
        if not (weights := weight_matrices(model)):
            raise ValueError(f"l2 must be 0 for a network without weight matrices, got {self.l2}")
        if self.l2_per == "weight":
            squares = functional.variational.weight_penalty([weight for weight, _ in weights])
        else:
            squares = functional.variational.scaled_weight_penalty(*zip(*weights, strict=True))
        return penalties | {"l2": self.l2 * squares}

    def _divergence(self, model: nn.Module, draws: Draws, num_samples: int, seed: int | Tensor | None) -> Tensor:
        """The divergence in closed form where there is one, else estimated from the draws of this forward pass."""
        if (estimated := draws.terms.get("divergence")) is None:
            return divergence(model, num_samples, seed=seed)
        closed = closed_divergence(model)
        return estimated.mean() if closed is None else closed + estimated.mean()


@dataclass(frozen=True, repr=False)
class ELBO(_FreeEnergy):
    """The evidence lower bound, as a loss.

    Args:
        num_data: number of training examples; ``dubio.fit`` fills it in.
        beta: weight of the divergence.
        gamma: weight of the entropy of the posterior, which is rewarded beyond its part in the divergence (E-46).
        kl_weighting: how batches share the divergence: ``"uniform"``, ``"geometric"`` (halving from batch to batch,
            which needs ``batch_index`` and ``num_batches`` in the call) or ``"none"``.
        warmup: number of epochs over which ``beta`` grows from zero (needs ``epoch`` in the call).
        l2: weight of the sum of squares of all weight matrices, added to the mean loss without rescaling (E-33).
        l2_per: ``"unit"`` divides the squares of each layer by its number of units (E-26).
        losses: replaces the negative log-likelihood, for objectives that are built on this one.
    """

    num_data: int | None = None
    beta: float = 1.0
    gamma: float = 0.0
    kl_weighting: KlWeighting = "uniform"
    warmup: int = 0
    l2: float = 0.0
    l2_per: Literal["weight", "unit"] = "weight"
    losses: Losses | None = None

    def __repr__(self) -> str:
        """Show all fields; ``losses`` is shown by name where it is set."""
        parts = [f"{part.name}={getattr(self, part.name)!r}" for part in fields(self) if part.name != "losses"]
        if isinstance(self.losses, FunctionType):  # without its address
            parts.append(f"losses={self.losses.__module__}.{self.losses.__qualname__}")
        elif self.losses is not None:
            parts.append(f"losses={self.losses!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True)
class Alpha(_FreeEnergy):
    """An alpha-divergence between posterior and approximation, as a loss.

    Args:
        alpha: 0 is the ``ELBO``, 0.5 the Hellinger distance, 1 the likelihood of the mean prediction. Values other than
            0 need several draws: with one draw, every alpha gives the same loss.
        num_data, beta, gamma, kl_weighting, warmup, l2: as for ``ELBO``.
    """

    alpha: float = 0.5
    num_data: int | None = None
    beta: float = 1.0
    gamma: float = 0.0
    kl_weighting: KlWeighting = "uniform"
    warmup: int = 0
    l2: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not math.isfinite(self.alpha):
            raise ValueError(f"alpha must be a finite number, got {self.alpha!r}")
        if self.alpha < 0.0:
            raise ValueError(f"alpha must be at least 0, where it is the ELBO, got {self.alpha}")
        super().__post_init__()

    def energy(self, nll_per_example: Float[Tensor, "sample batch"]) -> Float[Tensor, " batch"]:
        """Reduce the losses of all draws to one per example (E-30)."""
        return functional.variational.alpha_energy(nll_per_example, self.alpha)

    def _check_batch(self, batch: BatchContext) -> None:
        super()._check_batch(batch)
        if self.alpha != 0.0 and batch.num_samples == 1:
            raise ValueError(f"num_samples must be at least 2 for alpha = {self.alpha}: with one draw it has no effect")


class _Wrapper(BatchObjective):
    """Base class of objectives that change the loss of another one."""

    inner: ELBO

    @property
    def num_data(self) -> int | None:
        """Number of training examples of the inner objective."""
        return self.inner.num_data

    def with_num_data(self: WrapperT, num_data: int) -> WrapperT:
        """Return this objective for the given number of training examples."""
        return cast(WrapperT, replace(cast(Any, self), inner=self.inner.with_num_data(num_data)))


class _Bootstrap(_Wrapper):
    """Base class of the two: everything but the loss is that of the inner objective."""

    beta: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"beta, the share of the label, must be in [0, 1], got {self.beta}")
        if not isinstance(self.inner, ELBO):
            raise TypeError(f"inner must be an ELBO, got {self.inner!r}")

    @abstractmethod
    def bootstrapped(self, log_probs: Float[Tensor, "*batch class"], targets: Tensor) -> Float[Tensor, "*batch"]:
        """Compute the loss of every draw and example."""

    def compute(self, batch: BatchContext) -> Loss:
        """Compute the loss of one batch with the inner objective and the bootstrapped loss."""
        return replace(self.inner, losses=self._losses).loss_of(batch)

    def _losses(self, likelihood: Likelihood, outputs: Tensor, targets: Tensor, scale: Tensor | None) -> Tensor:
        if not isinstance(likelihood, Categorical):
            raise TypeError(f"bootstrapping needs classes, a Categorical likelihood, got {likelihood!r}")
        if likelihood.class_weight is not None or likelihood.label_smoothing:
            raise ValueError(
                "class_weight and label_smoothing of the likelihood must be left out beside bootstrapping, which has "
                f"targets of its own, got {likelihood!r}"
            )
        log_probs = likelihood.log_probs(outputs)
        return self.bootstrapped(log_probs, targets.expand(log_probs.shape[:-1]))


@dataclass(frozen=True)
class BootstrapSoft(_Bootstrap):
    """Targets mixed with predicted probabilities.

    Args:
        beta: share of the label.
        detach: whether the prediction is a constant; by default its entropy is penalized too.
        inner: the objective whose loss is replaced.
    """

    beta: float = 0.95
    detach: bool = False
    inner: ELBO = ELBO()

    def bootstrapped(self, log_probs: Float[Tensor, "*batch class"], targets: Tensor) -> Float[Tensor, "*batch"]:
        """Compute the loss of every draw and example (E-68)."""
        return functional.variational.soft_bootstrap(log_probs, targets, self.beta, self.detach)


@dataclass(frozen=True)
class BootstrapHard(_Bootstrap):
    """Targets mixed with the predicted class.

    Args:
        beta: share of the label.
        inner: the objective whose loss is replaced.
    """

    beta: float = 0.8
    inner: ELBO = ELBO()

    def bootstrapped(self, log_probs: Float[Tensor, "*batch class"], targets: Tensor) -> Float[Tensor, "*batch"]:
        """Compute the loss of every draw and example (E-69)."""
        return functional.variational.hard_bootstrap(log_probs, targets, self.beta)


@dataclass(frozen=True, repr=False)
class EnsembleLoss(ELBO):
    """An ``ELBO`` that sums over draws instead of averaging them; arguments as for ``ELBO``."""

    def energy(self, nll_per_example: Float[Tensor, "sample batch"]) -> Float[Tensor, " batch"]:
        """Reduce the losses of all draws to one per example: their sum."""
        return nll_per_example.sum(dim=0)


@dataclass(frozen=True)
class Adversarial(_Wrapper):
    """The weighted mean of an objective on clean and on attacked inputs.

    Args:
        inner: the objective.
        attack: how inputs are attacked in every step.
        weight: share of the clean loss; with 0 it is not computed.
        label: the class that the attack moves away from: the ``"own"`` prediction on the clean input, or the ``"true"``
            label.
    """

    inner: ELBO = ELBO()
    attack: Attack = PGD(epsilon=8 / 255, steps=7, step_size=2 / 255, num_samples=1)
    weight: float = 0.5
    label: Literal["true", "own"] = "own"

    def __post_init__(self) -> None:
        if not isinstance(self.attack, Attack):
            raise TypeError(f"attack must be an attack such as attacks.PGD(), got {self.attack!r}")
        if self.attack.targeted:
            raise ValueError("attack must not be targeted: adversarial training leaves a class, it wants no other")
        if not 0.0 <= self.weight < 1.0:
            raise ValueError(f"weight of the clean loss must be in [0, 1), got {self.weight}")
        check_choice("label", self.label, ("true", "own"))

    def compute(self, batch: BatchContext) -> Loss:
        """Compute the loss of one batch, whose inputs must be a tensor."""
        if (attacked := batch.attacked) is None:
            attacked = self.attack_inputs(batch.model, batch.inputs, batch.targets)
        hot = self.inner.loss_of(replace(batch, inputs=attacked, attacked=None))
        if self.weight == 0.0:
            return replace(hot, terms=hot.terms | {"adversarial_nll": hot.nll})
        clean = self.inner.loss_of(replace(batch, attacked=None))
        total, nll = torch.lerp(hot.total, clean.total, self.weight), torch.lerp(hot.nll, clean.nll, self.weight)
        return Loss(total, nll, clean.terms | {"adversarial_nll": hot.nll}, clean.log_probs)

    def attack_inputs(
        self,
        model: nn.Module,
        inputs: Inputs,
        targets: Int[Tensor, " batch"],
        through: Through[Callable[..., object]] = as_it_is,
    ) -> Float[Tensor, "batch ..."]:
        """Attack the inputs; ``through`` wraps the functions that run the network, such as to compile them."""
        if not isinstance(inputs, Tensor):
            raise TypeError(f"inputs must be one tensor to be attacked, got {type(inputs).__name__}")
        if self.label == "own":
            with isolated(model, training=False, trainable=False):
                targets = replace(self.attack.target_for(model), through=through).labels(inputs)
        return self.attack.moved(model, inputs, targets, through)


def _nll(likelihood: Likelihood, outputs: Tensor, targets: Tensor, scale: Tensor | None) -> Tensor:
    return likelihood.nll(outputs, targets, scale)
