"""Sections on robustness: accuracy under attack, attacked images, and audits.

An image belongs to a record by its hash: a file of images that does not match its record raises an error
(``tests/report/test_writing.py``).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open

from dubio.auditing import CHECKS, Audit, CheckRecord
from dubio.functional.corruption import small_image
from dubio.report.elements import (
    Block,
    Card,
    Cell,
    Gallery,
    LineChart,
    Note,
    Picture,
    Section,
    Series,
    Table,
    line_of,
    number,
    percent,
    percent_cell,
    plural,
    points,
    ranges_of,
)
from dubio.report.runs import AttackRow, RobustnessRecord, RunRecord
from dubio.report.sections import data_address, is_image

NUM_IMAGES = 8
NORMS = {"linf": "the most that any one value changes", "l2": "the root of the summed squares of all changes"}
VERDICTS = {
    "VALID": "Nothing speaks against the number below: what is left is what the network keeps against these attacks.",
    "UPPER BOUND ONLY": "The number below is an upper bound and nothing more: a check that had to pass did not.",
    "EXTRAORDINARY": "The number below is beyond the best that is published, and needs more proof than an audit.",
}
CURVES = {
    "C3": ("What is left as each gradient averages more draws", "draws for each gradient"),
    "C5": ("What is left as the attack takes more steps", "steps"),
    "C17": ("What is left as the attacker may go further", "distance"),
}
"""Title and axis of each check that has a curve."""
ACCURACIES = {
    "clean": ("not attacked", "Accuracy of the mean over draws on the images as they are."),
    "r_pred": ("R_pred", "The headline: for each image the worst of all attacks, judged by the mean over fresh draws."),
    "r_1": ("R_1", "The same images, judged by one draw."),
    "r_retry": ("R_retry", "Right on all of ten draws: what is left where an attacker may ask again."),
}


def attacks(records: Sequence[RunRecord]) -> Section:
    """Accuracy by size of the attack, and a table of all attacks."""
    attacked = [(run.name, record) for run in records for record in run.attacks if record.rows]
    norms = sorted({record.norm for _, record in attacked})
    blocks: list[Block] = [_attack_curve([pair for pair in attacked if pair[1].norm == norm], norm) for norm in norms]
    rows: dict[tuple[Cell, ...], None] = {}
    for name, record in attacked:
        under_attack = ((row.attack, row.epsilon, row) for row in record.rows)
        for attack, epsilon, score in (("none", "0", record.clean), *under_attack):
            shares = map(percent_cell, (score.predictive, score.single, score.retry))
            rows[(*map(Cell, (name, attack, epsilon)), *shares)] = None
    columns = ("run", "attack", "epsilon", "R_pred", "R_1", "R_retry")
    blocks += [Table("All attacks", columns, tuple(rows))] if rows else []
    about = (
        "An attack changes every input by at most epsilon so that the network errs. The line is what is left of the "
        "accuracy after the strongest attack tried (R_pred: of the mean over fresh draws), with 95 % intervals. R_1 is "
        "the accuracy of a single draw, R_retry the share that several draws in a row all get right. A stronger attack "
        "may leave less: these numbers say how robust a network is at most."
    )
    return Section("attacks", "How much does an attack leave?", about, tuple(blocks))


def before_and_after(records: Sequence[RunRecord]) -> Section:
    """Images before and after the strongest attack of each run."""
    galleries = (_gallery(run.name, run.attack, run.folder) for run in records if run.attack)
    about = (
        "Images before the attack, what it added (made stronger to be seen; grey is no change), and after it. Images "
        "that were right and are wrong now come first. A person should hardly see the difference: that is what makes "
        "the attack one."
    )
    return Section("adversarial", "What do attacked images look like?", about, tuple(filter(None, galleries)))


def audits(records: Sequence[RunRecord]) -> Section:
    """Verdicts, curves and checks of audits, for readers who do not know the checks."""
    audited = {run.name: run.audit for run in records if run.audit is not None}
    blocks: list[Block] = [_verdict(name, audit) for name, audit in audited.items()]
    blocks += [_audit_curve(audited, id) for id in CURVES if any(_check(audit, id).curve for audit in audited.values())]
    for name, audit in audited.items():
        blocks += [_accuracies(name, audit), _checks(name, audit)]
    about = (
        "A network may look robust because the attack was weak: gradients of a random network point partly at noise, "
        "and some networks hide their gradients altogether. An audit tries every attack on the same images, counts the "
        "worst for each, and asks in many ways whether the attack was fooled. A check that passes found nothing "
        "against the number; a required one that fails makes it an upper bound. Curves should be flat at their end."
    )
    return Section("audit", "Is the robustness real?", about, tuple(blocks))


def _attack_curve(attacked: list[tuple[str, RobustnessRecord]], norm: str) -> LineChart:
    lines, parts = [], []
    for name in dict.fromkeys(name for name, _ in attacked):
        records = [record for run, record in attacked if run == name]
        weakest = replace(records[0], rows=tuple(row for record in records for row in record.rows)).weakest()
        clean = max(records, key=lambda record: len(record.indices)).clean.predictive
        shown = [clean, *(row.predictive for row in weakest.values())]
        values, low, high = zip(*((share.value, share.low, share.high) for share in shown), strict=True)
        lines.append(Series(name, (0.0, *weakest), values, low, high))
        last = list(weakest.values())[-1]
        parts.append(f"{name}: {percent(values[0])} without attack, {percent(values[-1])} at {last.epsilon}")
    explained = f" ({norm}: {NORMS[norm]})" if norm in NORMS else ""
    summary = f"{'; '.join(parts)}{explained}."
    title, axis = "Accuracy by size of the attack", f"epsilon, {norm}"
    return LineChart(title, summary, axis, "accuracy left", tuple(lines), y_range=(0.0, 1.0))


def _gallery(name: str, record: RobustnessRecord, folder: Path) -> Gallery | None:
    file = folder / f"{record.file_name}.safetensors"
    if not file.is_file():
        return None
    if record.sha256_of_images and hashlib.sha256(file.read_bytes()).hexdigest() != record.sha256_of_images:
        raise ValueError(
            f"{file} does not hold the images of {record.file_name}.json beside it; write both anew: dubio attack "
            f"{name}"
        )
    row = min(record.rows, key=lambda row: row.predictive.value)
    try:
        cards = _cards(record, row, file)
    except SafetensorError as error:
        raise ValueError(f"{file} cannot be read: {error}; write it anew: dubio attack {name}") from error
    summary = (
        f"{row.attack} at epsilon {row.epsilon}: {percent(row.predictive.value)} of {len(record.indices)} images right."
    )
    return Gallery(f"{name}: before and after", summary, cards) if cards else None


def _cards(record: RobustnessRecord, row: AttackRow, file: Path) -> tuple[Card, ...]:
    """Images with what was added to them; first those that are wrong only after the attack."""
    before, after = (torch.tensor(score.predictive_per_example, dtype=torch.bool) for score in (record.clean, row))
    if len(before) != len(after) or not len(before):
        return ()
    order = (~(before & ~after)).int().argsort(stable=True)[:NUM_IMAGES].tolist()
    with safe_open(file, framework="pt") as content:
        clean, attacked = content.get_slice("clean"), content.get_slice(f"{row.attack}@{row.epsilon}")
        if not is_image(tuple(clean.get_shape()[1:])):
            return ()
        pairs = [(clean[place], attacked[place]) for place in order]
    sizes = [(moved - image).abs().max().item() for image, moved in pairs]
    scale = 1.0 / max(*sizes, 1e-6)
    cards = []
    for place, size, (image, moved) in zip(order, sizes, pairs, strict=True):
        index = record.indices[place] if place < len(record.indices) else place
        right, still_right = ("right" if correct[place] else "wrong" for correct in (before, after))
        shown = {"before": image, "what was added": 0.5 + 0.5 * scale * (moved - image), "after": moved}
        sources = {what: data_address(small_image(pixels)) for what, pixels in shown.items()}
        pictures = tuple(Picture(source, f"Test example {index}, {what}") for what, source in sources.items())
        lines = (
            f"test example {index}",
            f"before: {right}, after: {still_right}",
            f"added: at most {number(size)}, shown {scale:.3g} times as strong",
        )
        cards.append(Card(pictures, lines))
    return tuple(cards)


def _verdict(name: str, audit: Audit) -> Note:
    left, threat = audit.headline, audit.threat
    caveats = () if audit.status == "UPPER BOUND ONLY" else audit.caveats
    reservations = "".join(f" Reservation: {caveat}." for caveat in caveats)
    tone: Literal["plain", "good", "warn"] = "warn" if audit.status != "VALID" else "plain" if reservations else "good"
    failed = f" Failed: {', '.join(f'{check.id} {check.name}' for check in audit.failed)}." if audit.failed else ""
    return Note(
        f"{name}: {audit.status}. {VERDICTS[audit.status]}{failed} At {threat.norm} distance {number(threat.epsilon)}, "
        f"{percent(left.accuracy)} ({percent(left.low)} to {percent(left.high)}) of {plural(left.num_images, 'image')} "
        f"are right, {percent(audit.clean.value)} without an attack; the checks can tell a change of "
        f"{points(threat.resolution)}.{reservations}",
        tone,
    )


def _audit_curve(audited: dict[str, Audit], id: str) -> LineChart:
    title, axis = CURVES[id]
    curves = {name: curve for name, audit in audited.items() if len(curve := _check(audit, id).curve) > 1}
    lines = tuple(line_of(name, [(point.x, point.accuracy) for point in curve]) for name, curve in curves.items())
    summary = f"{ranges_of(lines, percent)}."
    return LineChart(f"{id}: {title}", summary, axis, "accuracy left", lines, y_range=(0.0, 1.0))


def _accuracies(name: str, audit: Audit) -> Table:
    texts = ACCURACIES.items()
    rows = [(Cell(label), percent_cell(getattr(audit, field)), Cell(about)) for field, (label, about) in texts]
    if audit.r_frozen is not None:
        frozen = Cell(percent(audit.r_frozen), audit.r_frozen)
        rows.append((Cell("R_frozen"), frozen, Cell("The attacker knows the draws that answer.")))
    return Table(f"{name}: what is left", ("accuracy", "value", "what it is"), tuple(rows))


def _checks(name: str, audit: Audit) -> Table:
    questions = {check.id: check.question for check in CHECKS}
    rows = []
    for check in audit.checks:
        verdict = check.status + (", required" if check.required else "")
        texts = (f"{check.id} {check.name}", verdict, questions.get(check.id, ""), check.summary)
        rows.append(tuple(map(Cell, texts)))
    return Table(f"{name}: every check", ("check", "verdict", "what it asks", "what was found"), tuple(rows))


def _check(audit: Audit, id: str) -> CheckRecord:
    return next((check for check in audit.checks if check.id == id), CheckRecord(id, "", False, "skipped", ""))
