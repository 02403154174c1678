"""How hard an audit tries: ``tiny`` is a taste in seconds, ``quick`` a first look in a minute, ``full`` for a claim."""

from dataclasses import dataclass, replace

from dubio.auditing.values import BudgetName
from dubio.functional.adversarial import AttackLoss, AttackObjective

__all__ = ["BUDGETS", "Budget"]

Pair = tuple[AttackObjective, AttackLoss]


@dataclass(frozen=True)
class Budget:
    """Sizes of everything that an audit runs."""

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
    """How many of the other classes are aimed at, the likeliest first."""
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


ALL_PAIRS: tuple[Pair, ...] = (
    ("predictive", "margin"),
    ("predictive", "cross_entropy"),
    ("predictive", "dlr"),
    ("expected", "margin"),
    ("expected", "cross_entropy"),
    ("expected", "dlr"),
    ("mean_logit", "margin"),
    ("mean_logit", "cross_entropy"),
    ("mean_logit", "dlr"),
)

BUDGETS = {
    "quick": Budget(
        name="quick",
        num_images=400,
        resolution=0.03,
        draws_error=0.01,
        num_samples=10,
        steps=20,
        restarts=2,
        select_draws=50,
        score_draws=200,
        eot=(1, 5, 10, 20),
        step_counts=(1, 5, 10, 20, 40),
        objectives=(
            ("predictive", "margin"),
            ("predictive", "cross_entropy"),
            ("expected", "cross_entropy"),
            ("mean_logit", "margin"),
        ),
        num_goals=3,
        step_factors=(0.5, 2.0),
        momenta=(0.75,),
        square_steps=100,
        noise_tries=5,
        epsilon_factors=(0.25, 0.5, 1.0, 2.0),
    ),
    "full": Budget(
        name="full",
        num_images=1000,
        resolution=0.01,
        draws_error=0.002,
        num_samples=20,
        steps=50,
        restarts=3,
        select_draws=100,
        score_draws=2000,
        eot=(1, 2, 5, 10, 20, 50, 100),
        step_counts=(1, 5, 10, 25, 50, 100, 200),
        objectives=ALL_PAIRS,
        num_goals=9,
        step_factors=(0.25, 0.5, 2.0),
        momenta=(0.5, 0.75, 0.9),
        square_steps=1000,
        noise_tries=20,
        epsilon_factors=(0.25, 0.5, 1.0, 1.5, 2.0, 4.0),
    ),
}
BUDGETS["tiny"] = replace(
    BUDGETS["quick"],
    name="tiny",
    num_images=128,
    resolution=0.08,
    draws_error=0.02,
    steps=10,
    restarts=1,
    select_draws=30,
    score_draws=100,
    eot=(1, 5, 10),
    step_counts=(1, 10, 20),
    objectives=BUDGETS["quick"].objectives[:3],
    num_goals=2,
    square_steps=40,
    epsilon_factors=(0.5, 1.0, 2.0),
)
