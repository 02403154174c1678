"""Every method on handwritten digits with its own defaults, as ``benchmarks/methods.py`` trains and judges it.

Networks are trained in a process of their own: shapes are checked while tests run, which more than doubles the time
that ``fit`` takes, and it is the user's time that is promised.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dubio.methods import METHODS

pytest.importorskip("sklearn")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SEEDS = (0, 1, 2, 3, 4)
HALVES = {"first half": list(METHODS)[::2], "second half": list(METHODS)[1::2]}
SECONDS = {"ensemble": 30.0, "wasserstein": 20.0}
"""How long ``fit`` may take, where it is not ten seconds. Wasserstein takes seven by its record, and ten when busy."""

TOLERANCE = 0.03
"""How much more than the plain network's the NLL of a method may be: seeds differ by about as much."""
WORSE = {"wasserstein"}
"""Methods whose pages say that they are worse."""

PROGRAM = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import torch, dubio, methods
torch.set_num_threads(2)
dubio.data.load("digits")  # what is imported for it is not timed
for name, fields, seed, num_samples, epochs in json.loads(sys.argv[2]):
    began = time.process_time()
    model, seconds = methods.train(dubio.methods.METHODS[name](**fields), seed, num_samples, epochs)
    seconds = min(seconds, time.process_time() - began)
    print(json.dumps({**methods.judge(model), "seconds": seconds}))
"""


class Order(NamedTuple):
    """A method to train, as ``benchmarks/methods.py`` does it."""

    name: str
    fields: dict[str, float]
    seed: int = 0
    num_samples: int | None = None
    epochs: int | None = None


def trained(orders: list[Order]) -> list[dict[str, Any]]:
    """Scores for each order, and seconds of the clock or of the processor, the fewer: other tests share the cores."""
    command = [sys.executable, "-c", PROGRAM, str(BENCHMARKS), json.dumps(orders)]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return [json.loads(line) for line in finished.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.feature("Every method with its own defaults reaches 0.93 on digits, and but one the plain network's NLL")
@pytest.mark.parametrize("half", HALVES)
def test_methods_learn_digits_with_their_own_defaults(half: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = list(dict.fromkeys([*HALVES[half], "deterministic"]))
    records = dict(zip(names, trained([Order(name, {}) for name in names]), strict=True))
    with capsys.disabled():
        for name, record in records.items():
            print(f"\n{name}: accuracy {record['accuracy']:.4f} in {record['seconds']:.1f} s", end="")  # noqa: T201
    assert {name: record for name, record in records.items() if record["accuracy"] < 0.93} == {}
    assert {name: record for name, record in records.items() if record["seconds"] > SECONDS.get(name, 10.0)} == {}
    level = records["deterministic"]["nll"] + TOLERANCE
    assert {name for name, record in records.items() if record["nll"] > level} <= WORSE


def test_the_page_of_a_method_that_is_worse_than_the_plain_network_says_so() -> None:
    for name in WORSE:
        page = (BENCHMARKS.parent / "docs" / "methods" / f"{name}.md").read_text()
        assert "worse than the plain network** in NLL" in " ".join(page.split())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.feature("Dropout trained with alpha 1 has a better test log-likelihood on digits than with alpha 0")
def test_alpha_one_is_likelier_than_alpha_zero(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten draws for each step, twenty epochs and the same seeds; the gain in standard errors of its mean.

    ``benchmarks/methods.py`` trains for the fifty epochs of the recipe.
    """
    orders = [Order("dropout", {"p": 0.2, "alpha": alpha}, seed, 10, 20) for alpha in (0.0, 1.0) for seed in SEEDS]
    found = [-record["nll"] for record in trained(orders)]
    zero, one = found[: len(SEEDS)], found[len(SEEDS) :]
    gains = [better - worse for better, worse in zip(one, zero, strict=True)]
    error = statistics.stdev(gains) / len(gains) ** 0.5
    with capsys.disabled():
        print(  # noqa: T201
            f"\ntest log-likelihood {statistics.mean(zero):.4f} at alpha 0, {statistics.mean(one):.4f} at alpha 1, "
            f"gain {statistics.mean(gains):.4f} +- {error:.4f}"
        )
    assert statistics.mean(gains) > 4.0 * error
