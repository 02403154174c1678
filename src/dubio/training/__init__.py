"""Training: data in, a trained network and a record out."""

from dubio.training.diagnosis import CollapseWarning
from dubio.training.fitting import fit
from dubio.training.keeping import Steps
from dubio.training.processes import ALONE, LostProcessError, Processes, is_raised_by_all
from dubio.training.settings import Schedule as Schedule
from dubio.training.stepping import Fast, Step
from dubio.training.tensorboard import TensorBoard
from dubio.training.validation import validate as validate
from dubio.training.values import Callback, Interrupted, Run

__all__ = [
    "ALONE",
    "Callback",
    "CollapseWarning",
    "Fast",
    "Interrupted",
    "LostProcessError",
    "Processes",
    "Run",
    "Step",
    "Steps",
    "TensorBoard",
    "fit",
    "is_raised_by_all",
]
