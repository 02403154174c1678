"""Who takes part on which device and network, and with how many draws."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dubio._engine.precision import Precision
from peers import of_bayesian_torch, of_blitz, of_torch_uncertainty, of_torchbayesian, references
from peers.contestants import Contestant, Peer
from peers.nets import Net
from peers.ours import Ours

DRAWS = {"cuda": (1, 2, 5, 10, 20, 50, 100), "cpu": (1, 10)}
MAIN_DRAWS = (1, 10, 100)
FEW_DRAWS = (1, 10)
PREDICTION_DRAWS = {"cuda": 100, "cpu": 10}
MAIN_NET = "784-1200-1200-10"


@dataclass(frozen=True)
class Entry:
    """A contestant, the numbers of draws that it trains with, and whether it predicts."""

    contestant: Contestant
    draws: tuple[int, ...]
    predicts: bool = True


def default_draws(net: Net, device: torch.device) -> tuple[int, ...]:
    """Numbers of draws; a step of the ResNet with a hundred takes seconds, and minutes to build."""
    return (1, 10) if "resnet" in net.name else DRAWS[device.type]


def entries(net: Net, device: torch.device, draws: Sequence[int]) -> list[Entry]:
    """All that take part: libraries, references, both in bf16 with few draws, and dubio."""
    every = tuple(draws)
    few = tuple(number for number in draws if number in FEW_DRAWS)
    whole: Precision = "tf32" if device.type == "cuda" else "fp32"
    plain, mapped = references.contestants()
    by_hand = [] if "resnet" in net.name else [mapped]
    found = [Entry(replace(peer, precision=whole), every) for peer in peers()]
    found += [Entry(replace(plain, precision=whole), every[:1], predicts=False)]
    found += [Entry(replace(reference, precision=whole), every) for reference in by_hand]
    if device.type == "cuda" or has_bf16():
        found += [Entry(replace(one, precision="bf16"), few) for one in (*peers(), *by_hand)]
    return [*found, *(_on_gpu(net, every) if device.type == "cuda" else _on_cpu(every))]


def _on_gpu(net: Net, draws: tuple[int, ...]) -> list[Entry]:
    """Local reparameterisation with all numbers of draws; what else there is with few, since each is compiled anew."""
    some = tuple(number for number in draws if number in MAIN_DRAWS)
    ten = tuple(number for number in draws if number == 10)
    found = [
        Entry(Ours("local", "tf32"), draws),
        Entry(Ours("weight", "tf32"), some, predicts=False),
        Entry(Ours("local", "bf16"), some),
    ]
    if net.name != MAIN_NET:
        return found
    return [*found, Entry(Ours("weight", "bf16"), some, False), Entry(Ours("local", "fp32"), ten, False)]


def _on_cpu(draws: tuple[int, ...]) -> list[Entry]:
    """Both estimators, eager; compiled with ten draws."""
    ten = tuple(number for number in draws if number == 10)
    found = [
        Entry(Ours("local", fast=False), draws),
        Entry(Ours("weight", fast=False), draws, predicts=False),
        Entry(Ours("local", fast=True), ten, predicts=False),
        Entry(Ours("weight", fast=True), ten, predicts=False),
    ]
    if not has_bf16():
        return found
    return [*found, Entry(Ours("local", "bf16", False), draws), Entry(Ours("local", "bf16", True), ten, False)]


def peers() -> list[Peer]:
    """The libraries, each by its documented fastest path."""
    modules = (of_bayesian_torch, of_torch_uncertainty, of_torchbayesian, of_blitz)
    return [peer for module in modules for peer in module.contestants()]


def has_bf16() -> bool:
    """Whether this CPU multiplies bf16 numbers itself."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
