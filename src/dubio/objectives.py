"""The variational free energy: mean negative log-likelihood plus the divergence from the prior, per example.

``total = mean nll + beta * pi_i / B_i * KL`` (E-5), which is ``mean nll + beta * KL / N`` with uniform weights,
whatever the batch size. Summed over an epoch, each batch weighted by its size, it is the free energy of the whole
data (E-1), also with a short last batch and under accumulation (``tests/objectives/test_elbo.py``).

Reference: Blundell et al. 2015, sections 3.1 and 3.4.

What an objective returns.

What every objective offers, so that ``fit`` and one's own loop can use any of them.

Objectives that are an ``ELBO`` but for one step: they say which, and it is called in their place.

Alpha-divergences as an objective, for any sampler: dropout masks, drawn weights, noise on inputs.

``total = mean_n -(1/alpha) log mean_k p(y_n | x_n, draw k)^alpha + beta * KL / N`` (E-30, E-35). Reference: Li and Gal
2017; Hernandez-Lobato et al. 2016 for the energy it approximates.

Bootstrapping against wrong labels: the network's own prediction takes a part of the target's place.

``soft`` mixes the label with the predicted probabilities (E-68), ``hard`` with the predicted class (E-69). Reference:
Reed et al. 2015, Training Deep Neural Networks on Noisy Labels with Bootstrapping.

The losses of an ensemble's members, added up: each is trained as if it were alone.

Adversarial training: the loss of attacked inputs, alone or beside that of clean ones (E-59).

``weight = 0`` and ``label = "true"`` is min-max training (Madry et al. 2018). With ``label = "own"`` the attack leaves
the class that the network itself predicts for the clean input: an attack that knows the true label can be recognised
by it (label leaking). The attack sees the network in eval mode and leaves no trace: batch statistics are moved by the
two training passes alone.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from types import FunctionType
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Draws, Executor, Inputs, Through, as_it_is, run
from dubio.attacks import PGD, Attack, untouched
from dubio.functional.variational import KlWeighting
from dubio.likelihoods import Categorical, Gaussian, Likelihood, likelihood_of, observation_scale
from dubio.nn import closed_divergence, closed_entropy, divergence, weight_matrices

__all__ = [
    "ELBO",
    "Losses",
    "Loss",
    "Objective",
    "Delegating",
    "Alpha",
    "BootstrapHard",
    "BootstrapSoft",
    "EnsembleLoss",
    "Adversarial",
]


Losses = Callable[[Likelihood, Tensor, Tensor, Tensor | None], Tensor]
"""The loss of every draw and example from a likelihood, outputs, targets and the learned scale of the data."""


@dataclass(frozen=True)
class Loss:
    """The number to minimise and what it is made of."""

    total: Float[Tensor, ""]
    """Per example: call ``total.backward()``."""
    nll: Float[Tensor, ""]
    """Mean negative log-likelihood over draws and examples."""
    terms: dict[str, Float[Tensor, ""]]
    """What else is in the total, as it is before weighting."""
    log_probs: Float[Tensor, "sample batch ..."] | None
    """Log-probabilities of classes per draw, without gradient; None for real targets."""


@dataclass(frozen=True, repr=False)
class ELBO:
    """The evidence lower bound, as a loss.

    Args:
        num_data: how many training examples there are; given once, here. ``dubio.fit`` fills it in.
        beta: weight of the divergence.
        gamma: weight of the posterior's entropy, which is rewarded beyond its part in the divergence (E-46).
        kl_weighting: how batches share the divergence: ``"uniform"``, ``"geometric"`` (halving from batch to batch,
            which needs ``batch_index`` and ``num_batches`` in the call) or ``"none"``.
        warmup: number of epochs over which ``beta`` grows from zero (needs ``epoch`` in the call).
        l2: weight of the sum of squares of all weight matrices, added to the mean loss as it is (E-33).
        l2_per: ``"unit"`` divides the squares of each layer by its number of units (E-26).
        losses: what stands in the place of the negative log-likelihood, for objectives that are built on this one.
    """

    num_data: int | None = None
    beta: float = 1.0
    gamma: float = 0.0
    kl_weighting: KlWeighting = "uniform"
    warmup: int = 0
    l2: float = 0.0
    l2_per: Literal["weight", "unit"] = "weight"
    losses: Losses | None = None

    def __post_init__(self) -> None:
        if self.num_data is not None and self.num_data < 1:
            raise ValueError(f"num_data must be at least 1, got {self.num_data}")
        for name in ("beta", "gamma", "l2"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} must be finite and at least 0, got {value}")
        if self.l2_per not in ("weight", "unit"):
            raise ValueError(f"l2_per must be 'weight' or 'unit', got {self.l2_per!r}")
        if self.kl_weighting not in ("uniform", "geometric", "none"):
            raise ValueError(f"kl_weighting must be 'uniform', 'geometric' or 'none', got {self.kl_weighting!r}")
        if self.warmup < 0:
            raise ValueError(f"warmup must be at least 0 epochs, got {self.warmup}")

    def __repr__(self) -> str:
        """All fields; ``losses`` by its name, where it is given."""
        told = {part.name: repr(getattr(self, part.name)) for part in fields(self) if part.name != "losses"}
        if self.losses is not None:
            told["losses"] = _name(self.losses)
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in told.items())})"

    def with_num_data(self, num_data: int) -> "ELBO":
        """This objective for so many training examples."""
        return replace(self, num_data=num_data)

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
    ) -> Loss:
        """The loss of one batch.

        Args:
            model: a converted network.
            inputs: a tensor, a tuple of positional or a dict of keyword arguments.
            targets: one per row, as the network's likelihood wants them.
            num_samples: how many draws the expectation is taken over.
            sample_weight: multiplies each example's negative log-likelihood, or `(batch, sample)` each draw's of it.
            batch_index: which batch of the epoch this is, from 0 (for geometric weights).
            num_batches: how many batches an epoch has (for geometric weights).
            epoch: how many epochs have been trained, for the warm-up; fractions are welcome. It and ``batch_index`` may
                be tensors, which a captured step reads anew each time.
            num_parts: how many processes share the batch, each with a part of it (for geometric weights).
            seed: freezes the draws.
            executor: ``"vmap"``, ``"loop"`` or ``"auto"``.
        """
        if not isinstance(targets, Tensor):
            raise TypeError(f"targets must be a tensor, got {type(targets).__name__}; use torch.as_tensor(targets)")
        likelihood = likelihood_of(model)
        wanted = ("divergence", "penalty", *(("entropy",) if self.gamma else ()))
        draws = run(model, inputs, num_samples, seed=seed, executor=executor, collecting=wanted)
        nll_per_example = (self.losses or _nll)(likelihood, draws.outputs, targets, observation_scale(model))
        nll_per_example, energy_per_example = self._weighted(nll_per_example, sample_weight)
        kl = self._divergence(model, draws, num_samples, seed)

        share = self._share(len(energy_per_example), batch_index, num_batches, num_parts)
        entropy = self._entropy(model, draws)
        weighted = functional.variational.weighted_divergence(kl, self._beta(epoch), entropy, self.gamma)
        penalties = self._penalties(model, draws)
        total = functional.variational.minibatch_cost(energy_per_example.unsqueeze(0), weighted, share)
        total = sum(penalties.values(), total)
        terms = {"divergence": kl} | ({} if entropy is None else {"entropy": entropy}) | penalties
        log_probs = None if isinstance(likelihood, Gaussian) else likelihood.log_probs(draws.outputs.detach())
        return Loss(total, nll_per_example.mean(), terms, log_probs)

    def energy(self, nll_per_example: Float[Tensor, "sample batch"]) -> Float[Tensor, " batch"]:
        """What the losses of all draws come to, per example: their mean (E-2)."""
        return nll_per_example.mean(dim=0)

    def _share(
        self, batch_size: int, batch_index: int | Tensor | None, num_batches: int | None, num_parts: int
    ) -> float | Tensor:
        if self.num_data is None:
            raise ValueError(
                "num_data must be given: ELBO(num_data=len(training_data)), since the divergence counts once"
            )
        if self.kl_weighting == "geometric":
            if batch_index is None or num_batches is None:
                raise ValueError("geometric weights need batch_index and num_batches in the call")
            return functional.variational.kl_share("geometric", batch_index, num_batches) / num_parts
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
        """Losses of draws and of examples, times the weight of each example, or of each example and draw."""
        if weight is None:
            return losses, self.energy(losses)
        _check_weights(weight)
        if weight.dim() == 2 and weight.shape == losses.mT.shape:
            losses = losses * weight.mT
            return losses, self.energy(losses)
        if weight.shape != losses.shape[1:]:
            raise ValueError(
                f"sample_weight must have one weight per example, {losses.shape[1]}, got shape {tuple(weight.shape)}"
            )
        return losses * weight, self.energy(losses) * weight

    def _entropy(self, model: nn.Module, draws: Draws) -> Tensor | None:
        """Of the posterior, where it is rewarded."""
        if not self.gamma:
            return None
        closed, estimated = closed_entropy(model), draws.terms.get("entropy")
        terms = [*([] if closed is None else [closed]), *([] if estimated is None else [estimated.mean()])]
        if not terms:
            raise ValueError(f"gamma must be 0 for a network without a posterior, got {self.gamma}")
        return torch.stack(terms).sum()

    def _penalties(self, model: nn.Module, draws: Draws) -> dict[str, Tensor]:
        """What is added as it is: what layers handed over, and the squares of weights."""
        handed = {name: term.mean() for name, term in draws.terms.items() if name not in ("divergence", "entropy")}
        if self.l2:
            handed["l2"] = self.l2 * self._squares(model)
        return handed

    def _squares(self, model: nn.Module) -> Tensor:
        weights = weight_matrices(model)
        if not weights:
            raise ValueError(f"l2 must be 0 for a network without weight matrices, got {self.l2}")
        if self.l2_per == "weight":
            return functional.variational.weight_penalty([weight for weight, _ in weights])
        return functional.variational.scaled_weight_penalty(*zip(*weights, strict=True))

    def _divergence(self, model: nn.Module, draws: Draws, num_samples: int, seed: int | Tensor | None) -> Tensor:
        """In closed form where there is one; else from the draws of this very pass, where it drew weights."""
        closed, estimated = closed_divergence(model), draws.terms.get("divergence")
        if estimated is None:
            return divergence(model, num_samples, seed=seed)
        return estimated.mean() if closed is None else closed + estimated.mean()


def _check_weights(weight: Tensor) -> None:
    """Refuse what ``fit`` refuses, where asking costs nothing."""
    if torch.compiler.is_compiling() or weight.device.type != "cpu" or not weight.numel():
        return
    if not bool((weight.isfinite() & (weight >= 0)).all()):
        raise ValueError(f"sample_weight must be finite and at least 0, got {weight.min().item():g}")


def _name(losses: Losses) -> str:
    """Of a function where it is defined; of anything else what it says of itself."""
    return f"{losses.__module__}.{losses.__qualname__}" if isinstance(losses, FunctionType) else repr(losses)


def _nll(likelihood: Likelihood, outputs: Tensor, targets: Tensor, scale: Tensor | None) -> Tensor:
    return likelihood.nll(outputs, targets, scale)


@runtime_checkable
class Objective(Protocol):
    """A value that is called with a network, inputs and targets, and gives a ``Loss``."""

    @property
    def num_data(self) -> int | None:
        """How many training examples there are, where that was said."""

    def with_num_data(self, num_data: int) -> "Objective":
        """The same objective for so many training examples."""

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


class Delegating(ABC):
    """An objective whose loss is that of another."""

    @abstractmethod
    def stand_in(self, num_samples: int) -> ELBO:
        """The objective that is called, for so many draws."""

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
    ) -> Loss:
        """The loss of one batch; arguments as for ``ELBO``."""
        return self.stand_in(num_samples)(
            model,
            inputs,
            targets,
            num_samples,
            sample_weight=sample_weight,
            batch_index=batch_index,
            num_batches=num_batches,
            epoch=epoch,
            num_parts=num_parts,
            seed=seed,
            executor=executor,
        )


@dataclass(frozen=True)
class Alpha(Delegating):
    """An alpha-divergence between posterior and approximation, as a loss.

    Args:
        alpha: 0 is the ``ELBO``, 0.5 the Hellinger distance, 1 the likelihood of the mean prediction. Other than 0, it
            needs several draws: with one, every alpha is the same.
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
        self.stand_in(2)

    def with_num_data(self, num_data: int) -> "Alpha":
        """This objective for so many training examples."""
        return replace(self, num_data=num_data)

    def stand_in(self, num_samples: int) -> "_AlphaELBO":
        """The ``ELBO`` whose draws count by alpha."""
        if self.alpha != 0.0 and num_samples == 1:
            raise ValueError(f"num_samples must be at least 2 for alpha = {self.alpha}: with one draw it has no effect")
        return _AlphaELBO(
            self.num_data, self.beta, self.gamma, self.kl_weighting, self.warmup, self.l2, alpha=self.alpha
        )


