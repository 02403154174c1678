"""Adversarial training: the loss of attacked inputs, alone or beside that of clean ones (E-59).

``weight = 0`` and ``label = "true"`` is min-max training (Madry et al. 2018). With ``label = "own"`` the attack leaves
the class that the network itself predicts for the clean input: an attack that knows the true label can be recognised
by it (label leaking). The attack sees the network in eval mode and leaves no trace: batch statistics are moved by the
two training passes alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from dubio._engine import Executor, Inputs, Through, as_it_is
from dubio.attacks import Attack, Pgd, untouched
from dubio.objectives.elbo import Elbo
from dubio.objectives.loss import Loss

__all__ = ["Adversarial"]


@dataclass(frozen=True)
class Adversarial:
    """A weighted mean of an objective on clean and on attacked inputs.

    Args:
        inner: the objective.
        attack: how inputs are attacked in every step.
        weight: share of the clean loss; 0 leaves it out.
        label: what the attack leaves: the ``"own"`` prediction on the clean input, or the ``"true"`` label.
    """

    inner: Elbo = Elbo()
    attack: Attack = Pgd(epsilon=8 / 255, steps=7, step_size=2 / 255, num_samples=1)
    weight: float = 0.5
    label: Literal["true", "own"] = "own"

    def __post_init__(self) -> None:
        if not isinstance(self.attack, Attack):
            raise TypeError(f"attack must be an attack such as attacks.Pgd(), got {self.attack!r}")
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
                targets = replace(self.attack.victim(model), through=through).labels(inputs)
        return self.attack.moved(model, inputs, targets, through)
