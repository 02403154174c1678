"""dubio: stochastic neural networks, which know when they are in doubt.

>>> model = dubio.Bayes(prior=dubio.Normal(0.0, 1.0)).convert(net)
>>> pred = dubio.predict(model, inputs, num_samples=100)
>>> pred.probs, pred.mutual_information
"""

import gc

_collecting = gc.isenabled()
gc.disable()  # a collection in the midst of imports takes a tenth of a second and finds nothing
try:
    from dubio import attacks, data, flows, models, pictures, sampling
    from dubio.auditing import Audit, audit
    from dubio.conversion import (
        ConversionWarning,
        Description,
        Spec,
        Where,
        describe,
        export,
        parameter_names,
        spec,
        to_mean,
    )
    from dubio.evaluation import Evaluation, evaluate
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
    from dubio.objectives import Adversarial, Alpha, BootstrapHard, BootstrapSoft, Elbo, Loss
    from dubio.persistence import load, save
    from dubio.prediction import ClassPredictive, Predictive, RealPredictive, predict
    from dubio.priors import CentredNormal, Normal, ScaleMixture
    from dubio.sampling import ExecutorWarning, antithetic, checkpoint, fresh, frozen, noise_off, sample
    from dubio.training import Callback, CollapseWarning, Interrupted, Run, TensorBoard, fit
    from dubio.version import VERSION
finally:
    if _collecting:
        gc.enable()

__version__ = VERSION

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
    "Pni",
    "Predictive",
    "RealPredictive",
    "Run",
    "ScaleMixture",
    "SeSnn",
    "Spec",
    "TensorBoard",
    "Vib",
    "Wasserstein",
    "Where",
    "__version__",
    "antithetic",
    "attacks",
    "audit",
    "checkpoint",
    "data",
    "describe",
    "divergence",
    "evaluate",
    "export",
    "fit",
    "flows",
    "fresh",
    "frozen",
    "load",
    "models",
    "noise_off",
    "parameter_names",
    "pictures",
    "predict",
    "sample",
    "sampling",
    "save",
    "spec",
    "to_mean",
]
