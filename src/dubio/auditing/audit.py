"""Audit the robustness of a classifier under attack.

Every attack runs on the same images. For each image the worst attack counts, chosen on draws of its own, and the
headline is the accuracy that other, fresh draws still have. The checks decide whether the headline can be believed: a
required check that fails makes it an upper bound and nothing more.

References: Athalye, Carlini and Wagner 2018; Carlini et al. 2019; Tramer et al. 2020.
"""

import dataclasses
import hashlib
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dubio import attacks
from dubio._engine import device_of, seeded
from dubio.attacks import Model, Progress
from dubio.auditing.checks import CHECKS, frozen_draws_accuracy
from dubio.auditing.records import (
    BUDGETS,
    AttackRecord,
    Audit,
    Budget,
    BudgetName,
    CheckRecord,
    Cost,
    Headline,
    Status,
    ThreatModel,
)
from dubio.auditing.session import AuditSession, Check, PartialResults
from dubio.checks import check_count
from dubio.evaluation import gather
from dubio.functional.adversarial import Norm
from dubio.version import VERSION, versions

STORED = ("C10", "C24")
"""Checks whose results are stored, since their attacks are not."""


def audit(
    model: Model,
    data: Any,
    *,
    norm: Norm = "linf",
    epsilon: float,
    budget: BudgetName | Budget = "quick",
    num_images: int | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    twin: Model | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = True,
) -> Audit:
    """Run all attacks and checks on a classifier, and report whether the accuracy left can be believed.

    Args:
        model: a converted network, any ``nn.Module``, or a function from inputs to logits.
        data: images and labels, as ``evaluate`` takes them; a seed always selects the same images.
        norm: norm of the distance, ``"linf"`` or ``"l2"``.
        epsilon: how far an image may move.
        budget: ``"tiny"``, a try in seconds, ``"quick"``, a first look, or ``"full"``, the basis of a claim.
        num_images: number of images; by default 128, 400 or 1,000.
        bounds: the interval that inputs lie in.
        twin: an adversarially trained network without noise to compare with.
        seed: selects images, attacks and draws.
        folder: where finished attacks are stored until the audit is complete; an interrupted audit continues from
            there.
        progress: whether to show a progress bar.
    """
    began = time.perf_counter()
    plan, examples = _budget(budget, num_images), gather(data)
    inputs, targets = _choose(examples.inputs, examples.targets, plan.num_images, seed, model)
    _check(model, inputs, targets, norm, epsilon, bounds)
    settings = {
        "data": examples.record.fingerprint,
        "threat": [norm, epsilon, bounds],
        "budget": repr(plan),
        "seed": seed,
        "model": _fingerprint(model, inputs[:8]),
        "twin": None if twin is None else _fingerprint(twin, inputs[:8]),
        "version": VERSION,
    }
    keeper = PartialResults(None if folder is None else Path(folder), settings)
    with Progress(len(CHECKS), "", progress, patience=0.0) as bar:
        session = AuditSession(
            model, inputs, targets, norm, epsilon, bounds, plan, seed, keeper, bar, examples.record.name, twin
        )
        checks = []
        for check in CHECKS:
            checks.append(_run(check, session))
            bar.tick()
        report = _report(session, _with_proof(checks), examples.record.fingerprint, began)
    keeper.finish()
    return report


def _report(session: AuditSession, checks: list[CheckRecord], fingerprint: str, began: float) -> Audit:
    """The record; the worst of all attacks is scored on draws that had no part in choosing it."""
    plan = session.budget
    images, shares = session.worst()
    left, clean = (session.score(given, plan.score_draws) for given in (images, session.inputs))
    costs = [run.cost for run in (*session.attempts.values(), *session.others.values())]
    pred = left.predictive
    sizes = {name: getattr(plan, name) for name in ("num_samples", "steps", "restarts", "resolution")}
    return Audit(
        status=_status(checks),
        headline=Headline(pred.value, pred.low, pred.high, len(images), plan.score_draws, shares),
        threat=ThreatModel(**session.threat, **sizes, budget=plan.name, seed=session.seed),
        clean=clean.predictive,
        r_pred=left.predictive,
        r_1=left.single,
        r_retry=left.retry,
        r_frozen=frozen_draws_accuracy(session),
        checks=tuple(sorted(checks, key=lambda record: int(record.id[1:]))),
        attacks=_attack_records(session),
        data=session.data,
        fingerprint=fingerprint,
        cost=Cost(
            sum(cost.forwards for cost in costs), sum(cost.backwards for cost in costs), time.perf_counter() - began
        ),
        made_by=versions(),
    )


