"""Time of an epoch through ``dubio.fit``, as a user has it: data, noise, updates and metrics included.

Two settings: a Bayesian MLP 784-800-800-10 on MNIST, batch 128, ten draws a step; and adversarial training of a
ResNet-18 on CIFAR-10 by PGD with seven steps, batch 512, bf16, shifted and mirrored images. Where the data are not
there, random images of their number and size stand in, which take the same time; the record and its name say so. Epochs
from the third on count; what compiling and recording the step took is given apart. Needs a GPU.
"""

import statistics
from itertools import pairwise
from typing import Any

import torch

import dubio
from dubio.data.batches import CropAndFlip, Loader
from dubio.data.examples import Examples

SIZES = {"mnist": (60_000, 1, 28), "cifar10": (50_000, 3, 32)}
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


def measure(device: torch.device) -> list[dict[str, Any]]:
    if device.type != "cuda":
        raise SystemExit("fitting needs a GPU: its epochs take hours on a CPU")
    return [mnist_epoch(device), adversarial_epoch(device)]


def mnist_epoch(device: torch.device, epochs: int = 10, num_examples: int | None = None) -> dict[str, Any]:
    examples, source = training_data("mnist", num_examples)
    torch.manual_seed(0)
    net = dubio.models.build("fc:800-800", inputs=examples.shape, num_classes=10)
    model = dubio.Bayes(estimator="local").convert(net).to(device)
    run = dubio.fit(model, examples, epochs=epochs, batch_size=128, num_samples=10, precision="tf32", progress=False)
    return record(
        f"784-800-800-10 on {data_in_words('mnist', source)}, local, S=10, batch 128, tf32", source, examples, run
    )


def adversarial_epoch(device: torch.device, epochs: int = 6, num_examples: int | None = None) -> dict[str, Any]:
    examples, source = training_data("cifar10", num_examples)
    torch.manual_seed(0)
    method = dubio.Deterministic()
    model = method.convert(dubio.models.build("resnet18", inputs=examples.shape, num_classes=10)).to(device)
    attack = dubio.attacks.PGD(epsilon=8 / 255, steps=7, step_size=2 / 255, num_samples=1)
    run = dubio.fit(
        model,
        Loader(examples, 512, augment=CropAndFlip(), device=device),
        objective=dubio.Adversarial(method.objective(len(examples)), attack, weight=0.0, label="true"),
        epochs=epochs,
        lr=0.1,
        weight_decay=5e-4,
        optimizer=lambda groups: torch.optim.SGD(groups, momentum=0.9),
        precision="bf16",
        progress=False,
    )
    return record(
        f"PGD-7 training of ResNet-18 on {data_in_words('cifar10', source)}, batch 512, bf16", source, examples, run
    )


def training_data(name: str, num_examples: int | None) -> tuple[Examples, str]:
    """The data themselves, or random ones of their number and size."""
    try:
        train = dubio.data.load(name, validation=0).train
        if train is not None:
            return (train if num_examples is None else train[torch.arange(num_examples)]), name
    except FileNotFoundError:
        pass
    count, channels, side = SIZES[name]
    count = num_examples or count
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, channels, side, side), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (count,), generator=generator)
    return Examples(images, labels, tuple("0123456789")), "random images"


def data_in_words(name: str, source: str) -> str:
    """What was learned from: the data that were meant, or images as large."""
    side = SIZES[name][-1]
    return NAMES[name] if source == name else f"{side}x{side} images"


def record(what: str, source: str, examples: Examples, run: dubio.FitResult) -> dict[str, Any]:
    ends = [0.0, *(epoch["seconds"] for epoch in run.history)]
    seconds = [after - before for before, after in pairwise(ends)]
    how = f"{run.mode}, since {run.reason}" if run.reason else run.mode
    found = {
        "what": what,
        "data": source,
        "num_examples": len(examples),
        "how": how,
        "seconds": statistics.median(seconds[2:]),
        "every_epoch": seconds,
        "capture_seconds": run.capture_seconds,
        "metrics": dict(run.history[-1]),
    }
    shown = f"{found['seconds']:.3f} s an epoch (median of 3 to {len(seconds)})"
    print(f"{what}: {shown}, {how}, {run.capture_seconds:.1f} s to compile and record", flush=True)
    return found
