"""Networks and images of the study of weight sampling (methods, section 5): each trained, each attacked, once.

A network is Bayesian where the settings have ``rho``, the softplus argument that all its standard deviations begin
with, and else deterministic with a penalty ``l2`` (E-26). Twelve deterministic networks are sources: images are moved
as little as deceives them (E-64), and what that does to other networks is the experiment. Inputs are doubled inside the
networks, so that everybody else sees pixels in [0, 1].

Settings: those in ``TRAINING`` (``beta``, a factor of the divergence, is 1 where it is left out), ``lr``, ``patience``,
``model``, ``init``, ``rho`` or ``l2``, and ``own_lr`` and ``own_patience`` where the evaluated network has its own; for
sources ``source_models``, ``source_l2``, ``source_init``, and of their attack ``attack_mode``, ``attack_steps``,
``attack_step_size``, ``attack_c``, ``attack_bisections``, ``attack_search`` (True where it is left out), and
``attack_keep_unsolved`` (False where it is left out).
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dubio import functional
from dubio.attacks import MinimumNorm
from dubio.convert import spec
from dubio.data import Splits
from dubio.methods import Bayes, Deterministic
from dubio.models import build, init_truncated
from dubio.priors import ScaleMixture
from dubio.training import fit
from dubio_lab.protocols.trial import Trial

__all__ = [
    "Network",
    "Source",
    "attack_of",
    "evaluated_network",
    "find_source",
    "perturbed_images",
    "source_names",
    "trained_network",
]

TRAINING = (
    "data",
    "num_validation",
    "num_train",
    "normalise",
    "prior_weight",
    "prior_wide",
    "prior_narrow",
    "epochs",
    "batch_size",
    "momentum",
    "kl_weighting",
    "beta",
    "train_draws",
)
"""Settings that all networks share and that have a part in how each comes out."""


@dataclass(frozen=True)
class Network:
    """A network before it is trained, and in which way it will be."""

    model: str
    method: Bayes | Deterministic
    like_prior: bool
    """Whether weights begin like the prior's."""
    lr: float
    patience: int


@dataclass(frozen=True)
class Source:
    """A network that images are made on, and what its images are called."""

    name: str
    network: Network


def evaluated_network(settings: dict[str, Any]) -> Network:
    """The network of a cell."""
    lr, patience = (settings.get(f"own_{name}", settings[name]) for name in ("lr", "patience"))
    return Network(settings["model"], _method_of(settings), _begins_like_prior(settings["init"]), lr, patience)


def source_names(settings: dict[str, Any]) -> list[str]:
    """What the sources are called: each architecture with each penalty."""
    return [f"{model}_{l2}" for model in settings["source_models"] for l2 in settings["source_l2"]]


def find_source(settings: dict[str, Any], name: str) -> Source:
    """A source by its name."""
    if name not in source_names(settings):
        raise ValueError(f"source must be one of {', '.join(source_names(settings))}, got {name!r}")
    model, _, l2 = name.partition("_")
    method = Deterministic(l2=settings["source_l2"][l2])
    like_prior = _begins_like_prior(settings["source_init"])
    architecture = settings["source_models"][model]
    return Source(name, Network(architecture, method, like_prior, settings["lr"], settings["patience"]))


def trained_network(trial: Trial, splits: Splits, network: Network) -> nn.Module:
    """A network after training, from the epoch that did best on validation images."""
    return trial.trained(
        _described(trial, network),
        lambda: _begin(trial, splits, network),
        lambda model: _fit(trial, splits, model, network),
    )


def perturbed_images(trial: Trial, splits: Splits, source: Source) -> dict[str, Tensor]:
    """The test images as they were moved on a source, ``inputs``, and which of them ``fooled`` it.

    Images that it had wrong already, and those for which no perturbation was found, stay as they are (D-6); with
    ``attack_keep_unsolved`` the latter stay where the solver ended.
    """
    attack = attack_of(trial)

    def make() -> dict[str, Tensor]:
        inputs, targets = _test(splits)
        attacked = attack(trained_network(trial, splits, source.network), inputs, targets, progress=False)
        return {"inputs": attacked.inputs, "fooled": attacked.fooled}

    what = {"perturbed": _described(trial, source.network), "attack": repr(attack), "num_test": len(_test(splits)[1])}
    return trial.kept({**what, "seed": trial.seed}, make)


def attack_of(trial: Trial) -> MinimumNorm:
    """The attack on sources: towards the likeliest wrong class, or away from the true one up to the boundary (D-40)."""
    settings = trial.settings
    mode = settings["attack_mode"]
    return MinimumNorm(
        mode=mode,
        loss="margin" if mode == "untargeted" else "cross_entropy",
        steps=settings["attack_steps"],
        step_size=settings["attack_step_size"],
        c=settings["attack_c"],
        bisections=settings["attack_bisections"],
        search=settings.get("attack_search", True),
        keep_unsolved=settings.get("attack_keep_unsolved", False),
        seed=trial.seed,
    )


def _method_of(settings: dict[str, Any]) -> Bayes | Deterministic:
    if "rho" not in settings:
        return Deterministic(l2=settings["l2"])
    std = functional.variational.softplus(torch.tensor(settings["rho"], dtype=torch.float64)).item()
    return Bayes(_prior_of(settings), estimator="weight", init_std=std)


def _prior_of(settings: dict[str, Any]) -> ScaleMixture:
    """The mixture; its widths are given as the negative logarithms that the sources print."""
    wide, narrow = math.exp(-settings["prior_wide"]), math.exp(-settings["prior_narrow"])
    return ScaleMixture(settings["prior_weight"], wide, narrow)


def _begins_like_prior(init: str) -> bool:
    if init not in ("prior", "torch"):
        raise ValueError(f"init must be 'prior' or 'torch', got {init!r}")
    return init == "prior"


def _described(trial: Trial, network: Network) -> dict[str, Any]:
    """All that a trained network depends on, beside its seed."""
    return {**{name: trial.settings.get(name) for name in TRAINING}, "network": repr(network)}


def _begin(trial: Trial, splits: Splits, network: Network) -> nn.Module:
    """The network before training."""
    assert splits.train is not None
    net = build(
        network.model,
        inputs=splits.train.shape,
        num_classes=len(splits.train.classes),
        normalise=trial.settings["normalise"],
    )
    if network.like_prior:
        init_truncated(net, _prior_of(trial.settings).std)
    return network.method.convert(net)


def _fit(trial: Trial, splits: Splits, model: nn.Module, network: Network) -> None:
    settings = trial.settings
    method = spec(model).method
    assert isinstance(method, Bayes | Deterministic)
    fit(
        model,
        splits.train,
        splits.validation,
        objective=replace(method.objective(), kl_weighting=settings["kl_weighting"], beta=settings.get("beta", 1.0)),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        lr=network.lr,
        optimizer=partial(torch.optim.SGD, momentum=settings["momentum"]),
        num_samples=settings["train_draws"],
        patience=network.patience,
        monitor="val_accuracy",
        seed=trial.seed,
        device=trial.device,
        progress=False,
    )


def _test(splits: Splits) -> tuple[Tensor, Tensor]:
    assert splits.test is not None
    return splits.test.tensors
