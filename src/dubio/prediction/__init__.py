"""Predictions from many draws, with their uncertainty."""

from dubio.prediction.predict import predict, predict_batches
from dubio.prediction.predictive import ClassificationPredictive, Predictive, RegressionPredictive, joined

__all__ = ["ClassificationPredictive", "Predictive", "RegressionPredictive", "joined", "predict", "predict_batches"]
