"""Conformal sets and selective errors in plain NumPy, one example and one class at a time."""

import math
from fractions import Fraction

import numpy as np


def scores(probs, kind):
    """How strange each class is: `(example, class)`."""
    found = np.zeros_like(probs)
    for row, own in enumerate(probs):
        for label, p in enumerate(own):
            found[row, label] = 1.0 - p if kind == "lac" else sum(other for other in own if other > p)
    return found


def quantile(values, coverage):
    """The smallest value that at least ``(n + 1) coverage`` of the values do not exceed."""
    needed = math.ceil((len(values) + 1) * Fraction(str(coverage)))
    return next(value for value in sorted(values) if sum(v <= value for v in values) >= needed)


def sets(probs, kind, bound):
    """Lists of the classes that are no stranger than a bound."""
    return [[label for label, score in enumerate(own) if score <= bound] for own in scores(probs, kind)]
