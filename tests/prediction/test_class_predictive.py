"""``ClassificationPredictive`` against plain NumPy, computed from the draws it kept."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.functional.uncertainty import SMALLEST_PROBABILITY
from networks import mlp

NUM_SAMPLES, ROWS, CLASSES = 23, 9, 4


def model(*widths: int, init_std: float = 0.3) -> nn.Module:
    return dubio.Bayes(init_std=init_std).convert(mlp(*(widths or (5, 8, CLASSES))))


def entropy(probs: np.ndarray) -> np.ndarray:
    return -(probs * np.log(np.clip(probs, SMALLEST_PROBABILITY, 1.0))).sum(axis=-1)


def reference(samples: Tensor) -> dict[str, np.ndarray]:
    """Every summary of log-probabilities `(sample, batch, class)`, from its definition (E-9 to E-13)."""
    probs = np.exp(samples.numpy().astype(np.float64))
    mean = probs.mean(axis=0)
    label = mean.argmax(axis=-1)
    ballots = probs.argmax(axis=-1)
    votes = np.stack([(ballots == c).mean(axis=0) for c in range(probs.shape[-1])], axis=-1)
    std = probs.std(axis=0)
    expected = entropy(probs).mean(axis=0)
    return {
        "probs": mean,
        "log_probs": np.log(mean),
        "label": label,
        "confidence": mean.max(axis=-1),
        "entropy": entropy(mean),
        "expected_entropy": expected,
        "mutual_information": entropy(mean) - expected,
        "votes": votes,
        "variation_ratio": 1.0 - votes.max(axis=-1),
        "class_variance": std**2,
        "top_std": np.take_along_axis(std, label[..., None], axis=-1)[..., 0],
    }


SUMMARIES = tuple(reference(torch.zeros(1, 1, 2)))


def close(actual: Tensor, expected: Any, atol: float = 2e-6) -> None:
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5, atol=atol)


@pytest.fixture(scope="module")
def kept() -> dubio.ClassificationPredictive:
    torch.manual_seed(0)
    pred = dubio.predict(model(), 2 * torch.randn(ROWS, 5), NUM_SAMPLES, seed=1)
    assert isinstance(pred, dubio.ClassificationPredictive)
    return pred


@pytest.mark.feature("a prediction says how much doubt lies in the data and how much in the network")
@pytest.mark.parametrize("summary", SUMMARIES)
def test_class_summaries_equal_their_definitions(kept: dubio.ClassificationPredictive, summary: str) -> None:
    assert kept.samples is not None
    # A variance from a mean of squares is exact to rounding; its root is so only where the variance is not tiny.
    close(getattr(kept, summary), reference(kept.samples)[summary], atol=1e-5 if summary == "top_std" else 2e-6)


def test_kept_samples_are_log_probabilities_per_draw(kept: dubio.ClassificationPredictive) -> None:
    assert kept.samples is not None
    assert kept.samples.shape == (NUM_SAMPLES, ROWS, CLASSES)
    close(kept.samples.exp().sum(dim=-1), 1.0)
    assert kept.samples.std(dim=0).min() > 1e-4  # and the draws differ


def test_probabilities_are_averaged_and_not_logits() -> None:
    class Contrary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.switch = nn.Linear(1, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return 10.0 * self.switch(x).sign()

    net = Contrary()
    nn.init.zeros_(net.switch.weight)
    pred = dubio.predict(dubio.Bayes(init_std=1.0).convert(net), torch.ones(3, 1), 200, seed=0)
    draws = pred.samples.exp()
    close(pred.probs, draws.mean(dim=0).numpy())
    logit_mean = pred.samples.mean(dim=0).softmax(dim=-1)
    assert (pred.probs - logit_mean).abs().max() > 0.01  # the two would differ here


def test_mutual_information_is_never_negative() -> None:
    pred = dubio.predict(model(init_std=1e-4), 3 * torch.randn(300, 5), 7, seed=0)
    raw = pred.entropy - pred.expected_entropy
    assert raw.min() < 0  # rounding alone would make it negative
    assert pred.mutual_information.min() >= 0


def test_wider_posteriors_raise_mutual_information() -> None:
    inputs = torch.randn(50, 5)
    torch.manual_seed(1)
    narrow = dubio.predict(model(init_std=0.01), inputs, 50, seed=0)
    torch.manual_seed(1)
    wide = dubio.predict(model(init_std=0.5), inputs, 50, seed=0)
    assert wide.mutual_information.mean() > 20 * narrow.mutual_information.mean()


def test_votes_of_draws_that_disagree_are_shared_out() -> None:
    log_probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]).log().unsqueeze(1)

    class Draws(nn.Module):
        """The next row of the table at each call."""

        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return log_probs[self.count - 1].expand(len(x), 2)

    pred = dubio.predict(
        Draws(), torch.zeros(1, 1), 4, likelihood=dubio.Categorical(output="log_probs"), executor="loop"
    )
    close(pred.votes, [[0.75, 0.25]])
    close(pred.variation_ratio, [0.25])
    close(pred.probs, [[0.65, 0.35]])
    close(pred.top_std, [np.std([0.9, 0.8, 0.3, 0.6])])
    assert pred.label.tolist() == [0]


def test_logits_and_log_probs_are_taken_at_their_word() -> None:
    net = nn.Sequential(nn.Linear(5, CLASSES), nn.LogSoftmax(dim=-1))
    inputs = torch.randn(ROWS, 5)
    expected = net(inputs).exp().detach().numpy()
    close(dubio.predict(net, inputs, 2, likelihood=dubio.Categorical(output="log_probs")).probs, expected)

    unnormalised = nn.Linear(5, CLASSES)
    as_given = dubio.predict(unnormalised, inputs, 2, likelihood=dubio.Categorical(output="log_probs"))
    close(as_given.log_probs, unnormalised(inputs).detach().numpy())
    as_logits = dubio.predict(unnormalised, inputs, 2)
    close(as_logits.log_probs, unnormalised(inputs).log_softmax(dim=-1).detach().numpy())


def test_the_likelihood_of_the_conversion_is_used_by_default() -> None:
    net = nn.Sequential(nn.Linear(5, CLASSES), nn.LogSoftmax(dim=-1))
    converted = dubio.Bayes().convert(net, likelihood=dubio.Categorical(output="log_probs"))
    inputs = torch.randn(ROWS, 5)
    pred = dubio.predict(converted, inputs, 3, seed=0)
    with torch.no_grad(), dubio._engine.Using(estimator="weight"):
        raw = dubio.sample(converted, inputs, 3, seed=0)
    close(pred.samples, raw.numpy())


@pytest.mark.parametrize("class_axis", [1, -3])
def test_segmentation_puts_the_class_axis_last(class_axis: int) -> None:
    net = nn.Conv2d(2, 3, 3, padding=1)
    converted = dubio.Bayes(init_std=0.2).convert(net, dubio.Categorical(class_axis=class_axis))
    inputs = torch.randn(5, 2, 6, 7)
    pred = dubio.predict(converted, inputs, 8, seed=0, batch_size=2)
    assert pred.samples.shape == (8, 5, 6, 7, 3)
    assert pred.label.shape == pred.mutual_information.shape == (5, 6, 7)
    for summary, expected in reference(pred.samples).items():
        close(getattr(pred, summary), expected, atol=1e-5)
    with dubio.noise_off():
        mean = dubio.predict(converted, inputs)
    close(mean.probs, net(inputs).softmax(dim=1).movedim(1, -1).detach().numpy())


def test_a_class_prediction_prints_its_size_and_its_doubt(kept: dubio.ClassificationPredictive) -> None:
    text = repr(kept)
    assert text.startswith(f"ClassificationPredictive({ROWS} inputs, {CLASSES} classes, {NUM_SAMPLES} draws, seed 1: ")
    assert f"mutual information {kept.mutual_information.mean():.3f}" in text
    assert repr(dubio.predict(nn.Linear(2, 2), torch.ones(1, 2), 1)).startswith("ClassificationPredictive(1 input, ")


def test_the_axis_of_a_single_output_is_removed_from_all_fields() -> None:
    result = dubio.predict(dubio.Bayes().convert(mlp(5, 1), dubio.Bernoulli()), torch.randn(ROWS, 5), 3, seed=0)
    result = dataclasses.replace(result, uncalibrated_log_probs=result.log_probs, energy=result.expected_entropy)
    rows = result.in_rows()
    for field in dataclasses.fields(result):
        whole, row = getattr(result, field.name), getattr(rows, field.name)
        if isinstance(whole, Tensor):
            assert row.shape == torch.Size(size for place, size in enumerate(whole.shape) if size > 1 or place == 0)
            assert torch.equal(row.flatten(), whole.flatten())
    assert rows.mutual_information.shape == rows.label.shape == (ROWS,)
    assert rows.in_rows() is rows
    several = dubio.predict(dubio.Bayes().convert(mlp(5, 2), dubio.Bernoulli()), torch.randn(ROWS, 5), 3)
    with pytest.raises(
        ValueError, match=r"must be of one class per example here, got probabilities of shape \(9, 2, 2\)"
    ):
        several.in_rows()
