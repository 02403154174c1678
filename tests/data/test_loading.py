"""Batches of examples: every row once, the same again from the seed, cut between processes, augmented and scaled."""

from itertools import chain
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dubio._engine.noise import noise_key
from dubio.data.batches import CropAndFlip, Loader, batches_from
from dubio.data.examples import Examples, Splits, scaled

IMAGES = torch.arange(10 * 3 * 4 * 5, dtype=torch.int64).remainder(256).to(torch.uint8).view(10, 3, 4, 5)
EXAMPLES = Examples(IMAGES, torch.arange(10), tuple("abcdefghij"), "letters")


def labels(loader: Loader, epoch: int, first: int = 0) -> list[list[int]]:
    return [batch[1].tolist() for batch in loader.epoch(epoch, first)]


def test_bytes_become_numbers_from_0_to_1_and_numbers_stay() -> None:
    assert torch.equal(scaled(torch.tensor([0, 51, 255], dtype=torch.uint8)), torch.tensor([0.0, 0.2, 1.0]))
    numbers = torch.tensor([-3.0, 300.0])
    assert scaled(numbers) is numbers
    assert torch.equal(EXAMPLES.tensors[0], IMAGES.float() / 255)


def test_examples_are_chosen_by_slice_mask_and_number() -> None:
    assert EXAMPLES[2:4].targets.tolist() == [2, 3]
    assert EXAMPLES[EXAMPLES.targets > 7].targets.tolist() == [8, 9]
    assert EXAMPLES[3].targets.tolist() == [3]
    assert torch.equal(EXAMPLES[[4, 1]].inputs, IMAGES[[4, 1]])
    assert EXAMPLES[:2].classes == EXAMPLES.classes
    assert EXAMPLES.shape == (3, 4, 5)
    assert Splits(EXAMPLES, None, EXAMPLES[:1]).test is not None


def test_a_fingerprint_belongs_to_the_contents() -> None:
    changed = IMAGES.clone()
    changed[3, 0, 0, 0] += 1
    prints = [
        EXAMPLES.fingerprint,
        Examples(changed, EXAMPLES.targets).fingerprint,
        Examples(IMAGES, EXAMPLES.targets.flip(0)).fingerprint,
        Examples(IMAGES.view(10, 3, 5, 4), EXAMPLES.targets).fingerprint,
        Examples(IMAGES / 1.0, EXAMPLES.targets).fingerprint,
    ]
    assert len(set(prints)) == len(prints)
    assert Examples(IMAGES.clone(), EXAMPLES.targets.clone(), name="copy").fingerprint == EXAMPLES.fingerprint


