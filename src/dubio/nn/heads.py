"""Heads that take the place of a network's classifier: they compare what comes in with every class.

``GaussianHead`` compares Gaussians in closed form (14.1); ``WassersteinHead`` compares clouds of points, drawn by small
networks from a code and noise, by their sliced Wasserstein distance (E-47 to E-54). With noise off every cloud is one
point, and the distance of points is known without directions (T-53).

Invariants: all pairs of one pass share their directions and their class clouds; T-48 to T-54.
"""

from abc import abstractmethod
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
    """Stands where the classifier stood."""

    random: tuple[str, ...] = ("clouds",)
    """What is random about it."""

    @abstractmethod
    def plain(self) -> nn.Module:
        """An ordinary module that gives what the head gives with noise off."""

    @abstractmethod
    def describe(self) -> str:
        """What the head does, in a few words."""

    def is_noise(self, name: str) -> bool:
        """None of its parameters: they are an ordinary network's."""
        return False

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Of a plain network's checkpoint take the rest: the head has no use for the classifier's weights."""
        own = self.state_dict(prefix=prefix)
        if not any(key in state_dict for key in own):
            state_dict.pop(f"{prefix}weight", None)
            state_dict.pop(f"{prefix}bias", None)
            state_dict.update(own)
        super()._load_from_state_dict(state_dict, prefix, *args)


class GaussianHead(Head):
    """``GaussianLogits`` as a head; nothing is drawn. The entropy of the inputs' Gaussians is rewarded (E-56)."""

    random = ()

    def __init__(self, num_inputs: int, num_classes: int, kind: GaussianKind, margin: float, weight: float) -> None:
        super().__init__()
        self.logits = GaussianLogits(num_inputs, num_classes, kind)
        self.margin, self.weight = margin, weight

    def forward(self, mean: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        with joined_pass() as run:
            if "penalty" in run.collecting and not run.off:
                short = functional.noise.entropy_margin(self.logits.std(mean), self.margin).mean()
                run.collect("entropy_margin", self.weight * short)
            return self.logits(mean)  # type: ignore[no-any-return]

    def plain(self) -> nn.Module:
        """The logits without the head."""
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
    """Logits are minus the distance between the cloud of an input and that of each class (E-49)."""

    prototypes: nn.Parameter | None

    def __init__(
        self,
        num_inputs: int,
        num_classes: int,
        *,
        num_points: int,
        noise: Literal["normal", "uniform"],
        noise_dim: int,
        dim: int,
        hidden: int,
        prototype: Literal["generated", "free"],
        distance: Distance,
        num_directions: int,
        eval_redraws: int,
        p: int,
        root: bool,
        trained_scale: bool,
        margin: float,
        feature_weight: float,
        class_weight: float,
        regularisation: float,
        num_iterations: int,
    ) -> None:
        super().__init__()
        self.num_classes, self.num_points, self.noise, self.noise_dim = num_classes, num_points, noise, noise_dim
        self.distance, self.num_directions, self.eval_redraws = distance, num_directions, eval_redraws
        self.p, self.root, self.margin = p, root, margin
        self.feature_weight, self.class_weight = feature_weight, class_weight
        self.regularisation, self.num_iterations = regularisation, num_iterations
        self.dim = dim
        self.features = CloudMaker(num_inputs, noise_dim, hidden, dim)
        self.classes = CloudMaker(num_classes, noise_dim, hidden, dim) if prototype == "generated" else None
        free = nn.Parameter(torch.randn(num_classes, num_points, dim)) if prototype == "free" else None
        self.register_parameter("prototypes", free)
        self.log_scale = nn.Parameter(torch.zeros(())) if trained_scale else None
        self.class_noise, self.directions = Source(), Source()

    def forward(self, code: Float[Tensor, "batch input"]) -> Float[Tensor, "batch class"]:
        """Logits of one draw of all clouds and directions."""
        with joined_pass() as run:
            dtype = torch.promote_types(code.dtype, torch.float32)
            features, classes = self.clouds(code).to(dtype), self.class_clouds(code).to(dtype)
            with torch.autocast(code.device.type, enabled=False):
                if run.off:
                    return self._scaled(-self._point_distances(features, classes))
                if "penalty" in run.collecting:
                    self._collect_margins(run, features, classes)
                return self._scaled(-self._distances(run, features, classes))

    def clouds(self, code: Float[Tensor, "batch input"]) -> Float[Tensor, "batch cloud dim"]:
        """The clouds of some inputs in the running pass; with noise off, a point each."""
        with joined_pass() as run:
            return self.features(code, None if run.off else self._feature_noise(run, code))  # type: ignore[no-any-return]

    def class_clouds(self, like: Tensor) -> Float[Tensor, "class cloud dim"]:
        """The clouds of all classes in the running pass, in the kind of numbers of ``like``.

        With noise off a point each, which is the mean where the points are free.
        """
        with joined_pass() as run:
            if self.prototypes is not None:
                return self.prototypes.mean(dim=1, keepdim=True) if run.off else self.prototypes
            assert self.classes is not None
            one_hot = torch.eye(self.num_classes, dtype=like.dtype, device=like.device)
            noise = None if run.off else self._class_noise(run, like)
            return self.classes(one_hot, noise)  # type: ignore[no-any-return]

    def plain(self) -> nn.Module:
        """The head on points."""
        return PointHead(self)

    def describe(self) -> str:
        """What the head does, in a few words."""
        return f"{self.distance} Wasserstein distance of clouds of {self.num_points} points as logit"

    def _distances(self, run: Pass, features: Tensor, classes: Tensor) -> Tensor:
        if self.distance == "sinkhorn":
            return functional.wasserstein.sinkhorn_matrix(features, classes, self.regularisation, self.num_iterations)
        count = self.num_directions * (1 if self.training else self.eval_redraws)
        noise = _once(run, self.directions, features.new_empty(count, self.dim), "normal")
        directions = functional.wasserstein.unit_directions(noise)
        return functional.wasserstein.sliced_wasserstein_matrix(features, classes, directions, self.p, self.root)

    def _point_distances(self, features: Tensor, classes: Tensor) -> Tensor:
        if self.distance == "sinkhorn":
            return functional.wasserstein.squared_distances(features.squeeze(-2), classes.squeeze(-2))
        return functional.wasserstein.point_distances(features.squeeze(-2), classes.squeeze(-2), self.p, self.root)

    def _collect_margins(self, run: Pass, features: Tensor, classes: Tensor) -> None:
        """What clouds fall short of the least variance, by example and by class (E-54)."""
        if self.feature_weight:
            short = functional.wasserstein.variance_margin(features, self.margin).mean()
            run.collect("feature_margin", self.feature_weight * short)
        if self.class_weight:
            run.collect(
                "class_margin", self.class_weight * functional.wasserstein.variance_margin(classes, self.margin).mean()
            )

    def _feature_noise(self, run: Pass, code: Tensor) -> Tensor:
        shape = (*code.shape[:-1], self.num_points, self.noise_dim)
        return self._kind(run.noise_for_activations(self, shape, code.dtype, code.device, self.noise))

    def _class_noise(self, run: Pass, like: Tensor) -> Tensor:
        shape = (self.num_classes, self.num_points, self.noise_dim)
        return self._kind(_once(run, self.class_noise, like.new_empty(shape), self.noise))

    def _kind(self, noise: Tensor) -> Tensor:
        return 2.0 * noise - 1.0 if self.noise == "uniform" else noise

    def _scaled(self, logits: Tensor) -> Tensor:
        return logits if self.log_scale is None else logits * self.log_scale.exp()


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
        self.log_scale, self.num_classes = head.log_scale, head.num_classes
        self.distance, self.p, self.root = head.distance, head.p, head.root

    def forward(self, code: Float[Tensor, "batch input"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        one_hot = torch.eye(self.num_classes, dtype=code.dtype, device=code.device)
        if self.prototypes is not None:
            classes = self.prototypes.mean(dim=1)
        else:
            classes = self.classes(one_hot, None).squeeze(-2)  # type: ignore[misc]
        features = self.features(code, None).squeeze(-2)
        distances = (
            functional.wasserstein.squared_distances(features, classes)
            if self.distance == "sinkhorn"
            else functional.wasserstein.point_distances(features, classes, self.p, self.root)
        )
        return -distances if self.log_scale is None else -distances * self.log_scale.exp()
