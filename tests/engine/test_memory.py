"""Memory: runs stay inside a limit, grow no faster than the draws, and go on when memory runs out."""

import re
from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine.memory import Footprint, memory_in_words, parse_memory
from dubio._engine.planner import CPU_BUDGET, memory_budget, plans
from dubio._engine.probe import _lines
from dubio._engine.settings import STATE
from networks import mlp

KIB, MIB = 2**10, 2**20
SLACK = 64 * KIB
"""What comes on top of a limit, however many draws there are: losses, statistics and generators."""
INPUTS = torch.randn(64, 20, generator=torch.Generator().manual_seed(1))


def network(estimator: str = "local", width: int = 100) -> nn.Module:
    return dubio.Bayes(estimator=estimator, init_std=0.1).convert(mlp(20, width, width, 5))


def train(model: nn.Module, num_samples: int) -> None:
    model.zero_grad()
    targets = torch.arange(len(INPUTS)) % 5
    dubio.ELBO(num_data=1000)(model, INPUTS, targets, num_samples=num_samples).total.backward()


def draw(model: nn.Module, num_samples: int) -> None:
    with torch.no_grad():
        dubio.sample(model, INPUTS, num_samples)


def predict(model: nn.Module, num_samples: int) -> None:
    dubio.predict(model, INPUTS, num_samples, keep_samples=False)


USES: dict[str, Callable[[nn.Module, int], None]] = {"sample": draw, "predict": predict, "training": train}


# ------------------------------------------------------------------------------------------- amounts


@pytest.mark.parametrize(
    ("text", "amount"),
    [("512 MiB", 512 * MIB), ("2GiB", 2**31), ("1.5 GB", 1_500_000_000), (" 10 kb ", 10_000), ("7 B", 7)],
)
def test_amounts_of_memory_are_read(text: str, amount: int) -> None:
    assert parse_memory(text) == amount


@pytest.mark.parametrize("text", ["512", "MiB", "2 apples", "-1 GB", "1e3 MB", ""])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"a number with one of B, kB, .*such as '512 MiB', got "):
        parse_memory(text)
    with pytest.raises(ValueError, match=r"at least 1 byte, got '0\.4 B'"):
        parse_memory("0.4 B")


def test_amounts_are_said_as_one_would() -> None:
    said = [memory_in_words(amount) for amount in (12, 2048, int(12.5 * MIB), 3 * 2**30)]
    assert said == ["12 B", "2.0 KiB", "12.5 MiB", "3.0 GiB"]


