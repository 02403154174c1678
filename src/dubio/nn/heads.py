"""Heads that replace a network's classifier and compare its input with every class.

``GaussianHead`` compares Gaussians in closed form (14.1); ``WassersteinHead`` compares clouds of points by their
Wasserstein distance (E-47 to E-54), where small networks map a code and noise to the points. With noise off every cloud
is one point, and the distance of points needs no directions (T-53).

A head reads its options from the frozen value of its method (``dubio.SESNN``, ``dubio.Wasserstein``).

Invariants: all pairs of one pass share their directions and their class clouds; T-48 to T-54.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Pass, joined_pass
from dubio.nn.sources import Source

Distance = Literal["sliced", "sinkhorn"]
GaussianKind = Literal["wasserstein", "kl"]
COMPARISONS = {"wasserstein": functional.noise.gaussian_wasserstein_matrix, "kl": functional.noise.gaussian_kl_matrix}


class Head(Source):
    """Replaces the classifier."""

    random: tuple[str, ...] = ("clouds",)
    """What is random about it."""

    @abstractmethod
    def plain(self) -> nn.Module:
        """An ordinary module that gives what the head gives with noise off."""

    @abstractmethod
    def describe(self) -> str:
        """What the head does, in a few words."""

    def is_noise(self, name: str) -> bool:
        """False: its parameters are those of an ordinary network."""
        return False

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Drop the classifier's weights where a plain network's checkpoint is loaded; the head keeps its own."""
        tensors = self.state_dict(prefix=prefix)
        if not any(key in state_dict for key in tensors):
            state_dict.pop(f"{prefix}weight", None)
            state_dict.pop(f"{prefix}bias", None)
            state_dict.update(tensors)
        super()._load_from_state_dict(state_dict, prefix, *args)


