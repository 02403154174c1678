"""What is left of a network's accuracy, seen by draws that had no part in the attack.

Three accuracies: of the mean over T draws (``predictive``), of one draw (``single``), and of being right on all of m
queries (``retry``). An image that a few draws have selected, because they were fooled by it, says nothing about other
draws: so scores come from draws of their own, never from the flags of an attack.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dubio import functional
from dubio.attacks.attack import Attacked, _randomness
from dubio.attacks.victims import Model, Victim, untouched
from dubio.functional.adversarial import AttackLoss, AttackObjective
from dubio.sampling.settings import check_num_samples

__all__ = ["Accuracy", "Score", "score", "strongest"]


@dataclass(frozen=True)
class Accuracy:
    """A share of examples, with an interval at 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


@dataclass(frozen=True, eq=False)
class Score:
    """How a network does on given inputs."""

    predictive: Accuracy
    """R_pred(T): the mean over all draws is right; interval of Clopper and Pearson over examples."""
    single: Accuracy
    """R_1: one draw is right; interval over examples and draws."""
    retry: Accuracy
    """R_retry(m): ``num_tries`` draws are all right."""
    num_samples: int
    num_tries: int
    predictive_per_example: Bool[Tensor, " batch"]
    single_per_example: Float[Tensor, " batch"]
    retry_per_example: Float[Tensor, " batch"]

    def __str__(self) -> str:
        return (
            f"R_pred({self.num_samples}) {self.predictive}, R_1 {self.single}, R_retry({self.num_tries}) {self.retry}"
        )


@torch.no_grad()
def score(
    model: Model,
    inputs: Float[Tensor, "batch ..."],
    targets: Int[Tensor, " batch"],
    *,
    num_samples: int = 100,
    num_tries: int = 10,
    seed: int | None = None,
    batch_size: int = 256,
) -> Score:
    """Score inputs, adversarial or not, on fresh draws.

    Args:
        model: a network, or a function from inputs to logits.
        inputs: what to classify.
        targets: the true labels.
        num_samples: T, how many draws.
        num_tries: m, how many queries must all be right.
        seed: makes the draws repeatable; choose another one than the attack's.
        batch_size: examples at a time.
    """
    check_num_samples(num_samples)
    if not 1 <= num_tries <= num_samples:
        raise ValueError(f"num_tries must be from 1 to num_samples = {num_samples}, got {num_tries}")
    if targets.shape != inputs.shape[:1] or len(inputs) == 0:
        raise ValueError(
            f"targets must be one label per input, got shapes {tuple(targets.shape)} and {tuple(inputs.shape)}"
        )
    victim = Victim(model, num_samples, "predictive", "cross_entropy", "fresh", 0)
    predicted, right = [], []
    with untouched(model), _randomness(seed, inputs.device):
        for first in range(0, len(inputs), batch_size):
            part = slice(first, first + batch_size)
            log_probs = replace(victim, first_row=first).log_probs(inputs[part])
            predicted.append(functional.predictive_log_probs(log_probs).argmax(dim=-1) == targets[part])
            right.append(log_probs.argmax(dim=-1) == targets[part])
    return _summary(torch.cat(predicted), torch.cat(right, dim=1), num_tries)


@torch.no_grad()
def strongest(
    model: Model,
    results: Sequence[Attacked],
    targets: Int[Tensor, " batch"],
    *,
    num_samples: int = 20,
    objective: AttackObjective = "predictive",
    loss: AttackLoss = "margin",
    seed: int | None = None,
) -> tuple[Float[Tensor, "batch ..."], Int[Tensor, " batch"]]:
    """For each example the worst of several attacks, chosen by draws of their own: inputs, and which attack's.

    Score what comes back with ``score``, on other draws.
    """
    if not results:
        raise ValueError("results must hold at least one attack's result, got none")
    victim = Victim(model, num_samples, objective, loss, "fresh", 0)
    with untouched(model), _randomness(seed, targets.device):
        values = torch.stack([victim.values(result.inputs, targets) for result in results])
    chosen = values.argmax(dim=0)
    inputs = torch.stack([result.inputs for result in results])
    return inputs[chosen, torch.arange(len(chosen), device=chosen.device)], chosen


def _summary(predicted: Bool[Tensor, " batch"], right: Bool[Tensor, "sample batch"], num_tries: int) -> Score:
    num_samples, count = right.shape
    single = right.double().mean(dim=0)
    retry = functional.retry_probability(right.sum(dim=0), num_samples, num_tries)
    held = int(predicted.sum())
    return Score(
        Accuracy(held / count, *functional.clopper_pearson(held, count)),
        _two_way(single, right),
        _two_way(retry, right),
        num_samples,
        num_tries,
        predicted,
        single.float(),
        retry.float(),
    )


def _two_way(per_example: Float[Tensor, " batch"], right: Bool[Tensor, "sample batch"]) -> Accuracy:
    """A mean over examples whose error comes from the choice of examples and of draws, which all examples may share."""
    mean = per_example.mean().item()
    error = functional.two_way_standard_error(per_example, right.double().mean(dim=1))
    return Accuracy(mean, *functional.normal_interval(mean, error))
