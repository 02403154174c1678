"""Time of a training step of LeNet with noise on its inputs, against plain LeNet: S = 1, batch 128, 28x28.

On a GPU both steps are compiled and captured in a CUDA graph, so that what is compared is the work itself; on a CPU
they run as ``dubio.fit`` runs them.
"""

from collections.abc import Callable
from typing import Any

import torch
from timing import alternating_medians_ms
from torch import Tensor, nn

import dubio

BATCH = 128
METHODS: dict[str, Any] = {
    "plain": None,
    "dropout": dubio.Dropout(),
    "input noise": dubio.InputNoise(),
    "flow": dubio.Flow(),
}


def training_step(method: Any, device: torch.device) -> Callable[[], None]:
    torch.manual_seed(0)
    net = dubio.models.build("lenet", inputs=(1, 28, 28), num_classes=10)
    model: nn.Module = (net if method is None else method.convert(net)).to(device)
    objective = dubio.ELBO(60_000) if method is None else method.objective(60_000)
    images = torch.rand(BATCH, 1, 28, 28, device=device)
    labels = torch.randint(10, (BATCH,), device=device)
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=on_gpu, fused=on_gpu)

    def loss() -> Tensor:
        total: Tensor = objective(model, images, labels, 1).total
        return total

    # Static shapes: what was compiled for another method would make them dynamic.
    compute = torch.compile(loss, dynamic=False, fullgraph=True) if on_gpu else loss

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        compute().backward()
        optimizer.step()

    return captured(step) if on_gpu else step


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(alive: Callable[[], None] = step) -> None:  # the graph reads what the step holds
        graph.replay()

    return replay


def measure(device: torch.device) -> list[dict[str, Any]]:
    steps = {name: training_step(method, device) for name, method in METHODS.items()}
    medians = alternating_medians_ms(steps, device)
    records = []
    print(f"LeNet, batch {BATCH}, S = 1, {'captured' if device.type == 'cuda' else 'eager'} training step")
    for name, milliseconds in medians.items():
        ratio = milliseconds / medians["plain"]
        records.append({"what": "training step", "method": name, "milliseconds": milliseconds, "ratio": ratio})
        print(f"{name:<12} {milliseconds:8.3f} ms   {ratio:5.2f}x plain", flush=True)
    return records
