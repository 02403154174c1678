"""Likelihoods equal torch.distributions, constants and all."""

import math

import pytest
import torch
from torch import Tensor, distributions, nn

import dubio


def test_categorical_equals_torch_distributions() -> None:
    outputs, targets = torch.randn(3, 6, 4), torch.randint(4, (6,))
    expected = -distributions.Categorical(logits=outputs).log_prob(targets.expand(3, 6))
    torch.testing.assert_close(dubio.Categorical().nll(outputs, targets), expected)
    as_log_probs = dubio.Categorical(output="log_probs").nll(outputs.log_softmax(-1), targets)
    torch.testing.assert_close(as_log_probs, expected)


def test_positions_of_an_example_are_summed() -> None:
    outputs, targets = torch.randn(3, 2, 4, 5, 5), torch.randint(4, (2, 5, 5))
    found = dubio.Categorical(class_axis=1).nll(outputs, targets)
    expected = torch.stack(
        [nn.functional.cross_entropy(draw, targets, reduction="none").sum((1, 2)) for draw in outputs]
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 0.5, 3.0)])
def test_class_weights_and_smoothing_equal_torchs(smoothing: float, weights: tuple[float, ...] | None) -> None:
    outputs, targets = torch.randn(3, 6, 4), torch.randint(4, (6,))
    found = dubio.Categorical(class_weight=weights, label_smoothing=smoothing).nll(outputs, targets)
    plain = torch.stack(
        [nn.functional.cross_entropy(draw, targets, reduction="none", label_smoothing=smoothing) for draw in outputs]
    )
    expected = plain if weights is None else plain * torch.tensor(weights)[targets]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(6,), (6, 2), (6, 2, 3)])
def test_gaussian_equals_torch_distributions(shape: tuple[int, ...]) -> None:
    outputs, targets = torch.randn(3, *shape), torch.randn(shape)
    expected = -distributions.Normal(outputs, 0.3).log_prob(targets)
    expected = expected.flatten(2).sum(2) if expected.dim() > 2 else expected
    torch.testing.assert_close(dubio.Gaussian(0.3).nll(outputs, targets), expected)


def test_gaussian_with_its_scale_among_the_outputs_equals_torch_distributions() -> None:
    outputs, targets = torch.randn(3, 6, 4), torch.randn(6, 2)
    expected = -distributions.Normal(outputs[..., :2], nn.functional.softplus(outputs[..., 2:])).log_prob(targets)
    torch.testing.assert_close(dubio.Gaussian("output").nll(outputs, targets), expected.sum(-1))


