"""``Ensemble``: its members' weights, networks trained elsewhere, bagging, and training together as if alone."""

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio import functional
from dubio._engine import execute as executors
from dubio._engine.draws import Call, Numbers, map_draws
from dubio._engine.planner import plans
from dubio._engine.settings import STATE
from dubio.attacks.target import AttackTarget
from dubio.nn.ensemble import num_members
from dubio.objectives import EnsembleLoss
from networks import mlp

INPUTS = torch.randn(30, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.arange(30) % 3


class Bare(nn.Module):
    """Parameters that nobody can begin anew."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.gain = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.gain


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters() if p.dim() > 1])


# ----------------------------------------------------------------------------------------- members


@pytest.mark.parametrize("net", [mlp(5, 40, 3), dubio.models.build("mlp:5-40-3")], ids=["reset", "built"])
def test_members_begin_with_weights_of_their_own(net: nn.Module) -> None:
    net = copy.deepcopy(net).double().eval()
    next(net.parameters()).requires_grad_(False)
    model = dubio.Ensemble(4).convert(net)
    own = torch.stack([weights(member) for member in model.members])
    assert torch.equal(own[0], weights(net))
    assert (torch.corrcoef(own) - torch.eye(4)).abs().max() < 0.3
    assert ((own.std(dim=1) / own[0].std() - 1.0).abs() < 0.2).all()  # of the same kind
    for member in model.members:
        assert {p.dtype for p in member.parameters()} == {torch.float64}
        assert not any(module.training for module in member.modules())
        assert [p.requires_grad for p in member.parameters()] == [p.requires_grad for p in net.parameters()]


def test_a_built_network_that_was_changed_is_begun_anew_as_it_is() -> None:
    net = dubio.models.build("mlp:5-4-3")
    net[-1] = nn.Linear(4, 7)
    assert dubio.sample(dubio.Ensemble(2).convert(net), INPUTS, 2).shape == (2, 30, 7)


def test_attention_is_begun_anew_by_its_own_rule() -> None:
    net = nn.TransformerEncoderLayer(4, 2, 8)
    first, second = dubio.Ensemble(2).convert(net).members
    assert not torch.allclose(first.self_attn.in_proj_weight, second.self_attn.in_proj_weight, atol=1e-2)
    assert (second.self_attn.out_proj.bias == 0.0).all()  # what attention makes of its linear layer


def test_weights_that_cannot_begin_anew_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="cannot give gain new weights: its module has no reset_parameters; pass the"):
        dubio.Ensemble(2).convert(Bare())
    model = dubio.Ensemble(2).convert(Bare(), strict=False)
    assert torch.equal(model.members[0].gain, model.members[1].gain)
    assert not torch.equal(model.members[0].layer.weight, model.members[1].layer.weight)


def test_networks_trained_elsewhere_are_the_draws(tmp_path: Path) -> None:
    nets = [Bare(), Bare(), Bare()]
    model = dubio.Ensemble().convert(nets)
    assert dubio.spec(model).method == dubio.Ensemble(members=3)
    expected = torch.stack([net(INPUTS) for net in nets])
    for executor in ("vmap", "loop"):
        torch.testing.assert_close(dubio.sample(model, INPUTS, 3, executor=executor), expected)  # type: ignore[arg-type]
    dubio.save(model, tmp_path / "model.safetensors")
    loaded = dubio.load(tmp_path / "model.safetensors", Bare())
    torch.testing.assert_close(dubio.sample(loaded, INPUTS, 3), expected)
    with torch.no_grad():
        nets[0].gain.zero_()
    torch.testing.assert_close(dubio.sample(model, INPUTS, 1)[0], expected[0])


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (mlp(5, 6, 3), "0.bias"),
        (nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), "1.inplace"),
        (nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)), "1.inplace"),
    ],
    ids=["width", "activation", "setting"],
)
def test_networks_of_different_kinds_are_refused(other: nn.Module, what: str) -> None:
    with pytest.raises(ValueError, match=f"members must be networks of one kind, but number 1 differs in {what}"):
        dubio.Ensemble().convert([mlp(5, 4, 3), other])


def test_networks_that_differ_in_nothing_but_a_module_are_refused() -> None:
    nets = [nn.Sequential(nn.Linear(5, 4), kind(), nn.Linear(4, 3)) for kind in (nn.Tanh, nn.Sigmoid)]
    with pytest.raises(ValueError, match="members must be networks of one kind, but number 1 differs in its modules"):
        dubio.Ensemble().convert(nets)


def test_what_is_no_list_of_networks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    with pytest.raises(ValueError, match="net must be a network or several, got none"):
        dubio.Ensemble().convert([])
    with pytest.raises(TypeError, match=r"net must be a torch\.nn\.Module, got int; or a list of them"):
        dubio.Ensemble().convert(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"net must be a torch\.nn\.Module, got list; or a list of them"):
        dubio.Ensemble().convert([mlp(5, 3), 3])  # type: ignore[list-item]
    for members in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"members must be a whole number of at least 1, got {members}"):
            dubio.Ensemble(members)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize("executor", ["vmap", "loop", "auto"])
def test_draws_come_in_the_order_of_members_round_and_round(executor: Any) -> None:
    model = dubio.Ensemble(3).convert(mlp(5, 4, 3))
    expected = torch.stack([model.members[draw % 3](INPUTS) for draw in range(5)])
    torch.testing.assert_close(dubio.sample(model, INPUTS, 5, executor=executor), expected)


def test_predictions_have_no_more_draws_than_members() -> None:
    model = dubio.Ensemble(3).convert(mlp(5, 4, 3))
    assert num_members(model) == 3
    assert num_members(mlp(5, 3)) is None
    prediction = dubio.predict(model, INPUTS, 100)
    assert prediction.num_samples == 3
    expected = torch.stack([member(INPUTS).softmax(dim=-1) for member in model.members]).mean(dim=0)
    torch.testing.assert_close(prediction.probs, expected)
    assert dubio.predict(model, INPUTS, 2).num_samples == 2


def test_t22_an_ensemble_of_one_is_its_member() -> None:
    net = mlp(5, 4, 3)
    prediction = dubio.predict(dubio.Ensemble(1).convert(net), INPUTS, 10)
    torch.testing.assert_close(prediction.probs, net(INPUTS).softmax(dim=-1))


def test_a_plain_call_is_a_member_by_chance_and_a_frozen_one_the_first() -> None:
    model = dubio.Ensemble(3).convert(mlp(5, 4, 3))
    outputs = torch.stack([member(INPUTS) for member in model.members])
    seen = [int((model(INPUTS) == outputs).flatten(1).all(dim=1).int().argmax()) for _ in range(90)]
    assert all(15 <= seen.count(place) <= 45 for place in range(3))
    with dubio.frozen(seed=8):
        assert torch.equal(model(INPUTS), outputs[0])


# ----------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("make", [lambda: mlp(5, 8, 3), normed], ids=["mlp", "norms"])
def test_members_trained_together_are_members_trained_alone(make: Any) -> None:
    model = dubio.Ensemble(3).convert(make().double())  # rounding is all that a bias before a batch norm learns from
    alone = [dubio.Deterministic().convert(copy.deepcopy(member)) for member in model.members]
    options: Any = {"epochs": 3, "batch_size": 8, "lr": 0.02, "seed": 4, "progress": False}
    for network in (model, *alone):
        dubio.fit(network.train(), (INPUTS.double(), TARGETS), **options)
    for member, single in zip(model.members, alone, strict=True):
        for (name, found), expected in zip(member.state_dict().items(), single.state_dict().values(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=name)
    assert not torch.allclose(weights(model.members[0]), weights(model.members[1]), atol=0.1)


class Counting(nn.Module):
    """Counts its calls in place, and keeps the mean of its inputs in another tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean = x.detach().mean(dim=0)
        return x + self.mean


class OwnNorm(nn.BatchNorm1d):
    """A class that dubio does not know."""


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(8),
    "average of all batches": lambda: nn.BatchNorm1d(8, momentum=None),
    "without scales": lambda: nn.BatchNorm1d(8, affine=False),
    "without running statistics": lambda: nn.BatchNorm1d(8, track_running_stats=False),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 2)), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten()
    ),
    "a class of one's own": lambda: OwnNorm(8),
    "other buffers": Counting,
}
COMPILED_AT_ONCE = ("batch norm", "other buffers")
"""Those that fast tests compile."""


