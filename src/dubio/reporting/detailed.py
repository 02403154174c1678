"""Sections that go into detail: classes, single examples, and every number of an evaluation."""

from collections.abc import Sequence

from dubio.evaluation import METRICS, Evaluation, NotableExample
from dubio.reporting.images import data_address, from_thumbnail
from dubio.reporting.judged import judged_runs
from dubio.reporting.reading import RunRecord
from dubio.reporting.values import Block, Card, Cell, Gallery, Note, Picture, Section, Table
from dubio.reporting.wording import cell, listed, number, percent

__all__ = ["classes", "metrics", "notable"]

NOTABLE = {
    "most uncertain": "Examples with the largest entropy: a person may find them hard, too.",
    "most confidently wrong": "Errors of the highest confidence: wrong labels, or what the network has not understood.",
}


def classes(records: Sequence[RunRecord]) -> Section:
    """Which classes are found, and which are mixed up?"""
    blocks = []
    for name, found in judged_runs(records):
        rows = tuple(
            (
                Cell(row.name),
                Cell(str(row.num_examples), float(row.num_examples)),
                Cell(percent(row.recall), row.recall),
                Cell(percent(row.precision), row.precision),
                Cell(percent(row.confidence), row.confidence),
                Cell(number(row.nll), row.nll),
                Cell(row.taken_for or "-"),
            )
            for row in sorted(found.classes, key=lambda row: (row.recall is None, row.recall))
        )
        columns = (
            "class",
            "examples",
            "found (recall)",
            "right when named (precision)",
            "mean confidence",
            "NLL",
            "most often taken for",
        )
        blocks += [Table(f"{name}: classes, those found least first", columns, rows)] if rows else []
    about = "How each class fares. A class that is rarely found, or often named wrongly, needs more or better examples."
    return Section("classes", "Which classes are mixed up?", about, tuple(blocks))


def metrics(records: Sequence[RunRecord]) -> Section:
    """All numbers, and whether the draws were enough for them."""
    judged = judged_runs(records)
    blocks: list[Block] = []
    for name, found in judged:
        blocks += [Note(f"{name}: {sentence}") for sentence in _draws_and_decisions(found)]
    for kind in dict.fromkeys(found.kind for _, found in judged):
        chosen = {name: found.metrics for name, found in judged if found.kind == kind}
        rows = tuple(
            (Cell(words.label), *(cell(own.get(metric)) for own in chosen.values()), Cell(words.meaning))
            for metric, words in METRICS.items()
            if any(metric in own for own in chosen.values())
        )
        blocks.append(Table(f"All numbers, {kind}", ("number", *chosen, "what it is"), rows))
    about = (
        "Every number of the evaluations, with its interval. A number from draws is itself random: what twice as many "
        "draws change is told where it was measured."
    )
    return Section("numbers", "All numbers", about, tuple(blocks))


def _draws_and_decisions(found: Evaluation) -> list[str]:
    told = [f"{what} applied: {value}." for what, value in found.decided.items()]
    if found.draws is not None:
        verdict = "are enough" if found.draws.enough else "are too few; judge it with more: dubio evaluate --samples"
        moved = f"with twice as many, {found.draws.metric} moves most for its size, by {found.draws.change:+.4f}"
        told.append(f"{found.num_samples} draws {verdict} ({moved}).")
    return told


def notable(records: Sequence[RunRecord]) -> Section:
    """Which examples should a person look at?"""
    blocks: list[Block] = []
    for name, found in judged_runs(records):
        for group, examples in found.notable.items():
            words = NOTABLE.get(group, f"Examples: {group}.")
            cards = tuple(_card(example) for example in examples)
            title = f"{name}: {group}"
            blocks.append(Gallery(title, words, cards) if cards else Note(f"{title}: there are none."))
    about = (
        "Look at these first. The index is that of the example in the test data; doubt is its entropy in nats, and the "
        "second number the part in the network."
    )
    return Section("examples", "Which examples deserve a look?", about, tuple(blocks))


def _card(example: NotableExample) -> Card:
    others = [f"{label} ({share:.0%})" for label, share in example.probs.items() if label != example.label]
    lines = (
        f"test example {example.index}",
        f"truth {example.target}, taken for {example.label}",
        f"confidence {percent(example.confidence)}",
        f"doubt {number(example.entropy)}, in the network {number(example.mutual_information)}",
        *([f"or else {listed(others)}"] if others else []),
    )
    if example.image is None:
        return Card((), lines)
    words = f"Test example {example.index}: truth {example.target}, taken for {example.label}"
    return Card((Picture(data_address(from_thumbnail(example.image)), words),), lines)
