"""Summaries of doubt in plain NumPy, one input at a time, straight from their definitions (E-9 to E-14)."""

import numpy as np


def mean_probs(probs):
    """Probabilities of draws, `(sample, batch, class)`, averaged."""
    return sum(probs) / len(probs)


def entropy(probs):
    """Entropy in nats of each row of `(batch, class)`; an impossible class adds nothing."""
    return np.array([-sum(p * np.log(p) for p in row if p > 0.0) for row in probs])


def expected_entropy(probs):
    return sum(entropy(draw) for draw in probs) / len(probs)


def mutual_information(probs):
    """Mean divergence of the draws from their average: the same number as a difference of entropies."""
    average = mean_probs(probs)
    return sum((draw * np.log(draw / average)).sum(axis=-1) for draw in probs) / len(probs)


def class_variance(probs):
    return sum((draw - mean_probs(probs)) ** 2 for draw in probs) / len(probs)


def vote_shares(probs):
    _, batch, classes = probs.shape
    labels = probs.argmax(axis=-1)
    return np.array([[np.mean([draw[i] == c for draw in labels]) for c in range(classes)] for i in range(batch)])


def variation_ratio(probs):
    return np.array([1.0 - max(row) for row in vote_shares(probs)])
