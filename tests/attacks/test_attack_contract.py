"""One battery over the table of attacks: what all of them promise, whatever they do inside."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dubio
from attack_table import (
    ALL,
    BALL,
    DRAWING,
    TARGETED,
    bayesian_net,
    examples,
    in_l2,
    logits_function,
    plain_net,
    towards,
)
from dubio import attacks
from dubio.attacks.attack import Attack

LINF_AND_L2 = {"linf": lambda attack: attack, "l2": in_l2}
MODELS: dict[str, Callable[[], Any]] = {
    "plain": plain_net,
    "local": lambda: bayesian_net("local"),
    "weight": lambda: bayesian_net("weight"),
    "function": logits_function,
}


def quick(attack: Attack, **changes: Any) -> Attack:
    return replace(attack, num_samples=3, seed=4, **changes)


@pytest.mark.parametrize("norm", LINF_AND_L2)
@pytest.mark.parametrize("epsilon", [1e-4, 8 / 255, 0.3])
@pytest.mark.parametrize("name", BALL)
@pytest.mark.feature("Attacks over draws: in the ball and in the box exactly, the network untouched")
def test_results_lie_in_the_ball_and_in_the_box_exactly(name: str, epsilon: float, norm: str) -> None:
    inputs, labels = examples(rows=40)
    attack = replace(LINF_AND_L2[norm](BALL[name]), epsilon=epsilon, seed=1)
    result = attack(plain_net(), inputs, labels)
    moved = result.inputs.double() - inputs.double()
    sizes = moved.abs().amax(dim=1) if norm == "linf" else moved.square().sum(dim=1).sqrt()
    assert sizes.max() <= epsilon
    assert sizes.max() > 0.5 * epsilon
    assert result.inputs.min() >= 0.0
    assert result.inputs.max() <= 1.0
    torch.testing.assert_close(result.norm.double(), sizes)


@pytest.mark.parametrize("name", ALL)
def test_other_bounds_are_kept(name: str) -> None:
    inputs, labels = examples()
    bounds = (-1.0, 0.25)
    attack = ALL[name]
    inner = {"attack": replace(attack.attack, bounds=bounds)} if isinstance(attack, attacks.Transfer) else {}
    result = replace(attack, bounds=bounds, seed=1, **inner)(plain_net(), 0.8 * inputs - 0.7, labels)
    assert result.inputs.min() >= -1.0
    assert result.inputs.max() <= 0.25


@pytest.mark.parametrize("norm", LINF_AND_L2)
@pytest.mark.parametrize("name", BALL)
def test_a_ball_of_radius_zero_is_the_identity(name: str, norm: str) -> None:
    inputs, labels = examples()
    result = replace(LINF_AND_L2[norm](BALL[name]), epsilon=0.0)(bayesian_net("local"), inputs, labels)
    assert torch.equal(result.inputs, inputs)
    assert result.norm.tolist() == [0.0] * len(inputs)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ALL)
def test_every_kind_of_model_can_be_attacked(name: str, model: str) -> None:
    inputs, labels = examples()
    attack = ALL[name]
    if model == "function" and isinstance(attack, attacks.Transfer):
        attack = replace(attack, source=plain_net())
    result = quick(attack)(MODELS[model](), inputs, labels)
    assert result.inputs.shape == inputs.shape
    assert result.inputs.dtype == torch.float32
    assert result.inputs.isfinite().all()
    assert not result.inputs.requires_grad
    assert result.loss.shape == result.norm.shape == result.fooled.shape == labels.shape
    assert result.loss.isfinite().all()
    assert result.seconds > 0.0
    size = (result.inputs - inputs).flatten(1)
    expected = size.abs().amax(dim=1) if attack.norm == "linf" else size.norm(dim=1)
    torch.testing.assert_close(result.norm, expected)


@pytest.mark.parametrize("name", [*BALL, "ddn", "fmn", "minimum norm", "transfer"])
def test_images_can_be_attacked(name: str) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4))
    inputs, labels = torch.rand(3, 2, 5, 5), torch.tensor([0, 1, 2])
    for norm in LINF_AND_L2.values() if name in (*BALL, "fmn", "transfer") else [lambda attack: attack]:
        result = norm(ALL[name])(net, inputs, labels)
        assert result.inputs.shape == inputs.shape
        assert not torch.equal(result.inputs, inputs)


@pytest.mark.parametrize("noise", ["fresh", "frozen"])
@pytest.mark.parametrize("name", ALL)
def test_the_batch_size_does_not_matter(name: str, noise: str) -> None:
    model = copy.deepcopy(plain_net()).double() if noise == "fresh" else bayesian_net("local", torch.float64)
    inputs, labels = examples(rows=5, dtype=torch.float64, net=model)
    attack = quick(ALL[name], noise=noise)
    whole, cut = (replace(attack, batch_size=rows)(model, inputs, labels) for rows in (5, 3))
    torch.testing.assert_close(cut.inputs, whole.inputs, atol=1e-7, rtol=0.0)
    torch.testing.assert_close(cut.loss, whole.loss, atol=1e-6, rtol=1e-6)
    assert torch.equal(cut.fooled, whole.fooled)


@pytest.mark.parametrize("model", ["local", "function"])
@pytest.mark.parametrize("name", [name for name in ALL if name != "transfer"])
def test_a_seed_repeats_an_attack_and_leaves_the_generator_alone(name: str, model: str) -> None:
    inputs, labels = examples()
    attack, target = quick(ALL[name]), MODELS[model]()
    before = torch.get_rng_state()
    first = attack(target, inputs, labels)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again = attack(target, inputs, labels)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.loss, again.loss)


@pytest.mark.parametrize("name", DRAWING)
def test_without_a_seed_random_attacks_differ(name: str) -> None:
    inputs, labels = examples()
    first, again = (ALL[name](plain_net(), inputs, labels) for _ in range(2))
    assert not torch.equal(first.inputs, again.inputs)


@pytest.mark.parametrize("name", [name for name in ALL if name != "transfer"])
def test_noise_off_attacks_the_mean_network(name: str) -> None:
    model = bayesian_net("weight", torch.float64)
    inputs, labels = examples(net=model, dtype=torch.float64)
    off = replace(ALL[name], noise="off", seed=3)(model, inputs, labels)
    mean = replace(ALL[name], seed=3)(dubio.to_mean(model), inputs, labels)
    torch.testing.assert_close(off.inputs, mean.inputs, atol=1e-9, rtol=0.0)
    assert off.forwards == mean.forwards


@pytest.mark.parametrize("name", [name for name in ALL if name != "transfer"])
def test_frozen_noise_attacks_the_mean_over_the_same_draws(name: str) -> None:
    model = bayesian_net("local", torch.float64)
    inputs, labels = examples(net=model, dtype=torch.float64)

    def mean_over_draws(moved: Tensor) -> Tensor:
        return dubio.sample(model, moved, 5, seed=3).softmax(dim=-1).mean(dim=0).log()

    attack = replace(ALL[name], noise="frozen", seed=3, num_samples=5, batch_size=7)
    frozen, function = attack(model, inputs, labels), attack(mean_over_draws, inputs, labels)
    torch.testing.assert_close(frozen.inputs, function.inputs, atol=1e-7, rtol=0.0)
    torch.testing.assert_close(frozen.loss, function.loss)
    assert frozen.forwards == 5 * function.forwards


def test_frozen_noise_freezes_what_a_model_draws_itself() -> None:
    inputs, labels = examples()
    for model in (logits_function(), nn.Sequential(Shaken(), plain_net())):
        target = attacks.PGD(noise="frozen").target_for(model)
        assert torch.equal(target.evaluate(inputs, labels)[0], target.evaluate(inputs, labels)[0])
        target.noise = "fresh"
        assert not torch.equal(target.evaluate(inputs, labels)[0], target.evaluate(inputs, labels)[0])


class Shaken(nn.Module):
    """Noise that is not the engine's."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + 0.1 * torch.randn_like(inputs)


