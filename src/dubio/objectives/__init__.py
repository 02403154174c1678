"""What training minimises: frozen values that are called with a network and a batch."""

from dubio.objectives.adversarial import Adversarial
from dubio.objectives.alpha import Alpha
from dubio.objectives.bootstrapping import BootstrapHard, BootstrapSoft
from dubio.objectives.elbo import Elbo
from dubio.objectives.ensemble import EnsembleLoss
from dubio.objectives.loss import Loss
from dubio.objectives.objective import Objective

__all__ = ["Adversarial", "Alpha", "BootstrapHard", "BootstrapSoft", "Elbo", "EnsembleLoss", "Loss", "Objective"]
