"""The rows that a prediction reads, and how many of them it takes at a time.

Tensors are one block, cut only where they are moved and the device should not hold all of them. All other data are read
through once: slices of ``Examples`` and arrays, or batches of a dataset, a loader or any iterable, which are joined
until a block is full. So a network meets few and large batches, however small those of a loader are.

A batch has as many rows as memory allows, unless the user sets their number. A further batch costs what does not depend
on rows: on a CPU, adding the perturbations to the means of all weights; on a GPU, the launch of every kernel for every
chunk of draws. So batches are large. On a CPU they stop where the activations of a draw leave the cache
(784-1200-1200-10, 6,144 rows, four draws, two cores: 0.97 s in batches of 256, 0.73 s of 1,024, 0.72 s of 2,048, 0.79 s
of 6,144); on a GPU where several draws would no longer fit together. Under a memory limit one draw of a batch takes at
most half of it, and trials double their rows until this is decided.

Invariants: a block holds ``limit`` bytes of inputs, or a single batch where that is more, and no more is read ahead
(``test_no_more_than_a_block_is_read_ahead``); rows come in their order and each once (``test_reading.py``).
"""

import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree, data as torch_data

from dubio._engine import (
    ROWS,
    STATE,
    Call,
    Executor,
    Footprint,
    Inputs,
    arguments,
    bytes_per_row,
    circumstances,
    is_raised_by_user,
    isolated,
    map_tensors,
    memory_budget,
    one_draw,
    row_lines,
    settings_for_run,
    tensor_bytes,
    tensors_in,
)
from dubio.data import Examples, Loader, batches_from, refuse_string_inputs, scaled

ROWS_READ = 256
"""Examples of a dataset that are fetched together."""
MODEST_ROWS = 256
"""Rows that are taken together without a trial."""
WORTH_A_TRIAL = 8192
"""Rows times draws from which on a trial of at most ``MODEST_ROWS`` rows costs little."""
BYTES_IN_CACHE = 32 * 2**20
"""Activations of one draw that stay in the cache of a CPU."""
SEVERAL_DRAWS = 8
"""Draws that should fit together on a GPU."""
SHUFFLED = (torch_data.RandomSampler, torch_data.SubsetRandomSampler, torch_data.WeightedRandomSampler)

Names = Collection[int | str]
"""Positions or names of arguments."""
Readable = Inputs | Examples | NDArray[Any] | torch_data.Dataset[Any] | Iterable[Any]
"""The inputs that a prediction accepts."""

_FITTING: weakref.WeakKeyDictionary[nn.Module, dict[Any, int]] = weakref.WeakKeyDictionary()
"""The rows that fit into a memory limit, by all that they depend on."""


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Some rows of the data, as arguments of a network."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shared: Names
    """Positions or names of arguments without rows."""
    first_row: int
    """The number of its first row in the whole data."""
    num_rows: int

    def rows(self, start: int, stop: int) -> Inputs:
        """The arguments with these rows alone; nothing is copied."""
        part = self.changed(lambda leaf: leaf[start:stop])
        return part.kwargs or part.args

    def first(self, num_rows: int) -> "RowBlock":
        """The first rows, as a block."""
        return replace(self.changed(lambda leaf: leaf[:num_rows]), num_rows=min(num_rows, self.num_rows))

    def batches(self, batch_size: int) -> tuple[list[Inputs], list[int]]:
        """All rows in batches, and the number of rows of each."""
        starts = range(0, self.num_rows, batch_size)
        sizes = [min(batch_size, self.num_rows - start) for start in starts]
        return [self.rows(start, start + size) for start, size in zip(starts, sizes, strict=True)], sizes

    def changed(self, change: Callable[[Tensor], Tensor]) -> "RowBlock":
        """The same block, with ``change`` applied to each tensor that has rows."""
        values = {
            name: value if name in self.shared else map_tensors(change, value)
            for name, value in _named(self.args, self.kwargs).items()
        }
        args = tuple(values[place] for place in range(len(self.args)))
        return replace(self, args=args, kwargs={name: values[name] for name in self.kwargs})

    def call_on_copies(self, model: nn.Module, seed: int | None) -> Call:
        """A call of a network on copies of all arguments, since it may change its inputs."""
        return Call(model, self.args, self.kwargs, settings_for_run(seed)).with_tensors(torch.clone)

    def tensors(self) -> list[Tensor]:
        """The tensors that have rows."""
        return [leaf for _, leaf in _tensors(_named(self.args, self.kwargs), self.shared)]


