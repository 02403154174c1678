"""What an audit found, as plain values: they go to JSON and back, and the report is made from them alone."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from dubio.attacks import Accuracy
from dubio.codec import Record

__all__ = [
    "BudgetName",
    "AttackRecord",
    "Audit",
    "CheckRecord",
    "Cost",
    "CurvePoint",
    "Headline",
    "Accuracy",
    "Status",
    "ThreatModel",
    "Verdict",
]

BudgetName = Literal["tiny", "quick", "full"]
Verdict = Literal["pass", "warn", "fail", "skipped"]
Status = Literal["VALID", "UPPER BOUND ONLY", "EXTRAORDINARY"]

FEWEST_IMAGES = 200
"""Images below which an audit says how wide its interval is: at 200 it is about 14 points."""
WEIGHTY = {"C12": "AutoAttack", "C24": "the attack breaks an ordinary network", "C25": "published figures"}
"""Checks that compare with others; an audit without them says so."""


@dataclass(frozen=True)
class Headline:
    """What is left of the accuracy under the worst attack on each image, seen by draws that had no part in choosing."""

    accuracy: float
    low: float
    high: float
    num_images: int
    num_draws: int
    shares: dict[str, float]
    """Of how many images each attack's version counts."""


@dataclass(frozen=True)
class ThreatModel:
    """What the attacker may do, and how hard it tried."""

    norm: Literal["linf", "l2"]
    epsilon: float
    bounds: tuple[float, ...]
    num_samples: int
    """K: draws that each gradient averages."""
    steps: int
    restarts: int
    budget: BudgetName
    resolution: float
    """How large a change in accuracy the checks can tell."""
    seed: int


@dataclass(frozen=True)
class CurvePoint:
    """Accuracy left at one setting of what a check varies."""

    x: float
    accuracy: float


@dataclass(frozen=True)
class CheckRecord:
    """One check: what was measured, what it had to be, and what that means."""

    id: str
    name: str
    required: bool
    status: Verdict
    words: str
    value: float | None = None
    limit: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    seconds: float = 0.0

    @property
    def holds_back(self) -> bool:
        """Whether it keeps the headline from being more than an upper bound."""
        return self.required and self.status in ("fail", "skipped")


@dataclass(frozen=True)
class AttackRecord:
    """One attack that was tried at the full distance."""

    name: str
    accuracy: float | None
    """Left by it alone, on the draws that choose; None where it could not be run."""
    forwards: int
    backwards: int
    seconds: float
    failure: str | None = None
    """Why it could not be run."""


@dataclass(frozen=True)
class Cost:
    """What it took: passes that each image has cost, draws counted, and the time of the whole."""

    forwards: int
    backwards: int
    seconds: float


@dataclass(frozen=True)
class Audit(Record):
    """Whether a claimed robustness is real."""

    format: ClassVar = "dubio-audit-1"
    called: ClassVar = "an audit"

    status: Status
    headline: Headline
    threat: ThreatModel
    clean: Accuracy
    r_pred: Accuracy
    r_1: Accuracy
    r_retry: Accuracy
    r_frozen: float | None
    """Left where the attacker knows the draws that answer; None where there are none to know."""
    checks: tuple[CheckRecord, ...]
    attacks: tuple[AttackRecord, ...]
    data: str
    fingerprint: str
    cost: Cost
    made_by: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[CheckRecord, ...]:
        """Required checks that failed, or could not be made: why the headline is an upper bound."""
        return tuple(check for check in self.checks if check.holds_back)

    @property
    def too_few(self) -> str:
        """That there are few images, which holds whatever the status is; empty where there are enough."""
        left = self.headline
        if left.num_images >= FEWEST_IMAGES:
            return ""
        return (
            f"only {left.num_images} images, interval {left.low:.1%} to {left.high:.1%}; use at least {FEWEST_IMAGES}"
        )

    @property
    def caveats(self) -> tuple[str, ...]:
        """Why the headline means less than its status says: few images, a small budget, checks that were not made."""
        skipped = [check.id for check in self.checks if check.id in WEIGHTY and check.status == "skipped"]
        parts = [
            self.too_few,
            "budget tiny tries few attacks for a short time" if self.threat.budget == "tiny" else "",
            f"not made: {', '.join(f'{id} ({WEIGHTY[id]})' for id in skipped)}" if skipped else "",
        ]
        return tuple(part for part in parts if part)

    def __str__(self) -> str:
        left = Accuracy(self.headline.accuracy, self.headline.low, self.headline.high)
        failed = ", ".join(check.id for check in self.failed)
        reason = f"; failed: {failed}" if failed else f"; {'; '.join(self.caveats)}" if self.caveats else ""
        return f"{self.status}: {left} of {self.headline.num_images} images at {self.threat.epsilon:.4g}{reason}"
