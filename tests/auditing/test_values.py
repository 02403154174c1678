"""An audit as a record: there and back, and what it says of itself."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

import dubio
from audit_cases import EPSILON, TINY
from dubio.auditing.records import Audit, CheckRecord


@pytest.fixture(scope="module")
def found(plain: nn.Module, digits: dubio.data.Examples) -> Audit:
    return dubio.audit(plain, digits, epsilon=EPSILON, budget=TINY, progress=False)


def test_an_audit_goes_to_a_file_and_comes_back(found: Audit, tmp_path: Path) -> None:
    found.save(tmp_path / "audit.json")
    assert Audit.load(tmp_path / "audit.json") == found
    content = json.loads((tmp_path / "audit.json").read_text())
    assert {
        "status",
        "headline",
        "threat",
        "clean",
        "r_pred",
        "r_1",
        "r_retry",
        "r_frozen",
        "checks",
        "attacks",
    } <= set(content)
    assert content["cost"]["forwards"] > content["cost"]["backwards"] > 0
    assert {"id", "name", "required", "status", "value", "limit", "curve", "summary"} <= set(content["checks"][0])


def test_every_check_is_in_the_record_once_and_in_order(found: Audit) -> None:
    numbers = [int(check.id[1:]) for check in found.checks]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 22


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[]", "an audit must have format 'dubio-audit-1', got 'list'"),
        ('{"format": "other"}', "an audit must have format 'dubio-audit-1', got 'other'"),
        ("{", "does not hold an audit"),
    ],
)
def test_what_is_no_audit_is_refused(content: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text(content)
    with pytest.raises(ValueError, match=told):
        Audit.load(tmp_path / "audit.json")


@pytest.mark.parametrize(
    ("required", "status", "holds_back"),
    [
        (True, "fail", True),
        (True, "skipped", True),
        (True, "warn", False),
        (True, "pass", False),
        (False, "fail", False),
        (False, "skipped", False),
    ],
)
def test_only_required_checks_that_are_not_made_or_fail_hold_back(
    required: bool, status: str, holds_back: bool, found: Audit
) -> None:
    check = CheckRecord("C1", "name", required, status, "summary")  # type: ignore[arg-type]
    assert check.holds_back == holds_back
    assert (replace(found, checks=(check,)).failed == (check,)) == holds_back
