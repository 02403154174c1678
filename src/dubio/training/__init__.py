"""Training: data in, a trained network and a record out."""

from dubio.training.callbacks import (
    Callback as Callback,
    FitResult as FitResult,
    Interrupted as Interrupted,
    TensorBoard as TensorBoard,
)
from dubio.training.diagnosis import CollapseWarning as CollapseWarning
from dubio.training.fit import fit as fit
from dubio.training.processes import (
    ALONE as ALONE,
    LostProcessError as LostProcessError,
    Processes as Processes,
    is_raised_by_all as is_raised_by_all,
)
from dubio.training.steps import Fast as Fast, Step as Step, StepCache as StepCache, StepMode as StepMode
from dubio.training.trainer import Schedule as Schedule, validate as validate
