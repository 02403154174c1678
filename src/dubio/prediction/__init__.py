"""Predictions from many draws, with their doubt."""

from dubio.prediction.predicting import predict
from dubio.prediction.predictive import ClassPredictive, Predictive, RealPredictive

__all__ = ["ClassPredictive", "Predictive", "RealPredictive", "predict"]
