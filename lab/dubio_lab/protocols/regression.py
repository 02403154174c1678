"""The regression curve (E-29): how wide the band is among the data, and where there were none.

The median and the quartiles are those of the network's outputs over draws, one function for each. Reference: Blundell
et al. 2015, section 5.2.
"""

import torch
from torch import Tensor

from dubio.data import curve
from dubio.likelihoods import Gaussian
from dubio.methods import Bayes
from dubio.models import build
from dubio.objectives import ELBO
from dubio.prediction import RegressionPredictive, predict
from dubio.priors import Normal
from dubio.training import fit
from dubio_lab.protocols.trial import Trial
from dubio_lab.results import Curve, Findings, Measured

__all__ = ["regression"]

QUARTILES = ("lower_quartile", "median", "upper_quartile")


def regression(trial: Trial) -> Findings:
    """Width of the interquartile band inside and outside the data, their ratio, and how far off the median is."""
    settings = trial.settings
    generator = torch.Generator().manual_seed(trial.seed)
    splits = curve(validation=0, num_points=settings["num_data"], generator=generator)
    assert splits.train is not None
    assert splits.test is not None
    method = Bayes(
        prior=Normal(0.0, settings["prior_std"]), estimator=settings["estimator"], init_std=settings["init_std"]
    )
    model = method.convert(build(settings["model"]), Gaussian(settings["observation_std"])).to(trial.device)
    fit(
        model,
        splits.train,
        objective=ELBO(beta=settings["beta"], warmup=int(settings["warmup_share"] * settings["epochs"])),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        lr=settings["lr"],
        schedule=settings["schedule"],
        num_samples=settings["train_draws"],
        seed=trial.seed,
        device=trial.device,
        progress=False,
    )
    places = splits.test.inputs
    pred = predict(model, places.to(trial.device), settings["draws"], seed=trial.seed)
    assert isinstance(pred, RegressionPredictive)
    assert pred.samples is not None
    low, median, high = quartiles = pred.samples.cpu().squeeze(-1).quantile(torch.tensor([0.25, 0.5, 0.75]), dim=0)
    x = places.squeeze(-1)
    inside, outside = _mean_between(high - low, x, 0.1, 0.4), _mean_between(high - low, x, 0.8, 1.2)
    misfit = _mean_between((median - splits.test.targets.squeeze(-1)).abs(), x, 0.05, 0.45)
    numbers = {"width_inside": inside, "width_outside": outside, "ratio": outside / inside, "misfit": misfit}
    curves = {name: Curve(tuple(x.tolist()), tuple(y.tolist())) for name, y in zip(QUARTILES, quartiles, strict=True)}
    return Findings({name: Measured(value, n=settings["draws"]) for name, value in numbers.items()}, curves)


def _mean_between(values: Tensor, places: Tensor, low: float, high: float) -> float:
    return values[(places >= low) & (places <= high)].mean().item()
