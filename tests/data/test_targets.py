"""Which column is the target, and whether it holds classes or values."""

import numpy as np
import pytest
import torch

from dubio.data.columns import TableChunk, Target, choose_target, encode_targets, parse_targets, read_target
from dubio.data.files import DataError


def table(cells: list[str] | np.ndarray) -> TableChunk:
    values = cells if isinstance(cells, np.ndarray) else np.array(cells, dtype=object)
    return TableChunk({"a": values}, "table", np.arange(len(values)))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("a", "b", "c"), "c"),
        (("a", "Target", "c"), "Target"),
        (("LABEL", "b", "c"), "LABEL"),
        (("a", "y", "c"), "y"),
        (("y", "class", "c"), "class"),
        (("x", "y", "price"), "price"),  # a place in the plane
        (("x", "y"), "y"),
        (("a", "y1", "c"), "c"),
    ],
)
def test_the_target_is_chosen_by_its_name_else_the_last(names: tuple[str, ...], expected: str) -> None:
    assert choose_target(names, "table") == expected
    assert choose_target(names, "table", names[0]) == names[0]


def counted(num_classes: int, num_rows: int, start: int = 0, step: int = 1) -> list[str]:
    return [str(start + step * (row % num_classes)) for row in range(num_rows)]


@pytest.mark.parametrize(
    ("cells", "task"),
    [
        (["x", "y"] * 4, "classification"),
        (["true", "false"] * 4, "classification"),
        (["10", "9", "-1", "10"], "classification"),
        (counted(10, 10), "classification"),
        (counted(20, 40, step=7), "classification"),
        (counted(100, 5000), "classification"),
        (["1.5", "2", "3"], "regression"),
        (["1.0", "2.0", "3.0"], "regression"),
        (counted(19, 20, step=7), None),
        (counted(21, 500, step=7), None),
        (counted(100, 4999), None),
        (counted(70, 100000, start=18), None),  # ages
        (["0.0", "1.0"] * 20, None),
    ],
)
def test_numbers_are_classes_or_values_or_neither_is_plain(cells: list[str], task: str | None) -> None:
    if task is None:
        with pytest.raises(DataError, match="add task="):
            read_target(table(cells), "a")
        assert read_target(table(cells), "a", "classification").classes
        assert read_target(table(cells), "a", "regression") == Target("a", "regression")
    else:
        assert read_target(table(cells), "a").task == task


def test_arrays_of_whole_numbers_that_are_no_classes_ask_for_the_task() -> None:
    prices = np.arange(300) * 1000
    with pytest.raises(DataError, match=r"^file has 300 different whole numbers as targets in 300 rows; add task='"):
        parse_targets(prices, "file", None)
    values, classes = parse_targets(prices, "file", "regression")
    assert values.shape == (300, 1)
    assert classes == ()


@pytest.mark.parametrize(
    ("classes", "cells", "expected"),
    [
        (("no", "yes"), ["yes", "no"], [1, 0]),
        (("0", "1"), ["1", "0"], [1, 0]),
        (("0", "1"), ["1.0", "0"], [1, 0]),
        (("01", "a"), ["01"], [0]),
        (("false", "true"), ["True", "false"], [1, 0]),
        (("0", "1"), np.array([1.0, 0.0]), [1, 0]),
        (("0", "1"), np.array([1, 0]), [1, 0]),
    ],
)
def test_labels_follow_the_classes_of_training(
    classes: tuple[str, ...], cells: list[str] | np.ndarray, expected: list[int]
) -> None:
    labels = encode_targets(table(cells), Target("a", "classification", classes))
    assert labels.dtype == torch.int64
    assert labels.tolist() == expected


@pytest.mark.parametrize("wrong", ["inf", "1,234", "unknown"])
def test_a_number_that_cannot_be_read_does_not_make_classes_of_all_others(wrong: str) -> None:
    cells = [str(row / 8) for row in range(100)]
    cells[7] = wrong
    with pytest.raises(DataError, match=rf"row 7, column 'a' must hold a number as the other rows do, got '{wrong}'"):
        read_target(table(cells), "a")
    assert len(read_target(table(cells), "a", "classification").classes) == 100


@pytest.mark.parametrize("cell", ["2026-01-01T{:02d}:00", "${},000", "name {}"])
def test_texts_that_hardly_repeat_are_no_classes_unless_said(cell: str) -> None:
    cells = [cell.format(row // 2 * 2 if row < 20 else row) for row in range(60)]
    with pytest.raises(DataError, match=r"column 'a' has 50 different texts as targets in 60 rows, such as"):
        read_target(table(cells), "a")
    assert len(read_target(table(cells), "a", "classification").classes) == 50
    twice = cells[10:35] * 2 + cells[10:11]
    assert read_target(table(twice), "a").task == "classification"


def test_dates_are_no_targets() -> None:
    with pytest.raises(DataError, match="column 'a' has dates; choose another column with target"):
        read_target(table(np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[D]")), "a")


def test_numbers_whose_squares_overflow_are_no_targets() -> None:
    values = np.arange(30) / 7
    assert parse_targets(values * 1e17, "table", None)[0].isfinite().all()
    with pytest.raises(DataError, match=r"table must have targets of at most 1e\+18 in size, got -4.14286e\+25"):
        parse_targets(values * -1e25, "table", None)
