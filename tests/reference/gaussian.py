"""Gaussian posteriors and their priors in plain NumPy and SciPy, derived anew from the densities."""

import itertools

import numpy as np
from scipy import integrate, stats


def softplus(rho):
    return np.logaddexp(0.0, rho)


def inverse_softplus(std):
    return np.log(np.expm1(std))


def mixture_log_density(value, weight, wide_std, narrow_std):
    wide = np.log(weight) + stats.norm.logpdf(value, 0.0, wide_std)
    narrow = np.log(1.0 - weight) + stats.norm.logpdf(value, 0.0, narrow_std)
    return np.logaddexp(wide, narrow)


def mixture_slope(value, weight, wide_std, narrow_std):
    """Derivative of the log density: a pull to zero by each component, weighted with its responsibility."""
    wide = weight * stats.norm.pdf(value, 0.0, wide_std)
    narrow = (1.0 - weight) * stats.norm.pdf(value, 0.0, narrow_std)
    responsibility = wide / (wide + narrow)
    return -value * (responsibility / wide_std**2 + (1.0 - responsibility) / narrow_std**2)


def log_ratio_moments(mean, std, prior_log_density):
    """Mean (the divergence) and standard deviation of ``log q(w) - log p(w)`` for w from ``q = N(mean, std^2)``."""
    ends = mean - 12.0 * std, mean + 12.0 * std
    # A narrow component of the prior is a kink at zero: the integral is cut there.
    cuts = sorted({*ends, *(cut for cut in (-0.01, -0.002, 0.0, 0.002, 0.01) if ends[0] < cut < ends[1])})

    def expectation(power):
        def integrand(w):
            ratio = stats.norm.logpdf(w, mean, std) - prior_log_density(w)
            return stats.norm.pdf(w, mean, std) * ratio**power

        pieces = itertools.pairwise(cuts)
        return sum(integrate.quad(integrand, a, b, epsabs=1e-11, limit=200)[0] for a, b in pieces)

    first = expectation(1)
    return first, np.sqrt(expectation(2) - first**2)
