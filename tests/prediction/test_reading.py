"""Data that ``predict`` reads as it goes: the same prediction as from one tensor, and never all of it in memory."""

import importlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
)

import dubio
from dubio.data.batches import Loader
from dubio.data.examples import Examples
from dubio.prediction.inputs import RowBlock, blocks_of
from networks import Attention, TwoInputs, mlp

predict_module = importlib.import_module("dubio.prediction.predict")

ROWS = 75  # two blocks of noise and a part of one
BYTES_OF_A_ROW = 4 * 5
NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "weight": (dubio.Bayes(init_std=0.3), {}),
    "local": (dubio.Bayes(init_std=0.3), {"estimator": "local"}),
    "flipout": (dubio.Bayes(init_std=0.3), {"estimator": "flipout"}),
    "dropout": (dubio.Dropout(p=0.4), {}),
    "flow": (dubio.Flow(), {}),
}


class Rows(Dataset[Any]):
    """Examples with labels, one at a time."""

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.inputs[row], row % 4


class Flowing(IterableDataset[Any]):
    """Examples with labels that come one after the other."""

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return ((row, 0) for row in self.inputs)


def memory_map(inputs: Tensor, folder: Path) -> Any:
    np.save(folder / "inputs.npy", inputs.double().numpy())
    return np.load(folder / "inputs.npy", mmap_mode="r")


FORMS: dict[str, Callable[[Tensor, Path], Any]] = {
    "Examples": lambda x, _: Examples(x, torch.zeros(len(x), dtype=torch.int64)),
    "Loader": lambda x, _: Loader(Examples(x, torch.zeros(len(x), dtype=torch.int64)), 7, shuffle=False),
    "array": lambda x, _: x.numpy(),
    "memory map of doubles": memory_map,
    "Dataset": lambda x, _: Rows(x),
    "Dataset without targets": lambda x, _: TensorDataset(x),
    "IterableDataset": lambda x, _: Flowing(x),
    "DataLoader": lambda x, _: DataLoader(Rows(x), 7),
    "list of tensors": lambda x, _: list(x.split(7)),
    "two batches": lambda x, _: list(x.split(40)),
    "list of arguments": lambda x, _: [(part,) for part in x.split(7)],
    "list of named arguments": lambda x, _: [{"input": part} for part in x.split(7)],
    "generator": lambda x, _: (part for part in x.split(7)),
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of twenty rows, so that there are several."""
    monkeypatch.setattr(predict_module, "MOST_READ", 20 * BYTES_OF_A_ROW)


def converted(name: str) -> tuple[nn.Module, dict[str, Any]]:
    method, options = NETWORKS[name]
    return method.convert(mlp(5, 8, 4)), options


@pytest.mark.feature("predict reads data larger than memory, and says what it would say of one tensor")
@pytest.mark.parametrize("name", NETWORKS)
def test_batches_of_a_stream_are_predicted_as_one_tensor(name: str, small_blocks: None) -> None:
    model, options = converted(name)
    inputs = torch.randn(ROWS, 5)
    whole = dubio.predict(model, inputs, 6, seed=3, **options)
    read = dubio.predict(model, (part for part in inputs.split(9)), 6, seed=3, **options)
    torch.testing.assert_close(read.samples, whole.samples, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(read.mutual_information, whole.mutual_information, rtol=1e-4, atol=2e-6)
    assert whole.samples.std(dim=0).max() > 1e-3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_size", [None, 8])
def test_data_in_any_form_are_predicted_as_one_tensor(
    form: str, batch_size: int | None, small_blocks: None, tmp_path: Path
) -> None:
    model, inputs = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 4)), torch.randn(ROWS, 5)
    whole = dubio.predict(model, inputs, 4, seed=3, estimator="local")
    if form == "list of named arguments":
        model.register_forward_pre_hook(lambda _, args, named: ((*args, *named.values()), {}), with_kwargs=True)
    data = FORMS[form](inputs, tmp_path)
    read = dubio.predict(model, data, 4, seed=3, estimator="local", batch_size=batch_size)
    torch.testing.assert_close(read.samples, whole.samples, rtol=1e-5, atol=2e-6)


def test_images_of_examples_are_scaled_as_they_are_read(small_blocks: None) -> None:
    images = torch.randint(256, (ROWS, 1, 4, 4), dtype=torch.uint8)
    model = dubio.Bayes(init_std=0.3).convert(nn.Sequential(nn.Flatten(), mlp(16, 8, 4)))
    read = dubio.predict(model, Examples(images, torch.zeros(ROWS, dtype=torch.int64)), 4, seed=3)
    torch.testing.assert_close(read.samples, dubio.predict(model, images / 255.0, 4, seed=3).samples)


def test_real_targets_are_predicted_from_a_stream(small_blocks: None) -> None:
    model = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 1), dubio.Gaussian(std=0.1))
    inputs = torch.randn(ROWS, 5)
    whole = dubio.predict(model, inputs, 4, seed=3)
    read = dubio.predict(model, iter(inputs.split(9)), 4, seed=3)
    torch.testing.assert_close(read.quantile(0.3), whole.quantile(0.3), rtol=1e-5, atol=2e-6)


def test_several_inputs_come_in_batches(small_blocks: None) -> None:
    model = dubio.Bayes(init_std=0.3).convert(TwoInputs())
    left, right = torch.randn(ROWS, 5), torch.randn(ROWS, 3)
    whole = dubio.predict(model, (left, right), 4, seed=3)
    read = dubio.predict(model, list(zip(left.split(9), right.split(9), strict=True)), 4, seed=3)
    torch.testing.assert_close(read.samples, whole.samples, rtol=1e-5, atol=2e-6)


def test_inputs_without_rows_come_with_every_batch() -> None:
    model = dubio.Bayes(init_std=0.3).convert(Attention())
    x, mask = torch.randn(8, 4, 6), torch.randn(4, 4)  # as many rows as a batch has
    whole = dubio.predict(model, (x, mask), 4, seed=3, shared=[1])
    read = dubio.predict(model, [(part, mask) for part in x.split(4)], 4, seed=3, shared=[1])
    torch.testing.assert_close(read.samples, whole.samples, rtol=1e-5, atol=2e-6)


def test_batches_of_several_lengths_are_predicted_together() -> None:
    class Mean(nn.Module):
        """The mean over positions, of which batches have different numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.mean(dim=1))

    model = dubio.Bayes(init_std=0.3).convert(Mean())
    batches = [torch.randn(6, positions, 5) for positions in (3, 3, 7, 2)]
    read = dubio.predict(model, batches, 4, seed=3)
    alone = [dubio.predict(model, batch, 4, seed=3).samples for batch in batches]
    torch.testing.assert_close(read.samples, torch.cat(alone, dim=1), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["tensor", "array", "arguments", "IterableDataset"])
