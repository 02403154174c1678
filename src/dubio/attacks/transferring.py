"""Transfer: perturbations made on one network, tried on another."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from dubio.attacks.attack import Attack, Perturbed
from dubio.attacks.gradient import Pgd
from dubio.attacks.progress import Ticker
from dubio.attacks.victims import Victim

__all__ = ["Transfer"]


@dataclass(frozen=True)
class Transfer(Attack):
    """Attack another network, or this one with its noise off, and see what that does here.

    Args:
        attack: what is done to the source; its own fields say how far and with which noise.
        source: the network attacked; by default the victim itself with its noise off.
    """

    attack: Attack = Pgd()
    source: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.attack, Attack):
            raise TypeError(f"attack must be an attack such as attacks.Pgd(), got {self.attack!r}")
        super().__post_init__()

    def _perturb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Perturbed:
        if self.source is None:
            attack, source = replace(self.attack, noise="off"), victim.model
        else:
            attack, source = self.attack, self.source
        moved = attack(source, inputs, targets, progress=False)
        victim.forwards += moved.forwards
        victim.backwards += moved.backwards
        ticker.tick()
        return self._select(victim, moved.inputs, targets)
