"""Whether a library's loss of two draws has the gradient that it should: the mean of the gradients of each draw alone.

A layer that keeps its noise in one buffer and writes the next draw over it before the backward pass fails here: the
gradient of its standard deviations is that of another loss. Its times are what they are; its memory is less.
"""

import torch
from torch import Tensor

from peers.contestants import Parts, Peer
from peers.nets import TINY


def gradient_error(peer: Peer) -> float:
    """Norm of the difference between the gradient of two draws and the mean of both, over the norm of that mean."""
    net = TINY["8-16-3"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts = peer.make(net)
        inputs, targets = net.batch_of_data(torch.device("cpu"))
        torch.manual_seed(1)
        first = _gradient(parts, inputs, targets, 1)
        second = _gradient(parts, inputs, targets, 1)  # goes on where the generator is
        torch.manual_seed(1)
        both = _gradient(parts, inputs, targets, 2)
    mean = (first + second) / 2
    return float((both - mean).norm() / mean.norm())


def _gradient(parts: Parts, inputs: Tensor, targets: Tensor, num_samples: int) -> Tensor:
    parts.model.zero_grad(set_to_none=True)
    parts.loss(inputs, targets, num_samples).backward()
    return torch.cat([p.grad.flatten().clone() for p in parts.model.parameters() if p.grad is not None])
