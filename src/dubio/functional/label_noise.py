"""Wrong labels: how often a true class (row) is recorded as another (column), and labels drawn from that.

Every transition matrix has rows that sum to 1 and, at p = 0, is the identity (T-71).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "flip_destinations",
    "patterned_transition",
    "redrawn_labels",
    "symmetric_transition",
    "uniform_transition",
]


def patterned_transition(destinations: Int[Tensor, " class"], p: float) -> Float[Tensor, "class class"]:
    """``(1 - p) I + p F``, where row i of F has its single 1 at ``destinations[i]`` (E-67)."""
    pattern = F.one_hot(destinations.long(), len(destinations)).double()
    return (1.0 - p) * torch.eye(len(destinations), dtype=torch.float64, device=destinations.device) + p * pattern


def symmetric_transition(num_classes: int, p: float) -> Float[Tensor, "class class"]:
    """``(1 - p) I + p / (C - 1) (1 - I)``: with probability p one of the other classes (section 13.1)."""
    identity = torch.eye(num_classes, dtype=torch.float64)
    return (1.0 - p) * identity + p / (num_classes - 1) * (1.0 - identity)


def uniform_transition(num_classes: int, p: float) -> Float[Tensor, "class class"]:
    """``(1 - p) I + p / C``: with probability p any class, the true one included (section 13.1)."""
    return (1.0 - p) * torch.eye(num_classes, dtype=torch.float64) + p / num_classes


def flip_destinations(offsets: Int[Tensor, " class"]) -> Int[Tensor, " class"]:
    """For every class another one, from numbers 0 to C - 2 that count through the others (f(i) != i of E-67)."""
    own = torch.arange(len(offsets), device=offsets.device)
    return offsets + (offsets >= own)


def redrawn_labels(
    labels: Int[Tensor, " example"], transition: Float[Tensor, "class class"], uniforms: Float[Tensor, " example"]
) -> Int[Tensor, " example"]:
    """Each label drawn anew from its row of the transition matrix, by inversion of a uniform number in [0, 1)."""
    cumulative = transition.cumsum(dim=1)
    cumulative = cumulative / cumulative[:, -1:]  # so that the last is 1 and above every uniform number
    redrawn = labels.clone()
    for label in labels.unique().tolist():
        rows = labels == label
        redrawn[rows] = torch.searchsorted(cumulative[label], uniforms[rows], right=True).to(labels.dtype)
    return redrawn
