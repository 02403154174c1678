"""The bench on which an audit works: one network, the same images, and every attack that was tried on them.

Three kinds of draws are kept apart. An attack climbs by its own. *Selection* draws, the same for all attacks, say what
each left and which one counts for each image. *Scoring* draws judge what was chosen, and nothing else.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dubio import attacks
from dubio.attacks import Attack, Pgd
from dubio.attacks.victims import Model, Victim, seeded_generator, untouched
from dubio.auditing.budget import Budget
from dubio.auditing.keeping import Keeper
from dubio.functional.adversarial import AttackLoss, AttackObjective, Norm
from dubio.sampling.noise import noise_key

__all__ = ["Attempt", "Bench"]

ROWS = 256
MAIN = "pgd"


@dataclass(frozen=True, eq=False)
class Attempt:
    """What one attack made of the images, as the selection draws see it."""

    name: str
    images: Float[Tensor, "image ..."]
    fooled: Bool[Tensor, " image"]
    """By the attack's own draws; of use for frozen ones alone."""
    values: Float[Tensor, " image"]
    right: Bool[Tensor, " image"]
    forwards: int
    backwards: int
    seconds: float

    @property
    def accuracy(self) -> float:
        """What it left."""
        return self.right.double().mean().item()


@dataclass(eq=False)
class Bench:
    """A network under audit."""

    model: Model
    inputs: Float[Tensor, "image ..."]
    targets: Int[Tensor, " image"]
    norm: Norm
    epsilon: float
    bounds: tuple[float, float]
    budget: Budget
    seed: int
    keeper: Keeper
    step: Callable[[str], None]
    """Called with what begins."""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """At the full distance: these count."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why some attacks could not be run."""

    def main(self) -> Pgd:
        """The main attack, from which the others differ in one thing."""
        return Pgd(
            epsilon=self.epsilon,
            norm=self.norm,
            bounds=self.bounds,
            steps=self.budget.steps,
            num_samples=self.budget.num_samples,
            objective="predictive",
            loss="margin",
            seed=self.seed_for("main"),
        )

    def seed_for(self, purpose: str) -> int:
        """A seed of its own for each purpose."""
        return noise_key(f"audit/{purpose}/{self.seed}") % 2**31

    def attempt(self, name: str, attack: Attack) -> Attempt | None:
        """Run an attack at the full distance, once; None where it cannot be run."""
        if name not in self.attempts and name not in self.failures:
            found = self.run(name, attack)
            if found is not None:
                self.attempts[name] = found
        return self.attempts.get(name)

    def run(self, name: str, attack: Attack) -> Attempt | None:
        """Run any attack and look at what it left; it does not count for the headline."""
        self.step(name)
        known = self.keeper.find(name)
        if known is None:
            try:
                result = attack(self.model, self.inputs, self.targets, progress=False)
            except ValueError as error:
                self.failures[name] = str(error)
                return None
            known = self.keeper.keep(name, result)
        images = known.inputs.to(self.inputs.device)
        values, right = self.judge(images)
        return Attempt(name, images, known.fooled.cpu(), values, right, known.forwards, known.backwards, known.seconds)

    @torch.no_grad()
    def judge(self, images: Float[Tensor, "image ..."]) -> tuple[Float[Tensor, " image"], Bool[Tensor, " image"]]:
        """What selection draws say of images: the margin by which they are wrong, and whether they are right."""
        victim = self.victim("predictive", "margin", self.budget.select_draws)
        found = []
        with untouched(self.model), seeded_generator(self.seed_for("selection"), images.device):
            for part, labels in zip(images.split(ROWS), self.targets.split(ROWS), strict=True):
                found.append(victim.judge(part, labels))
        return torch.cat([values.cpu() for values, _ in found]), ~torch.cat([fooled.cpu() for _, fooled in found])

    def victim(self, objective: AttackObjective, loss: AttackLoss, num_samples: int, frozen: bool = False) -> Victim:
        """The network as an attacker sees it."""
        noise, seed = ("frozen", self.seed_for("frozen")) if frozen else ("fresh", 0)
        return Victim(self.model, num_samples, objective, loss, noise, seed)  # type: ignore[arg-type]

    def left_by(self, names: Iterable[str]) -> Bool[Tensor, " image"]:
        """Which images are still right when for each the worst of several attacks counts."""
        chosen = [self.attempts[name] for name in names]
        values = torch.stack([attempt.values for attempt in chosen])
        right = torch.stack([attempt.right for attempt in chosen])
        return right.gather(0, values.argmax(dim=0, keepdim=True)).squeeze(0)

    def worst(self) -> tuple[Float[Tensor, "image ..."], dict[str, float]]:
        """The worst version of each image, and of how many images each attack's counts."""
        names = list(self.attempts)
        values = torch.stack([attempt.values for attempt in self.attempts.values()])
        chosen = values.argmax(dim=0)
        images = torch.stack([self.attempts[names[number]].images[row] for row, number in enumerate(chosen.tolist())])
        shares = torch.bincount(chosen, minlength=len(names)).double() / len(chosen)
        return images, {name: share for name, share in zip(names, shares.tolist(), strict=True) if share > 0.0}

    def clean(self) -> Bool[Tensor, " image"]:
        """Which images are right as they are, by the selection draws."""
        if not hasattr(self, "_clean"):
            self._clean = self.judge(self.inputs)[1]
        return self._clean

    def score(self, images: Float[Tensor, "image ..."], num_draws: int, purpose: str = "scoring") -> attacks.Score:
        """Score images on draws of their own."""
        return attacks.score(
            self.model,
            images,
            self.targets,
            num_samples=num_draws,
            num_tries=min(10, num_draws),
            seed=self.seed_for(purpose),
        )

    def at(self, epsilon: float) -> Pgd:
        """The main attack at another distance."""
        return dataclasses.replace(self.main(), epsilon=epsilon)
