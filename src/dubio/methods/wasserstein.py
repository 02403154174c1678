"""Inductive Wasserstein embeddings: inputs and classes are clouds of points, and minus their distance is the logit.

The density of a cloud is implicit: a small network maps a code and noise to its points.

Reference: Towards Stochastic Neural Networks via Inductive Wasserstein Embeddings; Frogner, Mirzazadeh and Solomon
2019, Learning Embeddings into Entropic Wasserstein Spaces, for free points (``prototype="free"``).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import nn

from dubio.checks import check_choice, check_count, check_flag, check_not_negative, check_positive
from dubio.convert import Where, check_where, replace_head
from dubio.methods.method import Method, NoiseOff
from dubio.nn import Distance, WassersteinHead


@dataclass(frozen=True)
class Wasserstein(Method):
    """A head that compares clouds of points by their Wasserstein distance replaces the classifier.

    The paper states no hyperparameters. The defaults are the best of sixteen settings on MNIST with label noise, chosen
    without true labels (``dubio reproduce label-noise-search``). With noise off the network is a new one, so that
    ``example`` inputs prove only that it runs.

    Args:
        num_points: points of each cloud.
        dim: dimension of the points.
        noise_dim: how many numbers of noise each point is made from; 0 makes all points of a cloud one.
        noise: ``"normal"``, or ``"uniform"`` from -1 to 1.
        hidden: width of the networks that make the points.
        prototype: class clouds ``"generated"`` from noise, or ``"free"`` points that are trained themselves.
        distance: ``"sliced"``, or ``"sinkhorn"``, the entropic one.
        num_directions: directions of the sliced distance, drawn anew in every pass.
        eval_redraws: how many times as many directions a draw has in evaluation.
        p: order of the sliced distance, 1 or 2.
        root: whether the sliced distance has its root taken.
        trained_scale: whether the logits have a scale that is trained.
        margin: variance that every cloud should have.
        feature_weight: what a shortfall costs for the clouds of inputs.
        class_weight: what a shortfall costs for the clouds of classes.
        regularisation: of the entropic distance.
        num_iterations: rounds of the entropic distance.
        where: which linear layer is the classifier; see ``dubio.Where``. By default the last one, or with ``example``
            inputs the last one called.
    """

    noise_off: ClassVar[NoiseOff] = "own mean"
    on_classifier: ClassVar[bool] = True

    num_points: int = 8
    dim: int = 64
    noise_dim: int = 64
    noise: Literal["normal", "uniform"] = "normal"
    hidden: int = 256
    prototype: Literal["generated", "free"] = "generated"
    distance: Distance = "sliced"
    num_directions: int = 50
    eval_redraws: int = 1
    p: int = 2
    root: bool = False
    trained_scale: bool = True
    margin: float = 2.0
    feature_weight: float = 0.03
    class_weight: float = 0.3
    regularisation: float = 1.0
    num_iterations: int = 20
    where: Where = None

    def __post_init__(self) -> None:
        for name in ("num_points", "dim", "hidden", "num_directions", "eval_redraws", "num_iterations"):
            check_count(name, getattr(self, name))
        check_count("noise_dim", self.noise_dim, least=0)
        check_choice("noise", self.noise, ("normal", "uniform"))
        check_choice("prototype", self.prototype, ("generated", "free"))
        check_choice("distance", self.distance, get_args(Distance))
        check_choice("p", self.p, (1, 2))
        check_flag("root", self.root)
        check_flag("trained_scale", self.trained_scale)
        for name in ("margin", "feature_weight", "class_weight"):
            check_not_negative(name, getattr(self, name))
        check_positive("regularisation", self.regularisation)
        if self.num_points == 1 and (self.feature_weight or self.class_weight):
            raise ValueError("num_points must be at least 2 for clouds to have a variance; set both weights to 0")
        check_where(self.where)

    def _convert(self, net: nn.Module, strict: bool) -> nn.Module:
        return replace_head(net, lambda layer: WassersteinHead(layer, self), self.where, strict)
