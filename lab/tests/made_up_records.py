"""Records of experiments that were never run, for tests of what is made from them."""

from typing import Any

from dubio_lab import Cell, Curve, ExperimentSpec, Measured, Result

__all__ = ["record", "spec_of"]


def spec_of(num_metrics: int = 2, name: str = "made-up", **changed: Any) -> ExperimentSpec:
    """A spec of two cells, one of which has published numbers, and two seeds."""
    metrics = {f"metric_{number}": f"what is measured, number {number}" for number in range(num_metrics)}
    fields: dict[str, Any] = {
        "name": name,
        "title": "A table that nobody printed",
        "source": "Nobody 1900, Table 0",
        "protocol": "none",
        "metrics": metrics,
        "seeds": (0, 1),
        "cells": (Cell("first", {}, {"metric_0": 2.5}), Cell("second")),
        "curves": {"rise": "error in percent, by epoch", "fall": "share of the rest"},
    }
    return ExperimentSpec(**{**fields, **changed})


def record(spec: ExperimentSpec, cell: str, seed: int, value: float = 1.0, **changed: Any) -> Result:
    """A record whose metrics are ``value`` and whose curves begin there."""
    fields: dict[str, Any] = {
        "spec": spec.name,
        "digest": next((spec.digest_of(one) for one in spec.cells if one.name == cell), "of no cell"),
        "cell": cell,
        "seed": seed,
        "variant": "full",
        "settings": {},
        "metrics": {metric: Measured(value) for metric in spec.metrics},
        "curves": {name: Curve((0.0, 1.0, 2.0), (value, value + 1.0, value + 4.0)) for name in spec.curves},
        "notes": {},
        "published": {},
        "source": spec.source,
        "attempts": 1,
        "seconds": 600.4,
        "commit": "0123456789abcdef",
        "versions": {"torch": "2.11.0"},
        "hardware": "a machine",
    }
    return Result(**{**fields, **changed})
