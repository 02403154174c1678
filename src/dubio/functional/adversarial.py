"""Formulas of attacks: losses over many draws, norms and projections, and the rules by which attacks step.

Losses are per example; a larger loss is worse for the network. Each can be taken of the log of the mean probability
over draws (``predictive``), of each draw and then averaged (``expected``), of the mean logits (``mean_logit``), or of
the shares of draws that vote for each class (``votes``), the only one that a black-box attacker observes.
Log-probabilities serve as logits throughout: they differ by a constant per draw and example, which changes none of the
losses.

Rules of steps, such as adaptive sizes, radii and windows, are per example, so that a batch moves in lockstep without
reading any value from the device.

References: Croce and Hein 2020 (Auto-PGD), Andriushchenko et al. 2020 (square attack), Rony et al. 2019 (DDN), Pintor
et al. 2021 (FMN), and for the weighted distance E-64 Szegedy et al. 2014.
"""

import functools
import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dubio.functional.uncertainty import predictive_log_probs, vote_counts

PerExample = Float[Tensor, " batch"]
Batch = Float[Tensor, "batch *shape"]
Flags = Bool[Tensor, " batch"]

AttackObjective = Literal["predictive", "expected", "mean_logit", "votes"]
AttackLoss = Literal["cross_entropy", "margin", "dlr"]
Norm = Literal["linf", "l2"]
TINY = 1e-12
INSIDE = 1.0 - 1e-6
"""Share of the radius of a scaled perturbation, so that rounding cannot carry it out of the ball."""
RISING_SHARE = 0.75
"""Share of steps that must raise the loss, lest the next ones be shorter (rho of Auto-PGD)."""
HALVED_AT = (10, 50, 200, 1000, 2000, 4000, 6000, 8000)
"""Steps of 10,000 at which the share of pixels in a square is halved."""
SMOOTH = 1e-12
"""Keeps the norm differentiable at zero (E-64)."""


def averaged_attack_loss(
    log_probs: Float[Tensor, "sample batch class"],
    targets: Int[Tensor, " batch"],
    objective: AttackObjective,
    loss: AttackLoss,
) -> PerExample:
    """The attacker's loss per example, over all draws."""
    if objective == "predictive":
        return attack_loss(predictive_log_probs(log_probs), targets, loss)
    if objective == "mean_logit":
        return attack_loss(log_probs.mean(dim=0), targets, loss)
    if objective == "votes":
        return attack_loss(vote_log_shares(log_probs), targets, loss)
    return attack_loss(log_probs, targets.expand(log_probs.shape[:-1]), loss).mean(dim=0)


def vote_log_shares(log_probs: Float[Tensor, "sample batch class"]) -> Float[Tensor, "batch class"]:
    """Logarithm of the share of draws that vote for each class, half a vote added to all: without a gradient."""
    num_samples, _, num_classes = log_probs.shape
    counts = vote_counts(log_probs.argmax(dim=-1), num_classes)
    return torch.log((counts + 0.5) / (num_samples + 0.5 * num_classes)).to(log_probs.dtype)


def attack_loss(
    logits: Float[Tensor, "*batch class"], targets: Int[Tensor, "*batch"], loss: AttackLoss
) -> Float[Tensor, "*batch"]:
    """Cross-entropy, margin ``max_k z_k - z_y``, or the difference of logits ratio (Croce and Hein 2020)."""
    index = targets.unsqueeze(-1)
    if loss == "cross_entropy":
        return -logits.log_softmax(dim=-1).gather(-1, index).squeeze(-1)
    label_logit = logits.gather(-1, index).squeeze(-1)
    margin = logits.scatter(-1, index, -torch.inf).amax(dim=-1) - label_logit
    if loss == "margin":
        return margin
    top = logits.topk(min(3, logits.shape[-1]), dim=-1).values
    return margin / (top[..., 0] - top[..., -1] + TINY)


def perturbation_norm(perturbation: Batch, norm: Norm) -> PerExample:
    """Size of each example's perturbation."""
    flat = perturbation.flatten(1)
    return flat.abs().amax(dim=1) if norm == "linf" else flat.norm(dim=1)


def distortion(perturbation: Batch) -> Float[Tensor, ""]:
    """Mean over examples of the root mean square of what was added, ``sqrt(||r||^2 / d)`` (E-27)."""
    return perturbation.flatten(1).square().mean(dim=1).sqrt().mean()


