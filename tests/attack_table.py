"""The attacks, by name, small enough to be run dozens of times; and victims for them.

The victims are made once: no attack changes them (``tests/attacks/test_untouched.py``).
"""

import functools
from dataclasses import replace

import torch
from torch import Tensor, nn

import dubio
from dubio import attacks
from dubio.attacks.attack import Attack
from networks import mlp

BALL: dict[str, Attack] = {
    "fgsm": attacks.FGSM(epsilon=0.1),
    "fgsm, own label": attacks.FGSM(epsilon=0.1, label="own"),
    "pgd": attacks.PGD(epsilon=0.1, steps=3),
    "pgd, restarts and momentum": attacks.PGD(epsilon=0.1, steps=2, restarts=2, momentum=0.5),
    "evade": attacks.Evade(epsilon=0.1, steps=3, weight=0.5),
    "evade, to be rejected": attacks.Evade(epsilon=0.1, steps=3, restarts=2, goal="reject"),
    "apgd": attacks.APGD(epsilon=0.1, steps=6),
    "apgd, restarts": attacks.APGD(epsilon=0.1, steps=3, restarts=2, loss="margin"),
    "square": attacks.Square(epsilon=0.1, steps=6),
    "random noise": attacks.RandomNoise(epsilon=0.1, tries=3),
    "random signs": attacks.RandomNoise(epsilon=0.1, tries=3, kind="sign"),
}
OTHER: dict[str, Attack] = {
    "targeted fgsm": attacks.TargetedFGSM(steps=3),
    "transfer": attacks.Transfer(attack=attacks.PGD(epsilon=0.1, steps=3)),
    "ddn": attacks.DDN(steps=6),
    "fmn": attacks.FMN(steps=6),
    "minimum norm": attacks.MinimumNorm(steps=4, bisections=1),
}
ALL = BALL | OTHER
TARGETED = [name for name in ALL if name not in ("fgsm, own label", "evade, to be rejected")]
DRAWING = ["pgd", "pgd, restarts and momentum", "evade", "evade, to be rejected", "apgd", "square", "random noise"]
DRAWING += ["transfer", "minimum norm"]
"""Those that draw random numbers of their own."""


def in_l2(attack: Attack) -> Attack:
    """The same attack in the other norm."""
    if isinstance(attack, attacks.Transfer):
        return replace(attack, norm="l2", attack=in_l2(attack.attack))
    return replace(attack, norm="l2")


def towards(attack: Attack) -> Attack:
    """The same attack with labels that are wanted."""
    if isinstance(attack, attacks.Transfer):
        return replace(attack, targeted=True, attack=towards(attack.attack))
    return replace(attack, targeted=True)


def radius(attack: Attack) -> float:
    """How far it may go."""
    found = attack.attack.epsilon if isinstance(attack, attacks.Transfer) else attack.epsilon
    assert found is not None
    return found


@functools.cache
def plain_net() -> nn.Module:
    """A network without noise, sure of some things, whatever the state of the generator."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = mlp(6, 16, 4)
        with torch.no_grad():
            net[2].weight.mul_(4.0)
    return net


@functools.cache
def bayesian_net(estimator: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    return dubio.Bayes(estimator=estimator, init_std=0.3).convert(plain_net()).to(dtype)


def logits_function() -> object:
    """A bare function, with noise from torch's generator."""
    net = plain_net()

    def logits(inputs: Tensor) -> Tensor:
        return net(inputs + 0.1 * torch.randn_like(inputs))

    return logits


def examples(net: nn.Module | None = None, rows: int = 7, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Inputs, some of them at the edge of the box, with labels that the network gives them."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.rand(rows, 6, generator=generator, dtype=torch.float64).to(dtype)
    inputs[0, :3], inputs[1, 3:] = 0.0, 1.0
    with torch.no_grad(), dubio.noise_off():
        labels = (plain_net()(inputs.float()) if net is None else net(inputs)).argmax(dim=1)
    return inputs, labels
