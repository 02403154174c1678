"""Why the full Glow step fails as input noise, and what mends it: each suspect switched on by itself, and all together.

LeNet with Glow steps before its second convolution and fourth layer, trained as in the paper that reported the failure
(Adam, 2e-4 for weights and 2e-3 for the flow, batch 128, one draw). Suspects: scales of the coupling without a bound,
an actnorm set by the first batch and parametrised by the scale itself, a coupling that does not begin as the identity,
and a 1x1 convolution whose permutation is trained with the rest while its log-determinant takes it for a permutation.
Recorded: whether and when the loss ceases to be finite, the largest factor and loss that were seen, and the end.
"""

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn

import dubio
from dubio import flows
from dubio.layers import FlowNoise
from dubio.layers.flow_steps import ActnormStep, AffineCouplingStep, LuMixingStep

SEEDS = 2
COUNT = 12_800
EPOCHS = 30


@dataclass(frozen=True)
class Suspects:
    """What a Glow step is given back of its usual form."""

    unbounded_scales: bool = False
    actnorm_from_first_batch: bool = False
    coupling_not_identity: bool = False
    permutation_trained: bool = False


class RawActnorm(nn.Module):
    """Actnorm by the scale itself, set to the moments of the first batch."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.bias, self.scale = nn.Parameter(values.mean(dim=0)), nn.Parameter(values.std(dim=0))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The image of ``z``, and its log-determinants."""
        return (z - self.bias) / self.scale, (-self.scale.abs().log().sum()).expand(z.shape[:-1])


class TrainedPermutation(nn.Module):
    """A 1x1 convolution whose permutation is a parameter, and whose log-determinant does not know."""

    def __init__(self, step: LuMixingStep) -> None:
        super().__init__()
        self.step = step
        self.matrix = nn.Parameter(torch.eye(len(step.permutation)))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The image of ``z``, and what is taken for its log-determinants."""
        mixed, log_det = self.step(z)
        return mixed @ self.matrix.mT, log_det


def bring_back(noise: FlowNoise, suspects: Suspects) -> None:
    """Put the usual forms in the place of ours."""
    values = noise.base.mean + noise.base.std * torch.randn(128, noise.channels)
    for place, step in enumerate(noise.steps):
        if isinstance(step, ActnormStep) and suspects.actnorm_from_first_batch:
            noise.steps[place] = RawActnorm(values)
        if isinstance(step, LuMixingStep) and suspects.permutation_trained:
            noise.steps[place] = TrainedPermutation(step)
        if isinstance(step, AffineCouplingStep) and suspects.coupling_not_identity:
            for layer in step.conditioner:
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        with torch.no_grad():
            values = noise.steps[place](values)[0]


def train(job: tuple[Suspects, int, str]) -> dict[str, Any]:
    suspects, seed, device = job
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    splits = dubio.data.load("fashionmnist")
    assert splits.train is not None
    few = splits.train[range(COUNT)]
    net = dubio.models.build("lenet", inputs=splits.train.shape, num_classes=10)
    dubio.fit(net, few, epochs=3, lr=2e-3, seed=seed, device=device, progress=False)
    step = flows.GlowStep(bound=1e9 if suspects.unbounded_scales else 2.0)
    glow, affine = flows.Block((flows.Affine(), step, step)), flows.NormalAffine()
    model = dubio.Flow((affine, glow, affine, glow, affine)).convert(net.cpu())
    for module in model.modules():
        if isinstance(module, FlowNoise):
            bring_back(module, suspects)
    seen = {"loss": 0.0, "step": 0}
    watched = [module for module in model.modules() if isinstance(module, AffineCouplingStep)]
    largest = torch.zeros((), device=device)

    def watch(module: nn.Module, args: Any, output: tuple[Tensor, Tensor]) -> None:
        largest.copy_(torch.maximum(largest, output[0].detach().abs().max()))

    for module in watched:
        module.register_forward_hook(watch)

    class Watch:
        def on_step(self, number: int, loss: dubio.Loss) -> None:
            seen["step"], seen["loss"] = number, max(seen["loss"], loss.total.item())

        def on_epoch(self, metrics: dict[str, float]) -> None:
            seen["end"], seen["divergence"] = metrics["loss"], metrics["divergence"]

        def on_end(self, run: dubio.Run) -> None: ...

    failed = None
    try:
        dubio.fit(model, few, epochs=EPOCHS, lr=2e-4, seed=seed, device=device, progress=False, callbacks=(Watch(),))
    except FloatingPointError as error:
        failed = str(error)
    return {
        **asdict(suspects),
        "seed": seed,
        "failed": failed,
        "steps": seen["step"],
        "largest_factor": largest.item(),
        "largest_loss": seen["loss"],
        "last_loss": seen.get("end", math.nan),
        "last_divergence": seen.get("divergence", math.nan),
    }


def measure(device: torch.device) -> list[dict[str, Any]]:
    names = [field.name for field in fields(Suspects)]
    tried = [Suspects(), *(Suspects(**{name: True}) for name in names), Suspects(*(True for _ in names))]
    jobs = [(suspects, seed, str(device)) for suspects in tried for seed in range(SEEDS)]
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), mp_context=get_context("spawn")) as pool:
        records = list(pool.map(train, jobs))
    print("brought back                     failed  steps  largest factor  largest loss  last loss  last divergence")
    for record in records:
        back = [name for name in names if record[name]]
        label = "all" if len(back) == len(names) else ", ".join(back) or "nothing"
        figures = [record[name] for name in ("largest_factor", "largest_loss", "last_loss", "last_divergence")]
        shown = "  ".join(f"{figure:12.4g}" for figure in figures)
        print(f"{label:<32} {'yes' if record['failed'] else 'no':>6}  {record['steps']:5}  {shown}", flush=True)
    return records
