"""``conformal``: sets of classes that hold the target with a wanted probability, whatever the network."""

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
    """Find which classes go into a set, and keep it with the network: ``predict`` tells ``sets``.

    Where new examples are exchangeable with the validation data, their targets lie in their sets with probability
    ``coverage`` at least, on average over both, whatever the network. Nothing is promised of single classes or of
    single examples, nor of data from elsewhere.

    Args:
        model: a converted network that tells classes apart; its record is changed.
        validation: data that it neither learned from nor is judged on, in any form that ``fit`` takes.
        coverage: the probability, in (0, 1).
        kind: ``"lac"`` for the smallest sets on average (Sadinle et al. 2019), ``"aps"`` for sets that are more even
            over easy and hard examples (Romano et al. 2020).
        allow_empty: let sets be empty where no class is likely enough; by default they hold the most probable class.
        num_samples: how many draws; predict with as many.
        batch_size: rows at a time.
        seed: which draws.

    Returns:
        The ``PredictionSets``, also found as ``dubio.spec(model).sets``.

    Raises:
        ValueError: there are too few data for the coverage, or the network was judged on them.
    """
    if kind not in ("lac", "aps"):
        raise ValueError(f"kind must be 'lac' or 'aps', got {kind!r}")
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"coverage must be in (0, 1), got {coverage}")
    held_out = predict_held_out(
        model,
        validation,
        asked_by="conformal",
        num_samples=num_samples,
        batch_size=batch_size,
        seed=seed,
        decisions=True,
    )
    check_one_label_each(held_out, "conformal")
    _check_count(len(held_out.targets), coverage)

    scores = functional.calibration.conformal_scores(held_out.predictive.log_probs, kind)
    own = scores.gather(-1, held_out.targets.unsqueeze(-1)).squeeze(-1)
    quantile = functional.calibration.conformal_quantile(own, coverage).item()
    sets = PredictionSets(kind, quantile, coverage, allow_empty, held_out.fingerprint)
    change_spec(model, sets=sets)
    return sets


def _check_count(count: int, coverage: float) -> None:
    if functional.calibration.conformal_rank(count, coverage) <= count:
        return
    needed = math.ceil(coverage / (1.0 - coverage) - 1e-9)
    raise ValueError(
        f"coverage {coverage:g} needs at least {needed} validation examples, got {count}: "
        "with fewer, every class would be in every set"
    )
