"""Data as batches: examples in memory, tensors, a ``Dataset``, a ``DataLoader``, or any iterable of batches.

What is held in memory or can be indexed is shuffled by a generator made from (seed, epoch), so that an epoch can be
taken up again at any batch. A loader or iterable keeps its own order, and is run through to the batch wanted.

Batches of examples held in memory, cut, cropped, flipped and scaled on the device where they live.

An epoch is a function of (seed, number): its shuffle and its augmentation can be had again, from any batch on, so a
run that was interrupted goes on with the very same data. Several processes take turns at the rows of each joint batch:
together they see what one process with their joint batch size sees, but for a remainder smaller than their number.

Batches that several processes share: each takes its part of the rows, dealt out one by one.

Together the parts are the batches that one process has, in the same order and with the same augmentation. No row is
left out: where a batch has too few rows to give each process two, fewer share it, and the others have a part without
rows. So nobody is left with a single row, of which batch normalisation could learn nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, default_collate

from dubio._engine import STATE, Stream, has_numbers_of_its_own, memory_budget, noise_key, redirected
from dubio.data.examples import Examples, scaled


@dataclass(frozen=True)
class Batch:
    """Inputs and targets of some examples, with their weights where there are any."""

    inputs: Any
    targets: Tensor
    weight: Tensor | None = None
    num_parts: int = 1
    """How many processes have rows of this batch, each a part."""

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        inputs, targets, weight = pytree.tree_map_only(
            Tensor, lambda leaf: leaf.to(device), (self.inputs, self.targets, self.weight)
        )
        return Batch(inputs, targets, weight, self.num_parts)


@dataclass(frozen=True)
class Batches:
    """The batches of one epoch after another."""

    num_data: int | None
    num_batches: int | None
    _items: Callable[[int, int], Iterator[Any]]
    """Number of an epoch and of its first batch wanted, to what it yields from there on."""
    may_draw: bool = True
    """Whether reading runs code of the user's, which may draw from torch's global generator, as augmentation does."""

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """The batches of epoch ``number``, from batch ``first`` on.

        In a run that has random numbers of its own, what reading draws comes from them.
        """
        if self.may_draw and has_numbers_of_its_own():
            return map(batch_of, _redirected(lambda: self._items(number, first)))
        return map(batch_of, self._items(number, first))

    def inputs(self) -> Iterator[Any]:
        """The inputs of the first epoch alone, batch by batch, whether or not there are targets beside them."""
        return map(_inputs, self._items(0, 0))


def batches_from(
    data: Any,
    batch_size: int,
    *,
    name: str,
    seed: int | None = None,
    sample_weight: Tensor | None = None,
    device: torch.device | None = None,
) -> Batches:
    """Batches from any kind of data; ``name`` is what error messages call it. Without a seed, nothing is shuffled."""
    if isinstance(data, Examples):
        place = device if device is None or _fits(data.inputs, device) else None
        loader = Loader(
            data, batch_size, shuffle=seed is not None, seed=seed or 0, sample_weight=sample_weight, device=place
        )
        return Batches(len(data), len(loader), loader.epoch, may_draw=False)
    if isinstance(data, tuple | list) and len(data) in (2, 3) and isinstance(data[0], Tensor | np.ndarray):
        refuse_string_inputs(data[0])
        _refuse_strings(data[1])
    if isinstance(data, tuple | list) and len(data) in (2, 3) and isinstance(data[1], Tensor | np.ndarray):
        data = pytree.tree_map_only(np.ndarray, _from_numpy, tuple(data))
        data = (*data[:2], sample_weight) if sample_weight is not None else data
        return _from_tensors(_on_device(data, device), batch_size, name, seed)
    if sample_weight is not None:
        raise ValueError(
            f"sample_weight goes with {name} given as tensors; else let {name} yield (inputs, targets, weights)"
        )
    if isinstance(data, Loader):
        own = data.augment is None or type(data.augment) is CropAndFlip
        return Batches(len(data.examples), len(data), data.epoch, may_draw=not own)
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size)
    if isinstance(data, DataLoader):
        return _from_loader(data)
    if isinstance(data, Dataset) and hasattr(data, "__getitem__"):
        return _from_dataset(data, batch_size, name, seed)
    if isinstance(data, Iterator):
        raise TypeError(f"{name} must be iterable more than once, got a {type(data).__name__}; pass a list or loader")
    if isinstance(data, Iterable) and not isinstance(data, Tensor | str):
        return _from_source(data, None)
    raise TypeError(
        f"{name} must be (inputs, targets), dubio.data.Examples, a Dataset, a DataLoader or an iterable of batches, "
        f"got {type(data).__name__}"
    )


def _from_tensors(data: Any, batch_size: int, name: str, seed: int | None) -> Batches:
    """Batches of tensors, with an order that is brought to each of their devices once: a transfer waits for a GPU."""
    inputs, targets, *weights = data
    _check_rows(name, inputs, targets, *weights)
    devices = {leaf.device for leaf in pytree.tree_leaves(data) if isinstance(leaf, Tensor)}

    def items(number: int, first: int) -> Iterator[Any]:
        order = epoch_order(len(targets), number, seed)
        orders = {device: order.to(device).split(batch_size)[first:] for device in devices}
        for rows in zip(*orders.values(), strict=True):
            here = dict(zip(orders, rows, strict=True))
            yield pytree.tree_map_only(Tensor, partial(_rows_of_leaf, here), tuple(data))

    return Batches(len(targets), -(-len(targets) // batch_size), items, may_draw=False)


def _rows_of_leaf(rows: dict[torch.device, Tensor], leaf: Tensor) -> Tensor:
    return leaf[rows[leaf.device]]


def _on_device(data: Any, device: torch.device | None) -> Any:
    """Tensors where they are needed, once and for all, where a GPU has room for them."""
    if device is None or device.type != "cuda" or not _fits(data, device):
        return data
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device), data)


def _fits(data: Any, device: torch.device) -> bool:
    """Whether a device has room for all data at once; a CPU has them already."""
    size = sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(data) if isinstance(leaf, Tensor))
    return device.type == "cpu" or size <= memory_budget(device)


def _from_dataset(data: Any, batch_size: int, name: str, seed: int | None) -> Batches:
    if not isinstance(data, Sized) or len(data) == 0:
        raise ValueError(f"{name} must hold at least one example, got none")
    return _in_order(len(data), batch_size, seed, lambda rows: default_collate([data[row] for row in rows.tolist()]))  # type: ignore[index]


def _from_loader(loader: DataLoader[Any]) -> Batches:
    """Batches of torch's loader, each epoch in an order that can be had again: its generator is seeded anew."""
    num_data = None
    if not isinstance(loader.dataset, IterableDataset):
        num_data = len(loader) * loader.batch_size if loader.drop_last and loader.batch_size else _rows_of(loader)
    first_seed = None if loader.generator is None else loader.generator.initial_seed()
    rank = loader.sampler.rank if isinstance(loader.sampler, DistributedSampler) else 0
    place = f", rank {rank}" if rank else ""  # processes with rows of their own augment them with numbers of their own

    def items(number: int, first: int) -> Iterator[Any]:
        if loader.generator is not None:
            loader.generator.manual_seed(noise_key(f"epoch {number} of seed {first_seed}"))
        stream = Stream(noise_key(f"epoch {number} of a loader{place}"))
        # What the loader and its sampler draw when they begin. Workers are forked then, and would inherit a watch.
        with redirected(stream) if loader.num_workers == 0 else _for_workers(stream):
            iterator = iter(loader)
            begun = list(islice(iterator, max(first, 1)))
        return iterator if first else chain(begun, iterator)

    return Batches(num_data, None if isinstance(loader.dataset, IterableDataset) else len(loader), items)