def test_a_buffer_may_be_used_again_for_every_batch(kind: str) -> None:
    inputs = torch.randn(ROWS, 5)

    class Reading(IterableDataset[Any]):
        """Batches of three rows, all in the same memory."""

        def __iter__(self) -> Iterator[Any]:
            array = np.empty((3, 5), dtype=np.float32)
            buffer = torch.from_numpy(array) if kind == "array" else torch.empty(3, 5)
            for part in inputs.split(3):
                if kind == "array":
                    array[:] = part.numpy()
                else:
                    buffer.copy_(part)
                yield (buffer,) if kind == "arguments" else buffer

    data = DataLoader(Reading(), batch_size=None) if kind == "IterableDataset" else iter(Reading())
    model = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 4))
    read = dubio.predict(model, data, 4, seed=3)
    torch.testing.assert_close(read.samples, dubio.predict(model, inputs, 4, seed=3).samples, rtol=1e-5, atol=2e-6)


# What is in memory


def test_no_more_than_a_block_is_read_ahead(small_blocks: None) -> None:
    alive: list[weakref.ref[Tensor]] = []
    most = [0]

    def batches() -> Iterator[Tensor]:
        for _ in range(60):
            batch = torch.randn(5, 5)
            alive.append(weakref.ref(batch))
            most[0] = max(most[0], sum(reference() is not None for reference in alive))
            yield batch
            del batch

    model = dubio.Bayes().convert(mlp(5, 8, 4))
    result = dubio.predict(model, batches(), 2, keep_samples=False)
    assert result.probs.shape == (300, 4)
    assert most[0] <= 6  # four are a block, one is being read and one waits for the next


