"""Classes of the plane, with doubt as size: what a stochastic network knows, and where its draws disagree.

One class lies in the middle, the other in four clusters around it that overlap it; the best possible classifier is
right in 95 % of cases. The network is that of the flow paper's demonstration: one hidden layer of 16 sigmoids, its
inputs multiplied by noise whose distribution is a normalizing flow of four planar steps.

The picture has the colour of the likelier class, paler where the network is less sure. Dots grow with mutual
information, what the draws disagree about: filled ones are test points, open ones a grid over the plane.

Expect an accuracy of about 0.93, and several times as much mutual information at the points that it has wrong as at
those it has right. Dots are large along the border and, beyond the data, in the directions where no cluster lies; far
out behind a cluster the network is as sure as within it, since its sigmoids have long been saturated there. That is no
knowledge: nothing in this method says that it has never seen such points.

Takes about ten seconds; the picture needs matplotlib. That in docs/images is made by
``python examples/decision_regions.py --out docs/images/decision_regions.png``.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import nn

import dubio

EPOCHS = 2 if os.environ.get("DUBIO_TINY") else 100
SHOWN = 200  # test points in the picture


def train(splits: dubio.data.Splits, seed: int, progress: bool = True) -> nn.Module:
    """A network with flows on its inputs that tells the two classes apart."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 16), nn.Sigmoid(), nn.Linear(16, 2))
    model = dubio.Flow(blocks=dubio.flows.NormalPlanar1d(4)).convert(net)
    dubio.fit(
        model, splits.train, splits.validation, epochs=EPOCHS, lr=0.01, noise_lr=0.01, seed=seed, progress=progress
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Classes of the plane, with doubt as size.")
    parser.add_argument("--out", type=Path, default=Path("runs/decision_regions.png"), help="where the picture goes")
    parser.add_argument("--seed", type=int, default=0, help="first weights, order of the data, and noise")
    options = parser.parse_args()

    clusters = dubio.data.clusters()
    model = train(clusters, options.seed)
    inputs, labels = clusters.test.tensors
    found = dubio.predict(model, inputs, num_samples=100, seed=options.seed)
    right = found.label == labels
    of_right, of_wrong = (found.mutual_information[rows].mean().item() for rows in (right, ~right))
    print(f"accuracy {right.float().mean():.3f}")
    print(f"mutual information {of_right:.4f} where right, {of_wrong:.4f} where wrong")
    dubio.plots.draw_regions(
        model, inputs[:SHOWN], labels[:SHOWN], options.out, classes=("middle", "around it"), seed=options.seed
    )
    print(f"picture: {options.out}")


if __name__ == "__main__":
    main()
