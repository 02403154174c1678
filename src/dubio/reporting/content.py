"""Which sections a report has, in which order, and what a run would need to be in them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from dubio.reporting import attacked, audited, detailed, judged, learned, strange
from dubio.reporting.headline import headlines
from dubio.reporting.reading import RunRecord
from dubio.reporting.reproducing import reproduction
from dubio.reporting.summarising import summarise
from dubio.reporting.values import Lines, Report, Section
from dubio.reporting.wording import listed
from dubio.version import versions

__all__ = ["make_report"]

Maker = Callable[[Sequence[RunRecord]], Section]
EVALUATE, ATTACK, PRUNE, AUDIT = "dubio evaluate", "dubio attack", "dubio prune", "dubio audit"
FILES = {EVALUATE: "evaluation", ATTACK: "attacks", PRUNE: "pruning", AUDIT: "audit"}
CLASSES, BOTH = ("classification",), ("classification", "regression")
SECTIONS: tuple[tuple[Maker, str, tuple[str, ...]], ...] = (
    (judged.reliability, EVALUATE, CLASSES),
    (judged.confidence, EVALUATE, CLASSES),
    (judged.risk_coverage, EVALUATE, CLASSES),
    (judged.intervals, EVALUATE, ("regression",)),
    (judged.doubt, EVALUATE, CLASSES),
    (strange.unseen, EVALUATE, CLASSES),
    (strange.corruptions, EVALUATE, CLASSES),
    (strange.wrong_labels, EVALUATE, ()),
    (detailed.notable, EVALUATE, CLASSES),
    (detailed.classes, EVALUATE, CLASSES),
    (detailed.metrics, EVALUATE, BOTH),
    (attacked.attacks, ATTACK, CLASSES),
    (attacked.before_and_after, ATTACK, CLASSES),
    (audited.audits, AUDIT, ()),
    (learned.pruning, PRUNE, BOTH),
)
"""What makes a section, the command whose file it is made from, and for which kinds of networks it may be missing."""


def make_report(records: Sequence[RunRecord], title: str | None = None) -> Report:
    """All that a report says of some runs."""
    tables = headlines(records)
    sections = [_with_missing(make(records), records, command, kinds) for make, command, kinds in SECTIONS]
    shown = [section for section in sections if section.blocks or section.missing]
    told, names = _missing_once(shown), [record.name for record in records]
    return Report(
        title=title or f"Report on {listed(names) if len(names) <= 3 else f'{len(names)} networks'}",
        summary=summarise(records, tables),
        headlines=tables,
        sections=tuple(_with_styles(part, names) for part in (*told, learned.training(records), reproduction(records))),
        made_by=versions(),
    )


def _with_styles(section: Section, names: list[str]) -> Section:
    """The section with lines that look the same in all figures where they are of the same run."""
    blocks = [
        replace(
            block,
            series=tuple(
                replace(series, style=names.index(series.name)) if series.name in names else series
                for series in block.series
            ),
        )
        if isinstance(block, Lines)
        else block
        for block in section.blocks
    ]
    return replace(section, blocks=tuple(blocks))


def _with_missing(section: Section, records: Sequence[RunRecord], command: str, kinds: tuple[str, ...]) -> Section:
    """The section, and the commands that would add runs to it."""
    lacking = [record for record in records if record.kind in kinds and not getattr(record, FILES[command])]
    return replace(section, missing=tuple(f"{command} {record.folder.resolve().name}" for record in lacking))


def _missing_once(sections: list[Section]) -> list[Section]:
    """Sections with anything to show; what a command would add is said where it would first appear."""
    told: set[str] = set()
    kept = []
    for section in sections:
        missing = tuple(command for command in section.missing if command not in told)
        told |= set(missing)
        if section.blocks or missing:
            kept.append(replace(section, missing=missing))
    return kept
