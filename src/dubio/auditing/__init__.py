"""Audit a network: is its robustness real?"""

from dubio.attacks import Accuracy
from dubio.auditing.audit import audit
from dubio.auditing.checks import CHECKS
from dubio.auditing.records import (
    BUDGETS,
    FEWEST_IMAGES as FEWEST_IMAGES,
    AttackRecord,
    Audit,
    Budget,
    BudgetName,
    CheckRecord,
    Cost,
    CurvePoint,
    Headline,
    ThreatModel,
)
from dubio.auditing.session import Check

__all__ = [
    "Accuracy",
    "AttackRecord",
    "Audit",
    "BUDGETS",
    "Budget",
    "BudgetName",
    "CHECKS",
    "Check",
    "CheckRecord",
    "Cost",
    "CurvePoint",
    "Headline",
    "ThreatModel",
    "audit",
]
