"""dubio: stochastic neural networks, which know when they are in doubt.

>>> model = dubio.Bayes(prior=dubio.Normal(0.0, 1.0)).convert(net)
>>> pred = dubio.predict(model, inputs, num_samples=100)
>>> pred.probs, pred.mutual_information
"""

import gc
from typing import TYPE_CHECKING

from dubio.later import import_later

_collecting = gc.isenabled()
gc.disable()  # a collection in the midst of imports takes a tenth of a second and finds nothing
try:
    from dubio import data, flows, models, sampling
    from dubio.conversion import (
        ConversionWarning,
        Description,
        Spec,
        Where,
        describe,
        export,
        forget_decisions,
        parameter_names,
        spec,
        to_mean,
    )
    from dubio.decisions import DecisionWarning, PredictionSets, Temperature, Threshold, VectorScaling
    from dubio.layers import divergence
    from dubio.likelihoods import Bernoulli, Categorical, Gaussian
    from dubio.methods import (
        Bayes,
        Deterministic,
        Dropout,
        Ensemble,
        Flow,
        InputNoise,
        Pni,
        SeSnn,
        Vib,
        Wasserstein,
    )
    from dubio.objectives import Alpha, BootstrapHard, BootstrapSoft, Elbo, Loss
    from dubio.prediction import ClassPredictive, Predictive, RealPredictive, predict
    from dubio.priors import CentredNormal, Normal, ScaleMixture
    from dubio.sampling import (
        ExecutorWarning,
        Plan,
        antithetic,
        checkpoint,
        fresh,
        frozen,
        memory_limit,
        noise_off,
        plan,
        sample,
    )
    from dubio.version import VERSION
finally:
    if _collecting:
        gc.enable()

if TYPE_CHECKING:
    from dubio import attacks, pictures, pruning
    from dubio import reporting as reporting
    from dubio.auditing import Audit, audit
    from dubio.deciding import abstain, calibrate, conformal
    from dubio.evaluation import Evaluation, evaluate
    from dubio.objectives import Adversarial
    from dubio.persistence import load, save
    from dubio.pruning import Pruning, prune
    from dubio.training import Callback, CollapseWarning, Interrupted, Run, Step, Steps, TensorBoard, fit

__version__ = VERSION

LATER = {
    "attacks": (),
    "auditing": ("Audit", "audit"),
    "deciding": ("abstain", "calibrate", "conformal"),
    "evaluation": ("Evaluation", "evaluate"),
    "objectives": ("Adversarial",),
    "persistence": ("load", "save"),
    "pictures": (),
    "pruning": ("Pruning", "prune"),
    "reporting": (),
    "training": ("Callback", "CollapseWarning", "Interrupted", "Run", "Step", "Steps", "TensorBoard", "fit"),
}
"""What trains, judges, decides, keeps and draws is imported when it is first asked for."""

__all__ = [
    "Adversarial",
    "Alpha",
    "Audit",
    "Bayes",
    "Bernoulli",
    "BootstrapHard",
    "BootstrapSoft",
    "Callback",
    "Categorical",
    "CentredNormal",
    "ClassPredictive",
    "CollapseWarning",
    "ConversionWarning",
    "DecisionWarning",
    "Description",
    "Deterministic",
    "Dropout",
    "Elbo",
    "Ensemble",
    "Evaluation",
    "ExecutorWarning",
    "Flow",
    "Gaussian",
    "InputNoise",
    "Interrupted",
    "Loss",
    "Normal",
    "Plan",
    "Pni",
    "PredictionSets",
    "Predictive",
    "Pruning",
    "RealPredictive",
    "Run",
    "ScaleMixture",
    "SeSnn",
    "Spec",
    "Step",
    "Steps",
    "Temperature",
    "TensorBoard",
    "Threshold",
    "VectorScaling",
    "Vib",
    "Wasserstein",
    "Where",
    "__version__",
    "abstain",
    "antithetic",
    "attacks",
    "calibrate",
    "audit",
    "checkpoint",
    "conformal",
    "data",
    "describe",
    "divergence",
    "evaluate",
    "export",
    "fit",
    "flows",
    "forget_decisions",
    "fresh",
    "frozen",
    "load",
    "memory_limit",
    "models",
    "noise_off",
    "parameter_names",
    "pictures",
    "plan",
    "predict",
    "prune",
    "pruning",
    "sample",
    "sampling",
    "save",
    "spec",
    "to_mean",
]

if not TYPE_CHECKING:  # which knows all names, and would take any other for one of them
    __getattr__ = import_later("dubio", LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *LATER})
