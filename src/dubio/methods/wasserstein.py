"""Inductive Wasserstein embeddings: inputs and classes as clouds of points, and their distance as logit.

The density of a cloud is implicit: a small network makes its points from a code and noise.

Reference: Towards Stochastic Neural Networks via Inductive Wasserstein Embeddings; Frogner, Mirzazadeh and Solomon
2019, Learning Embeddings into Entropic Wasserstein Spaces, for free points (``prototype="free"``).
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from torch import nn

from dubio._engine import Inputs
from dubio.checks import check_count, check_flag, check_not_negative, check_positive, check_value as check_choice
from dubio.convert import Where, check_where, classifier_of, finish, replace_head
from dubio.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from dubio.methods.method import NoiseOff, Recipe
from dubio.nn import Distance, WassersteinHead
from dubio.objectives import ELBO


@dataclass(frozen=True)
class Wasserstein:
    """A head that compares clouds of points by their Wasserstein distance, in the place of the classifier.

    The source names no numbers. These are the best of sixteen that were tried on MNIST with wrong labels, chosen
    without a true label (``dubio reproduce label-noise-search``).

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

    @property
    def recipe(self) -> Recipe:
        """How it is trained by default."""
        return Recipe()

    def objective(self, num_data: int | None = None) -> ELBO:
        """What this method minimises on ``num_data`` training examples; ``dubio.fit`` fills the number in."""
        return ELBO(num_data)

    def convert(
        self,
        net: nn.Module,
        likelihood: Likelihood = Categorical(),
        *,
        strict: bool = True,
        example: Inputs | None = None,
    ) -> nn.Module:
        """A stochastic copy of ``net`` with the head in the place of its classifier; ``net`` itself is untouched.

        The head is new, so that noise off is a network of its own: ``example`` inputs prove nothing but that it runs.
        """
        if isinstance(likelihood, Gaussian | Bernoulli):
            raise TypeError(f"likelihood must be a Categorical, since the head knows classes alone, got {likelihood!r}")
        own = replace(self, where=classifier_of(net, self.where, example))
        model = replace_head(net, self._head, own.where, strict)
        return finish(model, None, own, likelihood, example)

    def _head(self, layer: nn.Linear) -> WassersteinHead:
        return WassersteinHead(
            layer.in_features,
            layer.out_features,
            num_points=self.num_points,
            noise=self.noise,
            noise_dim=self.noise_dim,
            dim=self.dim,
            hidden=self.hidden,
            prototype=self.prototype,
            distance=self.distance,
            num_directions=self.num_directions,
            eval_redraws=self.eval_redraws,
            p=self.p,
            root=self.root,
            trained_scale=self.trained_scale,
            margin=self.margin,
            feature_weight=self.feature_weight,
            class_weight=self.class_weight,
            regularisation=self.regularisation,
            num_iterations=self.num_iterations,
        )
