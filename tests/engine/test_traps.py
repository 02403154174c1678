"""Traps of torch that the engine avoids, each with a test that shows it.

The numbers are those of the facts measured before the engine was written.
"""

import copy
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import dubio
from dubio._engine.settings import STATE
from networks import Attention, Branching, Flattening, Interacting, Recurrent, Residual, Tied, mlp

INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))


def small(estimator: str = "weight") -> nn.Module:
    return dubio.Bayes(estimator=estimator, init_std=0.2).convert(mlp(5, 7, 4))


@pytest.mark.slow
@pytest.mark.feature("Compiled networks obey settings opened after they were compiled")
@pytest.mark.usefixtures("compiler")
def test_fact_3_settings_opened_after_compilation_are_obeyed() -> None:
    model = small()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert not torch.equal(compiled(INPUTS), compiled(INPUTS))
    with dubio.noise_off():
        torch.testing.assert_close(compiled(INPUTS), model(INPUTS))
    with dubio.frozen(seed=4):
        torch.testing.assert_close(compiled(INPUTS), model(INPUTS))
        torch.testing.assert_close(compiled(INPUTS), compiled(INPUTS), rtol=0, atol=0)
    assert not torch.equal(compiled(INPUTS), compiled(INPUTS))


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_fact_6_many_numbers_of_samples_and_seeds_need_few_graphs() -> None:
    model = small()
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter)
    def draw(inputs: Tensor, num_samples: int) -> Tensor:
        return dubio.sample(model, inputs, num_samples)

    for num_samples in range(2, 14):
        assert draw(INPUTS, num_samples).shape == (num_samples, 6, 4)
    assert counter.frame_count <= 2
    for seed in range(12):
        with dubio.frozen(seed=seed):
            torch.testing.assert_close(draw(INPUTS, 3), dubio.sample(model, INPUTS, 3, executor="vmap"))
    assert counter.frame_count <= 4


@pytest.mark.usefixtures("compiler")
def test_fact_7_a_compiled_network_draws_anew_while_ties_hold() -> None:
    model = dubio.Bayes(estimator="weight", init_std=0.3).convert(Tied())
    eye = torch.eye(5)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    squares = [compiled(eye) for _ in range(3)]
    assert counter.frame_count == 1
    assert not torch.equal(squares[0], squares[1])
    with dubio.frozen(seed=1):
        weight = model.encode.weight_posterior
        with dubio._engine.joined_pass():
            drawn = weight.draw()
        torch.testing.assert_close(model(eye), (drawn @ drawn).T)  # both layers saw this draw


class TiedNumbers(nn.Module):
    """One number, multiplied twice by two layers: its draws are squares."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        self.second.weight = self.first.weight
        nn.init.zeros_(self.first.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class OwnNumber(nn.Module):
    """The same with a parameter of the network itself, without a layer before it."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.number * self.number


TAKEN_AWAY = {
    "compiled": lambda model, x: torch.compile(model, fullgraph=True, backend="aot_eager"),
    "called in a compiled function": lambda model, x: torch.compile(
        lambda inputs: model(inputs), fullgraph=True, backend="aot_eager"
    ),
    "exported": lambda model, x: torch.export.export(model, (x,)).module(),
    "exported by dubio": lambda model, x: dubio.export(model, x, noise="fresh").module(),
}