@pytest.mark.parametrize("name", TARGETED)
def test_targeted_attacks_raise_the_wanted_class(name: str) -> None:
    model = plain_net()
    inputs, labels = examples()
    wanted = (labels + 1) % 4
    stronger = {"steps": 40} if hasattr(ALL[name], "steps") else {}
    attack = replace(towards(ALL[name]), seed=0, **stronger)
    result = attack(model, inputs, wanted)

    def chance(points: Tensor) -> Tensor:
        return model(points).log_softmax(dim=1).gather(1, wanted.unsqueeze(1)).squeeze(1)

    with torch.no_grad():
        moved = result.norm > 0.0
        assert moved.any()
        better = chance(result.inputs) - chance(inputs)
        assert (better[moved] > 0.0).float().mean() > 0.6
        assert torch.equal(result.fooled, model(result.inputs).argmax(dim=1) == wanted)


@pytest.mark.parametrize("name", ALL)
def test_the_loss_is_that_of_the_result(name: str) -> None:
    model = plain_net()
    inputs, labels = examples()
    result = ALL[name](model, inputs, labels)
    sign = -1.0 if ALL[name].targeted else 1.0
    losses = {
        "cross_entropy": lambda z: -z.log_softmax(dim=1).gather(1, labels[:, None])[:, 0],
        "margin": margin(labels),
    }
    with torch.no_grad():
        logits = model(result.inputs)
        expected = sign * losses[ALL[name].loss](logits)
        if isinstance(ALL[name], attacks.Evade):
            entropy = -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)
            hidden = torch.where(result.fooled, expected - ALL[name].weight * entropy, expected)
            expected = entropy if ALL[name].goal == "reject" else hidden
        torch.testing.assert_close(result.loss, expected)


def margin(labels: Tensor) -> Callable[[Tensor], Tensor]:
    def value(logits: Tensor) -> Tensor:
        rows = torch.arange(len(labels))
        others = logits.clone()
        others[rows, labels] = -torch.inf
        return others.amax(dim=1) - logits[rows, labels]

    return value


