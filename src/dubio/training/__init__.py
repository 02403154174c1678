"""Training: data in, a trained network and a record out."""

from dubio.training.fitting import fit
from dubio.training.tensorboard import TensorBoard
from dubio.training.trainer import Callback, CollapseWarning, Interrupted, Run

__all__ = ["Callback", "CollapseWarning", "Interrupted", "Run", "TensorBoard", "fit"]
