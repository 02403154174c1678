"""What protocols share: predictions that judge, and means with their standard errors."""

from torch import Tensor, nn

from dubio import functional
from dubio.prediction import ClassificationPredictive, predict
from dubio_lab.protocols.trial import Trial
from dubio_lab.results import Measured

__all__ = ["mean_of", "predict_classes", "quality", "share"]


def predict_classes(
    trial: Trial, model: nn.Module, inputs: Tensor, draws: int | None = None, *, keep: bool = False
) -> ClassificationPredictive:
    """The prediction of many draws, each one set of weights for all inputs, and none that had a part in training.

    Args:
        trial: whose ``judging_seed`` draws.
        model: a converted classifier; what was decided about it, such as a temperature, is not applied.
        inputs: what to predict for.
        draws: how many; by default the setting ``draws``.
        keep: whether to keep what each draw says.
    """
    count = trial.settings["draws"] if draws is None else draws
    pred = predict(model, inputs, count, keep_samples=keep, seed=trial.judging_seed, decisions=False)
    assert isinstance(pred, ClassificationPredictive)
    return pred


def quality(log_probs: Tensor, targets: Tensor) -> dict[str, Measured]:
    """Accuracy and calibration error in percent, and negative log-likelihood, of log-probabilities."""
    confidence, label = log_probs.exp().clamp(max=1.0).max(dim=-1)
    right = label == targets
    ece = functional.calibration.calibration_error(functional.calibration.bin_sums(confidence, right)).item()
    return {
        "accuracy": share(right),
        "nll": mean_of(-log_probs.gather(-1, targets[:, None]).squeeze(-1)),
        "ece": Measured(100.0 * ece, n=len(targets)),
    }


def mean_of(values: Tensor) -> Measured:
    """The mean of numbers, and its standard error where there are several."""
    exact, count = values.double().flatten(), values.numel()
    return Measured(exact.mean().item(), exact.std().item() / count**0.5 if count > 1 else None, count)


def share(right: Tensor) -> Measured:
    """In how many of a hundred cases it is so, with the standard error of a share."""
    mean, count = right.double().mean().item(), right.numel()
    return Measured(100.0 * mean, 100.0 * (mean * (1.0 - mean) / count) ** 0.5, count)
