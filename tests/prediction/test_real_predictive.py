"""``RegressionPredictive`` against NumPy and SciPy, computed from the draws it kept."""

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor, nn

import dubio
from networks import mlp

NUM_SAMPLES, ROWS = 17, 6


def predict(likelihood: dubio.Gaussian, outputs: int, **options: object) -> dubio.RegressionPredictive:
    torch.manual_seed(0)
    model = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, outputs), likelihood)
    pred = dubio.predict(model, torch.randn(ROWS, 5), NUM_SAMPLES, seed=2, **options)  # type: ignore[arg-type]
    assert isinstance(pred, dubio.RegressionPredictive)
    return pred


CASES = {"fixed noise": (dubio.Gaussian(std=0.1), 2), "noise as output": (dubio.Gaussian(std="output"), 4)}
cases = pytest.mark.parametrize(("likelihood", "outputs"), CASES.values(), ids=CASES)


def mixture_quantile(level: float, means: np.ndarray, stds: np.ndarray) -> float:
    """Root of the mixture's distribution function, by SciPy."""

    def excess(value: float) -> float:
        return float(stats.norm.cdf(value, means, stds).mean() - level)

    low, high = (means - 40 * stds).min(), (means + 40 * stds).max()
    return float(optimize.brentq(excess, low, high, xtol=1e-12))


@cases
def test_moments_equal_their_definitions(likelihood: dubio.Gaussian, outputs: int) -> None:
    pred = predict(likelihood, outputs)
    means, stds = pred.samples.double().numpy(), pred.sample_stds.double().numpy()
    assert means.shape == stds.shape == (NUM_SAMPLES, ROWS, 2)

    np.testing.assert_allclose(pred.mean.numpy(), means.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pred.epistemic_std.numpy(), means.std(axis=0), rtol=1e-5)
    np.testing.assert_allclose(pred.aleatoric_std.numpy(), np.sqrt((stds**2).mean(axis=0)), rtol=1e-5)
    second_moment = (means**2 + stds**2).mean(axis=0)
    np.testing.assert_allclose(pred.std.numpy(), np.sqrt(second_moment - means.mean(axis=0) ** 2), rtol=1e-4)


@pytest.mark.feature("regression: mean, both kinds of standard deviation, exact quantiles and intervals")
@cases
def test_quantiles_and_intervals_are_those_of_the_mixture(likelihood: dubio.Gaussian, outputs: int) -> None:
    pred = predict(likelihood, outputs)
    means, stds = pred.samples.double().numpy(), pred.sample_stds.double().numpy()

    def expected(level: float) -> list[list[float]]:
        return [
            [mixture_quantile(level, means[:, row, out], stds[:, row, out]) for out in range(means.shape[2])]
            for row in range(means.shape[1])
        ]

    for level in (0.001, 0.25, 0.5, 0.975):
        np.testing.assert_allclose(pred.quantile(level).numpy(), expected(level), rtol=1e-5, atol=1e-6)
    low, high = pred.interval(0.8)
    np.testing.assert_allclose(low.numpy(), expected(0.1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(high.numpy(), expected(0.9), rtol=1e-5, atol=1e-6)
    default_low, _ = pred.interval()
    np.testing.assert_allclose(default_low.numpy(), expected(0.05), rtol=1e-5, atol=1e-6)


def test_an_interval_holds_its_share_of_simulated_targets() -> None:
    pred = predict(dubio.Gaussian(std=0.5), 1)
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(NUM_SAMPLES, (20_000,), generator=generator)
    targets = torch.normal(pred.samples[draws], pred.sample_stds[draws], generator=generator)
    low, high = pred.interval(0.7)
    covered = ((targets > low) & (targets < high)).float().mean(dim=0)
    standard_error = (0.7 * 0.3 / len(draws)) ** 0.5
    assert ((covered - 0.7).abs() < 4 * standard_error).all()


def test_fixed_observation_noise_is_all_of_the_aleatoric_std() -> None:
    pred = predict(dubio.Gaussian(std=0.25), 2)
    torch.testing.assert_close(pred.aleatoric_std, torch.full((ROWS, 2), 0.25))
    assert pred.epistemic_std.min() > 0.01
    assert (pred.std > pred.epistemic_std).all()


def test_noise_as_output_reads_means_then_softplus_arguments() -> None:
    net = nn.Linear(5, 4)
    inputs = torch.randn(ROWS, 5)
    raw = net(inputs).detach()
    pred = dubio.predict(net, inputs, 3, likelihood=dubio.Gaussian(std="output"))
    torch.testing.assert_close(pred.mean, raw[:, :2])
    torch.testing.assert_close(pred.aleatoric_std, torch.log1p(raw[:, 2:].exp()))
    torch.testing.assert_close(pred.epistemic_std, torch.zeros(ROWS, 2))


def test_outputs_without_a_feature_axis_are_predicted_too() -> None:
    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).squeeze(-1)

    model = dubio.Bayes().convert(Scalar(), dubio.Gaussian(std=0.1))
    pred = dubio.predict(model, torch.randn(ROWS, 5), 9, seed=0)
    assert pred.samples.shape == (9, ROWS)
    assert pred.mean.shape == pred.quantile(0.3).shape == (ROWS,)


def test_a_level_may_be_a_tensor_or_an_array_without_axes() -> None:
    pred = predict(dubio.Gaussian(std=0.1), 2)
    assert torch.equal(pred.quantile(torch.tensor(0.25)), pred.quantile(0.25))
    assert torch.equal(pred.quantile(np.array(0.25)), pred.quantile(0.25))


def test_streamed_moments_are_exact_far_from_zero() -> None:
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 1).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + 1e8

    model = dubio.Bayes(init_std=0.3).convert(Offset(), dubio.Gaussian(std=0.1))
    inputs = torch.randn(ROWS, 5, dtype=torch.float64)
    kept = dubio.predict(model, inputs, 40, seed=0, chunk=3)
    streamed = dubio.predict(model, inputs, 40, seed=0, chunk=3, keep_samples=False)
    np.testing.assert_allclose(streamed.epistemic_std.numpy(), kept.samples.numpy().std(axis=0), rtol=1e-6)


def test_a_real_prediction_prints_its_size_and_its_doubt() -> None:
    pred = predict(dubio.Gaussian(std=0.25), 2)
    assert repr(pred).startswith(f"RegressionPredictive({ROWS} inputs, {NUM_SAMPLES} draws, seed 2: mean std ")
    assert "of the data 0.25" in repr(pred)
