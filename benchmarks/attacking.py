"""Time of PGD over many draws at once against one draw after another: 20 steps, 20 draws, 64-100-100-10."""

import time
from typing import Any
from unittest import mock

import torch

import dubio
from dubio.attacks import target as target_module
from dubio.attacks.gradient import PGD

STEPS, DRAWS = 20, 20


def seconds(model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor, executor: str) -> float:
    attack = PGD(epsilon=0.1, steps=STEPS, num_samples=DRAWS, seed=0)
    run = target_module.run
    times = []
    with mock.patch.object(
        target_module, "run", lambda *args, **options: run(*args, **{**options, "executor": executor})
    ):
        for _ in range(4):
            began = time.perf_counter()
            attack(model, inputs, labels, progress=False)
            times.append(time.perf_counter() - began)
    return min(times[1:])


def measure(device: torch.device) -> list[dict[str, Any]]:
    records = []
    print(f"PGD, {STEPS} steps, {DRAWS} draws, 64-100-100-10")
    for estimator in ("local", "weight"):
        torch.manual_seed(0)
        model = dubio.Bayes(estimator=estimator).convert(dubio.models.mlp(64, 100, 100, 10)).to(device)
        for count in (32, 128, 450):
            inputs, labels = torch.rand(count, 64, device=device), torch.randint(10, (count,), device=device)
            together, looped = (seconds(model, inputs, labels, executor) for executor in ("auto", "loop"))
            record = {"what": "PGD", "estimator": estimator, "images": count, "seconds": together, "looped": looped}
            records.append(record)
            print(
                f"{estimator:<7} {count:>4} images  together {together:6.3f} s  looped {looped:6.3f} s  "
                f"{looped / together:4.1f}x",
                flush=True,
            )
    return records
