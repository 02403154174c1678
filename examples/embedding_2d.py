"""An embedding that can be seen: digits and their classes as clouds of points in the plane.

A network ends in a Wasserstein head of two dimensions. It makes a cloud of sixteen points of every image and of every
class, and takes an image for the class whose cloud is nearest. The picture shows both for two hundred test digits: the
points of images plain, those of classes outlined, one colour for each digit.

Expect an accuracy above 0.9, and the clouds of classes around a middle, with the points of their digits beyond them,
further out: a logit is compared with the others, so it pays to be far from every other class. Digits whose points mix
with those of another class are the ones it is in doubt about. The plane is for the eye; ``Wasserstein()`` has 64
dimensions. The class clouds are not forced apart, and where two of them meet the distance of whole clouds decides.

Takes about a minute; the picture needs matplotlib. That in docs/images is made by
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
    """A network that puts digits into the plane."""
    torch.manual_seed(seed)
    model = dubio.Wasserstein(dim=2).convert(dubio.models.mlp(64, 100, 100, 10))
    dubio.fit(model, splits.train, splits.validation, epochs=EPOCHS, seed=seed, progress=progress)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Digits and their classes as clouds of points in the plane.")
    parser.add_argument("--out", type=Path, default=Path("runs/embedding_2d.png"), help="where the picture goes")
    parser.add_argument("--seed", type=int, default=0, help="first weights, order of the data, and noise")
    options = parser.parse_args()

    digits = dubio.data.load("digits")
    model = train(digits, options.seed)
    inputs, labels = digits.test.tensors
    found = dubio.predict(model, inputs, num_samples=20, seed=options.seed)
    print(f"accuracy {(found.label == labels).float().mean():.3f}")
    dubio.plots.draw_embedding(model, inputs, labels, options.out, seed=options.seed)
    print(f"picture: {options.out}")


if __name__ == "__main__":
    main()
