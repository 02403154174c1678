"""What a prediction costs: memory that does not grow with the draws, and a Bayesian head for the price of a pass."""

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dubio

PEAK_OF_A_PREDICTION = """
import resource, sys
import torch
from torch import nn
import dubio

torch.set_num_threads(1)
torch.manual_seed(0)
num_samples, rows, width, classes, chunk = (int(argument) for argument in sys.argv[1:])
net = nn.Sequential(
    nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
)
inputs = torch.rand(rows, 784)
options = {"executor": "vmap", "chunk": chunk} if chunk else {}
pred = dubio.predict(dubio.Bayes().convert(net), inputs, num_samples, keep_samples=False, seed=0, **options)
assert pred.samples is None and pred.num_samples == num_samples and pred.probs.shape == (rows, classes)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def peak_mib(num_samples: int, rows: int, width: int, classes: int = 10, chunk: int = 0) -> float:
    """Peak resident memory of a fresh process that predicts once, in MiB; ``chunk=0`` leaves the plan to the engine.

    Large blocks go back to the system at once: what glibc would keep of them varies by 30 MiB from run to run.
    """
    command = [sys.executable, "-c", PEAK_OF_A_PREDICTION, *map(str, (num_samples, rows, width, classes, chunk))]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
    finished = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=400)
    return float(finished.stdout)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature("prediction without kept samples takes no more memory for 200 draws than for 20")
def test_memory_does_not_grow_with_the_number_of_draws(capsys: pytest.CaptureFixture[str]) -> None:
    # Two batches of rows; many classes rather than many rows, which would draw the weights as many times.
    few, many = (peak_mib(num_samples, rows=300, width=800, classes=160) for num_samples in (20, 200))
    with capsys.disabled():
        print(f"\npeak RSS: {few:.1f} MiB with 20 draws, {many:.1f} with 200, difference {many - few:.1f}")  # noqa: T201
    assert many - few < 8  # 32 is promised; the draws themselves would take 33, less what a first try hides


@pytest.mark.slow
def test_memory_of_a_mapped_prediction_does_not_grow_with_the_number_of_draws() -> None:
    # 3,000 draws of 256 rows and 40 hidden units at once would take 117 MiB per layer.
    few, many = (peak_mib(num_samples, rows=256, width=40, chunk=100) for num_samples in (300, 3_000))
    assert many - few < 8


class Block(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for 32x32 inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        widths = [64, 64, 128, 256, 512]
        stages = [
            nn.Sequential(Block(before, after, 1 if after == 64 else 2), Block(after, after, 1))
            for before, after in itertools.pairwise(widths)
        ]
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stages(self.stem(x)).mean(dim=(2, 3)))


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature("a hundred draws of a Bayesian head on a ResNet-18 cost at most 1.3 plain passes")
def test_a_bayesian_head_costs_about_one_pass(capsys: pytest.CaptureFixture[str]) -> None:
    net = ResNet18().eval()
    model = dubio.Bayes(where="fc").convert(net)
    inputs = torch.randn(64, 3, 32, 32)

    def plain() -> None:
        with torch.no_grad():
            net(inputs)

    def bayesian() -> None:
        pred = dubio.predict(model, inputs, num_samples=100, seed=0)
        assert pred.num_samples == 100
        assert pred.mutual_information.max() > 0

    plain()
    bayesian()
    times = [(seconds(plain), seconds(bayesian)) for _ in range(7)]
    one_pass, prediction = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = prediction / one_pass
    with capsys.disabled():
        print(  # noqa: T201
            f"\nplain pass {one_pass * 1e3:.0f} ms, 100 draws {prediction * 1e3:.0f} ms, ratio {ratio:.2f}"
        )
    assert ratio <= 1.3
