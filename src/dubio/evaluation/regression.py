"""Predicted numbers, judged against the true ones."""

import torch
from jaxtyping import Float
from torch import Tensor

from dubio.evaluation.comparison import real_values
from dubio.evaluation.estimating import NUM_GROUPS, can_group, check_draws, estimates
from dubio.evaluation.measures import real_measures, real_measures_per_example, weighted_mean
from dubio.evaluation.values import DataRecord, Evaluation, IntervalRow
from dubio.prediction import RealPredictive

__all__ = ["judge_reals"]

LEVELS = (0.5, 0.8, 0.9, 0.95)
Draws = tuple[Float[Tensor, "sample example *rest"], Float[Tensor, "sample example *rest"]]


def judge_reals(
    found: RealPredictive,
    targets: Tensor,
    record: DataRecord,
    again: RealPredictive | None,
    num_resamples: int,
    seed: int,
) -> Evaluation:
    """Judge predicted numbers."""
    wanted = _values(targets, found)
    means, stds = _draws(found)
    per_example = real_measures_per_example(means, stds, wanted) | {
        name: getattr(found, name).cpu().double().reshape(len(wanted), -1).mean(dim=1)
        for name in ("std", "aleatoric_std", "epistemic_std")
    }
    doubled = None
    if again is not None:
        more_means, more_stds = _draws(again)
        both = torch.cat([means, more_means]), torch.cat([stds, more_stds])
        doubled = real_measures(real_measures_per_example(*both, wanted))
    metrics = estimates(
        lambda weight: real_measures(per_example, weight),
        len(wanted),
        num_resamples,
        left_out=_left_out(means, stds, wanted),
        doubled=doubled,
        seed=seed,
    )
    return Evaluation(
        kind="regression",
        data=record,
        num_samples=found.num_samples,
        seed=found.seed,
        seconds=0.0,
        metrics=metrics,
        draws=None if doubled is None else check_draws(metrics, found.num_samples),
        per_example=real_values(per_example),
        baseline={"rmse": float(wanted.double().var(dim=0, correction=0).mean().sqrt())},
        intervals=tuple(_interval_row(found, wanted, level, num_resamples, seed) for level in LEVELS),
    )


def _interval_row(
    found: RealPredictive, wanted: Float[Tensor, "example *rest"], level: float, num_resamples: int, seed: int
) -> IntervalRow:
    low, high = (end.cpu() for end in found.interval(level))
    inside = ((low <= wanted) & (wanted <= high)).double().reshape(len(wanted), -1).mean(dim=1)
    width = (high - low).double().reshape(len(wanted), -1).mean(dim=1)
    row = estimates(
        lambda weight: {"coverage": weighted_mean(inside, weight), "width": weighted_mean(width, weight)},
        len(wanted),
        num_resamples,
        seed=seed,
    )
    return IntervalRow(level, row["coverage"], row["width"])


def _left_out(means: Tensor, stds: Tensor, wanted: Tensor) -> list[dict[str, Tensor]] | None:
    """The measures with each group of draws left out."""
    if not can_group(len(means)):
        return None
    size = len(means) // NUM_GROUPS
    numbers = torch.arange(size * NUM_GROUPS)
    others = [numbers[numbers // size != group] for group in range(NUM_GROUPS)]
    return [real_measures(real_measures_per_example(means[rows], stds[rows], wanted)) for rows in others]


def _draws(found: RealPredictive) -> Draws:
    if found.samples is None or found.sample_stds is None:
        raise ValueError("predictions must hold the single draws to be judged: predict with keep_samples=True")
    return found.samples.cpu(), found.sample_stds.cpu()


def _values(targets: Tensor, found: RealPredictive) -> Float[Tensor, "example *rest"]:
    """Targets in the shape of the predictions: numbers and rows of one number are the same."""
    wanted = tuple(found.mean.shape)
    if tuple(targets.shape) not in (wanted, (*wanted, 1), wanted[:1] if wanted[1:] == (1,) else wanted):
        raise ValueError(f"targets must have the shape of the predictions, {wanted}, got {tuple(targets.shape)}")
    if targets.dtype == torch.bool:
        raise TypeError(f"targets must be real numbers, got {targets.dtype}")
    return targets.cpu().to(found.mean.dtype).reshape(wanted)
