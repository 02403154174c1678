"""The numbers of an evaluation, against independent implementations."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

import dubio
from dubio import functional
from dubio.evaluation.metrics import class_measures, real_measures, real_measures_per_example


def predictions(count: int = 300, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    log_probs = (2.0 * torch.randn(count, classes, generator=generator, dtype=torch.float64)).log_softmax(dim=-1)
    sure = torch.multinomial(log_probs.exp().sqrt(), 1, generator=generator).squeeze(1)
    return log_probs, sure


@pytest.mark.feature("every metric equals an independent implementation on random inputs")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_class_measures_are_those_of_other_libraries(seed: int) -> None:
    from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
    from torchmetrics.functional.classification import multiclass_calibration_error

    log_probs, targets = predictions(seed=seed)
    probs = log_probs.exp().numpy()

    result = {name: value.item() for name, value in class_measures(log_probs, targets).items()}

    assert result["accuracy"] == pytest.approx(accuracy_score(targets, probs.argmax(1)))
    assert result["nll"] == pytest.approx(log_loss(targets, probs, labels=range(5)))
    by_class = [brier_score_loss(targets == label, probs[:, label], pos_label=True) for label in range(5)]
    assert result["brier"] == pytest.approx(sum(by_class))
    assert result["entropy"] == pytest.approx(stats.entropy(probs, axis=1).mean(), rel=1e-6)
    assert result["confidence"] == pytest.approx(probs.max(1).mean())
    expected = multiclass_calibration_error(log_probs.exp(), targets, num_classes=5, n_bins=15, norm="l1")
    assert result["ece"] == pytest.approx(expected.item(), abs=1e-6)


def test_the_adaptive_error_is_that_of_equal_parts() -> None:
    log_probs, targets = predictions(count=304)  # 15 bins do not divide it
    probs = log_probs.exp().numpy()
    order = np.argsort(probs.max(1), kind="stable")
    right = (probs.argmax(1) == targets.numpy()).astype(float)
    parts = np.array_split(order, 15)
    expected = sum(len(part) * abs(probs.max(1)[part].mean() - right[part].mean()) for part in parts) / 304
    assert class_measures(log_probs, targets)["adaptive_ece"].item() == pytest.approx(expected)


def test_the_area_under_risk_is_the_mean_error_of_all_beginnings() -> None:
    log_probs, targets = predictions()
    probs = log_probs.exp().numpy()
    wrong = (probs.argmax(1) != targets.numpy())[np.argsort(-probs.max(1))]
    expected = (np.cumsum(wrong) / np.arange(1, len(wrong) + 1)).mean()
    assert class_measures(log_probs, targets)["aurc"].item() == pytest.approx(expected)


def test_weights_are_repetitions() -> None:
    log_probs, targets = predictions(count=60)
    weight = functional.statistics.resample_weights(60, 4, torch.Generator().manual_seed(3))

    result = class_measures(log_probs, targets, weight)

    for number, own in enumerate(weight):
        rows = torch.repeat_interleave(own.long())
        expected = class_measures(log_probs[rows], targets[rows])
        for name, value in expected.items():
            assert result[name][number].item() == pytest.approx(value.item(), abs=1e-12), name


def test_weights_of_scores_are_repetitions() -> None:
    generator = torch.Generator().manual_seed(1)
    negative = torch.randn(40, generator=generator).round(decimals=1)
    positive = torch.randn(30, generator=generator).round(decimals=1) + 0.5
    weights = [functional.statistics.resample_weights(count, 5, generator) for count in (40, 30)]

    result = functional.uncertainty.detection(negative, positive, *weights)

    for number in range(5):
        rows = [torch.repeat_interleave(weight[number].long()) for weight in weights]
        expected = functional.uncertainty.detection(negative[rows[0]], positive[rows[1]])
        for one, other in zip(result, expected, strict=True):
            assert one[number].item() == pytest.approx(other.item(), abs=1e-12)


def test_real_measures_are_those_of_scipy() -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(3, 20, 1, generator=generator, dtype=torch.float64)
    stds = 0.3 + torch.rand(3, 20, 1, generator=generator, dtype=torch.float64)
    targets = torch.randn(20, 1, generator=generator, dtype=torch.float64)

    result = {n: v.item() for n, v in real_measures(real_measures_per_example(means, stds, targets)).items()}

    error = (means.mean(0) - targets).numpy()
    assert result["rmse"] == pytest.approx(np.sqrt((error**2).mean()))
    assert result["mae"] == pytest.approx(np.abs(error).mean())
    density = stats.norm.pdf(targets.numpy(), means.numpy(), stds.numpy()).mean(0)
    assert result["nll"] == pytest.approx(-np.log(density).mean())
    crps = []
    for row in range(20):
        m, s, y = means[:, row, 0].numpy(), stds[:, row, 0].numpy(), targets[row, 0].item()
        square = lambda x, m=m, s=s, y=y: (stats.norm.cdf(x, m, s).mean() - (x >= y)) ** 2  # noqa: E731
        crps.append(integrate.quad(square, -12, y)[0] + integrate.quad(square, y, 12)[0])
    assert result["crps"] == pytest.approx(np.mean(crps), abs=1e-6)


def test_the_nll_of_several_outputs_is_that_of_whole_draws() -> None:
    means = torch.tensor([[[0.0, 0.0]], [[2.0, 2.0]]], dtype=torch.float64)
    stds = torch.full_like(means, 0.5)
    targets = torch.tensor([[0.0, 2.0]], dtype=torch.float64)  # no single draw gives both
    density = np.mean([np.prod(stats.norm.pdf([0.0, 2.0], mean, 0.5)) for mean in (0.0, 2.0)])
    result = real_measures_per_example(means, stds, targets)["nll"]
    assert result.item() == pytest.approx(-np.log(density))


@pytest.mark.feature("evaluation does not depend on how the data are cut into batches")
def test_numbers_do_not_depend_on_the_batch_size() -> None:
    torch.manual_seed(0)
    model = dubio.Bayes(init_std=0.3).convert(torch.nn.Linear(4, 3))
    data = torch.randn(50, 4), torch.randint(3, (50,))
    result = [
        dubio.evaluate(model, data, num_samples=20, num_resamples=20, batch_size=size).metrics for size in (7, 50)
    ]
    for name, estimate in result[0].items():
        other = result[1][name]
        for one, another in zip(vars(estimate).values(), vars(other).values(), strict=True):
            assert one == pytest.approx(another, abs=1e-6), name
