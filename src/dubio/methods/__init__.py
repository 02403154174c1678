"""Methods: frozen values, each a family of stochastic networks with its layers and defaults."""

from dubio.methods.bayes import Bayes
from dubio.methods.dropout import Dropout
from dubio.methods.ensemble import Ensemble
from dubio.methods.flow import Flow
from dubio.methods.input_noise import InputNoise
from dubio.methods.method import Deterministic, Method, NoiseOff, Recipe
from dubio.methods.pni import PNI
from dubio.methods.se_snn import SESNN
from dubio.methods.vib import VIB
from dubio.methods.wasserstein import Wasserstein

__all__ = [
    "METHODS",
    "Bayes",
    "Deterministic",
    "Dropout",
    "Ensemble",
    "Flow",
    "InputNoise",
    "Method",
    "NoiseOff",
    "PNI",
    "Recipe",
    "SESNN",
    "VIB",
    "Wasserstein",
]

METHODS: dict[str, type[Method]] = {
    "bayes": Bayes,
    "dropout": Dropout,
    "input-noise": InputNoise,
    "flow": Flow,
    "se-snn": SESNN,
    "vib": VIB,
    "pni": PNI,
    "wasserstein": Wasserstein,
    "deterministic": Deterministic,
    "ensemble": Ensemble,
}
"""Every method by the name that the command line has for it."""
