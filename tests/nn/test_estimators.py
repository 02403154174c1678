"""Weight sampling, local reparameterisation and flipout draw the same marginals: T-13 to T-17."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

import dubio
from dubio.nn.sources import posteriors
from reference import gaussian

ESTIMATORS = ["weight", "local", "flipout"]
NUM_DRAWS = 100_000


def convert(net: nn.Module, estimator: str, **options: object) -> nn.Module:
    return dubio.Bayes(estimator=estimator, **options).convert(net).double()


def linear(estimator: str, mean: list[float], std: list[float], bias_std: float | None = None) -> nn.Module:
    """A layer of one unit with known posterior; a bias, where there is one, has mean zero."""
    model = convert(nn.Linear(len(mean), 1, bias=bias_std is not None), estimator)
    with torch.no_grad():
        model.weight_posterior.mean.copy_(torch.tensor([mean]))
        model.weight_posterior.rho.copy_(torch.from_numpy(gaussian.inverse_softplus(np.array([std]))))
        if bias_std is not None:
            model.bias_posterior.mean.zero_()
            model.bias_posterior.rho.fill_(gaussian.inverse_softplus(bias_std))
    return model


def draw(model: nn.Module, inputs: torch.Tensor, num_samples: int = NUM_DRAWS) -> np.ndarray:
    """Fresh draws `(sample, ...)`, mapped: a loop would take a minute."""
    with torch.no_grad():
        return dubio.sample(model, inputs, num_samples, executor="vmap").numpy()


def known_outputs(estimator: str) -> np.ndarray:
    model = linear(estimator, [0.1, 0.2, -0.3], [0.05, 0.1, 0.2])
    return draw(model, torch.tensor([[1.0, -2.0, 0.5]]).double()).flatten()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.feature("Weight sampling, local reparameterisation and flipout agree in mean and variance")
def test_t13_outputs_have_their_known_mean_and_variance(estimator):
    outputs = known_outputs(estimator)

    assert outputs.mean() == pytest.approx(-0.45, abs=4 * math.sqrt(0.0525 / NUM_DRAWS))
    assert outputs.var() == pytest.approx(0.0525, abs=4 * 0.0525 * math.sqrt(2 / NUM_DRAWS))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_t13_outputs_are_gaussian_by_kolmogorov_and_smirnov(estimator):
    outputs = known_outputs(estimator)

    assert stats.kstest(outputs, stats.norm(-0.45, math.sqrt(0.0525)).cdf).pvalue > 0.01


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_t13_outputs_cannot_be_told_from_those_of_weight_sampling(estimator):
    outputs, reference = known_outputs(estimator), known_outputs("weight")

    error = math.sqrt(2 / NUM_DRAWS)
    assert outputs.mean() == pytest.approx(reference.mean(), abs=4 * math.sqrt(0.0525) * error)
    assert outputs.var() == pytest.approx(reference.var(), abs=4 * 0.0525 * math.sqrt(2) * error)
    assert stats.ks_2samp(outputs, reference).pvalue > 0.01


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("bias_std", [None, 0.3])
def test_t14_only_shared_weights_make_rows_covary(estimator, bias_std):
    inputs = torch.tensor([[1.0, -2.0, 0.5], [0.5, -1.0, 2.0]]).double()
    std = np.array([0.05, 0.1, 0.2])
    bias_variance = 0.0 if bias_std is None else bias_std**2
    first, second = ((row.numpy() ** 2 * std**2).sum() + bias_variance for row in inputs)
    shared = (inputs.numpy().prod(axis=0) * std**2).sum() + bias_variance

    covariance = np.cov(draw(linear(estimator, [0.1, 0.2, -0.3], list(std), bias_std), inputs)[..., 0].T)

    expected = shared if estimator == "weight" else 0.0
    error = math.sqrt((first * second + expected**2) / NUM_DRAWS)
    assert covariance[0, 1] == pytest.approx(expected, abs=4 * error)
    assert shared > 20 * error  # the two cases are far apart
    np.testing.assert_allclose(covariance.diagonal(), [first, second], rtol=4 * math.sqrt(2 / NUM_DRAWS))


def test_t14_flipout_perturbs_equal_rows_by_more_than_a_sign():
    inputs = torch.tensor([[1.0, -2.0, 0.5]]).double().expand(2, 3)

    first, second = draw(linear("flipout", [0.0, 0.0, 0.0], [0.05, 0.1, 0.2]), inputs, 1000)[..., 0].T

    # Both are signed sums of the same three terms: all signs agree, or all differ, in one draw of four.
    alike = np.isclose(np.abs(first), np.abs(second)).mean()
    assert alike == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 1000))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_t14_units_of_one_row_are_uncorrelated(estimator):
    model = convert(nn.Linear(3, 2), estimator, init_std=0.2)

    correlation = np.corrcoef(draw(model, torch.tensor([[1.0, -2.0, 0.5]]).double())[:, 0].T)[0, 1]

    assert abs(correlation) < 4 / math.sqrt(NUM_DRAWS)


LAYERS = {"linear": (nn.Linear(6, 4), (5, 6)), "conv": (nn.Conv2d(2, 3, 3), (2, 2, 6, 6))}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", LAYERS)
def test_t15_without_scale_a_layer_is_the_deterministic_one(estimator, kind):
    net, shape = LAYERS[kind]
    inputs = torch.randn(shape)
    model = dubio.Bayes(estimator=estimator).convert(net)
    with torch.no_grad():
        for posterior in posteriors(model):
            posterior.rho.fill_(-1000.0)

    torch.testing.assert_close(model(inputs), net(inputs), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", LAYERS)
def test_t15_outputs_approach_the_deterministic_layer_in_proportion_to_the_scale(estimator, kind):
    net, shape = LAYERS[kind]
    inputs = torch.randn(shape).double()
    plain = dubio.Bayes().convert(net).double()
    with dubio.noise_off():
        expected = plain(inputs)

    distances = []
    for std in (1e-3, 1e-6, 1e-9):
        model = convert(net, estimator, init_std=std)
        with dubio.frozen(3):
            distances.append((model(inputs) - expected).abs().max().item())

    assert 1e-4 < distances[0] < 1e-1
    np.testing.assert_allclose(distances[1:], [distances[0] * 1e-3, distances[0] * 1e-6], rtol=1e-4)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_t15_a_row_of_zeros_gives_finite_gradients(estimator, bias, executor):
    net = nn.Sequential(nn.Linear(6, 4, bias=bias), nn.Linear(4, 3))
    model = dubio.Bayes(estimator=estimator, bayesian_bias=False).convert(net)
    inputs = torch.randn(5, 6)
    inputs[2] = 0.0
    inputs.requires_grad_()

    outputs = dubio.sample(model, inputs, 3, seed=1, executor=executor)
    outputs.square().sum().backward()

    assert outputs.isfinite().all()
    for tensor in (inputs, *model.parameters()):
        assert tensor.grad.isfinite().all()
    assert (inputs.grad[2] != 0).any()  # through the means


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_t15_an_image_of_zeros_gives_finite_gradients(estimator):
    model = dubio.Bayes(estimator=estimator, bayesian_bias=False).convert(nn.Conv2d(2, 3, 3, padding=1))
    inputs = torch.zeros(2, 2, 5, 5, requires_grad=True)

    model(inputs).square().sum().backward()

    for tensor in (inputs, *model.parameters()):
        assert tensor.grad.isfinite().all()


def gradients(estimator: str, repeats: int) -> torch.Tensor:
    """Gradients of one minibatch's loss of a softmax regression at fixed parameters: `(repeat, parameter)`."""
    torch.manual_seed(16)
    inputs, targets = torch.randn(16, 8), torch.randint(4, (16,))
    model = dubio.Bayes(estimator=estimator, init_std=0.3).convert(nn.Linear(8, 4))
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(model, values, (inputs,)), targets)

    def gradient(_: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.flatten() for part in torch.func.grad(loss)(parameters).values()])

    return torch.func.vmap(gradient, randomness="different")(torch.arange(repeats)).detach().double()


