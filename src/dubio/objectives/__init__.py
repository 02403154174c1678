"""What training minimises: frozen values that are called with a network and a batch."""

from dubio.objectives.elbo import Elbo
from dubio.objectives.loss import Loss

__all__ = ["Elbo", "Loss"]
