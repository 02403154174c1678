"""A set of examples has one fingerprint, whatever its order, and any other set has another."""

import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from dubio.data.batches import Loader
from dubio.data.examples import Examples, scaled
from dubio.data.fingerprints import DataFingerprint, fingerprint_of, fingerprint_of_batches


def examples(count: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, 1, 4, 4, generator=generator), torch.arange(count) % 3


def test_the_order_of_the_rows_and_how_they_are_cut_into_batches_change_nothing() -> None:
    inputs, targets = examples()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    whole = fingerprint_of(inputs, targets)
    assert fingerprint_of(inputs[order], targets[order]) == whole
    assert fingerprint_of_batches(zip(inputs.split(7), targets.split(7), strict=True)) == whole
    assert whole.endswith("-20")


def test_bytes_and_their_scaled_numbers_are_the_same_images() -> None:
    images = torch.randint(256, (6, 3, 5, 5), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    labels = torch.arange(6)
    assert fingerprint_of(images, labels) == fingerprint_of(scaled(images), labels)
    assert fingerprint_of(images, labels) == fingerprint_of(*Examples(images, labels).tensors)


@pytest.mark.parametrize("change", ["input", "target", "left out", "repeated", "swapped"])
def test_any_other_set_has_another_fingerprint(change: str) -> None:
    inputs, targets = examples()
    other, labels = inputs.clone(), targets.clone()
    if change == "input":
        other[3, 0, 0, 0] += 1e-6
    elif change == "target":
        labels[3] = 9
    elif change == "left out":
        other, labels = other[1:], labels[1:]
    elif change == "repeated":
        other, labels = torch.cat([other[1:], other[1:2]]), torch.cat([labels[1:], labels[1:2]])
    else:
        labels[[0, 1]] = labels[[1, 0]]  # the same inputs and the same targets, but not together
    assert fingerprint_of(other, labels) != fingerprint_of(inputs, targets)


def test_tuples_dicts_arrays_and_other_types_of_number_are_read_as_their_tensors() -> None:
    inputs, targets = examples()
    one = fingerprint_of(inputs, targets)
    assert fingerprint_of((inputs,), targets) == fingerprint_of({"pixels": inputs}, targets) == one
    assert fingerprint_of(inputs.numpy(), targets.numpy()) == one
    assert fingerprint_of(inputs.double(), targets.to(torch.int32)) == one
    assert fingerprint_of(inputs, targets.float()) == one
    two = fingerprint_of({"a": inputs, "b": targets}, targets)
    assert fingerprint_of({"b": targets, "a": inputs}, targets) == fingerprint_of([inputs, targets], targets) == two
    assert two != one
    assert fingerprint_of(torch.tensor([[-0.0]]), targets[:1]) == fingerprint_of(torch.tensor([[0.0]]), targets[:1])


def test_the_fingerprint_is_the_same_in_every_process_and_version() -> None:
    assert fingerprint_of(torch.ones(2, 3), [0, 1]) == "3f7f12921e3e83e9f5881e6c9df9fb13-2"


def test_ten_thousand_images_take_less_than_a_second() -> None:
    images, labels = torch.zeros(10_000, 1, 28, 28), torch.zeros(10_000, dtype=torch.int64)
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        fingerprint_of(images, labels)
        seconds.append(time.process_time() - begin)
    assert min(seconds) < 1.0  # 0.1 s on an idle core


def test_what_has_no_rows_is_refused() -> None:
    inputs, targets = examples()
    with pytest.raises(ValueError, match=r"as many rows as targets, got shape \(20, 1, 4, 4\) beside 3 targets"):
        fingerprint_of(inputs, targets[:3])
    with pytest.raises(ValueError, match="inputs must hold at least one tensor with rows, got str"):
        fingerprint_of("inputs", targets)
    with pytest.raises(ValueError, match="one row for each example, got a single number"):
        fingerprint_of(inputs, np.float32(1.0))


NAMES = ("a", "b", "c")
IMAGES = torch.randint(0, 256, (12, 1, 3, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3
KEPT = DataFingerprint.of(Examples(IMAGES, LABELS, NAMES))


@pytest.mark.parametrize(
    "same",
    [
        (IMAGES, LABELS),
        (IMAGES.numpy(), LABELS.numpy()),
        TensorDataset(IMAGES, LABELS),
        DataLoader(TensorDataset(IMAGES, LABELS), 5, shuffle=True),
        Loader(Examples(IMAGES, LABELS, NAMES), 4),
        (IMAGES.transpose(2, 3).contiguous().transpose(2, 3), LABELS),
    ],
)
def test_the_same_values_have_one_fingerprint_whatever_holds_them(same: Any) -> None:
    other = DataFingerprint.of(same)
    assert (other.ordered, other.unordered, other.num_examples) == (KEPT.ordered, KEPT.unordered, 12)


@pytest.mark.parametrize(
    ("other", "change"),
    [
        (Examples(IMAGES, LABELS, NAMES), ""),
        (Examples(IMAGES.flip(0), LABELS.flip(0), NAMES), "it has the same rows in another order"),
        (Examples(IMAGES.flip(0), LABELS, NAMES), "it has other rows"),
        (Examples(IMAGES.flip(3), LABELS, NAMES), "it has other rows"),
        (Examples(IMAGES ^ (IMAGES[0, 0, 0, 0] == IMAGES), LABELS, NAMES), "it has other rows"),
        (Examples(IMAGES[1:], LABELS[1:], NAMES), "it had 12 examples, has 11"),
        (Examples(IMAGES, LABELS, ("a", "c", "b")), "it has other classes: class 1 was 'b', is 'c'"),
        (Examples(IMAGES, LABELS, ("a", "b", "d")), "it has other classes: 'c' is missing and 'd' is new"),
        (Examples(IMAGES, LABELS, (*NAMES, *"vwxyz")), "it has other classes: 'v', 'w', 'x' and 2 more are new"),
    ],
)
def test_what_changed_is_named(other: Examples, change: str) -> None:
    assert DataFingerprint.of(other).change_from(KEPT, "it") == change


def test_weights_and_zeros_count() -> None:
    weights = torch.ones(12)
    weighted = DataFingerprint.of((IMAGES, LABELS), weights)
    assert weighted.ordered == DataFingerprint.of((IMAGES, LABELS, weights)).ordered != KEPT.ordered
    few, many = (DataFingerprint.of((torch.zeros(count, 2), torch.zeros(count))) for count in (3, 4))
    assert few.unordered != many.unordered


def test_batches_in_a_list_are_read_and_streams_are_not() -> None:
    batches = [(IMAGES[:7], LABELS[:7]), (IMAGES[7:], LABELS[7:])]
    assert DataFingerprint.of(batches).unordered == KEPT.unordered

    def stream() -> Any:
        pytest.fail("it must not be read")
        yield

    assert DataFingerprint.of(stream()) == DataFingerprint("generator")


@pytest.mark.parametrize("kind", [torch.bool, torch.int16, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 0), (0, 2)])
def test_tensors_of_any_type_and_size_have_fingerprints(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    data = (torch.ones(shape).to(kind), torch.ones(shape[0]))
    assert DataFingerprint.of(data).num_examples == shape[0]
