"""LeNet with flow noise: trained by the ordinary loss first, then with noise on the inputs of its layers.

Every network begins with the same pre-trained weights and is trained on by the same recipe, so that what differs is the
noise alone: none, masks, a Gaussian ("no flow"), or flows. Test images are looked at after every epoch and decide
nothing: what is measured is the network of the last epoch, and the best epoch stands beside it.
"""

from functools import partial

import torch
from torch import Tensor, nn

from dubio.convert import to_mean
from dubio.data import Splits
from dubio.flows import NormalAffine
from dubio.methods import Deterministic, Dropout, Flow, Method
from dubio.models import build
from dubio.training import fit
from dubio_lab.protocols.flow_networks import bound, described
from dubio_lab.protocols.images import load_images
from dubio_lab.protocols.judging import judge
from dubio_lab.protocols.measuring import predict_classes, quality
from dubio_lab.protocols.trial import Learned, Trial
from dubio_lab.protocols.watching import Watch
from dubio_lab.results import Curve, Findings, Measured

__all__ = ["EARLIER", "LATER", "flow_honest", "flow_images"]

EARLIER = (
    *("data", "num_validation", "num_train", "num_test", "model", "batch_size", "epoch_draws"),
    *("pretrain_epochs", "pretrain_lr", "momentum"),
)
"""The settings that a network depends on up to the end of its pre-training."""
LATER = ("method", "epochs", "lr", "noise_lr", "train_draws", "beta", "dropout_rate")
"""The settings that it depends on from there."""


def flow_images(trial: Trial) -> Findings:
    """Quality of one network on test images, the bound it reached, and how it learned."""
    settings = trial.settings
    splits = load_images(trial)
    assert splits.train is not None
    assert splits.test is not None
    learned = _learn(trial, splits)
    trial.tell("trained")
    inputs, targets = splits.test.tensors
    metrics = quality(predict_classes(trial, learned.model, inputs).log_probs, targets)
    metrics |= bound(learned.model, splits.train, settings["bound_draws"], settings["bound_groups"], trial.seed)
    metrics["best_accuracy"] = Measured(learned.history["accuracy"].max().item(), n=len(targets))
    history = dict(learned.history)
    epochs = tuple(history.pop("epoch").tolist())
    return Findings(metrics, {name: Curve(epochs, tuple(values.tolist())) for name, values in history.items()})


def flow_honest(trial: Trial) -> Findings:
    """What the source did not ask of one of its networks."""
    splits = load_images(trial)
    return judge(trial, _learn(trial, splits).model, splits)


def _learn(trial: Trial, splits: Splits) -> Learned[nn.Module]:
    """The network of the cell; the pre-trained one where it is not trained on."""
    settings = trial.settings
    first = _pretrained(trial, splits)
    if settings["method"] == "pretrained":
        return first
    plain = to_mean(first.model)

    def train(model: nn.Module) -> dict[str, Tensor]:
        return _train(trial, splits, model, settings["epochs"], settings["lr"], settings["noise_lr"], torch.optim.Adam)

    what = {"images": described(settings, (*EARLIER, *LATER))}
    return trial.learned(what, lambda: _method(trial, plain).convert(plain), train)


def _pretrained(trial: Trial, splits: Splits) -> Learned[nn.Module]:
    settings = trial.settings
    assert splits.train is not None
    shape, num_classes = splits.train.shape, len(splits.train.classes)
    descend = partial(torch.optim.SGD, momentum=settings["momentum"])

    def train(model: nn.Module) -> dict[str, Tensor]:
        rate = settings["pretrain_lr"]
        return _train(trial, splits, model, settings["pretrain_epochs"], rate, rate, descend)

    return trial.learned(
        {"images, pre-trained": described(settings, EARLIER)},
        lambda: Deterministic().convert(build(settings["model"], inputs=shape, num_classes=num_classes)),
        train,
    )


def _method(trial: Trial, net: nn.Module) -> Method:
    """What makes the network of the cell stochastic."""
    settings = trial.settings
    linear = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    methods: dict[str, Method] = {
        "deterministic": Deterministic(),
        "dropout": Dropout(settings["dropout_rate"], l2=0.0, where=tuple(linear[1:])),
        "no flow": Flow(NormalAffine(), beta=settings["beta"]),
        "flow": Flow(beta=settings["beta"]),  # a flow before every second layer
    }
    return methods[settings["method"]]


def _train(
    trial: Trial,
    splits: Splits,
    model: nn.Module,
    epochs: int,
    lr: float,
    noise_lr: float,
    optimizer: "partial[torch.optim.SGD] | type[torch.optim.Adam]",
) -> dict[str, Tensor]:
    """Train it, and look at it after every epoch."""
    settings = trial.settings
    assert splits.train is not None
    assert splits.test is not None
    inputs, targets = splits.test.tensors

    def look() -> dict[str, float]:
        seen = quality(predict_classes(trial, model, inputs, settings["epoch_draws"]).log_probs, targets)
        return {name: seen[name].value for name in ("accuracy", "ece")}

    watch = Watch(look)
    run = fit(
        model,
        splits.train,
        epochs=epochs,
        batch_size=settings["batch_size"],
        lr=lr,
        noise_lr=noise_lr,
        optimizer=optimizer,
        num_samples=settings["train_draws"],
        callbacks=[watch],
        seed=trial.seed,
        device=trial.device,
        progress=False,
    )
    trial.tell(f"{len(run.history)} epochs, {run.how}, {run.seconds:.0f} s")
    likelihood = torch.tensor([-metrics["nll"] for metrics in run.history])
    divergence = torch.tensor([metrics.get("divergence", 0.0) for metrics in run.history])
    return {
        **watch.history,
        "log_likelihood": likelihood,
        "kl": divergence,
        "elbo": likelihood - divergence / len(splits.train),
    }
