"""Unseen data: classes held out, and the pairs of the papers."""

from pathlib import Path

import pytest
import torch

from dubio import data
from dubio.data import registry
from dubio.data.examples import Examples

LABELS = torch.tensor([0, 1, 2, 3, 2, 1, 0, 3])
FOUR = Examples(torch.arange(8.0)[:, None], LABELS, ("north", "east", "south", "west"), "winds")


@pytest.mark.parametrize("classes", [[1, 3], ["west", "east"], [3, "east"]])
def test_held_out_classes_leave_and_the_others_are_counted_anew(classes: list[int | str]) -> None:
    rest, unseen = data.held_out_classes(FOUR, classes)
    assert rest.classes == ("north", "south")
    assert rest.targets.tolist() == [0, 1, 1, 0]
    assert rest.inputs.flatten().tolist() == [0, 2, 4, 6]
    assert unseen.classes == ("east", "west")
    assert unseen.targets.tolist() == [0, 1, 0, 1]
    assert unseen.inputs.flatten().tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize("classes", [[], [0, 1, 2, 3]])
def test_some_classes_but_not_all_are_held_out(classes: list[int | str]) -> None:
    with pytest.raises(ValueError, match="classes must be some of the 4 classes of winds, but not all"):
        data.held_out_classes(FOUR, classes)


@pytest.mark.parametrize("name", [4, -1, "up"])
def test_an_unknown_class_is_refused(name: int | str) -> None:
    with pytest.raises(ValueError, match="classes must be names, or labels from 0 to 3, of winds, got"):
        data.held_out_classes(FOUR, [name])


def test_a_regression_has_no_classes_to_hold_out() -> None:
    with pytest.raises(ValueError, match="values must have classes to hold some out, got a regression"):
        data.held_out_classes(Examples(torch.zeros(3, 1), torch.zeros(3, 1), name="values"), [0])


def test_the_pairs_are_those_of_the_papers() -> None:
    assert data.OOD_PAIRS["mnist"] == ("fashionmnist", "kmnist", "omniglot")
    assert data.OOD_PAIRS["fashionmnist"] == ("mnist",)
    assert (data.OOD_PAIRS["cifar10"], data.OOD_PAIRS["cifar100"]) == (("cifar100",), ("cifar10",))
    assert {name for pair in data.OOD_PAIRS.values() for name in pair} <= set(registry.STORED)


def test_data_without_a_pair_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name must be one of mnist, fashionmnist, cifar10, cifar100, got 'digits'"):
        data.ood_sets("digits", folder=tmp_path)


def test_unseen_data_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="mnist lacks MNIST/raw/t10k-images-idx3-ubyte"):
        data.ood_sets("fashionmnist", folder=tmp_path)
