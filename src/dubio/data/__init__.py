"""Data: datasets by name, from a folder or a table, held in memory."""

from dubio.data.examples import Examples, Splits, scaled

__all__ = ["Examples", "Splits", "scaled"]
