"""Bootstrapped cross-entropy: the numbers of the specification, limits and extreme logits (T-69, T-70)."""

import pytest
import torch
import torch.nn.functional as F

from dubio import functional

FLOAT64 = {"dtype": torch.float64}
FORMS = [functional.variational.soft_bootstrap, functional.variational.hard_bootstrap]


def test_t69_values_are_those_of_the_specification():
    log_probs, target = torch.tensor([0.7, 0.2, 0.1], **FLOAT64).log(), torch.tensor(1)

    assert functional.variational.soft_bootstrap(log_probs, target).item() == pytest.approx(1.5690569, abs=5e-8)
    assert functional.variational.soft_bootstrap(log_probs, target, detach=True).item() == pytest.approx(
        1.5690569, abs=5e-8
    )
    assert functional.variational.hard_bootstrap(log_probs, target).item() == pytest.approx(1.3588853, abs=5e-8)


@pytest.mark.parametrize("loss", FORMS)
def test_t70_beta_one_is_the_cross_entropy(loss):
    logits = torch.randn(4, 3, 5, **FLOAT64, requires_grad=True)
    targets = torch.randint(5, (4, 3), dtype=torch.int32)

    found = loss(logits.log_softmax(dim=-1), targets, 1.0)

    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), reduction="none").reshape(4, 3)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value.sum(), logits) for value in (found, expected)))


def test_beta_zero_is_the_entropy_or_the_loss_of_the_most_probable_class():
    log_probs, targets = torch.randn(6, 5, **FLOAT64).log_softmax(dim=-1), torch.zeros(6, dtype=torch.int64)

    soft, hard = (
        functional.variational.soft_bootstrap(log_probs, targets, 0.0),
        functional.variational.hard_bootstrap(log_probs, targets, 0.0),
    )

    torch.testing.assert_close(soft, torch.distributions.Categorical(logits=log_probs).entropy())
    torch.testing.assert_close(hard, -log_probs.exp().amax(dim=-1).log())


@pytest.mark.parametrize("detach", [False, True])
def test_the_gradient_goes_through_the_own_opinion_unless_detached(detach):
    logits = torch.randn(5, **FLOAT64, requires_grad=True)
    probs = logits.detach().softmax(dim=-1)

    loss = functional.variational.soft_bootstrap(logits.log_softmax(dim=-1), torch.tensor(2), 0.0, detach)
    (gradient,) = torch.autograd.grad(loss, logits)

    entropy = -(probs * probs.log()).sum()
    expected = torch.zeros(5, **FLOAT64) if detach else -probs * (probs.log() + entropy)
    torch.testing.assert_close(gradient, expected)


def test_the_hard_opinion_is_a_constant_label():
    logits = torch.randn(7, 5, **FLOAT64, requires_grad=True)
    targets = torch.randint(5, (7,))

    (found,) = torch.autograd.grad(
        functional.variational.hard_bootstrap(logits.log_softmax(dim=-1), targets).sum(), logits
    )

    labels = 0.8 * F.one_hot(targets, 5) + 0.2 * F.one_hot(logits.argmax(dim=-1), 5)
    torch.testing.assert_close(found, logits.detach().softmax(dim=-1) - labels)


@pytest.mark.parametrize("loss", FORMS)
@pytest.mark.parametrize("low", [-1e4, -float("inf")])
def test_extreme_logits_give_finite_losses_and_gradients(loss, low):
    logits = torch.tensor([[1e4, low, 0.0], [low, low, 3.0]], requires_grad=True)

    losses = loss(logits.log_softmax(dim=-1), torch.tensor([0, 2]), 0.5)

    assert losses.tolist() == pytest.approx([0.0, 0.0])
    assert torch.autograd.grad(losses.sum(), logits)[0].isfinite().all()


@pytest.mark.parametrize("loss", FORMS)
def test_a_share_outside_its_range_is_refused(loss):
    with pytest.raises(ValueError, match=r"beta must be in \[0, 1\], got 1\.5; 1 is the cross-entropy"):
        loss(torch.zeros(2, 3).log_softmax(dim=-1), torch.zeros(2, dtype=torch.int64), 1.5)


@pytest.mark.parametrize("loss", FORMS)
def test_losses_can_be_mapped_over_draws(loss):
    log_probs, targets = torch.randn(3, 4, 5, **FLOAT64).log_softmax(dim=-1), torch.tensor([0, 3, 2, 4])

    found = torch.func.vmap(lambda each: loss(each, targets))(log_probs)

    torch.testing.assert_close(found, loss(log_probs, targets.expand(3, 4)))
