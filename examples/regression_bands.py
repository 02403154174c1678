"""Regression with uncertainty bands that widen beyond the data.

The curve is that of Blundell et al. 2015 (section 5.2), x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e. An
ensemble of thirty networks 1-100-2 is trained on a thousand points with x between 0 and 0.5 and evaluated from -0.2 to
1.2. Each member is one function. The picture shows the median of the functions and the bands that contain the middle
half and the middle 90 % of them. Dotted lines add the noise, whose size each network learns as a function of x. The
functions agree where there are data and fan out beyond.

Expect the true curve between the dotted lines everywhere, and within the wide band beyond the data. Expect the
interquartile band to be at least three times as wide on [0.8, 1.2], far from the data, as on [0.1, 0.4], among them.
The example takes about half a minute; the picture needs matplotlib.

The initialisation of the networks takes the role of the prior and determines how the functions continue beyond the
data:

- The hidden units bend at places spread over the whole picture, not only among the data. With the default
  initialisation of PyTorch, all functions are nearly straight beyond the data, and the curve leaves the bands.
- The output weights start large, so that functions without data differ by about two units, the height of the picture.
- The noise depends on x (``Gaussian("output")``): the points scatter much more near 0 than near 0.4.

The thirty functions are trained on the same data and differ only in their initialisation. A posterior of independent
Gaussians (``Bayes``) over weights is an alternative; its bands are narrower, and on this curve too narrow.

The picture in docs/images is made by ``python examples/regression_bands.py --out docs/images/regression_bands.png``.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import Tensor, nn

import dubio
from dubio.functional.uncertainty import regression_curve
from dubio.plots.bands import Bands, bands_of, draw_bands

EPOCHS = 2 if os.environ.get("DUBIO_TINY") else 200
NUM_MEMBERS = 30
NUM_UNITS = 100
NUM_POINTS = 1000
NOISE_STD = 0.02  # standard deviation of e, which occurs three times in the curve
LEVELS = (0.5, 0.9)  # levels of the bands
GRID = torch.linspace(-0.2, 1.2, 281).unsqueeze(1)


def points(seed: int) -> tuple[Tensor, Tensor]:
    """Training points, `(point, 1)` each."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.5 * torch.rand(NUM_POINTS, 1, generator=generator)
    return x, regression_curve(x, NOISE_STD * torch.randn(NUM_POINTS, 1, generator=generator))


def network() -> nn.Module:
    """A function of x with bends across the picture, and the softplus argument of the noise standard deviation."""
    hidden, out = nn.Linear(1, NUM_UNITS), nn.Linear(NUM_UNITS, 2)
    with torch.no_grad():
        hidden.weight.normal_(0.0, 6.0)
        bends = -0.4 + 1.8 * torch.rand(NUM_UNITS)
        hidden.bias.copy_(-hidden.weight[:, 0] * bends)
        out.weight.normal_(0.0, 2.0 / NUM_UNITS**0.5)
        out.weight[1] *= 0.1
        out.bias.copy_(torch.tensor([0.0, -2.0]))  # softplus(-2) is 0.13
    return nn.Sequential(hidden, nn.Tanh(), out)


def train(data: tuple[Tensor, Tensor], seed: int, progress: bool = True) -> nn.Module:
    """Train an ensemble on the points."""
    torch.manual_seed(seed)
    method = dubio.Ensemble(members=NUM_MEMBERS)
    model = method.convert([network() for _ in range(NUM_MEMBERS)], likelihood=dubio.Gaussian("output"))
    dubio.fit(
        model,
        data,
        epochs=EPOCHS,
        batch_size=250,
        lr=0.005,
        schedule="cosine",
        clip_norm=1.0,
        seed=seed,
        progress=progress,
    )
    return model


def mean_width(bands: Bands, low: float, high: float) -> float:
    """Mean width of the interquartile band between two values of x."""
    between = (bands.places > low - 1e-6) & (bands.places < high + 1e-6)
    lower, upper = bands.of_draws[bands.levels.index(0.5)]
    return (upper - lower)[between].mean().item()


def truth(x: Tensor) -> Tensor:
    """The curve without noise."""
    return regression_curve(x, torch.zeros_like(x))


def main() -> None:
    parser = argparse.ArgumentParser(description="Regression with uncertainty bands.")
    parser.add_argument("--out", type=Path, default=Path("runs/regression_bands.png"), help="path of the picture")
    parser.add_argument("--seed", type=int, default=0, help="seed of points, initial weights, data order, and noise")
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
