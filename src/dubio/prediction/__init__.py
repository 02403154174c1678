"""Predictions from many draws, with their doubt."""

from dubio.prediction.predict import predict, predict_batches
from dubio.prediction.predictive import ClassPredictive, Predictive, RealPredictive, joined

__all__ = ["ClassPredictive", "Predictive", "RealPredictive", "joined", "predict", "predict_batches"]