def blocks_of(inputs: Readable, shared: Names, device: torch.device | None, limit: int) -> Iterator[RowBlock]:
    """All rows of ``inputs``, a block of about ``limit`` bytes at a time, on ``device`` (None: where they are).

    Args:
        inputs: tensors, ``Examples``, an array, a ``Dataset`` or loader, or an iterable of batches.
        shared: positions or names of arguments without rows.
        device: the device of the network.
        limit: bytes of inputs to hold at a time.

    Raises:
        TypeError: the inputs are no data.
        ValueError: there are no rows, their numbers differ, their order is random, or they hold NaN.
    """
    first_row = 0
    for part in _parts(inputs, shared, device, limit):
        block = _checked(part, shared, first_row)
        yield from _moved(block, device, limit)
        first_row += block.num_rows
    if first_row == 0:
        raise ValueError("inputs must have at least one row, got none")


def _parts(inputs: Readable, shared: Names, device: torch.device | None, limit: int) -> Iterator[Inputs]:
    """The data as arguments of a network, about ``limit`` bytes each unless they are in memory already."""
    if isinstance(inputs, Tensor | tuple | Mapping):
        yield inputs
    elif isinstance(inputs, Examples):
        for rows in _slices(inputs.inputs, limit):
            yield scaled(_to(inputs.inputs[rows], device))  # moved as bytes
    elif isinstance(inputs, np.ndarray):
        refuse_string_inputs(inputs)
        for rows in _slices(inputs, limit):
            tensor = torch.from_numpy(np.array(inputs[rows]))  # a copy, in the dtype that networks compute with
            yield tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor
    elif isinstance(inputs, torch_data.Dataset | torch_data.DataLoader | Loader):
        _refuse_random_order(inputs)
        yield from _joined(_copies(batches_from(inputs, ROWS_READ, name="inputs").inputs()), shared, limit)
    elif isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes):
        yield from _joined(iter(inputs) if isinstance(inputs, Sequence) else _copies(inputs), shared, limit)
    else:
        raise TypeError(
            "inputs must be a tensor, a tuple of positional arguments, a dict of keyword arguments, an array, "
            f"dubio.data.Examples, a Dataset, a DataLoader or an iterable of batches, got {type(inputs).__name__}"
        )


