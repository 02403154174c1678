"""Every method on handwritten digits with its own defaults, as ``benchmarks/methods.py`` trains and judges it."""

import importlib.util
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import dubio
from dubio.methods import METHODS

pytest.importorskip("sklearn")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "methods.py"
SECONDS = {"ensemble": 30.0}
"""How long ``fit`` may take, where it is not ten seconds."""


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_of_methods", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dubio.data.load("digits")  # what is imported for it is not timed
    return module


@pytest.fixture
def _two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_two_threads")
@pytest.mark.feature("Every method with its own defaults reaches 0.93 on the embedded digits, in ten seconds")
@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_digits_with_its_own_defaults(
    name: str, benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seconds are those of the clock or of the processor, whichever are fewer: other tests share the cores."""
    accuracies, seconds = [], []
    for seed in benchmark.SEEDS:
        began = time.process_time()
        model, elapsed = benchmark.train(METHODS[name](), seed)
        seconds.append(min(elapsed, time.process_time() - began))
        accuracies.append(benchmark.judge(model)["accuracy"])
    with capsys.disabled():
        print(f"\n{name}: accuracy {statistics.mean(accuracies):.4f}, at most {max(seconds):.1f} s")  # noqa: T201
    assert statistics.mean(accuracies) >= 0.93, accuracies
    assert max(seconds) <= SECONDS.get(name, 10.0), seconds


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.feature("Dropout trained with alpha 1 has a better test log-likelihood on digits than with alpha 0")
def test_alpha_one_is_likelier_than_alpha_zero(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten draws for each step, the same seeds: the mean over five, and the difference in its standard errors."""
    zero, one = (
        [
            -benchmark.judge(benchmark.train(dubio.Dropout(alpha=alpha), seed, benchmark.ALPHA_DRAWS)[0])["nll"]
            for seed in benchmark.ALPHA_SEEDS
        ]
        for alpha in (0.0, 1.0)
    )
    gains = [better - worse for better, worse in zip(one, zero, strict=True)]
    error = statistics.stdev(gains) / len(gains) ** 0.5
    with capsys.disabled():
        print(  # noqa: T201
            f"\ntest log-likelihood {statistics.mean(zero):.4f} at alpha 0, {statistics.mean(one):.4f} at alpha 1, "
            f"gain {statistics.mean(gains):.4f} +- {error:.4f}"
        )
    assert statistics.mean(gains) > 4.0 * error