@pytest.mark.parametrize(
    ("way", "norm"),
    [
        pytest.param(way, norm, marks=pytest.mark.slow if way == "compiled" and norm not in COMPILED_AT_ONCE else [])
        for way in ("mapped", "mapped inputs", "compiled")
        for norm in NORMS
    ],
)
@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.feature("Members of an ensemble with batch norm are mapped and compiled, each with statistics of its own")
def test_members_that_run_at_once_move_their_buffers_as_one_after_another(norm: str, way: str) -> None:
    own = NORMS[norm]
    net = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 8), own(), nn.ReLU(), nn.Linear(8, 3)).double()
    inputs = INPUTS.double()
    one, other = (dubio.Ensemble(3).convert(net).train() for _ in range(2))
    other.load_state_dict(one.state_dict())

    def run(model: nn.Module) -> Tensor:
        if way == "mapped inputs":
            call = Call(model, (inputs,), {}, STATE.own.settings)
            return cast(Tensor, map_draws(call, Numbers(0, 3), map_inputs=True).outputs)
        return cast(Tensor, dubio.sample(model, inputs, 3, executor="vmap"))

    run = torch.compile(run, backend="aot_eager", fullgraph=True) if way == "compiled" else run
    for _ in range(2):
        found, expected = run(one), dubio.sample(other, inputs, 3, executor="loop")
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()))
    for outputs in (found, expected):
        outputs.square().sum().backward()
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert not any(torch._C._functorch.is_batchedtensor(buffer) for buffer in one.buffers())


