"""Decide what to make of a trained network's predictions, from data that it neither learned from nor is judged on."""

from dubio.deciding.abstaining import abstain
from dubio.deciding.calibrating import calibrate
from dubio.deciding.conforming import conformal
from dubio.deciding.held_out import check_unjudged as check_unjudged

__all__ = ["abstain", "calibrate", "conformal"]
