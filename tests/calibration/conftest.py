"""Networks whose logits are their inputs, and targets drawn from what they say."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dubio

CLASSES = 4


@pytest.fixture
def echo() -> Callable[..., nn.Module]:
    """Makes a converted network that gives ``factor`` times its inputs, plus noise where it has any."""

    def make(factor: float = 1.0, method: object | None = None, classes: int = CLASSES) -> nn.Module:
        net = nn.Linear(classes, classes, bias=False)
        with torch.no_grad():
            net.weight.copy_(factor * torch.eye(classes))
        return (method or dubio.Deterministic()).convert(net)  # type: ignore[attr-defined,no-any-return]

    return make


@pytest.fixture
def honest() -> Callable[..., tuple[Tensor, Tensor]]:
    """Makes logits, and targets that are drawn with just these probabilities."""

    def make(count: int = 500, seed: int = 0, spread: float = 2.0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        logits = spread * torch.randn(count, CLASSES, generator=generator)
        return logits, torch.multinomial(logits.softmax(dim=-1), 1, generator=generator).squeeze(-1)

    return make