@pytest.mark.slow
@pytest.mark.parametrize("way", ["auto", "vmap", "compiled"])
@pytest.mark.usefixtures("quick_compiler")
def test_statistics_of_a_member_that_is_drawn_twice_move_twice(way: str) -> None:
    one, other = (dubio.Ensemble(2).convert(normed()).train() for _ in range(2))
    other.load_state_dict(one.state_dict())
    sample: Any = partial(dubio.sample, executor="auto" if way == "compiled" else way)
    sample = torch.compile(sample, backend="aot_eager", fullgraph=True) if way == "compiled" else sample
    torch.testing.assert_close(sample(one, INPUTS, 5), dubio.sample(other, INPUTS, 5, executor="loop"))
    torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()))
    assert [int(member[1].num_batches_tracked) for member in one.members] == [3, 2]
    assert [(plan.executor, plan.chunk) for plan in plans(one).values()] == ([("vmap", 2)] if way == "auto" else [])
    dubio.sample(one.eval(), INPUTS, 5)
    assert plans(one)["eval mode, with gradients"].chunk == 5


def test_an_ensemble_that_is_called_twice_in_a_draw_moves_its_statistics_twice() -> None:
    class Twice(nn.Module):
        def __init__(self, ensemble: nn.Module) -> None:
            super().__init__()
            self.ensemble = ensemble

        def forward(self, x: Tensor) -> Tensor:
            return self.ensemble(x) + self.ensemble(2 * x + 1)

    one = Twice(dubio.Ensemble(2).convert(normed())).train()
    other = copy.deepcopy(one)
    torch.testing.assert_close(
        dubio.sample(one, INPUTS, 2, executor="vmap"), dubio.sample(other, INPUTS, 2, executor="loop")
    )
    torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()))
    assert int(one.ensemble.members[1][1].num_batches_tracked) == 2


def test_members_in_different_modes_are_looped_without_a_warning() -> None:
    one = dubio.Ensemble(2).convert(normed()).train()
    one.members[0].eval()
    other = copy.deepcopy(one)
    torch.testing.assert_close(dubio.sample(one, INPUTS, 2), dubio.sample(other, INPUTS, 2, executor="loop"))
    torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()))
    assert "some members are in training mode and others not" in plans(one)["training mode, with gradients"].reason


def test_statistics_move_wherever_a_norm_is_in_training_mode() -> None:
    one = dubio.Ensemble(2).convert(normed()).eval()
    for member in one.members:
        member[1].train()
    other = copy.deepcopy(one)
    torch.testing.assert_close(
        dubio.sample(one, INPUTS, 2, executor="vmap"), dubio.sample(other, INPUTS, 2, executor="loop")
    )
    torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()))
    assert int(one.members[1][1].num_batches_tracked) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_of_members_in_half_precision_are_in_float32(dtype: torch.dtype) -> None:
    class Coarse(nn.Module):
        """Values far from zero, in half precision."""

        def __init__(self) -> None:
            super().__init__()
            self.reset_parameters()

        def reset_parameters(self) -> None:
            self.gain = nn.Parameter(torch.randn(5))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.gain + 3.0).to(dtype)

    model = dubio.Ensemble(2).convert(nn.Sequential(Coarse(), nn.BatchNorm1d(5, affine=False))).train()
    found = dubio.sample(model, INPUTS, 2, executor="vmap")
    inside = torch.stack([member[0](INPUTS) for member in model.members]).double()
    expected = (inside - inside.mean(dim=1, keepdim=True)) / inside.std(dim=1, correction=0, keepdim=True)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0.01, atol=0.01)
    for member, own in zip(model.members, inside, strict=True):
        torch.testing.assert_close(member[1].running_mean.double(), 0.1 * own.mean(dim=0), rtol=1e-5, atol=1e-6)


