"""Why the full Glow step fails as input noise, and what mends it: each suspect switched on by itself, and all together.

LeNet with Glow steps before its second convolution and fourth layer, trained as in the paper that reported the failure
(Adam, 2e-4 for weights and 2e-3 for the flow, batch 128, one draw). Suspects: scales of the coupling without a bound,
an actnorm set by the first batch and parametrised by the scale itself, a coupling that does not begin as the identity.
Recorded: whether and when the loss ceases to be finite, the largest factor and loss that were seen, and the end.
"""

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn

import dubio
from dubio import flows
from dubio.layers import FlowNoise
from dubio.layers.flow_steps import ActnormStep, AffineCouplingStep

SEEDS = 3
EPOCHS = 5


@dataclass(frozen=True)
class Suspects:
    """What a Glow step is given back of its usual form."""

    unbounded_scales: bool = False
    actnorm_from_first_batch: bool = False
    coupling_not_identity: bool = False


class RawActnorm(nn.Module):
    """Actnorm by the scale itself, set to the moments of the first batch."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.bias, self.scale = nn.Parameter(values.mean(dim=0)), nn.Parameter(values.std(dim=0))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The image of ``z``, and its log-determinants."""
        return (z - self.bias) / self.scale, (-self.scale.abs().log().sum()).expand(z.shape[:-1])


def bring_back(noise: FlowNoise, suspects: Suspects) -> None:
    """Put the usual forms in the place of ours."""
    values = noise.base.mean + noise.base.std * torch.randn(128, noise.channels)
    for place, step in enumerate(noise.steps):
        if isinstance(step, ActnormStep) and suspects.actnorm_from_first_batch:
            noise.steps[place] = RawActnorm(values)
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
    net = dubio.models.build("lenet", inputs=splits.train.shape, num_classes=10)
    dubio.fit(net, splits.train, epochs=1, lr=2e-3, seed=seed, device=device, progress=False)
    step = flows.GlowStep(bound=1e9 if suspects.unbounded_scales else 2.0)
    glow, affine = flows.Block((flows.Affine(), step, step)), flows.NormalAffine()
    model = dubio.Flow((affine, glow, affine, glow, affine)).convert(net.cpu())
    for module in model.modules():
        if isinstance(module, FlowNoise):
            bring_back(module, suspects)
    seen = {"factor": 0.0, "loss": 0.0, "step": 0}
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
            seen["end"] = metrics["loss"]

        def on_end(self, run: dubio.Run) -> None: ...

    failed = None
    try:
        dubio.fit(
            model, splits.train, epochs=EPOCHS, lr=2e-4, seed=seed, device=device, progress=False, callbacks=(Watch(),)
        )
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
    }


def measure(device: torch.device) -> list[dict[str, Any]]:
    jobs = [
        (Suspects(*switches), seed, str(device))
        for switches in product((False, True), repeat=3)
        for seed in range(SEEDS)
    ]
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), mp_context=get_context("spawn")) as pool:
        records = list(pool.map(train, jobs))
    print("unbounded  first-batch actnorm  no identity   failed  largest factor  largest loss  last loss")
    for place in range(0, len(records), SEEDS):
        group = records[place : place + SEEDS]
        switches = "  ".join(f"{'yes' if value else 'no':>10}" for value in list(group[0].values())[:3])
        figures = [max(record[name] for record in group) for name in ("largest_factor", "largest_loss")]
        ends = [f"{record['last_loss']:.3f}" for record in group]
        failures = sum(record["failed"] is not None for record in group)
        print(
            f"{switches}   {failures} of {SEEDS}  {figures[0]:12.3g}  {figures[1]:12.3g}  {', '.join(ends)}", flush=True
        )
    return records