def test_an_epoch_holds_every_row_once_and_has_an_order_of_its_own() -> None:
    loader = Loader(EXAMPLES, batch_size=4)
    first, second = labels(loader, 0), labels(loader, 1)
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert len(loader) == 3
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(10))
    assert first != second
    assert labels(Loader(EXAMPLES, batch_size=4, seed=1), 0) != first
    assert [batch[1].tolist() for batch in loader] == first  # iterating begins with epoch 0 and goes on
    assert [batch[1].tolist() for batch in loader] == second
    assert labels(Loader(EXAMPLES, 4, shuffle=False), 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_inputs_and_weights_belong_to_their_targets() -> None:
    weights = torch.rand(10)
    for inputs, targets, weight in Loader(EXAMPLES, 3, sample_weight=weights):
        assert torch.equal(inputs, IMAGES[targets] / 255)
        assert torch.equal(weight, weights[targets])


def test_an_epoch_is_taken_up_at_any_batch_with_the_same_augmentation() -> None:
    loader = Loader(EXAMPLES, 4, augment=CropAndFlip(2))
    whole, rest = list(loader.epoch(5)), list(loader.epoch(5, 1))
    assert len(rest) == 2
    for (a, b), (c, d) in zip(whole[1:], rest, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)


def by_hand(epoch: int, batch: int, rank: int, num_ranks: int, batch_size: int, flip: bool) -> tuple[Tensor, Tensor]:
    """Images and labels of a part of a batch with seed 7, image by image."""
    order = torch.randperm(10, generator=seeded(f"epoch {epoch} of seed 7"))
    rows = order[batch * batch_size * num_ranks : (batch + 1) * batch_size * num_ranks]
    rows = rows[: len(rows) // num_ranks * num_ranks][rank::num_ranks]
    generator = seeded(f"batch {batch} of epoch {epoch}, rank {rank}, seed 7")
    shifts = torch.randint(5, (2, len(rows), 1), generator=generator)
    mirrored = torch.randint(2, (len(rows), 1), generator=generator, dtype=torch.bool) if flip else [False] * len(rows)
    images = []
    for place, row in enumerate(rows):
        down, across = shifts[:, place, 0].tolist()
        crop = torch.nn.functional.pad(IMAGES[row], (2, 2, 2, 2))[:, down : down + 4, across : across + 5]
        images.append(crop.flip(-1) if mirrored[place] else crop)
    return torch.stack(images) / 255, rows


def seeded(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(noise_key(name))


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(("rank", "num_ranks"), [(0, 1), (0, 2), (1, 2)])
def test_order_and_augmentation_of_an_epoch_are_those_of_the_seed(rank: int, num_ranks: int, flip: bool) -> None:
    loader = Loader(EXAMPLES, 3, seed=7, augment=CropAndFlip(2, flip), rank=rank, num_ranks=num_ranks)
    for first in (0, 1):
        for batch, (inputs, targets) in enumerate(loader.epoch(4, first), start=first):
            expected, rows = by_hand(4, batch, rank, num_ranks, 3, flip)
            assert torch.equal(targets, rows)
            assert torch.equal(inputs, expected)


def test_an_augmentation_of_ones_own_gets_the_generator_of_its_batch() -> None:
    given = []
    loader = Loader(EXAMPLES, 4, seed=7, augment=lambda images, generator: given.append(generator) or images)
    list(loader.epoch(2, 1))
    seeds = [noise_key(f"batch {batch} of epoch 2, rank 0, seed 7") for batch in (1, 2)]
    assert [generator.initial_seed() for generator in given] == seeds


def test_the_order_of_tensors_is_that_of_the_seed() -> None:
    inputs = {"a": torch.arange(10), "b": (torch.arange(10) + 100,)}
    batches = batches_from((inputs, torch.arange(10)), 4, name="train", seed=7)
    rows = torch.randperm(10, generator=seeded("epoch 3 of seed 7")).split(4)[1:]
    for batch, expected in zip(batches.epoch(3, 1), rows, strict=True):
        assert torch.equal(batch.targets, expected)
        assert torch.equal(batch.inputs["a"], expected)
        assert torch.equal(batch.inputs["b"][0], expected + 100)


class Transfers(TorchFunctionMode):
    """Counts what is brought from one device to another, or would be if there were two."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (Tensor.to, Tensor.cuda, Tensor.cpu)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("batch_size", [1, 5])
def test_the_rows_of_an_epoch_are_brought_to_the_device_at_once(batch_size: int) -> None:
    """Each transfer makes the host wait for a GPU; one for the rows and one for what augments them are enough."""
    tensors = (IMAGES.float(), IMAGES.double()), torch.arange(10), torch.ones(10)
    batches = batches_from(tensors, batch_size, name="train", seed=0)
    loader = Loader(EXAMPLES, batch_size, augment=CropAndFlip(), sample_weight=torch.ones(10))
    for work, count in ((lambda: batches.epoch(0), 1), (lambda: loader.epoch(0), 2)):
        with Transfers() as transfers:
            assert len(list(work())) == 10 // batch_size
        assert transfers.count == count


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_processes_share_each_joint_batch(num_ranks: int, batch_size: int) -> None:
    joint = labels(Loader(EXAMPLES, batch_size * num_ranks), 2)
    parts = [labels(Loader(EXAMPLES, batch_size, rank=rank, num_ranks=num_ranks), 2) for rank in range(num_ranks)]
    assert len({len(part) for part in parts}) == 1  # else one process would wait for ever
    for place, whole in enumerate(joint[: len(parts[0])]):
        shared = sorted(chain(*(part[place] for part in parts)))
        assert len({len(part[place]) for part in parts}) == 1
        assert set(shared) <= set(whole)
        assert len(shared) > len(whole) - num_ranks
    seen = [row for part in parts for row in chain(*part)]
    assert len(seen) == len(set(seen)) > 10 - num_ranks


def test_crops_and_flips_are_those_of_the_definition() -> None:
    """Every augmented image is one of the 2 (2 pad + 1)^2 shifted and mirrored ones, filled with black."""
    images = torch.randint(1, 256, (64, 2, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    augmented = CropAndFlip(1)(images, torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
    shifts = set()
    for place, image in enumerate(augmented):
        ways = {
            (row, column, mirrored): crop.flip(-1) if mirrored else crop
            for row in range(3)
            for column in range(3)
            for mirrored in (False, True)
            for crop in [padded[place, :, row : row + 5, column : column + 6]]
        }
        match = [way for way, expected in ways.items() if torch.equal(image, expected)]
        assert len(match) == 1
        shifts |= set(match)
    assert len(shifts) > 12  # of 18: shifts and mirrors do vary
    still = CropAndFlip(0, flip=False)(images, torch.Generator())
    assert torch.equal(still, images)


REFUSALS = {
    "lengths": (lambda: Examples(IMAGES, torch.arange(9)), ValueError, "as many inputs as targets, got 10 and 9"),
    "nothing": (lambda: EXAMPLES[:0], ValueError, "letters must hold at least one example, got none"),
    "type": (lambda: Examples(IMAGES.long(), torch.arange(10)), TypeError, r"uint8 or float32, got torch\.int64"),
    "labels": (lambda: Examples(IMAGES, torch.rand(10), ("a",)), TypeError, r"int64 labels .* got torch\.float32"),
    "range": (lambda: Examples(IMAGES, torch.arange(10), ("a", "b")), ValueError, "labels from 0 to 1, got 0 to 9"),
    "examples": (lambda: Loader((IMAGES, IMAGES)), TypeError, r"must be dubio\.data\.Examples, got tuple"),
    "batch": (lambda: Loader(EXAMPLES, 0), ValueError, "batch_size must be at least 1, got 0"),
    "rank": (lambda: Loader(EXAMPLES, rank=2, num_ranks=2), ValueError, "rank must be from 0 to 1, got 2"),
    "ranks": (lambda: Loader(EXAMPLES, num_ranks=11), ValueError, "at most the number of examples, 10, got 11"),
    "weights": (lambda: Loader(EXAMPLES, sample_weight=torch.ones(3)), ValueError, r"one weight per example, 10, got"),
    "pad": (lambda: CropAndFlip(-1), ValueError, "pad must be at least 0 pixels, got -1"),
    "no images": (lambda: CropAndFlip()(torch.ones(3, 4), torch.Generator()), ValueError, "needs images"),
}


@pytest.mark.parametrize(("act", "error", "message"), REFUSALS.values(), ids=REFUSALS)
def test_bad_arguments_are_refused(act, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # a user's own run has no checks but ours
    with pytest.raises(error, match=message):
        act()
