"""The section on audits: is the robustness real, in words for a reader who has never heard of the checks."""

from collections.abc import Sequence
from typing import Literal

from dubio.auditing import CHECKS, Audit, CheckRecord
from dubio.reporting.reading import RunRecord
from dubio.reporting.values import Block, Cell, Lines, Note, Section, Series, Table
from dubio.reporting.wording import number, percent, plural, points

__all__ = ["audits"]

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
    blocks += [_curve(audited, id) for id in CURVES if any(_check(audit, id).curve for audit in audited.values())]
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


def _curve(audited: dict[str, Audit], id: str) -> Lines:
    title, axis = CURVES[id]
    series = []
    for name, audit in audited.items():
        shown = _check(audit, id).curve
        if len(shown) > 1:
            series.append(Series(name, tuple(point.x for point in shown), tuple(point.accuracy for point in shown)))
    words = "; ".join(f"{line.name}: from {percent(line.y[0])} to {percent(line.y[-1])}" for line in series)
    return Lines(f"{id}: {title}", f"{words}.", axis, "accuracy left", tuple(series), y_range=(0.0, 1.0))


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
            Cell(check.words),
        )
        for check in audit.checks
    )
    return Table(f"{name}: every check", ("check", "verdict", "what it asks", "what was found"), rows)


def _check(audit: Audit, id: str) -> CheckRecord:
    return next((check for check in audit.checks if check.id == id), CheckRecord(id, "", False, "skipped", ""))