@pytest.mark.feature("Tied weights are one draw also in compiled and exported networks")
@pytest.mark.parametrize("make", [TiedNumbers, OwnNumber])
@pytest.mark.parametrize("take_away", TAKEN_AWAY.values(), ids=TAKEN_AWAY)
@pytest.mark.usefixtures("compiler")
def test_fact_7_a_weight_used_twice_is_one_draw_wherever_the_network_runs(make: object, take_away: object) -> None:
    model = dubio.Bayes(estimator="weight", init_std=1.0).convert(make()).eval()
    inputs = torch.ones(2, 1)
    elsewhere = take_away(model, inputs)
    squares = torch.stack([elsewhere(inputs)[0, 0] for _ in range(40)])
    assert (squares > 0).all()  # two draws would differ in sign every second time
    assert squares.unique().numel() == 40


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
@pytest.mark.usefixtures("compiler")
def test_fact_10_an_exported_network_keeps_a_dynamic_batch(estimator: str) -> None:
    class Several(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return dubio.sample(self.model, x, 4)

    model = dubio.Bayes(estimator=estimator).convert(Residual()).eval()
    inputs = torch.randn(6, 3, 8, 8)
    for module, shape in ((model, ()), (Several(model), (4,))):
        exported = torch.export.export(module, (inputs,), dynamic_shapes={"x": {0: torch.export.Dim("rows", min=2)}})
        for rows in (6, 3):
            outputs = exported.module()(inputs[:rows])
            assert outputs.shape == (*shape, rows, 4)
            assert not torch.equal(outputs, exported.module()(inputs[:rows]))


def test_fact_18_torch_itself_maps_no_recurrent_layer() -> None:
    with pytest.raises(RuntimeError, match=r"Batching rule not implemented for aten::lstm"):
        torch.func.vmap(nn.LSTM(5, 4, batch_first=True))(torch.randn(4, 3, 7, 5))


@pytest.mark.feature("Recurrent layers are mapped over draws, behind noise and with random weights of their own")
@pytest.mark.parametrize("where", ["embed", "memory", None], ids=["behind noise", "random", "both"])
def test_fact_18_a_recurrent_layer_is_mapped(where: str | None) -> None:
    model = dubio.Bayes(where=where, init_std=0.3).convert(Recurrent())
    inputs = torch.randn(3, 7, 5)
    draws = dubio.sample(model, inputs, 4, seed=1)  # no warning: warnings are errors here
    (plan,) = dubio._engine.plans(model).values()
    assert plan.executor == "vmap"
    torch.testing.assert_close(draws, dubio.sample(model, inputs, 4, seed=1, executor="loop"))
    torch.testing.assert_close(draws, dubio.sample(model, inputs, 4, seed=1, executor="vmap"))
    assert (draws[0] - draws[1]).abs().max() > 0.01


def test_fact_18_a_recurrent_layer_before_noise_runs_once() -> None:
    model = dubio.Bayes(where="head").convert(Recurrent())
    calls = []
    model.memory.register_forward_hook(lambda module, args, output: calls.append(args[0].shape))
    inputs = torch.randn(3, 7, 5)
    mapped = dubio.sample(model, inputs, 4, seed=1, executor="vmap")
    assert calls == [(3, 7, 6)]
    torch.testing.assert_close(mapped, dubio.sample(model, inputs, 4, seed=1, executor="loop"))


def test_a_network_that_no_map_can_run_is_looped_and_says_so() -> None:
    model = dubio.Bayes(where="embed", init_std=0.3).convert(Branching())
    inputs = torch.randn(3, 5)
    with pytest.raises(RuntimeError, match="vmap"):
        dubio.sample(model, inputs, 4, seed=1, executor="vmap")
    with pytest.warns(dubio.ExecutorWarning, match=r"gate \(Gate\) cannot be mapped"):
        draws = dubio.sample(model, inputs, 4, seed=1)
    torch.testing.assert_close(draws, dubio.sample(model, inputs, 4, seed=1, executor="loop"))
    dubio.sample(model, inputs, 4)  # no second warning: warnings are errors here
    assert "loop; gate (Gate) cannot be mapped" in str(dubio.describe(model))


@pytest.mark.feature("One network can be used from several threads, each with its own settings")
def test_fact_19_one_network_in_several_threads() -> None:
    model = dubio.Bayes(init_std=0.2).convert(Residual()).eval()
    inputs = torch.randn(4, 3, 8, 8)
    expected = {seed: dubio.sample(model, inputs, 3, seed=seed) for seed in range(3)}
    failures: list[object] = []

    def work(seed: int) -> None:
        try:
            for _ in range(10):
                with dubio.frozen(seed=seed):
                    torch.testing.assert_close(dubio.sample(model, inputs, 3), expected[seed])
                    torch.testing.assert_close(model(inputs), expected[seed][0])
                if STATE.own.settings.mode != "fresh" or torch.equal(model(inputs), model(inputs)):
                    failures.append("settings leaked")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_fact_23_batch_statistics_in_training_are_those_of_all_draws_together() -> None:
    model = dubio.Bayes(estimator="weight", init_std=0.3).convert(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)))
    with dubio.frozen(seed=1):
        pooled = dubio.sample(model.train(), INPUTS, 4, executor="vmap")
        hidden = dubio.sample(model[0], INPUTS, 4)
    expected = F.batch_norm(hidden.flatten(0, 1), None, None, training=True).unflatten(0, (4, 6))
    torch.testing.assert_close(pooled, expected)
    apart = torch.stack([F.batch_norm(draw, None, None, training=True) for draw in hidden])
    assert (pooled - apart).abs().max() > 0.1


