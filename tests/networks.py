"""Small networks that have broken other libraries, by name, each with inputs of a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """A CNN in which a skip connection goes around the noise."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.branch = nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect")
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.stem(x)))
        h = h + F.relu(self.branch(h))
        return self.head(h.mean(dim=(2, 3)))


class Dense(nn.Module):
    """Each layer sees all layers before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.second = nn.Linear(11, 6)
        self.third = nn.Linear(17, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, F.relu(self.first(x))], dim=1)
        x = torch.cat([x, F.relu(self.second(x))], dim=1)
        return self.third(x)


class TwoInputs(nn.Module):
    """Two inputs, one of which meets the noise late."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(5, 6)
        self.right = nn.Linear(3, 6)
        self.head = nn.Linear(12, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head(torch.cat([self.left(left).tanh(), self.right(right).tanh()], dim=-1))


class Attention(nn.Module):
    """One head of attention with an additive mask over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / 6**0.5 + mask
        return self.head((scores.softmax(dim=-1) @ self.value(x)).mean(dim=1))


class Flattening(nn.Module):
    """Reads the batch size as a number before any noise, and reshapes with it after."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3)
        self.head = nn.Linear(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        return self.head(self.conv(x).view(batch, -1))


class Interacting(nn.Module):
    """Rows of the batch see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head((h @ h.T).softmax(dim=-1) @ h)


class InPlace(nn.Module):
    """Adds noise in place to what has none."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 5)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = x * 1.0
        h += self.embed(x)
        return self.head(h)


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(5, 5, bias=False)
        self.decode = nn.Linear(5, 5, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))


class Recurrent(nn.Module):
    """A recurrent layer between two others; ``memory`` can be any that has rows first."""

    def __init__(self, memory: nn.Module | None = None) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 6)
        self.memory = nn.LSTM(6, 6, batch_first=True) if memory is None else memory
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.memory(self.embed(x))
        return self.head(states[:, -1])


class Gate(nn.Module):
    """Goes one way or the other by the value of a number, which a map over draws cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) if x.sum() > 0 else self.right(x)


class Branching(nn.Module):
    """A gate behind the noise: runs looped only."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 6)
        self.gate = Gate()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gate(self.embed(x)))


class Filter(nn.Module):
    """A filter in the frequencies, whose complex parameters cannot become random."""

    def __init__(self, features: int = 5) -> None:
        super().__init__()
        self.response = nn.Parameter(torch.randn(features, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.ifft(torch.fft.fft(x) * self.response).real


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between."""
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@dataclass(frozen=True)
class Case:
    """A network and the inputs it takes for a number of rows."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    rows: int = 6


CASES = {
    "mlp": Case(lambda: mlp(5, 7, 4), lambda rows: torch.randn(rows, 5)),
    "residual cnn": Case(Residual, lambda rows: torch.randn(rows, 3, 8, 8)),
    "dense concatenation": Case(Dense, lambda rows: torch.randn(rows, 5)),
    "two inputs": Case(TwoInputs, lambda rows: (torch.randn(rows, 5), torch.randn(rows, 3))),
    "dict inputs": Case(TwoInputs, lambda rows: {"left": torch.randn(rows, 5), "right": torch.randn(rows, 3)}),
    "attention, mask": Case(Attention, lambda rows: (torch.randn(rows, 3, 6), torch.randn(3, 3))),
    "attention, mask as wide as the batch": Case(
        Attention, lambda rows: (torch.randn(rows, rows, 6), torch.randn(rows, rows))
    ),
    "batch size read early": Case(Flattening, lambda rows: torch.randn(rows, 2, 8)),
    "rows interact": Case(Interacting, lambda rows: torch.randn(rows, 5)),
    "noise added in place": Case(InPlace, lambda rows: torch.randn(rows, 5)),
    "tied weights": Case(Tied, lambda rows: torch.randn(rows, 5)),
    "batch of one": Case(lambda: mlp(5, 7, 4), lambda rows: torch.randn(rows, 5), rows=1),
}
