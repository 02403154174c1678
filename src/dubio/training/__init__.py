"""Training: data in, a trained network and a record out."""

from dubio.training.callbacks import Callback, FitResult, Interrupted, TensorBoard
from dubio.training.diagnosis import CollapseWarning
from dubio.training.fit import fit
from dubio.training.processes import ALONE, LostProcessError, Processes, is_raised_by_all
from dubio.training.steps import Fast, Step, StepCache
from dubio.training.trainer import Schedule as Schedule, validate as validate

__all__ = [
    "ALONE",
    "Callback",
    "CollapseWarning",
    "Fast",
    "Interrupted",
    "LostProcessError",
    "Processes",
    "FitResult",
    "Step",
    "StepCache",
    "TensorBoard",
    "fit",
    "is_raised_by_all",
]