def steepest_direction(gradient: Batch, norm: Norm) -> Batch:
    """The step of norm one along which a loss with this gradient grows fastest; zero where the gradient vanishes.

    A tiny gradient does not vanish: that of a very sure network, 1e-30 for example, is scaled before it is squared.
    """
    if norm == "linf":
        return gradient.sign()
    largest = as_rows(perturbation_norm(gradient, "linf"), gradient)
    scaled = gradient / largest.clamp_min(torch.finfo(gradient.dtype).tiny)
    return scaled / as_rows(perturbation_norm(scaled, norm), scaled).clamp_min(TINY)


def project_perturbation(perturbation: Batch, norm: Norm, epsilon: float | PerExample) -> Batch:
    """The nearest perturbation of norm at most ``epsilon``."""
    radius = as_rows(epsilon, perturbation) if isinstance(epsilon, Tensor) else epsilon
    if norm == "linf":
        return perturbation.clamp(-radius, radius)  # type: ignore[arg-type]
    size = as_rows(perturbation_norm(perturbation, norm), perturbation)
    return perturbation * (INSIDE * radius / size.clamp_min(TINY)).clamp_max(1.0)


def project_inputs(candidate: Batch, inputs: Batch, norm: Norm, epsilon: float) -> Batch:
    """The nearest point at most ``epsilon`` from the inputs, after rounding too (E-63).

    The sum of an input and an allowed perturbation is rounded, perhaps out of the ball. The next number towards the
    input is not.
    """
    radius = _rounded_down(epsilon, inputs.dtype)
    within = inputs + project_perturbation(candidate - inputs, norm, radius)
    distance = (within.double() - inputs.double()).abs()
    if norm == "l2":
        distance = as_rows(perturbation_norm(distance, norm), within)
    return torch.where(distance > epsilon, torch.nextafter(within, inputs), within)


def random_perturbation(uniform: Batch, normal: Batch, norm: Norm, epsilon: float) -> Batch:
    """A random point of the ball, from uniform numbers in [0, 1] and normal ones: evenly spread in either norm."""
    if norm == "linf":
        return (2.0 * uniform - 1.0) * epsilon
    dimensions = normal[0].numel()
    radius = uniform.flatten(1)[:, :1].pow(1.0 / dimensions)
    return steepest_direction(normal, norm) * epsilon * as_rows(radius.squeeze(1), normal)


def as_rows(values: Shaped[Tensor, " batch"], like: Shaped[Tensor, "batch *shape"]) -> Shaped[Tensor, "batch ..."]:
    """One value per example, with axes of length one to meet its elements."""
    return values.reshape(-1, *[1] * (like.dim() - 1))


@functools.cache
def _rounded_down(value: float, dtype: torch.dtype) -> float:
    """The largest number of this type that is not above the value."""
    rounded = torch.tensor(value, dtype=dtype, device="cpu")
    return (rounded if rounded.item() <= value else torch.nextafter(rounded, torch.zeros_like(rounded))).item()


