"""Time of the second families: Wasserstein logits and training steps, and ensembles trained together.

All on a CPU with two threads, the machine of a practitioner; on a GPU the same on the device.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from timing import alternating_medians_ms, median_ms
from torch import Tensor

import dubio
from dubio import functional

MEMBERS = 5


def measure(device: torch.device) -> list[dict[str, Any]]:
    return [logits(device), head(device), ensemble(device)]


def logits(device: torch.device) -> dict[str, Any]:
    """Forward of all pairs: batch 128, 10 classes, 16 points, 64 dimensions, 50 directions."""
    generator = torch.Generator().manual_seed(0)
    features, classes, noise = (
        torch.randn(*shape, generator=generator).to(device) for shape in ((128, 16, 64), (10, 16, 64), (50, 64))
    )
    directions = functional.wasserstein.unit_directions(noise)
    milliseconds = median_ms(
        lambda: functional.wasserstein.sliced_wasserstein_matrix(features, classes, directions), device, repetitions=50
    )
    print(f"sliced Wasserstein logits, 128 x 10 pairs    {milliseconds:8.2f} ms", flush=True)
    return {"what": "sliced Wasserstein logits", "milliseconds": milliseconds}


def head(device: torch.device, repetitions: int = 7, batch: int = 64) -> dict[str, Any]:
    """A training step of ResNet-18 at 32 x 32, with and without the head."""
    images, labels = torch.rand(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)

    def step_of(method: Any) -> Callable[[], None]:
        torch.manual_seed(0)
        net = dubio.models.build("resnet18", inputs=(3, 32, 32), num_classes=10)
        model = method.convert(net).to(device).train()
        objective = method.objective(50_000)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            total: Tensor = objective(model, images, labels, 1).total
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step

    steps = {"plain": step_of(dubio.Deterministic()), "wasserstein": step_of(dubio.Wasserstein())}
    medians = alternating_medians_ms(steps, device, repetitions, warm_ups=2)
    ratio = medians["wasserstein"] / medians["plain"]
    print(f"training step of ResNet-18 with the head     {medians['wasserstein']:8.2f} ms   {ratio:5.2f}x plain")
    return {"what": "training step of ResNet-18 with a Wasserstein head", "ratio": ratio, **medians}


def ensemble(device: torch.device, epochs: int = 15) -> dict[str, Any]:
    """Five networks for the digits trained in one run, and in five; each three times, in turn."""
    train, test = digits()
    options: Any = {"epochs": epochs, "batch_size": 64, "progress": False, "device": device}
    times: dict[str, list[float]] = {"together": [], "apart": []}
    accuracies: dict[str, list[float]] = {"together": [], "apart": []}
    for seed in range(3):
        torch.manual_seed(seed)
        together = dubio.Ensemble(MEMBERS).convert(dubio.models.build("mlp:64-100-100-10"))
        apart = [dubio.Deterministic().convert(member) for member in together.members]
        start = time.perf_counter()
        dubio.fit(together, train, seed=seed, **options)
        times["together"].append(time.perf_counter() - start)
        start = time.perf_counter()
        for member in apart:
            dubio.fit(member, train, seed=seed, **options)
        times["apart"].append(time.perf_counter() - start)
        gathered = dubio.Ensemble().convert([dubio.to_mean(member) for member in apart])
        for name, model in (("together", together), ("apart", gathered)):
            label = dubio.predict(model, test[0], MEMBERS).label.cpu()
            accuracies[name].append((label == test[1]).float().mean().item())
    medians = {name: statistics.median(own) for name, own in times.items()}
    accuracy = {name: statistics.mean(own) for name, own in accuracies.items()}
    ratio = medians["together"] / medians["apart"]
    print(
        f"five MLPs for the digits in one run          {medians['together']:8.2f} s    {ratio:5.2f}x five runs   "
        f"accuracy {accuracy['together']:.4f} and {accuracy['apart']:.4f}"
    )
    return {"what": "ensemble of five digits MLPs", "seconds": medians, "ratio": ratio, "accuracy": accuracy}


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    from sklearn.datasets import load_digits

    content = load_digits()
    inputs, targets = torch.tensor(content.data / 16.0).float(), torch.tensor(content.target)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    inputs, targets = inputs[order], targets[order]
    return (inputs[:1300], targets[:1300]), (inputs[1300:], targets[1300:])
