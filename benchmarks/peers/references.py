"""What to compare with beside libraries: the plain network, and the fewest lines that draw all weights at once."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dubio.functional.variational import gaussian_kl
from peers.contestants import Parts, Peer
from peers.nets import Net


def contestants() -> list[Peer]:
    return [
        Peer("plain network", "torch", "no noise, eager; S has no meaning", "none", _plain, kind="reference"),
        Peer(
            "vmap by hand",
            "torch",
            "torch.func.vmap over drawn weights, eager; networks without batch statistics only",
            "closed form, once a step; summed over weights, divided by the size of the data",
            _mapped,
            kind="reference",
        ),
    ]


def _plain(net: Net) -> Parts:
    model = net.plain()
    criterion = net.criterion()
    return Parts(
        model,
        lambda inputs, targets, num_samples: criterion(model(inputs), targets),
        lambda images, num_samples: model(images).unsqueeze(0),
    )


def _mapped(net: Net) -> Parts:
    plain = net.plain()
    criterion = net.criterion()
    model = nn.ParameterDict()
    names = {name: name.replace(".", "/") for name, _ in plain.named_parameters()}
    for name, weight in plain.named_parameters():
        model[f"mean/{names[name]}"] = nn.Parameter(weight.detach().clone())
        model[f"rho/{names[name]}"] = nn.Parameter(torch.full_like(weight, -3.0))

    def one_draw(number: Tensor, images: Tensor) -> Tensor:
        weights = {}
        for name, key in names.items():
            mean, std = model[f"mean/{key}"], F.softplus(model[f"rho/{key}"])
            weights[name] = mean + std * torch.randn_like(mean)
        return functional_call(plain, weights, (images,))

    def outputs(images: Tensor, num_samples: int) -> Tensor:
        numbers = torch.arange(num_samples, device=images.device)
        return vmap(one_draw, in_dims=(0, None), randomness="different")(numbers, images)

    def loss(inputs: Tensor, targets: Tensor, num_samples: int) -> Tensor:
        drawn = outputs(inputs, num_samples)
        nll = criterion(drawn.flatten(0, 1), targets.repeat(num_samples, *[1] * (targets.dim() - 1)))
        divergences = [
            gaussian_kl(model[f"mean/{key}"], F.softplus(model[f"rho/{key}"]), 0.0, 1.0).sum() for key in names.values()
        ]
        return nll + torch.stack(divergences).sum() / net.num_data

    return Parts(model, loss, outputs)