def test_t16_local_reparameterisation_has_the_smaller_trace_of_gradient_covariance():
    repeats = 10_000
    found = {estimator: gradients(estimator, repeats) for estimator in ESTIMATORS}
    traces = {estimator: each.var(dim=0).sum().item() for estimator, each in found.items()}

    # Far beyond the error of the traces, which is some percent.
    assert traces["local"] < 0.5 * traces["weight"]
    assert traces["local"] < traces["flipout"] < traces["weight"]
    # All estimate the same gradient.
    for estimator in ("local", "flipout"):
        error = ((found[estimator].var(dim=0) + found["weight"].var(dim=0)) / repeats).sqrt()
        scores = (found[estimator].mean(dim=0) - found["weight"].mean(dim=0)) / error
        assert scores.abs().max() < 5


CONVOLUTIONS = {
    "plain": (lambda: nn.Conv2d(2, 3, 3), (2, 2, 5, 5)),
    "strided, padded": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 2, 6, 6)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 4, 4)),
    "depthwise, without bias": (lambda: nn.Conv2d(3, 3, 3, groups=3, bias=False), (2, 3, 4, 4)),
    "reflect-padded": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 2, 4, 4)),
    "circular, dilated": (lambda: nn.Conv1d(2, 3, 3, padding=2, dilation=2, padding_mode="circular"), (3, 2, 7)),
    "same": (lambda: nn.Conv1d(2, 3, 4, padding="same", padding_mode="replicate"), (3, 2, 6)),
    "volume": (lambda: nn.Conv3d(2, 2, 2), (2, 2, 3, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), (3, 2, 4)),
    "transposed, grouped, dilated": (lambda: nn.ConvTranspose2d(2, 4, 2, groups=2, dilation=2), (2, 2, 2, 2)),
    "transposed volume, without bias": (lambda: nn.ConvTranspose3d(2, 2, 2, bias=False), (1, 2, 2, 2, 2)),
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_t17_every_element_of_a_convolution_has_its_mean_and_variance(kind, estimator):
    make, shape = CONVOLUTIONS[kind]
    net, inputs, num_draws = make().double(), torch.randn(shape).double(), 20_000
    model = convert(net, estimator)
    with torch.no_grad():
        for posterior in posteriors(model):
            posterior.rho.uniform_(-3.0, -1.0)

    # A convolution is linear in its weights: its Jacobian gives every element's variance under drawn weights.
    weights = {name: getattr(model, f"{name}_posterior") for name, _ in net.named_parameters()}
    jacobians = torch.func.jacrev(lambda values: torch.func.functional_call(net, values, (inputs,)))(
        {name: posterior.mean.detach() for name, posterior in weights.items()}
    )
    mean = net(inputs).detach().numpy()
    variance = sum(
        (jacobians[name].square() * posterior.std.detach().square()).flatten(mean.ndim).sum(dim=-1).numpy()
        for name, posterior in weights.items()
    )

    outputs = draw(model, inputs, num_draws)

    # Up to 96 elements each: five standard errors.
    assert np.abs((outputs.mean(axis=0) - mean) / np.sqrt(variance / num_draws)).max() < 5
    assert np.abs(outputs.var(axis=0) / variance - 1).max() < 5 * math.sqrt(2 / num_draws)


def test_t17_a_filter_is_shared_over_positions_except_under_local_reparameterisation():
    inputs = torch.ones(1, 1, 3, 3).double()

    def correlation(estimator: str) -> float:
        outputs = draw(convert(nn.Conv2d(1, 1, 2, bias=False), estimator), inputs, 10_000)
        return np.corrcoef(outputs[:, 0, 0, 0, 0], outputs[:, 0, 0, 1, 1])[0, 1]

    assert correlation("weight") == pytest.approx(1.0)
    assert correlation("flipout") == pytest.approx(1.0)
    assert abs(correlation("local")) < 4 / 100