def test_fact_25_frozen_rows_do_not_depend_on_how_many_rows_there_are() -> None:
    model = small("local")
    with dubio.frozen(seed=1):
        whole = model(INPUTS)
        for rows in (1, 5):
            torch.testing.assert_close(model(INPUTS[:rows]), whole[:rows], rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [3, 5])
def test_a_mask_as_wide_as_the_batch_is_not_taken_for_rows(rows: int) -> None:
    model = dubio.Bayes(estimator="weight", init_std=0.3).convert(Attention())
    inputs = (torch.randn(rows, 5, 6), torch.randn(5, 5))
    mapped = dubio.sample(model, inputs, 4, seed=1, executor="vmap")
    torch.testing.assert_close(mapped, dubio.sample(model, inputs, 4, seed=1, executor="loop"))


def test_rows_of_one_draw_never_meet_rows_of_another() -> None:
    """Folding draws into the batch would let `h @ h.T` mix them."""
    model = dubio.Bayes(estimator="weight", init_std=0.5).convert(Interacting())
    together = dubio.sample(model, INPUTS, 5, seed=1, executor="vmap")
    torch.testing.assert_close(together[:1], dubio.sample(model, INPUTS, 1, seed=1))


def test_a_batch_size_read_as_a_number_is_that_of_one_draw() -> None:
    model = dubio.Bayes(init_std=0.3).convert(Flattening())
    inputs = torch.randn(6, 2, 8)
    mapped = dubio.sample(model, inputs, 4, seed=1, executor="vmap")
    torch.testing.assert_close(mapped, dubio.sample(model, inputs, 4, seed=1, executor="loop"))


class Lookup(nn.Module):
    """Indices that depend on the noise, into an embedding with a padding row."""

    def __init__(self) -> None:
        super().__init__()
        self.choose = nn.Linear(5, 6)
        self.table = nn.Embedding(6, 3, padding_idx=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(self.choose(x).argmax(dim=-1))


def test_the_padding_row_of_an_embedding_gets_no_gradient_from_any_draw() -> None:
    gradients = {}
    for executor in ("vmap", "loop"):
        torch.manual_seed(0)
        model = dubio.Bayes(where="choose", estimator="weight", init_std=2.0).convert(Lookup())
        draws = dubio.sample(model, INPUTS, 8, seed=1, executor=executor)
        assert (draws == 0).all(dim=-1).any()  # the padding row was looked up
        draws.sum().backward()
        gradients[executor] = model.table.weight.grad
    assert torch.equal(gradients["vmap"][2], torch.zeros(3))
    torch.testing.assert_close(gradients["vmap"], gradients["loop"])


class Checkpointed(nn.Module):
    """A block recomputed in the backward pass, with a weight that is also used before it."""

    def __init__(self, checkpoint: object) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.third = nn.Linear(5, 4)
        self.checkpoint = checkpoint

    def block(self, h: Tensor) -> Tensor:
        return self.third(self.second(h).tanh())

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.block(h) if self.checkpoint is None else self.checkpoint(self.block, h)


def torch_checkpoint(function: object, *args: object) -> object:
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)