def test_an_ensemble_that_is_no_submodule_cannot_keep_what_it_moves() -> None:
    class Hiding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [dubio.Ensemble(2).convert(normed()).train()]

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.hidden[0](x))

    with pytest.raises(RuntimeError, match="moves buffers and is no submodule of it: register it"):
        dubio.sample(Hiding(), INPUTS, 2, executor="vmap")


def test_draws_that_begin_in_the_middle_move_the_statistics_of_their_members() -> None:
    model = dubio.Ensemble(3).convert(normed()).train()
    executors.run(model, INPUTS, 2, first_draw=2, executor="vmap")
    assert [int(member[1].num_batches_tracked) for member in model.members] == [1, 0, 1]


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_statistics_move_once_where_draws_are_computed_anew(executor: Any) -> None:
    one, other = (dubio.Ensemble(3).convert(normed()).train() for _ in range(2))
    other.load_state_dict(one.state_dict())
    needed = dubio.plan(one, INPUTS, 3, memory="1 GiB", gradients=True).bytes_in_all
    with dubio.memory_limit(needed - 1):
        assert dubio.plan(one, INPUTS, 3, gradients=True).recompute
        found = dubio.sample(one, INPUTS, 3, executor=executor)
        found.square().sum().backward()
    expected = dubio.sample(other, INPUTS, 3, executor="loop")
    expected.square().sum().backward()
    torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()))
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("quick_compiler")
def test_a_compiled_call_moves_the_statistics_of_the_member_that_answers() -> None:
    model = dubio.Ensemble(3).convert(normed()).train()
    plain = [copy.deepcopy(member) for member in model.members]
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(9):
        found = compiled(INPUTS)
        (place,) = [i for i, net in enumerate(plain) if torch.allclose(found, copy.deepcopy(net)(INPUTS), atol=1e-5)]
        plain[place](INPUTS)
    for member, expected in zip(model.members, plain, strict=True):
        torch.testing.assert_close(dict(member.state_dict()), dict(expected.state_dict()))


def test_a_vmap_around_an_ensemble_cannot_keep_statistics() -> None:
    model = dubio.Ensemble(3).convert(normed()).train()
    around = torch.func.vmap(lambda _: model(INPUTS), randomness="different")
    with pytest.raises(RuntimeError, match="members of an ensemble cannot keep batch statistics under a vmap"):
        around(torch.arange(4))
    model.eval()
    assert around(torch.arange(4)).shape == (4, 30, 3)


def test_large_members_run_one_after_another_on_a_cpu() -> None:
    images, found = torch.randn(128, 784), []
    for width in (20, 800):
        model = dubio.Ensemble(2).convert(mlp(784, width, width, 10)).train()
        dubio.sample(model, images, 2)
        found += [plan.executor for plan in plans(model).values()]
    assert found == ["vmap", "loop"]


def test_a_bag_holds_as_many_draws_as_examples_and_repeats_with_its_seed() -> None:
    method = dubio.Ensemble(4, bootstrap=True)
    counts = method.example_weights(50, seed=1)
    assert counts is not None
    assert counts.shape == (50, 4)
    assert counts.sum(dim=0).tolist() == [50.0] * 4
    assert (counts == counts.round()).all()
    assert (counts.min(), counts.max() > 1.0) == (0.0, True)
    assert len({tuple(column.tolist()) for column in counts.mT}) == 4
    assert torch.equal(counts, functional.variational.bootstrap_counts(50, 4, torch.Generator().manual_seed(1)))
    assert not torch.equal(counts, method.example_weights(50, seed=2))  # type: ignore[arg-type]
    assert dubio.Ensemble(4).example_weights(50, seed=1) is None


