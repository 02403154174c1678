"""Thresholds: what they accept, and how often their bound on the error holds."""

import pytest
import torch
from scipy import stats

from dubio import functional

LEVEL, ERROR = 0.8, 0.15


def true_error(threshold: float | None) -> float:
    """Error among sureties above a threshold, where they are uniform and wrong with probability 0.5 (1 - s)."""
    return 0.25 * (1.0 - (threshold or 0.0))


def draw(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    surety = torch.rand(count, generator=generator, dtype=torch.float64)
    return surety, torch.rand(count, generator=generator) > 0.5 * (1.0 - surety)


def test_the_bound_is_that_of_clopper_and_pearson_shared_among_the_thresholds():
    surety, correct = draw(200, torch.Generator().manual_seed(0))

    tried = functional.calibration.acceptances(surety, correct, ERROR, LEVEL)

    assert [found.num_accepted for found in tried] == list(range(200, 20, -10))
    assert tried[0].threshold is None
    for found in tried:
        above = surety > (-1.0 if found.threshold is None else found.threshold)
        assert found.num_accepted == int(above.sum())
        assert found.num_wrong == int((~correct[above]).sum())
        bound = stats.beta.ppf(1.0 - 0.2 / 18, found.num_wrong + 1, found.num_accepted - found.num_wrong)
        assert found.bound == pytest.approx(bound)
        assert found.error == found.num_wrong / found.num_accepted


def test_thresholds_that_accept_too_few_are_left_out_and_cost_nothing():
    surety, correct = draw(30, torch.Generator().manual_seed(0))

    tried = functional.calibration.acceptances(surety, correct, ERROR, LEVEL)

    assert [found.num_accepted for found in tried] == [30, 29, 27, 26, 24, 23]
    assert functional.calibration.num_for_error(ERROR, LEVEL, 6) <= 23
    assert functional.calibration.num_for_error(ERROR, LEVEL, 7) > 21  # the next
    num_wrong = tried[0].num_wrong
    assert tried[0].bound == pytest.approx(stats.beta.ppf(1.0 - 0.2 / 6, num_wrong + 1, 30 - num_wrong))
    assert functional.calibration.acceptances(surety[:5], correct[:5], ERROR, LEVEL) == []


def test_as_many_examples_as_are_needed_bound_the_error_and_one_less_does_not():
    needed = functional.calibration.num_for_error(0.01, 0.9)

    assert needed == 230
    assert (
        functional.statistics.share_upper_bound(0, needed, 0.1)
        <= 0.01
        < functional.statistics.share_upper_bound(0, needed - 1, 0.1)
    )


def test_equal_sureties_are_accepted_together():
    surety = torch.tensor([0.9, 0.9, 0.9, 0.5, 0.5, 0.1])
    correct = torch.tensor([True, True, False, True, False, False])

    assert functional.calibration.acceptance_at_coverage(surety, correct, 0.5)[:3] == (0.5, 3, 1)
    assert functional.calibration.acceptance_at_coverage(surety, correct, 0.6)[:3] == (pytest.approx(0.1), 5, 2)
    assert functional.calibration.acceptance_at_coverage(surety, correct, 1 / 3)[:3] == (0.5, 3, 1)
    assert functional.calibration.acceptance_at_coverage(surety, correct, 0.9) == (None, 6, 3, None)


@pytest.mark.slow
@pytest.mark.feature("Among accepted predictions the error stays within the bound as often as promised")
def test_the_error_among_accepted_stays_within_the_bound_as_often_as_promised(capsys):
    generator = torch.Generator().manual_seed(0)
    errors = []
    for _ in range(60):
        tried = functional.calibration.acceptances(*draw(400, generator), ERROR, LEVEL)
        found = next((one for one in tried if one.bound <= ERROR), None)
        if found is not None:
            errors.append(true_error(found.threshold))

    broken = sum(error > ERROR for error in errors)
    with capsys.disabled():
        print(f"\nerror above the bound in {broken} of 60 repetitions, none found in {60 - len(errors)}")  # noqa: T201
    assert len(errors) > 40  # it is not kept by refusing
    assert broken <= 60 * (1 - LEVEL)
    assert sum(errors) / len(errors) > 0.5 * ERROR  # nor by accepting next to nothing
