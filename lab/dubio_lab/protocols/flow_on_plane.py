"""The plane of the normalizing-flow networks: calibration with and without noise, and what longer flows are worth.

All networks learn by one rule until they have converged: at a constant rate until no epoch's training loss was the
lowest so far for ``patience`` epochs, at most ``max_epochs`` (``early_epochs`` where ``early`` is set); then
``settle_epochs`` more while the rate falls to zero, so that what is compared is where they settle and not how they
jitter. Nothing is stopped by data that were held out. Without ``settle_epochs`` they are what they are after
``max_epochs``, if that is soon. Networks of one seed have the same points, so differences between them are paired.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from dubio import functional
from dubio.data import Examples, clusters
from dubio.flows import NormalPlanar1d
from dubio.methods import Deterministic, Flow
from dubio.plots import draw_regions
from dubio.training import Schedule, StepCache, fit
from dubio_lab.protocols.flow_networks import bound, described
from dubio_lab.protocols.measuring import mean_of, predict_classes, quality, share
from dubio_lab.protocols.trial import Learned, Trial
from dubio_lab.results import Curve, Findings, Measured

__all__ = ["flow_lengths", "flow_paired", "flow_plane", "plane_points"]

NETWORK = (
    *("method", "length", "beta", "num_data", "hidden", "lr", "noise_lr", "batch_size", "train_draws"),
    *("max_epochs", "early", "early_epochs", "patience", "settle_epochs"),
)
"""The settings that a network depends on."""
ALSO = ("follow_bound",)
"""Those that only some specs have."""
TEST_SEED = 1_000_000
"""Added to the seed of the points to test on."""


def flow_plane(trial: Trial) -> Findings:
    """Accuracy and calibration of one network on new points."""
    settings = trial.settings
    train, test = plane_points(trial)
    learned = _learn(trial)
    predictive = predict_classes(trial, learned.model, test.inputs)
    sums = functional.calibration.bin_sums(predictive.confidence.clamp(max=1.0), predictive.label == test.targets)
    bins = functional.calibration.reliability(sums)
    metrics = {
        **quality(predictive.log_probs, test.targets),
        "ece": Measured(functional.calibration.calibration_error(sums).item(), n=len(test)),
        "matching": Measured(
            100.0 * functional.calibration.matching_share(sums, settings["tolerance"]).item(), n=len(test)
        ),
        "mean_confidence": mean_of(100.0 * predictive.confidence),
        "epochs": Measured(float(len(learned.history["loss"]))),
    }
    if trial.seed in settings["picture_seeds"]:
        _draw(trial, learned.model, train)
    filled = bins.share > 0.0
    return Findings(metrics, {"reliability": _curve(bins.confidence[filled], bins.accuracy[filled])})


def flow_lengths(trial: Trial) -> Findings:
    """The bound that a flow of some length reaches, and its two parts; by epoch, too, with ``follow_bound``."""
    settings = trial.settings
    train, test = plane_points(trial)
    learned = _learn(trial)
    metrics = bound(learned.model, train, settings["bound_draws"], settings["bound_groups"], trial.seed)
    tested = quality(predict_classes(trial, learned.model, test.inputs).log_probs, test.targets)
    epochs = torch.arange(1, len(learned.history["loss"]) + 1)
    return Findings(
        {**metrics, "test_nll": tested["nll"], "epochs": Measured(float(len(epochs)))},
        {name: _curve(epochs, values) for name, values in learned.history.items()},
    )


def flow_paired(trial: Trial) -> Findings:
    """How far two networks differ, seed by seed, with an interval for the mean; positive where the claim holds.

    Settings: ``measure`` (``ece``, less is better, or ``elbo``, more is), the network that is claimed to be the better
    one (``method``, ``length``), what it is held against (``against``), and the seeds of both (``pair_seeds``).
    """
    settings = trial.settings
    rival = {**settings, **settings["against"]}
    gains = []
    for seed in settings["pair_seeds"]:
        better, worse = (_measure(replace(trial, seed=seed, settings=own)) for own in (settings, rival))
        gains.append(worse - better if settings["measure"] == "ece" else better - worse)
    differences = torch.tensor(gains, dtype=torch.float64)
    low, high = functional.statistics.mean_interval(differences)
    return Findings(
        {
            "difference": mean_of(differences),
            "low": Measured(low, n=len(gains)),
            "high": Measured(high, n=len(gains)),
            "holds": share(differences > 0.0),
        }
    )


def plane_points(trial: Trial) -> tuple[Examples, Examples]:
    """Points to learn from and to be tested on, which follow from the seed alone."""
    settings = trial.settings
    sizes = ((settings["num_data"], trial.seed), (settings["num_test"], trial.seed + TEST_SEED))
    train, test = (
        clusters(0, num_points=count, generator=torch.Generator().manual_seed(seed)).train for count, seed in sizes
    )
    assert train is not None
    assert test is not None
    return train.to(trial.device), test.to(trial.device)


def _measure(trial: Trial) -> float:
    """The number that two networks are compared by."""
    train, test = plane_points(trial)
    settings, model = trial.settings, _learn(trial).model
    if settings["measure"] == "elbo":
        return bound(model, train, settings["bound_draws"], settings["bound_groups"], trial.seed)["elbo"].value
    return quality(predict_classes(trial, model, test.inputs).log_probs, test.targets)["ece"].value / 100.0


def _learn(trial: Trial) -> Learned[nn.Module]:
    settings = trial.settings

    def build() -> nn.Module:
        hidden = settings["hidden"]
        net = nn.Sequential(nn.Linear(2, hidden), nn.Sigmoid(), nn.Linear(hidden, 2))
        if settings["method"] == "deterministic":
            return Deterministic().convert(net)
        return Flow(NormalPlanar1d(settings["length"]), beta=settings["beta"]).convert(net)

    what = {"plane": described(settings, NETWORK, ALSO)}
    return trial.learned(what, build, lambda model: _train(trial, model))


def _train(trial: Trial, model: nn.Module) -> dict[str, Tensor]:
    """Until it has converged; the training loss of every epoch, and its parts where they are followed."""
    settings = trial.settings
    train, _ = plane_points(trial)
    steps = StepCache()  # compiled once for both parts

    def go(epochs: int, patience: int | None, schedule: Schedule, seed: int) -> tuple[dict[str, float], ...]:
        run = fit(
            model,
            train,
            epochs=epochs,
            batch_size=settings["batch_size"],
            lr=settings["lr"],
            noise_lr=settings["noise_lr"],
            schedule=schedule,
            num_samples=settings["train_draws"],
            patience=patience,
            monitor="loss",
            steps=steps,
            seed=seed,
            device=trial.device,
            progress=False,
        )
        trial.tell(
            f"{len(run.history)} epochs, {run.mode}{run.reason and f', since {run.reason}'}, {run.seconds:.0f} s"
        )
        return run.history

    most = settings["early_epochs"] if settings["early"] else settings["max_epochs"]
    history = go(most, settings["patience"], "constant", trial.seed)
    if settings["settle_epochs"]:
        history += go(settings["settle_epochs"], None, "linear", trial.seed + TEST_SEED)
    curves = {"loss": torch.tensor([metrics["loss"] for metrics in history])}
    if settings.get("follow_bound", False):
        likelihood = torch.tensor([-metrics["nll"] for metrics in history])
        divergence = torch.tensor([metrics.get("divergence", 0.0) for metrics in history])
        bound_by_epoch = likelihood - divergence / settings["num_data"]
        curves |= {"log_likelihood": likelihood, "kl": divergence, "elbo": bound_by_epoch}
    return curves


def _draw(trial: Trial, model: nn.Module, points: Examples) -> None:
    """The plane as the network sees it."""
    trial.draw(
        "plane",
        lambda file: draw_regions(
            model,
            points.inputs[:300],
            points.targets[:300],
            file,
            num_samples=trial.settings["draws"],
            uncertainty="entropy",
            classes=points.classes,
            seed=trial.judging_seed,
        ),
    )


def _curve(x: Tensor, y: Tensor) -> Curve:
    return Curve(tuple(x.tolist()), tuple(y.tolist()))
