"""Decide what to make of a trained network's predictions, from data that it neither learned from nor is judged on."""

from dubio.calibration.abstain import abstain
from dubio.calibration.calibrate import calibrate, check_unjudged as check_unjudged
from dubio.calibration.conformal import conformal

__all__ = ["abstain", "calibrate", "conformal"]