@pytest.mark.slow
def test_a_learned_scale_belongs_to_the_network_and_is_learned() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(4000, 1)
    targets = 2 * inputs + 0.5 * torch.randn(4000, 1)
    model = dubio.Bayes(init_std=0.01).convert(nn.Linear(1, 1), dubio.Gaussian("learned"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    objective = dubio.ELBO(num_data=4000)
    for _ in range(500):
        optimizer.zero_grad()
        objective(model, inputs, targets).total.backward()
        optimizer.step()
    prediction = dubio.predict(model, inputs[:10], 20, seed=0)
    torch.testing.assert_close(prediction.aleatoric_std, torch.full((10, 1), 0.5), rtol=0.1, atol=0)
    assert "observation_rho" not in dubio.to_mean(model).state_dict()
    assert "the learned noise" in str(
        dubio.describe(dubio.Bayes().convert(nn.Sequential(nn.Linear(1, 1)), dubio.Gaussian("learned")))
    )


@pytest.mark.parametrize("shape", [(6,), (6, 2)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_bernoulli_equals_torch_distributions(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    outputs, targets = torch.randn(3, *shape), torch.randint(2, shape).to(dtype)
    expected = -distributions.Bernoulli(logits=outputs).log_prob(targets.float().expand(3, *shape))
    expected = expected.flatten(2).sum(2) if expected.dim() > 2 else expected
    torch.testing.assert_close(dubio.Bernoulli().nll(outputs, targets), expected)


def test_bernoulli_predicts_the_probability_of_yes() -> None:
    model = dubio.Bayes().convert(nn.Linear(5, 3), dubio.Bernoulli())
    inputs = torch.randn(4, 5)
    prediction = dubio.predict(model, inputs, 7, seed=0)
    assert prediction.probs.shape == (4, 3, 2)
    expected = dubio.sample(dubio.Bayes(estimator="weight").convert(nn.Linear(5, 3)), inputs, 1)
    assert expected.shape == (1, 4, 3)
    with dubio.noise_off():
        mean = dubio.predict(model, inputs)
    torch.testing.assert_close(mean.probs[..., 1], dubio.to_mean(model)(inputs).sigmoid())


LIKELIHOODS = {
    "categorical": dubio.Categorical(),
    "categorical, log-probabilities": dubio.Categorical("log_probs"),
    "categorical, smoothed and weighted": dubio.Categorical(class_weight=(1.0, 2.0, 0.3, 1.1), label_smoothing=0.1),
    "bernoulli": dubio.Bernoulli(),
    "gaussian": dubio.Gaussian(0.1),
    "gaussian, learned": dubio.Gaussian("learned"),
    "gaussian, output": dubio.Gaussian("output"),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_losses_are_in_float32_at_least_whatever_the_outputs(name: str, dtype: torch.dtype) -> None:
    """Nothing but the outputs is rounded: targets between two numbers of half precision stay there."""
    likelihood, wanted = LIKELIHOODS[name], torch.promote_types(dtype, torch.float32)
    outputs, scale = (20.0 * torch.randn(3, 6, 4)).to(dtype), torch.tensor(-2.2)
    if isinstance(likelihood, dubio.Categorical):
        targets = torch.randint(4, (6,))
    elif isinstance(likelihood, dubio.Bernoulli):
        targets = 1.0 - 1e-3 * torch.rand(6, 4)
    else:
        targets = 100.0 + torch.randn(6, 2 if likelihood.std == "output" else 4)
    exact = outputs.to(wanted)
    readings = [lambda outputs: likelihood.nll(outputs, targets, scale)]
    if isinstance(likelihood, dubio.Gaussian):
        readings += [lambda outputs, i=i: likelihood.moments(outputs, scale)[i] for i in range(2)]
    else:
        readings += [likelihood.log_probs]
    for read in readings:
        assert read(outputs).dtype == wanted
        assert torch.equal(read(outputs), read(exact))


def test_losses_of_rounded_outputs_by_hand() -> None:
    rounded = torch.tensor([[[100.0]]], dtype=torch.bfloat16), torch.tensor([[[6.0]]], dtype=torch.bfloat16)
    found = dubio.Gaussian(0.1).nll(rounded[0], torch.tensor([[100.2]])).item()
    assert found == pytest.approx(2.0 + math.log(0.1) + 0.5 * math.log(2 * math.pi), abs=1e-4)
    found = dubio.Bernoulli().nll(rounded[1], torch.tensor([[0.999]])).item()
    assert found == pytest.approx(math.log1p(math.exp(-6.0)) + 0.001 * 6.0, abs=1e-6)


@pytest.mark.parametrize("likelihood", [dubio.Gaussian(1e-7), dubio.Bernoulli()])
def test_targets_in_double_precision_are_not_rounded_and_do_not_spread(
    likelihood: dubio.likelihoods.Likelihood,
) -> None:
    outputs, targets = torch.ones(1, 1, 1), torch.full((1, 1), 1.0 - 1e-8, dtype=torch.float64)
    found = likelihood.nll(outputs, targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), likelihood.nll(outputs.double(), targets), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_step_in_bf16_has_its_loss_in_float32(name: str) -> None:
    likelihood = LIKELIHOODS[name]
    model = dubio.Bayes().convert(nn.Linear(5, 4), likelihood)
    step = dubio.Step(
        model, dubio.ELBO(num_data=6), torch.optim.SGD(model.parameters(), lr=0.1), precision="bf16", fast=False
    )
    targets = {dubio.Categorical: torch.randint(4, (6,)), dubio.Bernoulli: torch.rand(6, 4)}
    width = 2 if likelihood == dubio.Gaussian("output") else 4
    loss = step(torch.randn(6, 5), targets.get(type(likelihood), torch.randn(6, width)))
    assert loss.total.dtype == loss.nll.dtype == torch.float32


def refuse(likelihood: object, outputs: Tensor, targets: Tensor) -> None:
    likelihood.nll(outputs, targets)


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (lambda: dubio.Categorical(label_smoothing=1.0), ValueError, r"label_smoothing must be in \[0, 1\), got 1\.0"),
        (lambda: dubio.Categorical(class_weight=(1.0, -1.0)), ValueError, "class_weight must hold finite weights"),
        (lambda: dubio.Gaussian("fitted"), ValueError, "'learned' or 'output', got 'fitted'"),
        (
            lambda: dubio.Categorical().nll(torch.randn(2, 3, 4), torch.rand(3)),
            TypeError,
            r"targets must be whole numbers that name classes, got torch\.float32",
        ),
        (
            lambda: dubio.Categorical().nll(torch.randn(2, 3, 4), torch.zeros(4, dtype=torch.long)),
            ValueError,
            r"targets must have shape \(3,\) beside these outputs, got \(4,\)",
        ),
        (
            lambda: dubio.Categorical(class_weight=(1.0, 1.0)).nll(
                torch.randn(2, 3, 4), torch.zeros(3, dtype=torch.long)
            ),
            ValueError,
            "class_weight must have one weight per class, 4, got 2",
        ),
        (
            lambda: dubio.Gaussian(0.1).nll(torch.randn(2, 3, 2), torch.randn(3)),
            ValueError,
            r"targets must have shape \(3, 2\) beside these outputs, got \(3,\)",
        ),
        (
            lambda: dubio.Gaussian("learned").nll(torch.randn(2, 3, 1), torch.randn(3, 1)),
            ValueError,
            "belongs to a converted network",
        ),
        (
            lambda: dubio.Bernoulli().nll(torch.randn(2, 3, 3), torch.rand(3)),
            ValueError,
            r"targets must have shape \(3, 3\)",
        ),
        (
            lambda: dubio.Categorical().nll(torch.randn(2, 6, 3, 8, 8), torch.zeros(6, 8, 8, dtype=torch.long)),
            ValueError,
            r"got \(6, 8, 8\); for classes on axis 1 convert with likelihood=dubio\.Categorical\(class_axis=1\)",
        ),
        (
            lambda: dubio.Categorical().nll(torch.randn(2, 6, 1), torch.zeros(6, dtype=torch.long)),
            ValueError,
            r"yes or no from one output convert with likelihood=dubio\.Bernoulli\(\)",
        ),
        (
            lambda: dubio.Gaussian(0.1, target_std=(1.0, 2.0)).nll(torch.randn(2, 6, 3), torch.randn(6, 3)),
            ValueError,
            "target_std must be one number, or one for each of 3 outputs, got 2",
        ),
        (lambda: dubio.Gaussian(target_std=0.0), ValueError, "target_std must be positive and finite, got 0.0"),
        (lambda: dubio.Gaussian(target_mean=math.nan), ValueError, "target_mean must be finite, got nan"),
        (lambda: dubio.Gaussian(target_mean=()), ValueError, "target_mean must be one number, .* got none"),
        (
            lambda: dubio.Gaussian.for_targets(torch.tensor([1.0, math.inf])),
            ValueError,
            "targets must be finite numbers, one or more",
        ),
    ],
)
def test_refusals(work: object, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(error, match=message):
        work()


STANDARDISED = {"learned": (0.2, 3), "output": (0.0, 6), "0.7": (0.0, 3)}


@pytest.mark.parametrize("name", STANDARDISED)
@pytest.mark.parametrize("units", [((5.0, -3.0, 100.0), (2.0, 0.5, 10.0)), (1000.0, 0.25)], ids=["rows", "one"])
def test_a_standardised_gaussian_equals_torch_distributions_in_units_of_the_targets(name: str, units: tuple) -> None:
    scale, width = torch.tensor(STANDARDISED[name][0]), STANDARDISED[name][1]
    std = 0.7 if name == "0.7" else name
    likelihood = dubio.Gaussian(std, *units)  # type: ignore[arg-type]
    outputs, (shift, unit) = torch.randn(4, 6, width).double(), (torch.tensor(part).double() for part in units)
    targets = shift + unit * torch.randn(6, 3).double()
    rho = outputs[..., 3:] if name == "output" else scale.double()
    stds = torch.tensor(0.7).double() if name == "0.7" else unit * nn.functional.softplus(rho)
    expected = distributions.Normal(shift + unit * outputs[..., :3], stds.expand(4, 6, 3))
    for found, value in zip(likelihood.moments(outputs, scale), (expected.mean, expected.stddev), strict=True):
        torch.testing.assert_close(found, value, check_dtype=False)
    torch.testing.assert_close(likelihood.nll(outputs, targets, scale), -expected.log_prob(targets).sum(-1))


def test_for_targets_standardises_each_column() -> None:
    targets = torch.tensor([5.0, -3.0, 7.0]) + torch.tensor([2.0, 0.5, 0.0]) * torch.randn(50, 3)
    likelihood = dubio.Gaussian.for_targets(targets, "output")
    assert likelihood.std == "output"
    standardised = likelihood.standardise(targets)
    torch.testing.assert_close(standardised.mean(dim=0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(standardised.std(dim=0, correction=0), torch.tensor([1.0, 1.0, 0.0]))
    for column in (targets[:, 0], targets[:, :1]):
        one = dubio.Gaussian.for_targets(column)
        assert (one.target_mean, one.target_std) == (likelihood.target_mean[0], likelihood.target_std[0])


def test_targets_of_large_offset_keep_their_digits() -> None:
    targets = 1e6 + torch.tensor([[0.0], [0.5], [1.0]])
    likelihood = dubio.Gaussian("output", 1e6, 0.25)
    outputs = torch.cat([(targets - 1e6) / 0.25 + 0.01, torch.zeros(3, 1)], dim=1)[None]
    expected = -distributions.Normal(0.01, nn.functional.softplus(torch.zeros(()))).log_prob(torch.zeros(1, 3))
    torch.testing.assert_close(likelihood.nll(outputs, targets), expected + math.log(0.25))


def test_a_gaussian_without_arguments_learns_its_noise() -> None:
    assert dubio.Gaussian() == dubio.Gaussian("learned")
    assert repr(dubio.Gaussian(0.1)) == "Gaussian(std=0.1)"
    assert repr(dubio.Gaussian("output", 3.0)) == "Gaussian(std='output', target_mean=3.0, target_std=1.0)"


@pytest.mark.parametrize("unit", [0.01, 1.0, 50.0])
def test_learned_noise_starts_at_the_spread_of_the_targets(unit: float) -> None:
    inputs = torch.randn(200, 2)
    targets = unit * torch.randn(200, 1)
    model = dubio.Deterministic().convert(nn.Linear(2, 1), dubio.Gaussian())
    dubio.fit(model, (inputs, targets), epochs=1, batch_size=200, lr=1e-9, progress=False, fast=False)
    pred = dubio.predict(model, inputs, 1, seed=0)
    torch.testing.assert_close(pred.aleatoric_std.mean(), targets.std(), rtol=1e-3, atol=0)


def test_noise_that_was_learned_before_is_not_started_anew() -> None:
    model = dubio.Deterministic().convert(nn.Linear(2, 1), dubio.Gaussian())
    with torch.no_grad():
        model.observation_rho.fill_(-3.0)
    data = torch.randn(20, 2), 10.0 * torch.randn(20, 1)
    dubio.fit(model, data, epochs=1, lr=1e-9, progress=False, fast=False)
    torch.testing.assert_close(model.observation_rho.detach(), torch.tensor(-3.0))


def test_fit_warns_of_targets_far_from_what_a_network_starts_at() -> None:
    inputs, targets = torch.randn(20, 2), 1e5 + 1e4 * torch.randn(20, 1)
    far = dubio.Deterministic().convert(nn.Linear(2, 1), dubio.Gaussian())
    with pytest.warns(UserWarning, match=r"the targets \(mean .*\) are far .*dubio\.Gaussian\.for_targets"):
        dubio.fit(far, (inputs, targets), epochs=1, progress=False, fast=False)
    near = dubio.Deterministic().convert(nn.Linear(2, 1), dubio.Gaussian.for_targets(targets))
    dubio.fit(near, (inputs, targets), epochs=1, progress=False, fast=False)


@pytest.mark.parametrize("method", [dubio.Bayes(), dubio.Ensemble(2), dubio.Dropout(0.2)], ids=repr)
def test_targets_in_other_units_are_predicted_the_same(method: dubio.Bayes) -> None:
    inputs = torch.randn(40, 2)
    targets = inputs.sum(dim=1, keepdim=True) + 0.1 * torch.randn(40, 1)
    pred = {}
    for shift, unit in ((0.0, 1.0), (300.0, 50.0)):
        torch.manual_seed(0)
        own = shift + unit * targets
        model = method.convert(dubio.models.mlp(2, 8, 2), dubio.Gaussian.for_targets(own, "output"))
        dubio.fit(model, (inputs, own), epochs=3, batch_size=20, seed=0, progress=False, fast=False)
        pred[unit] = dubio.predict(model, inputs, 2, seed=0)
    torch.testing.assert_close(pred[50.0].mean, 300.0 + 50.0 * pred[1.0].mean, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(pred[50.0].std, 50.0 * pred[1.0].std, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"),
    [
        (dubio.Gaussian(0.1), (3, 6, 1), torch.randn(6)),
        (dubio.Gaussian(0.1), (3, 6), torch.randn(6, 1)),
        (dubio.Bernoulli(), (3, 6, 1), torch.randint(2, (6,))),
        (dubio.Bernoulli(), (3, 6), torch.rand(6, 1)),
        (dubio.Categorical(), (3, 6, 4), torch.randint(4, (6, 1))),
    ],
    ids=["gaussian rows", "gaussian columns", "bernoulli rows", "bernoulli columns", "categorical columns"],
)
def test_one_target_per_row_may_have_an_axis_of_its_own_or_not(
    likelihood: dubio.Gaussian, outputs: tuple[int, ...], targets: Tensor
) -> None:
    values = torch.randn(outputs)
    other = targets.squeeze(1) if targets.dim() == 2 else targets.unsqueeze(1)
    found = likelihood.nll(values, targets)
    assert found.shape == (3, 6)
    torch.testing.assert_close(found, likelihood.nll(values, other))


def test_labels_with_an_axis_of_their_own_train_and_validate_alike() -> None:
    inputs, labels = torch.randn(30, 2), torch.randint(3, (30,))
    histories = []
    for own in (labels, labels[:, None]):
        torch.manual_seed(0)
        model = dubio.Deterministic().convert(dubio.models.mlp(2, 4, 3))
        run = dubio.fit(model, (inputs, own), (inputs, own), epochs=2, progress=False, fast=False)
        histories.append([{name: value for name, value in row.items() if name != "seconds"} for row in run.history])
    assert histories[0] == histories[1]


def test_beta_weighs_training_by_the_standardised_variance_and_nothing_else() -> None:
    outputs, targets = torch.randn(3, 6, 4), 5.0 + 2.0 * torch.randn(6, 2)
    plain, weighted = (dubio.Gaussian("output", 5.0, 2.0, beta) for beta in (0.0, 0.5))
    for one, other in zip(plain.moments(outputs), weighted.moments(outputs), strict=True):
        torch.testing.assert_close(one, other)
    std = nn.functional.softplus(outputs[..., 2:])
    expected = -distributions.Normal(outputs[..., :2], std).log_prob((targets - 5.0) / 2.0) * std + math.log(2.0)
    torch.testing.assert_close(weighted.nll(outputs, targets), expected.sum(-1))
    assert repr(weighted) == "Gaussian(std='output', target_mean=5.0, target_std=2.0, beta=0.5)"
    with pytest.raises(ValueError, match=r"beta must be in \[0, 1\], got 2"):
        dubio.Gaussian("output", beta=2.0)


def test_validation_knows_no_beta() -> None:
    inputs, targets = torch.randn(30, 2), torch.randn(30)
    values = []
    for beta in (0.0, 1.0):
        torch.manual_seed(0)
        model = dubio.Deterministic().convert(dubio.models.mlp(2, 4, 2), dubio.Gaussian("output", beta=beta))
        run = dubio.fit(model, (inputs, targets), (inputs, targets), epochs=1, lr=1e-12, progress=False, fast=False)
        values.append(run.history[-1]["val_nll"])
    assert values[0] == pytest.approx(values[1])
