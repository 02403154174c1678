"""blitz: networks written with its layers, ``variational_estimator`` and its ``sample_elbo``.

Its layers compute the log-densities of the drawn weights in every forward pass, in predictions, too.
"""

import torch
from torch import Tensor, nn

from peers.contestants import Parts, Peer
from peers.nets import Net, with_layers


def contestants() -> list[Peer]:
    return [
        Peer(
            "blitz",
            "blitz-bayesian-pytorch",
            "BayesianLinear and BayesianConv2d; sample_elbo, a loop over draws, eager",
            "log q - log p of the drawn weights, for each draw; summed, divided by the size of the data",
            _make,
        )
    ]


def _make(net: Net) -> Parts:
    from blitz.modules import BayesianConv2d, BayesianLinear
    from blitz.utils import variational_estimator

    @variational_estimator
    class Network(nn.Sequential):
        """The whole network, as the decorator needs a class."""

    def linear(layer: nn.Linear) -> nn.Module:
        return BayesianLinear(layer.in_features, layer.out_features, bias=layer.bias is not None)

    def convolution(layer: nn.Conv2d) -> nn.Module:
        return BayesianConv2d(
            layer.in_channels,
            layer.out_channels,
            kernel_size=layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            bias=layer.bias is not None,
        )

    model = Network(with_layers(net.plain(), linear, convolution))
    criterion = net.criterion()

    def loss(inputs: Tensor, targets: Tensor, num_samples: int) -> Tensor:
        return model.sample_elbo(inputs, targets, criterion, num_samples, complexity_cost_weight=1.0 / net.num_data)

    return Parts(model, loss, lambda images, num_samples: torch.stack([model(images) for _ in range(num_samples)]))
