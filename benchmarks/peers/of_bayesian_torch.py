"""bayesian-torch: ``dnn_to_bnn``, a loop over draws, and ``get_kl_loss`` once a step, as its front page has it.

Its layers return a divergence with each output, too; converted by ``dnn_to_bnn`` they do not, which is faster.
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from peers.contestants import Parts, Peer
from peers.nets import Net

Layers = Literal["Reparameterization", "Flipout"]


def contestants() -> list[Peer]:
    divergence = "closed form, once a step; the mean over each tensor's weights, divided by the batch size"
    loop = "dnn_to_bnn(type={!r}); draws in a loop, eager"
    return [
        Peer(name, "bayesian-torch", loop.format(layers), divergence, partial(_make, layers))
        for name, layers in (("bayesian-torch", "Reparameterization"), ("bayesian-torch flipout", "Flipout"))
    ]


def _make(layers: Layers, net: Net) -> Parts:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    model = net.plain()
    dnn_to_bnn(
        model,
        {
            "prior_mu": 0.0,
            "prior_sigma": 1.0,
            "posterior_mu_init": 0.0,
            "posterior_rho_init": -3.0,
            "type": layers,
            "moped_enable": False,
            "moped_delta": 0.5,
        },
    )
    criterion = net.criterion()

    def loss(inputs: Tensor, targets: Tensor, num_samples: int) -> Tensor:
        nll = torch.stack([criterion(model(inputs), targets) for _ in range(num_samples)]).mean()
        return nll + get_kl_loss(model) / net.batch

    return Parts(model, loss, lambda images, num_samples: torch.stack([model(images) for _ in range(num_samples)]))
