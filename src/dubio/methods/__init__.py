"""Methods: frozen values, each a family of stochastic networks with its layers and defaults."""

from dubio.methods.bayes import Bayes

__all__ = ["Bayes"]
