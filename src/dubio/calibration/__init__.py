"""Decisions from validation data: calibrate probabilities, choose a threshold, and form prediction sets."""

from dubio.calibration.abstain import abstain
from dubio.calibration.calibrate import calibrate, check_unjudged as check_unjudged
from dubio.calibration.conformal import conformal

__all__ = ["abstain", "calibrate", "conformal"]
