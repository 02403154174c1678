"""``predict``: many draws of a network, averaged, with the doubt that is in them.

Every prediction has a seed, drawn where none is given, so that one draw is one function over all inputs and the
prediction can be repeated. Draws run in eval mode; the network's mode is put back afterwards.
"""

import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio.decisions import Decisions, decisions_of
from dubio.layers import num_members
from dubio.likelihoods import Likelihood, likelihood_of, observation_scale
from dubio.prediction.predictive import Predictive, joined
from dubio.prediction.streaming import statistics_for
from dubio.sampling import Estimator, Inputs, Using, arguments, stream
from dubio.sampling.executors import Executor
from dubio.sampling.settings import STATE, check_num_samples

__all__ = ["predict"]

_LOCK = threading.Lock()
_PREDICTING: weakref.WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = weakref.WeakKeyDictionary()


def predict(
    model: nn.Module,
    inputs: Inputs,
    num_samples: int = 100,
    *,
    keep_samples: bool = True,
    estimator: Estimator | None = "weight",
    batch_size: int = 256,
    seed: int | None = None,
    likelihood: Likelihood | None = None,
    shared: Collection[int | str] = (),
    executor: Executor = "auto",
    chunk: int | None = None,
    decisions: bool = True,
) -> Predictive:
    """Predict with ``num_samples`` draws: probabilities, or mean and spread, and what the draws disagree about.

    Args:
        model: a converted network, or any ``nn.Module`` (whose draws are all equal).
        inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments, rows on axis 0. Moved to the
            network's device.
        num_samples: how many draws; of an ensemble, at most its members.
        keep_samples: keep every draw; without, memory does not grow with the number of draws, and quantiles are not to
            be had.
        estimator: ``"weight"`` makes each draw one function for all inputs; ``None`` takes each layer's own.
        batch_size: rows at a time.
        seed: which draws; by default a new seed, reported as ``Predictive.seed``.
        likelihood: what the outputs mean; by default the converted network's, else ``Categorical()``. With another one
            than the network's own, decisions are not applied.
        shared: positions or names of inputs that have no rows and go to every batch whole, such as a mask.
        executor: ``"vmap"``, ``"loop"`` or ``"auto"``.
        chunk: draws at a time; by default as many as memory allows.
        decisions: apply what ``dubio.calibrate``, ``dubio.abstain`` and ``dubio.conformal`` decided, where they did.

    Returns:
        A ``Predictive``: with class probabilities, or with mean and standard deviations.
    """
    if estimator is not None and estimator not in get_args(Estimator):
        raise ValueError(f"estimator must be 'weight', 'local', 'flipout' or None, got {estimator!r}")
    check_num_samples(num_samples)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    num_samples = min(num_samples, num_members(model) or num_samples)
    batches, num_rows = _batches(inputs, batch_size, shared, _device(model))
    own = likelihood_of(model)
    likelihood = own if likelihood is None else likelihood
    if not isinstance(likelihood, Likelihood):
        raise TypeError(f"likelihood must be a Categorical, a Gaussian or a Bernoulli, got {likelihood!r}")

    noisy = STATE.own.settings.mode != "off"
    used_seed = _seed(seed) if noisy else None
    decided = decisions_of(model) if decisions and likelihood == own else Decisions()
    statistics = [statistics_for(likelihood, keep_samples, observation_scale(model), decided) for _ in batches]
    with torch.no_grad(), Using(estimator=estimator), _eval_mode(model):
        draws = stream(
            model,
            batches,
            num_samples if noisy else 1,
            seed=used_seed,
            executor=executor,
            chunk=chunk,
            num_rows=num_rows,
        )
        for number, outputs in draws:
            statistics[number].update(_checked(outputs, number * batch_size))
    return joined([part.finish(used_seed) for part in statistics])


def _batches(
    inputs: Inputs, batch_size: int, shared: Collection[int | str], device: torch.device | None
) -> tuple[list[Inputs], list[int]]:
    args, kwargs = arguments(inputs)
    named: dict[int | str, Any] = dict([*enumerate(args), *kwargs.items()])
    unknown = [name for name in shared if name not in named]
    if unknown:
        raise ValueError(f"shared must name inputs, got {unknown[0]!r} beside inputs {list(named)}")
    split = {name: value for name, value in named.items() if name not in shared}
    rows = [(name, leaf.shape[0] if leaf.dim() else 0) for name, leaf in _tensors(split)]
    if not rows:
        raise ValueError("inputs must hold at least one tensor with rows")
    num_rows = rows[0][1]
    if any(count != num_rows for _, count in rows):
        listed = ", ".join(f"{name!r}: {count}" for name, count in rows)
        raise ValueError(
            f"inputs must have the same number of rows on axis 0, got {{{listed}}}; "
            "name those without rows in shared=(...)"
        )
    if num_rows == 0:
        raise ValueError("inputs must have at least one row, got none")
    for name, leaf in _tensors(named):
        if leaf.is_floating_point() and bool(leaf.isnan().any()):
            bad = leaf.isnan().flatten(1).any(dim=1).nonzero().flatten().tolist() if leaf.dim() > 1 else []
            raise ValueError(
                f"inputs must not hold NaN, got NaN in input {name!r}" + (f", rows {bad[:5]}" if bad else "")
            )

    def part(name: int | str, start: int) -> Any:
        rows = slice(None) if name in shared else slice(start, start + batch_size)
        return pytree.tree_map_only(Tensor, lambda leaf: leaf[rows].to(device), named[name])

    starts = range(0, num_rows, batch_size)
    parts: list[Inputs] = [
        {name: part(name, start) for name in kwargs} if kwargs else tuple(part(i, start) for i in range(len(args)))
        for start in starts
    ]
    return parts, [min(batch_size, num_rows - start) for start in starts]


def _tensors(named: dict[int | str, Any]) -> Iterator[tuple[int | str, Tensor]]:
    for name, value in named.items():
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, Tensor):
                yield name, leaf


def _device(model: nn.Module) -> torch.device | None:
    return next((parameter.device for parameter in model.parameters()), None)


def _seed(seed: int | None) -> int:
    if seed is not None:
        return seed
    if STATE.own.settings.seed is not None:
        return int(STATE.own.settings.seed)
    return int(torch.randint(2**62, ()))


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode while any prediction of this network runs, in whatever thread; the last one out puts its mode back."""
    with _LOCK:
        count, training = _PREDICTING.get(model, (0, []))
        training = training or [module for module in model.modules() if module.training]
        for module in training:
            module.training = False
        _PREDICTING[model] = (count + 1, training)
    try:
        yield
    finally:
        with _LOCK:
            count, training = _PREDICTING.pop(model)
            if count > 1:
                _PREDICTING[model] = (count - 1, training)
            else:
                for module in training:
                    module.training = True


def _checked(outputs: Any, first_row: int) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"the network must return a tensor, or an object with .logits, to predict with, "
            f"got {type(outputs).__name__}"
        )
    if not outputs.is_floating_point():
        raise TypeError(f"the network must return floating point outputs, got {outputs.dtype}")
    bad = outputs.isnan() | outputs.isposinf()
    if bool(bad.any()):
        rows = bad.any(dim=0).reshape(outputs.shape[1], -1).any(dim=1).nonzero().flatten() + first_row
        raise ValueError(f"the network gave NaN or infinity for inputs without NaN, rows {rows.tolist()[:5]}")
    return outputs
