"""The state of an audit: one network, the same images, every attack that ran on them, and what all checks share.

Three kinds of draws are kept apart. An attack climbs by its own. *Selection* draws, the same for all attacks, say what
each left and which one counts for each image. *Scoring* draws evaluate the chosen images, and nothing else
(``tests/auditing/test_auditing.py``).

Finished attacks and checks are stored on disk, and an interrupted audit continues from there
(``tests/auditing/test_resume.py``). An ordinary twin is the architecture of a network without its noise and its
defence, which an attack must break.
"""

import copy
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from dubio._engine import Stream, isolated, noise_key, redirected, seeded
from dubio.attacks import PGD, Attack, AttackTarget, Model, Progress, score
from dubio.auditing.records import Budget, CheckRecord, Cost, CurvePoint, Verdict
from dubio.codec import check_regular, dump_json, parse_json, read_json, read_value, write_atomically
from dubio.convert import to_mean
from dubio.functional.adversarial import Norm
from dubio.functional.statistics import PairedDifference
from dubio.methods import Deterministic
from dubio.nn import Members, num_members
from dubio.training import fit

ROWS = 256
MAIN = "pgd"
FOLDER = "audit-parts"
EPOCHS, BATCH, RATE = 40, 32, 1e-3
TWIN_ACCURACY = 0.9
"""What an ordinary twin must reach on the images."""
NO_GRADIENT = "The network has no gradient to follow: it hides how its output depends on its input."


class NoGradientError(Exception):
    """A check needs attacks by gradients, and one of them cannot run."""


@dataclass(frozen=True, eq=False)
class AttackRun:
    """The images of one attack, as the selection draws see them."""

    name: str
    attack: Attack | None
    """None where another library made the images."""
    images: Float[Tensor, "image ..."]
    values: Float[Tensor, " image"]
    """The margin by which each is wrong."""
    right: Bool[Tensor, " image"]
    cost: Cost

    @property
    def accuracy(self) -> float:
        """The accuracy that the attack leaves."""
        return share(self.right)

    @property
    def is_direct(self) -> bool:
        """Whether it followed the network's own gradients, over fresh draws."""
        return self.attack is not None and self.attack._uses_gradients and self.attack.noise == "fresh"


