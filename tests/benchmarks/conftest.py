from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("benchmarks", "scripts"):
        monkeypatch.syspath_prepend(ROOT / folder)


@pytest.fixture
def cpu() -> torch.device:
    return torch.device("cpu")


@pytest.fixture
def record() -> dict[str, Any]:
    """A record by hand: two libraries, one of which fails, a reference, and dubio in two precisions."""
    net = "784-1200-1200-10"

    def one(kind: str, name: str, precision: str, version: str | None = "1.0") -> dict[str, Any]:
        described = {"kind": kind, "name": name, "precision": precision, "library": name, "version": version}
        error = {"slow": 0.25, "broken": "ImportError: no"}.get(name)
        return {**described, "runs": f"{name} runs", "divergence": "closed form", "gradient_error": error}

    def step(contestant: str, num_samples: int, milliseconds: float, peak: float | None) -> dict[str, Any]:
        row = {"net": net, "contestant": contestant, "num_samples": num_samples}
        return {**row, "milliseconds": milliseconds, "peak_mib": peak}

    def predicted(contestant: str, milliseconds: float) -> dict[str, Any]:
        row = {"net": net, "contestant": contestant, "num_samples": 100, "num_images": 10_000}
        return {**row, "milliseconds": milliseconds}

    labels = ("slow, tf32", "slow, bf16", "broken, tf32", "plain, tf32", "dubio, tf32", "dubio, bf16")
    kinds = ("peer", "peer", "peer", "reference", "dubio", "dubio")
    named = {
        label: one(kind, *label.split(", "), version=None if "broken" in label else "1.0")
        for label, kind in zip(labels, kinds, strict=True)
    }
    failed = {"net": net, "contestant": "broken, tf32", "error": "RuntimeError: no"}
    return {
        "settings": {
            "nets": {net: {"commit": "0123456789", "batch": 128, "num_data": 60_000, "draws": [1, 10]}},
            "warm_ups": 5,
            "rows_at_a_time": 1_000,
        },
        "contestants": named,
        "steps": [
            step("slow, tf32", 1, 4.0, 50.0),
            {**failed, "num_samples": 1},
            step("plain, tf32", 1, 0.1, 20.0),
            step("dubio, tf32", 1, 0.25, 40.0),
            step("slow, tf32", 10, 40.0, 300.0),
            step("plain, tf32", 10, 0.1, 20.0),
            step("slow, bf16", 10, 20.0, 250.0),
            {**failed, "num_samples": 10},
            step("dubio, tf32", 10, 0.5, None),
            step("dubio, bf16", 10, 0.25, None),
        ],
        "slopes": [
            {"net": net, "contestant": "slow, tf32", "intercept": 0.0, "slope": 4.0, "r2": 1.0},
            {"net": net, "contestant": "dubio, tf32", "intercept": 0.2, "slope": 0.0278, "r2": 0.99},
        ],
        "predictions": [predicted("slow, tf32", 1234.0), predicted("dubio, bf16", 50.0)],
    }
