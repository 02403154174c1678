"""The plain values of a run: what was asked for, what came of it, and what is called as it goes."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from dubio._engine import check_precision
from dubio.objectives import Loss

__all__ = ["Callback", "Interrupted", "Plan", "Run"]


class Interrupted(KeyboardInterrupt):
    """Training was interrupted; where it had a folder, its state is saved there."""


@runtime_checkable
class Callback(Protocol):
    """What ``fit`` calls as it goes; each returns nothing."""

    def on_step(self, step: int, loss: Loss) -> None:
        """After every optimiser step, whose tensors the next one may overwrite: copy what is kept."""

    def on_epoch(self, metrics: dict[str, float]) -> None:
        """After every epoch."""

    def on_end(self, run: "Run") -> None:
        """When training is over."""


@dataclass(frozen=True)
class Run:
    """What training did."""

    history: tuple[dict[str, float], ...]
    """Metrics of every epoch."""
    best_epoch: int
    """The epoch whose weights the network now has (the last one where nothing was validated)."""
    stopped_early: bool
    seconds: float
    folder: Path | None
    how: str = "eager"
    """How steps ran: ``captured``, ``compiled`` or ``eager``, and why where something stood in the way."""
    capture_seconds: float = 0.0
    """What compiling and recording the step took of the time."""

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the best epoch."""
        return self.history[self.best_epoch - 1]


@dataclass(frozen=True)
class Plan:
    """The plain values of a run, on which a resumed one must agree."""

    epochs: int
    batch_size: int
    lr: float
    noise_lr: float
    num_samples: int
    weight_decay: float
    clip_norm: float | None
    accumulate: int
    patience: int | None
    monitor: str
    seed: int
    precision: str

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "num_samples", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not (math.isfinite(self.lr) and self.lr > 0.0):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not (math.isfinite(self.noise_lr) and self.noise_lr > 0.0):
            raise ValueError(f"noise_lr must be positive and finite, got {self.noise_lr}")
        if self.weight_decay < 0.0:
            raise ValueError(f"weight_decay must be at least 0, got {self.weight_decay}")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise ValueError(f"clip_norm must be positive, got {self.clip_norm}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least 1 epoch, got {self.patience}")
        if self.monitor not in ("val_nll", "val_accuracy", "loss", "nll"):
            raise ValueError(f"monitor must be 'val_nll', 'val_accuracy', 'loss' or 'nll', got {self.monitor!r}")
        check_precision(self.precision)
