"""Fewer channels are faster, in a process of its own with one thread."""

import json
import os
import subprocess
import sys

import pytest

HALVED = """
import json, statistics, time
import torch
from torch import nn
import dubio

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 49, 10),
)
images = torch.rand(64, 1, 28, 28)
whole = dubio.Bayes(estimator="weight").convert(net).eval()
half = dubio.Bayes(estimator="weight").convert(net).eval()
record = dubio.prune(half, 0.5, what="units", each_layer=True, example=images)
seconds = {"whole": [], "half": []}
with torch.no_grad():
    for turn in range(23):
        for name, model in (("whole", whole), ("half", half)):
            began = time.perf_counter()
            model(images)
            seconds[name] += [time.perf_counter() - began] if turn > 2 else []
units = [layer.units_after for layer in record.per_layer.values()]
print(json.dumps({"units": units, **{name: statistics.median(own) for name, own in seconds.items()}}))
"""


@pytest.mark.slow
@pytest.mark.feature("A CNN with half its channels runs at least 1.8 times as fast")
def test_half_the_channels_are_at_least_1_8_times_as_fast(capsys: pytest.CaptureFixture[str]) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [sys.executable, "-c", HALVED], env=environment, check=True, capture_output=True, text=True
    )
    found = json.loads(finished.stdout)
    assert found["units"] == [16, 16, 32, 10]
    ratio = found["whole"] / found["half"]
    with capsys.disabled():
        print(f"\nhalf the channels: {ratio:.2f} times as fast (median of 20)")  # noqa: T201
    assert ratio >= 1.8
