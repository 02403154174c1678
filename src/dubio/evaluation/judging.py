"""Predictions judged against targets, whoever made the predictions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dubio.data import fingerprint_of
from dubio.evaluation.classification import judge_classes
from dubio.evaluation.regression import judge_reals
from dubio.evaluation.values import DataRecord, Evaluation
from dubio.prediction import ClassPredictive, Predictive, RealPredictive

__all__ = ["judge"]


def judge(
    found: Predictive,
    targets: Tensor,
    *,
    again: Predictive | None = None,
    inputs: Any = None,
    classes: Sequence[str] = (),
    record: DataRecord | None = None,
    num_resamples: int = 300,
    seed: int = 0,
) -> Evaluation:
    """Judge predictions; ``evaluate`` makes them first.

    Args:
        found: what ``predict`` gave. How far other draws would move a number is told with ``keep_samples=True``.
        targets: labels or values, a row for each prediction.
        again: as many draws again, of another seed, to tell whether the first were enough.
        inputs: what was predicted from, to show images of.
        classes: names of the classes; numbers by default.
        record: what is written down about the data.
        num_resamples: resamples for intervals over examples; 0 for none.
        seed: which resamples.
    """
    if num_resamples < 0:
        raise ValueError(f"num_resamples must be at least 0, got {num_resamples}")
    if again is not None and type(again) is not type(found):
        raise TypeError(f"again must be of the kind of found, {type(found).__name__}, got {type(again).__name__}")
    with torch.device("cpu"):  # where the numbers of predictions are, whatever the default device is
        if isinstance(found, ClassPredictive):
            own = fingerprint_of(found.log_probs, targets)
            record = record or DataRecord("data", len(targets), own, tuple(classes))
            assert again is None or isinstance(again, ClassPredictive)
            return judge_classes(found, targets, record, again, inputs, num_resamples, seed)
        if isinstance(found, RealPredictive):
            record = record or DataRecord("data", len(targets), fingerprint_of(found.mean, targets))
            assert again is None or isinstance(again, RealPredictive)
            return judge_reals(found, targets, record, again, num_resamples, seed)
    raise TypeError(f"found must be what dubio.predict gives, got {type(found).__name__}")
