"""Formulas: pure functions of tensors, each written once.

Nothing here holds parameters, draws noise or knows a layer. The numbers (E-n) beside the formulas are those of the
methods specification and are repeated in the tests (T-n).
"""

from dubio.functional.adversarial import (
    attack_loss,
    averaged_attack_loss,
    distortion,
    perturbation_norm,
    project_perturbation,
    random_perturbation,
    steepest_direction,
)
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
from dubio.functional.corruptions import blurred, inverted, rotated, with_contrast, with_noise
from dubio.functional.free_energy import kl_share, minibatch_cost
from dubio.functional.intervals import clopper_pearson, normal_interval, retry_probability, two_way_standard_error
from dubio.functional.label_noise import (
    flip_destinations,
    patterned_transition,
    redrawn_labels,
    symmetric_transition,
    uniform_transition,
)
from dubio.functional.regression import mixture_cdf, mixture_quantile, regression_curve
from dubio.functional.resizing import area_resized
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
    "area_resized",
    "attack_loss",
    "averaged_attack_loss",
    "blurred",
    "class_variance",
    "clopper_pearson",
    "distortion",
    "entropy",
    "expected_entropy",
    "flip",
    "flip_destinations",
    "gaussian_kl",
    "inverse_softplus",
    "inverted",
    "kl_share",
    "local_reparameterisation",
    "minibatch_cost",
    "mixture_cdf",
    "mixture_quantile",
    "monte_carlo_kl",
    "mutual_information",
    "normal_interval",
    "normal_log_prob",
    "patterned_transition",
    "perturbation_norm",
    "posterior_log_prob",
    "predictive_log_probs",
    "project_perturbation",
    "random_perturbation",
    "redrawn_labels",
    "regression_curve",
    "retry_probability",
    "rotated",
    "safe_sqrt",
    "scale_mixture_log_prob",
    "softplus",
    "steepest_direction",
    "symmetric_transition",
    "two_way_standard_error",
    "uniform_transition",
    "variation_ratio",
    "vote_shares",
    "with_contrast",
    "with_noise",
]
