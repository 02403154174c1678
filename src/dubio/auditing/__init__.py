"""Audit a network: is its robustness real?"""

from dubio.attacks import Accuracy
from dubio.auditing.auditing import audit
from dubio.auditing.budget import BUDGETS, Budget
from dubio.auditing.checks import CHECKS, Check
from dubio.auditing.values import (
    FEWEST_IMAGES as FEWEST_IMAGES,
    AttackRecord,
    Audit,
    BudgetName,
    CheckRecord,
    Cost,
    CurvePoint,
    Headline,
    ThreatModel,
)

__all__ = [
    "AttackRecord",
    "Audit",
    "BUDGETS",
    "BudgetName",
    "Budget",
    "CHECKS",
    "Check",
    "CheckRecord",
    "Cost",
    "CurvePoint",
    "Headline",
    "Accuracy",
    "ThreatModel",
    "audit",
]
