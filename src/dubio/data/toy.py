"""Small datasets that need no files: digits and diabetes, which come with scikit-learn, a curve and a plane to draw.

Every call gives the same data; a generator of one's own gives others.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dubio import functional
from dubio.data.examples import Examples, Splits
from dubio.data.splitting import TENTH, split_three_ways, with_validation

__all__ = [
    "CLUSTER_CENTRES",
    "CLUSTER_STD",
    "clusters",
    "curve",
    "diabetes",
    "diabetes_table",
    "digits",
    "standardised",
]

CLUSTER_CENTRES = ((0.0, 0.0), (2.0, 0.0), (0.0, 2.0), (-2.0, 0.0), (0.0, -2.0))
"""The purple cluster, then the four red ones around it."""

CLUSTER_STD = 0.52
"""At this width the best possible classifier is right in 95 % of cases (tested by numerical integration)."""

NOISE_STD = 0.02


def digits(validation: int | float = TENTH) -> Splits:
    """The 1797 handwritten digits of scikit-learn, grey 8x8, pixels in [0, 1]; a quarter is for testing."""
    images, labels = _scikit_learn("digits")
    inputs = torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return split_three_ways(Examples(inputs, torch.tensor(labels).long(), tuple("0123456789"), "digits"), validation)


def diabetes(validation: int | float = TENTH) -> Splits:
    """How far the disease of 442 patients went in a year, from ten measurements; a quarter is for testing.

    Inputs and targets are standardised, by the mean and standard deviation of all that is not for testing.
    """
    table = diabetes_table()
    seen = split_three_ways(table, validation=0).train
    assert seen is not None
    return split_three_ways(standardised(table, seen), validation)


def diabetes_table() -> Examples:
    """All patients of ``diabetes``, with measurements and targets in the units that they were taken in."""
    inputs, targets = (torch.tensor(values, dtype=torch.float32) for values in _scikit_learn("diabetes", scaled=False))
    return Examples(inputs, targets[:, None], name="diabetes")


def standardised(table: Examples, seen: Examples) -> Examples:
    """Inputs and targets in standard deviations from the mean, both of those examples that may be seen."""
    inputs, targets = _standardised(table.inputs, seen.inputs), _standardised(table.targets, seen.targets)
    return replace(table, inputs=inputs, targets=targets)


def curve(
    validation: int | float = TENTH, *, num_points: int = 1000, generator: torch.Generator | None = None
) -> Splits:
    """Points of the regression curve (E-29): inputs uniform in [0, 0.5], noise of standard deviation 0.02.

    The test part is the curve without noise on a grid over [-0.2, 1.2], most of which training never sees.
    """
    generator = generator or torch.Generator().manual_seed(0)
    x = 0.5 * torch.rand(num_points, 1, generator=generator)
    noise = NOISE_STD * torch.randn(num_points, 1, generator=generator)
    grid = torch.linspace(-0.2, 1.2, 281)[:, None]
    train = Examples(x, functional.uncertainty.regression_curve(x, noise), name="curve")
    test = Examples(grid, functional.uncertainty.regression_curve(grid, torch.zeros_like(grid)), name="curve")
    return with_validation(train, test, validation)


def clusters(
    validation: int | float = TENTH, *, num_points: int = 1000, generator: torch.Generator | None = None
) -> Splits:
    """Points of the plane in two classes: a purple cluster, and four red ones around it that overlap it.

    Both classes are equally likely, and so are the four clusters. The test part is as large as the training part.
    """
    generator = generator or torch.Generator().manual_seed(0)
    train, test = (_plane(num_points, generator) for _ in range(2))
    return with_validation(train, test, validation)


def _standardised(values: Tensor, seen: Tensor) -> Tensor:
    return (values - seen.mean(dim=0)) / seen.std(dim=0)


def _plane(num_points: int, generator: torch.Generator) -> Examples:
    labels = torch.randint(2, (num_points,), generator=generator)
    which = labels * torch.randint(1, 5, (num_points,), generator=generator)
    noise = CLUSTER_STD * torch.randn(num_points, 2, generator=generator)
    return Examples(torch.tensor(CLUSTER_CENTRES)[which] + noise, labels, ("purple", "red"), "clusters")


def _scikit_learn(name: str, **options: Any) -> Any:
    try:
        from sklearn import datasets  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(f"{name} comes with scikit-learn, which is missing: pip install scikit-learn") from error
    return getattr(datasets, f"load_{name}")(return_X_y=True, **options)
