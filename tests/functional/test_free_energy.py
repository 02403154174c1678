"""How much of the divergence a minibatch carries, and the cost that is reported: T-8 and T-20."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dubio
from dubio import functional


@pytest.mark.parametrize("num_batches", [1, 4, 390, 5000])
@pytest.mark.parametrize("scheme", ["uniform", "geometric"])
def test_t08_shares_sum_to_one(scheme, num_batches):
    shares = [functional.variational.kl_share(scheme, i, num_batches) for i in range(num_batches)]

    assert sum(shares) == pytest.approx(1.0, rel=1e-12)
    assert min(shares) >= 0.0


def test_t08_geometric_shares_of_four_batches():
    shares = [functional.variational.kl_share("geometric", i, 4) for i in range(4)]

    assert shares == pytest.approx([8 / 15, 4 / 15, 2 / 15, 1 / 15], rel=1e-15)


@pytest.mark.parametrize("scheme", ["uniform", "geometric"])
@pytest.mark.parametrize("sizes", [(16, 16, 16, 16), (16, 16, 16, 5)])
@pytest.mark.feature("Minibatch costs of one epoch sum to the free energy of the whole data")
def test_t08_costs_of_an_epoch_sum_to_the_free_energy(scheme, sizes):
    num_data = sum(sizes)
    inputs, targets = torch.randn(num_data, 5).double(), torch.randint(3, (num_data,))
    # Weight sampling with a seed: the same two functions on every batch.
    model = dubio.Bayes(estimator="weight", init_std=0.3).convert(nn.Linear(5, 3)).double()

    def nll_per_example(rows: slice) -> torch.Tensor:
        log_probs = dubio.sample(model, inputs[rows], 2, seed=1).log_softmax(dim=-1)
        return torch.stack([F.nll_loss(draw, targets[rows], reduction="none") for draw in log_probs])

    divergence = dubio.divergence(model)
    free_energy = divergence + nll_per_example(slice(None)).mean(dim=0).sum()

    epoch, start = torch.zeros(()).double(), 0
    for i, size in enumerate(sizes):
        share = functional.variational.kl_share(scheme, i, len(sizes), batch_share=size / num_data)
        epoch += size * functional.variational.minibatch_cost(
            nll_per_example(slice(start, start + size)), divergence, share
        )
        start += size

    torch.testing.assert_close(epoch, free_energy, rtol=1e-12, atol=0.0)


def test_t08_uniform_cost_is_the_mean_loss_and_the_divergence_per_training_example():
    nll, divergence = torch.rand(3, 20, dtype=torch.float64), torch.tensor(70.0, dtype=torch.float64)

    cost = functional.variational.minibatch_cost(
        nll, divergence, functional.variational.kl_share("uniform", 7, 50), beta=0.5
    )

    assert cost.item() == pytest.approx(nll.mean().item() + 0.5 * 70.0 / (50 * 20), rel=1e-14)


def test_t08_a_smaller_batch_carries_less_of_the_divergence_and_so_the_same_per_example():
    divergence = torch.tensor(70.0, dtype=torch.float64)
    for size in (16, 5):
        share = functional.variational.kl_share("uniform", 3, 4, batch_share=size / 53)
        cost = functional.variational.minibatch_cost(torch.zeros(2, size, dtype=torch.float64), divergence, share)
        assert cost.item() == pytest.approx(70.0 / 53, rel=1e-14)


def test_no_weighting_leaves_the_divergence_out():
    nll = torch.rand(2, 4)

    cost = functional.variational.minibatch_cost(nll, torch.tensor(1e6), functional.variational.kl_share("none", 0, 3))

    assert cost.item() == nll.mean().item()


@pytest.mark.parametrize("index", [-1, 4, 5])
def test_a_batch_outside_the_epoch_is_refused(index):
    with pytest.raises(ValueError, match=rf"batch_index must be in \[0, num_batches = 4\), got {index}"):
        functional.variational.kl_share("uniform", index, 4)


def test_an_unknown_weighting_is_refused():
    unchecked = inspect.unwrap(functional.variational.kl_share)  # or beartype would refuse the literal first

    with pytest.raises(ValueError, match="must be 'uniform', 'geometric' or 'none', got 'linear'"):
        unchecked("linear", 0, 4)


def test_t20_cost_is_the_mean_over_draws_of_each_draws_own_cost():
    inputs, targets = torch.randn(30, 5).double(), torch.randint(3, (30,))
    model = dubio.Bayes(estimator="weight", init_std=1.0).convert(nn.Linear(5, 3)).double()
    log_probs = dubio.sample(model, inputs, 8, seed=2).log_softmax(dim=-1)
    divergence, share = dubio.divergence(model), 0.1
    nll = -log_probs.gather(-1, targets.expand(8, 30).unsqueeze(-1)).squeeze(-1)

    reported = functional.variational.minibatch_cost(nll, divergence, share)

    per_draw = [F.nll_loss(draw, targets) + share * divergence / 30 for draw in log_probs]
    torch.testing.assert_close(reported, torch.stack(per_draw).mean(), rtol=1e-12, atol=0.0)
    # Jensen: the mean prediction has a lower cost, here by far, and is not what is reported.
    of_mean = F.nll_loss(functional.uncertainty.predictive_log_probs(log_probs), targets) + share * divergence / 30
    assert reported.item() - of_mean.item() > 0.1
