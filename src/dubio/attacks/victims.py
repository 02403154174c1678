"""The network under attack: log-probabilities of many draws, and the gradient of the attacker's loss.

A victim is a network or a bare function from inputs to logits. It is in eval mode while it is attacked, its parameters
ask for no gradients, and both are put back afterwards (``tests/attacks/test_untouched.py``). Its noise is *fresh* at
every step, *frozen* to the same draws throughout, or *off*.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dubio import functional
from dubio.functional.adversarial import AttackLoss, AttackObjective
from dubio.likelihoods import Categorical, likelihood_of
from dubio.sampling import Using, sample, seed_tensor
from dubio.sampling.planning import Footprint, memory_budget

__all__ = ["Model", "Noise", "Victim", "untouched"]

Model = nn.Module | Callable[[Tensor], Tensor]
Noise = Literal["fresh", "frozen", "off"]

ROWS_TO_TRY = 8


@dataclass
class Victim:
    """A network or function, and how it is looked at; counts the passes that each example has cost."""

    model: Model
    num_samples: int
    objective: AttackObjective
    loss: AttackLoss
    noise: Noise
    seed: int
    targeted: bool = False
    first_row: int = 0
    forwards: int = field(default=0, init=False)
    backwards: int = field(default=0, init=False)

    def log_probs(self, inputs: Float[Tensor, "batch ..."]) -> Float[Tensor, "sample batch class"]:
        """Log-probabilities of all draws, differentiable."""
        self.forwards += self.num_samples
        if not isinstance(self.model, nn.Module):
            return self._call_function(inputs).log_softmax(dim=-1)
        with Using(**self._settings(), first_row=self.first_row, num_rows=len(inputs)):
            outputs = sample(self.model, inputs, self.num_samples)
        likelihood = likelihood_of(self.model)
        assert isinstance(likelihood, Categorical)
        return likelihood.log_probs(outputs)

    def values(self, inputs: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """What the attacker raises, per example: the loss of the true label, or minus that of the wanted one."""
        found = functional.averaged_attack_loss(self.log_probs(inputs), labels, self.objective, self.loss)
        return -found if self.targeted else found

    def values_and_gradient(
        self, inputs: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch ..."]]:
        """What the attacker raises, and its gradient: that of the average over draws, not the average of one draw."""
        leaf = inputs.detach().requires_grad_(True)
        with torch.enable_grad():
            values = self.values(leaf, labels)
            gradient = self.gradient(values, leaf)
        return values.detach(), gradient

    def gradient(self, values: Float[Tensor, " batch"], leaf: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Gradient of a sum over examples with respect to the inputs."""
        if not values.requires_grad:
            raise ValueError(
                "the model's outputs must depend on its inputs through differentiable operations to be attacked by "
                "gradients; attacks.Square and attacks.RandomNoise need none"
            )
        self.backwards += self.num_samples
        return torch.autograd.grad(values.sum(), leaf)[0]

    @torch.no_grad()
    def check(self, inputs: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"]) -> None:
        """Refuse what cannot be attacked, by running a few rows; a network without noise is one draw from then on."""
        rows = inputs[:ROWS_TO_TRY]
        wanted, self.num_samples = self.num_samples, 1
        first = self.log_probs(rows)
        if first.dim() != 3:
            raise ValueError(f"the model must give one row of logits per input, got shape {tuple(first.shape[1:])}")
        if not bool(first.isfinite().any(dim=-1).all()):
            raise ValueError("the model must give finite logits, got NaN or infinite ones on unperturbed inputs")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= first.shape[-1]:
            wrong = low if low < 0 else high
            raise ValueError(f"targets must name classes from 0 to {first.shape[-1] - 1}, got {wrong}")
        if self.noise == "fresh" and wanted > 1 and torch.equal(first, self.log_probs(rows)):
            wanted = 1
        self.num_samples = 1 if self.noise == "off" else wanted
        self.forwards = 0

    def rows_at_a_time(self, inputs: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"]) -> int:
        """How many examples, with all their draws, fit into the memory budget; found by attacking a few."""
        probe = replace(self, num_samples=1)
        few = inputs[:ROWS_TO_TRY]
        with Footprint() as footprint, contextlib.suppress(ValueError):
            probe.values_and_gradient(few, labels[: len(few)])
        per_row = max(footprint.peak // len(few), 1)
        fitting: int = memory_budget(inputs.device) // (per_row * self.num_samples)
        return max(1, min(len(inputs), fitting))

    def _settings(self) -> dict[str, object]:
        seed = seed_tensor(self.seed) if self.noise == "frozen" else None
        return {"mode": self.noise, "seed": seed}

    def _call_function(self, inputs: Tensor) -> Tensor:
        assert not isinstance(self.model, nn.Module)
        if self.noise != "frozen":
            return torch.stack([self.model(inputs) for _ in range(self.num_samples)])
        devices = [inputs.device] if inputs.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.seed)
            return torch.stack([self.model(inputs) for _ in range(self.num_samples)])


@contextmanager
def untouched(model: Model) -> Iterator[None]:
    """A network in eval mode whose parameters ask for no gradients; both as they were when the block is left."""
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    wanting = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    for parameter in wanting:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter in wanting:
            parameter.requires_grad_(True)