@contextmanager
def _for_workers(stream: Stream) -> Iterator[None]:
    with _disable_current_modes(), stream.lent():
        yield


def _redirected(make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Items whose random numbers are those of the run that reads them, not of torch's global generator."""
    stream, end = STATE.own.stream, object()
    assert stream is not None
    with redirected(stream):
        items = make()
    while True:
        with redirected(stream):
            item = next(items, end)
        if item is end:
            return
        yield item


def _rows_of(loader: DataLoader[Any]) -> int | None:
    """How many examples an epoch has: those that the sampler takes, which may be some of the dataset's."""
    sampler = loader.sampler if loader.batch_size is not None else None
    return len(sampler) if isinstance(sampler, Sized) else None


def _from_source(source: Iterable[Any], num_data: int | None) -> Batches:
    num_batches = len(source) if isinstance(source, Sized) else None
    return Batches(num_data, num_batches, lambda number, first: islice(source, first, None))


def _from_numpy(array: Any) -> Tensor:
    """An array as a tensor; numbers as float32, which is what networks compute with."""
    tensor = torch.as_tensor(array, device="cpu")
    return tensor.float() if tensor.is_floating_point() else tensor


def _in_order(num_data: int, batch_size: int, seed: int | None, take: Callable[[Tensor], Any]) -> Batches:
    """Batches of rows that ``take`` fetches, in the order of each epoch."""

    def items(number: int, first: int) -> Iterator[Any]:
        return map(take, epoch_order(num_data, number, seed).split(batch_size)[first:])

    return Batches(num_data, -(-num_data // batch_size), items)


def _check_rows(name: str, inputs: Any, targets: Tensor, *weights: Tensor) -> None:
    if targets.dim() == 0 or len(targets) == 0:
        raise ValueError(f"{name} must hold at least one example, got none")
    for leaf in [*pytree.tree_leaves(inputs), *weights]:
        if isinstance(leaf, Tensor) and (leaf.dim() == 0 or len(leaf) != len(targets)):
            raise ValueError(
                f"{name} must have as many inputs as targets, got {tuple(leaf.shape)} beside {len(targets)} targets"
            )
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            raise ValueError(f"{name} must be finite, got NaN or infinite values")
    for weight in weights:
        if bool((weight < 0).any()):
            raise ValueError(f"weights of {name} must be at least 0, got {weight.min().item():g}")
    if targets.is_floating_point() and not bool(targets.isfinite().all()):
        raise ValueError(f"{name} must have finite targets, got NaN or infinite values")


def batch_of(item: Any) -> Batch:
    """What data yield, as a batch."""
    if isinstance(item, Batch):
        return item
    if isinstance(item, tuple | list) and len(item) in (2, 3):
        _refuse_strings(item[1])
        return Batch(_arguments(item[0]), *item[1:])
    hint = ""
    if isinstance(item, Mapping):
        keys = [str(key) for key in item]
        label = next((key for key in keys if key in ("labels", "label", "targets", "target", "y")), "labels")
        hint = (
            f" with the keys {', '.join(keys)}; give an iterable of pairs, such as a list or a collate_fn of pairs: "
            f"[({{k: v for k, v in batch.items() if k != {label!r}}}, batch[{label!r}]) for batch in loader]"
        )
    raise TypeError(f"a batch must be (inputs, targets) or (inputs, targets, weights), got {type(item).__name__}{hint}")


def _plain(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def refuse_string_inputs(inputs: Any) -> None:
    """Inputs are numbers: what a string means to a network is for the user to say."""
    first = _first_of(inputs)
    if isinstance(first, str | bytes):
        raise TypeError(
            f"inputs must be numbers, got strings such as {_plain(first)!r}; turn them into numbers first, such as by "
            "one column for each category"
        )


def _first_of(values: Any) -> Any:
    """The first of an array or of lists in lists."""
    while isinstance(values, list | tuple) and values:
        values = values[0]
    if isinstance(values, np.ndarray) and values.dtype.kind in "USO" and values.size:
        return values.flat[0]
    return values


def _refuse_strings(targets: Any) -> None:
    """Labels are numbers: which string is which class is for the user to say."""
    first = _first_of(targets)
    if isinstance(first, str | bytes):
        raise TypeError(
            f"targets must be numbers, got strings such as {_plain(first)!r}; number the classes first: "
            "names = sorted(set(y)); targets = torch.tensor([names.index(name) for name in y])"
        )


def _inputs(item: Any) -> Any:
    if isinstance(item, Batch):
        return item.inputs
    if isinstance(item, Tensor | Mapping):
        return item
    if isinstance(item, tuple | list) and len(item) in (1, 2, 3):
        return _arguments(item[0])
    raise TypeError(
        "a batch must be (inputs, targets), (inputs, targets, weights) or inputs alone as a tensor or a dict, "
        f"got {type(item).__name__}"
    )


def _arguments(inputs: Any) -> Any:
    """Several inputs as a tuple, which a network is called with; torch's collating makes a list of it."""
    return tuple(inputs) if isinstance(inputs, list) else inputs


@dataclass(frozen=True)
class CropAndFlip:
    """Shift images by up to ``pad`` pixels, filling with black, and mirror half of them: usual for CIFAR."""

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ValueError(f"pad must be at least 0 pixels, got {self.pad}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augmented images `(batch, channel, height, width)`; every image has a shift and a mirror of its own."""
        return self.apply(images, self.draw(len(images), generator).to(images.device))

    def draw(self, count: int, generator: torch.Generator) -> Int[Tensor, "number image"]:
        """What is random about so many images: shifts down and across, and whether each is mirrored."""
        shifts = torch.randint(2 * self.pad + 1, (2, count), generator=generator)
        if not self.flip:
            return shifts
        return torch.cat([shifts, torch.randint(2, (1, count), generator=generator, dtype=torch.bool).long()])

    def apply(self, images: Tensor, numbers: Int[Tensor, "number image"]) -> Tensor:
        """Images augmented by what was drawn for them."""
        if images.dim() != 4:
            raise ValueError(f"CropAndFlip needs images (batch, channel, height, width), got {tuple(images.shape)}")
        count, channels, height, width = images.shape
        rows = numbers[0, :, None] + torch.arange(height, device=images.device)
        columns = numbers[1, :, None] + torch.arange(width, device=images.device)
        if self.flip:
            columns = torch.where(numbers[2, :, None].bool(), columns.flip(1), columns)
        pixels = rows[:, :, None] * (width + 2 * self.pad) + columns[:, None, :]
        padded = torch.nn.functional.pad(images, (self.pad,) * 4).flatten(2)
        return padded.gather(2, pixels.reshape(count, 1, -1).expand(-1, channels, -1)).view_as(images)


class Loader:
    """Shuffled batches of examples: ``for inputs, targets in loader``, inputs as numbers (images in [0, 1]).

    Each time it is iterated it gives the next epoch; ``epoch(number)`` gives any.

    Args:
        examples: what to cut; moved to ``device`` once, as bytes.
        batch_size: examples in a batch, in each process.
        shuffle: whether every epoch has an order of its own.
        seed: which orders, and which augmentation.
        augment: a function of images and a generator, such as ``CropAndFlip()``.
        sample_weight: one weight per example; batches are then ``(inputs, targets, weights)``.
        device: where batches are made; by default where the examples are.
        rank: which of the processes this is.
        num_ranks: how many there are.
    """

    def __init__(
        self,
        examples: Examples,
        batch_size: int = 128,
        *,
        shuffle: bool = True,
        seed: int = 0,
        augment: Any = None,
        sample_weight: Tensor | None = None,
        device: torch.device | str | None = None,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        if not isinstance(examples, Examples):
            raise TypeError(f"examples must be dubio.data.Examples, got {type(examples).__name__}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not 0 <= rank < num_ranks:
            raise ValueError(f"rank must be from 0 to {num_ranks - 1}, got {rank}")
        if num_ranks > len(examples):
            raise ValueError(f"num_ranks must be at most the number of examples, {len(examples)}, got {num_ranks}")
        if sample_weight is not None and sample_weight.shape[:1] != examples.targets.shape[:1]:
            shape = tuple(sample_weight.shape)
            raise ValueError(f"sample_weight must have one weight per example, {len(examples)}, got shape {shape}")
        self.examples = examples if device is None else examples.to(device)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.augment = augment
        self.sample_weight = None if sample_weight is None else sample_weight.to(self.examples.targets.device)
        self.rank = rank
        self.num_ranks = num_ranks
        self._next_epoch = 0

    def __len__(self) -> int:
        """Batches of an epoch, the same in every process."""
        whole, rest = divmod(len(self.examples), self.batch_size * self.num_ranks)
        return whole + (rest >= self.num_ranks)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        self._next_epoch += 1
        return self.epoch(self._next_epoch - 1)

    def epoch(self, number: int, first: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """The batches of epoch ``number``, from batch ``first`` on.

        Their rows and what augments them are brought to the device at once: every transfer would wait for it.
        """
        order = epoch_order(len(self.examples), number, self.seed if self.shuffle else None)
        batches = [self._own(rows) for rows in order.split(self.batch_size * self.num_ranks)[first : len(self)]]
        augment = self._augmentation([len(rows) for rows in batches], number, first)
        for place, rows in enumerate(_moved(batches, self.examples.targets.device)):
            inputs = augment(place, self.examples.inputs.index_select(0, rows))
            batch = scaled(inputs), self.examples.targets.index_select(0, rows)
            yield batch if self.sample_weight is None else (*batch, self.sample_weight.index_select(0, rows))

    def _own(self, rows: Tensor) -> Tensor:
        """The rows of a joint batch that this process takes."""
        return rows[: len(rows) - len(rows) % self.num_ranks][self.rank :: self.num_ranks]

    def _augmentation(self, sizes: list[int], number: int, first: int) -> Callable[[int, Tensor], Tensor]:
        """A function of the place of a batch, counted from ``first``, and its images."""
        if self.augment is None:
            return lambda place, images: images

        def generator(place: int) -> torch.Generator:
            name = f"batch {first + place} of epoch {number}, rank {self.rank}, seed {self.seed}"
            return torch.Generator().manual_seed(noise_key(name))

        if type(self.augment) is not CropAndFlip:
            return lambda place, images: self.augment(images, generator(place))
        drawn = [self.augment.draw(size, generator(place)) for place, size in enumerate(sizes)]
        numbers = _moved(drawn, self.examples.inputs.device)
        return lambda place, images: self.augment.apply(images, numbers[place])


def _moved(parts: list[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """Tensors that differ in their last axis, brought to a device at once."""
    return torch.cat(parts, dim=-1).to(device).split([part.shape[-1] for part in parts], dim=-1) if parts else ()


def epoch_order(num_data: int, epoch: int, seed: int | None) -> Tensor:
    """Row numbers in the order of an epoch; without a seed, as they are."""
    if seed is None:
        return torch.arange(num_data, device="cpu")
    generator = torch.Generator().manual_seed(noise_key(f"epoch {epoch} of seed {seed}"))
    return torch.randperm(num_data, generator=generator, device="cpu")


def shared_batches(
    data: Any,
    batch_size: int,
    *,
    name: str,
    rank: int,
    num_ranks: int,
    seed: int | None = None,
    sample_weight: Tensor | None = None,
    device: torch.device | None = None,
) -> Batches:
    """The part that process ``rank`` of ``num_ranks`` has of each batch of ``batch_size`` rows.

    Other arguments are those of ``batches_from``. A loader that deals out rows itself is used as it is.
    """
    if num_ranks > 1:
        _check_shareable(data, batch_size, name, rank, num_ranks)
    whole = batches_from(data, batch_size, name=name, seed=seed, sample_weight=sample_weight, device=device)
    if num_ranks == 1:
        return whole
    if isinstance(data, DataLoader):
        return _sampled(data, whole, num_ranks)
    if isinstance(data, Loader) and data.num_ranks > 1:
        return _changed(whole, lambda batch: replace(batch, num_parts=num_ranks))
    if isinstance(data, Dataset):
        return _fetched(data, whole, batch_size, seed, rank, num_ranks)
    return _changed(whole, lambda batch: _part(batch, rank, num_ranks))


def _check_shareable(data: Any, batch_size: int, name: str, rank: int, num_ranks: int) -> None:
    if isinstance(data, Loader):
        if data.num_ranks > 1 and (data.rank, data.num_ranks) != (rank, num_ranks):
            raise ValueError(
                f"the Loader of {name} must have rank={rank} and num_ranks={num_ranks} in this process, or neither, "
                f"got rank={data.rank} and num_ranks={data.num_ranks}"
            )
    elif isinstance(data, DataLoader) and isinstance(data.sampler, DistributedSampler):
        if (data.sampler.rank, data.sampler.num_replicas) != (rank, num_ranks):
            raise ValueError(
                f"the DistributedSampler of {name} must have rank={rank} and num_replicas={num_ranks} in this "
                f"process, got rank={data.sampler.rank} and num_replicas={data.sampler.num_replicas}"
            )
    elif not _has_rows(data):
        raise TypeError(
            f"{name} must be dubio.data.Examples, (inputs, targets), a Dataset or a DataLoader with a "
            f"DistributedSampler for several processes, which share every batch, got {type(data).__name__}"
        )
    elif batch_size < num_ranks:
        raise ValueError(
            f"batch_size must be at least the number of processes that share a batch, {num_ranks}, got {batch_size}"
        )


def _has_rows(data: Any) -> bool:
    if isinstance(data, tuple | list):
        return len(data) in (2, 3) and hasattr(data[1], "shape")
    return isinstance(data, Examples | Dataset) and not isinstance(data, IterableDataset)


def _changed(whole: Batches, change: Callable[[Batch], Batch]) -> Batches:
    def items(number: int, first: int) -> Iterator[Batch]:
        return map(change, whole.epoch(number, first))

    return Batches(whole.num_data, whole.num_batches, items, may_draw=False)  # the whole sees to that


def _num_parts(num_rows: int, num_ranks: int) -> int:
    """How many processes share a batch: each has at least two of its rows, or one has them all."""
    return max(1, min(num_ranks, num_rows // 2))


def _own(rows: Tensor, rank: int, num_parts: int) -> Tensor:
    """The rows of one process: every so many, or none for a process that has no part."""
    return rows[rank::num_parts] if rank < num_parts else rows[:0]


def _part(batch: Batch, rank: int, num_ranks: int) -> Batch:
    """A process's rows of a batch."""
    num_parts = _num_parts(len(batch.targets), num_ranks)
    inputs, targets, weight = pytree.tree_map_only(
        Tensor, lambda leaf: _own(leaf, rank, num_parts), (batch.inputs, batch.targets, batch.weight)
    )
    return Batch(inputs, targets, weight, num_parts)


def _fetched(data: Any, whole: Batches, batch_size: int, seed: int | None, rank: int, num_ranks: int) -> Batches:
    """Parts of batches of a dataset, of which nothing is fetched but the rows that are wanted."""
    assert whole.num_data is not None
    num_data = whole.num_data

    def part(rows: Tensor) -> Batch:
        num_parts = _num_parts(len(rows), num_ranks)
        own = _own(rows, rank, num_parts)
        batch = batch_of(default_collate([data[row] for row in own.tolist()])) if len(own) else Batch(None, own)
        return replace(batch, num_parts=num_parts)

    def items(number: int, first: int) -> Iterator[Batch]:
        return map(part, epoch_order(num_data, number, seed).split(batch_size)[first:])

    return Batches(num_data, whole.num_batches, items)


def _sampled(loader: DataLoader[Any], whole: Batches, num_ranks: int) -> Batches:
    """Batches of torch's loader, whose sampler gives each process rows of its own."""
    sampler: Any = loader.sampler

    def items(number: int, first: int) -> Iterator[Batch]:
        sampler.set_epoch(number)
        return (replace(batch, num_parts=num_ranks) for batch in whole.epoch(number, first))

    rows = min(len(sampler.dataset), (whole.num_data or sampler.num_samples) * num_ranks)  # it may repeat some
    return Batches(rows, whole.num_batches, items, may_draw=False)
