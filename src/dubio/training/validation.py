"""How a network does on data that it does not learn from, while it learns."""

import math
from itertools import islice

import torch
from torch import nn

from dubio import functional
from dubio._engine import Using, run
from dubio.data import Batches
from dubio.likelihoods import Gaussian, likelihood_of, match_shape, observation_scale, without_weights
from dubio.training.processes import ALONE, Processes

__all__ = ["validate"]

VALIDATION_SAMPLES = 10


@torch.no_grad()
def validate(
    model: nn.Module,
    held_out: Batches,
    seed: int,
    device: torch.device,
    num_samples: int = VALIDATION_SAMPLES,
    processes: Processes = ALONE,
) -> dict[str, float]:
    """Negative log-likelihood of the mean prediction (E-14), and accuracy, from the same draws in every epoch.

    Several processes judge batches in turn, and all get the numbers that one process would get.
    """
    likelihood = without_weights(likelihood_of(model))
    sums = {"nll": 0.0, "right": 0.0, "examples": 0.0}
    model.eval()
    for batch in islice(held_out.epoch(0), processes.rank, None, processes.count):
        batch = batch.to(device)
        with Using(estimator="weight"):
            outputs = run(model, batch.inputs, num_samples, seed=seed).outputs
        nll = likelihood.nll(outputs, batch.targets, observation_scale(model))
        sums["nll"] -= (torch.logsumexp(-nll.double(), dim=0) - math.log(len(nll))).sum().item()
        sums["examples"] += len(batch.targets)
        if not isinstance(likelihood, Gaussian):
            labels = functional.uncertainty.predictive_log_probs(likelihood.log_probs(outputs)).argmax(dim=-1)
            sums["right"] += (labels == match_shape(batch.targets, labels.shape)).float().mean().item() * len(
                batch.targets
            )
    model.train()
    parts = processes.gather(sums)
    sums = {name: sum(part[name] for part in parts) for name in sums}
    if sums["examples"] == 0.0:
        raise ValueError("validation must hold at least one example, got none")
    metrics = {"val_nll": sums["nll"] / sums["examples"]}
    if not isinstance(likelihood, Gaussian):
        metrics["val_accuracy"] = sums["right"] / sums["examples"]
    return metrics
