"""dubio: stochastic neural networks, which know when they are in doubt.

>>> model = dubio.Bayes(prior=dubio.Normal(0.0, 1.0)).convert(net)
>>> pred = dubio.predict(model, inputs, num_samples=100)
>>> pred.probs, pred.mutual_information
"""

from typing import TYPE_CHECKING

from dubio._lazy import import_later
from dubio.version import VERSION

if TYPE_CHECKING:
    from dubio import (
        attacks as attacks,
        auditing as auditing,
        calibration as calibration,
        calibrators as calibrators,
        convert as convert,
        data as data,
        evaluation as evaluation,
        flows as flows,
        functional as functional,
        io as io,
        likelihoods as likelihoods,
        methods as methods,
        models as models,
        nn as nn,
        objectives as objectives,
        plots as plots,
        prediction as prediction,
        priors as priors,
        pruning as pruning,
        report as report,
        training as training,
    )
    from dubio._engine import (
        ExecutorWarning,
        SamplingPlan,
        antithetic,
        checkpoint,
        fresh,
        frozen,
        memory_limit,
        noise_off,
        plan,
        sample,
    )
    from dubio.auditing import Audit
    from dubio.auditing.audit import audit
    from dubio.calibration.abstain import abstain
    from dubio.calibration.calibrate import calibrate
    from dubio.calibration.conformal import conformal
    from dubio.calibrators import DecisionWarning, PredictionSets, Temperature, Threshold, VectorScaling
    from dubio.convert import (
        ConversionWarning,
        Description,
        ModelSpec,
        Where,
        parameter_names,
        reset_decisions,
        to_mean,
    )
    from dubio.convert.describe import describe
    from dubio.convert.export import export
    from dubio.convert.spec import spec
    from dubio.evaluation import Evaluation
    from dubio.evaluation.evaluate import evaluate
    from dubio.io import load, save
    from dubio.likelihoods import Bernoulli, Categorical, Gaussian
    from dubio.methods import PNI, SESNN, VIB, Bayes, Deterministic, Dropout, Ensemble, Flow, InputNoise, Wasserstein
    from dubio.nn import divergence
    from dubio.objectives import ELBO, Adversarial, Alpha, BootstrapHard, BootstrapSoft, Loss
    from dubio.prediction import ClassificationPredictive, Predictive, RegressionPredictive
    from dubio.prediction.predict import predict
    from dubio.priors import CentredNormal, Normal, ScaleMixture
    from dubio.pruning import Pruning
    from dubio.pruning.prune import prune
    from dubio.training import Callback, CollapseWarning, FitResult, Interrupted, Step, StepCache, TensorBoard
    from dubio.training.fit import fit

__version__ = VERSION

PLACES: dict[str, tuple[str, ...]] = {
    "attacks": (),
    "auditing": ("Audit", "audit"),
    "convert": (
        "ConversionWarning",
        "Description",
        "ModelSpec",
        "Where",
        "describe",
        "export",
        "reset_decisions",
        "parameter_names",
        "spec",
        "to_mean",
    ),
    "data": (),
    "calibration": ("abstain", "calibrate", "conformal"),
    "calibrators": ("DecisionWarning", "PredictionSets", "Temperature", "Threshold", "VectorScaling"),
    "evaluation": ("Evaluation", "evaluate"),
    "flows": (),
    "functional": (),
    "nn": ("divergence",),
    "likelihoods": ("Bernoulli", "Categorical", "Gaussian"),
    "methods": (
        "Bayes",
        "Deterministic",
        "Dropout",
        "Ensemble",
        "Flow",
        "InputNoise",
        "PNI",
        "SESNN",
        "VIB",
        "Wasserstein",
    ),
    "models": (),
    "objectives": ("Adversarial", "Alpha", "BootstrapHard", "BootstrapSoft", "ELBO", "Loss"),
    "io": ("load", "save"),
    "plots": (),
    "prediction": ("ClassificationPredictive", "Predictive", "RegressionPredictive", "predict"),
    "priors": ("CentredNormal", "Normal", "ScaleMixture"),
    "pruning": ("Pruning", "prune"),
    "report": (),
    "_engine": (
        "ExecutorWarning",
        "SamplingPlan",
        "antithetic",
        "checkpoint",
        "fresh",
        "frozen",
        "memory_limit",
        "noise_off",
        "plan",
        "sample",
    ),
    "training": ("Callback", "CollapseWarning", "Interrupted", "FitResult", "Step", "StepCache", "TensorBoard", "fit"),
}
"""Where each public name is defined. Nothing of it, torch included, is imported before a name is used."""

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
    "ClassificationPredictive",
    "CollapseWarning",
    "ConversionWarning",
    "DecisionWarning",
    "Description",
    "Deterministic",
    "Dropout",
    "ELBO",
    "Ensemble",
    "Evaluation",
    "ExecutorWarning",
    "Flow",
    "Gaussian",
    "InputNoise",
    "Interrupted",
    "Loss",
    "Normal",
    "SamplingPlan",
    "PNI",
    "PredictionSets",
    "Predictive",
    "Pruning",
    "RegressionPredictive",
    "FitResult",
    "ScaleMixture",
    "SESNN",
    "ModelSpec",
    "Step",
    "StepCache",
    "Temperature",
    "TensorBoard",
    "Threshold",
    "VectorScaling",
    "VIB",
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
    "reset_decisions",
    "fresh",
    "frozen",
    "load",
    "memory_limit",
    "models",
    "noise_off",
    "parameter_names",
    "plots",
    "plan",
    "predict",
    "prune",
    "pruning",
    "sample",
    "save",
    "spec",
    "to_mean",
]

if not TYPE_CHECKING:  # a type checker reads the imports above
    __getattr__ = import_later("dubio", PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *PLACES})
