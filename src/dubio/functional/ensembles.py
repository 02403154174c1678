"""Ensembles cut from many draws: how many there are, and how often each is right.

Probabilities are averaged, never logits or votes (E-28). From 100 draws come 100 ensembles of one, 20 of five and one
of all; their mean accuracy is what is reported.

Invariants: the number of ensembles (T-23); one draw is the draw itself, and the order of draws within an ensemble does
not matter (T-22).
"""

from jaxtyping import Float, Int
from torch import Tensor

from dubio.functional.uncertainty import predictive_log_probs

__all__ = ["ensemble_accuracies", "num_repeats"]


def ensemble_accuracies(
    log_probs: Float[Tensor, "sample batch class"], targets: Int[Tensor, " batch"], size: int
) -> Float[Tensor, " repeat"]:
    """Accuracy of each ensemble of ``size`` consecutive draws (E-28); draws are used once."""
    repeats = num_repeats(len(log_probs), size)

    ensembles = log_probs.reshape(repeats, size, *log_probs.shape[1:]).movedim(1, 0)
    return (predictive_log_probs(ensembles).argmax(dim=-1) == targets).to(log_probs.dtype).mean(dim=-1)


def num_repeats(num_draws: int, size: int) -> int:
    """How many ensembles of ``size`` can be cut from so many draws."""
    if size < 1 or num_draws % size:
        raise ValueError(f"size must divide the number of draws, {num_draws}, got {size}; leave some draws out")

    return num_draws // size