def test_a_batch_is_read_once_and_all_its_draws_run_on_it(small_blocks: None) -> None:
    reads, calls = [0], [0]

    class Counting(Rows):
        def __getitem__(self, row: int) -> tuple[Tensor, int]:
            reads[0] += 1
            return super().__getitem__(row)

    model = dubio.Bayes().convert(mlp(5, 8, 4))
    model.register_forward_pre_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    dubio.predict(model, DataLoader(Counting(torch.randn(60, 5)), 10), 7, executor="loop")
    assert reads[0] == 60
    assert calls[0] == 3 * 7  # three blocks of twenty rows


@pytest.mark.parametrize("limit", [1, 19, 20, 45, 1000])
def test_blocks_have_all_rows_in_their_order(limit: int) -> None:
    inputs = torch.arange(20.0).reshape(10, 2)
    for data in (inputs.numpy(), list(inputs.split(3)), Examples(inputs, torch.zeros(10, dtype=torch.int64))):
        blocks = list(blocks_of(data, (), None, 8 * limit))
        assert torch.equal(torch.cat([block.args[0] for block in blocks]), inputs)
        assert [block.first_row for block in blocks] == [
            sum(b.num_rows for b in blocks[:i]) for i in range(len(blocks))
        ]
        largest = 3 if isinstance(data, list) else 1
        assert max(block.num_rows for block in blocks) <= max(limit, largest)
        assert len(blocks) == 1 or limit < 10


def test_tensors_in_memory_are_one_block_and_are_not_copied() -> None:
    inputs = torch.randn(50, 5)
    (block,) = blocks_of(inputs, (), torch.device("cpu"), 1)
    assert block.args[0].data_ptr() == inputs.data_ptr()
    assert block.num_rows == 50


def test_tensors_that_have_to_be_moved_are_moved_a_block_at_a_time() -> None:
    inputs, mask = torch.randn(50, 5), torch.randn(2, 2)
    blocks: list[RowBlock] = list(blocks_of((inputs, mask), (1,), torch.device("meta"), 20 * BYTES_OF_A_ROW))
    assert [(block.first_row, block.num_rows) for block in blocks] == [(0, 20), (20, 20), (40, 10)]
    assert all(block.args[0].device.type == "meta" and block.args[1].shape == (2, 2) for block in blocks)
    (fits,) = blocks_of((inputs, mask), (1,), torch.device("meta"), 50 * BYTES_OF_A_ROW)
    assert fits.num_rows == 50


def test_the_prediction_of_data_that_were_read_is_on_the_cpu() -> None:
    result = dubio.predict(dubio.Bayes().convert(mlp(5, 8, 4)), [torch.randn(6, 5)], 3)
    assert {result.probs.device.type, result.samples.device.type} == {"cpu"}


# Refusals


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], ValueError, "inputs must have at least one row, got none"),
        (np.zeros((0, 5)), ValueError, "inputs must have at least one row, got none"),
        (DataLoader(Rows(torch.zeros(4, 5)), shuffle=True), ValueError, "got a DataLoader that shuffles; make it with"),
        (
            Loader(Examples(torch.zeros(4, 5), torch.zeros(4, dtype=torch.int64))),
            ValueError,
            "inputs must come in their own order, since predictions do, got a Loader that shuffles",
        ),
        (
            [torch.zeros(9, 5), torch.tensor([[0.0] * 5, [float("nan")] * 5])],
            ValueError,
            r"inputs must not hold NaN, got NaN in input 0, rows \[10\]",
        ),
        ([[torch.zeros(9, 5)]], TypeError, "inputs must be a tensor, a tuple of .*, got list"),
        ([(torch.zeros(2, 5), torch.zeros(3, 5))], ValueError, r"same number of rows on axis 0, got \{0: 2, 1: 3\}"),
        ("inputs.npy", TypeError, "an array, dubio.data.Examples, .* or an iterable of batches, got str"),
        (7, TypeError, "an array, dubio.data.Examples, .* or an iterable of batches, got int"),
    ],
)
def test_data_that_cannot_be_predicted_are_refused(data: Any, error: type[Exception], message: str) -> None:
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(error, match=message):
            dubio.predict(dubio.Bayes().convert(mlp(5, 8, 4)), data, 2)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_rows_with_nan_are_counted_from_the_first_of_all(small_blocks: None) -> None:
    inputs = torch.zeros(ROWS, 5)
    inputs[61, 2] = torch.nan
    for data in (list(inputs.split(9)), inputs.numpy(), Rows(inputs)):
        with pytest.raises(ValueError, match=r"inputs must not hold NaN, got NaN in input 0, rows \[61\]"):
            dubio.predict(dubio.Bayes().convert(mlp(5, 8, 4)), data, 2)


