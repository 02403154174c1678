"""``Alpha`` as an objective: the ELBO at zero, an analytic case, and refusals."""

import math

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from networks import mlp

INPUTS = torch.rand(20, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(3, (20,), generator=torch.Generator().manual_seed(2))


def test_alpha_zero_is_the_elbo() -> None:
    model = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 3))
    weights = torch.rand(20)
    losses = [
        objective(model, INPUTS, TARGETS, 4, seed=3, sample_weight=weights)
        for objective in (dubio.ELBO(20), dubio.Alpha(0.0, 20))
    ]
    for one, other in zip(
        (losses[0].total, losses[0].nll, losses[0].log_probs),
        (losses[1].total, losses[1].nll, losses[1].log_probs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_alpha_one_is_the_likelihood_of_the_mean_prediction() -> None:
    model = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 3)).eval()
    loss = dubio.Alpha(1.0, 20, beta=0.0)(model, INPUTS, TARGETS, 50, seed=3)
    outputs = dubio.sample(model, INPUTS, 50, seed=3)
    expected = -outputs.softmax(dim=-1).mean(dim=0)[range(20), TARGETS].log().mean()
    torch.testing.assert_close(loss.total, expected)
    assert loss.total < loss.nll  # which stays the mean over draws


def test_regression_learns_its_precision_with_alpha() -> None:
    """l = (tau / 2) |y - f|^2 - (D / 2) log tau up to a constant, with a minus before the logarithm."""
    model = dubio.Dropout(0.3, alpha=0.5).convert(mlp(5, 8, 2), dubio.Gaussian("learned"))
    targets = torch.rand(20, 2)

    loss = dubio.Alpha(0.5, 20)(model, INPUTS, targets, 6, seed=3)

    outputs = dubio.sample(model, INPUTS, 6, seed=3)
    precision = torch.nn.functional.softplus(model.observation_rho) ** -2
    squares = (targets - outputs).square().sum(dim=-1)
    losses = 0.5 * precision * squares - 0.5 * 2 * precision.log() + math.log(2.0 * math.pi)
    expected = -(torch.logsumexp(-0.5 * losses, dim=0) - math.log(6)) / 0.5
    torch.testing.assert_close(loss.total, expected.mean())
    slope, expected_slope = (
        torch.autograd.grad(value, model.observation_rho) for value in (loss.total, expected.mean())
    )
    torch.testing.assert_close(slope, expected_slope)
    assert slope[0] != 0.0


class Location(nn.Module):
    """A network that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor([0.4]))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(len(x), 1)


@pytest.mark.parametrize(
    "alpha", [pytest.param(0.3, marks=pytest.mark.slow), 0.5, pytest.param(1.0, marks=pytest.mark.slow)]
)
def test_t35_a_gaussian_location_has_its_analytic_energy(alpha: float) -> None:
    """With w ~ N(m, v) and y ~ N(w, s^2): E[N(y; w, s^2)^alpha] is a Gaussian integral."""
    spread, noise = 0.7, 0.5
    model = dubio.Bayes(init_std=spread).convert(Location(), dubio.Gaussian(noise))
    targets = torch.tensor([[-0.5], [0.2], [1.9]])
    loss = dubio.Alpha(alpha, 3, beta=0.0)(model, torch.zeros(3, 1), targets, 200_000, seed=1, executor="vmap")
    variance = noise**2 / alpha + spread**2
    log_mean = (
        -0.5 * alpha * math.log(2 * math.pi * noise**2)
        + 0.5 * math.log(2 * math.pi * noise**2 / alpha)
        - 0.5 * math.log(2 * math.pi * variance)
        - (targets - 0.4).square() / (2 * variance)
    )
    assert loss.total.item() == pytest.approx((-log_mean / alpha).mean().item(), abs=0.01)


def test_a_network_learns_with_alpha() -> None:
    torch.manual_seed(0)
    labels = (INPUTS.sum(dim=1) > INPUTS.sum(dim=1).median()).long()
    model = dubio.Bayes(init_std=0.05).convert(mlp(5, 8, 2))
    objective = dubio.Alpha(1.0, beta=0.01)
    run = dubio.fit(model, (INPUTS, labels), objective=objective, num_samples=5, epochs=60, lr=0.05, progress=False)
    assert run.history[-1]["accuracy"] > 0.9


REFUSALS = {
    "one draw": (
        lambda: dubio.Alpha(0.5, 20)(mlp(5, 3), INPUTS, TARGETS, 1),
        "num_samples must be at least 2 for alpha",
    ),
    "nan": (lambda: dubio.Alpha(math.nan), "alpha must be a finite number, got nan"),
    "negative": (lambda: dubio.Alpha(-0.5), "alpha must be at least 0, where it is the ELBO, got -0.5"),
    "words": (lambda: dubio.Alpha("ep"), "alpha must be a finite number, got 'ep'"),  # type: ignore[arg-type]
    "beta": (lambda: dubio.Alpha(0.5, beta=-1.0), r"beta must be finite and at least 0, got -1\.0"),
}


@pytest.mark.parametrize(("act", "message"), REFUSALS.values(), ids=REFUSALS)
def test_bad_fields_are_refused(act, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        act()
