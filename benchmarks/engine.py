"""Time of a training step and of a prediction, by estimator, executor and number of draws.

On a GPU also predictions of a ResNet-18, by executor, rows and precision: by these the planner's rule for drawn filters
can be judged. On a CPU they are left out, which is said.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
from timing import median_ms
from torch import nn

import dubio

WIDTHS = (784, 1200, 1200, 10)
BATCH = 128


def mlp() -> nn.Sequential:
    layers = [layer for a, b in pairwise(WIDTHS) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def training_step(estimator: str, executor: str, num_samples: int, device: torch.device) -> Callable[[], None]:
    inputs, targets = torch.randn(BATCH, WIDTHS[0], device=device), torch.randint(10, (BATCH,), device=device)
    model = dubio.Bayes(estimator=estimator).convert(mlp()).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        draws = dubio.sample(model, inputs, num_samples, executor=executor)
        nll = -draws.log_softmax(dim=-1)[:, range(BATCH), targets].mean()
        optimizer.zero_grad(set_to_none=True)
        (nll + dubio.divergence(model) / 60_000).backward()
        optimizer.step()

    return step


def measure(device: torch.device) -> list[dict[str, Any]]:
    records = []
    print(f"{'-'.join(map(str, WIDTHS))}, batch {BATCH}")
    for estimator, executor, num_samples in product(("local", "weight", "flipout"), ("vmap", "loop"), (1, 10)):
        milliseconds = median_ms(training_step(estimator, executor, num_samples, device), device)
        record = {"what": "training step", "estimator": estimator, "executor": executor, "num_samples": num_samples}
        records.append({**record, "milliseconds": milliseconds})
        print(f"training step  {estimator:<8} {executor:<5} S={num_samples:<4} {milliseconds:8.1f} ms", flush=True)
    images = torch.randn(2_000, WIDTHS[0], device=device)
    model = dubio.Bayes().convert(mlp()).to(device)
    milliseconds = median_ms(lambda: dubio.predict(model, images, 10, keep_samples=False), device, repetitions=3)
    records.append({"what": "predict 2,000 images", "num_samples": 10, "milliseconds": milliseconds})
    print(f"predict 2,000 images          S=10   {milliseconds:8.1f} ms", flush=True)
    if device.type != "cuda":
        print("left out: predictions of a ResNet-18, by executor, rows and precision, which need a GPU", flush=True)
        return records
    return records + convolutions(device)


def convolutions(device: torch.device) -> list[dict[str, Any]]:
    """Predictions of a network whose filters are drawn."""
    records = []
    model = dubio.Bayes().convert(dubio.models.build("resnet18:cifar:3x32x32-10")).to(device)
    for rows, precision, executor in product((32, 128, 512, 1_000, 2_000), ("tf32", "bf16"), ("vmap", "loop", "auto")):
        images = torch.rand(rows, 3, 32, 32, device=device)
        predict = partial(dubio.predict, model, images, 20, keep_samples=False, precision=precision, executor=executor)
        milliseconds = median_ms(predict, device, repetitions=3)
        record = {"what": "predict images of 32x32", "num_samples": 20, "rows": rows, "precision": precision}
        records.append({**record, "executor": executor, "milliseconds": milliseconds})
        print(f"predict {rows:>5} images  {precision}  {executor:<5} {milliseconds:8.1f} ms", flush=True)
    return records
