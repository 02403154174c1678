"""Keeping networks: one safetensors file with JSON metadata, never pickle."""

from dubio.persistence.files import load, save

__all__ = ["load", "save"]
