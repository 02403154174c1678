"""Methods: frozen values, each of which converts a network into a stochastic one of its family."""

from dubio.methods.bayes import Bayes as Bayes
from dubio.methods.dropout import Dropout as Dropout
from dubio.methods.ensemble import Ensemble as Ensemble
from dubio.methods.flow import Flow as Flow
from dubio.methods.input_noise import InputNoise as InputNoise
from dubio.methods.method import (
    Deterministic as Deterministic,
    Method as Method,
    NoiseOff as NoiseOff,
    Recipe as Recipe,
)
from dubio.methods.pni import PNI as PNI
from dubio.methods.se_snn import SESNN as SESNN
from dubio.methods.vib import VIB as VIB
from dubio.methods.wasserstein import Wasserstein as Wasserstein

METHODS: dict[str, type[Method]] = {"bayes": Bayes, "dropout": Dropout, "input-noise": InputNoise, "flow": Flow}
METHODS |= {"se-snn": SESNN, "vib": VIB, "pni": PNI, "wasserstein": Wasserstein}
METHODS |= {"deterministic": Deterministic, "ensemble": Ensemble}
"""Every method by its name on the command line."""
