"""What training minimises: frozen values that are called with a network and a batch.

``Adversarial`` brings in the attacks, and is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from dubio._lazy import import_later
from dubio.objectives.alpha import Alpha
from dubio.objectives.bootstrapping import BootstrapHard, BootstrapSoft
from dubio.objectives.elbo import Elbo
from dubio.objectives.ensemble import EnsembleLoss
from dubio.objectives.loss import Loss
from dubio.objectives.objective import Objective

if TYPE_CHECKING:
    from dubio.objectives.adversarial import Adversarial

__all__ = ["Adversarial", "Alpha", "BootstrapHard", "BootstrapSoft", "Elbo", "EnsembleLoss", "Loss", "Objective"]

if not TYPE_CHECKING:  # which knows all names, and would take any other for one of them
    __getattr__ = import_later(__name__, {"adversarial": ("Adversarial",)})
