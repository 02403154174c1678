"""Planted frauds: networks whose robustness is not real, each for a reason of its own, and known by it."""

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Blinded", "Coin", "HardQuantiser", "Lookup", "SecretDice", "Sharpened"]


class Coin(nn.Module):
    """Ignores its input and says class 0 with a given probability, for every image anew."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, inputs: Tensor) -> Tensor:
        heads = torch.rand(len(inputs), device=inputs.device) < self.probability
        logits = torch.stack([heads, ~heads], dim=1).to(inputs.dtype)
        return logits + 0.0 * inputs.flatten(1).sum(dim=1, keepdim=True)


class _Around(nn.Module):
    """Something around an honest network."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)


class Sharpened(_Around):
    """Logits a thousand times as large: cross-entropy has no gradient left where the network is right."""

    def forward(self, inputs: Tensor) -> Any:
        return 1000.0 * self.net(inputs)


class HardQuantiser(_Around):
    """Rounds its input, whose gradient is then zero everywhere."""

    def forward(self, inputs: Tensor) -> Any:
        return self.net((inputs * 32.0).round() / 32.0)


class Lookup(_Around):
    """Gives what it has looked up: there is no way back from the output to the input."""

    def forward(self, inputs: Tensor) -> Any:
        with torch.no_grad():
            return self.net(inputs)


class Blinded(_Around):
    """Adds noise whose gradient drowns that of the network: one draw shows nothing of where to go.

    Over many draws the noise averages out, so that the answer is the network's own.
    """

    def __init__(self, net: nn.Module, std: float) -> None:
        super().__init__(net)
        self.std = std

    def forward(self, inputs: Tensor) -> Any:
        logits = self.net(inputs)
        flat = inputs.flatten(1)
        directions = torch.randn(len(flat), logits.shape[1], flat.shape[1], device=flat.device)
        # Waves of the input: next to nothing as numbers, a flood as gradients.
        return logits + self.std * torch.einsum("bcf,bf->bc", directions, torch.sin(200.0 * flat) / 200.0)


class SecretDice(_Around):
    """A network that sees its input rounded, and beside it the rest in directions drawn anew each time.

    Rounding keeps small changes out; their gradient is passed through, so nothing is masked. An attacker who knows the
    directions walks along them, and one who does not is right to see nothing.
    """

    def forward(self, inputs: Tensor) -> Any:
        rounded = (inputs * 16.0).round() / 16.0
        rest = (inputs - rounded).flatten(1)
        logits = self.net(inputs + (rounded - inputs).detach())
        directions = torch.randn(logits.shape[1], rest.shape[1], device=rest.device)
        return logits + 20.0 * rest @ directions.T
