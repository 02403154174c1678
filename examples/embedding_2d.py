"""A two-dimensional embedding: digits and their classes as clouds of points in the plane.

The network ends in a Wasserstein head with two dimensions. The head generates a cloud of sixteen points for every image
and for every class, and predicts the class whose cloud is nearest. The picture shows both for two hundred test digits:
the points of images are plain, those of classes are outlined, and every digit has a colour.

Expect an accuracy above 0.9, and the clouds of classes around a centre, with the points of their digits further out: a
logit is relative to the others, so the loss decreases with the distance to every other class. The network is uncertain
about digits whose points mix with those of another class. Two dimensions are for visualisation; ``Wasserstein()`` has
64. The class clouds are not forced apart, and where two of them meet, the distance of whole clouds decides.

The example takes about a minute; the picture needs matplotlib. The picture in docs/images is made by
``python examples/embedding_2d.py --out docs/images/embedding_2d.png``.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import nn

import dubio

EPOCHS = 2 if os.environ.get("DUBIO_TINY") else 100


def train(splits: dubio.data.Splits, seed: int, progress: bool = True) -> nn.Module:
    """Train a network that embeds digits in the plane."""
    torch.manual_seed(seed)
    model = dubio.Wasserstein(dim=2).convert(dubio.models.mlp(64, 100, 100, 10))
    dubio.fit(model, splits.train, splits.validation, epochs=EPOCHS, seed=seed, progress=progress)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Digits and their classes as clouds of points in the plane.")
    parser.add_argument("--out", type=Path, default=Path("runs/embedding_2d.png"), help="path of the picture")
    parser.add_argument("--seed", type=int, default=0, help="seed of initial weights, data order, and noise")
    options = parser.parse_args()

    digits = dubio.data.load("digits")
    model = train(digits, options.seed)
    inputs, labels = digits.test.tensors
    pred = dubio.predict(model, inputs, num_samples=20, seed=options.seed)
    print(f"accuracy {(pred.label == labels).float().mean():.3f}")
    dubio.plots.draw_embedding(model, inputs, labels, options.out, seed=options.seed)
    print(f"picture: {options.out}")


if __name__ == "__main__":
    main()