def _slices(rows: Any, limit: int) -> Iterator[slice]:
    """Rows that take about ``limit`` bytes as float32."""
    num_rows = len(rows) if rows.ndim else 0
    step = max(1, limit // max(1, 4 * int(np.prod(rows.shape[1:]))))
    return (slice(start, start + step) for start in range(0, num_rows, step))


def _refuse_random_order(data: Any) -> None:
    sampler = _sampler_of(data) if isinstance(data, torch_data.DataLoader) else None
    shuffles = (
        data if isinstance(data, Loader) else sampler if isinstance(sampler, torch_data.DistributedSampler) else None
    )
    if isinstance(sampler, SHUFFLED) or (shuffles is not None and shuffles.shuffle):
        raise ValueError(
            f"inputs must come in their own order, since predictions do, got a {type(data).__name__} that shuffles; "
            "make it with shuffle=False"
        )
    if sampler is not None and type(sampler) is not torch_data.SequentialSampler and not _is_in_order(sampler):
        raise ValueError(
            "inputs must come in their own order, since predictions do, got a DataLoader whose "
            f"{type(sampler).__name__} gives indices that do not increase or differ each time; pass its dataset, "
            "or an iterable of batches in the order that you want"
        )


def _sampler_of(loader: torch_data.DataLoader[Any]) -> Iterable[Any] | None:
    """The sampler that chooses the rows, one by one or in batches; None where there is none."""
    batches: Any = loader.batch_sampler
    if isinstance(loader.dataset, torch_data.IterableDataset):
        return None
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is torch_data.BatchSampler else batches


def _is_in_order(sampler: Iterable[Any]) -> bool:
    """Whether a sampler gives rows that increase, and the same ones in each iteration."""
    last = -1
    for index, again in zip_longest(_indices(sampler), _indices(sampler)):
        if index is None or index != again or index <= last:
            return False
        last = index
    return True


def _indices(sampler: Iterable[Any]) -> Iterator[int | None]:
    """The indices of a sampler, one by one; None for an item that is no index."""
    for item in sampler:
        for index in item if isinstance(item, Sequence) else [item]:
            yield operator.index(index) if hasattr(index, "__index__") else None


def _copies(batches: Iterable[Any]) -> Iterator[Any]:
    """Copies of the batches, since a loader may write the next one over the last."""
    return (map_tensors(torch.clone, batch) for batch in batches)


def _joined(batches: Iterator[Any], shared: Names, limit: int) -> Iterator[Inputs]:
    """Batches that follow each other and have the same form, joined as long as they take ``limit`` bytes at most."""
    held: list[Inputs] = []
    held_bytes, held_form = 0, None
    for batch in batches:
        form = None if shared else _form(batch)
        size = tensor_bytes(arguments(batch))
        if held and (form is None or form != held_form or held_bytes + size > limit):
            yield _concatenated(held)
            held_bytes = 0
        held.append(batch)
        held_bytes, held_form = held_bytes + size, form
    if held:
        yield _concatenated(held)


def _form(batch: Inputs) -> Any:
    """What batches must have in common to be joined; None for one that cannot be joined."""
    leaves, spec = pytree.tree_flatten(arguments(batch))
    have_rows = all(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves)
    if not have_rows or len({len(leaf) for leaf in leaves}) != 1:
        return None
    return spec, [(leaf.shape[1:], leaf.dtype, leaf.device) for leaf in leaves]


def _concatenated(batches: list[Inputs]) -> Inputs:
    """The batches as one; the list is emptied, so that they are not in memory twice while the result is used."""
    if len(batches) == 1:
        return batches.pop()
    joined: tuple[Any, ...] = pytree.tree_map(lambda *leaves: torch.cat(leaves), *map(arguments, batches))
    batches.clear()
    args, kwargs = joined
    return kwargs if kwargs else tuple(args)


def _checked(inputs: Inputs, shared: Names, first_row: int) -> RowBlock:
    args, kwargs = arguments(inputs)
    named = _named(args, kwargs)
    if unknown := [name for name in shared if name not in named]:
        raise ValueError(f"shared must name inputs, got {unknown[0]!r} beside inputs {list(named)}")
    for name, value in named.items():
        leaves = pytree.tree_leaves(value, is_leaf=lambda part: isinstance(part, PackedSequence))
        if name not in shared and any(isinstance(leaf, PackedSequence) for leaf in leaves):
            raise TypeError(
                f"inputs must have their rows on axis 0, got a PackedSequence in input {name!r}, which has none; give "
                "padded sequences and their lengths as two tensors, and let the network pack them"
            )
    rows = [(name, leaf.shape[0] if leaf.dim() else 0) for name, leaf in _tensors(named, shared)]
    if not rows:
        raise ValueError("inputs must hold at least one tensor with rows")
    num_rows = rows[0][1]
    if any(count != num_rows for _, count in rows):
        listed = ", ".join(f"{name!r}: {count}" for name, count in rows)
        raise ValueError(
            f"inputs must have the same number of rows on axis 0, got {{{listed}}}; "
            "name those without rows in shared=(...)"
        )
    if num_rows == 0:
        where = f" in the batch that follows row {first_row - 1}" if first_row else ""
        raise ValueError(f"inputs must have at least one row, got none{where}")
    for name, leaf in _tensors(named, ()):
        _refuse_nan(name, leaf, 0 if name in shared else first_row)
    return RowBlock(args, kwargs, shared, first_row, num_rows)


def _refuse_nan(name: int | str, leaf: Tensor, first_row: int) -> None:
    # A sum needs no memory and is finite, except for NaN, infinities and overflow; only then is every element checked.
    if not leaf.is_floating_point() or bool(leaf.sum().isfinite()) or not bool(leaf.isnan().any()):
        return
    bad = leaf.isnan().flatten(1).any(dim=1).nonzero().flatten() + first_row if leaf.dim() > 1 else torch.empty(0)
    rows = f", rows {bad.tolist()[:5]}" if len(bad) else ""
    raise ValueError(f"inputs must not hold NaN, got NaN in input {name!r}{rows}")


def _moved(block: RowBlock, device: torch.device | None, limit: int) -> Iterator[RowBlock]:
    """The block on a device, in several parts where it would take more than ``limit`` bytes there."""
    if device is None or all(leaf.device == device for leaf in tensors_in((block.args, block.kwargs))):
        yield block
        return
    size = sum(leaf.nbytes for leaf in block.tensors() if leaf.device != device)
    step = block.num_rows if size <= limit else max(1, limit * block.num_rows // size)
    for start in range(0, block.num_rows, step):
        stop = min(start + step, block.num_rows)
        args, kwargs = map_tensors(lambda leaf: _to(leaf, device), arguments(block.rows(start, stop)))
        yield RowBlock(args, kwargs, block.shared, block.first_row + start, stop - start)


def _to(leaf: Tensor, device: torch.device | None) -> Tensor:
    """A tensor on the device; from pinned memory, the copy is asynchronous."""
    return leaf if device is None else leaf.to(device, non_blocking=device.type == "cuda")


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int | str, Any]:
    return dict([*enumerate(args), *kwargs.items()])


def _tensors(named: Mapping[int | str, Any], excluded: Names) -> Iterator[tuple[int | str, Tensor]]:
    for name, value in named.items():
        if name not in excluded:
            yield from ((name, leaf) for leaf in tensors_in(value))


def rows_at_a_time(
    model: nn.Module, block: RowBlock, num_samples: int, seed: int | None, executor: Executor = "auto"
) -> int:
    """Rows of a batch: all of the block, or batches of about one size."""
    limit, few = STATE.own.settings.memory, block.num_rows <= MODEST_ROWS
    if limit is None and (few or block.num_rows * num_samples < WORTH_A_TRIAL):
        return MODEST_ROWS
    try:
        if limit is not None:
            rows = _rows_within(model, block, seed, limit)
        else:
            rows = _rows_in_cache(model, block, num_samples, seed, executor)
    except (RuntimeError, ValueError, TypeError) as error:  # the run itself reports what is wrong, if anything is
        if is_raised_by_user(error):
            raise
        return MODEST_ROWS
    return _evenly(block.num_rows, rows)


def _rows_in_cache(model: nn.Module, block: RowBlock, num_samples: int, seed: int | None, executor: Executor) -> int:
    """Rows of which a draw stays in the cache of a CPU, or several fit on another device."""
    lengths = {length for parameter in model.parameters() if not is_lazy(parameter) for length in parameter.shape}
    # What has so many elements on an axis counts as rows, so no parameter may have a multiple of them.
    fitting = (rows for rows in range(MODEST_ROWS, 0, -1) if all(each % rows or not each for each in lengths))
    trial_rows = next(fitting, MODEST_ROWS)
    is_single = num_samples == 1 or STATE.own.settings.mode == "off"
    per_row = bytes_per_row(block.first(trial_rows).call_on_copies(model, seed), "loop" if is_single else executor)
    device = block.tensors()[0].device
    if device.type != "cpu":
        return max(1, memory_budget(device) // (per_row * min(num_samples, SEVERAL_DRAWS)))
    return max(1, min(max(MODEST_ROWS, BYTES_IN_CACHE // per_row), memory_budget(device) // per_row))


def _evenly(num_rows: int, most: int) -> int:
    """Rows of each of as few batches as possible, all about equal, in whole blocks of the noise of rows."""
    if ROWS <= most < num_rows:
        most = most // ROWS * ROWS
    rows = -(-num_rows // -(-num_rows // most))
    return rows if rows < ROWS else -(-rows // ROWS) * ROWS


def _rows_within(model: nn.Module, block: RowBlock, seed: int | None, limit: int) -> int:
    """Rows of which one draw takes at most half of a limit, or 1 where none fits; no trial takes more."""
    form = [(leaf.shape[1:], leaf.dtype, leaf.device) for leaf in block.tensors()]
    is_autocast = torch.is_autocast_enabled(form[0][2].type)
    network = circumstances(Call(model, block.args, block.kwargs, settings_for_run(seed)))
    key = (str(form), STATE.own.settings.estimator, is_autocast, limit, block.num_rows, network)
    fitting = _FITTING.setdefault(model, {})
    if key not in fitting:
        fitting[key] = _try_rows(model, block, seed, limit)
    return fitting[key]


def _try_rows(model: nn.Module, block: RowBlock, seed: int | None, limit: int) -> int:
    on_cpu = block.tensors()[0].device.type == "cpu"
    rows, last = 1, None
    while rows < block.num_rows:
        trial = _footprint(model, block, rows, seed)
        room = min(limit // 2, BYTES_IN_CACHE) if on_cpu and rows >= MODEST_ROWS else limit // 2
        lines = [(0, trial.peak)] if last is None else row_lines(last, trial)
        unit = rows if last is None else rows // 2
        if max(shared + 2 * rows // unit * each for shared, each in lines) > room:
            return max(1, min(max(0, room - shared) * unit // max(each, 1) for shared, each in lines))
        rows, last = 2 * rows, trial
    return rows


def _footprint(model: nn.Module, block: RowBlock, rows: int, seed: int | None) -> Footprint:
    """The memory of one draw of some rows."""
    call, footprint = block.first(rows).call_on_copies(model, seed), Footprint()
    with isolated(model, trial=True), footprint:
        one_draw(call, torch.zeros((), dtype=torch.int64, device="cpu"))
    return footprint
