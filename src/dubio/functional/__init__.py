"""Formulas: pure functions of tensors, each written once.

Nothing here holds parameters, draws noise or knows a layer. The numbers (E-n) beside the formulas are those of the
methods specification and are repeated in the tests (T-n).
"""

from dubio.functional.bayesian import (
    flip,
    gaussian_kl,
    inverse_softplus,
    local_reparameterisation,
    monte_carlo_kl,
    normal_log_prob,
    posterior_log_prob,
    safe_sqrt,
    scale_mixture_log_prob,
    softplus,
)
from dubio.functional.free_energy import kl_share, minibatch_cost
from dubio.functional.regression import mixture_cdf, mixture_quantile, regression_curve
from dubio.functional.uncertainty import (
    class_variance,
    entropy,
    expected_entropy,
    mutual_information,
    predictive_log_probs,
    variation_ratio,
    vote_shares,
)

__all__ = [
    "class_variance",
    "entropy",
    "expected_entropy",
    "flip",
    "gaussian_kl",
    "inverse_softplus",
    "kl_share",
    "local_reparameterisation",
    "minibatch_cost",
    "mixture_cdf",
    "mixture_quantile",
    "monte_carlo_kl",
    "mutual_information",
    "normal_log_prob",
    "posterior_log_prob",
    "predictive_log_probs",
    "regression_curve",
    "safe_sqrt",
    "scale_mixture_log_prob",
    "softplus",
    "variation_ratio",
    "vote_shares",
]
