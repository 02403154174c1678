"""What a protocol is given."""

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Trial"]


@dataclass(frozen=True)
class Trial:
    """One cell with one seed."""

    settings: dict[str, Any]
    seed: int
    device: torch.device