def checkpointed_gradients(estimator: str, checkpoint: object, run: object) -> list[Tensor]:
    torch.manual_seed(0)
    model = dubio.Bayes(estimator=estimator, init_std=0.3).convert(Checkpointed(None))
    model.checkpoint = checkpoint
    torch.manual_seed(1)
    run(model).square().sum().backward()  # after every context has been left
    return [parameter.grad for parameter in model.parameters()]


def frozen_call(model: nn.Module) -> Tensor:
    with dubio.frozen(seed=2):
        return model(INPUTS)


RUNS = {
    "fresh": lambda model: model(INPUTS),
    "frozen": frozen_call,
    "many": lambda model: dubio.sample(model, INPUTS, 3, seed=2, executor="loop"),
    "whole network": lambda model: dubio.checkpoint(model, INPUTS),
}


@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_checkpointing_recomputes_with_the_same_draws(estimator: str, run: object) -> None:
    plain = checkpointed_gradients(estimator, None, run)
    replayed = checkpointed_gradients(estimator, dubio.checkpoint, run)
    torch.testing.assert_close(replayed, plain)


def test_torchs_own_checkpointing_is_refused_where_its_draws_would_be_others() -> None:
    with pytest.raises(RuntimeError, match=r"called during the backward pass.*use dubio\.checkpoint"):
        checkpointed_gradients("weight", torch_checkpoint, RUNS["fresh"])
    model = small()
    with pytest.raises(RuntimeError, match=r"use dubio\.checkpoint"):
        torch_checkpoint(model, INPUTS).sum().backward()


def test_a_checkpointed_network_runs_looped() -> None:
    model = dubio.Bayes(estimator="weight").convert(Checkpointed(dubio.checkpoint))
    with pytest.warns(dubio.ExecutorWarning, match="activation checkpointing cannot run under vmap"):
        draws = dubio.sample(model, INPUTS, 3, seed=1)
    torch.testing.assert_close(draws, dubio.sample(model, INPUTS, 3, seed=1, executor="loop"))


def test_a_pass_does_not_outlive_a_forward_that_raises() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 5)
            self.error: type[BaseException] | None = None

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            if self.error is not None:
                raise self.error
            return h

    model = dubio.Bayes(estimator="weight").convert(Fails())
    for error in (ZeroDivisionError, KeyboardInterrupt):
        model.error = error
        for run in (lambda: model(INPUTS), lambda: dubio.sample(model, INPUTS, 2, executor="vmap")):
            with pytest.raises(error):
                run()
        model.error = None
        assert not torch.equal(model(INPUTS), model(INPUTS))
        other = small()
        model.error = error
        with pytest.raises(error):
            model(INPUTS)
        model.error = None
        assert not torch.equal(other(INPUTS), other(INPUTS))
        assert STATE.own.current is None


def test_wrong_inputs_raise_their_own_error_and_leave_no_plan() -> None:
    model = small()
    with pytest.raises(ValueError, match=r"5 features on its last axis, got shape \(6, 3\)"):
        dubio.sample(model, torch.randn(6, 3), 4)
    assert dubio._engine.plans(model) == {}


def test_copies_carry_neither_passes_nor_shared_state() -> None:
    model = small()
    model(INPUTS).sum().backward()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with dubio.frozen(seed=1):
            assert torch.equal(twin(INPUTS), model(INPUTS))
        assert not torch.equal(twin(INPUTS), twin(INPUTS))