def test_fit_gives_each_member_its_bag(monkeypatch: pytest.MonkeyPatch) -> None:
    method = dubio.Ensemble(2, bootstrap=True)
    model, seen = method.convert(mlp(5, 8, 3)), []
    original = EnsembleLoss.__call__

    def spy(self: EnsembleLoss, *args: Any, **options: Any) -> dubio.Loss:
        seen.append((args[1].clone(), options["sample_weight"]))
        return original(self, *args, **options)

    monkeypatch.setattr(EnsembleLoss, "__call__", spy)
    dubio.fit(model, (INPUTS, TARGETS), epochs=1, batch_size=7, seed=6, progress=False)
    inputs, counts = (torch.cat(parts) for parts in zip(*seen, strict=True))
    places = [int((row == INPUTS).all(dim=1).int().argmax()) for row in inputs]
    assert sorted(places) == list(range(30))
    assert torch.equal(counts, method.example_weights(30, seed=6)[places])  # type: ignore[index]


def test_a_bag_weighs_the_losses_of_its_member_alone() -> None:
    model = dubio.Ensemble(2).convert(mlp(5, 8, 3))
    counts = functional.variational.bootstrap_counts(30, 2, torch.Generator().manual_seed(0))
    total = EnsembleLoss(30)(model, INPUTS, TARGETS, 2, sample_weight=counts).total
    expected = [
        (nn.functional.cross_entropy(member(INPUTS), TARGETS, reduction="none") * own).mean()
        for member, own in zip(model.members, counts.mT, strict=True)
    ]
    torch.testing.assert_close(total, sum(expected))


def test_members_train_all_at_once() -> None:
    assert dubio.Ensemble(7).recipe.num_samples == 7
    assert dubio.Ensemble(7).objective(20) == EnsembleLoss(20)


def test_every_member_is_trained_in_every_step() -> None:
    model = dubio.Ensemble(4).convert(mlp(5, 4, 3))
    with pytest.raises(
        ValueError, match="num_samples must be a multiple of the 4 members, of which each is trained, got"
    ):
        dubio.fit(model, (INPUTS, torch.zeros(len(INPUTS), dtype=torch.int64)), num_samples=2, progress=False)


def test_an_attack_looks_at_every_member_once() -> None:
    model = dubio.Ensemble(4).convert(mlp(5, 4, 3))
    calls: Counter[int] = Counter()
    for number, member in enumerate(model.members):
        member.register_forward_hook(lambda *_, number=number: calls.update([number]))
    target = AttackTarget(model, 1, "predictive", "cross_entropy", "fresh", 0, executor="loop")

    assert target.num_samples == 4
    target.log_probs(INPUTS)
    assert calls == Counter(range(4))


def test_an_ensemble_is_scored_by_its_members_in_turn() -> None:
    model = dubio.Ensemble(3).convert(mlp(5, 4, 3))
    found = dubio.attacks.score(model, INPUTS, TARGETS, num_samples=9, num_tries=2)
    hits = torch.stack([(member(INPUTS).argmax(dim=1) == TARGETS).double() for member in model.members])
    assert found.single.value == pytest.approx(hits.mean().item())
    predicted = dubio.predict(model, INPUTS).label == TARGETS
    assert found.predictive.value == pytest.approx(predicted.double().mean().item())


def test_batch_norm_without_statistics_is_taken_over_each_member_alone() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))
    model = dubio.Ensemble(3).convert(net).train()
    expected = torch.stack([member(INPUTS) for member in model.members])
    torch.testing.assert_close(dubio.sample(model, INPUTS, 3), expected)


def test_bags_and_weights_of_examples_are_multiplied() -> None:
    seen: list[Tensor] = []

    class Spy(EnsembleLoss):
        def __call__(self, *args: Any, sample_weight: Tensor | None = None, **kwargs: Any) -> dubio.Loss:
            assert sample_weight is not None
            seen.append(sample_weight)
            return super().__call__(*args, sample_weight=sample_weight, **kwargs)

    method = dubio.Ensemble(2, bootstrap=True)
    inputs, targets = torch.randn(30, 5), torch.randint(3, (30,))
    weights = torch.rand(30)
    for sample_weight in (None, weights):
        dubio.fit(
            method.convert(mlp(5, 4, 3)),
            (inputs, targets),
            objective=Spy(),
            sample_weight=sample_weight,
            epochs=1,
            batch_size=30,
            progress=False,
        )
    assert seen[0].shape == seen[1].shape == (30, 2)
    order = (seen[0] > 0).any(dim=1)
    assert seen[1].sum() < seen[0].sum()
    assert torch.equal((seen[1] > 0).any(dim=1), order)