class GaussianHead(Head):
    """``GaussianLogits`` as a head; nothing is drawn. The entropy of the inputs' Gaussians is rewarded (E-56).

    Args:
        layer: the classifier to replace.
        options: the ``dubio.SESNN`` with ``classes``, ``margin`` and ``weight``.
    """

    random = ()

    def __init__(self, layer: nn.Linear, options: Any) -> None:
        super().__init__()
        self.logits = GaussianLogits(layer.in_features, layer.out_features, options.classes)
        self.margin, self.weight = options.margin, options.weight

    def forward(self, mean: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        with joined_pass() as run:
            if "penalty" in run.collecting and not run.off:
                short = functional.noise.entropy_margin(self.logits.std(mean), self.margin).mean()
                run.collect("entropy_margin", self.weight * short)
            return self.logits(mean)  # type: ignore[no-any-return]

    def plain(self) -> nn.Module:
        """``GaussianLogits``."""
        return self.logits

    def describe(self) -> str:
        """What the head does, in a few words."""
        name = "squared 2-Wasserstein distance" if self.logits.kind == "wasserstein" else "KL divergence"
        return f"{name} of Gaussians as logit"


class GaussianLogits(nn.Module):
    """Minus the divergence between the Gaussian of an input and that of each class."""

    def __init__(self, num_inputs: int, num_classes: int, kind: GaussianKind) -> None:
        super().__init__()
        self.kind = kind
        self.rho = nn.Linear(num_inputs, num_inputs)
        self.class_mean = nn.Parameter(torch.randn(num_classes, num_inputs) / num_inputs**0.5)
        self.class_rho = nn.Parameter(torch.zeros(num_classes, num_inputs))

    def std(self, mean: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        """Scales of the Gaussians of inputs."""
        dtype = torch.promote_types(mean.dtype, torch.float32)
        return functional.noise.activation_std(self.rho(mean).to(dtype))

    def forward(self, mean: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        dtype = torch.promote_types(mean.dtype, torch.float32)
        std, class_std = self.std(mean), functional.noise.activation_std(self.class_rho.to(dtype))
        compare = COMPARISONS[self.kind]
        with torch.autocast(mean.device.type, enabled=False):
            return -compare(mean.to(dtype), std, self.class_mean.to(dtype), class_std)


class CloudMaker(nn.Module):
    """Points from a code and noise, ``f([code, noise_i])``: the code's part is computed once for all points."""

    def __init__(self, num_inputs: int, noise_dim: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.code = nn.Linear(num_inputs, hidden)
        self.noise = nn.Linear(noise_dim, hidden, bias=False) if noise_dim else None
        self.out = nn.Linear(hidden, dim)

    def forward(
        self, code: Float[Tensor, "*batch input"], noise: Float[Tensor, "*batch cloud noise"] | None
    ) -> Float[Tensor, "*batch cloud dim"]:
        """A cloud for every code; one point where there is no noise."""
        hidden = self.code(code).unsqueeze(-2)
        if noise is not None:
            hidden = hidden + self.noise(noise) if self.noise is not None else hidden.expand((*noise.shape[:-1], -1))
        points: Tensor = self.out(hidden.relu())
        return points


class WassersteinHead(Head):
    """Logits are minus the distance between the cloud of an input and that of each class (E-49).

    Args:
        layer: the classifier to replace.
        options: the ``dubio.Wasserstein`` with all settings.
    """

    prototypes: nn.Parameter | None

    def __init__(self, layer: nn.Linear, options: Any) -> None:
        super().__init__()
        self.options, self.num_classes = replace(options, where=None), layer.out_features  # where may be a lambda
        noise_dim, hidden, self.dim = options.noise_dim, options.hidden, options.dim
        self.features = CloudMaker(layer.in_features, noise_dim, hidden, self.dim)
        is_free = options.prototype == "free"
        self.classes = None if is_free else CloudMaker(self.num_classes, noise_dim, hidden, self.dim)
        free = nn.Parameter(torch.randn(self.num_classes, options.num_points, self.dim)) if is_free else None
        self.register_parameter("prototypes", free)
        self.log_scale = nn.Parameter(torch.zeros(())) if options.trained_scale else None
        self.class_noise, self.directions = Source(), Source()

    def forward(self, code: Float[Tensor, "batch input"]) -> Float[Tensor, "batch class"]:
        """Logits of one draw of all clouds and directions."""
        with joined_pass() as run:
            dtype = torch.promote_types(code.dtype, torch.float32)
            features, classes = self.clouds(code).to(dtype), self.class_clouds(code).to(dtype)
            with torch.autocast(code.device.type, enabled=False):
                if run.off:
                    return _point_logits(self, features.squeeze(-2), classes.squeeze(-2))
                if "penalty" in run.collecting:
                    self._collect_margins(run, features, classes)
                return _scaled(self, self._distances(run, features, classes))

    def clouds(self, code: Float[Tensor, "batch input"]) -> Float[Tensor, "batch cloud dim"]:
        """The clouds of some inputs in the running pass; with noise off, a point each."""
        with joined_pass() as run:
            shape = (*code.shape[:-1], self.options.num_points, self.options.noise_dim)
            kind = self.options.noise
            noise = None if run.off else run.noise_for_activations(self, shape, code.dtype, code.device, kind)
            return self.features(code, self._centred(noise))  # type: ignore[no-any-return]

    def class_clouds(self, like: Tensor) -> Float[Tensor, "class cloud dim"]:
        """The clouds of all classes in the running pass, in the kind of numbers of ``like``.

        With noise off a point each, which is the mean where the points are free.
        """
        with joined_pass() as run:
            if self.prototypes is not None:
                return self.prototypes.mean(dim=1, keepdim=True) if run.off else self.prototypes
            assert self.classes is not None
            one_hot = torch.eye(self.num_classes, dtype=like.dtype, device=like.device)
            shape = (self.num_classes, self.options.num_points, self.options.noise_dim)
            noise = None if run.off else _once(run, self.class_noise, like.new_empty(shape), self.options.noise)
            return self.classes(one_hot, self._centred(noise))  # type: ignore[no-any-return]

    def plain(self) -> nn.Module:
        """The head on points."""
        return PointHead(self)

    def describe(self) -> str:
        """What the head does, in a few words."""
        return f"{self.options.distance} Wasserstein distance of clouds of {self.options.num_points} points as logit"

    def _distances(self, run: Pass, features: Tensor, classes: Tensor) -> Tensor:
        options, wasserstein = self.options, functional.wasserstein
        if options.distance == "sinkhorn":
            return wasserstein.sinkhorn_matrix(features, classes, options.regularisation, options.num_iterations)
        count = options.num_directions * (1 if self.training else options.eval_redraws)
        noise = _once(run, self.directions, features.new_empty(count, self.dim), "normal")
        directions = wasserstein.unit_directions(noise)
        return wasserstein.sliced_wasserstein_matrix(features, classes, directions, options.p, options.root)

    def _collect_margins(self, run: Pass, features: Tensor, classes: Tensor) -> None:
        """What clouds fall short of the least variance, by example and by class (E-54)."""
        options = self.options
        terms = {"feature_margin": (options.feature_weight, features), "class_margin": (options.class_weight, classes)}
        for name, (weight, clouds) in terms.items():
            if weight:
                run.collect(name, weight * functional.wasserstein.variance_margin(clouds, options.margin).mean())

    def _centred(self, noise: Tensor | None) -> Tensor | None:
        return 2.0 * noise - 1.0 if noise is not None and self.options.noise == "uniform" else noise


def _once(run: Pass, source: Source, like: Tensor, kind: Literal["normal", "uniform"]) -> Tensor:
    """Noise that all calls in a pass share."""
    if id(source) not in run.drawn:
        run.drawn[id(source)] = run.noise_for_weights(source, like, kind)
    return run.drawn[id(source)]


class PointHead(nn.Module):
    """A ``WassersteinHead`` whose noise is off for good."""

    def __init__(self, head: WassersteinHead) -> None:
        super().__init__()
        self.features, self.classes, self.prototypes = head.features, head.classes, head.prototypes
        self.log_scale, self.num_classes, self.options = head.log_scale, head.num_classes, head.options

    def forward(self, code: Float[Tensor, "batch input"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        if self.prototypes is not None:
            classes = self.prototypes.mean(dim=1)
        else:
            one_hot = torch.eye(self.num_classes, dtype=code.dtype, device=code.device)
            classes = self.classes(one_hot, None).squeeze(-2)  # type: ignore[misc]
        return _point_logits(self, self.features(code, None).squeeze(-2), classes)


def _point_logits(head: WassersteinHead | PointHead, features: Tensor, classes: Tensor) -> Tensor:
    if head.options.distance == "sinkhorn":
        return _scaled(head, functional.wasserstein.squared_distances(features, classes))
    return _scaled(head, functional.wasserstein.point_distances(features, classes, head.options.p, head.options.root))


def _scaled(head: WassersteinHead | PointHead, distances: Tensor) -> Tensor:
    return -distances if head.log_scale is None else -distances * head.log_scale.exp()
