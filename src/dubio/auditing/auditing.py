"""``audit``: is the robustness real?

Every attack is tried on the same images; for each image the worst counts, chosen by draws of their own, and the
headline is what other, fresh draws still have right. The checks ask whether that can be believed. A required check that
fails makes the headline an upper bound and nothing more.

Reference: Athalye, Carlini and Wagner 2018; Carlini et al. 2019; Tramer et al. 2020.
"""

import dataclasses
import hashlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dubio import attacks
from dubio.attacks.attack import check_count
from dubio.attacks.victims import Model
from dubio.auditing.bench import Bench
from dubio.auditing.budget import BUDGETS, Budget
from dubio.auditing.checks import Check, checks_for
from dubio.auditing.checks.randomness import FROZEN
from dubio.auditing.keeping import Keeper
from dubio.auditing.values import AttackRecord, Audit, CheckRecord, Headline, Share, ThreatModel
from dubio.evaluation.gathering import gather
from dubio.functional.adversarial import Norm
from dubio.version import versions

__all__ = ["audit"]


def audit(
    model: Model,
    data: Any,
    *,
    norm: Norm = "linf",
    epsilon: float,
    budget: Literal["quick", "full"] | Budget = "quick",
    num_images: int | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    twin: Model | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = True,
) -> Audit:
    """Audit a classifier: attack it in every way there is here, and say whether what is left can be believed.

    Args:
        model: a converted network, any ``nn.Module``, or a function from inputs to logits.
        data: images and labels, as ``evaluate`` takes them; those used are always the same for a seed.
        norm: how distance is measured, ``"linf"`` or ``"l2"``.
        epsilon: how far an image may move.
        budget: ``"quick"``, a first look, or ``"full"``, the real thing.
        num_images: how many images; by default 400 or 1,000.
        bounds: what inputs lie in.
        twin: an adversarially trained network without noise to compare with.
        seed: which images, attacks and draws.
        folder: where finished attacks are kept until the audit is whole; an interrupted audit goes on from there.
        progress: whether to show a bar.
    """
    began = time.perf_counter()
    plan = _budget(budget, num_images)
    judged = gather(data)
    inputs, targets = _choose(judged.inputs, judged.targets, plan.num_images, seed, _device(model))
    attacks.RandomNoise(epsilon=epsilon, norm=norm, bounds=bounds, tries=1, num_samples=1, seed=seed)(
        model, inputs[:8], targets[:8], progress=False
    )  # refuses what cannot be attacked, before any work is done
    settings = {
        "fingerprint": judged.record.fingerprint,
        "norm": norm,
        "epsilon": epsilon,
        "bounds": bounds,
        "seed": seed,
        "budget": repr(plan),
        "model": _model_name(model),
    }
    keeper = Keeper(None if folder is None else Path(folder), settings)
    checks = checks_for(judged.record.name, twin)
    with _bar(len(checks), progress) as bar:
        bench = Bench(model, inputs, targets, norm, epsilon, bounds, plan, seed, keeper, bar.say)
        records = [_run(check, bench, bar) for check in checks]
        images, shares = bench.worst()
        left, clean = bench.score(images, plan.score_draws), bench.score(bench.inputs, plan.score_draws)
    frozen = bench.attempts.get(FROZEN)
    keeper.finish()
    return Audit(
        status=_status(records),
        headline=Headline(
            left.predictive.value, left.predictive.low, left.predictive.high, len(inputs), plan.score_draws, shares
        ),
        threat=ThreatModel(
            norm, epsilon, bounds, plan.num_samples, plan.steps, plan.restarts, plan.name, plan.resolution, seed
        ),
        clean=_share(clean.predictive),
        r_pred=_share(left.predictive),
        r_1=_share(left.single),
        r_retry=_share(left.retry),
        r_frozen=None if frozen is None else 1.0 - frozen.fooled.double().mean().item(),
        checks=tuple(sorted(records, key=lambda record: int(record.id[1:]))),
        attacks=_attack_records(bench),
        data=judged.record.name,
        fingerprint=judged.record.fingerprint,
        seconds=time.perf_counter() - began,
        made_by=versions(),
    )


def _run(check: Check, bench: Bench, bar: "_Bar") -> CheckRecord:
    began = time.perf_counter()
    bar.begin(check.name)
    known = bench.keeper.find_check(check.id) if check.id in KEPT else None
    if known is not None:
        return known
    found = check.run(bench)
    status = "warn" if found.status == "fail" and not check.required and check.id != "C25" else found.status
    record = CheckRecord(
        check.id,
        check.name,
        check.required,
        status,
        found.words,
        found.value,
        found.limit,
        found.curve,
        time.perf_counter() - began,
    )
    if check.id in KEPT:
        bench.keeper.keep_check(record)
    return record


KEPT = ("C12", "C24")
"""Checks whose work is not an attack that is kept anyway."""


def _status(records: list[CheckRecord]) -> Literal["VALID", "UPPER BOUND ONLY", "EXTRAORDINARY"]:
    if any(_fails(record) for record in records):
        return "UPPER BOUND ONLY"
    if any(record.id == "C25" and record.status == "fail" for record in records):
        return "EXTRAORDINARY"
    return "VALID"


def _fails(record: CheckRecord) -> bool:
    """Whether a required check did not pass; one that could not be made proves nothing, but for the twin's."""
    return record.required and (record.status == "fail" or (record.status == "skipped" and record.id != "C24"))


def _attack_records(bench: Bench) -> tuple[AttackRecord, ...]:
    tried = [
        AttackRecord(name, attempt.accuracy, attempt.forwards, attempt.backwards, attempt.seconds)
        for name, attempt in bench.attempts.items()
    ]
    return (*tried, *(AttackRecord(name, None, 0, 0, 0.0, reason) for name, reason in bench.failures.items()))


def _budget(given: str | Budget, num_images: int | None) -> Budget:
    if isinstance(given, str) and given not in BUDGETS:
        raise ValueError(f"budget must be {' or '.join(map(repr, BUDGETS))}, got {given!r}")
    plan = BUDGETS[given] if isinstance(given, str) else given
    if num_images is None:
        return plan
    check_count("num_images", num_images)
    return dataclasses.replace(plan, num_images=num_images)


def _choose(inputs: Any, targets: Tensor, count: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Some images, always the same for a seed, in the order of the data."""
    if not isinstance(inputs, Tensor):
        raise TypeError(f"data must have one tensor of inputs to be attacked, got {type(inputs).__name__}")
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    rows = order[:count].sort().values
    return inputs[rows].to(device), targets[rows].to(device)


def _device(model: Model) -> torch.device:
    if isinstance(model, nn.Module):
        return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return torch.device("cpu")


def _model_name(model: Model) -> str:
    """What tells one network from another: its kind and its weights."""
    if not isinstance(model, nn.Module):
        return repr(model)
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return f"{type(model).__name__} {digest.hexdigest()}"


def _share(found: attacks.Accuracy) -> Share:
    return Share(found.value, found.low, found.high)


class _Bar:
    """Shows which check and which attack is on, on a terminal."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._name = bar, ""

    def begin(self, name: str) -> None:
        """A check begins, and the one before is over."""
        if self._name:
            self._bar.advance(self._bar.task_ids[0])
        self._name = name
        self.say("")

    def say(self, text: str) -> None:
        """What is being done for it."""
        self._bar.update(self._bar.task_ids[0], description=f"{self._name}  {text}".strip())


@contextmanager
def _bar(total: int, wanted: bool) -> Iterator[_Bar]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeElapsedColumn())
    shown = wanted and sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as bar:
        bar.add_task("starting", total=total)
        yield _Bar(bar)
