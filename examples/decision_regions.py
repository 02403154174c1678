"""Decision regions with uncertainty as dot size: where a stochastic network is confident, and where its draws disagree.

One class lies in the middle, the other in four clusters around it that overlap with it; the Bayes-optimal classifier
is right in 95 % of cases. The network is that of the demonstration in the flow paper: one hidden layer of 16 sigmoids,
whose inputs are multiplied by noise with the distribution of a normalizing flow of four planar steps.

The picture shows the more probable class as colour, paler where the network is less confident. Dots grow with mutual
information, the disagreement of the draws: filled dots are test points, open dots are a grid over the plane.

Expect an accuracy of about 0.93, and several times as much mutual information at misclassified points as at correctly
classified ones. Dots are large along the decision boundary and, beyond the data, in directions without a cluster. Far
out behind a cluster, the network is as confident as inside it, because its sigmoids are saturated there. This
confidence is not justified: the method does not detect that it has never seen such points.

The example takes about ten seconds; the picture needs matplotlib. The picture in docs/images is made by
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
    """Train a network with flows on its inputs to classify the two classes."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 16), nn.Sigmoid(), nn.Linear(16, 2))
    model = dubio.Flow(blocks=dubio.flows.NormalPlanar1d(4)).convert(net)
    dubio.fit(
        model, splits.train, splits.validation, epochs=EPOCHS, lr=0.01, noise_lr=0.01, seed=seed, progress=progress
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Decision regions with uncertainty as dot size.")
    parser.add_argument("--out", type=Path, default=Path("runs/decision_regions.png"), help="path of the picture")
    parser.add_argument("--seed", type=int, default=0, help="seed of initial weights, data order, and noise")
    options = parser.parse_args()

    clusters = dubio.data.clusters()
    model = train(clusters, options.seed)
    inputs, labels = clusters.test.tensors
    pred = dubio.predict(model, inputs, num_samples=100, seed=options.seed)
    right = pred.label == labels
    of_right, of_wrong = (pred.mutual_information[rows].mean().item() for rows in (right, ~right))
    print(f"accuracy {right.float().mean():.3f}")
    print(f"mutual information {of_right:.4f} where right, {of_wrong:.4f} where wrong")
    dubio.plots.draw_regions(
        model, inputs[:SHOWN], labels[:SHOWN], options.out, classes=("middle", "around it"), seed=options.seed
    )
    print(f"picture: {options.out}")


if __name__ == "__main__":
    main()
