"""What dubio adds to a small network: one step of training, one draw, and a prediction of one row, in microseconds.

A network of 16-16-2 computes for some ten microseconds, so that nearly all of the time is that of dubio and of torch's
dispatcher. Times are those of one thread, and the fastest of many turns: other work on the machine can only add to
them. To compare two commits, run this part in a checkout of each, with nothing else running.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import dubio

ROWS, WIDTH, CLASSES = 32, 16, 2
CALLS, TURNS = 50, 40


def fastest_us(work: Callable[[], object]) -> float:
    """The mean of some calls in a row, in the fastest of all turns."""
    for _ in range(CALLS):
        work()
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        for _ in range(CALLS):
            work()
        times.append((time.perf_counter() - start) / CALLS)
    return min(times) * 1e6


def works(estimator: Any) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    inputs, targets = torch.rand(ROWS, WIDTH), torch.arange(ROWS) % CLASSES
    trained, model = (dubio.Bayes(estimator=estimator).convert(net) for _ in range(2))
    model.eval()
    step = dubio.Step(trained, dubio.ELBO(num_data=1000), torch.optim.Adam(trained.parameters()), fast=False)
    return {
        "the plain network": torch.no_grad()(lambda: net(inputs)),
        "a call of the converted network": torch.no_grad()(lambda: model(inputs)),
        "sample, one draw": torch.no_grad()(lambda: dubio.sample(model, inputs)),
        "predict, one row and ten draws": lambda: dubio.predict(model, inputs[:1], 10, seed=0),
        "a step, one draw": lambda: step(inputs, targets),
    }


def measure(device: torch.device) -> list[dict[str, Any]]:
    threads, records = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        for estimator in ("weight", "local"):
            for name, work in works(estimator).items():
                microseconds = fastest_us(work)
                print(f"{estimator:<7} {name:<33} {microseconds:8.0f} us", flush=True)
                records.append({"estimator": estimator, "what": name, "microseconds": microseconds})
    finally:
        torch.set_num_threads(threads)
    return records