@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [
        (0, ValueError, "limit must be at least 1 byte, got 0"),
        (True, TypeError, "limit must be a number of bytes or a text such as '512 MiB', got True"),
        (1.5, TypeError, r"limit must be a number of bytes or a text such as '512 MiB', got 1\.5"),
    ],
)
def test_bad_limits_are_refused(
    limit: Any, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(error, match=message):
        dubio.memory_limit(limit)


def test_limits_nest() -> None:
    with dubio.memory_limit("1 MiB"):
        with dubio.memory_limit(5), dubio.frozen(seed=1):
            assert STATE.own.settings.memory == 5
        assert STATE.own.settings.memory == MIB
    assert STATE.own.settings.memory is None


def test_the_footprint_counts_what_a_graph_keeps_and_nothing_that_was_there() -> None:
    weights = torch.randn(1000, requires_grad=True)
    with Footprint() as footprint:
        kept = weights.view(10, 100).exp()  # keeps its result, although no other object does
        total = kept.sum()
        del kept
        assert footprint._alive == 4000 + 4
        view = (weights.detach() * 2)[:10]  # a view keeps all of it
        assert footprint._alive == 8000 + 4
        del total, view
    assert footprint._alive == 0
    assert footprint.peak == 8000 + 4


# ------------------------------------------------------------------------------------------- limits


@pytest.mark.feature("A memory limit holds for sampling, predicting and training, and changes no draw")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("estimator", ["weight", "local"])
def test_a_run_stays_inside_its_limit(estimator: str, use: str) -> None:
    run = USES[use]
    with Footprint() as free:
        run(network(estimator), 60)
    # In training, the divergence of the weights from the prior and its graph come on top.
    on_top = SLACK + (3 * sum(parameter.nbytes for parameter in network().parameters()) if use == "training" else 0)
    for limit in (free.peak // 2, free.peak // 4):
        model = network(estimator)
        for _ in range(2):  # trying the network, and knowing it
            with Footprint() as footprint, dubio.memory_limit(limit):
                run(model, 60)
            assert footprint.peak <= limit + on_top
        (plan,) = plans(model).values()
        assert 1 <= plan.chunk < 60
        assert plan.recompute == (use == "training")
        assert footprint.peak > limit / 4 or plan.executor == "loop"  # and makes use of it


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("estimator", ["weight", "local"])
def test_memory_grows_at_most_linearly_with_the_draws(estimator: str, use: str) -> None:
    model = network(estimator)
    USES[use](model, 2)  # plans
    peaks = []
    for num_samples in (10, 20, 40):
        with Footprint() as footprint:
            USES[use](model, num_samples)
        peaks.append(footprint.peak)
    assert peaks[1] <= 2 * peaks[0] + SLACK
    assert peaks[2] - peaks[1] <= 2 * (peaks[1] - peaks[0]) + SLACK
    assert peaks[2] > peaks[0]


@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
def test_a_limit_changes_no_draw(estimator: str) -> None:
    model = network(estimator)
    with torch.no_grad():
        free = dubio.sample(model, INPUTS, 30, seed=1)
        chunks = set()
        for limit in ("900 KiB", "2 MiB", "50 MiB"):
            with dubio.memory_limit(limit):
                torch.testing.assert_close(dubio.sample(model, INPUTS, 30, seed=1), free, rtol=0, atol=1e-6)
            (plan,) = plans(model).values()
            chunks.add(plan.chunk)
    assert len(chunks) == 3


def test_training_under_a_limit_is_training() -> None:
    """The same losses from the same draws: those of weights do not depend on the chunk once they have a seed."""
    inputs, targets = INPUTS, torch.arange(len(INPUTS)) % 5
    results = []
    for limit in ("1 GiB", "1 MiB"):
        torch.manual_seed(0)
        model = network("weight").double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        with dubio.memory_limit(limit):
            for seed in range(5):
                optimizer.zero_grad()
                loss = dubio.ELBO(num_data=64)(model, inputs.double(), targets, num_samples=8, seed=seed).total
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        (plan,) = plans(model).values()
        results.append(losses)
        assert plan.recompute == (limit == "1 MiB")
    assert results[0] == pytest.approx(results[1], rel=1e-9)
    assert results[0][-1] < results[0][0]


def test_fit_keeps_to_a_limit() -> None:
    model = network()
    with dubio.memory_limit("1 MiB"):
        dubio.fit(model, (INPUTS, torch.arange(64) % 5), epochs=1, batch_size=32, num_samples=20, progress=False)
    plan = next(plan for situation, plan in plans(model).items() if "with gradients" in situation)
    assert plan.recompute
    assert 1 < plan.chunk < 20


def test_the_budget_is_the_limit_in_force() -> None:
    device = torch.device("cpu")
    assert memory_budget(device) == CPU_BUDGET
    with dubio.memory_limit("1 MiB"):
        assert memory_budget(device) == MIB


def test_attacks_keep_to_a_limit() -> None:
    model, labels = network(), torch.arange(64) % 5
    peaks = {}
    for limit in ("100 MiB", "2 MiB"):
        with Footprint() as footprint, dubio.memory_limit(limit):
            dubio.attacks.pgd(model, INPUTS.sigmoid(), labels, epsilon=0.1, steps=1, num_samples=20)
        peaks[limit] = footprint.peak
    assert peaks["2 MiB"] <= 2 * MIB + SLACK < peaks["100 MiB"]


def test_a_limit_for_less_than_one_draw_is_refused() -> None:
    model = network()
    wording = (
        r"memory_limit must leave room for one draw, [0-9.]+ KiB at 64 rows and 25\.0 KiB for what all draws leave, "
        r"got 100\.0 KiB; give fewer rows at a time \(batch_size\), or allow more"
    )
    with torch.no_grad(), dubio.memory_limit("100 KiB"):
        with pytest.raises(ValueError, match=wording):
            dubio.sample(model, INPUTS, 10)
        assert dubio.sample(model, INPUTS[:4], 10).shape == (10, 4, 5)  # as advised
        with pytest.raises(ValueError, match=wording):
            dubio.sample(model, INPUTS, 10)


def test_outputs_that_do_not_fit_are_refused_but_can_be_given_away_chunk_by_chunk() -> None:
    model = dubio.Bayes(estimator="local").convert(mlp(20, 10, 100)).eval()
    with dubio.memory_limit("1 MiB"), torch.no_grad():
        with pytest.raises(ValueError, match=r"and 48\.8 MiB for what all draws leave, got 1\.0 MiB"):
            dubio.sample(model, INPUTS, 1000)
        assert dubio.predict(model, INPUTS, 1000, keep_samples=False).probs.shape == (64, 100)


def test_a_guess_from_few_rows_does_not_decide_for_many() -> None:
    model = network("weight", width=300)  # weights take far more than activations
    with torch.no_grad(), dubio.memory_limit("4 MiB"):
        dubio.sample(model, INPUTS[:1], 4)
        dubio.sample(model, INPUTS, 4)
    again = network("weight", width=300)
    with torch.no_grad(), dubio.memory_limit("4 MiB"):
        dubio.sample(again, INPUTS, 4)
    (plan,), (expected,) = plans(model).values(), plans(again).values()
    assert plan == expected


def test_a_tight_limit_is_forgotten_with_what_was_not_tried_for_it() -> None:
    model = dubio.Bayes(estimator="weight", where="4").convert(mlp(20, 300, 300, 5)).eval()
    narrow = dubio.plan(model, INPUTS, 10, memory="200 KiB")
    assert "a draw takes 150.0 KiB at 64 rows, too much to try two at once" in narrow.reason
    assert narrow.chunk == 1
    wide = dubio.plan(model, INPUTS, 10, memory="320 KiB")
    assert "a further draw repeats" in wide.reason
    assert wide.chunk == 10


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "and back"])
@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
def test_the_peak_of_many_draws_follows_from_two(estimator: str, gradients: bool) -> None:
    model = network(estimator)
    plan = dubio.plan(model, INPUTS, 50, memory="1 GiB", gradients=gradients)
    with torch.set_grad_enabled(gradients), Footprint() as footprint:
        draws = dubio.sample(model, INPUTS, 50)
        if gradients:
            draws.sum().backward()
    assert plan.bytes_in_all == pytest.approx(footprint.peak, rel=0.02)


