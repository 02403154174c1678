"""Bayes by Backprop: error, learning curves and pruning, unseen images, attacked images, and what draws cost.

References: Blundell et al. 2015, Weight Uncertainty in Neural Networks; Project Machine Learning, Milestone 3.
"""

from dubio_lab.protocols.bbb.attacking import fgsa
from dubio_lab.protocols.bbb.errors import error, honest, pruning, search
from dubio_lab.protocols.bbb.estimators import learning_curve
from dubio_lab.protocols.bbb.timing import speed
from dubio_lab.protocols.bbb.unseen import ood

__all__ = ["error", "fgsa", "honest", "learning_curve", "ood", "pruning", "search", "speed"]
