"""The record of an audit, as plain values that go to JSON and back, and the budgets of an audit.

Reports are made from the record alone. The budget ``tiny`` is a try in seconds, ``quick`` a first look in a minute,
``full`` the basis of a claim.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from dubio.attacks import Accuracy
from dubio.codec import Record
from dubio.functional.adversarial import AttackLoss, AttackObjective, Norm

BudgetName = Literal["tiny", "quick", "full"]
Verdict = Literal["pass", "warn", "fail", "skipped"]
Status = Literal["VALID", "UPPER BOUND ONLY", "EXTRAORDINARY"]
Pair = tuple[AttackObjective, AttackLoss]

FEWEST_IMAGES = 200
"""Images below which an audit says how wide its interval is: at 200 it is about 14 points."""
WEIGHTY = {"C12": "AutoAttack", "C24": "the attack breaks an ordinary network", "C25": "published figures"}
"""Checks that compare with others; an audit without them says so."""


@dataclass(frozen=True)
class Headline:
    """The accuracy left under the worst attack on each image, on draws that had no part in choosing it."""

    accuracy: float
    low: float
    high: float
    num_images: int
    num_draws: int
    shares: dict[str, float]
    """For which share of the images each attack's version counts."""


@dataclass(frozen=True)
class ThreatModel:
    """What the attacker may do, and its budget."""

    norm: Norm
    epsilon: float
    bounds: tuple[float, ...]
    num_samples: int
    """K: draws that each gradient averages."""
    steps: int
    restarts: int
    budget: BudgetName
    resolution: float
    """The smallest change in accuracy that the checks resolve."""
    seed: int


@dataclass(frozen=True)
class CurvePoint:
    """Accuracy left at one setting of the field that a check varies."""

    x: float
    accuracy: float


@dataclass(frozen=True)
class CheckRecord:
    """The result of one check: the value measured, its limit, and what they mean."""

    id: str
    name: str
    required: bool
    status: Verdict
    summary: str
    value: float | None = None
    limit: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    seconds: float = 0.0

    @property
    def holds_back(self) -> bool:
        """Whether it makes the headline an upper bound."""
        return self.required and self.status in ("fail", "skipped")


@dataclass(frozen=True)
class AttackRecord:
    """One attack at the full distance."""

    name: str
    accuracy: float | None
    """Left by it alone, on the selection draws; None where it could not run."""
    forwards: int
    backwards: int
    seconds: float
    failure: str | None = None
    """Why it could not run."""


@dataclass(frozen=True)
class Cost:
    """Passes that each image has cost, draws counted, and seconds."""

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
    """Left where the attacker knows the draws that answer; None for a network without noise."""
    checks: tuple[CheckRecord, ...]
    attacks: tuple[AttackRecord, ...]
    data: str
    fingerprint: str
    cost: Cost
    made_by: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[CheckRecord, ...]:
        """Required checks that failed or could not run: why the headline is an upper bound."""
        return tuple(check for check in self.checks if check.holds_back)

    @property
    def too_few(self) -> str:
        """A note that there are few images, whatever the status; empty where there are enough."""
        left = self.headline
        note = f"only {left.num_images} images, interval {left.low:.1%} to {left.high:.1%}; use at least"
        return "" if left.num_images >= FEWEST_IMAGES else f"{note} {FEWEST_IMAGES}"

    @property
    def caveats(self) -> tuple[str, ...]:
        """Why the headline means less than its status says: few images, a small budget, checks that did not run."""
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


@dataclass(frozen=True)
class Budget:
    """Sizes of everything that an audit runs.

    Raises:
        ValueError: a list of counts is too short to compare its last two, or there are fewer than two scoring draws.
    """

    name: BudgetName
    num_images: int
    resolution: float
    """A change counts as none where the paired interval at 95 % excludes more than this."""
    draws_error: float
    """The largest Monte Carlo error of the headline."""
    num_samples: int
    """K of the main attack."""
    steps: int
    restarts: int
    select_draws: int
    score_draws: int
    eot: tuple[int, ...]
    step_counts: tuple[int, ...]
    objectives: tuple[Pair, ...]
    num_goals: int
    """Number of other classes that are aimed at, the most probable first."""
    step_factors: tuple[float, ...]
    momenta: tuple[float, ...]
    square_steps: int
    noise_tries: int
    epsilon_factors: tuple[float, ...]
    num_seeds: int = 3

    def __post_init__(self) -> None:
        for name in ("eot", "step_counts"):
            if len(getattr(self, name)) < 2:
                raise ValueError(f"{name} must have two counts or more, to compare the last, got {getattr(self, name)}")
        if self.score_draws < 2:
            raise ValueError(f"score_draws must be at least 2, to tell how draws differ, got {self.score_draws}")


ALL_PAIRS: tuple[Pair, ...] = tuple(
    itertools.product(("predictive", "expected", "mean_logit"), ("margin", "cross_entropy", "dlr"))
)
FEW_PAIRS: tuple[Pair, ...] = (
    *(("predictive", "margin"), ("predictive", "cross_entropy")),
    *(("expected", "cross_entropy"), ("mean_logit", "margin")),
)
_SIZES: dict[str, tuple[Any, Any, Any]] = {
    "num_images": (400, 1000, 128),
    "resolution": (0.03, 0.01, 0.08),
    "draws_error": (0.01, 0.002, 0.02),
    "num_samples": (10, 20, 10),
    "steps": (20, 50, 10),
    "restarts": (2, 3, 1),
    "select_draws": (50, 100, 30),
    "score_draws": (200, 2000, 100),
    "eot": ((1, 5, 10, 20), (1, 2, 5, 10, 20, 50, 100), (1, 5, 10)),
    "step_counts": ((1, 5, 10, 20, 40), (1, 5, 10, 25, 50, 100, 200), (1, 10, 20)),
    "objectives": (FEW_PAIRS, ALL_PAIRS, FEW_PAIRS[:3]),
    "num_goals": (3, 9, 2),
    "step_factors": ((0.5, 2.0), (0.25, 0.5, 2.0), (0.5, 2.0)),
    "momenta": ((0.75,), (0.5, 0.75, 0.9), (0.75,)),
    "square_steps": (100, 1000, 40),
    "noise_tries": (5, 20, 5),
    "epsilon_factors": ((0.25, 0.5, 1.0, 2.0), (0.25, 0.5, 1.0, 1.5, 2.0, 4.0), (0.5, 1.0, 2.0)),
}
"""Fields of the budgets ``quick``, ``full`` and ``tiny``, in this order."""
_NAMES: tuple[BudgetName, ...] = ("quick", "full", "tiny")
BUDGETS = {
    name: Budget(name, **{field: sizes[place] for field, sizes in _SIZES.items()}) for place, name in enumerate(_NAMES)
}
