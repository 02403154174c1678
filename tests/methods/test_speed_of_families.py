"""Measured claims about the second families, with room for a busy machine; ``benchmarks/families.py`` measures them."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]  # the user's time is what is promised
ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    import families

    yield families
    torch.set_num_threads(threads)


def test_all_pairs_of_clouds_take_milliseconds(families: ModuleType) -> None:
    """At most 3 ms where nothing else runs."""
    assert families.logits(CPU)["milliseconds"] < 9.0


def test_the_head_adds_little_to_a_step_of_a_resnet(families: ModuleType) -> None:
    """At most 1.3 times the plain step where nothing else runs."""
    assert families.head(CPU, repetitions=3, batch=32)["ratio"] < 1.6


def test_members_train_faster_together_and_as_well(families: ModuleType) -> None:
    """At most 0.6 of the time of five runs where nothing else runs."""
    record = families.ensemble(CPU, epochs=8)
    assert record["ratio"] < 0.85
    assert abs(record["accuracy"]["together"] - record["accuracy"]["apart"]) < 0.01
