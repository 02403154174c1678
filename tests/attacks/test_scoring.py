"""What is left of a network, told by draws that had no part in the attack."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from attack_table import bayesian_net, examples, plain_net
from dubio import attacks
from dubio.attacks.attack import AttackResult
from dubio.attacks.score import Score, _summary

ROWS = 400


def blind(share: float, shared: bool = False) -> Callable[[Tensor], Tensor]:
    """A classifier that ignores its inputs and is right (says class 0) with a given probability.

    It is sure of itself, so that the mean over draws is a vote. With ``shared`` noise all rows of a call are right or
    wrong together.
    """

    def logits(inputs: Tensor) -> Tensor:
        right = torch.rand(1 if shared else len(inputs)) < share
        scores = torch.stack([right, ~right], dim=1).to(inputs.dtype).expand(len(inputs), 2)
        return 40.0 * scores + 0.0 * inputs.sum(dim=1, keepdim=True)

    return logits


def zeros() -> tuple[Tensor, Tensor]:
    return torch.full((ROWS, 3), 0.5), torch.zeros(ROWS, dtype=torch.int64)


@pytest.mark.parametrize("share", [0.51, 0.905])
@pytest.mark.feature(
    "Scores on fresh draws: a classifier that ignores its input gets its true accuracy, attacked or not"
)
def test_a_classifier_that_ignores_its_input_gets_its_true_scores(share: float) -> None:
    model, (inputs, labels) = blind(share), zeros()
    attack = attacks.PGD(epsilon=0.1, steps=2, restarts=8, num_samples=1, seed=0)
    result = attack(model, inputs, labels)
    found = attacks.score(model, result.inputs, labels, num_samples=101, num_tries=10, seed=0)
    assert found.single.low <= share <= found.single.high
    assert found.single.high - found.single.low < 0.05
    vote = stats.binom.sf(50, 101, share)
    assert found.predictive.low <= vote <= found.predictive.high
    assert found.retry.low <= share**10 <= found.retry.high

    # The flags were set by the draws that chose: they say that nearly everything is fooled.
    by_flags = 1.0 - result.fooled.double().mean().item()
    assert by_flags == pytest.approx(share**8, abs=4.0 * math.sqrt(share**8 * (1.0 - share**8) / ROWS))
    assert by_flags < found.single.low - 0.3


@pytest.mark.parametrize("shared", [False, True])
def test_intervals_hold_the_truth_as_often_as_they_say(shared: bool) -> None:
    """Over 100 repetitions, in which draws are each example's own or common to all: 95 % up to 4 standard errors."""
    share, draws, rows = 0.9, 60, 50
    truths = {"single": share, "retry": share**5}
    held = dict.fromkeys(truths, 0)
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        right = (torch.rand(draws, 1 if shared else rows, generator=generator) < share).expand(draws, rows)
        found = _summary(right.float().mean(dim=0) > 0.5, right, 5)
        for name, truth in truths.items():
            interval = getattr(found, name)
            held[name] += interval.low <= truth <= interval.high
    assert min(held.values()) / 100 > 0.95 - 4.0 * math.sqrt(0.95 * 0.05 / 100)


