"""Inputs, targets and networks as users pass them: correct results, or an error with advice."""

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dubio

METHODS = [dubio.Bayes(init_std=0.1), dubio.Dropout(0.2)]


class Returning(nn.Module):
    """Gives the same logits whatever it is given."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, inputs: Tensor) -> Tensor:
        return self.outputs[: len(inputs)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_inputs_in_half_precision_give_what_the_same_numbers_in_float32_give(
    method: dubio.Bayes, dtype: torch.dtype
) -> None:
    model = method.convert(dubio.models.mlp(4, 8, 3))
    half, labels = torch.rand(20, 4).to(dtype), torch.arange(20) % 3
    for one, other in (
        (dubio.predict(model, part, 5, seed=0).probs for part in (half, half.float())),
        (dubio.evaluate(model, (part, labels), num_samples=5).metrics["nll"].value for part in (half, half.float())),
    ):
        torch.testing.assert_close(one, other)
    dubio.fit(model, (half, labels), (half, labels), epochs=1, progress=False, fast=False)


def test_tokens_stay_whole_numbers() -> None:
    model = dubio.Bayes().convert(nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 3)))
    assert dubio.predict(model, torch.randint(10, (6, 2)), 2).probs.shape == (6, 3)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_float64_inputs_give_what_the_same_numbers_in_float32_give(method: dubio.Bayes) -> None:
    model = method.convert(dubio.models.mlp(4, 8, 3))
    inputs, labels = torch.rand(20, 4), torch.arange(20) % 3
    exact = inputs.double()
    for one, other in (
        (dubio.predict(model, part, 5, seed=0).probs for part in (inputs, exact)),
        (dubio.sample(model, part, 5, seed=0) for part in (inputs, exact)),
        (dubio.evaluate(model, (part, labels), num_samples=5).metrics["nll"].value for part in (inputs, exact)),
        (dubio.ELBO(20)(model, part, labels, seed=0).total.detach() for part in (inputs, exact)),
    ):
        torch.testing.assert_close(one, other)
    dubio.fit(model, (exact, labels), (exact, labels), epochs=1, progress=False, fast=False)
    moved = dubio.attacks.fgsm(model, exact, labels, epsilon=0.1, num_samples=2, seed=0)
    assert moved.dtype == torch.float64
    assert (moved - exact).abs().max() <= 0.1 + 1e-6


def test_float32_inputs_of_a_float64_network_are_converted() -> None:
    model = dubio.Bayes().convert(nn.Linear(4, 3)).double()
    inputs = torch.randn(6, 4)
    torch.testing.assert_close(
        dubio.predict(model, inputs, 3, seed=0).probs, dubio.predict(model, inputs.double(), 3, seed=0).probs
    )


def test_gradients_pass_to_float64_inputs() -> None:
    model = dubio.Bayes().convert(nn.Linear(4, 3))
    inputs = torch.randn(6, 4).double().requires_grad_()
    dubio.sample(model, inputs, 3).sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.dtype == torch.float64


class Exact(nn.Module):
    """Works in float64 inside, on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.exact = nn.Linear(4, 3), nn.Linear(4, 3).double()

    def forward(self, inputs: Tensor) -> Tensor:
        assert inputs.dtype == torch.float64
        return self.exact(inputs).float() + self.body(inputs.float())


def test_a_network_of_both_types_gets_its_inputs_as_they_are() -> None:
    assert dubio.sample(Exact(), torch.randn(6, 4).double(), 1).shape == (1, 6, 3)


@pytest.mark.parametrize("outputs", [torch.full((2, 3), -torch.inf), torch.tensor([[0.0, 1, 2], [-torch.inf] * 3])])
def test_rows_without_any_possible_class_are_refused(outputs: Tensor) -> None:
    with pytest.raises(ValueError, match=r"NaN or infinity for inputs without NaN, rows \[.*1\]"):
        dubio.predict(Returning(outputs), torch.ones(2, 2), 1)


def test_some_impossible_classes_are_predicted() -> None:
    pred = dubio.predict(Returning(torch.tensor([[0.0, -torch.inf, 0.0]])), torch.ones(1, 2), 1)
    torch.testing.assert_close(pred.probs, torch.tensor([[0.5, 0.0, 0.5]]))


def test_pixels_without_any_possible_class_are_refused() -> None:
    outputs = torch.zeros(2, 3, 4, 4)
    outputs[1, :, 2, 2] = -torch.inf
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        dubio.predict(Returning(outputs), torch.ones(2, 2), 1, likelihood=dubio.Categorical(class_axis=1))


def test_distances_that_overflow_are_no_prediction() -> None:
    model = dubio.Wasserstein().convert(dubio.models.build("mlp:6-8-3"))
    with pytest.raises(ValueError, match="NaN or infinity"):
        dubio.predict(model, torch.full((2, 6), 1e30), 4, seed=0)


