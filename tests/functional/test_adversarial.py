"""What an attacker raises and how far one may go, against definitions in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dubio import functional


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_losses_are_their_definitions(classes: int) -> None:
    logits = 3.0 * torch.randn(20, classes, dtype=torch.float64)
    labels = torch.randint(classes, (20,))
    cross_entropy, margin, dlr = (
        functional.adversarial.attack_loss(logits, labels, loss) for loss in ("cross_entropy", "margin", "dlr")
    )
    for row, (scores, label) in enumerate(zip(logits.numpy(), labels.tolist(), strict=True)):
        others = np.delete(scores, label)
        ordered = np.sort(scores)[::-1]
        assert cross_entropy[row].item() == pytest.approx(np.log(np.exp(scores).sum()) - scores[label])
        assert margin[row].item() == pytest.approx(others.max() - scores[label])
        assert dlr[row].item() == pytest.approx((others.max() - scores[label]) / (ordered[0] - ordered[2]))


@pytest.mark.parametrize("loss", ["margin", "dlr"])
def test_a_margin_is_positive_where_the_network_is_wrong(loss: str) -> None:
    logits = torch.randn(100, 5)
    labels = torch.randint(5, (100,))
    assert torch.equal(functional.adversarial.attack_loss(logits, labels, loss) > 0.0, logits.argmax(dim=1) != labels)


@pytest.mark.parametrize("loss", ["cross_entropy", "margin", "dlr"])
@pytest.mark.parametrize("objective", ["predictive", "expected", "mean_logit"])
def test_no_loss_is_sensitive_to_a_constant_of_each_draw(objective: str, loss: str) -> None:
    logits = torch.randn(6, 9, 5, dtype=torch.float64)
    labels = torch.randint(5, (9,))
    log_probs = logits.log_softmax(dim=-1)
    found = functional.adversarial.averaged_attack_loss(log_probs, labels, objective, loss)
    if objective == "mean_logit":
        torch.testing.assert_close(found, functional.adversarial.attack_loss(logits.mean(dim=0), labels, loss))
    if objective == "expected":
        torch.testing.assert_close(
            found, torch.stack([functional.adversarial.attack_loss(draw, labels, loss) for draw in logits]).mean(0)
        )
    if objective == "predictive":
        mean = logits.softmax(dim=-1).mean(dim=0)
        torch.testing.assert_close(found, functional.adversarial.attack_loss(mean.log(), labels, loss))


@pytest.mark.parametrize("size", [1.0, 1e-20, 1e-37])
def test_directions_have_length_one_however_small_the_gradient(size: float) -> None:
    gradient = size * torch.randn(8, 3, 4)
    torch.testing.assert_close(
        functional.adversarial.steepest_direction(gradient, "l2").flatten(1).norm(dim=1), torch.ones(8)
    )
    assert torch.equal(functional.adversarial.steepest_direction(gradient, "linf").abs(), torch.ones(8, 3, 4))
    assert functional.adversarial.steepest_direction(torch.zeros(2, 3), "l2").tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_steepest_direction_raises_a_linear_loss_most(norm: str) -> None:
    gradient = torch.randn(1, 6)
    best = (functional.adversarial.steepest_direction(gradient, norm) * gradient).sum()
    others = functional.adversarial.random_perturbation(torch.rand(500, 6), torch.randn(500, 6), norm, 1.0)
    assert ((others * gradient).sum(dim=1) <= best + 1e-6).all()


@settings(deadline=None, max_examples=200)
@given(
    norm=st.sampled_from(["linf", "l2"]),
    epsilon=st.floats(1e-6, 1.0),
    size=st.floats(1e-4, 3.0),
    wide=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_projected_points_lie_in_the_ball_exactly(
    norm: str, epsilon: float, size: float, wide: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(5, 40, generator=generator)
    inputs = 2.0 * inputs - 1.0 if wide else inputs
    candidate = inputs + size * torch.randn(5, 40, generator=generator)
    found = functional.adversarial.project_inputs(candidate, inputs, norm, epsilon)
    moved = (found.double() - inputs.double()).norm(dim=1, p=2 if norm == "l2" else torch.inf)
    assert moved.max() <= epsilon
    # As far as they may be, up to the last digits of an input.
    reach = (candidate.double() - inputs.double()).norm(dim=1, p=2 if norm == "l2" else torch.inf).clamp_max(epsilon)
    torch.testing.assert_close(moved, reach, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_what_is_inside_is_not_moved(norm: str) -> None:
    inputs = torch.rand(5, 40)
    candidate = inputs + 0.001 * torch.rand(5, 40)
    torch.testing.assert_close(
        functional.adversarial.project_inputs(candidate, inputs, norm, 0.5), candidate, atol=1e-7, rtol=0.0
    )


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_radius_for_each_example_is_that_of_the_example(norm: str) -> None:
    perturbation = torch.randn(4, 3, 5)
    radii = torch.tensor([0.1, 0.5, 2.0, torch.inf])
    found = functional.adversarial.project_perturbation(perturbation, norm, radii)
    for row in range(4):
        alone = functional.adversarial.project_perturbation(perturbation[row : row + 1], norm, float(radii[row]))
        torch.testing.assert_close(found[row : row + 1], alone)
    torch.testing.assert_close(found[3], perturbation[3])


def test_random_perturbations_are_spread_evenly_over_the_ball() -> None:
    for norm, dimensions in (("linf", 2), ("l2", 3)):
        shape = (20_000, dimensions)
        found = functional.adversarial.random_perturbation(torch.rand(shape), torch.randn(shape), norm, 2.0)
        sizes = functional.adversarial.perturbation_norm(found, norm)
        assert sizes.max() <= 2.0
        # The share of the ball within half of its radius is that of the volumes: 4 standard errors.
        share = 0.5**dimensions
        assert abs((sizes < 1.0).float().mean().item() - share) < 4.0 * (share * (1.0 - share) / 20_000) ** 0.5
        assert found.mean(dim=0).abs().max() < 4.0 * 2.0 / 20_000**0.5


@pytest.mark.parametrize("epsilon", [0.1, 0.2, 0.3, 0.6])
def test_a_radius_that_single_precision_rounds_up_is_kept(epsilon: float) -> None:
    inputs = -epsilon * torch.rand(1, 2000)  # so that results lie near zero, where numbers are finer than the radius
    found = functional.adversarial.project_inputs(inputs + 1.0, inputs, "linf", epsilon)
    assert (found.double() - inputs.double()).max() <= epsilon


def test_votes_are_the_shares_of_draws_with_half_a_vote_added() -> None:
    log_probs = torch.tensor([[[0.6, 0.3, 0.1]], [[0.5, 0.4, 0.1]], [[0.1, 0.8, 0.1]]]).log().requires_grad_(True)

    found = functional.adversarial.vote_log_shares(log_probs)

    torch.testing.assert_close(found.exp(), torch.tensor([[2.5, 1.5, 0.5]]) / 4.5)
    assert not found.requires_grad
    margin = functional.adversarial.averaged_attack_loss(log_probs, torch.tensor([0]), "votes", "margin")
    torch.testing.assert_close(margin, torch.log(torch.tensor([1.5 / 2.5])))
