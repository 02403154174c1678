"""Recurrent layers under a map over draws: folded where weights are shared, looped where they are drawn."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dubio
from dubio.nn.vmappable import MAPPABLE

ROWS, STEPS = 3, 4  # unlike each other and unlike the number of draws: a wrong axis shows
DRAWS = 5
LAYERS = {
    "lstm": lambda: nn.LSTM(6, 2),
    "lstm, rows first": lambda: nn.LSTM(6, 2, batch_first=True),
    "lstm, two layers, both ways": lambda: nn.LSTM(6, 2, num_layers=2, bidirectional=True),
    "lstm, projected": lambda: nn.LSTM(6, 4, proj_size=2, batch_first=True),
    "gru": lambda: nn.GRU(6, 2),
    "gru, rows first, no bias": lambda: nn.GRU(6, 2, batch_first=True, bias=False),
    "gru, both ways": lambda: nn.GRU(6, 2, bidirectional=True, batch_first=True),
    "rnn": lambda: nn.RNN(6, 2, num_layers=2),
    "rnn, rows first, relu": lambda: nn.RNN(6, 2, nonlinearity="relu", batch_first=True),
}
CELLS = {
    "lstm": lambda: nn.LSTMCell(6, 2),
    "gru": lambda: nn.GRUCell(6, 2),
    "rnn": lambda: nn.RNNCell(6, 2, bias=False),
}
WHERE = {"behind noise": "embed", "random": "memory", "both": None}
every_layer = pytest.mark.parametrize("layer", LAYERS)
everywhere = pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)


class Memory(nn.Module):
    """Noise, then a recurrent layer that begins from nothing, from given states, or from noisy ones."""

    def __init__(self, memory: nn.Module) -> None:
        super().__init__()
        self.embed, self.memory = nn.Linear(5, 6), memory

    def forward(self, x: Tensor, states: Any = None, noisy: bool = False) -> Any:
        h = self.embed(x)
        return self.memory(h, pytree.tree_map(lambda state: state + h.mean(), states) if noisy else states)


class Stepping(nn.Module):
    """A cell, stepped by hand over the first axis."""

    def __init__(self, memory: nn.Module) -> None:
        super().__init__()
        self.embed, self.memory = nn.Linear(5, 6), memory

    def forward(self, x: Tensor) -> Any:
        state = None
        for step in self.embed(x):
            state = self.memory(step, state)
        return state


def inputs_for(layer: nn.Module) -> Tensor:
    rows_first = getattr(layer, "batch_first", False)
    return torch.randn(*((ROWS, STEPS) if rows_first else (STEPS, ROWS)), 5).double()


def states_for(layer: nn.RNNBase) -> Any:
    count = layer.num_layers * (1 + layer.bidirectional)
    states = torch.randn(count, ROWS, layer.proj_size or layer.hidden_size).double()
    return (states, torch.randn(count, ROWS, layer.hidden_size).double()) if isinstance(layer, nn.LSTM) else states


def outputs_and_gradients(model: nn.Module, inputs: Any, executor: str) -> tuple[list[Tensor], list[Tensor]]:
    model.zero_grad()
    outputs = pytree.tree_leaves(dubio.sample(model, inputs, DRAWS, seed=3, executor=executor))
    sum(output.square().sum() for output in outputs).backward()
    return outputs, [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def assert_mapped_equals_looped(model: nn.Module, inputs: Any) -> None:
    mapped, looped = (outputs_and_gradients(model, inputs, executor) for executor in ("vmap", "loop"))
    torch.testing.assert_close(mapped, looped, rtol=1e-9, atol=1e-11)
    for output in mapped[0]:
        assert (output[0] - output[1]).abs().max() > 1e-3
    assert all(gradient.abs().max() > 0 for gradient in mapped[1])


@every_layer
@everywhere
@pytest.mark.parametrize("states", ["none", "given", "noisy"])
def test_mapped_draws_equal_looped_ones_with_their_gradients(layer: str, where: Any, states: str) -> None:
    net = Memory(LAYERS[layer]()).double()
    model = dubio.Bayes(where=where, init_std=0.3).convert(net)
    first = None if states == "none" else states_for(net.memory)
    assert_mapped_equals_looped(model, (inputs_for(net.memory), first, states == "noisy"))


@pytest.mark.parametrize("cell", CELLS)
@everywhere
def test_mapped_cells_equal_looped_ones_with_their_gradients(cell: str, where: Any) -> None:
    net = Stepping(CELLS[cell]()).double()
    assert_mapped_equals_looped(dubio.Bayes(where=where, init_std=0.3).convert(net), inputs_for(net.memory))


@everywhere
def test_a_single_sequence_without_rows_is_mapped(where: Any) -> None:
    model = dubio.Bayes(where=where, init_std=0.3).convert(Memory(nn.LSTM(6, 2)).double())
    assert_mapped_equals_looped(model, torch.randn(STEPS, 5).double())


class Packed(nn.Module):
    """Sequences of three lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.memory = nn.Linear(5, 6), nn.GRU(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.tensor([4, 2, 1])
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(x), lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.memory(packed)[0], batch_first=True)[0]


