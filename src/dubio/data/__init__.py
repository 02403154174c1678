"""Data: datasets by name, from a folder or a table, held in memory."""

from dubio.data.corruptions import (
    CORRUPTIONS,
    Blur,
    Contrast,
    Corruption,
    GaussianNoise,
    Inversion,
    Rotation,
    corrupt,
)
from dubio.data.examples import Examples, Splits, scaled
from dubio.data.label_noise import (
    Flip,
    LabelNoise,
    MnistAsymmetric,
    NoisyLabels,
    Symmetric,
    UniformMix,
    parse_label_noise,
)
from dubio.data.loading import CropAndFlip, Loader, epoch_order

__all__ = [
    "CORRUPTIONS",
    "Blur",
    "Contrast",
    "Corruption",
    "CropAndFlip",
    "Examples",
    "Flip",
    "GaussianNoise",
    "Inversion",
    "LabelNoise",
    "Loader",
    "MnistAsymmetric",
    "NoisyLabels",
    "Rotation",
    "Splits",
    "Symmetric",
    "UniformMix",
    "corrupt",
    "epoch_order",
    "parse_label_noise",
    "scaled",
]
