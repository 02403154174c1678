"""The session on which an audit works: one network, the same images, and every attack that was tried on them.

Three kinds of draws are kept apart. An attack climbs by its own. *Selection* draws, the same for all attacks, say what
each left and which one counts for each image. *Scoring* draws judge what was chosen, and nothing else
(``tests/auditing/test_bench.py``).

What an audit has done so far, on disk: an interrupted one goes on from there.

An ordinary twin: the architecture of a network without its noise and its defence, which an attack must break.

What all checks share: a number, a name, whether it is required, and what it found.
"""

import copy
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from dubio import attacks
from dubio._engine import Stream, noise_key, redirected, seeded, seeded_run
from dubio.attacks import PGD, Attack, AttackTarget, Model, score, untouched
from dubio.auditing.records import Budget, CheckRecord, CurvePoint, Verdict
from dubio.codec import check_regular, dump_json, parse_json, read_json, read_value, write_atomically
from dubio.convert import to_mean
from dubio.functional.adversarial import AttackLoss, AttackObjective, Norm
from dubio.functional.statistics import PairedDifference
from dubio.methods import Deterministic
from dubio.nn import Members, num_members
from dubio.training import fit

ROWS = 256


MAIN = "pgd"


@dataclass(frozen=True, eq=False)
class AttackRun:
    """What one attack made of the images, as the selection draws see it."""

    name: str
    attack: Attack | None
    """None where another library made the images."""
    images: Float[Tensor, "image ..."]
    values: Float[Tensor, " image"]
    """The margin by which each is wrong."""
    right: Bool[Tensor, " image"]
    forwards: int
    backwards: int
    seconds: float

    @property
    def accuracy(self) -> float:
        """What it left."""
        return self.right.double().mean().item()

    @property
    def is_direct(self) -> bool:
        """Whether it followed the network's own gradients, over fresh draws."""
        return self.attack is not None and self.attack._uses_gradients and self.attack.noise == "fresh"


@dataclass(frozen=True, eq=False)
class Kept:
    """An attack's result, as far as an audit needs it."""

    inputs: Tensor
    forwards: int
    backwards: int
    seconds: float