@dataclass(frozen=True, repr=False)
class _AlphaELBO(ELBO):
    """An ``ELBO`` whose draws count by alpha."""

    alpha: float = 0.5

    def energy(self, nll_per_example: Float[Tensor, "sample batch"]) -> Float[Tensor, " batch"]:
        """What the losses of all draws come to, per example (E-30)."""
        return functional.variational.alpha_energy(nll_per_example, self.alpha)


class _Bootstrapped(Delegating):
    """What both share: everything but the loss is the inner objective's."""

    beta: float
    inner: ELBO

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"beta, the share of the label, must be in [0, 1], got {self.beta}")
        if not isinstance(self.inner, ELBO):
            raise TypeError(f"inner must be an ELBO, got {self.inner!r}")

    @property
    def num_data(self) -> int | None:
        """How many training examples there are, as the inner objective knows it."""
        return self.inner.num_data

    @abstractmethod
    def bootstrapped(self, log_probs: Float[Tensor, "*batch class"], targets: Tensor) -> Float[Tensor, "*batch"]:
        """The loss of every draw and example."""

    def stand_in(self, num_samples: int) -> ELBO:
        """The inner objective with the bootstrapped loss."""
        return replace(self.inner, losses=self._losses)

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
class BootstrapSoft(_Bootstrapped):
    """Targets mixed with predicted probabilities.

    Args:
        beta: share of the label.
        detach: whether the prediction is a constant; by default its entropy is penalised too.
        inner: what else is minimised.
    """

    beta: float = 0.95
    detach: bool = False
    inner: ELBO = ELBO()

    def with_num_data(self, num_data: int) -> "BootstrapSoft":
        """This objective for so many training examples."""
        return replace(self, inner=self.inner.with_num_data(num_data))

    def bootstrapped(self, log_probs: Float[Tensor, "*batch class"], targets: Tensor) -> Float[Tensor, "*batch"]:
        """The loss of every draw and example (E-68)."""
        return functional.variational.soft_bootstrap(log_probs, targets, self.beta, self.detach)


