"""dubio: stochastic neural networks that quantify their uncertainty.

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
        ExecutorWarning as ExecutorWarning,
        SamplingPlan as SamplingPlan,
        antithetic as antithetic,
        checkpoint as checkpoint,
        fresh as fresh,
        frozen as frozen,
        memory_limit as memory_limit,
        noise_off as noise_off,
        plan as plan,
        sample as sample,
    )
    from dubio.auditing import Audit as Audit
    from dubio.auditing.audit import audit as audit
    from dubio.calibration.abstain import abstain as abstain
    from dubio.calibration.calibrate import calibrate as calibrate
    from dubio.calibration.conformal import conformal as conformal
    from dubio.calibrators import (
        DecisionWarning as DecisionWarning,
        PredictionSets as PredictionSets,
        Temperature as Temperature,
        Threshold as Threshold,
        VectorScaling as VectorScaling,
    )
    from dubio.convert import (
        ConversionWarning as ConversionWarning,
        Description as Description,
        ModelSpec as ModelSpec,
        Where as Where,
        parameter_names as parameter_names,
        reset_decisions as reset_decisions,
        to_mean as to_mean,
    )
    from dubio.convert.describe import describe as describe
    from dubio.convert.export import export as export
    from dubio.convert.spec import spec as spec
    from dubio.evaluation import Evaluation as Evaluation
    from dubio.evaluation.evaluate import evaluate as evaluate
    from dubio.io import load as load, save as save
    from dubio.likelihoods import Bernoulli as Bernoulli, Categorical as Categorical, Gaussian as Gaussian
    from dubio.methods import (
        PNI as PNI,
        SESNN as SESNN,
        VIB as VIB,
        Bayes as Bayes,
        Deterministic as Deterministic,
        Dropout as Dropout,
        Ensemble as Ensemble,
        Flow as Flow,
        InputNoise as InputNoise,
        Wasserstein as Wasserstein,
    )
    from dubio.nn import divergence as divergence
    from dubio.objectives import (
        ELBO as ELBO,
        Adversarial as Adversarial,
        Alpha as Alpha,
        BootstrapHard as BootstrapHard,
        BootstrapSoft as BootstrapSoft,
        Loss as Loss,
    )
    from dubio.prediction import (
        ClassificationPredictive as ClassificationPredictive,
        Predictive as Predictive,
        RegressionPredictive as RegressionPredictive,
    )
    from dubio.prediction.predict import predict as predict
    from dubio.priors import CentredNormal as CentredNormal, Normal as Normal, ScaleMixture as ScaleMixture
    from dubio.pruning import Pruning as Pruning
    from dubio.pruning.prune import prune as prune
    from dubio.training import (
        Callback as Callback,
        CollapseWarning as CollapseWarning,
        FitResult as FitResult,
        Interrupted as Interrupted,
        Step as Step,
        StepCache as StepCache,
        StepMode as StepMode,
        TensorBoard as TensorBoard,
    )
    from dubio.training.fit import fit as fit

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
    "training": (
        "Callback",
        "CollapseWarning",
        "Interrupted",
        "FitResult",
        "Step",
        "StepCache",
        "StepMode",
        "TensorBoard",
        "fit",
    ),
}
"""Which package or module defines each public name. None of them, torch included, is imported before it is used."""

PACKAGES = ("attacks", "data", "flows", "models", "plots", "pruning")
"""Packages that ``from dubio import *`` imports beside the public names."""

if not TYPE_CHECKING:  # a type checker reads the imports above
    __all__ = sorted(["__version__", *PACKAGES, *(name for names in PLACES.values() for name in names)])
    __getattr__ = import_later("dubio", PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *PLACES, *(name for names in PLACES.values() for name in names)})