@pytest.mark.parametrize("name", ALL)
def test_attacks_are_values(name: str) -> None:
    attack = ALL[name]
    assert copy.deepcopy(attack) == attack
    assert pickle.loads(pickle.dumps(attack)) == attack
    assert hash(copy.deepcopy(attack)) == hash(attack)
    assert replace(attack, seed=17) != attack
    assert repr(attack).startswith(f"{type(attack).__name__}(epsilon=")
    assert eval(repr(attack), vars(attacks)) == attack
    with pytest.raises(AttributeError):
        attack.seed = 3  # type: ignore[misc]


def test_bounds_may_be_any_pair_of_numbers() -> None:
    assert attacks.PGD(bounds=(0, 1)) == attacks.PGD(bounds=(0.0, 1.0))
    assert isinstance(attacks.PGD(bounds=(0, 1)).bounds[0], float)


@pytest.mark.parametrize("name", ALL)
def test_short_forms_give_the_inputs(name: str) -> None:
    inputs, labels = examples()
    attack = replace(ALL[name], seed=2)
    short_name = {"TargetedFGSM": "targeted_fgsm", "MinimumNorm": "minimum_norm", "RandomNoise": "random_noise"}
    name_of_short = short_name.get(type(attack).__name__, type(attack).__name__.lower())
    short = getattr(attacks, name_of_short)
    assert short.__name__ == name_of_short
    options = {field.name: getattr(attack, field.name) for field in fields(attack)}
    found = short(plain_net(), inputs, labels, **options)
    assert torch.equal(found, attack(plain_net(), inputs, labels).inputs)


def test_every_attack_of_the_package_is_in_the_table() -> None:
    values = [value for value in vars(attacks).values() if isinstance(value, type) and issubclass(value, Attack)]
    assert {type(attack) for attack in ALL.values()} == set(values) - {Attack}


class Counting(torch.autograd.Function):
    """The identity, which counts in both directions."""

    passes: dict[str, int]

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        Counting.passes["forwards"] += 1
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Counting.passes["backwards"] += 1
        return gradient


COUNTS = {
    "fgsm": (2, 1),
    "fgsm, own label": (2, 1),
    "pgd": (4, 3),
    "pgd, restarts and momentum": (6, 4),
    "evade": (4, 3),
    "evade, to be rejected": (8, 6),
    "apgd": (8, 7),
    "apgd, restarts": (10, 8),
    "random noise": (3, 0),
    "random signs": (3, 0),
    "targeted fgsm": (4, 3),
    "ddn": (8, 7),
    "fmn": (8, 7),
}


@pytest.mark.parametrize("name", [name for name in ALL if name != "transfer"])
def test_passes_are_counted(name: str) -> None:
    inputs, labels = examples()
    net = plain_net()

    def noisy(moved: Tensor) -> Tensor:
        torch.rand(1)  # passes for random, so that there are three draws
        return net(Counting.apply(moved))

    Counting.passes = {"forwards": 0, "backwards": 0}
    result = quick(ALL[name], batch_size=7)(noisy, inputs, labels)
    assert result.forwards == Counting.passes["forwards"] - 4  # the check, which is run again for a function that draws
    assert result.backwards == Counting.passes["backwards"]
    if name in COUNTS:
        assert (result.forwards, result.backwards) == tuple(3 * count for count in COUNTS[name])


class HostTrips(TorchDispatchMode):
    """Counts how often a tensor is asked for its value, which waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["pgd", "evade", "apgd", "square", "ddn", "fmn", "targeted fgsm"])
def test_steps_ask_no_tensor_for_its_value(name: str) -> None:
    model = bayesian_net("local")
    quick(ALL[name])(model, *examples())  # plans are made
    assert host_trips(quick(ALL[name], steps=12), model) == host_trips(quick(ALL[name], steps=6), model) < 10


def test_the_minimum_norm_asks_for_values_once_for_each_weight_that_it_tries() -> None:
    attack = attacks.MinimumNorm(steps=20, bisections=1, num_samples=2, seed=4)
    most_rounds = 7
    adam = 20 * most_rounds  # torch's Adam reads its count of steps, which is on the CPU
    assert host_trips(attack, bayesian_net("local")) < adam + most_rounds + 10


def host_trips(attack: Attack, model: nn.Module) -> int:
    with HostTrips() as found:
        attack(model, *examples())
    return found.count


def test_a_graph_of_the_caller_is_neither_entered_nor_spoiled() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    inputs, labels = examples(rows=9)
    leaf = inputs.clone().requires_grad_(True)
    loss = net(leaf).square().mean()
    result = attacks.PGD(steps=2)(net, leaf, labels)
    loss.backward()
    assert leaf.grad is not None
    for value in (result.inputs, result.loss, result.norm):
        assert not value.requires_grad


def test_attacks_work_inside_inference_mode() -> None:
    net = plain_net()
    inputs, labels = examples()
    outside = attacks.pgd(net, inputs, labels, seed=1)
    with torch.inference_mode():
        inside = attacks.pgd(net, inputs * 1.0, labels + 0, seed=1)
    assert torch.equal(inside, outside)
