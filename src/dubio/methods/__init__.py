"""Methods: frozen values, each a family of stochastic networks with its layers and defaults."""

from dubio.methods.bayes import Bayes
from dubio.methods.dropout import Dropout
from dubio.methods.flow import Flow
from dubio.methods.input_noise import InputNoise
from dubio.methods.method import Method, NoiseOff, Recipe

__all__ = ["METHODS", "Bayes", "Dropout", "Flow", "InputNoise", "Method", "NoiseOff", "Recipe"]

METHODS: dict[str, type[Method]] = {
    "bayes": Bayes,
    "dropout": Dropout,
    "input-noise": InputNoise,
    "flow": Flow,
}
"""Every method by the name that the command line has for it."""
