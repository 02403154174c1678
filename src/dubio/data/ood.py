"""Unseen data: classes that were kept from training, and the datasets that the papers hold against each other."""

import os
from collections.abc import Sequence
from dataclasses import replace

import torch

from dubio.data.examples import Examples
from dubio.data.registry import find_name, load_test

__all__ = ["OOD_PAIRS", "held_out_classes", "ood_sets"]

OOD_PAIRS: dict[str, tuple[str, ...]] = {
    "mnist": ("fashionmnist", "kmnist", "omniglot"),
    "fashionmnist": ("mnist",),
    "cifar10": ("cifar100",),
    "cifar100": ("cifar10",),
}
"""What a network that was trained on a dataset has never seen, in images of the same shape."""


def held_out_classes(examples: Examples, classes: Sequence[int | str]) -> tuple[Examples, Examples]:
    """Split off the examples of some classes, given by label or name: the known ones, then the unseen ones.

    In each of the two, labels are counted from 0 anew, in the old order, and classes keep their names.
    """
    if not examples.classes:
        raise ValueError(f"{examples.name} must have classes to hold some out, got a regression")
    unseen = {_label(examples, wanted) for wanted in classes}
    known = [label for label in range(len(examples.classes)) if label not in unseen]
    if not unseen or not known:
        raise ValueError(
            f"classes must be some of the {len(examples.classes)} classes of {examples.name}, but not all, "
            f"got {list(classes)}"
        )
    return _only(examples, known), _only(examples, sorted(unseen))


def ood_sets(name: str, *, folder: str | os.PathLike[str] | None = None, download: bool = False) -> dict[str, Examples]:
    """The test parts of the datasets that a network trained on ``name`` has never seen, by their names."""
    found = find_name(name)
    if found not in OOD_PAIRS:
        raise ValueError(f"unseen data are known for {', '.join(OOD_PAIRS)}, got {name!r}; load others by name or path")
    return {other: load_test(other, folder=folder, download=download) for other in OOD_PAIRS[found]}


def _label(examples: Examples, wanted: int | str) -> int:
    if isinstance(wanted, str) and wanted in examples.classes:
        return examples.classes.index(wanted)
    if not isinstance(wanted, str) and 0 <= wanted < len(examples.classes):
        return wanted
    raise ValueError(
        f"classes must be names, or labels from 0 to {len(examples.classes) - 1}, of {examples.name}, got {wanted!r}"
    )


def _only(examples: Examples, labels: list[int]) -> Examples:
    """The examples with these labels, renumbered."""
    number = torch.full((len(examples.classes),), -1, device=examples.targets.device)
    number[labels] = torch.arange(len(labels), device=number.device)
    renumbered = number[examples.targets]
    kept = renumbered >= 0
    classes = tuple(examples.classes[label] for label in labels)
    return replace(examples, inputs=examples.inputs[kept], targets=renumbered[kept], classes=classes)
