"""Which dubio this is, and what it runs on: what records say of where they come from."""

import platform

import torch

__all__ = ["VERSION", "versions"]

VERSION = "0.1.0"


def versions() -> dict[str, str]:
    """The versions that a number depends on."""
    return {"dubio": VERSION, "torch": str(torch.__version__), "python": platform.python_version()}
