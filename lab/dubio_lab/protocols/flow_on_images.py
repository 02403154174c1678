"""LeNet and VGG16 with flow noise: trained by the ordinary loss first, then with noise on the inputs of their layers.

Every network begins with the same pre-trained weights and is trained on by the same recipe, so that what differs is the
noise alone: none, masks, a Gaussian ("no flow"), or flows. Test images are looked at after every epoch and decide
nothing: what is measured is the network of the last epoch, and the best epoch stands beside it.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dubio._engine import noise_off
from dubio.convert import to_mean
from dubio.data import Splits
from dubio.flows import FlowBlock, NormalAffine, NormalInvConv, NormalPlanar1d
from dubio.methods import Deterministic, Dropout, Flow, Method
from dubio.models import build
from dubio.training import fit
from dubio_lab.protocols.flow_networks import bound, described, noise_std
from dubio_lab.protocols.images import batches_of, load_images
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
ALSO_EARLIER, ALSO_LATER = ("augment",), ("gamma", "flow_blocks", "spatial", "watch_mean")
"""Those that only some specs have."""
BLOCKS: dict[str, FlowBlock] = {"affine": NormalAffine(), "inv-conv": NormalInvConv(), "planar-1d": NormalPlanar1d()}


def flow_images(trial: Trial) -> Findings:
    """Quality of one network on test images, the bound it reached, and how it learned.

    Settings: those in ``EARLIER`` and ``LATER``; ``draws``, ``bound_draws`` and ``bound_groups``. A spec may also have
    ``augment``, which is ``"crop-and-flip"``; ``gamma``, the weight of the entropy; ``flow_blocks``, the name of a
    block for each layer; ``spatial``, how the divergence adds up over positions; ``watch_mean``, whether the mean
    network is looked at after every epoch, too; and with that ``ordinary``, whether it is the one that is measured.
    """
    settings = trial.settings
    splits = load_images(trial)
    assert splits.train is not None
    assert splits.test is not None
    learned = _learn(trial, splits)
    trial.tell("trained")
    inputs, targets = splits.test.tensors
    history = dict(learned.history)
    epochs = tuple(history.pop("epoch").tolist())
    of_the_mean = {name: history.pop(f"{name}_mean") for name in ("accuracy", "ece") if f"{name}_mean" in history}
    is_ordinary = settings.get("ordinary", False)
    if is_ordinary:
        history |= of_the_mean
    with _ordinary(is_ordinary):
        metrics = quality(predict_classes(trial, learned.model, inputs).log_probs, targets)
        metrics |= bound(learned.model, splits.train, settings["bound_draws"], settings["bound_groups"], trial.seed)
    metrics["best_accuracy"] = Measured(history["accuracy"].max().item(), n=len(targets))
    metrics["noise_std"] = noise_std(learned.model, trial.judging_seed)
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

    what = {"images": described(settings, (*EARLIER, *LATER), (*ALSO_EARLIER, *ALSO_LATER))}

    def train(model: nn.Module) -> dict[str, Tensor]:
        rates = settings["lr"], settings["noise_lr"]
        return _train(trial, splits, model, what, settings["epochs"], *rates, torch.optim.Adam)

    return trial.learned(what, lambda: _method(trial, plain).convert(plain), train)


def _pretrained(trial: Trial, splits: Splits) -> Learned[nn.Module]:
    settings = trial.settings
    assert splits.train is not None
    shape, num_classes = splits.train.shape, len(splits.train.classes)
    descend = partial(torch.optim.SGD, momentum=settings["momentum"])
    what = {"images, pre-trained": described(settings, EARLIER, ALSO_EARLIER)}

    def train(model: nn.Module) -> dict[str, Tensor]:
        rate = settings["pretrain_lr"]
        return _train(trial, splits, model, what, settings["pretrain_epochs"], rate, rate, descend)

    return trial.learned(
        what, lambda: Deterministic().convert(build(settings["model"], inputs=shape, num_classes=num_classes)), train
    )


def _method(trial: Trial, net: nn.Module) -> Method:
    """What makes the network of the cell stochastic."""
    settings = trial.settings
    linear = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    options = {"beta": settings["beta"], "gamma": settings.get("gamma", 0.0)}
    options["spatial"] = settings.get("spatial", "average")
    blocks = tuple(BLOCKS[name] for name in settings["flow_blocks"]) if "flow_blocks" in settings else None
    methods: dict[str, Method] = {
        "deterministic": Deterministic(),
        "dropout": Dropout(settings["dropout_rate"], l2=0.0, where=tuple(linear[1:])),
        "no flow": Flow(NormalAffine(), **options),
        "flow": Flow(blocks, **options),  # a flow before every second layer, unless blocks are named
    }
    return methods[settings["method"]]


def _train(
    trial: Trial,
    splits: Splits,
    model: nn.Module,
    what: dict[str, Any],
    epochs: int,
    lr: float,
    noise_lr: float,
    optimizer: "partial[torch.optim.SGD] | type[torch.optim.Adam]",
) -> dict[str, Tensor]:
    """Train it, and look at it after every epoch; on a CPU from the checkpoint, if it was interrupted."""
    settings = trial.settings
    assert splits.train is not None
    assert splits.test is not None
    inputs, targets = splits.test.tensors
    batches = batches_of(trial, splits.train)

    def seen(draws: int, ending: str = "") -> dict[str, float]:
        measured = quality(predict_classes(trial, model, inputs, draws).log_probs, targets)
        return {f"{name}{ending}": measured[name].value for name in ("accuracy", "ece")}

    def look() -> dict[str, float]:
        by_draws = seen(settings["epoch_draws"])
        with noise_off():
            return by_draws | (seen(1, "_mean") if settings.get("watch_mean", False) else {})

    folder = trial.checkpoints(what) if trial.device.type == "cpu" else None
    num_steps = -(-len(splits.train) // settings["batch_size"])
    watch = Watch(look, file=None if folder is None else folder / "looks.json", steps_per_epoch=num_steps)
    run = fit(
        model,
        batches,
        epochs=epochs,
        batch_size=settings["batch_size"],
        lr=lr,
        noise_lr=noise_lr,
        optimizer=optimizer,
        num_samples=settings["train_draws"],
        callbacks=[watch],
        folder=folder,
        resume=folder is not None,
        seed=trial.seed,
        device=trial.device,
        progress=False,
    )
    trial.tell(f"{len(run.history)} epochs, {run.mode}{run.reason and f', since {run.reason}'}, {run.seconds:.0f} s")
    likelihood = torch.tensor([-metrics["nll"] for metrics in run.history])
    divergence = torch.tensor([metrics.get("divergence", 0.0) for metrics in run.history])
    return {
        **watch.history,
        "log_likelihood": likelihood,
        "kl": divergence,
        "elbo": likelihood - divergence / len(splits.train),
    }


def _ordinary(is_ordinary: bool) -> AbstractContextManager[object]:
    """Whether prediction is that of the mean network."""
    return noise_off() if is_ordinary else nullcontext()
