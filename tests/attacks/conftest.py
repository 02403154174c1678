"""A network for digits, trained once."""

from dataclasses import dataclass

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from networks import mlp


@dataclass(frozen=True)
class Digits:
    """A trained network without a defence, and images it was not trained on."""

    net: nn.Module
    inputs: Tensor
    labels: Tensor


@pytest.fixture(scope="session")
def digits() -> Digits:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
        inputs = (images / 16.0).float()
        net = mlp(64, 100, 100, 10)
        optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
        for _ in range(300):
            rows = torch.randint(1347, (128,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    return Digits(net.eval(), inputs[1347:], labels[1347:])