class PartialResults:
    """Stores attacks and checks that are finished; without a folder, stores nothing.

    ``settings`` identify the audit: parts of another one are deleted.
    """

    def __init__(self, folder: Path | None, settings: dict[str, Any]) -> None:
        self._folder = None if folder is None else folder / FOLDER
        if self._folder is None:
            return
        content = json.dumps(settings, sort_keys=True, default=str).encode()
        marker = self._folder / "settings.json"
        if self._folder.is_dir() and (not marker.is_file() or marker.read_bytes() != content):
            shutil.rmtree(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(marker, content)

    def find(self, name: str) -> tuple[Tensor, Cost] | None:
        """Images and cost of an attack of this audit, where it is finished."""
        file = self._file(name, "safetensors")
        if file is None or not file.is_file():
            return None
        try:
            check_regular(file)
            with safe_open(file, framework="pt") as content:
                cost = read_value(Cost, parse_json((content.metadata() or {})["dubio"], str(file)))
                return content.get_tensor("inputs"), cost
        except (SafetensorError, KeyError, ValueError):
            return None  # written by something else, or damaged: run it again

    def keep(self, name: str, images: Tensor, cost: Cost) -> None:
        """Store the images and the cost of an attack."""
        file = self._file(name, "safetensors")
        if file is not None:
            metadata = {"dubio": dump_json(dataclasses.asdict(cost))}
            write_atomically(file, to_bytes({"inputs": images.cpu().contiguous()}, metadata))

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
        """Store a finished check."""
        file = self._file(f"check {record.id}", "json")
        if file is not None:
            write_atomically(file, dump_json(dataclasses.asdict(record)).encode())

    def finish(self) -> None:
        """Delete the parts: the audit is complete."""
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
    progress: Progress
    data: str = "data"
    """The name of the data."""
    twin: Model | None = None
    """An adversarially trained network without noise to compare with."""
    attempts: dict[str, AttackRun] = field(default_factory=dict)
    """Attacks at the full distance, which count."""
    others: dict[str, AttackRun] = field(default_factory=dict)
    """Attacks at other distances, which do not."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why some attacks could not run."""
    check: str = ""
    """The name of the check that runs."""

    @property
    def threat(self) -> dict[str, Any]:
        """The fields that all attacks share: distance, norm and bounds."""
        return {"epsilon": self.epsilon, "norm": self.norm, "bounds": self.bounds}

    def main(self, **changes: Any) -> PGD:
        """The main attack, and with ``changes`` an attack that differs from it in these fields."""
        fields = {"steps": self.budget.steps, "num_samples": self.budget.num_samples, "loss": "margin"}
        return PGD(**(self.threat | fields | {"seed": self.seed_for("main")} | changes))

    def step(self, name: str) -> None:
        """Show which attack begins."""
        self.progress.tick(0, f"{self.check}  {name}".strip())

    def seed_for(self, purpose: str) -> int:
        """A different seed for each purpose."""
        return noise_key(f"audit/{purpose}/{self.seed}") % 2**31

    @cached_property
    def kind(self) -> Literal["fixed", "members", "random"]:
        """Whether draws are all equal, the members of an ensemble, or random."""
        if isinstance(self.model, nn.Module) and num_members(self.model):
            return "members"
        return "random" if self._checked.is_random else "fixed"

    @cached_property
    def _checked(self) -> AttackTarget:
        """The network, checked on two draws."""
        with AttackTarget(self.model, 2).ready(self.seed_for("kind"), self.inputs, self.targets) as target:
            return target

    @contextmanager
    def seeded(self, purpose: str) -> Iterator[None]:
        """A block in which the network is attacked, with the random numbers of this purpose."""
        lend = self._checked.draws_itself
        isolation = isolated(self.model, training=False, trainable=False)
        with isolation, seeded(self.seed_for(purpose), self.inputs.device, lend=lend):
            yield

    @cached_property
    def num_classes(self) -> int:
        """The number of classes of the network."""
        return self._log_probs(self.inputs[:1], 1, "classes").shape[-1]

    @cached_property
    def ordinary_twin(self) -> nn.Module | None:
        """A network of the same architecture without noise or defence; None where none can be made."""
        self.step("an ordinary network to try the attack on")
        return ordinary_twin(self.model, self.inputs, self.targets, self.seed_for("twin"))

    @cached_property
    def other_classes(self) -> Int[Tensor, "rank image"]:
        """The wrong classes of each image, the most probable first."""
        draws, pieces = self.budget.num_samples, self.inputs.split(ROWS)
        log_probs = torch.cat([self._log_probs(part, draws, "goals").logsumexp(dim=0) for part in pieces])
        ranked = log_probs.scatter(1, self.targets[:, None], -torch.inf).argsort(dim=1, descending=True)
        return ranked[:, :-1].T

    def attempt(
        self, name: str, attack: Attack, goals: Int[Tensor, " image"] | None = None, *, aside: bool = False
    ) -> AttackRun | None:
        """Run an attack, once; None where it cannot run.

        An attack equal to an earlier one in all fields does not run again and keeps the first name. A targeted attack
        goes towards ``goals``. One that runs ``aside``, such as one at another distance, does not count for the
        headline.
        """
        among = self.others if aside else self.attempts
        earlier = (*self.attempts.values(), *among.values())
        same = next((run for run in earlier if run.attack == attack), None)
        if same is not None or name in self.failures:
            return same
        self.step(name)
        stored = self.keeper.find(name)
        if stored is None:
            try:
                result = attack(self.model, self.inputs, self.targets if goals is None else goals, progress=False)
            except ValueError as error:
                self.failures[name] = str(error)
                return None
            stored = result.inputs, Cost(result.forwards, result.backwards, result.seconds)
            self.keeper.keep(name, *stored)
        among[name] = self.run_of(name, attack, *stored)
        return among[name]

    def attempt_all(self, attacks: Mapping[str, Attack], aside: bool = False) -> list[AttackRun]:
        """Run attacks by name; raises ``NoGradientError`` after the last where one of them cannot run."""
        runs = [self.attempt(name, attack, aside=aside) for name, attack in attacks.items()]
        if None in runs:
            raise NoGradientError
        return [run for run in runs if run is not None]

    def run_of(self, name: str, attack: Attack | None, images: Tensor, cost: Cost) -> AttackRun:
        """The run of an attack that has made these images; no attack where another library made them."""
        images = images.to(self.inputs.device)
        return AttackRun(name, attack, images, *self.evaluate(images), cost)

    @torch.no_grad()
    def evaluate(self, images: Float[Tensor, "image ..."]) -> tuple[Float[Tensor, " image"], Bool[Tensor, " image"]]:
        """Evaluate images on the selection draws: the margin by which each is wrong, and whether it is right."""
        with self.seeded("selection"):
            values, fooled = self.target(self.budget.select_draws).evaluate_pieces(images, self.targets, ROWS)
        return values.cpu(), ~fooled.cpu()

    @torch.no_grad()
    def fooled_when_frozen(self, images: Float[Tensor, "image ..."], rows: int) -> Bool[Tensor, " image"]:
        """Which images fool the frozen draws that an attacker has used, so many rows at a time."""
        target = self.target(self.budget.num_samples, frozen=True)
        with isolated(self.model, training=False, trainable=False):
            return target.evaluate_pieces(images, self.targets, rows)[1].cpu()

    def target(self, num_samples: int, frozen: bool = False) -> AttackTarget:
        """The network as an attacker evaluates it, with the margin of the mean probability as objective."""
        noise, seed = ("frozen", self.seed_for("frozen")) if frozen else ("fresh", 0)
        draws = 1 if self.kind == "fixed" else num_samples
        checked = {"executor": self._checked.executor, "draws_itself": self._checked.draws_itself}
        return AttackTarget(self.model, draws, "predictive", "margin", noise, seed, **checked)  # type: ignore[arg-type]

    def rows_with_gradient(self, target: AttackTarget) -> int:
        """How many images at a time fit into memory with a gradient."""
        with self.seeded("rows"):
            return min(ROWS, target.rows_at_a_time(self.inputs, self.targets))

    def left_by(self, runs: Iterable[AttackRun]) -> Bool[Tensor, " image"]:
        """Which images are still right when for each the worst of several attacks counts."""
        values, right = zip(*((run.values, run.right) for run in runs), strict=True)
        return torch.stack(right).gather(0, torch.stack(values).argmax(dim=0, keepdim=True)).squeeze(0)

    def direct(self) -> list[AttackRun]:
        """Attacks by the network's own gradients, over fresh draws."""
        return [run for run in self.attempts.values() if run.is_direct]

    def worst(self) -> tuple[Float[Tensor, "image ..."], dict[str, float]]:
        """The worst version of each image, and for which share of the images each attack's version counts."""
        names, runs = list(self.attempts), list(self.attempts.values())
        chosen = torch.stack([run.values for run in runs]).argmax(dim=0)
        images = torch.stack([runs[number].images[row] for row, number in enumerate(chosen.tolist())])
        shares = torch.bincount(chosen, minlength=len(names)).double() / len(chosen)
        return images, {name: share for name, share in zip(names, shares.tolist(), strict=True) if share > 0.0}

    @cached_property
    def clean(self) -> Bool[Tensor, " image"]:
        """Which images are right without an attack, on the selection draws."""
        return self.evaluate(self.inputs)[1]

    def score(self, images: Float[Tensor, "image ..."], num_draws: int, purpose: str = "scoring") -> attacks.Score:
        """Score images on the draws of this purpose."""
        fields = {"num_samples": num_draws, "num_tries": min(10, num_draws), "seed": self.seed_for(purpose)}
        return attacks.score(self.model, images, self.targets, **fields)

    @torch.no_grad()
    def _log_probs(self, images: Tensor, num_samples: int, purpose: str) -> Float[Tensor, "sample batch class"]:
        with self.seeded(purpose):
            return self.target(num_samples).log_probs(images)


@dataclass(frozen=True)
class CheckResult:
    """The result of a check."""

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
    """What it asks and why, for a reader who is new to attacks."""
    passes_when: str
    function: Callable[[AuditSession], CheckResult]
    required: bool = False
    may_be_skipped: bool = False
    """Whether it is required only where it can run."""

    def run(self, session: AuditSession) -> CheckResult:
        """Run the check; it fails where attacks by gradients cannot run."""
        try:
            return self.function(session)
        except NoGradientError:
            return CheckResult("fail", NO_GRADIENT)


def verdict(passes: bool, summary: str, value: float, limit: float, reason: str = "") -> CheckResult:
    """A result that passes or fails; the reason ends the summary of a failure."""
    return CheckResult("pass" if passes else "fail", summary if passes else f"{summary} {reason}".strip(), value, limit)


def fall_within(
    fall: PairedDifference, limit: float, summary: str, more: str, shown: tuple[CurvePoint, ...] = ()
) -> CheckResult:
    """Whether a fall of the accuracy is surely within a limit; if not, whether fall or interval is too large."""
    verb = "rises" if fall.value < 0.0 else "falls"
    summary = f"{summary} {verb} by {points(abs(fall.value))} (a fall of at most {points(max(fall.high, 0.0))})."
    reason = more if fall.value > limit else f"More than {points(limit)} cannot be excluded: more images would tell."
    return dataclasses.replace(verdict(fall.high <= limit, summary, fall.high, limit, reason), curve=shown)


def curve(xs: Sequence[float], runs: Sequence[AttackRun]) -> tuple[CurvePoint, ...]:
    """The accuracy that attacks leave, at each setting of the field that a check varies."""
    return tuple(CurvePoint(float(x), run.accuracy) for x, run in zip(xs, runs, strict=True))


def share(right: Tensor) -> float:
    """The share of true values."""
    return right.double().mean().item()


def points(part: float) -> str:
    """A share in points of a percent."""
    return f"{100.0 * part:.1f} points"


def ordinary_twin(model: Model, inputs: Tensor, targets: Tensor, seed: int) -> nn.Module | None:
    """A network of the same architecture with new weights, trained in the ordinary way on the same images.

    None where there is none: for a bare function, for noise that cannot be removed, and for a network that does not
    learn the images.
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
    except (ValueError, TypeError, RuntimeError):  # the network cannot be copied, converted back or trained
        return None
    return twin.eval() if _is_good(twin, inputs, targets, seed) else None


def _without_noise(model: nn.Module) -> nn.Module:
    members = next((module.members for module in model.modules() if isinstance(module, Members)), None)
    if members is not None:
        return copy.deepcopy(members[0])
    return to_mean(model) if hasattr(model, "dubio_spec") else copy.deepcopy(model)


def _is_good(twin: nn.Module, inputs: Tensor, targets: Tensor, seed: int) -> bool:
    """Whether it has no noise and has learned the images."""
    with AttackTarget(twin, 1).ready(seed, inputs, targets) as target:
        if target.is_random:
            return False
    return score(twin, inputs, targets, num_samples=1, num_tries=1).predictive.value >= TWIN_ACCURACY