@pytest.mark.parametrize("levels", [[0.05, 0.95], (0.5,), np.array([0.1, 0.9]), torch.tensor([0.25])], ids=repr)
def test_several_quantiles_are_those_of_each_level(levels: list[float]) -> None:
    model = dubio.Bayes(init_std=0.3).convert(nn.Linear(4, 2), dubio.Gaussian(0.1))
    pred = dubio.predict(model, torch.randn(5, 4), 10, seed=0)
    result = pred.quantile(levels)
    assert result.shape == (len(levels), 5, 2)
    for level, values in zip(levels, result, strict=True):
        torch.testing.assert_close(values, pred.quantile(float(level)))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("level", ["a", None, b"0.5", [[0.1, 0.9]], ["0.5"], np.ones((1, 1)) / 2], ids=repr)
def test_what_is_no_level_is_refused_in_a_sentence(level: Any) -> None:
    pred = dubio.predict(dubio.Bayes().convert(nn.Linear(4, 2), dubio.Gaussian(0.1)), torch.randn(5, 4), 3, seed=0)
    with pytest.raises(TypeError, match=r"level must be a probability in \(0, 1\), or several in one list, got "):
        pred.quantile(level)
    with pytest.raises(TypeError, match=r"level must be a probability in \(0, 1\)"):
        pred.interval(level)


STRINGS = ["cat", "dog"] * 10


@pytest.mark.parametrize("kind", [str, bytes, object])
def test_inputs_that_are_strings_are_refused_in_a_sentence(kind: type) -> None:
    model = dubio.Bayes().convert(nn.Linear(4, 2))
    inputs, labels = np.full((20, 4), "cat").astype(kind), torch.arange(20) % 2
    for call in (
        lambda: dubio.predict(model, inputs, 2),
        lambda: dubio.fit(model, (inputs, labels), progress=False),
        lambda: dubio.evaluate(model, (inputs, labels)),
    ):
        with pytest.raises(TypeError, match=r"inputs must be numbers, got strings such as 'cat'; turn them"):
            call()


@pytest.mark.parametrize("labels", [STRINGS, tuple(STRINGS), np.array(STRINGS)], ids=["list", "tuple", "array"])
def test_labels_that_are_strings_are_refused_with_what_to_do(labels: list[str]) -> None:
    model = dubio.Bayes().convert(nn.Linear(4, 2))
    for data in ((torch.randn(20, 4), labels), [(torch.randn(20, 4), labels)]):
        with pytest.raises(TypeError, match=r"targets must be numbers, got strings such as 'cat'; .*names = sorted"):
            dubio.fit(model, data, num_data=20, progress=False)
        with pytest.raises(TypeError, match=r"targets must be numbers, got strings such as 'cat'; .*names = sorted"):
            dubio.evaluate(model, data)


def test_batches_that_are_dicts_are_refused_with_what_to_do() -> None:
    model = dubio.Bayes().convert(nn.Linear(4, 2))
    loader = [{"inputs": torch.randn(8, 4), "labels": torch.arange(8) % 2}] * 2
    with pytest.raises(TypeError, match=r"got dict with the keys inputs, labels; .* batch\['labels'\]\) for batch in"):
        dubio.fit(model, loader, num_data=16, progress=False)


@pytest.mark.parametrize(
    "targets", [torch.zeros(9, dtype=torch.bool), torch.zeros(9, dtype=torch.complex64)], ids=["bool", "complex"]
)
def test_targets_that_name_no_classes_are_refused(targets: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    model, inputs = dubio.Bayes().convert(nn.Linear(4, 3)), torch.rand(9, 4)
    with pytest.raises(TypeError, match=r"targets must be whole numbers that name classes,.* got torch"):
        dubio.evaluate(model, (inputs, targets), num_samples=2)
    with pytest.raises(TypeError, match="targets must be a tensor of whole numbers that name classes, got torch"):
        dubio.attacks.pgd(model, inputs, targets, epsilon=0.1)
    numbers = dubio.Bayes().convert(nn.Linear(4, 1), dubio.Gaussian(0.1))
    with pytest.raises(TypeError, match=r"targets must be .*real numbers, got torch"):
        dubio.evaluate(numbers, (inputs, targets), num_samples=2)


def test_an_objective_refuses_what_fit_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    model, inputs, labels = dubio.Bayes().convert(nn.Linear(4, 3)), torch.rand(9, 4), torch.arange(9) % 3
    with pytest.raises(TypeError, match="targets must be a tensor, got list"):
        dubio.ELBO(9)(model, inputs, labels.tolist())  # type: ignore[arg-type]
    for weight in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="sample_weight must be finite and at least 0"):
            dubio.ELBO(9)(model, inputs, labels, sample_weight=torch.full((9,), weight))


