"""Controls: networks whose robustness, little or much, is real must be called valid."""

from dataclasses import replace

import jaxtyping
import pytest
from torch import nn

import dubio
from audit_cases import EPSILON, trained
from dubio.auditing.records import BUDGETS, Audit, Budget

HALF = replace(BUDGETS["quick"], num_images=200, square_steps=40)
"""Half the images: every check stays, with its limit, and an error that is larger by a factor of 1.4."""


@pytest.fixture(autouse=True)
def _as_a_user_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def audited(model: nn.Module, digits: dubio.data.Examples, budget: Budget = BUDGETS["quick"]) -> Audit:
    return dubio.audit(model, digits, epsilon=EPSILON, budget=budget, progress=False)


@pytest.mark.feature("dubio.audit calls undefended and adversarially trained networks VALID")
@pytest.mark.slow
def test_an_undefended_network_is_valid_and_weak(plain: nn.Module, digits: dubio.data.Examples) -> None:
    found = audited(plain, digits)
    assert found.status == "VALID", [check.summary for check in found.failed]
    assert found.clean.value > 0.95
    assert found.headline.accuracy < 0.6
    assert found.r_pred.value == found.r_1.value == found.r_retry.value == found.headline.accuracy
    assert found.r_frozen is None
    assert sum(found.headline.shares.values()) == pytest.approx(1.0)
    assert found.headline.low < found.headline.accuracy < found.headline.high


@pytest.mark.slow
def test_an_adversarially_trained_network_is_valid_and_stronger(plain: nn.Module, digits: dubio.data.Examples) -> None:
    found = audited(trained(dubio.Deterministic(), adversarial=True), digits)
    assert found.status == "VALID", [check.summary for check in found.failed]
    assert found.headline.accuracy > 0.65


@pytest.mark.slow
def test_an_adversarially_trained_bayesian_network_is_valid(digits: dubio.data.Examples) -> None:
    found = audited(trained(dubio.Bayes(), adversarial=True), digits, HALF)
    assert found.status == "VALID", [check.summary for check in found.failed]
    assert found.headline.accuracy > 0.6
    assert found.r_retry.value < found.r_1.value < found.clean.value
    assert found.r_frozen is not None
    assert sum(check.seconds for check in found.checks) <= found.cost.seconds
