"""``calibrate``: a temperature, or a scale and a bias for each class, that makes held-out targets most probable (E-66).

Invariants (T-67, ``tests/deciding/test_calibrating.py``): a temperature leaves the accuracy as it is, the
negative log-likelihood on the validation data does not grow, and logits multiplied by s give a temperature s times as
large.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dubio import functional
from dubio.conversion import change_spec, spec
from dubio.deciding.held_out import predict_held_out
from dubio.decisions import Calibration, DecisionWarning, Temperature, VectorScaling

__all__ = ["calibrate"]

LARGEST_TEMPERATURE = 20.0
"""Temperatures lie between this and its inverse."""
NEAR_THE_EDGE = 0.95
"""Share of the way, in logarithms, from which a temperature counts as being at the edge."""
RIDGE = 1e-3
"""Price of a vector scaling's departure from the identity, which keeps it finite where classes are few or separable."""
ITERATIONS = 100


def calibrate(
    model: nn.Module,
    validation: Any,
    *,
    kind: Literal["temperature", "vector"] = "temperature",
    per_draw: bool = False,
    num_samples: int = 100,
    batch_size: int = 256,
    seed: int = 0,
) -> Calibration:
    """Find how much milder or sharper predictions should be, and keep it with the network: ``predict`` applies it.

    It changes ``predict`` alone: ``sample``, training and attacks work with the network as it is. A threshold and sets
    found before are dropped, with a warning, since they were found on other probabilities.

    Args:
        model: a converted network that tells classes apart; its record is changed.
        validation: data that it neither learned from nor is judged on, in any form that ``fit`` takes.
        kind: ``"temperature"``, one number, which never changes a label; or ``"vector"``, a scale and a bias for each
            class, which may, and needs many examples of each.
        per_draw: a temperature on the probabilities of each draw, before averaging; keeps all draws in memory.
        num_samples: how many draws; predict with about as many.
        batch_size: rows at a time.
        seed: which draws.

    Returns:
        The ``Temperature`` or ``VectorScaling``, also found as ``dubio.spec(model).calibration``.

    Raises:
        ValueError: the network was judged on these data.
    """
    if kind not in ("temperature", "vector"):
        raise ValueError(f"kind must be 'temperature' or 'vector', got {kind!r}")
    if kind == "vector" and per_draw:
        raise ValueError("per_draw goes with kind='temperature'; kind='vector' works on the mean prediction")
    held_out = predict_held_out(
        model,
        validation,
        asked_by="calibrate",
        num_samples=num_samples,
        batch_size=batch_size,
        seed=seed,
        decisions=False,
        keep_samples=per_draw,
    )
    found = held_out.predictive
    log_probs = found.samples if per_draw else found.log_probs
    assert log_probs is not None
    targets = held_out.targets.flatten()
    exact = log_probs.double().flatten(1 if per_draw else 0, -2)
    calibration: Calibration
    if kind == "vector":
        calibration = VectorScaling(*_fit_vector(exact, targets), held_out.fingerprint)
    else:
        calibration = Temperature(_fit_temperature(exact, targets, per_draw), per_draw, held_out.fingerprint)
        _warn_at_the_edge(calibration, bool(held_out.correct.all()))
    _keep(model, calibration)
    return calibration


def _fit_temperature(
    log_probs: Float[Tensor, "*sample example class"], targets: Int[Tensor, " example"], per_draw: bool
) -> float:
    """The temperature of least negative log-likelihood, and never one of a larger than 1 has."""
    scaled = functional.scaled_mixture if per_draw else functional.scaled_log_probs

    def nll(temperature: Tensor) -> Tensor:
        return functional.class_nll(scaled(log_probs, temperature), targets)

    free = torch.zeros((), dtype=torch.float64, device=log_probs.device, requires_grad=True)
    _minimise(lambda: nll(functional.bounded_temperature(free, LARGEST_TEMPERATURE)), [free])
    with torch.no_grad():
        best = functional.bounded_temperature(free, LARGEST_TEMPERATURE)
        return best.item() if nll(best) <= nll(torch.ones_like(best)) else 1.0


def _fit_vector(
    log_probs: Float[Tensor, "example class"], targets: Int[Tensor, " example"]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    scale = torch.ones(log_probs.shape[-1], dtype=torch.float64, device=log_probs.device, requires_grad=True)
    bias = torch.zeros_like(scale, requires_grad=True)

    def cost() -> Tensor:
        scaled = functional.vector_scaled_log_probs(log_probs, scale, bias)
        return functional.class_nll(scaled, targets) + RIDGE * functional.departure_from_identity(scale, bias)

    _minimise(cost, [scale, bias])
    return tuple(scale.tolist()), tuple(bias.tolist())


def _minimise(cost: Callable[[], Tensor], parameters: list[Tensor]) -> None:
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=ITERATIONS, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        loss = cost()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)


def _warn_at_the_edge(found: Temperature, all_right: bool) -> None:
    if abs(math.log(found.temperature)) < NEAR_THE_EDGE * math.log(LARGEST_TEMPERATURE):
        return
    why = "every validation example is predicted rightly, so a lower temperature always looks better; " * all_right
    warnings.warn(
        f"the temperature went to the edge of what is allowed, {found.temperature:.3g}: {why}"
        "use more validation examples, or forget it with dubio.forget_decisions(model)",
        DecisionWarning,
        stacklevel=3,
    )


def _keep(model: nn.Module, calibration: Calibration) -> None:
    record = spec(model)
    dropped = [name for name in ("threshold", "sets") if getattr(record, name) is not None]
    change_spec(model, calibration=calibration, threshold=None, sets=None)
    if dropped:
        warnings.warn(
            f"calibrating changes probabilities, so the {' and '.join(dropped)} found before no longer hold and were "
            "dropped; find them again with dubio.abstain or dubio.conformal",
            DecisionWarning,
            stacklevel=3,
        )
