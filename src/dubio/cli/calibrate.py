"""``dubio calibrate``, ``abstain`` and ``conformal``: decide about a run's predictions by its own validation data."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

import dubio
from dubio import functional
from dubio.cli.errors import say
from dubio.cli.runs import MODEL, find_run, load_model, load_splits, read_encoder, read_order
from dubio.cli.terminal import command_line
from dubio.codec import Command, read_commands, write_commands
from dubio.convert import change_spec
from dubio.data import Examples
from dubio.evaluation import Evaluation
from dubio.io import locked
from dubio.prediction import ClassificationPredictive

EVALUATION = "evaluation.json"


@dataclass(frozen=True, eq=False)
class Subject:
    """A run about which something is decided."""

    folder: Path
    model: nn.Module
    validation: Examples
    remark: str
    quiet: bool

    def keep(self, decision: object, command: str, options: Mapping[str, tuple[Any, Any]]) -> None:
        """Write the network with what was decided, and by which command, and say so."""
        dubio.save(self.model, self.folder / MODEL)
        run = self.folder.resolve().name
        known = read_commands(self.folder)
        write_commands(self.folder, (*known, Command(command_line(command, run, options), run)))
        say(str(decision) if self.quiet else f"{decision}; kept in {self.folder / MODEL}")
        if self.remark:
            say(f"warning: {self.remark}" if self.quiet else self.remark, err=self.quiet)

    def predict(self, num_samples: int, seed: int, decisions: bool) -> ClassificationPredictive:
        """Predictions of the validation data."""
        found = dubio.predict(
            self.model, self.validation, num_samples, seed=seed, keep_samples=False, decisions=decisions
        )
        assert isinstance(found, ClassificationPredictive)
        return found


def calibrate(
    named: str,
    kind: Literal["temperature", "vector"],
    per_draw: bool,
    samples: int,
    seed: int,
    data_dir: Path | None,
    quiet: bool,
    runs: Path,
) -> None:
    """Calibrate a run on its validation data, and keep it with the network."""
    with _subject(named, runs, data_dir, quiet) as subject:
        found = dubio.calibrate(
            subject.model, subject.validation, kind=kind, per_draw=per_draw, num_samples=samples, seed=seed
        )
        options = {"kind": (kind, "temperature"), "per-draw": (per_draw, False)}
        subject.keep(found, "calibrate", options | _draws(samples, seed))
        before, after = (_quality(subject, samples, seed, decisions) for decisions in (False, True))
        say(
            f"on the {len(subject.validation)} validation examples it was found on: "
            f"NLL {before[0]:.4f} -> {after[0]:.4f}, calibration error {before[1]:.4f} -> {after[1]:.4f}"
        )


def abstain(
    named: str,
    error: float | None,
    coverage: float | None,
    score: Literal["confidence", "entropy", "mutual_information"],
    level: float,
    samples: int,
    seed: int,
    data_dir: Path | None,
    quiet: bool,
    runs: Path,
) -> None:
    """Choose when predictions of a run are accepted, and keep it with the network."""
    with _subject(named, runs, data_dir, quiet) as subject:
        found = dubio.abstain(
            subject.model,
            subject.validation,
            error=error,
            coverage=coverage,
            score=score,
            level=level,
            num_samples=samples,
            seed=seed,
        )
        options = {"error": (error, None), "coverage": (coverage, None), "score": (score, "confidence")}
        subject.keep(found, "abstain", options | {"level": (level, 0.9)} | _draws(samples, seed))


def conformal(
    named: str,
    coverage: float,
    kind: Literal["lac", "aps"],
    allow_empty: bool,
    samples: int,
    seed: int,
    data_dir: Path | None,
    quiet: bool,
    runs: Path,
) -> None:
    """Choose the prediction sets of a run, and keep it with the network."""
    with _subject(named, runs, data_dir, quiet) as subject:
        found = dubio.conformal(
            subject.model,
            subject.validation,
            coverage=coverage,
            kind=kind,
            allow_empty=allow_empty,
            num_samples=samples,
            seed=seed,
        )
        options = {"coverage": (coverage, 0.9), "kind": (kind, "lac"), "allow-empty": (allow_empty, False)}
        subject.keep(found, "conformal", options | _draws(samples, seed))
        sizes = subject.predict(samples, seed, decisions=True).sets.sum(dim=-1).double()
        say(
            f"sets hold {sizes.mean():.2f} classes on average on the {len(subject.validation)} validation examples, "
            f"{int(sizes.max())} at most"
        )


def _draws(samples: int, seed: int) -> dict[str, tuple[Any, Any]]:
    return {"samples": (samples, 100), "seed": (seed, 0)}


@contextmanager
def _subject(named: str, runs: Path, data_dir: Path | None, quiet: bool) -> Iterator[Subject]:
    """A run's network, its validation data, and what it was judged on; nothing else writes to the run meanwhile."""
    folder = find_run(named, runs)
    order = read_order(folder)
    if data_dir is not None:
        order = replace(order, data_dir=str(data_dir))
    with locked(folder):
        model = load_model(named, runs)
        if isinstance(dubio.spec(model).likelihood, dubio.Gaussian):
            raise ValueError(
                f"run {named!r} predicts numbers, and calibrate, abstain and conformal are for classes; "
                f"dubio evaluate {named} says whether its intervals hold"
            )
        validation = load_splits(order, read_encoder(folder)).validation
        if validation is None:
            raise ValueError(f"{order.data}, which run {named!r} was trained on, has no validation part to decide by")
        if (folder / EVALUATION).is_file():
            judged_on = Evaluation.load(folder / EVALUATION).data.fingerprint
            change_spec(model, evaluated=tuple(dict.fromkeys((*dubio.spec(model).evaluated, judged_on))))
        noisy = f"validation labels are as wrong as those it was trained with ({order.label_noise}), and so is this"
        yield Subject(folder, model, validation, noisy if order.label_noise is not None else "", quiet)


def _quality(subject: Subject, num_samples: int, seed: int, decisions: bool) -> tuple[float, float]:
    """Negative log-likelihood and calibration error on the validation data."""
    found = subject.predict(num_samples, seed, decisions)
    targets = subject.validation.targets
    error = functional.calibration.calibration_error(
        functional.calibration.bin_sums(found.confidence, found.label == targets)
    )
    return functional.calibration.class_nll(found.log_probs, targets).item(), error.item()
