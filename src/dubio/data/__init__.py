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

__all__ = ["Examples", "Splits", "scaled"]
__all__ += ["Blur", "CORRUPTIONS", "Contrast", "Corruption", "GaussianNoise", "Inversion", "Rotation", "corrupt"]
__all__ += ["Flip", "LabelNoise", "MnistAsymmetric", "NoisyLabels", "Symmetric", "UniformMix", "parse_label_noise"]
