"""torchbayesian: a network wrapped in ``BayesianModule``, a loop over draws, and ``kl_divergence()`` once a step."""

import torch
from torch import Tensor

from peers.contestants import Parts, Peer
from peers.nets import Net


def contestants() -> list[Peer]:
    return [
        Peer(
            "torchbayesian",
            "torchbayesian",
            "BayesianModule; draws in a loop, eager; scales and shifts of norms are random, too",
            "closed form, once a step; summed over weights, divided by the size of the data",
            _make,
        )
    ]


def _make(net: Net) -> Parts:
    from torchbayesian import bnn

    model = bnn.BayesianModule(net.plain())
    criterion = net.criterion()

    def loss(inputs: Tensor, targets: Tensor, num_samples: int) -> Tensor:
        nll = torch.stack([criterion(model(inputs), targets) for _ in range(num_samples)]).mean()
        return nll + model.kl_divergence() / net.num_data

    return Parts(model, loss, lambda images, num_samples: torch.stack([model(images) for _ in range(num_samples)]))
