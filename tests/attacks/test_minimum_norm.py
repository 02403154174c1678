"""The smallest perturbations: closed forms (T-61), the search over c, and failures that are told."""

import importlib
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attack_table import bayesian_net, examples, plain_net
from dubio import attacks
from dubio.attacks.attack import Attack, AttackResult
from dubio.attacks.minimum_norm import Nearest

solvers = importlib.import_module("dubio.attacks.minimum_norm")

WIDE = (-50.0, 50.0)


def linear_net(classes: int = 2, seed: int = 3) -> nn.Module:
    net = nn.Linear(8, classes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        net.weight.copy_(torch.randn(classes, 8, generator=generator))
        net.bias.copy_(torch.randn(classes, generator=generator))
    return net


def right_points(net: nn.Module, rows: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs at least one unit of logits away from the boundary, with their labels."""
    inputs = torch.randn(400, 8, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        top = net(inputs).topk(2, dim=1)
    sure = top.values[:, 0] - top.values[:, 1] > 1.0
    return inputs[sure][:rows], top.indices[sure][:rows, 0]


@torch.no_grad()
def closed_form(net: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Distance to the nearest of all boundaries: ``min_k |z_k - z_y| / ||w_k - w_y||``."""
    logits, weight = net(inputs), net.weight
    distances = []
    for row, label in enumerate(labels.tolist()):
        others = [k for k in range(len(weight)) if k != label]
        gaps = [(logits[row, label] - logits[row, k]) / (weight[label] - weight[k]).norm() for k in others]
        distances.append(min(gaps))
    return torch.stack(distances)


SHORT: dict[str, Any] = {"bounds": WIDE, "steps": 60, "step_size": 0.05, "c": 1.0, "bisections": 6, "seed": 0}
QUICK: dict[str, Attack] = {
    "targeted": attacks.MinimumNorm(**SHORT),
    "untargeted, hinge": attacks.MinimumNorm(mode="untargeted", loss="margin", **SHORT),
    "lbfgs": attacks.MinimumNorm(bounds=WIDE, solver="lbfgs", c=1.0),
    "ddn": attacks.DDN(bounds=WIDE, steps=200),
    "fmn": attacks.FMN(bounds=WIDE, steps=200),
}
DEFAULTS: dict[str, Attack] = {
    "targeted": attacks.MinimumNorm(bounds=WIDE),
    "targeted, hinge": attacks.MinimumNorm(bounds=WIDE, loss="margin"),
    "untargeted, hinge": attacks.MinimumNorm(bounds=WIDE, mode="untargeted", loss="margin"),
}


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.feature("Minimum-norm attacks: closed form of a linear classifier within 2 %, failures told")
def test_t61_two_classes_match_the_closed_form(name: str) -> None:
    result = assert_nearest(QUICK[name], rows=1 if name == "lbfgs" else 8)
    if name == "targeted":
        # At the boundary of two classes the loss falls with half the weights' distance: there c holds the balance.
        weight = linear_net().weight.detach()
        assert result.c is not None
        torch.testing.assert_close(result.c, 0.5 * (weight[0] - weight[1]).norm().expand(8), rtol=0.1, atol=0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", DEFAULTS)
def test_t61_two_classes_match_the_closed_form_with_the_published_settings(name: str) -> None:
    assert_nearest(DEFAULTS[name], rows=8)


def assert_nearest(attack: Attack, rows: int) -> AttackResult:
    net = linear_net()
    inputs, labels = right_points(net, rows)
    result = attack(net, inputs, labels)
    assert result.fooled.all()
    expected = closed_form(net, inputs, labels)
    assert (result.norm >= expected * (1.0 - 1e-5)).all()
    torch.testing.assert_close(result.norm, expected, rtol=0.02, atol=0.0)
    assert (net(result.inputs).argmax(dim=1) != labels).all()
    return result


@pytest.mark.parametrize("name", ["targeted", "ddn", "fmn"])
def test_t61_more_classes_are_not_nearer_than_the_closed_form(name: str) -> None:
    net = linear_net(classes=5)
    inputs, labels = right_points(net)
    attack = QUICK[name]
    if isinstance(attack, attacks.MinimumNorm):
        attack = replace(attack, bisections=2)
    result = attack(net, inputs, labels)
    assert result.fooled.all()
    assert (result.norm >= closed_form(net, inputs, labels) * (1.0 - 1e-5)).all()


def test_the_negated_loss_of_the_true_class_leaves_it_if_not_by_the_shortest_way() -> None:
    net = linear_net()
    inputs, labels = right_points(net)
    result = replace(QUICK["targeted"], mode="untargeted", bisections=2)(net, inputs, labels)
    assert result.fooled.all()
    ratio = result.norm / closed_form(net, inputs, labels)
    assert (ratio >= 1.0 - 1e-5).all()
    assert ratio.max() < 1.5


@pytest.mark.slow
def test_the_best_of_all_targets_is_the_nearest_class() -> None:
    net = linear_net(classes=4)
    inputs, labels = right_points(net, rows=4)
    result = replace(QUICK["targeted"], target="best_of_all")(net, inputs, labels)
    torch.testing.assert_close(result.norm, closed_form(net, inputs, labels), rtol=0.05, atol=0.0)


@pytest.mark.parametrize("solver", ["adam", "lbfgs"])
def test_t61_a_larger_weight_keeps_the_perturbation_shorter(solver: str) -> None:
    net = linear_net()
    inputs, labels = right_points(net, rows=2)
    target = attacks.MinimumNorm(num_samples=1).target_for(net)
    problem = solvers.Problem(target, inputs, labels, 1 - labels, WIDE)
    start = inputs + 1e-3 * torch.randn_like(inputs)
    sizes = []
    for c in (0.01, 0.1, 1.0, 10.0):
        weights, nearest = torch.full((2,), c), Nearest(inputs, "l2")
        if solver == "adam":
            end, _ = solvers.descend(problem, start, weights, nearest, steps=60, step_size=0.05)
        else:
            end, _ = solvers.minimise(problem, start, weights, nearest, steps=50)
        sizes.append((end.inputs - inputs).norm(dim=1))
    for larger, smaller in pairwise(sizes):
        assert (smaller < larger).all()


def test_t61_inputs_stay_in_the_box_where_it_is_in_the_way() -> None:
    net = linear_net()
    inputs, labels = right_points(net)
    box = (inputs.min().item(), inputs.max().item())
    quick = attacks.MinimumNorm(bounds=box, steps=20, step_size=0.1, bisections=2)
    for attack in (quick, attacks.DDN(bounds=box), attacks.FMN(bounds=box)):
        result = attack(net, inputs, labels)
        assert result.inputs.min() >= box[0]
        assert result.inputs.max() <= box[1]
        assert result.fooled.any()


FAILING: dict[str, Attack] = {
    "minimum norm": attacks.MinimumNorm(steps=5, bisections=1),
    "untargeted": attacks.MinimumNorm(steps=5, bisections=1, mode="untargeted", loss="margin"),
    "lbfgs": attacks.MinimumNorm(steps=3, bisections=1, solver="lbfgs"),
    "ddn": attacks.DDN(steps=10),
    "fmn": attacks.FMN(steps=10),
    "fmn, linf": attacks.FMN(steps=10, norm="linf"),
}


@pytest.mark.parametrize("name", FAILING)
def test_t61_failure_is_told_and_never_counted_as_success(name: str) -> None:
    net = nn.Linear(3, 2)  # says class 0 wherever in the box
    net.load_state_dict({"weight": torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), "bias": torch.tensor([9.0, 0.0])})
    inputs, labels = torch.rand(4, 3), torch.tensor([0, 0, 0, 1])  # the last one is wrong already
    result = FAILING[name](net, inputs, labels)
    assert result.fooled.tolist() == [False, False, False, True]
    assert torch.equal(result.inputs, inputs)
    assert result.norm.tolist() == [0.0] * 4
    if result.c is not None:
        assert result.c.isnan().all()


@pytest.mark.parametrize("name", FAILING)
def test_what_is_wrong_already_stays_as_it_is(name: str) -> None:
    net = plain_net()
    inputs, labels = examples()
    wrong = (labels + 1) % 4
    result = FAILING[name](net, inputs, wrong)
    assert torch.equal(result.inputs, inputs)
    assert result.fooled.all()


def test_only_attacks_that_search_a_weight_tell_one() -> None:
    assert attacks.PGD(steps=1)(plain_net(), *examples()).c is None
    assert attacks.DDN(steps=1)(plain_net(), *examples()).c is None


def test_wanted_classes_are_reached() -> None:
    net = linear_net(classes=4)
    inputs, labels = right_points(net, rows=2)
    wanted = (labels + 2) % 4
    result = replace(QUICK["targeted"], targeted=True, bisections=2)(net, inputs, wanted)
    assert result.fooled.all()
    assert torch.equal(net(result.inputs).argmax(dim=1), wanted)


def test_the_runner_up_is_the_likeliest_other_class_and_random_targets_are_any_other() -> None:
    attack = attacks.MinimumNorm()
    log_probs = torch.tensor([[0.1, 0.2, 0.6, 0.1], [0.4, 0.3, 0.2, 0.1]]).log()
    labels = torch.tensor([2, 2])
    target = attack.target_for(plain_net())
    assert [goals.tolist() for goals in attack._goals(target, log_probs, labels)] == [[1, 0]]
    many = torch.arange(4).repeat(500)
    random = attacks.MinimumNorm(target="random")._goals(target, torch.zeros(2000, 4), many)[0]
    counts = torch.bincount((random - many) % 4, minlength=4)
    assert counts[0] == 0
    assert counts[1:].min() > 2000 / 3 - 5 * (2000 * 2 / 9) ** 0.5
    each = attacks.MinimumNorm(target="best_of_all")._goals(target, log_probs, labels)
    assert sorted(goals[0].item() for goals in each) == [0, 1, 3]


def test_lbfgs_is_on_frozen_draws() -> None:
    assert attacks.MinimumNorm(solver="lbfgs").target_for(plain_net()).noise == "frozen"
    assert attacks.MinimumNorm(solver="lbfgs", noise="off").target_for(plain_net()).noise == "off"
    assert attacks.MinimumNorm().target_for(plain_net()).noise == "fresh"


@pytest.mark.parametrize("name", ["minimum norm", "ddn", "fmn", "lbfgs"])
def test_random_networks_are_fooled_by_the_mean_over_the_draws(name: str) -> None:
    model = bayesian_net("local")
    inputs, labels = examples(model, rows=3)
    options: dict[str, Any] = {"num_samples": 4, "seed": 1, "noise": "frozen"}
    attack = type(FAILING[name])(**{**vars(FAILING[name]), **options})
    result = attack(model, inputs, labels)
    assert result.fooled.any()
    target = attack.target_for(model)
    with torch.no_grad():
        model.eval()
        _, fooled = target.evaluate(result.inputs, labels)
    assert torch.equal(fooled, result.fooled)


def test_without_scipy_lbfgs_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ImportError, match=r"solver='lbfgs' needs SciPy, which is missing: pip install scipy"):
        attacks.minimum_norm(plain_net(), *examples(), solver="lbfgs")


def test_a_saturated_network_is_left_by_a_random_direction() -> None:
    net = nn.Linear(4, 3)
    with torch.no_grad():
        net.weight.mul_(1e4)
    inputs, labels = torch.rand(6, 4), torch.zeros(6, dtype=torch.int64)
    with torch.no_grad():
        net.bias[0] = 1e4  # so sure that the gradient is zero in float32
    leaf = inputs.clone().requires_grad_(True)
    nn.functional.cross_entropy(net(leaf), labels).backward()
    assert leaf.grad.abs().max() == 0.0
    assert attacks.DDN(steps=60, radius=0.1)(net, inputs, labels).fooled.any()


def scaled_logits(inputs: Tensor) -> Tensor:
    """Two classes with a boundary at zero; the second feature tells how steep, and so which weight an example needs."""
    score = inputs[:, :1] * inputs[:, 1:].detach()
    return torch.cat([score, -score], dim=1)


def test_the_search_of_an_example_is_its_own() -> None:
    """Where others are searched for longer, an example is left as it was found."""
    inputs = torch.tensor([[0.5, 0.02], [0.5, 0.7], [0.5, 3.0], [0.5, 40.0]], dtype=torch.float64)
    labels = torch.zeros(4, dtype=torch.int64)
    attack = attacks.MinimumNorm(bounds=WIDE, steps=30, step_size=0.05, bisections=1, seed=0)
    whole, alone = (replace(attack, batch_size=rows)(scaled_logits, inputs, labels) for rows in (4, 1))
    torch.testing.assert_close(alone.inputs, whole.inputs, atol=1e-9, rtol=0.0)
    assert torch.equal(alone.c, whole.c)
    assert len(set(whole.c.tolist())) == 4
    assert whole.fooled.all()


def test_without_a_search_one_weight_holds_for_all_and_perturbations_go_beyond_the_boundary() -> None:
    net = linear_net()
    inputs, labels = right_points(net)
    labels = torch.cat([labels[:-1], 1 - labels[-1:]])  # the last is wrong already
    boundary = closed_form(net, inputs[:-1], labels[:-1])
    once = replace(QUICK["targeted"], search=False, steps=200)
    found = {c: replace(once, c=c)(net, inputs, labels) for c in (0.1, 0.5, 20.0)}
    assert all(torch.equal(result.inputs[-1], inputs[-1]) and result.fooled[-1] for result in found.values())
    assert found[0.5].c is not None
    assert found[0.5].c[:-1].eq(0.5).all()
    assert found[0.5].c[-1].isnan()
    assert (found[0.1].norm[:-1] > found[0.5].norm[:-1]).all()
    assert (found[0.5].norm[:-1] > 1.05 * boundary).all()
    # Where the solver has come to rest, the loss falls as fast as the distance costs: p(y) ||w_t - w_y|| = c.
    apart = (net.weight[0] - net.weight[1]).norm()
    left = net(found[0.5].inputs).softmax(dim=1).gather(1, labels[:, None])[:-1, 0]
    torch.testing.assert_close(left * apart, torch.full_like(left, 0.5), rtol=0.05, atol=0.0)
    assert not found[20.0].fooled[:-1].any()
    assert torch.equal(found[20.0].inputs, inputs)
    kept = {c: replace(once, c=c, keep_unsolved=True)(net, inputs, labels) for c in (0.5, 20.0)}
    assert torch.equal(kept[0.5].inputs, found[0.5].inputs)  # all of these fool the network
    assert torch.equal(kept[20.0].inputs[-1], inputs[-1])
    assert torch.equal(kept[20.0].fooled, found[20.0].fooled)
    assert (kept[20.0].norm[:-1] > 0.0).all()
    assert kept[20.0].c is not None
    assert kept[20.0].c[:-1].eq(20.0).all()


def test_only_one_weight_for_all_leaves_images_that_do_not_fool() -> None:
    message = "keep_unsolved must be False with search=True, which keeps what fools alone, got True"
    with pytest.raises(ValueError, match=message):
        attacks.MinimumNorm(keep_unsolved=True)


def test_without_a_search_there_is_no_nearest_of_all_targets() -> None:
    with pytest.raises(ValueError, match="target must not be 'best_of_all' with search=False"):
        attacks.MinimumNorm(target="best_of_all", search=False)
