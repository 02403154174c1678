"""Rules by which attacks step, on small cases worked out by hand."""

import math

import pytest
import torch

from dubio import functional


def test_checkpoints_are_those_of_auto_pgd() -> None:
    # p = 0.22, 0.41, 0.57, 0.70, 0.80, 0.87, 0.93, 0.99 of a hundred steps.
    assert functional.adversarial.halving_checkpoints(100) == (22, 41, 57, 70, 80, 87, 93, 99)
    assert functional.adversarial.halving_checkpoints(10) == (3, 5, 6, 7, 8, 9)
    assert functional.adversarial.halving_checkpoints(1) == ()


def test_steps_are_halved_when_too_few_rose_or_when_all_stood_still() -> None:
    num_rises = torch.tensor([7.0, 8.0, 8.0, 8.0, 10.0])
    halved_before = torch.tensor([False, False, True, False, False])
    best = torch.tensor([2.0, 1.0, 1.0, 2.0, 2.0])
    found = functional.adversarial.should_halve(num_rises, 10, halved_before, best, torch.ones(5))
    # Seven of ten; no better best; no better best, but just halved; better; all rose.
    assert found.tolist() == [True, True, False, False, False]
    assert functional.adversarial.should_halve(
        torch.tensor([7.5]), 10, halved_before[:1], best[:1], torch.ones(1)
    ).tolist() == [False]


def test_momentum_repeats_the_step_before() -> None:
    before, point, proposal = (torch.tensor([[value]]) for value in (0.0, 1.0, 3.0))
    assert functional.adversarial.with_momentum(point, before, proposal, 0.75).item() == 1.0 + 0.75 * 2.0 + 0.25 * 1.0
    assert functional.adversarial.with_momentum(point, before, proposal, 1.0).item() == 3.0


def test_annealing_goes_from_first_to_last_through_the_middle() -> None:
    assert [functional.adversarial.cosine_annealed(1.0, 0.01, t) for t in (0.0, 0.5, 1.0)] == pytest.approx(
        [1.0, 0.505, 0.01]
    )


def test_a_decoupled_radius_shrinks_after_success() -> None:
    found = functional.adversarial.next_decoupled_radius(torch.tensor([1.0, 1.0]), torch.tensor([True, False]), 0.05)
    torch.testing.assert_close(found, torch.tensor([0.95, 1.05]))


def test_a_boundary_radius_follows_the_best_found() -> None:
    inf = math.inf
    cases = [  # radius, fooled, best, linear -> next
        (inf, False, inf, 2.0, 2.2),  # at first as far as the boundary seems to be, and a little more
        (2.2, False, inf, 2.0, 2.42),  # never less than before while nothing is found
        (2.0, False, inf, 3.0, 3.3),
        (2.0, True, 1.5, 9.0, 1.5),  # never more than the best
        (2.0, True, 1.9, 9.0, 1.8),
        (2.0, False, 1.5, 9.0, 2.2),
        (inf, True, 0.0, 9.0, 0.0),  # fooled from the start
    ]
    radius, fooled, best, linear, expected = (torch.tensor(column) for column in zip(*cases, strict=True))
    torch.testing.assert_close(functional.adversarial.next_boundary_radius(radius, fooled, best, linear, 0.1), expected)


@pytest.mark.parametrize(("norm", "distance"), [("l2", 10.0 / 5.0), ("linf", 10.0 / 7.0)])
def test_the_distance_to_a_linear_boundary_is_exact(norm: str, distance: float) -> None:
    gradient = torch.tensor([[3.0, -4.0]])
    assert functional.adversarial.boundary_distance(torch.tensor([-10.0]), gradient, norm).item() == pytest.approx(
        distance
    )


def test_the_objective_of_the_minimum_norm_is_e_64() -> None:
    perturbation = torch.tensor([[3.0, 4.0], [3.0, 4.0]])
    values, c = torch.tensor([-2.0, 2.0]), torch.tensor([0.1, 10.0])
    found = functional.adversarial.minimum_norm_objective(perturbation, values, c, hinged=False)
    torch.testing.assert_close(found, torch.tensor([0.5 + 2.0, 50.0 - 2.0]))
    hinged = functional.adversarial.minimum_norm_objective(perturbation, values, c, hinged=True)
    torch.testing.assert_close(hinged, torch.tensor([0.5 + 2.0, 50.0]))


def test_the_objective_has_a_gradient_at_zero() -> None:
    perturbation = torch.zeros(1, 3, requires_grad=True)
    functional.adversarial.minimum_norm_objective(
        perturbation, torch.zeros(1), torch.ones(1), hinged=False
    ).sum().backward()
    assert perturbation.grad.tolist() == [[0.0, 0.0, 0.0]]


def test_the_weight_is_searched_by_decades_and_then_bisected() -> None:
    c = torch.tensor([0.1, 0.1, 1.0, 0.1])
    works, fails = torch.tensor([0.1, 0.0, 1.0, 0.01]), torch.tensor([math.inf, 0.1, 100.0, 0.1])
    expected = torch.tensor([1.0, 0.01, 10.0, math.sqrt(0.001)])
    torch.testing.assert_close(functional.adversarial.next_penalty(c, works, fails), expected)


def test_squares_shrink_as_published() -> None:
    halvings = [
        functional.adversarial.square_share(k, 10_000, 1.0) for k in (0, 10, 11, 51, 201, 1001, 2001, 4001, 6001, 8001)
    ]
    assert halvings == [1.0, 1.0, 0.5, 0.25, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert functional.adversarial.square_share(101, 1000, 1.0) == functional.adversarial.square_share(1010, 10_000, 1.0)


def test_windows_cover_their_share() -> None:
    assert functional.adversarial.square_window(0.25, 8, 8) == (4, 4)
    assert functional.adversarial.square_window(0.001, 8, 8) == (1, 1)
    assert functional.adversarial.square_window(0.001, 8, 8, smallest=3) == (3, 3)
    assert functional.adversarial.square_window(1.0, 4, 9) == (4, 4)
    assert functional.adversarial.square_window(0.25, 1, 64) == (1, 16)
    assert functional.adversarial.square_window(0.001, 1, 64, smallest=3) == (1, 3)


def test_bumps_have_norm_one_and_two_signs() -> None:
    for height, width in ((3, 3), (4, 4), (1, 6)):
        bump = functional.adversarial.square_bump(height, width)
        assert bump.shape == (height, width)
        assert bump.norm().item() == pytest.approx(1.0)
        assert (bump > 0.0).any()
        assert (bump < 0.0).any()
    assert functional.adversarial.square_bump(1, 1).tolist() == [[1.0]]


def test_the_free_distance_fills_the_ball() -> None:
    perturbation = torch.rand(3, 2, 4, 4)
    kept = perturbation.clone()
    kept[..., :2, :] = 0.0
    epsilon = 9.0
    free = functional.adversarial.free_distance(perturbation, kept, epsilon)
    total = kept.square().sum(dim=(1, 2, 3)) + free.square().sum(dim=(1, 2, 3))
    torch.testing.assert_close(total.sqrt(), torch.full((3,), epsilon))
