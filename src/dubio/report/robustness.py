"""Sections on attacks: what is left of the accuracy, what the images look like, and what an audit says.

The section on audits: is the robustness real, in words for a reader who has never heard of the checks.
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
    number,
    percent,
    percent_cell,
    plural,
    points,
)
from dubio.report.runs import AttackRow, ReportedAttack, RunRecord, Shares
from dubio.report.sections import data_address, is_image

MOST_IMAGES = 8


NORMS = {"linf": "the most that any one value changes", "l2": "the root of the summed squares of all changes"}


def attacks(records: Sequence[RunRecord]) -> Section:
    """How often is it right under attack?"""
    attacked = [(record.name, found) for record in records for found in record.attacks if found.rows]
    blocks: list[Block] = []
    for norm in sorted({found.norm for _, found in attacked}):
        blocks.append(_curve([(name, found) for name, found in attacked if found.norm == norm], norm))
    columns = ("run", "attack", "epsilon", "R_pred", "R_1", "R_retry")
    rows = tuple(dict.fromkeys(row for name, found in attacked for row in _rows(name, found)))
    blocks += [Table("All attacks", columns, rows)] if rows else []
    about = (
        "An attack changes every input by at most epsilon so that the network errs. The line is what is left of the "
        "accuracy after the strongest attack tried (R_pred: of the mean over fresh draws), with 95 % intervals. R_1 is "
        "the accuracy of a single draw, R_retry the share that several draws in a row all get right. A stronger attack "
        "may leave less: these numbers say how robust a network is at most."
    )
    return Section("attacks", "How much does an attack leave?", about, tuple(blocks))


def _curve(attacked: list[tuple[str, ReportedAttack]], norm: str) -> LineChart:
    lines, parts = [], []
    for name in dict.fromkeys(name for name, _ in attacked):
        own = [found for run, found in attacked if run == name]
        weakest = replace(own[0], rows=tuple(row for found in own for row in found.rows)).weakest()
        most_images = max(own, key=lambda found: len(found.indices))
        shown = [most_images.clean.predictive, *(row.predictive for row in weakest.values())]
        lines.append(
            Series(
                name,
                (0.0, *weakest),
                tuple(share.value for share in shown),
                tuple(share.value if share.low is None else share.low for share in shown),
                tuple(share.value if share.high is None else share.high for share in shown),
            )
        )
        last = list(weakest.values())[-1]
        parts.append(f"{name}: {percent(shown[0].value)} without attack, {percent(shown[-1].value)} at {last.epsilon}")
    explained = f" ({norm}: {NORMS[norm]})" if norm in NORMS else ""
    label, summary = f"epsilon, {norm}", f"{'; '.join(parts)}{explained}."
    return LineChart(
        "Accuracy by size of the attack", summary, label, "accuracy left", tuple(lines), y_range=(0.0, 1.0)
    )


def _rows(name: str, found: ReportedAttack) -> list[tuple[Cell, ...]]:
    def line(attack: str, epsilon: str, scored: Shares) -> tuple[Cell, ...]:
        numbers = (percent_cell(share) for share in (scored.predictive, scored.single, scored.retry))
        return (Cell(name), Cell(attack), Cell(epsilon), *numbers)

    return [line("none", "0", found.clean), *(line(row.attack, row.epsilon, row) for row in found.rows)]


def before_and_after(records: Sequence[RunRecord]) -> Section:
    """What do attacked images look like?"""
    blocks = [
        gallery
        for record in records
        if record.attack and record.attack.rows
        for gallery in [_gallery(record.name, record.attack, record.folder / f"{record.attack.file_name}.safetensors")]
        if gallery
    ]
    about = (
        "Images before the attack, what it added (made stronger to be seen; grey is no change), and after it. Images "
        "that were right and are wrong now come first. A person should hardly see the difference: that is what makes "
        "the attack one."
    )
    return Section("adversarial", "What do attacked images look like?", about, tuple(blocks))


def _gallery(name: str, found: ReportedAttack, file: Path) -> Gallery | None:
    if not file.is_file():
        return None
    if found.sha256_of_images and hashlib.sha256(file.read_bytes()).hexdigest() != found.sha256_of_images:
        raise ValueError(
            f"{file} does not hold the images of {found.file_name}.json beside it; write both anew: dubio attack {name}"
        )
    row = min(found.rows, key=lambda row: row.predictive.value)
    try:
        cards = _cards(found, row, file)
    except SafetensorError as error:
        raise ValueError(f"{file} cannot be read: {error}; write it anew: dubio attack {name}") from error
    summary = (
        f"{row.attack} at epsilon {row.epsilon}: {percent(row.predictive.value)} of {len(found.indices)} images right."
    )
    return Gallery(f"{name}: before and after", summary, cards) if cards else None


def _cards(found: ReportedAttack, row: AttackRow, file: Path) -> tuple[Card, ...]:
    before, after = (torch.tensor(scored.predictive_per_example, dtype=torch.bool) for scored in (found.clean, row))
    if len(before) != len(after) or not len(before):
        return ()
    chosen = (~(before & ~after)).int().argsort(stable=True)[:MOST_IMAGES].tolist()
    with safe_open(file, framework="pt") as content:
        clean, attacked = content.get_slice("clean"), content.get_slice(f"{row.attack}@{row.epsilon}")
        if not is_image(tuple(clean.get_shape()[1:])):
            return ()
        pairs = [(clean[place], attacked[place]) for place in chosen]
    magnified = 1.0 / max(max((late - early).abs().max().item() for early, late in pairs), 1e-6)
    cards = []
    for place, (early, late) in zip(chosen, pairs, strict=True):
        number_of = found.indices[place] if place < len(found.indices) else place
        told = [
            f"{when}: {'right' if right[place] else 'wrong'}" for when, right in (("before", before), ("after", after))
        ]
        shown = (("before", early), ("what was added", 0.5 + 0.5 * magnified * (late - early)), ("after", late))
        pictures = tuple(
            Picture(data_address(small_image(image)), f"Test example {number_of}, {what}") for what, image in shown
        )
        added = f"added: at most {number((late - early).abs().max().item())}, shown {magnified:.3g} times as strong"
        cards.append(Card(pictures, (f"test example {number_of}", ", ".join(told), added)))
    return tuple(cards)


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


ACCURACIES = {
    "clean": ("not attacked", "Accuracy of the mean over draws on the images as they are."),
    "r_pred": ("R_pred", "The headline: for each image the worst of all attacks, judged by the mean over fresh draws."),
    "r_1": ("R_1", "The same images, judged by one draw."),
    "r_retry": ("R_retry", "Right on all of ten draws: what is left where an attacker may ask again."),
}


def audits(records: Sequence[RunRecord]) -> Section:
    """Is the robustness real?"""
    audited = {record.name: record.audit for record in records if record.audit is not None}
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


def _verdict(name: str, audit: Audit) -> Note:
    left, threat = audit.headline, audit.threat
    reservations = (
        "" if audit.status == "UPPER BOUND ONLY" else "".join(f" Reservation: {part}." for part in audit.caveats)
    )
    tone: Literal["plain", "good", "warn"] = "warn"
    if audit.status == "VALID":
        tone = "plain" if reservations else "good"
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
    series = []
    for name, audit in audited.items():
        shown = _check(audit, id).curve
        if len(shown) > 1:
            series.append(Series(name, tuple(point.x for point in shown), tuple(point.accuracy for point in shown)))
    summary = "; ".join(f"{line.name}: from {percent(line.y[0])} to {percent(line.y[-1])}" for line in series)
    return LineChart(f"{id}: {title}", f"{summary}.", axis, "accuracy left", tuple(series), y_range=(0.0, 1.0))


def _accuracies(name: str, audit: Audit) -> Table:
    rows = [
        (Cell(label), Cell(percent(share.value), share.value, share.low, share.high), Cell(meaning))
        for field, (label, meaning) in ACCURACIES.items()
        for share in [getattr(audit, field)]
    ]
    if audit.r_frozen is not None:
        known = "The attacker knows the draws that answer."
        rows.append((Cell("R_frozen"), Cell(percent(audit.r_frozen), audit.r_frozen), Cell(known)))
    return Table(f"{name}: what is left", ("accuracy", "value", "what it is"), tuple(rows))


def _checks(name: str, audit: Audit) -> Table:
    questions = {check.id: check.question for check in CHECKS}
    rows = tuple(
        (
            Cell(f"{check.id} {check.name}"),
            Cell(check.status + (", required" if check.required else "")),
            Cell(questions.get(check.id, "")),
            Cell(check.summary),
        )
        for check in audit.checks
    )
    return Table(f"{name}: every check", ("check", "verdict", "what it asks", "what was found"), rows)


def _check(audit: Audit, id: str) -> CheckRecord:
    return next((check for check in audit.checks if check.id == id), CheckRecord(id, "", False, "skipped", ""))
