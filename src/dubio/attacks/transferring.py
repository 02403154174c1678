"""Transfer: perturbations made on one network, tried on another."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

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

    _uses_gradients: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.attack, Attack):
            raise TypeError(f"attack must be an attack such as attacks.Pgd(), got {self.attack!r}")
        if self.epsilon is not None:
            raise ValueError(f"epsilon belongs to the attack, as in Transfer(attack=Pgd(epsilon={self.epsilon}))")
        for name in ("norm", "bounds", "targeted"):
            if getattr(self, name) != (its := getattr(self.attack, name)):
                raise ValueError(f"{name} must be that of the attack, {its!r}, got {getattr(self, name)!r}")
        super().__post_init__()

    def _perturb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Perturbed:
        attack, source = self.attack, self.source
        if source is None:
            attack, source = replace(attack, noise="off"), victim.model
        if attack.seed is None:
            attack = replace(attack, seed=victim.seed)
        moved = attack._run(source, inputs, targets, victim.first_row)
        victim.forwards += moved.forwards
        victim.backwards += moved.backwards
        ticker.tick()
        return self._select(victim, moved.inputs, targets)