def _run(check: Check, session: AuditSession) -> CheckRecord:
    began, session.check = time.perf_counter(), check.name
    session.step("")
    stored = session.keeper.find_check(check.id) if check.id in STORED else None
    if stored is not None:
        return stored
    result = check.run(session)
    is_skipped = result.status == "skipped" and check.may_be_skipped
    is_warning = result.status == "fail" and not check.required and check.id != "C25"
    fields = vars(result) | {"status": "warn" if is_warning else result.status}
    required = check.required and not is_skipped
    record = CheckRecord(check.id, check.name, required, **fields, seconds=time.perf_counter() - began)
    if check.id in STORED:
        session.keeper.keep_check(record)
    return record


def _with_proof(records: list[CheckRecord]) -> list[CheckRecord]:
    """C24 is required unless AutoAttack ran: without either, nothing shows that the attacks are strong."""
    by_id = {record.id: record.status for record in records}
    if by_id.get("C12") != "skipped" or by_id.get("C24") != "skipped":
        return records
    return [dataclasses.replace(record, required=True) if record.id == "C24" else record for record in records]


def _status(records: list[CheckRecord]) -> Status:
    """A required check that failed or could not run leaves an upper bound."""
    if any(record.holds_back for record in records):
        return "UPPER BOUND ONLY"
    if any(record.id == "C25" and record.status == "fail" for record in records):
        return "EXTRAORDINARY"
    return "VALID"


def _attack_records(session: AuditSession) -> tuple[AttackRecord, ...]:
    completed = (
        AttackRecord(name, run.accuracy, run.cost.forwards, run.cost.backwards, run.cost.seconds)
        for name, run in session.attempts.items()
    )
    return (*completed, *(AttackRecord(name, None, 0, 0, 0.0, reason) for name, reason in session.failures.items()))


def _budget(given: str | Budget, num_images: int | None) -> Budget:
    if isinstance(given, str) and given not in BUDGETS:
        raise ValueError(f"budget must be {' or '.join(map(repr, BUDGETS))}, got {given!r}")
    plan = BUDGETS[given] if isinstance(given, str) else given
    if num_images is None:
        return plan
    check_count("num_images", num_images)
    return dataclasses.replace(plan, num_images=num_images)


def _choose(inputs: Any, targets: Tensor, count: int, seed: int, model: Model) -> tuple[Tensor, Tensor]:
    """Some images, always the same for a seed, in the order of the data, on the device of the network."""
    if not isinstance(inputs, Tensor):
        raise TypeError(f"data must have one tensor of inputs to be attacked, got {type(inputs).__name__}")
    device = (device_of(model) if isinstance(model, nn.Module) else None) or inputs.device
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    rows = order[:count].sort().values.to(inputs.device)
    return inputs[rows].to(device), targets[rows].to(device)


def _check(
    model: Model, inputs: Tensor, targets: Tensor, norm: Norm, epsilon: float, bounds: tuple[float, float]
) -> None:
    """Refuse a model or data that cannot be attacked, before any work is done."""
    probe = attacks.RandomNoise(epsilon=epsilon, norm=norm, bounds=bounds, tries=1, num_samples=1, seed=0)
    if epsilon == 0.0:
        raise ValueError(
            "epsilon must be positive for an audit, got 0.0; dubio.evaluate measures accuracy on images as they are"
        )
    probe(model, inputs, targets, progress=False)


def _fingerprint(model: Model, few: Tensor) -> str:
    """Identifies a network by its class and its weights, or a function by its outputs for a few images."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(model, nn.Module):
        tensors = model.state_dict()
    else:
        with torch.no_grad(), seeded(0, few.device, lend=True):  # a function may draw from any generator
            tensors = {"outputs": model(few)}
    for name, tensor in tensors.items():
        digest.update(name.encode())
        if isinstance(tensor, Tensor):
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    kind = type(model).__name__ if isinstance(model, nn.Module) else "function"
    return f"{kind} {digest.hexdigest()}"
