"""Networks by name."""

from dubio.models.building import architecture_of, build, mlp

__all__ = ["architecture_of", "build", "mlp"]