@dataclass(frozen=True)
class BootstrapHard(_Bootstrapped):
    """Targets mixed with the predicted class.

    Args:
        beta: share of the label.
        inner: what else is minimised.
    """

    beta: float = 0.8
    inner: ELBO = ELBO()

    def with_num_data(self, num_data: int) -> "BootstrapHard":
        """This objective for so many training examples."""
        return replace(self, inner=self.inner.with_num_data(num_data))

    def bootstrapped(self, log_probs: Float[Tensor, "*batch class"], targets: Tensor) -> Float[Tensor, "*batch"]:
        """The loss of every draw and example (E-69)."""
        return functional.variational.hard_bootstrap(log_probs, targets, self.beta)


@dataclass(frozen=True, repr=False)
class EnsembleLoss(ELBO):
    """An ``ELBO`` that adds up draws instead of averaging them; arguments as for ``ELBO``."""

    def energy(self, nll_per_example: Float[Tensor, "sample batch"]) -> Float[Tensor, " batch"]:
        """The sum over draws."""
        return nll_per_example.sum(dim=0)


@dataclass(frozen=True)
class Adversarial:
    """A weighted mean of an objective on clean and on attacked inputs.

    Args:
        inner: the objective.
        attack: how inputs are attacked in every step.
        weight: share of the clean loss; 0 leaves it out.
        label: what the attack leaves: the ``"own"`` prediction on the clean input, or the ``"true"`` label.
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
        if self.label not in ("true", "own"):
            raise ValueError(f"label must be 'true' or 'own', got {self.label!r}")

    @property
    def num_data(self) -> int | None:
        """How many training examples there are, as the inner objective knows it."""
        return self.inner.num_data

    def with_num_data(self, num_data: int) -> "Adversarial":
        """This objective for so many training examples."""
        return replace(self, inner=self.inner.with_num_data(num_data))

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
        """The loss of one batch; arguments as for the inner objective, inputs a tensor.

        ``attacked`` are the inputs as ``attack_inputs`` moved them, where that is done already.
        """
        if attacked is None:
            attacked = self.attack_inputs(model, inputs, targets)

        loss_of = partial(
            self.inner,
            model,
            targets=targets,
            num_samples=num_samples,
            sample_weight=sample_weight,
            batch_index=batch_index,
            num_batches=num_batches,
            epoch=epoch,
            num_parts=num_parts,
            seed=seed,
            executor=executor,
        )
        hot = loss_of(attacked)
        if self.weight == 0.0:
            return replace(hot, terms=hot.terms | {"adversarial_nll": hot.nll})
        clean = loss_of(inputs)
        return Loss(
            torch.lerp(hot.total, clean.total, self.weight),
            torch.lerp(hot.nll, clean.nll, self.weight),
            clean.terms | {"adversarial_nll": hot.nll},
            clean.log_probs,
        )

    def attack_inputs(
        self,
        model: nn.Module,
        inputs: Inputs,
        targets: Int[Tensor, " batch"],
        through: Through[Callable[..., object]] = as_it_is,
    ) -> Float[Tensor, "batch ..."]:
        """The inputs as the attack moves them; ``through`` says how looks at the network are run."""
        if not isinstance(inputs, Tensor):
            raise TypeError(f"inputs must be one tensor to be attacked, got {type(inputs).__name__}")
        if self.label == "own":
            with untouched(model):
                targets = replace(self.attack.target_for(model), through=through).labels(inputs)
        return self.attack.moved(model, inputs, targets, through)
