"""Data as batches: examples in memory, tensors, a ``Dataset``, a ``DataLoader``, or any iterable of batches.

Data that are in memory or can be indexed are shuffled by a generator made from (seed, epoch). An epoch is therefore a
function of these two numbers, and can be resumed at any batch with the same shuffle and the same augmentation
(``tests/data/test_loading.py``). A loader or an iterable keeps its own order, and is read up to the first batch that is
needed.

Several processes share every batch: each takes a part of its rows, one row in turn. Together the parts are the batches
of a single process, in the same order and with the same augmentation (``tests/training/test_processes.py``). No row is
dropped: if a batch has too few rows to give two to each process, fewer processes share it and the others get a part
without rows, because batch normalisation needs more than one row. ``Loader(rank=..., num_ranks=...)`` deals out rows
itself and drops a remainder that is smaller than the number of processes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import nullcontext
from dataclasses import KW_ONLY, InitVar, dataclass, replace
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
    """Inputs and targets of examples, and their weights if there are any."""

    inputs: Any
    targets: Tensor
    weight: Tensor | None = None
    num_parts: int = 1
    """How many processes share the rows of this batch."""

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        return self.map(lambda leaf: leaf.to(device), self.num_parts)

    def map(self, change: Callable[[Tensor], Tensor], num_parts: int) -> "Batch":
        """The batch with every tensor changed, shared by so many processes."""
        fields = (self.inputs, self.targets, self.weight)
        inputs, targets, weight = pytree.tree_map_only(Tensor, change, fields)
        return Batch(inputs, targets, weight, num_parts)


@dataclass(frozen=True)
class Batches:
    """The batches of every epoch."""

    num_data: int | None
    num_batches: int | None
    _items: Callable[[int, int], Iterator[Any]]
    """A function of the number of an epoch and of its first batch; it yields the batches from there on."""
    may_draw: bool = True
    """Whether reading runs user code, which may draw from torch's global generator, as augmentation does."""

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """The batches of epoch ``number``, from batch ``first`` on.

        In a run with private random numbers, user code that reads the data draws from them.
        """
        if self.may_draw and has_numbers_of_its_own():
            return map(batch_of, _redirected(lambda: self._items(number, first)))
        return map(batch_of, self._items(number, first))

    def inputs(self) -> Iterator[Any]:
        """The inputs of the first epoch, batch by batch, with or without targets in the data."""
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
    """Batches from any kind of data, which error messages call ``name``. Data are shuffled only if there is a seed."""
    if isinstance(data, Examples):
        place = device if device is None or _fits(data.inputs, device) else None
        loader = Loader(
            data, batch_size, shuffle=seed is not None, seed=seed or 0, sample_weight=sample_weight, device=place
        )
        return Batches(len(data), len(loader), loader.epoch, may_draw=False)
    is_pair = isinstance(data, tuple | list) and len(data) in (2, 3)
    if is_pair and isinstance(data[0], Tensor | np.ndarray):
        refuse_string_inputs(data[0])
        _refuse_string_targets(data[1])
    if is_pair and isinstance(data[1], Tensor | np.ndarray):
        data = pytree.tree_map_only(np.ndarray, _from_numpy, tuple(data))
        data = (*data[:2], sample_weight) if sample_weight is not None else data
        if device is not None and device.type == "cuda" and _fits(data, device):
            data = pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device), data)
        return _from_tensors(data, batch_size, name, seed)
    if sample_weight is not None:
        raise ValueError(
            f"sample_weight goes with {name} given as tensors; else let {name} yield (inputs, targets, weights)"
        )
    if isinstance(data, Loader):
        may_draw = data.augment is not None and type(data.augment) is not CropAndFlip
        return Batches(len(data.examples), len(data), data.epoch, may_draw)
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size)
    if isinstance(data, DataLoader):
        return _from_loader(data)
    if isinstance(data, Dataset) and hasattr(data, "__getitem__"):
        if not isinstance(data, Sized) or len(data) == 0:
            raise ValueError(f"{name} must hold at least one example, got none")
        return _from_rows(len(data), batch_size, seed, lambda rows: _collated(data, rows))
    if isinstance(data, Iterator):
        raise TypeError(f"{name} must be iterable more than once, got a {type(data).__name__}; pass a list or loader")
    if isinstance(data, Iterable) and not isinstance(data, Tensor | str):
        num_batches = len(data) if isinstance(data, Sized) else None
        return Batches(None, num_batches, lambda number, first: islice(data, first, None))
    raise TypeError(
        f"{name} must be (inputs, targets), dubio.data.Examples, a Dataset, a DataLoader or an iterable of batches, "
        f"got {type(data).__name__}"
    )


