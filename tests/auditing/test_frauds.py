"""Planted frauds: robustness that is not real gets its true figure, or is not called valid and the check is named."""

from dataclasses import replace
from typing import Any

import jaxtyping
import pytest
import torch
from scipy import stats
from torch import nn

import dubio
from audit_cases import EPSILON, TINY, verdicts
from auditing.frauds import Blinded, Coin, HardQuantiser, Lookup, SecretDice, Sharpened
from dubio.auditing.records import BUDGETS, Audit

TWO_POINTS = 0.02
BUDGET = replace(BUDGETS["quick"], num_images=200, square_steps=40)


@pytest.fixture(autouse=True)
def _as_a_user_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def audited(model: Any, data: Any, **options: Any) -> Audit:
    chosen = {"epsilon": EPSILON, "budget": BUDGET, "progress": False, **options}
    return dubio.audit(model, data, **chosen)


@pytest.fixture(scope="module")
def honest(plain: nn.Module, digits: dubio.data.Examples) -> Audit:
    """The network that the frauds are built around."""
    return audited(plain, digits)


@pytest.mark.feature("An audit gives a classifier that ignores its input its true accuracies, whatever draws chose")
@pytest.mark.parametrize("probability", [0.51, 0.905])
def test_a_coin_gets_its_true_accuracies(probability: float) -> None:
    images, draws = torch.rand(400, 1, 4, 4), 101
    budget = replace(TINY, num_images=400, score_draws=draws)
    found = audited(Coin(probability), (images, torch.zeros(400, dtype=torch.long)), budget=budget)
    assert found.r_1.low <= probability <= found.r_1.high
    binomial = stats.binom.sf(draws // 2, draws, probability)
    assert found.r_pred.low <= binomial <= found.r_pred.high
    assert found.r_retry.low <= probability**10 <= found.r_retry.high
    assert found.status == "UPPER BOUND ONLY"
    assert {"C15", "C16", "C19"} <= {check.id for check in found.failed}


@pytest.mark.slow
def test_logits_that_are_a_thousand_times_as_large_hide_nothing(
    plain: nn.Module, digits: dubio.data.Examples, honest: Audit
) -> None:
    found = audited(Sharpened(plain), digits)
    assert found.status == "VALID"
    assert found.headline.accuracy == pytest.approx(honest.headline.accuracy, abs=TWO_POINTS)
    assert found.clean == honest.clean
    blind = next(attack for attack in found.attacks if attack.name == "pgd, predictive cross entropy")
    assert blind.accuracy is not None
    assert blind.accuracy > honest.headline.accuracy + 0.2  # what one who tries nothing else would report


def test_a_quantiser_is_caught_by_its_zero_gradients(plain: nn.Module, digits: dubio.data.Examples) -> None:
    found = audited(HardQuantiser(plain), digits)
    assert found.status == "UPPER BOUND ONLY"
    assert {"C15", "C16", "C19", "C24"} <= {check.id for check in found.failed}
    assert verdicts(found)["C14"] == "warn"  # a search without gradients does better
    caught = next(check for check in found.checks if check.id == "C19")
    assert "On 100.0% of the images the gradient is exactly zero: it is masked." in caught.summary
    assert "C19" in str(found)


def test_a_lookup_is_caught_by_the_gradient_it_lacks(plain: nn.Module, digits: dubio.data.Examples) -> None:
    found = audited(Lookup(plain), digits)
    assert found.status == "UPPER BOUND ONLY"
    assert {"C5", "C6", "C8", "C15", "C16", "C19", "C23", "C24"} == {check.id for check in found.failed}
    assert all("no gradient to follow" in check.summary for check in found.failed if check.id not in {"C23", "C24"})
    failures = [attack for attack in found.attacks if attack.failure is not None]
    assert "pgd" in {attack.name for attack in failures}
    assert all(attack.accuracy is None for attack in failures)
    assert found.headline.accuracy < found.clean.value - 0.1  # by attacks that need no gradient


@pytest.mark.slow
def test_noise_that_drowns_the_gradient_of_one_draw_does_not_help(
    plain: nn.Module, digits: dubio.data.Examples, honest: Audit
) -> None:
    found = audited(
        Blinded(plain, 3.0), digits, budget=replace(BUDGET, square_steps=2, eot=(1, 10, 20), step_counts=(20, 40))
    )
    assert found.headline.accuracy == pytest.approx(honest.headline.accuracy, abs=TWO_POINTS)
    assert verdicts(found)["C3"] in ("warn", "fail")
    curve = next(check.curve for check in found.checks if check.id == "C3")
    assert curve[0].accuracy > found.headline.accuracy + 0.05  # one draw would leave far more
    assert verdicts(found)["C9"] == "skipped"
    assert found.status == "UPPER BOUND ONLY"  # a required check that cannot be made proves nothing


def test_robustness_that_hangs_on_secret_draws_is_told(plain: nn.Module, digits: dubio.data.Examples) -> None:
    budget = replace(TINY, num_images=100, num_samples=10, steps=10, score_draws=50)
    found = audited(SecretDice(plain), digits, epsilon=0.03, budget=budget)
    assert found.r_frozen is not None
    assert found.r_frozen < found.r_pred.value - 0.5
    caught = next(check for check in found.checks if check.id == "C11")
    assert caught.status == "warn"
    assert "hangs on the draws being secret" in caught.summary
