"""Sections on attacks: what is left of the accuracy, what the images look like, and what an audit says."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from dubio.functional.corruption import small_image
from dubio.reporting.images import data_address, is_image
from dubio.reporting.reading import RunRecord
from dubio.reporting.records import AttackRecord, AttackRow, Shares
from dubio.reporting.values import Block, Card, Cell, Gallery, Lines, Picture, Section, Series, Table
from dubio.reporting.wording import number, percent, percent_cell

__all__ = ["attacks", "before_and_after"]

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


def _curve(attacked: list[tuple[str, AttackRecord]], norm: str) -> Lines:
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
    label, words = f"epsilon, {norm}", f"{'; '.join(parts)}{explained}."
    return Lines("Accuracy by size of the attack", words, label, "accuracy left", tuple(lines), y_range=(0.0, 1.0))


def _rows(name: str, found: AttackRecord) -> list[tuple[Cell, ...]]:
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


def _gallery(name: str, found: AttackRecord, file: Path) -> Gallery | None:
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
    words = (
        f"{row.attack} at epsilon {row.epsilon}: {percent(row.predictive.value)} of {len(found.indices)} images right."
    )
    return Gallery(f"{name}: before and after", words, cards) if cards else None


def _cards(found: AttackRecord, row: AttackRow, file: Path) -> tuple[Card, ...]:
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
