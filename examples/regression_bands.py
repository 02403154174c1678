"""Regression with bands: a network that knows where its data end.

The curve is that of Blundell et al. 2015 (section 5.2), x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e. A
network 1-400-400-1 sees a thousand points with x between 0 and 0.5 and is asked about -0.2 to 1.2. Each of a hundred
draws from its posterior is one function; the picture shows their median and the bands that hold the middle half and the
middle 90 % of them; dotted lines add the noise that the network takes for granted. Where there are data the functions
agree; beyond, they fan out.

Expect the interquartile band on [0.8, 1.2], far from the data, to be at least three times as wide as on [0.1, 0.4],
among them. Expect no miracle: the weights of this posterior are independent of each other, which makes bands too
narrow, and the true curve leaves them in places. Takes about half a minute; the picture needs matplotlib.

Why these settings and not the defaults, which suit classification:

- Learning rate 0.01, five times the default. 160,000 standard deviations start at 0.05, far below the prior, and have
  to grow; at 0.002 they are still on their way when training ends, and the ratio of widths stays below 3.
- A prior of standard deviation 2. Several bends within half a unit need steep weights, and what the data say nothing
  about should stay wide. With 1 the ratio is smaller by a fifth or so; with 0.3 it is about 3 or less.
- The divergence is eased in over the first half of the training (``warmup``), so that units learn something before it
  prunes them; the cosine schedule brings the fit to rest. Without the two, the ratio is still above 3, with less to
  spare. Training longer prunes more units and narrows the bands slowly.

The picture in docs/images is made by ``python examples/regression_bands.py --out docs/images/regression_bands.png``.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import Tensor, nn

import dubio
from dubio.functional import regression_curve
from dubio.pictures import Bands, bands_of, draw_bands

EPOCHS = 2 if os.environ.get("DUBIO_TINY") else 300
NUM_POINTS = 1000
NOISE_STD = 0.02  # of e, which enters the curve three times
OBSERVATION_STD = 0.1  # of what the network takes for noise
LEVELS = (0.5, 0.9)  # of the bands
GRID = torch.linspace(-0.2, 1.2, 281).unsqueeze(1)


def points(seed: int) -> tuple[Tensor, Tensor]:
    """Training points, `(point, 1)` each."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.5 * torch.rand(NUM_POINTS, 1, generator=generator)
    return x, regression_curve(x, NOISE_STD * torch.randn(NUM_POINTS, 1, generator=generator))


def train(data: tuple[Tensor, Tensor], seed: int, progress: bool = True) -> nn.Module:
    """A Bayesian network that has learned the points."""
    torch.manual_seed(seed)
    method = dubio.Bayes(prior=dubio.Normal(0.0, 2.0))
    model = method.convert(dubio.models.mlp(1, 400, 400, 1), likelihood=dubio.Gaussian(OBSERVATION_STD))
    dubio.fit(
        model,
        data,
        objective=dubio.Elbo(warmup=EPOCHS // 2),
        epochs=EPOCHS,
        batch_size=250,
        lr=0.01,
        schedule="cosine",
        seed=seed,
        progress=progress,
    )
    return model


def mean_width(bands: Bands, low: float, high: float) -> float:
    """Mean width of the interquartile band between two places."""
    between = (bands.places > low - 1e-6) & (bands.places < high + 1e-6)
    lower, upper = bands.of_draws[bands.levels.index(0.5)]
    return (upper - lower)[between].mean().item()


def truth(x: Tensor) -> Tensor:
    """The curve without noise."""
    return regression_curve(x, torch.zeros_like(x))


def main() -> None:
    parser = argparse.ArgumentParser(description="Regression with bands.")
    parser.add_argument("--out", type=Path, default=Path("runs/regression_bands.png"), help="where the picture goes")
    parser.add_argument("--seed", type=int, default=0, help="points, first weights, order of the data, and noise")
    options = parser.parse_args()

    data = points(options.seed)
    model = train(data, options.seed)
    bands = bands_of(model, GRID, levels=LEVELS, seed=options.seed)
    inside, outside = mean_width(bands, 0.1, 0.4), mean_width(bands, 0.8, 1.2)
    print(f"mean width of the interquartile band: {inside:.3f} on [0.1, 0.4], {outside:.3f} on [0.8, 1.2]")
    print(f"ratio {outside / inside:.2f}")
    draw_bands(model, *data, options.out, grid=(-0.2, 1.2), levels=LEVELS, truth=truth, seed=options.seed)
    print(f"picture: {options.out}")


if __name__ == "__main__":
    main()