def test_scores_of_a_network_without_noise_are_its_accuracy() -> None:
    inputs, labels = examples(rows=20)
    labels = torch.where(torch.arange(20) < 5, (labels + 1) % 4, labels)
    found = attacks.score(plain_net(), inputs, labels)
    assert found.predictive.value == found.single.value == found.retry.value == 0.75
    assert found.predictive_per_example.tolist() == [False] * 5 + [True] * 15
    assert found.single_per_example.tolist() == [0.0] * 5 + [1.0] * 15
    assert found.num_samples == 100
    interval = stats.binomtest(15, 20).proportion_ci(method="exact")
    assert (found.predictive.low, found.predictive.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


def test_scores_print_on_one_line() -> None:
    found = attacks.score(plain_net(), *examples())
    assert str(found).startswith("R_pred(100) 100.0% (59.0% to 100.0%), R_1 100.0% (")
    assert ", R_retry(10) 100.0% (" in str(found)


def test_t26_a_ball_of_radius_zero_leaves_the_clean_accuracy() -> None:
    model, net = bayesian_net("weight"), plain_net()
    inputs, labels = examples(rows=60)
    labels = torch.where(torch.arange(60) < 20, (labels + 1) % 4, labels)
    attack = attacks.FGSM(epsilon=0.0)

    def scores(target: Any, **options: Any) -> tuple[Score, Score]:
        attacked = attack(target, inputs, labels).inputs
        return tuple(attacks.score(target, points, labels, **options) for points in (inputs, attacked))  # type: ignore[return-value]

    clean, zero = scores(net)
    assert clean.predictive.value == zero.predictive.value == pytest.approx(2 / 3)
    clean, zero = scores(model, num_samples=200)
    error = (clean.single.high - clean.single.low) / (2.0 * 1.96)
    assert abs(clean.single.value - zero.single.value) < 4.0 * math.sqrt(2.0) * error


class Remembering:
    """A classifier that remembers the random numbers it has drawn."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def __call__(self, inputs: Tensor) -> Tensor:
        noise = torch.rand(1, dtype=torch.float64)
        self.drawn.append(noise.item())
        return inputs[:, :2] + noise

    def forget(self) -> set[float]:
        drawn, self.drawn = set(self.drawn), []
        return drawn


def test_attack_choice_and_score_of_the_same_seed_see_other_draws() -> None:
    model = Remembering()
    inputs, labels = zeros()
    result = attacks.PGD(steps=3, seed=5, num_samples=4)(model, inputs, labels)
    of_attack = model.forget()
    attacks.strongest(model, [result], labels, seed=5)
    of_choice = model.forget()
    attacks.score(model, result.inputs, labels, seed=5)
    of_score = model.forget()
    assert min(map(len, (of_attack, of_choice, of_score))) > 10
    assert not of_attack & of_choice
    assert not of_attack & of_score
    assert not of_choice & of_score


def test_a_seed_repeats_a_score_and_a_choice() -> None:
    model, (inputs, labels) = bayesian_net("local"), examples()
    result = attacks.PGD(steps=1)(model, inputs, labels)
    before = torch.get_rng_state()
    first, again, other = (attacks.score(model, inputs, labels, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.single_per_example, again.single_per_example)
    assert not torch.equal(first.single_per_example, other.single_per_example)
    attacks.strongest(model, [result], labels, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def lying(inputs: Tensor, fooled: bool, loss: float) -> AttackResult:
    rows = torch.full((len(inputs),), loss)
    return AttackResult(
        inputs, rows, torch.zeros_like(rows), torch.full_like(rows, fooled, dtype=torch.bool), 1, 1, 0.0
    )


def test_the_strongest_is_chosen_by_draws_and_not_by_what_attacks_say_of_themselves() -> None:
    model, (inputs, labels) = bayesian_net("local"), examples(rows=40)
    attacked = attacks.PGD(epsilon=0.3, seed=0)(model, inputs, labels).inputs
    halves = torch.arange(40).unsqueeze(1) < 20
    first = lying(torch.where(halves, attacked, inputs), fooled=False, loss=-100.0)
    second = lying(torch.where(halves, inputs, attacked), fooled=True, loss=100.0)
    chosen, which = attacks.strongest(model, [first, second], labels, num_samples=50, batch_size=16)
    assert (which == (torch.arange(40) >= 20)).float().mean() > 0.9
    rows = torch.arange(40)
    assert torch.equal(chosen, torch.stack([first.inputs, second.inputs])[which, rows])


def test_restarts_are_chosen_by_success_first_and_by_loss_second() -> None:
    from dubio.attacks.attack import Perturbed, stronger

    def attempt(value: float, fooled: bool) -> Perturbed:
        return Perturbed(torch.full((1, 2), value), torch.tensor([value]), torch.tensor([fooled]))

    for one, other, best in (
        (attempt(1.0, False), attempt(2.0, False), 2.0),
        (attempt(1.0, True), attempt(2.0, False), 1.0),
        (attempt(2.0, False), attempt(1.0, True), 1.0),
        (attempt(3.0, True), attempt(2.0, True), 3.0),
    ):
        assert stronger(one, other).values.item() == best
        assert stronger(one, other).inputs[0, 0].item() == best


def test_more_restarts_are_never_weaker_on_the_draws_that_choose() -> None:
    inputs, labels = examples(rows=30)
    attack = attacks.PGD(epsilon=0.1, steps=2, seed=0)
    one, five = (replace(attack, restarts=count)(plain_net(), inputs, labels) for count in (1, 5))
    assert (five.fooled | ~one.fooled).all()
    same = five.fooled == one.fooled
    assert (five.loss[same] >= one.loss[same]).all()
