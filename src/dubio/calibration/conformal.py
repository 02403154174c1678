"""``conformal``: prediction sets, which contain the target with a given probability for any network.

The coverage is tested in ``tests/calibration/test_conforming.py``.
"""

import math
from typing import Any

from torch import nn

from dubio import functional
from dubio.calibration.calibrate import check_one_label_each, predict_held_out
from dubio.calibrators import PredictionSets
from dubio.convert import change_spec


def conformal(
    model: nn.Module,
    validation: Any,
    *,
    coverage: float = 0.9,
    kind: functional.calibration.ConformalScore = "lac",
    allow_empty: bool = False,
    num_samples: int = 100,
    batch_size: int = 256,
    seed: int = 0,
) -> PredictionSets:
    """Fit prediction sets, and keep them with the network: predictions of ``predict`` have ``sets``.

    Where new examples are exchangeable with the validation data, their sets contain their targets with probability
    ``coverage`` at least, on average over both, for any network. There is no such bound for single classes, single
    examples or data from another distribution.

    Args:
        model: a converted classifier; its record is changed.
        validation: data for neither training nor evaluation, in any form that ``fit`` takes.
        coverage: the probability, in (0, 1).
        kind: ``"lac"`` for the smallest sets on average (Sadinle et al. 2019), ``"aps"`` for sets that are more even
            over easy and hard examples (Romano et al. 2020).
        allow_empty: let sets be empty where no class is likely enough; by default they hold the most probable class.
        num_samples: number of draws; predict with as many.
        batch_size: rows at a time.
        seed: seed of the draws.

    Returns:
        The ``PredictionSets``, also found as ``dubio.spec(model).sets``.

    Raises:
        ValueError: there are too few data for the coverage, or the network was evaluated on them.
    """
    if kind not in ("lac", "aps"):
        raise ValueError(f"kind must be 'lac' or 'aps', got {kind!r}")
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"coverage must be in (0, 1), got {coverage}")
    held_out = predict_held_out(model, validation, "conformal", num_samples, batch_size, seed)
    check_one_label_each(held_out, "conformal")
    count = len(held_out.targets)
    if functional.calibration.conformal_rank(count, coverage) > count:
        needed = math.ceil(coverage / (1.0 - coverage) - 1e-9)
        raise ValueError(
            f"coverage {coverage:g} needs at least {needed} validation examples, got {count}: "
            "with fewer, every class would be in every set"
        )

    scores = functional.calibration.conformal_scores(held_out.predictive.log_probs, kind)
    of_targets = scores.gather(-1, held_out.targets.unsqueeze(-1)).squeeze(-1)
    quantile = functional.calibration.conformal_quantile(of_targets, coverage).item()
    sets = PredictionSets(kind, quantile, coverage, allow_empty, held_out.fingerprint)
    change_spec(model, sets=sets)
    return sets
