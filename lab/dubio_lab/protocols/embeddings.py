"""Embeddings of images as clouds of points: the picture in the plane, and the family on clean labels.

Reference: Towards Stochastic Neural Networks via Inductive Wasserstein Embeddings, Figure 2.
"""

from torch import Tensor, nn

from dubio import functional
from dubio.data import Examples
from dubio.plots import clouds_of, draw_embedding
from dubio_lab.protocols.images import load_images
from dubio_lab.protocols.judging import judge
from dubio_lab.protocols.measuring import mean_of
from dubio_lab.protocols.noised_networks import train_network
from dubio_lab.protocols.trial import Trial
from dubio_lab.protocols.wrong_labels import predicted_quality
from dubio_lab.results import Findings, Measured

__all__ = ["embedding_plane", "embeddings_judged"]


def embedding_plane(trial: Trial) -> Findings:
    """How well two dimensions will do, how far apart the classes lie in them, and a picture of it.

    Settings: ``draws``, ``num_drawn`` (images in the picture); those of ``train_network`` and ``load_images``.
    """
    splits = load_images(trial)
    assert splits.train is not None
    assert splits.test is not None
    model = train_network(trial, splits.train)
    metrics = predicted_quality(trial, model, splits.test) | _spreads(trial, model, splits.test)
    _draw(trial, model, splits.test)
    return Findings(metrics)


def embeddings_judged(trial: Trial) -> Findings:
    """A network of the family on clean labels, judged as every stochastic network is.

    Settings: those of ``train_network``, ``load_images`` and ``judge``.
    """
    splits = load_images(trial)
    assert splits.train is not None
    return judge(trial, train_network(trial, splits.train), splits)


def _spreads(trial: Trial, model: nn.Module, test: Examples) -> dict[str, Measured]:
    """How far classes lie apart, as a multiple of how far their points scatter; and the variance of a cloud."""
    inputs, targets = test.tensors
    clouds, class_clouds = clouds_of(model, inputs, seed=trial.seed)
    classes = targets.new_tensor(range(len(class_clouds)))
    variance = functional.wasserstein.cloud_variance(clouds).double()
    return {
        "spread_of_images": Measured(_spread(clouds, targets), n=len(clouds)),
        "spread_of_classes": Measured(_spread(class_clouds, classes), n=len(class_clouds)),
        "cloud_variance": mean_of(variance),
    }


def _spread(clouds: Tensor, labels: Tensor) -> float:
    points = clouds.double().flatten(0, 1)
    return functional.wasserstein.spread_ratio(points, labels.repeat_interleave(clouds.shape[1])).item()


def _draw(trial: Trial, model: nn.Module, test: Examples) -> None:
    inputs, targets = test[: trial.settings["num_drawn"]].tensors
    count, classes = len(targets), test.classes
    trial.draw(
        "embedding",
        lambda file: draw_embedding(
            model, inputs, targets, file, classes=classes, num_inputs=count, seed=trial.judging_seed
        ),
    )