@pytest.mark.parametrize(
    ("last", "likelihood", "expects"),
    [
        (nn.Softmax(dim=-1), dubio.Categorical(), "logits"),
        (nn.Softmax(dim=-1), dubio.Categorical("log_probs"), "log-probabilities"),
        (nn.Sigmoid(), dubio.Bernoulli(), "logits"),
    ],
    ids=["softmax", "softmax as log-probabilities", "sigmoid"],
)
def test_a_network_that_ends_in_probabilities_is_warned_of(
    last: nn.Module, likelihood: dubio.Categorical, expects: str
) -> None:
    net = nn.Sequential(nn.Linear(4, 3), last)
    with pytest.warns(dubio.ConversionWarning, match=f"ends in {type(last).__name__}, .* expects {expects}; leave it"):
        dubio.Bayes().convert(net, likelihood)


class SoftmaxInForward(nn.Linear):
    """Ends in a softmax that is no module."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Probabilities."""
        return super().forward(inputs).softmax(dim=-1)


def test_outputs_that_are_probabilities_are_warned_of_wherever_the_softmax_is() -> None:
    model = dubio.Dropout().convert(nn.Sequential(nn.Linear(4, 4), SoftmaxInForward(4, 3)))
    with pytest.warns(UserWarning, match=r"sums to 1, as after a softmax, and .* expects logits; leave"):
        dubio.predict(model, torch.rand(9, 4), 3)


def test_log_probabilities_and_hidden_sigmoids_are_not_warned_of() -> None:
    dubio.Bayes().convert(nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=-1)))
    dubio.Bayes().convert(nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=-1)), dubio.Categorical("log_probs"))
    dubio.Bayes().convert(nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()))
    dubio.Bayes().convert(nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, 1)), dubio.Bernoulli())


@pytest.fixture
def warned() -> Iterator[None]:
    """All warnings are raised, also the one that tests of plain networks do not care about."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


DATA = (torch.rand(20, 4), torch.arange(20) % 3)
WORK = {
    "predict": lambda net: dubio.predict(net, DATA[0], 3),
    "predict without samples": lambda net: dubio.predict(net, DATA[0], 3, keep_samples=False),
    "sample": lambda net: dubio.sample(net, DATA[0], 3),
    "evaluate": lambda net: dubio.evaluate(net, DATA, num_samples=3),
    "fit": lambda net: dubio.fit(net, DATA, epochs=1, progress=False, fast=False),
}


@pytest.mark.usefixtures("warned")
@pytest.mark.feature("What draws a network that was never converted says once that nothing in it is random")
@pytest.mark.parametrize("name", WORK)
def test_a_network_that_was_not_converted_is_warned_of_once(name: str) -> None:
    net = dubio.models.mlp(4, 8, 3)
    with pytest.warns(UserWarning, match=r"nothing in this .* is random, so .*; convert it first, such as with dubio"):
        WORK[name](net)
    WORK[name](net)


class Noisy(nn.Module):
    """Draws random numbers by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs) + 0.1 * torch.randn(len(inputs), 3)


@pytest.mark.usefixtures("warned")
def test_what_is_random_or_meant_not_to_be_is_not_warned_of() -> None:
    for name in WORK:
        WORK[name](dubio.Deterministic().convert(dubio.models.mlp(4, 8, 3)))
        WORK[name](dubio.Bayes().convert(dubio.models.mlp(4, 8, 3)))
    dubio.sample(Noisy(), DATA[0], 3)
    dubio.predict(Noisy(), DATA[0], 3)
    dropping = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    dubio.sample(dropping.train(), DATA[0], 3)
    net = dubio.models.mlp(4, 8, 3)
    dubio.predict(net, DATA[0], 1)
    with dubio.noise_off():
        dubio.predict(net, DATA[0])
        dubio.sample(net, DATA[0], 3)
    dubio.attacks.fgsm(net, *DATA, epsilon=0.1)
    dubio.attacks.score(net, *DATA)
    dubio.to_mean(dubio.Bayes().convert(net, example=DATA[0]))


@pytest.mark.filterwarnings("ignore::dubio.calibrators.DecisionWarning")  # 30 examples are few to calibrate by
def test_another_default_device_changes_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = dubio.Bayes().convert(dubio.models.build("mlp:4-8-3"))
    inputs, targets, held_out = torch.rand(30, 4), torch.arange(30) % 3, torch.rand(30, 4)

    def numbers(name: str) -> list[torch.Tensor]:
        own = copy.deepcopy(model)
        dubio.fit(own, (inputs, targets), epochs=2, seed=0, progress=False)
        dubio.save(own, tmp_path / name)
        loaded = dubio.load(tmp_path / name)
        dubio.calibrate(loaded, (held_out, targets), seed=0)
        evaluation = dubio.evaluate(loaded, (inputs, targets), num_samples=3, num_resamples=5, seed=0)
        right = dubio.attacks.score(loaded, inputs, targets, num_samples=10, seed=0).single.value
        probs = dubio.predict(loaded, inputs, 3, seed=0).probs
        return [probs, torch.tensor([evaluation.metrics["nll"].value, right], device="cpu")]

    expected = numbers("usual.safetensors")
    with torch.device("meta"):  # a tensor that is made without a device has no values then
        result = numbers("meta.safetensors")
    for one, other in zip(result, expected, strict=True):
        assert torch.equal(one, other)