def _from_tensors(data: Any, batch_size: int, name: str, seed: int | None) -> Batches:
    """Batches of tensors. The order is copied to each of their devices once, since every transfer waits for the GPU."""
    inputs, targets, *weights = data
    _check_rows(name, inputs, targets, *weights)
    devices = {leaf.device for leaf in pytree.tree_leaves(data) if isinstance(leaf, Tensor)}

    def items(number: int, first: int) -> Iterator[Any]:
        order = epoch_order(len(targets), number, seed)
        orders = {device: order.to(device).split(batch_size)[first:] for device in devices}

        def take(rows: tuple[Tensor, ...]) -> Any:
            indices = dict(zip(orders, rows, strict=True))
            return pytree.tree_map_only(Tensor, lambda leaf: leaf[indices[leaf.device]], tuple(data))

        return map(take, zip(*orders.values(), strict=True))

    return Batches(len(targets), -(-len(targets) // batch_size), items, may_draw=False)


def _fits(data: Any, device: torch.device) -> bool:
    """Whether a device has memory for all data at once; on a CPU they already are."""
    size = sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(data) if isinstance(leaf, Tensor))
    return device.type == "cpu" or size <= memory_budget(device)


def _from_rows(num_data: int, batch_size: int, seed: int | None, take: Callable[[Tensor], Any]) -> Batches:
    """Batches that ``take`` makes of row numbers, in the order of each epoch."""

    def items(number: int, first: int) -> Iterator[Any]:
        return map(take, epoch_order(num_data, number, seed).split(batch_size)[first:])

    return Batches(num_data, -(-num_data // batch_size), items)


def _collated(data: Any, rows: Tensor) -> Any:
    return default_collate([data[row] for row in rows.tolist()])


def _from_loader(loader: DataLoader[Any]) -> Batches:
    """Batches of torch's loader. Its generator is seeded again for each epoch, so the order can be reproduced."""
    num_data, is_stream = None, isinstance(loader.dataset, IterableDataset)
    if not is_stream and loader.batch_size is not None:
        if loader.drop_last:
            num_data = len(loader) * loader.batch_size
        elif isinstance(loader.sampler, Sized):  # a sampler may take only some of the examples
            num_data = len(loader.sampler)
    first_seed = None if loader.generator is None else loader.generator.initial_seed()
    rank = loader.sampler.rank if isinstance(loader.sampler, DistributedSampler) else 0
    place = f", rank {rank}" if rank else ""  # each process augments its own rows

    def items(number: int, first: int) -> Iterator[Any]:
        if loader.generator is not None:
            loader.generator.manual_seed(noise_key(f"epoch {number} of seed {first_seed}"))
        stream = Stream(noise_key(f"epoch {number} of a loader{place}"))
        # The loader and its sampler draw when they start. It also forks its workers then, which would inherit the
        # mode that redirects random numbers.
        modes = redirected(stream) if loader.num_workers == 0 else _disable_current_modes()
        with modes, nullcontext() if loader.num_workers == 0 else stream.lent():
            iterator = iter(loader)
            skipped = list(islice(iterator, max(first, 1)))
        return iterator if first else chain(skipped, iterator)

    return Batches(num_data, None if is_stream else len(loader), items)


def _redirected(make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Items that draw from the private random numbers of the run, not from torch's global generator."""
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


def _from_numpy(array: Any) -> Tensor:
    """An array as a tensor; floating-point numbers become float32."""
    tensor = torch.as_tensor(array, device="cpu")
    return tensor.float() if tensor.is_floating_point() else tensor


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
    """An item of user data as a batch."""
    if isinstance(item, Batch):
        return item
    if isinstance(item, tuple | list) and len(item) in (2, 3):
        _refuse_string_targets(item[1])
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


def refuse_string_inputs(inputs: Any) -> None:
    """Refuse strings as inputs; only the user can decide how they become numbers."""
    _refuse_strings("inputs", inputs, "turn them into numbers first, such as by one column for each category")


def _refuse_string_targets(targets: Any) -> None:
    advice = "names = sorted(set(y)); targets = torch.tensor([names.index(name) for name in y])"
    _refuse_strings("targets", targets, f"number the classes first: {advice}")


def _refuse_strings(name: str, values: Any, advice: str) -> None:
    """Refuse an array, or lists in lists, whose first value is a string."""
    while isinstance(values, list | tuple) and values:
        values = values[0]
    if isinstance(values, np.ndarray) and values.dtype.kind in "USO" and values.size:
        values = values.flat[0]
    if isinstance(values, str | bytes):
        text = values.decode(errors="replace") if isinstance(values, bytes) else str(values)
        raise TypeError(f"{name} must be numbers, got strings such as {text!r}; {advice}")


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
    """Several inputs as a tuple of arguments for the network; torch's collate function makes a list of them."""
    return tuple(inputs) if isinstance(inputs, list) else inputs


@dataclass(frozen=True)
class CropAndFlip:
    """Shift images by up to ``pad`` pixels with black borders, and mirror half of them, as is usual for CIFAR."""

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ValueError(f"pad must be at least 0 pixels, got {self.pad}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augmented images `(batch, channel, height, width)`; shift and mirroring are drawn for each image."""
        return self.apply(images, self.draw(len(images), generator).to(images.device))

    def draw(self, count: int, generator: torch.Generator) -> Int[Tensor, "number image"]:
        """Random numbers for ``count`` images: shifts down and across, and whether each is mirrored."""
        shifts = torch.randint(2 * self.pad + 1, (2, count), generator=generator)
        if not self.flip:
            return shifts
        return torch.cat([shifts, torch.randint(2, (1, count), generator=generator, dtype=torch.bool).long()])

    def apply(self, images: Tensor, numbers: Int[Tensor, "number image"]) -> Tensor:
        """Images augmented by the numbers drawn for them."""
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


@dataclass(eq=False, repr=False)
class Loader:
    """Shuffled batches of examples: ``for inputs, targets in loader``, inputs as numbers (images in [0, 1]).

    Each iteration over the loader is the next epoch; ``epoch(number)`` gives any epoch.

    Args:
        examples: the examples; they are moved to ``device`` once, images as bytes.
        batch_size: number of examples in a batch of each process.
        shuffle: whether the examples are shuffled in every epoch.
        seed: seed of the orders and of the augmentation.
        augment: a function of images and a generator, such as ``CropAndFlip()``.
        sample_weight: one weight per example; batches are then ``(inputs, targets, weights)``.
        device: device of the batches; by default that of the examples.
        rank: number of this process.
        num_ranks: number of processes.
    """

    examples: Examples
    batch_size: int = 128
    _: KW_ONLY
    shuffle: bool = True
    seed: int = 0
    augment: Any = None
    sample_weight: Tensor | None = None
    device: InitVar[torch.device | str | None] = None
    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self, device: torch.device | str | None) -> None:
        if not isinstance(self.examples, Examples):
            raise TypeError(f"examples must be dubio.data.Examples, got {type(self.examples).__name__}")
        num_data = len(self.examples)
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"rank must be from 0 to {self.num_ranks - 1}, got {self.rank}")
        if self.num_ranks > num_data:
            raise ValueError(f"num_ranks must be at most the number of examples, {num_data}, got {self.num_ranks}")
        self.examples = self.examples if device is None else self.examples.to(device)
        self._next_epoch = 0
        if self.sample_weight is not None:
            shape = tuple(self.sample_weight.shape)
            if shape[:1] != (num_data,):
                raise ValueError(f"sample_weight must have one weight per example, {num_data}, got shape {shape}")
            self.sample_weight = self.sample_weight.to(self.examples.targets.device)

    def __len__(self) -> int:
        """Number of batches in an epoch, the same in every process."""
        whole, rest = divmod(len(self.examples), self.batch_size * self.num_ranks)
        return whole + (rest >= self.num_ranks)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        self._next_epoch += 1
        return self.epoch(self._next_epoch - 1)

    def epoch(self, number: int, first: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """The batches of epoch ``number``, from batch ``first`` on.

        Row numbers and random numbers are copied to the device once, since every transfer waits for the device.
        """
        order = epoch_order(len(self.examples), number, self.seed if self.shuffle else None)
        shared = order.split(self.batch_size * self.num_ranks)[first : len(self)]
        batches = [rows[: len(rows) - len(rows) % self.num_ranks][self.rank :: self.num_ranks] for rows in shared]
        augment = self._augmentation([len(rows) for rows in batches], number, first)
        for place, rows in enumerate(_moved(batches, self.examples.targets.device)):
            inputs = augment(place, self.examples.inputs.index_select(0, rows))
            batch = scaled(inputs), self.examples.targets.index_select(0, rows)
            yield batch if self.sample_weight is None else (*batch, self.sample_weight.index_select(0, rows))

    def _augmentation(self, sizes: list[int], number: int, first: int) -> Callable[[int, Tensor], Tensor]:
        """A function of the number of a batch, counted from ``first``, and its images."""
        if self.augment is None:
            return lambda place, images: images

        def generator(place: int) -> torch.Generator:
            name = f"batch {first + place} of epoch {number}, rank {self.rank}, seed {self.seed}"
            return torch.Generator().manual_seed(noise_key(name))

        if type(self.augment) is not CropAndFlip:
            return lambda place, images: self.augment(images, generator(place))
        random = [self.augment.draw(size, generator(place)) for place, size in enumerate(sizes)]
        numbers = _moved(random, self.examples.inputs.device)
        return lambda place, images: self.augment.apply(images, numbers[place])


def _moved(parts: list[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """Tensors that differ in their last axis, copied to a device in one transfer."""
    return torch.cat(parts, dim=-1).to(device).split([part.shape[-1] for part in parts], dim=-1) if parts else ()


def epoch_order(num_data: int, epoch: int, seed: int | None) -> Tensor:
    """Row numbers in the order of an epoch; without a seed they are sorted."""
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
    """The part of process ``rank`` of ``num_ranks`` in each batch of ``batch_size`` rows.

    The other arguments are those of ``batches_from``. A loader that deals out rows itself is used unchanged.
    """
    if num_ranks > 1:
        _check_shareable(data, batch_size, name, rank, num_ranks)
    whole = batches_from(data, batch_size, name=name, seed=seed, sample_weight=sample_weight, device=device)
    if num_ranks == 1:
        return whole
    if isinstance(data, DataLoader):
        return _sampled(data, whole, num_ranks)
    if isinstance(data, Dataset):
        assert whole.num_data is not None
        return _from_rows(whole.num_data, batch_size, seed, lambda rows: _fetched(data, rows, rank, num_ranks))

    def part(batch: Batch) -> Batch:
        if isinstance(data, Loader) and data.num_ranks > 1:
            return replace(batch, num_parts=num_ranks)
        num_parts = _num_parts(len(batch.targets), num_ranks)
        return batch.map(lambda leaf: _rows_of_rank(leaf, rank, num_parts), num_parts)

    # ``whole.epoch`` redirects what it draws.
    return Batches(whole.num_data, whole.num_batches, lambda *place: map(part, whole.epoch(*place)), may_draw=False)


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


def _num_parts(num_rows: int, num_ranks: int) -> int:
    """How many processes share a batch, so that each has at least two rows, or one process has all."""
    return max(1, min(num_ranks, num_rows // 2))


def _rows_of_rank(rows: Tensor, rank: int, num_parts: int) -> Tensor:
    """The rows of a process, which are none for a process without a part."""
    return rows[rank::num_parts] if rank < num_parts else rows[:0]


def _fetched(data: Any, rows: Tensor, rank: int, num_ranks: int) -> Batch:
    """A process's part of a batch of a dataset; only its rows are read."""
    num_parts = _num_parts(len(rows), num_ranks)
    part = _rows_of_rank(rows, rank, num_parts)
    batch = batch_of(_collated(data, part)) if len(part) else Batch(None, part)
    return replace(batch, num_parts=num_parts)


def _sampled(loader: DataLoader[Any], whole: Batches, num_ranks: int) -> Batches:
    """Batches of torch's loader, whose sampler gives each process different rows."""
    sampler: Any = loader.sampler

    def items(number: int, first: int) -> Iterator[Batch]:
        sampler.set_epoch(number)
        return (replace(batch, num_parts=num_ranks) for batch in whole.epoch(number, first))

    rows = min(len(sampler.dataset), (whole.num_data or sampler.num_samples) * num_ranks)  # it may repeat some
    return Batches(rows, whole.num_batches, items, may_draw=False)