@everywhere
def test_packed_sequences_are_mapped(where: Any) -> None:
    model = dubio.Bayes(where=where, init_std=0.3).convert(Packed().double())
    assert_mapped_equals_looped(model, torch.randn(ROWS, STEPS, 5).double())


@pytest.mark.parametrize(("where", "calls"), [("embed", 1), ("memory", DRAWS)], ids=["folded", "looped"])
def test_shared_weights_need_one_run_and_drawn_ones_a_run_each(
    where: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = dubio.Bayes(where=where).convert(Memory(nn.LSTM(6, 2, batch_first=True)))
    lstm, rows = torch._VF.lstm, []

    def counted(input: Tensor, *rest: Any) -> Any:
        rows.append(input.shape[0])
        return lstm(input, *rest)

    monkeypatch.setattr(torch._VF, "lstm", counted, raising=False)
    dubio.sample(model, torch.randn(ROWS, STEPS, 5), DRAWS, executor="vmap")
    assert len(rows) == calls
    assert sum(rows) == DRAWS * ROWS


@every_layer
@everywhere
def test_with_noise_off_a_layer_is_the_plain_one_bit_by_bit_also_after_draws(layer: str, where: Any) -> None:
    net = Memory(LAYERS[layer]()).double()
    model = dubio.Bayes(where=where, init_std=0.3).convert(net)
    inputs = inputs_for(net.memory)
    assert isinstance(model.memory, MAPPABLE[type(net.memory)])
    for executor in ("loop", "vmap"):
        dubio.sample(model, inputs, 2, executor=executor)
        with dubio.noise_off():
            torch.testing.assert_close(model(inputs), net(inputs), rtol=0.0, atol=0.0)


@everywhere
def test_a_layer_follows_its_parameters(where: Any) -> None:
    """Plain recurrent layers keep a list of their weights beside the weights; drawn ones must not fall behind."""
    net = Memory(nn.LSTM(6, 2))
    model = dubio.Bayes(where=where).convert(net)
    inputs = inputs_for(net.memory)
    for change in (lambda m: m.double(), lambda m: m.load_state_dict(other_state(m))):
        change(model)
        plain = dubio.to_mean(model)
        with dubio.noise_off():
            torch.testing.assert_close(model(inputs), plain(inputs), rtol=0.0, atol=0.0)
        fresh = Memory(nn.LSTM(6, 2)).double()
        fresh.load_state_dict(plain.state_dict())
        torch.testing.assert_close(plain(inputs), fresh(inputs), rtol=0.0, atol=0.0)


def other_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.randn_like(value) for name, value in model.state_dict().items()}


def test_dropout_between_layers_differs_from_draw_to_draw() -> None:
    net = Memory(nn.LSTM(6, 2, num_layers=2, dropout=0.5)).double()
    with torch.no_grad():
        net.embed.weight.zero_()
    for where in ("embed", "memory"):
        model = dubio.Bayes(where=where, init_std=1e-9).convert(net).train()
        outputs, _ = dubio.sample(model, inputs_for(net.memory), DRAWS, executor="vmap")
        assert (outputs[0] - outputs[1]).abs().max() > 1e-3  # hardly any noise but that
        assert not torch.equal(*dubio.sample(model.eval(), inputs_for(net.memory), 2, executor="vmap")[0])
