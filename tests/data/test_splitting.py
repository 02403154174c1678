"""The rows that are held out: always the same, as many as requested, and none twice."""

import pytest
import torch

from dubio.data.examples import Examples, split_examples, with_validation

EXAMPLES = Examples(torch.arange(50.0)[:, None], torch.arange(50) % 5, tuple("abcde"), "fifty")


def rows(examples: Examples | None) -> list[int]:
    return [] if examples is None else [int(value) for value in examples.inputs[:, 0].tolist()]


@pytest.mark.parametrize(("validation", "count"), [(0, 0), (0.0, 0), (7, 7), (0.1, 5), (0.39, 19), (49, 49)])
def test_as_many_are_held_out_as_asked_for_and_order_is_kept(validation: int | float, count: int) -> None:
    splits = with_validation(EXAMPLES, None, validation)
    held_out, kept = rows(splits.validation), rows(splits.train)
    assert len(held_out) == count
    assert (splits.validation is None) == (count == 0)
    assert held_out == sorted(held_out)
    assert kept == sorted(kept)
    assert sorted(held_out + kept) == list(range(50))
    assert rows(with_validation(EXAMPLES, None, validation).validation) == held_out


def test_held_out_rows_are_spread_over_the_data() -> None:
    held_out = rows(with_validation(EXAMPLES, None, 10).validation)
    assert held_out != list(range(10))
    assert max(held_out) > 25 > min(held_out)


def test_without_a_training_part_nothing_is_held_out() -> None:
    splits = with_validation(None, EXAMPLES, 5)
    assert (splits.train, splits.validation) == (None, None)
    assert splits.test is EXAMPLES


def test_three_parts_share_the_rows() -> None:
    splits = split_examples(EXAMPLES, 0.1)
    parts = [rows(splits.train), rows(splits.validation), rows(splits.test)]
    assert [len(part) for part in parts] == [35, 3, 12]
    assert sorted(sum(parts, [])) == list(range(50))  # noqa: RUF017
    assert rows(split_examples(EXAMPLES, 20).test) == parts[2]


@pytest.mark.parametrize("validation", [-1, 1.0, 1.5, -0.1, True])
def test_a_share_that_is_none_is_refused(validation: int | float) -> None:
    with pytest.raises(ValueError, match=r"validation must be a number of examples or a fraction in \[0, 1\), got"):
        with_validation(EXAMPLES, None, validation)


def test_something_must_be_left_to_train_on() -> None:
    with pytest.raises(ValueError, match="validation must leave something to train on: less than 50 examples, got 50"):
        with_validation(EXAMPLES, None, 50)
