"""Who takes part on which device and network, and with how many draws."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dubio.sampling.precision import Precision
from peers import of_bayesian_torch, of_blitz, of_torch_uncertainty, of_torchbayesian, references
from peers.contestants import Contestant, Peer
from peers.nets import Net
from peers.ours import Ours

DRAWS = {"cuda": (1, 2, 5, 10, 20, 50, 100), "cpu": (1, 10)}
MAIN_DRAWS = (1, 10, 100)
PREDICTION_DRAWS = {"cuda": 100, "cpu": 10}


@dataclass(frozen=True)
class Entry:
    """A contestant, the numbers of draws that it trains with, and whether it predicts."""

    contestant: Contestant
    draws: tuple[int, ...]
    predicts: bool = True


def entries(net: Net, device: torch.device, draws: Sequence[int]) -> list[Entry]:
    """All that take part, peers first. What differs only in precision trains with 1, 10 and 100 draws only."""
    every = tuple(draws)
    some = tuple(number for number in draws if number in MAIN_DRAWS) or every
    whole: Precision = "tf32" if device.type == "cuda" else "fp32"
    plain, mapped = references.contestants()
    libraries = peers()
    found = [Entry(replace(peer, precision=whole), every) for peer in libraries]
    found += [Entry(replace(plain, precision=whole), every[:1], predicts=False)]
    if "resnet" not in net.name:
        found += [Entry(replace(mapped, precision=whole), every)]
    half = [Entry(replace(peer, precision="bf16"), tuple(n for n in some if n == 10)) for peer in libraries]
    if device.type == "cuda":
        ours = [
            Entry(Ours("local", "tf32"), every),
            Entry(Ours("local", "bf16"), some),
            Entry(Ours("local", "fp32"), some, predicts=False),
            Entry(Ours("weight", "tf32"), every if net.name == "784-1200-1200-10" else some, predicts=False),
            Entry(Ours("weight", "bf16"), some, predicts=False),
        ]
        return [*found, *half, *ours]
    ours = [
        Entry(Ours("local", fast=False), every),
        Entry(Ours("weight", fast=False), every, predicts=False),
        Entry(Ours("local", fast=True), some, predicts=False),
        Entry(Ours("weight", fast=True), some, predicts=False),
    ]
    if not has_bf16():
        return [*found, *ours]
    ours += [Entry(Ours("local", "bf16", fast=False), some), Entry(Ours("local", "bf16", fast=True), some, False)]
    return [*found, *half, *ours]


def peers() -> list[Peer]:
    """The libraries, each by its documented fastest path."""
    modules = (of_bayesian_torch, of_torch_uncertainty, of_torchbayesian, of_blitz)
    return [peer for module in modules for peer in module.contestants()]


def has_bf16() -> bool:
    """Whether this CPU multiplies bf16 numbers itself."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
