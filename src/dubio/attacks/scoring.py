"""What is left of a network's accuracy, seen by draws that had no part in the attack.

Three accuracies: of the mean over T draws (``predictive``), of one draw (``single``), and of being right on all of m
queries (``retry``). An image that a few draws have selected, because they were fooled by it, says nothing about other
draws: so scores come from draws of their own, never from the flags of an attack.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dubio import functional
from dubio._engine import check_num_samples, noise_key, seeded_run
from dubio.attacks.attack import Attacked, check_count
from dubio.attacks.victims import Model, Victim, check_classifier, untouched
from dubio.functional.adversarial import AttackLoss, AttackObjective

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
        seed: makes the draws repeatable; they are not those of an attack with the same seed.
        batch_size: examples at a time.
    """
    check_classifier(model)
    check_num_samples(num_samples)
    check_count("batch_size", batch_size)
    if not 1 <= num_tries <= num_samples:
        raise ValueError(f"num_tries must be from 1 to num_samples = {num_samples}, got {num_tries}")
    if targets.shape != inputs.shape[:1] or len(inputs) == 0:
        raise ValueError(
            f"targets must be one label per input, got shapes {tuple(targets.shape)} and {tuple(inputs.shape)}"
        )

    def look() -> tuple[Tensor, Tensor]:
        victim = Victim(model, num_samples, "predictive", "cross_entropy", "fresh", 0)
        predicted, right = [], []
        victim.check(inputs, targets, batch_size)
        for first in range(0, len(inputs), batch_size):
            part = slice(first, first + batch_size)
            log_probs = victim.log_probs(inputs[part])
            victim.check_logits(log_probs, targets[part])
            predicted.append(functional.uncertainty.predictive_log_probs(log_probs).argmax(dim=-1) == targets[part])
            hits = log_probs.argmax(dim=-1) == targets[part]
            # One draw of a network without noise, or the members of an ensemble, stand for as many as were asked for.
            right.append(hits.repeat(-(-num_samples // len(hits)), 1)[:num_samples])
        return torch.cat(predicted), torch.cat(right, dim=1)

    with untouched(model):
        return _summary(*seeded_run(_own_seed(seed, "score"), inputs.device, look), num_tries)


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
    batch_size: int = 256,
) -> tuple[Float[Tensor, "batch ..."], Int[Tensor, " batch"]]:
    """For each example the worst of several attacks, chosen by draws of their own: inputs, and which attack's.

    Score what comes back with ``score``, on other draws.
    """
    if not results:
        raise ValueError("results must hold at least one attack's result, got none")
    check_classifier(model)
    check_count("batch_size", batch_size)
    inputs = torch.stack([result.inputs for result in results])
    if targets.shape != inputs.shape[1:2]:
        raise ValueError(
            f"targets must be one label per input, got shapes {tuple(targets.shape)} and {tuple(inputs.shape[1:])}"
        )

    def look() -> Tensor:
        victim = Victim(model, num_samples, objective, loss, "fresh", 0)
        victim.check(inputs[0], targets, batch_size)
        pieces = zip(inputs.split(batch_size, dim=1), targets.split(batch_size), strict=True)
        values = [torch.stack([victim.values(one, labels) for one in piece]) for piece, labels in pieces]
        return torch.cat(values, dim=1)

    with untouched(model):
        chosen = seeded_run(_own_seed(seed, "strongest"), targets.device, look).argmax(dim=0)
    return inputs[chosen, torch.arange(len(chosen), device=chosen.device)], chosen


def _own_seed(seed: int | None, purpose: str) -> int | None:
    """Another seed for each purpose: an attack of the same seed must not have seen the draws."""
    return None if seed is None else noise_key(f"{purpose}/{seed}")


def _summary(predicted: Bool[Tensor, " batch"], right: Bool[Tensor, "sample batch"], num_tries: int) -> Score:
    num_samples, count = right.shape
    single = right.double().mean(dim=0)
    retry = functional.statistics.retry_probability(right.sum(dim=0), num_samples, num_tries)
    held = int(predicted.sum())
    return Score(
        Accuracy(held / count, *functional.statistics.clopper_pearson(held, count)),
        _two_way(single, functional.statistics.retry_influence(right, 1)),
        _two_way(retry, functional.statistics.retry_influence(right, num_tries)),
        num_samples,
        num_tries,
        predicted,
        single.float(),
        retry.float(),
    )


def _two_way(per_example: Float[Tensor, " batch"], per_draw: Float[Tensor, " sample"]) -> Accuracy:
    """A mean over examples whose error comes from the choice of examples and of draws, which all examples may share."""
    mean = per_example.mean().item()
    return Accuracy(
        mean,
        *functional.statistics.normal_interval(
            mean, functional.statistics.two_way_standard_error(per_example, per_draw)
        ),
    )