def test_of_lines_those_that_are_the_largest_somewhere_are_kept() -> None:
    one, two = Footprint(), Footprint()
    #             5n  10+n  8+2n  3+4n  9+n  0  5+3n
    one.course = [5, 11, 10, 7, 10, 0, 8]
    two.course = [10, 12, 12, 11, 11, 0, 11]
    assert _lines(one, two) == ((10, 1), (8, 2), (3, 4), (0, 5))
    two.operators = ["another"]
    two.peak, one.peak = 12, 11
    assert _lines(one, two) == ((10, 1), (0, 6))


def test_draws_that_cannot_be_computed_anew_are_refused_where_their_graph_does_not_fit() -> None:
    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 300)
            self.prompt = [torch.zeros(20, requires_grad=True)]  # hidden from parameters()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x + self.prompt[0])

    model = dubio.Bayes(init_std=0.1).convert(Prompted())
    wording = (
        r"room for the graph of 40 draws, .* at 64 rows, since they cannot be recomputed: it uses a tensor with a "
        r"gradient that is neither a parameter nor an input; got 2\.0 MiB; give fewer rows or draws at a time"
    )
    with dubio.memory_limit("2 MiB"), pytest.raises(ValueError, match=wording):
        dubio.sample(model, INPUTS, 40)
    embedding = dubio.Bayes(where="1").convert(nn.Sequential(nn.Embedding(9, 20, max_norm=1.0), nn.Linear(20, 300)))
    with dubio.memory_limit("2 MiB"), pytest.raises(ValueError, match="with max_norm rescales its rows in every"):
        dubio.sample(embedding, torch.arange(64) % 9, 40)


# ------------------------------------------------------------------------------------------- plans


