"""What ``predict`` returns: a distribution over targets, and where its doubt comes from."""

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from dubio import functional

__all__ = ["ClassPredictive", "Predictive", "RealPredictive"]


@dataclass(frozen=True, eq=False, repr=False)
class Predictive:
    """A prediction from ``num_samples`` draws; ``seed`` gives the same draws again."""

    num_samples: int
    seed: int | None
    samples: Float[Tensor, "sample batch ..."] | None
    """Per draw, where samples were kept: log-probabilities for classes, means for real targets."""


@dataclass(frozen=True, eq=False, repr=False)
class ClassPredictive(Predictive):
    """A distribution over classes for every input. Entropies are in nats."""

    log_probs: Float[Tensor, "batch *rest class"]
    """Log of the mean probability over draws."""
    expected_entropy: Float[Tensor, "batch *rest"]
    """Mean over draws of each draw's entropy: doubt that lies in the data."""
    votes: Float[Tensor, "batch *rest class"]
    """Share of draws that hold each class most probable."""
    class_variance: Float[Tensor, "batch *rest class"]
    """Variance over draws of each class's probability."""
    energy: Float[Tensor, "batch *rest"] | None
    """Minus the log of the summed exponentials of the logits, averaged over draws; None where there are no logits."""

    @cached_property
    def probs(self) -> Float[Tensor, "batch *rest class"]:
        """Mean probability over draws."""
        return self.log_probs.exp()

    @cached_property
    def label(self) -> Int[Tensor, "batch *rest"]:
        """The most probable class."""
        return self.log_probs.argmax(dim=-1)

    @cached_property
    def confidence(self) -> Float[Tensor, "batch *rest"]:
        """Probability of the most probable class."""
        return self.probs.amax(dim=-1)

    @cached_property
    def entropy(self) -> Float[Tensor, "batch *rest"]:
        """Entropy of the mean probabilities: all doubt together."""
        return functional.entropy(self.probs)

    @cached_property
    def mutual_information(self) -> Float[Tensor, "batch *rest"]:
        """What draws disagree about: doubt that more data could remove."""
        return functional.mutual_information(self.entropy, self.expected_entropy)

    @cached_property
    def variation_ratio(self) -> Float[Tensor, "batch *rest"]:
        """Share of draws that do not vote for the most frequent class."""
        return functional.variation_ratio(self.votes)

    @cached_property
    def top_std(self) -> Float[Tensor, "batch *rest"]:
        """Standard deviation over draws of the most probable class's probability."""
        return self.class_variance.gather(-1, self.label.unsqueeze(-1)).squeeze(-1).sqrt()

    def __repr__(self) -> str:
        return (
            f"ClassPredictive({_count(self.label)}, {self.log_probs.shape[-1]} classes, {self.num_samples} draws, "
            f"seed {self.seed}: mean confidence {self.confidence.mean():.3f}, entropy {self.entropy.mean():.3f}, "
            f"mutual information {self.mutual_information.mean():.3f})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class RealPredictive(Predictive):
    """A distribution over real targets for every input: a mixture of one Gaussian per draw."""

    mean: Float[Tensor, "batch *rest"]
    aleatoric_std: Float[Tensor, "batch *rest"]
    """Noise of the data: root of the mean observation variance."""
    epistemic_std: Float[Tensor, "batch *rest"]
    """Doubt of the network: standard deviation of the draws' means."""
    sample_stds: Float[Tensor, "sample batch *rest"] | None
    """Observation noise per draw, where samples were kept."""

    @cached_property
    def std(self) -> Float[Tensor, "batch *rest"]:
        """Standard deviation of the prediction, both kinds of doubt together."""
        return (self.aleatoric_std.square() + self.epistemic_std.square()).sqrt()

    def quantile(self, level: float) -> Float[Tensor, "batch *rest"]:
        """The value below which the target lies with probability ``level``."""
        if self.samples is None or self.sample_stds is None:
            raise ValueError("quantiles need the single draws: predict with keep_samples=True")
        return functional.mixture_quantile(level, self.samples, self.sample_stds).to(self.mean.dtype)

    def interval(self, level: float = 0.9) -> tuple[Float[Tensor, "batch *rest"], Float[Tensor, "batch *rest"]]:
        """The central interval that holds the target with probability ``level``."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must be in (0, 1), got {level}")
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def __repr__(self) -> str:
        return (
            f"RealPredictive({_count(self.mean)}, {self.num_samples} draws, seed {self.seed}: mean std "
            f"{self.std.mean():.3g}, of the data {self.aleatoric_std.mean():.3g}, of the network "
            f"{self.epistemic_std.mean():.3g})"
        )


def _count(rows: Tensor) -> str:
    return f"{len(rows)} input" + ("" if len(rows) == 1 else "s")
