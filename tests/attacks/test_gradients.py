"""Steps along the gradient: of a linear network by hand (T-59, T-60, T-62), and over draws (T-64)."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from attack_table import bayesian_net, examples, plain_net
from dubio import attacks
from dubio._engine import isolated
from dubio._engine.execute import run
from dubio.attacks import target as target_module

WEIGHT = torch.tensor([[1.0, -2.0, 0.5, 0.0, 3.0], [0.5, 1.0, -1.5, 2.0, 3.0]])
SIGNS = (WEIGHT[1] - WEIGHT[0]).sign()  # of the step away from class 0; the last weight is in both classes


def linear_net() -> nn.Module:
    """Softmax regression with two classes."""
    net = nn.Linear(5, 2)
    net.load_state_dict({"weight": WEIGHT, "bias": torch.tensor([0.3, -0.1])})
    return net


def inner_points(rows: int = 6) -> tuple[Tensor, Tensor]:
    """Inputs away from the edge of the box, of both classes."""
    return 0.3 + 0.4 * torch.rand(rows, 5), torch.arange(rows) % 2


def cross_entropy(net: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        return nn.functional.cross_entropy(net(inputs), labels, reduction="none")


@pytest.mark.parametrize("epsilon", [0.0, 1 / 255, 8 / 255, 0.2])
def test_t59_fgsm_moves_along_the_difference_of_the_weights(epsilon: float) -> None:
    net = linear_net()
    inputs, labels = inner_points()
    result = attacks.FGSM(epsilon=epsilon)(net, inputs, labels)
    away = torch.where(labels == 0, 1.0, -1.0).unsqueeze(1) * SIGNS
    # The gradient for the last input, whose weights are equal, is rounding: its sign is left open.
    torch.testing.assert_close(result.inputs[:, :4], (inputs + epsilon * away)[:, :4])
    assert (result.inputs.double() - inputs.double()).abs().max() <= epsilon
    raised = cross_entropy(net, result.inputs, labels) - cross_entropy(net, inputs, labels)
    assert (raised > 0.0).all() if epsilon else torch.equal(result.inputs, inputs)


def test_fgsm_on_its_own_label_leaves_what_the_network_says() -> None:
    net = linear_net()
    inputs, _ = inner_points()
    own = net(inputs).argmax(dim=1)
    wrong = 1 - own
    found = attacks.fgsm(net, inputs, wrong, label="own", epsilon=0.1)
    # The last input has the same weight in both classes: its gradient is rounding alone.
    assert torch.equal(found[:, :4], attacks.fgsm(net, inputs, own, epsilon=0.1)[:, :4])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_t60_one_step_of_pgd_is_fgsm(norm: str) -> None:
    inputs, labels = examples()
    one_step = attacks.pgd(
        plain_net(), inputs, labels, norm=norm, steps=1, step_size=0.1, epsilon=0.1, random_start=False
    )
    torch.testing.assert_close(one_step, attacks.fgsm(plain_net(), inputs, labels, norm=norm, epsilon=0.1))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_t60_iterates_of_pgd_stay_in_ball_and_box(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    look = target_module.AttackTarget.loss_and_grad
    monkeypatch.setattr(
        target_module.AttackTarget,
        "loss_and_grad",
        lambda self, moved, labels: (seen.append(moved), look(self, moved, labels))[1],
    )
    inputs, labels = examples()
    attacks.PGD(norm=norm, epsilon=0.1, steps=7, step_size=0.07, batch_size=7)(plain_net(), inputs, labels)
    assert len(seen) == 7
    for moved in seen:
        distance = (moved.double() - inputs.double()).norm(dim=1, p=2 if norm == "l2" else torch.inf)
        assert distance.max() <= 0.1
        assert moved.min() >= 0.0
        assert moved.max() <= 1.0


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_t60_seven_steps_raise_a_convex_loss_more_than_one(norm: str) -> None:
    net, (inputs, labels) = linear_net(), inner_points()
    options: dict[str, Any] = {"norm": norm, "epsilon": 0.2, "step_size": 0.03, "random_start": False}
    one, seven = (attacks.pgd(net, inputs, labels, steps=steps, **options) for steps in (1, 7))
    assert (cross_entropy(net, seven, labels) > cross_entropy(net, one, labels)).all()


def test_momentum_keeps_a_share_of_the_direction_before() -> None:
    gradients = [torch.tensor([[3.0, 4.0]]), torch.tensor([[-4.0, 3.0]])]
    taken: list[Tensor] = []

    class Scripted(target_module.AttackTarget):
        def loss_and_grad(self, inputs: Tensor, labels: Tensor, goals: object = None) -> target_module.Perturbed:
            taken.append(inputs)
            flags = torch.zeros(1).bool()
            return target_module.Perturbed(inputs, torch.zeros(1), flags, grad=gradients[len(taken) - 1])

    attack = attacks.PGD(norm="l2", epsilon=1.0, steps=2, step_size=0.1, momentum=0.5, random_start=False)
    target = Scripted(lambda inputs: inputs, 1, "predictive", "cross_entropy", "fresh", 0)
    start = torch.tensor([[0.5, 0.5]])
    end = attack._climb(target, start, torch.tensor([0]), attacks.attack.Progress(2, "", False))
    second = 0.5 * torch.tensor([0.6, 0.8]) + torch.tensor([-0.8, 0.6])
    torch.testing.assert_close(end[0], start[0] + 0.1 * torch.tensor([0.6, 0.8]) + 0.1 * second / second.norm())


def test_t62_a_small_step_raises_the_wanted_class() -> None:
    net = plain_net()
    inputs, labels = examples()
    wanted = (labels + 1) % 4
    moved = attacks.targeted_fgsm(net, inputs, wanted, steps=1, step_size=1e-4)
    assert (cross_entropy(net, moved, wanted) < cross_entropy(net, inputs, wanted)).all()
    inside = (inputs > 1e-3) & (inputs < 1.0 - 1e-3)
    torch.testing.assert_close(
        (moved - inputs).abs()[inside], torch.full((int(inside.sum()),), 1e-4), atol=1e-7, rtol=0.0
    )


def test_t62_images_of_the_wanted_class_tell_nothing_and_are_for_the_caller_to_leave_out() -> None:
    net = plain_net()
    inputs, labels = examples()
    result = attacks.TargetedFGSM(steps=5)(net, inputs, labels)
    assert result.fooled.all()
    assert (cross_entropy(net, result.inputs, labels) <= cross_entropy(net, inputs, labels)).all()


OBJECTIVES = ["predictive", "expected", "mean_logit"]
LOSSES = ["cross_entropy", "margin", "dlr"]


def by_hand(logits: Tensor, labels: Tensor, objective: str, loss: str) -> Tensor:
    """The attacker's loss from raw logits of all draws, `(sample, batch, class)`, one example after another."""

    def of_one(scores: Tensor, label: int) -> Tensor:
        if loss == "cross_entropy":
            return torch.logsumexp(scores, dim=0) - scores[label]
        others = torch.stack([score for k, score in enumerate(scores) if k != label])
        first, _, third, *_ = scores.sort(descending=True).values
        return (others.max() - scores[label]) / (1.0 if loss == "margin" else first - third)

    values = []
    for row, label in enumerate(labels.tolist()):
        draws = logits[:, row]
        if objective == "expected":
            values.append(sum(of_one(draw, label) for draw in draws) / len(draws))
        elif objective == "mean_logit":
            values.append(of_one(sum(draws) / len(draws), label))
        else:
            values.append(of_one((sum(draw.softmax(dim=0) for draw in draws) / len(draws)).log(), label))
    return torch.stack(values)


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.feature(
    "Attack gradients are those of the average over draws (EOT), for three objectives and three losses"
)
def test_t64_the_gradient_is_that_of_the_averaged_objective(objective: str, loss: str, targeted: bool) -> None:
    model = bayesian_net("local", torch.float64)
    inputs, labels = examples(model, dtype=torch.float64)
    target = target_module.AttackTarget(model, 5, objective, loss, "frozen", 7, targeted)
    with isolated(model, training=False, trainable=False):
        view = target.loss_and_grad(inputs, labels)

    leaf = inputs.clone().requires_grad_(True)
    values = by_hand(dubio.sample(model, leaf, 5, seed=7), labels, objective, loss)
    sign = -1.0 if targeted else 1.0
    (gradient,) = torch.autograd.grad(sign * values.sum(), leaf)
    torch.testing.assert_close(view.values, sign * values.detach(), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(view.gradient, gradient, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_t64_the_gradient_of_many_draws_is_not_that_of_one(objective: str) -> None:
    model = bayesian_net("local", torch.float64)
    inputs, labels = examples(model, dtype=torch.float64)
    one, many = (
        target_module.AttackTarget(model, count, objective, "cross_entropy", "frozen", 7)
        .loss_and_grad(inputs, labels)
        .gradient
        for count in (1, 5)
    )
    assert (one - many).abs().max() > 0.01


def uncertainty_by_hand(logits: Tensor, uncertainty: str) -> Tensor:
    """Entropy of the mean prediction, less the mean entropy of the draws, from logits `(sample, batch, class)`."""

    def entropy(probs: Tensor) -> Tensor:
        return -(probs * probs.log()).sum(dim=-1)

    probs = logits.softmax(dim=-1)
    total = entropy(probs.mean(dim=0))
    return total if uncertainty == "entropy" else total - entropy(probs).mean(dim=0)


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("uncertainty", ["entropy", "mutual_information"])
@pytest.mark.feature("A detector-aware attack: the loss less the uncertainty over draws, or the uncertainty alone")
def test_evade_follows_the_loss_and_where_it_fools_less_the_uncertainty_over_all_draws(
    uncertainty: str, targeted: bool
) -> None:
    model = bayesian_net("local", torch.float64)
    inputs, labels = examples(model, dtype=torch.float64)
    labels = torch.where(torch.arange(len(labels)) % 2 == 0, labels, (labels + 1) % 4)  # right and wrong ones
    attack = attacks.Evade(
        weight=0.7, uncertainty=uncertainty, targeted=targeted, num_samples=5, noise="frozen", seed=7
    )
    target = attack.target_for(model)
    with isolated(model, training=False, trainable=False):
        gradient = attack._loss_and_grad(target, inputs, labels).gradient
        alone = replace(attack, goal="reject", targeted=False)._loss_and_grad(target, inputs, labels).gradient

    leaf = inputs.clone().requires_grad_(True)
    logits = dubio.sample(model, leaf, 5, seed=7)
    loss = by_hand(logits, labels, "predictive", "cross_entropy") * (-1.0 if targeted else 1.0)
    score = uncertainty_by_hand(logits, uncertainty)
    fooled = (logits.softmax(dim=-1).mean(dim=0).argmax(dim=-1) == labels) == targeted
    assert 0 < fooled.sum() < len(fooled)
    (expected,) = torch.autograd.grad((loss - 0.7 * score * fooled).sum(), leaf, retain_graph=True)
    (of_the_score,) = torch.autograd.grad(score.sum(), leaf)
    torch.testing.assert_close(gradient, expected, atol=1e-9, rtol=1e-7)
    torch.testing.assert_close(alone, of_the_score, atol=1e-9, rtol=1e-7)
    assert (target.forwards, target.backwards) == (10, 10)


def test_evade_is_pgd_without_weight_and_hides_or_raises_uncertainty_with_it() -> None:
    model = dubio.Bayes(init_std=0.05).convert(plain_net())
    options: dict[str, Any] = {"epsilon": 0.3, "steps": 20, "num_samples": 10, "seed": 3}
    inputs, labels = examples(rows=60)
    pgd = attacks.PGD(**options)(model, inputs, labels)
    same = attacks.Evade(weight=0.0, **options)(model, inputs, labels)
    torch.testing.assert_close(same.inputs, pgd.inputs)
    torch.testing.assert_close(same.loss, pgd.loss)

    def entropy(points: Tensor) -> float:
        return float(dubio.predict(model, points, 200, seed=1).entropy.mean())

    hidden = attacks.Evade(weight=5.0, **options)(model, inputs, labels)
    raised = attacks.Evade(goal="reject", **options)(model, inputs, labels)
    assert entropy(hidden.inputs) < entropy(pgd.inputs) - 0.02
    assert hidden.fooled.sum() >= 0.9 * pgd.fooled.sum() > 0
    assert entropy(raised.inputs) > entropy(pgd.inputs) + 0.02


def test_of_restarts_evade_keeps_the_most_uncertain_or_one_that_fools() -> None:
    first = attacks.attack.Perturbed(torch.zeros(2, 1), torch.tensor([1.0, 1.0]), torch.tensor([True, False]))
    second = attacks.attack.Perturbed(torch.ones(2, 1), torch.tensor([2.0, 0.0]), torch.tensor([False, True]))
    target = attacks.Evade().target_for(plain_net())
    expected = {"accept": [0.0, 1.0], "reject": [1.0, 0.0]}
    for goal, inputs in expected.items():
        attempts = iter((first, second))

        class Scripted(attacks.Evade):
            def _climb(self, *given: Any) -> Tensor:
                self.__dict__["attempt"] = attempt = next(attempts)  # noqa: B023
                return attempt.inputs

            def _evaluate(self, *given: Any) -> tuple[Tensor, Tensor]:
                return self.__dict__["attempt"].values, self.__dict__["attempt"].fooled

        attack = Scripted(goal=goal, restarts=2)
        best = attack._perturb(target, torch.zeros(2, 1), torch.tensor([0, 0]), attacks.attack.Progress(1, "", False))
        assert best.inputs.flatten().tolist() == inputs


@pytest.mark.parametrize("estimator", ["local", "weight"])
def test_draws_give_the_same_attack_mapped_or_looped(estimator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bayesian_net(estimator)
    inputs, labels = examples()
    attack = attacks.PGD(epsilon=0.1, steps=5, noise="frozen", seed=1, num_samples=6)
    found = []
    for executor in ("vmap", "loop"):
        monkeypatch.setattr(
            target_module,
            "run",
            lambda *args, executor="", chosen=executor, **rest: run(*args, executor=chosen, **rest),
        )
        found.append(attack(model, inputs, labels))
    torch.testing.assert_close(found[0].inputs, found[1].inputs, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(found[0].loss, found[1].loss, atol=1e-5, rtol=1e-4)


class Rare(nn.Module):
    """Noise that seldom changes anything: two draws agree by chance most of the time."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + (torch.rand(()) > 0.999)


def test_a_network_without_noise_is_one_draw_and_one_with_rare_noise_is_not() -> None:
    inputs, labels = examples()
    assert attacks.FGSM()(plain_net(), inputs, labels).forwards == 2
    assert attacks.FGSM()(bayesian_net("local"), inputs, labels).forwards == 40
    assert attacks.FGSM()(nn.Sequential(Rare(), plain_net()), inputs, labels).forwards == 40


def test_large_data_is_cut_by_memory_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels = examples(rows=30)
    whole = attacks.PGD(steps=2, seed=1)(plain_net(), inputs, labels)
    pieces: list[int] = []
    perturb = attacks.PGD._perturb
    monkeypatch.setattr(
        attacks.PGD,
        "_perturb",
        lambda self, target, rows, *rest: (pieces.append(len(rows)), perturb(self, target, rows, *rest))[1],
    )
    monkeypatch.setattr(target_module, "memory_budget", lambda device: 3_000)
    cut = attacks.PGD(steps=2, seed=1)(plain_net(), inputs, labels)
    assert 1 < len(pieces) < 30
    assert sum(pieces) == 30
    torch.testing.assert_close(cut.inputs, whole.inputs)
    assert (cut.forwards, cut.backwards) == (whole.forwards, whole.backwards)