def test_a_plan_tells_what_sample_does() -> None:
    model = network()
    plan = dubio.plan(model, INPUTS, 50, memory="2 MiB")
    seen = []
    model[2].register_forward_hook(lambda module, args, output: seen.append(1))
    with torch.no_grad(), dubio.memory_limit("2 MiB"), Footprint() as footprint:
        dubio.sample(model, INPUTS, 50)
    assert len(seen) == -(-50 // plan.chunk) > 1
    assert plans(model) == {"training mode, without gradients": plan}
    assert footprint.peak <= plan.bytes_in_all <= plan.limit == 2 * MIB
    lines = str(plan).splitlines()
    assert lines[0] == "executor  vmap"
    assert lines[1] == f"draws     50, {plan.chunk} at a time"
    assert lines[2].startswith(f"memory    {memory_in_words(plan.bytes_per_draw)} a draw, ")
    assert lines[2].endswith(" in all, limit 2.0 MiB")
    assert lines[3].startswith("why       a further draw repeats")


def test_a_plan_with_gradients_computes_anew_where_the_graph_does_not_fit() -> None:
    model = network()
    free = dubio.plan(model, INPUTS, 50, gradients=True)
    assert (free.chunk, free.recompute, free.limit) == (50, False, None)
    assert str(free).splitlines()[1] == "draws     50, all at once"
    plan = dubio.plan(model, INPUTS, 50, memory="2 MiB", gradients=True)
    assert plan.recompute
    assert plan.chunk < 50
    assert str(plan).splitlines()[1] == f"draws     50, {plan.chunk} at a time, recomputed in the backward pass"
    assert plan.bytes_per_draw > dubio.plan(model, INPUTS, 50, memory="2 MiB").bytes_per_draw
    assert plan == dubio.plan(network(), INPUTS, 50, memory="2 MiB", gradients=True)  # earlier probes do not matter


def test_a_plan_of_one_draw_or_without_noise_measures_nothing() -> None:
    model = network()
    assert str(dubio.plan(model, INPUTS, 1)).splitlines()[2] == "memory    not measured"
    with dubio.noise_off():
        assert dubio.plan(model, INPUTS, 9).reason == "noise is off: all draws are one"


def test_describe_says_how_many_draws_run_at_a_time_and_why() -> None:
    model = network()
    plan = dubio.plan(model, INPUTS, 50, memory="2 MiB")
    (line,) = dubio.describe(model).executors
    each = memory_in_words(plan.bytes_per_draw)
    assert line.startswith("executor in training mode, without gradients: vmap; a further draw repeats ")
    assert line.endswith(f"; {plan.chunk} draws at a time: {each} each within a limit of 2.0 MiB")
    dubio.plan(model, INPUTS, 3)
    (line,) = dubio.describe(model).executors
    assert line.endswith(f"; all 3 draws at once: {each} each within a budget of 256.0 MiB")


def test_plans_report_a_prediction_as_it_was_planned_as_a_whole() -> None:
    model = network()
    with dubio.memory_limit("2 MiB"):
        dubio.predict(model, INPUTS, 100, estimator=None, batch_size=20)
    (plan,) = plans(model).values()
    assert plan.num_samples == 100
    assert 1 < plan.chunk < 100
    assert f"{plan.chunk} draws at a time" in plan.reason


def test_describe_tells_looped_draws_that_keep_their_graphs_from_those_that_do_not() -> None:
    model = dubio.Bayes(estimator="weight").convert(mlp(400, 1500, 1500, 10))  # large weights are looped on a CPU
    lines = []
    for gradients, memory in ((False, None), (True, None), (True, "300 MiB"), (True, "100 MiB")):
        plan = dubio.plan(model, INPUTS.repeat(1, 20), 4, memory=memory, gradients=gradients)
        lines.append(re.sub(r"[0-9.]+ MiB each", "M each", plan.reason.partition(" rows; ")[2]))
    assert lines == [
        "one draw at a time: M each within a budget of 256.0 MiB",
        "one draw at a time, the graphs of all 4 kept: M each",
        "one draw at a time, the graphs of all 4 kept: M each within a limit of 300.0 MiB",
        "one draw at a time: M each within a limit of 100.0 MiB, recomputed in the backward pass",
    ]
