"""Formulas: pure functions of tensors, each written once.

Nothing here holds parameters, draws noise or knows a layer. The numbers (E-n) beside the formulas are those of the
methods specification and are repeated in the tests (T-n).
"""

from dubio.functional import (
    adversarial,
    calibration,
    corruption,
    flows,
    noise,
    statistics,
    uncertainty,
    variational,
    wasserstein,
)

__all__ = ["adversarial", "calibration", "corruption", "flows", "noise", "statistics", "uncertainty", "variational"]
__all__ += ["wasserstein"]
