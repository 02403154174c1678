"""How far a number would move: over other examples by the bootstrap, over other draws by the jackknife.

References: Efron 1979; Quenouille 1956, Tukey 1958 for the jackknife.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "group_means",
    "jackknife_error",
    "left_out_means",
    "percentile_interval",
    "resample_weights",
    "resampled_means",
]


def resample_weights(
    num_examples: int, num_resamples: int, generator: torch.Generator
) -> Float[Tensor, "resample example"]:
    """How often each example occurs in each resample of as many examples, drawn with replacement."""
    chosen = torch.randint(num_examples, (num_resamples, num_examples), generator=generator)
    counts = torch.zeros(num_resamples, num_examples, dtype=torch.float64)
    return counts.scatter_add_(1, chosen, torch.ones((), dtype=torch.float64).expand_as(chosen))


def percentile_interval(values: Float[Tensor, " resample"], level: float = 0.95) -> tuple[float, float]:
    """The central interval that holds ``level`` of the resampled values."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be in (0, 1), got {level}")
    tails = torch.tensor([0.5 - level / 2, 0.5 + level / 2], dtype=torch.float64, device=values.device)
    low, high = values.double().quantile(tails).tolist()
    return low, high


def resampled_means(
    log_probs: Float[Tensor, "sample batch class"], weights: Float[Tensor, "resample sample"]
) -> Float[Tensor, "resample batch class"]:
    """Log of the mean probability over draws, each counted as often as it occurs in a resample of them.

    For what jumps, such as an accuracy, the spread over resamples is right where the jackknife's is not: it does not
    ask how one draw moves the mean, but where other means would lie.
    """
    largest = log_probs.amax(dim=(0, 2), keepdim=True)
    probs = (log_probs - largest).exp()
    means = torch.einsum("rs,sbc->rbc", weights.to(probs), probs) / weights.sum(dim=1).to(probs)[:, None, None]
    return means.log() + largest


def group_means(log_probs: Float[Tensor, "sample *rest"], num_groups: int) -> Float[Tensor, "group *rest"]:
    """Log of the mean probability in each of several groups of as many neighbouring draws; draws left over are out."""
    size = len(log_probs) // num_groups
    if size < 1:
        raise ValueError(f"num_groups must be at most the number of draws, {len(log_probs)}, got {num_groups}")
    grouped = log_probs[: size * num_groups].reshape(num_groups, size, *log_probs.shape[1:])
    return torch.logsumexp(grouped, dim=1) - math.log(size)


def left_out_means(groups: Float[Tensor, "group *rest"]) -> Float[Tensor, "group *rest"]:
    """Log of the mean probability over all groups but one, for each that is left out."""
    others = [torch.cat([groups[:number], groups[number + 1 :]]) for number in range(len(groups))]
    return torch.stack([torch.logsumexp(rest, dim=0) for rest in others]) - math.log(len(groups) - 1)


def jackknife_error(left_out: Float[Tensor, " group"]) -> float:
    """Standard error of a statistic from its values with each group left out: ``sqrt((G-1)/G sum (t_g - mean)^2)``."""
    count = len(left_out)
    if count < 2:
        raise ValueError(f"left_out must hold at least two values, got {count}")
    deviations = (left_out.double() - left_out.double().mean()).square().sum()
    return float((deviations * (count - 1) / count).sqrt())
