"""Why the full Glow step fails as input noise: each suspect brought back by itself, all together, and all but one.

A block of an affine and four Glow steps is trained as the noise before a linear classifier, its divergence at full
weight (Adam, 2e-3 for the flow and 2e-4 for the classifier, batches of 128, 16 channels). Suspects: scales of the
coupling without a bound, an actnorm set by the first batch and parametrised by the scale itself, a coupling that does
not begin as the identity, and a 1x1 convolution whose permutation is trained with the rest while its log-determinant
still takes it for a permutation.

A divergence cannot be negative: where its estimate falls below zero and goes on falling, the log-determinant is not
that of the map. Beside it stands the estimate with the log-determinant of what was a permutation counted in.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from dubio import flows
from dubio._engine.passes import Pass
from dubio._engine.settings import Settings
from dubio.nn.flow import ActnormStep, AffineCouplingStep, FlowNoise, LuMixingStep
from dubio.priors import Normal

CHANNELS, DEPTH, BATCH, STEPS, SEEDS = 16, 4, 128, 1_000, 3


@dataclass(frozen=True)
class Suspects:
    """What a Glow step is given back of its usual forms."""

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


def missed_log_det(noise: FlowNoise) -> float:
    """Log-determinants of what are no permutations any more, which the flow leaves out."""
    matrices = [step.matrix.detach() for step in noise.steps if isinstance(step, TrainedPermutation)]
    return sum(torch.linalg.slogdet(matrix).logabsdet.item() for matrix in matrices)


def bring_back(noise: FlowNoise, suspects: Suspects) -> None:
    """Put the usual forms in the place of ours."""
    values = noise.base.mean + noise.base.std * torch.randn(BATCH, noise.channels)
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


def train(suspects: Suspects, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    step = flows.GlowStep(bound=1e9 if suspects.unbounded_scales else 2.0)
    block = flows.Block((flows.Affine(), *(step,) * DEPTH))
    around_one = Normal(1.0, 0.5)
    noise = FlowNoise(CHANNELS, -1, around_one, block=block, base=around_one, sum_positions=False)
    bring_back(noise, suspects)
    classifier = nn.Linear(CHANNELS, 10)
    groups = [{"params": noise.parameters(), "lr": 2e-3}, {"params": classifier.parameters(), "lr": 2e-4}]
    optimizer = torch.optim.Adam(groups)
    inputs, labels = torch.rand(BATCH, CHANNELS), torch.randint(10, (BATCH,))
    run = Pass(Settings(), collecting=("divergence",))
    least, least_true, largest, divergence, failed = math.inf, math.inf, 0.0, math.nan, None
    for number in range(1, STEPS + 1):
        factors, log_ratio, _ = noise.draw_rows(
            run, (BATCH, CHANNELS), torch.float32, torch.device("cpu"), (True, False)
        )
        assert log_ratio is not None
        loss = nn.functional.cross_entropy(classifier(inputs * factors), labels) + log_ratio.mean()
        if not math.isfinite(loss.item()):
            failed = number
            break
        divergence = log_ratio.mean().item()
        least, largest = min(least, divergence), max(largest, factors.abs().max().item())
        least_true = min(least_true, divergence - missed_log_det(noise))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {
        **asdict(suspects),
        "seed": seed,
        "failed_at_step": failed,
        "least_divergence": least,
        "least_true_divergence": least_true,
        "last_divergence": divergence,
        "largest_factor": largest,
    }


def told(suspects: Suspects) -> str:
    """Which of them are brought back, in words."""
    back = [name for name, is_back in asdict(suspects).items() if is_back]
    kept = [name for name, is_back in asdict(suspects).items() if not is_back]
    if not kept:
        return "all of them"
    return f"all but {kept[0]}" if len(kept) == 1 else ", ".join(back) or "nothing"


def measure(device: torch.device) -> list[dict[str, Any]]:
    names = [field.name for field in fields(Suspects)]
    alone = [Suspects(**{name: name == one for name in names}) for one in names]
    all_but = [Suspects(**{name: name != one for name in names}) for one in names]
    figures = ("least_divergence", "least_true_divergence", "last_divergence", "largest_factor")
    print(f"{'brought back':<32} seed  not finite at step  {'  '.join(f'{figure:>21}' for figure in figures)}")
    records = []
    for suspects in [Suspects(), *alone, *all_but, Suspects(**dict.fromkeys(names, True))]:
        label = told(suspects)
        for seed in range(SEEDS):
            record = train(suspects, seed)
            records.append(record)
            shown = "  ".join(f"{record[figure]:21.4g}" for figure in figures)
            print(f"{label:<32} {seed:4}  {record['failed_at_step'] or '-':>18}  {shown}", flush=True)
    return records
