"""The methods and networks of ``test_methods_contract.py``: a new method is a row of ``METHOD_TABLE``.

What is true of one method and not of another stands in its row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dubio
from dubio.flows import Block, GlowStep
from dubio.methods.method import Method
from networks import mlp

CLASSES = 3


@dataclass(frozen=True)
class Row:
    """A method, and what the contract asks of it."""

    method: Method
    fast: tuple[str, ...] = ("mlp", "residual, dropout")
    """Networks it meets in the fast tests; the others it meets in the slow ones."""
    noise_off: Literal["source", "own mean"] | None = "source"
    """What the network with noise off is equal to."""
    draws: Literal["noise", "members", "equal"] = "noise"
    """What makes draws differ: noise, that each is another member, or nothing."""
    made: Literal["in place", "new head", "members"] = "in place"
    """What becomes of the source: its layers stay, another head stands on them, or it is the first of several.

    Logits of a new head are distances, which keep float32 also in a narrower network.
    """
    chooses: bool = True
    """Whether the method has a ``where``."""
    differs_by_example: bool = True
    """Whether two equal examples of a batch differ within one draw."""
    frozen_export: bool = False
    """Whether frozen draws can be written into a file."""
    mirrors: bool = True
    """Whether antithetic draws mirror each other."""
    epochs: int = 2
    """How many epochs bring the loss of the toy data down."""
    objective: bool = True
    """Whether the network is trained as one by its own objective."""


SMALL: Any = {"num_points": 4, "dim": 6, "noise_dim": 3, "hidden": 8, "num_directions": 7}
NEW_HEAD: Any = {"noise_off": "own mean", "made": "new head", "epochs": 6}
GAUSSIAN_CLASSES: Any = {
    **NEW_HEAD,
    "draws": "equal",
    "differs_by_example": False,
    "mirrors": False,
    "frozen_export": True,
}
"""Nothing is drawn."""

METHOD_TABLE = {
    "bayes": Row(dubio.Bayes(), ("mlp",), frozen_export=True),
    "bayes, weights": Row(
        dubio.Bayes(estimator="weight"), ("residual, dropout",), differs_by_example=False, frozen_export=True
    ),
    "dropout": Row(dubio.Dropout(0.2), ("mlp", "residual, dropout")),
    "dropout, alpha": Row(dubio.Dropout(0.3, alpha=0.5), ("residual, dropout",)),
    "input noise": Row(dubio.InputNoise(), ("residual",)),
    "input noise, mixture per position": Row(dubio.InputNoise(components=3, per="position"), ("cnn",)),
    "input noise, bound": Row(dubio.InputNoise(components=2, kl="bound"), ("mlp", "cnn")),
    "flow": Row(dubio.Flow(), ("mlp", "cnn")),
    "flow, summed, entropy": Row(dubio.Flow(spatial="sum", gamma=0.1), ("residual",)),
    "flow, glow": Row(dubio.Flow(blocks=Block((GlowStep(hidden=4),))), ("mlp", "residual, dropout")),
    "se-snn": Row(dubio.SESNN(), ("mlp",)),
    "se-snn, outputs": Row(dubio.SESNN(at="output", where=("2", "4", "6", "head")), ()),
    "se-snn, wasserstein": Row(dubio.SESNN(classes="wasserstein"), ("cnn",), **GAUSSIAN_CLASSES),
    "se-snn, kl": Row(dubio.SESNN(classes="kl"), (), **GAUSSIAN_CLASSES),
    "vib": Row(dubio.VIB(), ("residual",)),
    "pni": Row(dubio.PNI(), ("cnn",), differs_by_example=False, frozen_export=True),
    "pni, channels": Row(dubio.PNI(per="channel"), (), differs_by_example=False, frozen_export=True),
    "wasserstein": Row(dubio.Wasserstein(**SMALL), ("residual",), **NEW_HEAD),
    "wasserstein, free": Row(dubio.Wasserstein(prototype="free", **SMALL), (), **NEW_HEAD),
    "wasserstein, sinkhorn": Row(dubio.Wasserstein(distance="sinkhorn", num_iterations=3, **SMALL), (), **NEW_HEAD),
    "deterministic": Row(
        dubio.Deterministic(l2=1e-3),
        ("mlp",),
        draws="equal",
        chooses=False,
        differs_by_example=False,
        mirrors=False,
        frozen_export=True,
    ),
    "ensemble": Row(
        dubio.Ensemble(members=3),
        ("mlp", "residual"),
        noise_off=None,
        draws="members",
        made="members",
        chooses=False,
        differs_by_example=False,
        mirrors=False,
        frozen_export=True,
    ),
}


class Residual(nn.Module):
    """Blocks of convolution and batch norm with a skip around the second, on images of 8 x 8."""

    def __init__(self, dropout: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(4)
        self.branch = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.branch_norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout2d(0.4) if dropout else nn.Identity()
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem_norm(self.stem(x)))
        h = F.relu(h + self.drop(self.branch_norm(self.branch(h))))
        return self.head(h.mean(dim=(2, 3)))


def cnn() -> nn.Sequential:
    """Two convolutions, one of them with batch norm, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


@dataclass(frozen=True)
class Network:
    """A network and the shape of one example."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    head: str
    """Name of the last layer."""
    norms: bool = True

    def inputs(self, rows: int) -> Tensor:
        """The same for the same number of rows."""
        return torch.randn(rows, *self.shape, generator=torch.Generator().manual_seed(rows))


NETWORKS = {
    "mlp": Network(lambda: mlp(5, 8, 6, CLASSES), (5,), "4", norms=False),
    "cnn": Network(cnn, (2, 8, 8), "6"),
    "residual": Network(lambda: Residual(dropout=False), (2, 8, 8), "head"),
    "residual, dropout": Network(lambda: Residual(dropout=True), (2, 8, 8), "head"),
}
