"""What draws cost: seconds for an epoch of training with one to ten draws, and what each further draw adds.

Three ways: one draw after the other, all draws mapped, and mapped with local reparameterisation. Steps run eagerly, as
those that were published did; compiled steps are another comparison. The time is fitted as ``a + b S`` by least
squares.

Reference: Project Machine Learning, Milestone 3, Tables 1 and 2.
"""

import statistics
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dubio._engine import Executor, Inputs
from dubio.data import Examples, curve
from dubio.likelihoods import Categorical, Gaussian
from dubio.methods import Bayes
from dubio.models import build
from dubio.objectives import ELBO, Loss
from dubio.priors import Normal
from dubio.training import fit
from dubio_lab.protocols.images import load_images
from dubio_lab.protocols.trial import Trial
from dubio_lab.protocols.watching import Watch
from dubio_lab.results import Curve, Findings, Measured

__all__ = ["Through", "line", "speed"]


def speed(trial: Trial) -> Findings:
    """Median seconds of an epoch for each number of draws, and the line through them.

    Settings: ``task`` (``regression`` or ``images``, with those of ``load_images``), ``model``, ``num_data``,
    ``prior_std``, ``init_std``, ``estimator``, ``executor``, ``lr``, ``batch_size``, ``draw_counts``, ``warmups`` and
    ``timed`` (epochs), and ``epoch_examples``: what an epoch has, where fewer are timed and their seconds scaled.
    """
    settings, train = trial.settings, _train(trial)
    if settings["warmups"] < 1:
        raise ValueError(f"warmups must be at least 1, since a first epoch is slower, got {settings['warmups']}")
    scale = settings["epoch_examples"] / len(train)
    seconds = {}
    for count in settings["draw_counts"]:
        seconds[count] = [scale * one for one in _epoch_seconds(trial, train, count)]
        trial.tell(f"{count} draws: {statistics.median(seconds[count]):.3g} s")
    medians = {count: statistics.median(values) for count, values in seconds.items()}
    metrics = {f"seconds_{count}": Measured(value, n=settings["timed"]) for count, value in medians.items()}
    slope, fit_quality = line(medians)
    metrics |= {"slope": Measured(slope, n=len(medians)), "r_squared": Measured(fit_quality, n=len(medians))}
    return Findings(metrics, {"seconds_by_draws": Curve(tuple(map(float, medians)), tuple(medians.values()))})


def line(seconds: dict[int, float]) -> tuple[float, float]:
    """What each further draw adds, by least squares, and the share of the variance that the line explains."""
    counts, values = [float(count) for count in seconds], list(seconds.values())
    return statistics.linear_regression(counts, values).slope, statistics.correlation(counts, values) ** 2


@dataclass(frozen=True)
class Through:
    """An objective whose draws run through a given executor."""

    objective: ELBO
    executor: Executor

    @property
    def num_data(self) -> int | None:
        """How many training examples there are, where that was said."""
        return self.objective.num_data

    def with_num_data(self, num_data: int) -> "Through":
        """The same for so many training examples."""
        return replace(self, objective=self.objective.with_num_data(num_data))

    def __call__(
        self,
        model: nn.Module,
        inputs: Inputs,
        targets: Tensor,
        num_samples: int = 1,
        *,
        sample_weight: Tensor | None = None,
        batch_index: int | None = None,
        num_batches: int | None = None,
        epoch: float | None = None,
    ) -> Loss:
        """The loss of one batch."""
        return self.objective(
            model,
            inputs,
            targets,
            num_samples,
            sample_weight=sample_weight,
            batch_index=batch_index,
            num_batches=num_batches,
            epoch=epoch,
            executor=self.executor,
        )


def _train(trial: Trial) -> Examples:
    settings = trial.settings
    if settings["task"] == "regression":
        generator = torch.Generator().manual_seed(trial.seed)
        train = curve(validation=0, num_points=settings["num_data"], generator=generator).train
        assert train is not None
        return train.to(trial.device)
    images = load_images(trial).train
    assert images is not None
    return images


def _epoch_seconds(trial: Trial, train: Examples, num_draws: int) -> list[float]:
    """Seconds of each timed epoch with so many draws."""
    settings = trial.settings
    likelihood = Gaussian(0.1) if settings["task"] == "regression" else Categorical()
    method = Bayes(
        prior=Normal(0.0, settings["prior_std"]), estimator=settings["estimator"], init_std=settings["init_std"]
    )
    watch = Watch(lambda: _now(trial.device))
    fit(
        method.convert(build(settings["model"]), likelihood),
        train,
        objective=Through(ELBO(), settings["executor"]),
        epochs=settings["warmups"] + settings["timed"],
        batch_size=settings["batch_size"],
        lr=settings["lr"],
        num_samples=num_draws,
        callbacks=[watch],
        seed=trial.seed,
        device=trial.device,
        fast=False,
        progress=False,
    )
    return watch.history["time"].diff().tolist()[-settings["timed"] :]


def _now(device: torch.device) -> dict[str, float]:
    """The time when all work on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {"time": time.perf_counter()}
