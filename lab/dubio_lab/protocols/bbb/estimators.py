"""Learning curves of the two estimators of the gradient, and how far their gradients scatter.

With weight sampling all examples of a batch share a draw of the weights; with local reparameterisation each has noise
of its own in every layer, and the noise of their gradients averages out (Kingma et al. 2015). At some epochs the
scatter of the gradient of a batch is measured with both estimators on the same network: the trace of its covariance,
over all means and widths, which splits into a part of the noise and a part of the choice of the batch.

Reference: Project Machine Learning, Milestone 3, Figure 2.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dubio._engine import Using
from dubio.data import Examples
from dubio.objectives import ELBO
from dubio_lab.protocols.bbb.networks import TRAINING, error_percent, fit_network, make_network, objective_of
from dubio_lab.protocols.images import load_images
from dubio_lab.protocols.measuring import predict_classes, share
from dubio_lab.protocols.trial import Trial
from dubio_lab.protocols.watching import Watch
from dubio_lab.results import Curve, Findings, Measured

__all__ = ["gradient_scatter", "learning_curve"]

ESTIMATORS: tuple[Literal["local", "weight"], ...] = ("local", "weight")


def learning_curve(trial: Trial) -> Findings:
    """Test error by epoch with one estimator, and the scatter of the gradients of both.

    Settings: those of ``train_network``; ``draws``; ``error_limit`` in percent; ``last_epochs``, over which the end of
    the curve is summarised; ``scatter_epochs``, after which gradients are measured, over ``scatter_batches`` batches
    and ``scatter_draws`` draws of noise for each.
    """
    settings, splits = trial.settings, load_images(trial)
    assert splits.train is not None
    assert splits.test is not None
    train, test = splits.train, splits.test
    scatter_settings = ("scatter_epochs", "scatter_batches", "scatter_draws")
    what = {"bbb, by estimator": {name: settings.get(name) for name in (*TRAINING, *scatter_settings)}}
    folder = trial.checkpoints(what) if trial.device.type == "cpu" else None  # on a GPU it takes less than a minute
    num_steps = -(-len(train) // settings["batch_size"])

    def watch(name: str, **options: object) -> Watch:
        file = None if folder is None else folder / f"{name}.json"
        return Watch(**options, file=file, steps_per_epoch=num_steps)  # type: ignore[arg-type]

    def train_it(model: nn.Module) -> dict[str, Tensor]:
        errors = watch("errors", look=lambda: {"error": error_percent(model, test, settings["curve_draws"])})
        scatter = watch("scatter", look=lambda: _scatter_of_both(trial, model, train), at=settings["scatter_epochs"])
        fit_network(trial, model, train, [errors, scatter], folder)
        return {**errors.history, **{f"scatter_{name}": values for name, values in scatter.history.items()}}

    learned = trial.learned(what, lambda: make_network(settings, test.shape, len(test.classes)), train_it)
    trial.tell("trained")
    history = learned.history
    errors = history["error"].tolist()
    inputs, targets = test.tensors
    last = torch.tensor(errors[-settings["last_epochs"] :])
    below = [epoch for epoch, error in enumerate(errors, start=1) if error <= settings["error_limit"]]
    noise = {name: history[f"scatter_noise_{name}"] for name in ESTIMATORS}
    batches = history["scatter_batch"].clamp(min=0.0)
    metrics = {
        "test_error": share(predict_classes(trial, learned.model, inputs).label != targets),
        "epochs_to_limit": Measured(float(below[0] if below else len(errors) + 1), n=len(errors)),
        "last_mean": Measured(last.mean().item(), n=len(last)),
        "last_spread": Measured(last.std(correction=0).item(), n=len(last)),
        "noise_ratio": Measured((noise["weight"] / noise["local"]).log().mean().exp().item(), n=len(batches)),
    }
    for estimator, own in noise.items():
        metrics[f"noise_share_{estimator}"] = Measured(100.0 * (own / (own + batches)).mean().item(), n=len(batches))
    epochs, places = (tuple(history[name].tolist()) for name in ("epoch", "scatter_epoch"))
    curves = {"test_error_by_epoch": Curve(epochs, tuple(errors))}
    for part in ("scatter_noise_local", "scatter_noise_weight", "scatter_batch"):
        curves[part] = Curve(places, tuple(history[part].tolist()))
    return Findings(metrics, curves)


def _scatter_of_both(trial: Trial, model: nn.Module, train: Examples) -> dict[str, float]:
    """The part of the noise by each estimator, and that of the batch, which is measured with the quieter one."""
    settings = trial.settings
    size, count, draws = (settings[name] for name in ("batch_size", "scatter_batches", "scatter_draws"))
    parts = {}
    for name in ESTIMATORS:
        batches = [train[first : first + size] for first in range(0, count * size, size)]
        with Using(estimator=name):
            parts[name] = gradient_scatter(
                model, [batch.tensors for batch in batches], objective_of(settings).with_num_data(len(train)), draws
            )
    return {"noise_local": parts["local"][0], "noise_weight": parts["weight"][0], "batch": parts["local"][1]}


def gradient_scatter(
    model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], objective: ELBO, draws: int
) -> tuple[float, float]:
    """Traces of the covariance of the gradient of a batch: over its noise, and over batches apart from the noise.

    The second is the scatter of the batches' mean gradients, less what is left in these of the noise; it may come out
    below 0 where there is none.

    Args:
        model: a converted network; its gradients are those of all parameters that are trained.
        batches: inputs and targets, two batches or more.
        objective: the loss.
        draws: draws of noise for each batch, two or more, no two of them the same.
    """
    params = [param for param in model.parameters() if param.requires_grad]
    noise, squares = 0.0, 0.0
    mean_of_all = torch.zeros(sum(param.numel() for param in params), device=params[0].device)
    for number, (inputs, targets) in enumerate(batches):
        mean, square = torch.zeros_like(mean_of_all), 0.0
        for draw in range(draws):
            loss = objective(model, inputs, targets, 1, seed=number * draws + draw).total
            gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, params)])
            mean += gradient / draws
            square += _squared(gradient) / draws
        noise += (square - _squared(mean)) * draws / (draws - 1) / len(batches)
        mean_of_all += mean / len(batches)
        squares += _squared(mean) / len(batches)
    between = (squares - _squared(mean_of_all)) * len(batches) / (len(batches) - 1)
    return noise, between - noise / draws


def _squared(values: Tensor) -> float:
    """The squared length, in float64, since nearly equal ones are subtracted."""
    return values.double().square().sum().item()