def halving_checkpoints(steps: int) -> tuple[int, ...]:
    """Steps at which Auto-PGD may halve its step: ``ceil(p_j * steps)``, ever closer to each other."""
    percent = [0, 22]
    while percent[-1] < 100:
        percent.append(percent[-1] + max(percent[-1] - percent[-2] - 3, 6))
    # In whole numbers: 0.57 * 100 would round up to 58.
    checkpoints = {-(-share * steps // 100) for share in percent[1:]}
    return tuple(sorted(step for step in checkpoints if step < steps))


def should_halve(
    num_rises: PerExample, num_steps: int, halved_before: Flags, best: PerExample, best_before: PerExample
) -> Flags:
    """Whether Auto-PGD halves its step: too few of the last steps rose, or neither step nor best loss has changed."""
    few = num_rises < RISING_SHARE * num_steps
    stuck = ~halved_before & (best <= best_before)
    return few | stuck


def with_momentum(point: Batch, before: Batch, proposal: Batch, share: float) -> Batch:
    """A share of the way to the proposal, and the rest of the last step again."""
    return point + share * (proposal - point) + (1.0 - share) * (point - before)


def cosine_annealed(first: float, last: float, progress: float) -> float:
    """From the first value at progress 0 to the last at progress 1, along half a wave."""
    return last + (first - last) * (1.0 + math.cos(math.pi * progress)) / 2.0


def next_decoupled_radius(radius: PerExample, fooled: Flags, gamma: float) -> PerExample:
    """DDN: a little less after success, a little more after failure."""
    return torch.where(fooled, radius * (1.0 - gamma), radius * (1.0 + gamma))


def next_boundary_radius(
    radius: PerExample, fooled: Flags, best: PerExample, linear: PerExample, gamma: float
) -> PerExample:
    """FMN: less after success, and never more than the best so far; more after failure.

    Before the first success it is a little more than before, or than the estimated distance to the boundary if that is
    larger. With that estimate alone, which ignores the box, a walk can stay just short of the boundary. ``best`` is the
    smallest norm with success, infinite where there is none, as is the first ``radius``; ``linear`` is the norm at
    which a linear network would be fooled.
    """
    shrunk = torch.minimum(radius * (1.0 - gamma), best)
    guess = torch.where(radius.isinf(), linear, torch.maximum(radius, linear))
    grown = torch.where(best.isinf(), guess, radius) * (1.0 + gamma)
    return torch.where(fooled, shrunk, grown)


def boundary_distance(margin: PerExample, gradient: Batch, norm: Norm) -> PerExample:
    """Distance to the boundary, where the margin vanishes, of a linear network: ``|margin|`` over the dual norm."""
    dual: Tensor = torch.linalg.vector_norm(gradient.flatten(1), 1 if norm == "linf" else 2, dim=1)
    return margin.abs() / dual.clamp_min(TINY)


def minimum_norm_objective(perturbation: Batch, values: PerExample, c: PerExample, hinged: bool) -> PerExample:
    """Objective of a minimum-norm attack: ``c ||r||_2 - values`` (E-64), with the values that an attacker raises.

    ``hinged`` cuts values off at zero, so that a margin does not grow without end after success.
    """
    squared = perturbation.flatten(1).square().sum(dim=1)
    return c * (squared + SMOOTH).sqrt() - (values.clamp_max(0.0) if hinged else values)


def next_penalty(c: PerExample, works: PerExample, fails: PerExample) -> PerExample:
    """The next weight of the distance to try: ten times more or less while one end is open, then the geometric mean.

    ``works`` is the largest weight that has succeeded, 0 where none has; ``fails`` the smallest that has failed,
    infinite where none has.
    """
    middle = (works * fails).sqrt()
    return torch.where(fails.isinf(), 10.0 * c, torch.where(works == 0.0, c / 10.0, middle))


def square_share(step: int, steps: int, first: float) -> float:
    """Share of the pixels that the square of this step covers: halved ever more rarely."""
    scaled = step / steps * 10_000
    return first / 2.0 ** sum(scaled > limit for limit in HALVED_AT)


def square_window(share: float, height: int, width: int, smallest: int = 1) -> tuple[int, int]:
    """Height and width of the window that covers this share of an image: a square, or a stretch of a single row."""
    if height == 1:
        return 1, min(max(round(share * width), smallest), width)
    side = min(max(round(math.sqrt(share * height * width)), smallest), height, width)
    return side, side


def square_bump(height: int, width: int) -> Float[Tensor, "height width"]:
    """A bump of norm one: up in one half of the window and down in the other (square attack, L2)."""
    if height == 1:
        return square_bump(width, 1).T if width > 1 else torch.ones(1, 1)
    half = height // 2
    bump: Tensor = torch.cat([_pyramid(half, width), -_pyramid(height - half, width)])
    return steepest_direction(bump.unsqueeze(0), "l2").squeeze(0)


def free_distance(
    perturbation: Float[Tensor, "batch channel height width"],
    kept: Float[Tensor, "batch channel height width"],
    epsilon: float,
) -> Float[Tensor, "batch channel 1 1"]:
    """Norm that a change of each channel may have in a ball of radius ``epsilon``, beside the part that is kept.

    What a channel has given up is its own; what the ball had left is shared by all (square attack, L2).
    """
    freed = perturbation.square().sum(dim=(2, 3), keepdim=True) - kept.square().sum(dim=(2, 3), keepdim=True)
    left = epsilon**2 - perturbation.square().sum(dim=(1, 2, 3), keepdim=True)
    return (freed + left / perturbation.shape[1]).clamp_min(0.0).sqrt()


def _pyramid(height: int, width: int) -> Float[Tensor, "height width"]:
    """The sum of ``1 / (k + 1)^2`` over all k from the distance to the centre on; of norm one."""
    rows = (torch.arange(height) - height // 2).abs().unsqueeze(1)
    columns = (torch.arange(width) - width // 2).abs().unsqueeze(0)
    ranks = torch.arange(1.0, max(height, width) // 2 + 2)
    tails = ranks.pow(-2.0).flip(0).cumsum(0).flip(0)
    return steepest_direction(tails[torch.maximum(rows, columns)].unsqueeze(0), "l2").squeeze(0)