class PartialResults:
    """Keeps attacks and checks that are finished; without a folder, keeps nothing.

    ``settings`` say which audit this is: parts of another one are not taken for its own.
    """

    def __init__(self, folder: Path | None, settings: dict[str, Any]) -> None:
        self._folder = None if folder is None else folder / FOLDER
        if self._folder is None:
            return
        said = json.dumps(settings, sort_keys=True, default=str)
        marker = self._folder / "settings.json"
        if self._folder.is_dir() and (not marker.is_file() or marker.read_bytes() != said.encode()):
            shutil.rmtree(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(marker, said.encode())

    def find(self, name: str) -> Kept | None:
        """The result of an attack of this audit, where it is finished."""
        file = self._file(name, "safetensors")
        if file is None or not file.is_file():
            return None
        try:
            check_regular(file)
            with safe_open(file, framework="pt") as content:
                cost = read_value(_CostMeter, parse_json((content.metadata() or {})["dubio"], str(file)))
                return Kept(content.get_tensor("inputs"), cost.forwards, cost.backwards, cost.seconds)
        except (SafetensorError, KeyError, ValueError):
            return None  # written by something else, or damaged: run it again

    def keep(self, name: str, result: Kept) -> Kept:
        """Keep the result of an attack, and give it back."""
        file = self._file(name, "safetensors")
        if file is not None:
            cost = {"forwards": result.forwards, "backwards": result.backwards, "seconds": result.seconds}
            images = {"inputs": result.inputs.cpu().contiguous()}
            write_atomically(file, to_bytes(images, {"dubio": dump_json(cost)}))
        return result

    def find_check(self, id: str) -> CheckRecord | None:
        """A check of this audit, where it is finished."""
        file = self._file(f"check {id}", "json")
        if file is None or not file.is_file():
            return None
        try:
            return read_value(CheckRecord, read_json(file))
        except ValueError:
            return None

    def keep_check(self, record: CheckRecord) -> None:
        """Keep a finished check."""
        file = self._file(f"check {record.id}", "json")
        if file is not None:
            write_atomically(file, dump_json(dataclasses.asdict(record)).encode())

    def finish(self) -> None:
        """Throw the parts away: the audit is whole."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, name: str, ending: str) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}.{ending}"


@dataclass(eq=False)
class AuditSession:
    """A network under audit."""

    model: Model
    inputs: Float[Tensor, "image ..."]
    targets: Int[Tensor, " image"]
    norm: Norm
    epsilon: float
    bounds: tuple[float, float]
    budget: Budget
    seed: int
    keeper: PartialResults
    step: Callable[[str], None]
    """Called with what begins."""
    data: str = "data"
    """What the images are called."""
    twin: Model | None = None
    """An adversarially trained network without noise to compare with."""
    attempts: dict[str, AttackRun] = field(default_factory=dict)
    """At the full distance: these count."""
    others: dict[str, AttackRun] = field(default_factory=dict)
    """At other distances: these are looked at."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why some attacks could not be run."""

    def main(self) -> PGD:
        """The main attack, from which the others differ in one thing."""
        return PGD(
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

    @cached_property
    def kind(self) -> Literal["fixed", "members", "random"]:
        """Whether draws are all the same, the members of an ensemble, or new each time."""
        if isinstance(self.model, nn.Module) and num_members(self.model):
            return "members"
        return "random" if self._checked.is_random else "fixed"

    @cached_property
    def _checked(self) -> AttackTarget:
        """The network as two draws have shown it."""
        target = AttackTarget(self.model, 2, "predictive", "margin", "fresh", 0)
        with untouched(self.model):
            seeded_run(self.seed_for("kind"), self.inputs.device, lambda: target.check(self.inputs, self.targets))
        return target

    @contextmanager
    def seeded(self, purpose: str) -> Iterator[None]:
        """A block in which the network is attacked, with random numbers of a seed of its own for each purpose."""
        lend = self._checked.draws_itself
        with untouched(self.model), seeded(self.seed_for(purpose), self.inputs.device, lend=lend):
            yield

    @cached_property
    def num_classes(self) -> int:
        """How many classes the network tells apart."""
        return self._log_probs(self.inputs[:1], 1, "classes").shape[-1]

    @cached_property
    def ordinary_twin(self) -> nn.Module | None:
        """A network of this kind without noise or defence; None where none can be made."""
        self.step("an ordinary network to try the attack on")
        return ordinary_twin(self.model, self.inputs, self.targets, self.seed_for("twin"))

    @cached_property
    def other_classes(self) -> Int[Tensor, "rank image"]:
        """The classes that each image is not of, the likeliest first."""
        draws, pieces = self.budget.num_samples, self.pieces(self.inputs)
        log_probs = torch.cat([self._log_probs(part, draws, "goals").logsumexp(dim=0) for _, part, _ in pieces])
        ranked = log_probs.scatter(1, self.targets[:, None], -torch.inf).argsort(dim=1, descending=True)
        return ranked[:, :-1].T

    def attempt(self, name: str, attack: Attack, goals: Int[Tensor, " image"] | None = None) -> AttackRun | None:
        """Run an attack at the full distance, once; None where it cannot be run.

        One that is the same as another in all its fields is not run again, and goes by the first one's name. One that
        is targeted goes towards ``goals``.
        """
        return self._once(name, attack, self.attempts, goals)

    def attempt_aside(self, name: str, attack: Attack) -> AttackRun | None:
        """Run an attack that does not count for the headline, such as one at another distance."""
        same = next((known for known in self.attempts.values() if known.attack == attack), None)
        return same or self._once(name, attack, self.others)

    def add(self, name: str, kept: Kept, attack: Attack | None = None) -> AttackRun:
        """Let images count that are made already."""
        self.attempts[name] = self._judged(name, kept, attack)
        return self.attempts[name]

    @torch.no_grad()
    def evaluate(self, images: Float[Tensor, "image ..."]) -> tuple[Float[Tensor, " image"], Bool[Tensor, " image"]]:
        """What selection draws say of images: the margin by which they are wrong, and whether they are right."""
        target = self.target("predictive", "margin", self.budget.select_draws)
        with self.seeded("selection"):
            found = [target.evaluate(part, labels) for _, part, labels in self.pieces(images)]
        return torch.cat([values.cpu() for values, _ in found]), ~torch.cat([fooled.cpu() for _, fooled in found])

    @torch.no_grad()
    def fooled_by_known_draws(self, images: Float[Tensor, "image ..."], rows: int) -> Bool[Tensor, " image"]:
        """Which images fool the draws that an attacker who knows them has attacked, so many rows at a time."""
        target = self.target("predictive", "margin", self.budget.num_samples, frozen=True)
        found = []
        with untouched(self.model):
            for first, part, labels in self.pieces(images, rows):
                found.append(dataclasses.replace(target, first_row=first).evaluate(part, labels)[1].cpu())
        return torch.cat(found)

    def target(
        self, objective: AttackObjective, loss: AttackLoss, num_samples: int, frozen: bool = False
    ) -> AttackTarget:
        """The network as an attacker sees it."""
        noise, seed = ("frozen", self.seed_for("frozen")) if frozen else ("fresh", 0)
        draws = 1 if self.kind == "fixed" else num_samples
        checked = {"executor": self._checked.executor, "draws_itself": self._checked.draws_itself}
        return AttackTarget(self.model, draws, objective, loss, noise, seed, **checked)  # type: ignore[arg-type]

    def pieces(self, images: Tensor, rows: int = ROWS) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Images and their labels, some at a time, with the number of the first."""
        for first in range(0, len(images), rows):
            yield first, images[first : first + rows], self.targets[first : first + rows]

    def rows_with_gradient(self, target: AttackTarget) -> int:
        """How many images at a time fit into memory with a gradient."""
        with self.seeded("rows"):
            return min(ROWS, target.rows_at_a_time(self.inputs, self.targets))

    def left_by(self, chosen: Iterable[AttackRun]) -> Bool[Tensor, " image"]:
        """Which images are still right when for each the worst of several attacks counts."""
        every = list(chosen)
        values = torch.stack([attempt.values for attempt in every])
        right = torch.stack([attempt.right for attempt in every])
        return right.gather(0, values.argmax(dim=0, keepdim=True)).squeeze(0)

    def direct(self) -> list[AttackRun]:
        """Attacks by the network's own gradients, over fresh draws."""
        return [attempt for attempt in self.attempts.values() if attempt.is_direct]

    def worst(self) -> tuple[Float[Tensor, "image ..."], dict[str, float]]:
        """The worst version of each image, and of which share of the images each attack's counts."""
        names = list(self.attempts)
        values = torch.stack([attempt.values for attempt in self.attempts.values()])
        chosen = values.argmax(dim=0)
        images = torch.stack([self.attempts[names[number]].images[row] for row, number in enumerate(chosen.tolist())])
        shares = torch.bincount(chosen, minlength=len(names)).double() / len(chosen)
        return images, {name: share for name, share in zip(names, shares.tolist(), strict=True) if share > 0.0}

    @cached_property
    def clean(self) -> Bool[Tensor, " image"]:
        """Which images are right as they are, by the selection draws."""
        return self.evaluate(self.inputs)[1]

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

    def at(self, epsilon: float) -> PGD:
        """The main attack at another distance."""
        return dataclasses.replace(self.main(), epsilon=epsilon)

    def _once(
        self, name: str, attack: Attack, among: dict[str, AttackRun], goals: Tensor | None = None
    ) -> AttackRun | None:
        same = next((known for known in among.values() if known.attack == attack), None)
        if same is not None or name in self.failures:
            return same
        self.step(name)
        kept = self.keeper.find(name)
        if kept is None:
            try:
                result = attack(self.model, self.inputs, self.targets if goals is None else goals, progress=False)
            except ValueError as error:
                self.failures[name] = str(error)
                return None
            kept = self.keeper.keep(name, Kept(result.inputs, result.forwards, result.backwards, result.seconds))
        among[name] = self._judged(name, kept, attack)
        return among[name]

    def _judged(self, name: str, kept: Kept, attack: Attack | None) -> AttackRun:
        images = kept.inputs.to(self.inputs.device)
        return AttackRun(name, attack, images, *self.evaluate(images), kept.forwards, kept.backwards, kept.seconds)

    @torch.no_grad()
    def _log_probs(self, images: Tensor, num_samples: int, purpose: str) -> Float[Tensor, "sample batch class"]:
        with self.seeded(purpose):
            return self.target("predictive", "margin", num_samples).log_probs(images)


FOLDER = "audit-parts"


@dataclass(frozen=True)
class _CostMeter:
    """What the file of an attack says beside its images."""

    forwards: int
    backwards: int
    seconds: float


EPOCHS, BATCH, RATE = 40, 32, 1e-3


LEARNED = 0.9


def ordinary_twin(model: Model, inputs: Tensor, targets: Tensor, seed: int) -> nn.Module | None:
    """A network of the same architecture, from new weights, trained in the ordinary way on these very images.

    None where there is none: for a bare function, noise that cannot be taken out, or what does not learn them.
    """
    if not isinstance(model, nn.Module):
        return None
    try:
        with redirected(Stream(seed)):  # modules draw their weights from torch's global generator
            twin = Deterministic().convert(_without_noise(model))
            for module in twin.modules():
                if callable(reset := getattr(module, "reset_parameters", None)):
                    reset()
        fit(twin, (inputs, targets), epochs=EPOCHS, lr=RATE, batch_size=BATCH, seed=seed, progress=False)
    except (ValueError, TypeError, RuntimeError):  # it cannot be copied, converted back or trained
        return None
    return twin.eval() if _is_good(twin, inputs, targets, seed) else None


def _without_noise(model: nn.Module) -> nn.Module:
    members = next((module.members for module in model.modules() if isinstance(module, Members)), None)
    if members is not None:
        return copy.deepcopy(members[0])
    return to_mean(model) if hasattr(model, "dubio_spec") else copy.deepcopy(model)


def _is_good(twin: nn.Module, inputs: Tensor, targets: Tensor, seed: int) -> bool:
    """Whether it has no noise of its own and knows the images."""
    target = AttackTarget(twin, 1, "predictive", "margin", "fresh", 0)
    with untouched(twin):
        seeded_run(seed, inputs.device, lambda: target.check(inputs, targets))
    if target.is_random:
        return False
    return score(twin, inputs, targets, num_samples=1, num_tries=1).predictive.value >= LEARNED


NO_GRADIENT = "The network has no gradient to follow: it hides how its output depends on its input."


def curve(xs: Sequence[float], attempts: Sequence[AttackRun]) -> tuple[CurvePoint, ...]:
    """What attempts left, at each setting of what a check varies."""
    return tuple(CurvePoint(float(x), attempt.accuracy) for x, attempt in zip(xs, attempts, strict=True))


@dataclass(frozen=True)
class CheckResult:
    """What a check found."""

    status: Verdict
    summary: str
    value: float | None = None
    limit: float | None = None
    curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True)
class Check:
    """One question of an audit."""

    id: str
    name: str
    question: str
    """What it asks and why, for a reader who has never heard of it."""
    passes_when: str
    run: Callable[[AuditSession], CheckResult]
    required: bool = False
    may_be_skipped: bool = False
    """Whether it is required only where it can be made."""


def fall_within(
    fall: PairedDifference, limit: float, summary: str, more: str, shown: tuple[CurvePoint, ...] = ()
) -> CheckResult:
    """Whether a fall of the accuracy is surely within a limit; if not, whether the fall or the doubt is too large."""
    way = "rises" if fall.value < 0.0 else "falls"
    told = f"{summary} {way} by {points(abs(fall.value))} (a fall of at most {points(max(fall.high, 0.0))})."
    if fall.high <= limit:
        return CheckResult("pass", told, fall.high, limit, shown)
    reason = more if fall.value > limit else f"More than {points(limit)} cannot be excluded: more images would tell."
    return CheckResult("fail", f"{told} {reason}", fall.high, limit, shown)


def points(share: float) -> str:
    """A share in points of a percent."""
    return f"{100.0 * share:.1f} points"