def test_batches_of_a_dataset_that_are_none_are_refused() -> None:
    four = TensorDataset(*torch.zeros(4, 6, 5))
    with pytest.raises(TypeError, match=r"a batch must be \(inputs, targets\), .* or inputs alone .*, got list"):
        dubio.predict(dubio.Bayes().convert(mlp(5, 8, 4)), four, 2)


def test_outputs_of_several_shapes_are_refused() -> None:
    batches = [torch.randn(6, 3, 4), torch.randn(6, 2, 4)]
    message = r"outputs of one shape for all batches, .*, got \(3, 4\) and \(2, 4\) for one row; predict them apart"
    with pytest.raises(ValueError, match=message):
        dubio.predict(nn.Identity(), batches, 2)


def shuffling(data: Dataset[Any]) -> RandomSampler:
    return RandomSampler(data)  # type: ignore[arg-type]


class Own(Sampler[Any]):
    """A custom sampler: each iteration gives the next of some lists of rows."""

    def __init__(self, *orders: list[Any]) -> None:
        self.orders = itertools.cycle(orders)
        self.length = len(orders[0])

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return iter(next(self.orders))


DATA = Rows(torch.arange(40.0).reshape(8, 5))
IN_ORDER = {
    "a subset": DataLoader(DATA, 2, sampler=Own([0, 2, 3, 7])),
    "a subset in batches": DataLoader(DATA, batch_sampler=Own([[0, 2], [3], [7]])),
    "a subset in torch's batches": DataLoader(DATA, batch_sampler=BatchSampler(Own([0, 2, 3, 7]), 3, drop_last=False)),
}
IN_NO_ORDER = {
    "batches of a random sampler": DataLoader(DATA, batch_sampler=BatchSampler(shuffling(DATA), 3, drop_last=False)),
    "a distributed sampler": DataLoader(DATA, 2, sampler=DistributedSampler(DATA, 2, 0, shuffle=True)),
    "a distributed sampler in batches": DataLoader(
        DATA, batch_sampler=BatchSampler(DistributedSampler(DATA, 2, 0, shuffle=True), 3, drop_last=False)
    ),
    "rows backwards": DataLoader(DATA, 2, sampler=Own([3, 2, 1])),
    "rows twice": DataLoader(DATA, 2, sampler=Own([1, 1, 2])),
    "other rows each time": DataLoader(DATA, 2, sampler=Own([0, 1, 2], [0, 1, 3])),
    "fewer rows the second time": DataLoader(DATA, 2, sampler=Own([0, 1, 2], [0, 1])),
    "batches by length": DataLoader(DATA, batch_sampler=Own([[0, 5], [1, 4]])),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_loader_may_leave_rows_out(name: str) -> None:
    model = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 4))
    read = dubio.predict(model, IN_ORDER[name], 4, seed=3)
    whole = dubio.predict(model, DATA.inputs[[0, 2, 3, 7]], 4, seed=3)
    torch.testing.assert_close(read.samples, whole.samples, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", IN_NO_ORDER)
def test_loaders_in_another_order_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="inputs must come in their own order, since predictions do, got a DataLoader"):
        dubio.predict(nn.Identity(), IN_NO_ORDER[name], 2)


def test_a_batch_without_rows_is_reported_with_its_place() -> None:
    batches = [torch.zeros(3, 5), torch.zeros(4, 5), torch.zeros(0, 6)]
    with pytest.raises(ValueError, match="at least one row, got none in the batch that follows row 6"):
        dubio.predict(nn.Identity(), batches, 2)


@pytest.mark.parametrize("beside", [(), (torch.zeros(2, 5),)])
def test_packed_sequences_are_refused(beside: tuple[Tensor, ...]) -> None:
    packed = pack_sequence([torch.zeros(4, 5), torch.zeros(3, 5)])
    with pytest.raises(TypeError, match=rf"got a PackedSequence in input {len(beside)}, which has none; give padded"):
        dubio.predict(nn.Identity(), (*beside, packed), 2)


def test_infinities_in_the_inputs_are_no_nan() -> None:
    inputs = torch.tensor([[float("inf"), 1.0], [1.0, float("-inf")]])
    result = dubio.predict(nn.Hardtanh(), inputs, 2)
    assert result.probs.isfinite().all()
