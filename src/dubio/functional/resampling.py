"""How far a number would move: over other examples by the bootstrap, over other draws by the jackknife.

References: Efron 1979; Quenouille 1956, Tukey 1958 for the jackknife.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["bootstrap_interval", "group_means", "jackknife_error", "left_out_means", "resample_weights"]


def resample_weights(
    num_examples: int, num_resamples: int, generator: torch.Generator
) -> Float[Tensor, "resample example"]:
    """How often each example occurs in each resample of as many examples, drawn with replacement."""
    chosen = torch.randint(num_examples, (num_resamples, num_examples), generator=generator)
    counts = torch.zeros(num_resamples, num_examples, dtype=torch.float64)
    return counts.scatter_add_(1, chosen, torch.ones((), dtype=torch.float64).expand_as(chosen))


def bootstrap_interval(value: float, resampled: Float[Tensor, " resample"], level: float = 0.95) -> tuple[float, float]:
    """The central interval that holds ``level`` of the resampled values, less the bias that resampling shows.

    A calibration error is larger on a resample than on the examples themselves, by about as much as it is too large on
    them: without the shift the interval may not hold the value at all. What is never negative gets no negative end, and
    what is never above one none above it.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be in (0, 1), got {level}")
    tails = torch.tensor([0.5 - level / 2, 0.5 + level / 2], dtype=torch.float64, device=resampled.device)
    exact = resampled.double()
    bias = exact.mean().item() - value
    low, high = (end - bias for end in exact.quantile(tails).tolist())
    if bool((exact >= 0.0).all()):
        low = max(low, 0.0)
    return low, min(high, 1.0) if value <= 1.0 and bool((exact <= 1.0).all()) else high


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
