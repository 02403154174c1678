"""``predict``: many draws of a network, averaged, with the doubt that is in them.

Every prediction has a seed, drawn where none is given, so that one draw is one function over all inputs and the
prediction can be repeated. Draws run in eval mode; the network's mode is put back afterwards.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import get_args

import torch
from torch import nn

from dubio._engine import (
    STATE,
    DoesNotFitError,
    Estimator,
    Executor,
    Inputs,
    Precision,
    Use,
    Using,
    check_num_samples,
    check_precision,
    computing_in,
    device_of,
    eval_mode,
    free_memory,
    is_out_of_memory,
    is_plain,
    memory_budget,
    new_seed,
    stream,
    warn_of_plain,
)
from dubio.calibrators import Decisions, decisions_of
from dubio.likelihoods import Categorical, Gaussian, Likelihood, likelihood_of, observation_scale, warn_of_probabilities
from dubio.nn import num_members
from dubio.prediction.layout import forget_layout, with_images_laid_out
from dubio.prediction.predictive import ClassPredictive, Predictive, joined, moved
from dubio.prediction.reading import Block, Readable, blocks_of, is_in_memory
from dubio.prediction.sizing import MODEST_ROWS, rows_at_a_time
from dubio.prediction.soundness import Soundness, UnsoundError
from dubio.prediction.streaming import statistics_for

__all__ = ["predict", "predict_batches"]

SHARE_OF_INPUTS = 4
"""Inputs may take a quarter of what a chunk of draws may."""
MOST_READ = 2**30
"""Bytes that are read ahead at most."""
TIMES_CONSUMED = 12
"""Bytes that statistics take for a moment, in float64, for each byte of outputs in float32."""
COPIES_OF_CLASSES, COPIES_OF_REAL = 2, 4
"""Draws that are kept are there as they come and joined; of real targets, means and deviations of the noise."""


@dataclass(frozen=True)
class _Order:
    """What was asked for, whatever the rows."""

    num_samples: int
    keep_samples: bool
    batch_size: int | None
    seed: int | None
    likelihood: Likelihood
    executor: Executor
    chunk: int | None
    decisions: Decisions
    estimator: Estimator | None
    precision: Precision


def predict(
    model: nn.Module,
    inputs: Readable,
    num_samples: int = 100,
    *,
    keep_samples: bool = True,
    estimator: Estimator | None = "weight",
    batch_size: int | None = None,
    precision: Precision = "fp32",
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
        inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments, rows on axis 0; or data to
            read, which need not fit into memory: an array, ``dubio.data.Examples``, a ``Dataset`` or loader of
            ``(inputs, targets)`` or of inputs alone, or an iterable of batches, each what ``inputs`` can be itself.
            Moved to the network's device; of data that were read, the prediction is on the CPU.
        num_samples: how many draws; of an ensemble, at most its members.
        keep_samples: keep every draw; without, memory does not grow with the number of draws, and quantiles are not to
            be had.
        estimator: ``"weight"`` makes each draw one function for all inputs; ``None`` takes each layer's own.
        batch_size: rows at a time; by default as many as memory allows. It changes nothing but rounding.
        precision: ``"fp32"``, ``"tf32"`` or ``"bf16"`` (autocast), for the network alone: the prediction is made from
            its outputs in float32 at least.
        seed: which draws; by default a new seed, reported as ``Predictive.seed``.
        likelihood: what the outputs mean; by default the converted network's, else ``Categorical()``. With another one
            than the network's own, decisions are not applied.
        shared: positions or names of inputs that have no rows and go to every batch whole, such as a mask.
        executor: ``"vmap"``, ``"loop"`` or ``"auto"``.
        chunk: draws at a time, at most; by default as many as memory allows.
        decisions: apply what ``dubio.calibrate``, ``dubio.abstain`` and ``dubio.conformal`` decided, where they did.

    Returns:
        A ``Predictive``: with class probabilities, or with mean and standard deviations.
    """
    order = _order(
        model,
        num_samples=num_samples,
        keep_samples=keep_samples,
        estimator=estimator,
        batch_size=batch_size,
        precision=precision,
        seed=seed,
        likelihood=likelihood,
        executor=executor,
        chunk=chunk,
        decisions=decisions,
    )
    return _warned(model, joined([part for part, _ in _parts(model, inputs, order, shared)]))


def predict_batches(
    model: nn.Module,
    batches: Iterable[Inputs],
    num_samples: int = 100,
    *,
    keep_samples: bool = True,
    estimator: Estimator | None = "weight",
    precision: Precision = "fp32",
    seed: int | None = None,
    executor: Executor = "auto",
    decisions: bool = True,
) -> Iterator[Predictive]:
    """Predict one batch after the other, for data whose predictions do not fit into memory.

    All batches meet the same draws, so that the predictions are those that ``predict`` gives for all rows together.

    Args:
        model: as for ``predict``.
        batches: batches of inputs, each a tensor, a tuple or a dict, in the order of their rows.
        num_samples: how many draws.
        keep_samples: keep every draw, as quantiles and intervals need.
        estimator: as for ``predict``.
        precision: as for ``predict``.
        seed: which draws; by default a new seed.
        executor: as for ``predict``.
        decisions: apply what ``dubio.calibrate``, ``dubio.abstain`` and ``dubio.conformal`` decided.

    Yields:
        The ``Predictive`` of each batch, on the CPU.
    """
    order = _order(
        model,
        num_samples=num_samples,
        keep_samples=keep_samples,
        estimator=estimator,
        batch_size=None,
        precision=precision,
        seed=seed,
        likelihood=None,
        executor=executor,
        chunk=None,
        decisions=decisions,
    )
    first_row = 0
    for batch in batches:
        parts = list(_parts(model, batch, order, (), first_row))
        first_row += sum(num_rows for _, num_rows in parts)
        yield moved(_warned(model, joined([part for part, _ in parts])), torch.device("cpu"))


def _order(
    model: nn.Module,
    *,
    num_samples: int,
    keep_samples: bool,
    estimator: Estimator | None,
    batch_size: int | None,
    precision: Precision,
    seed: int | None,
    likelihood: Likelihood | None,
    executor: Executor,
    chunk: int | None,
    decisions: bool,
) -> _Order:
    """The arguments of a prediction, checked and completed by the network's own."""
    _check(num_samples, estimator, batch_size, precision)
    num_samples = min(num_samples, num_members(model) or num_samples)
    own = likelihood_of(model)
    likelihood = own if likelihood is None else likelihood
    if not isinstance(likelihood, Likelihood):
        raise TypeError(f"likelihood must be a Categorical, a Gaussian or a Bernoulli, got {likelihood!r}")
    noisy = STATE.own.settings.mode != "off"
    return _Order(
        num_samples=num_samples if noisy else 1,
        keep_samples=keep_samples,
        batch_size=batch_size,
        seed=_seed(seed) if noisy else None,
        likelihood=likelihood,
        executor=executor,
        chunk=chunk,
        decisions=decisions_of(model) if decisions and likelihood == own else Decisions(),
        estimator=estimator,
        precision=precision,
    )


def _parts(
    model: nn.Module, inputs: Readable, order: _Order, shared: Collection[int | str], first_row: int = 0
) -> Iterator[tuple[Predictive, int]]:
    """Predictions of a block of rows after the other, and how many rows each has."""
    device = device_of(model)
    at_work = device or torch.device("cpu")
    for block in blocks_of(inputs, shared, device, _limit(inputs, at_work)):
        placed = replace(block, first_row=first_row + block.first_row)
        with (
            torch.no_grad(),
            Using(estimator=order.estimator),
            computing_in(order.precision, at_work),
            eval_mode(model),
        ):
            part = _predict_block(model, placed, order)
        yield (part if is_in_memory(inputs) else moved(part, torch.device("cpu"))), block.num_rows


def _warned(model: nn.Module, pred: Predictive) -> Predictive:
    """The prediction, after a warning where nothing in the network is random."""
    if pred.num_samples > 1 and is_plain(model) and _draws_are_equal(pred):
        warn_of_plain(model, f"all {pred.num_samples} draws are equal and no uncertainty of the network is seen")
    return pred


def _draws_are_equal(pred: Predictive) -> bool:
    if pred.samples is not None:
        return torch.equal(pred.samples, pred.samples[:1].expand_as(pred.samples))
    spread = pred.class_variance if isinstance(pred, ClassPredictive) else pred.epistemic_std  # type: ignore[attr-defined]
    return not bool(spread.any())


def _check(num_samples: int, estimator: str | None, batch_size: int | None, precision: str) -> None:
    if estimator is not None and estimator not in get_args(Estimator):
        raise ValueError(f"estimator must be 'weight', 'local', 'flipout' or None, got {estimator!r}")
    check_num_samples(num_samples)
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    check_precision(precision)


def _limit(inputs: Readable, device: torch.device) -> int:
    """Bytes of inputs to hold at a time."""
    share = memory_budget(device) // SHARE_OF_INPUTS
    return share if is_in_memory(inputs) else min(share, MOST_READ)


def _predict_block(model: nn.Module, block: Block, order: _Order) -> Predictive:
    """All draws for the rows of one block; where nobody said how many at a time, half of them where memory is short."""
    rows = order.batch_size or rows_at_a_time(model, block, order.num_samples, order.seed)
    while True:
        try:
            return _predict_laid_out(model, block, order, rows)
        except Exception as error:
            is_short = is_out_of_memory(error) or isinstance(error, DoesNotFitError)
            if order.batch_size is not None or rows == 1 or not is_short:
                raise
        # Outside of the handler, where nothing refers to the failed run any more.
        free_memory()
        rows = max(1, min(rows, block.num_rows) // 2)


def _predict_laid_out(model: nn.Module, block: Block, order: _Order, batch_size: int) -> Predictive:
    """All draws for the rows of one block; its images as the device takes them fastest, unless the network fails so."""
    laid_out = with_images_laid_out(model, block, order.num_samples, order.seed, order.executor)
    try:
        return _predict_rows(model, laid_out, order, batch_size)
    except Exception as error:
        no_matter_of_layout = is_out_of_memory(error) or isinstance(error, DoesNotFitError | UnsoundError)
        if laid_out is block or no_matter_of_layout:
            raise
    forget_layout(model)
    return _predict_rows(model, block, order, batch_size)


def _predict_rows(model: nn.Module, block: Block, order: _Order, batch_size: int) -> Predictive:
    """All draws for the rows of one block as they lie."""
    batches, num_rows = block.batches(batch_size)
    on_cpu = block.tensors()[0].device.type == "cpu"
    statistics = [
        statistics_for(order.likelihood, order.keep_samples, observation_scale(model), order.decisions) for _ in batches
    ]
    class_axis = order.likelihood.class_axis if isinstance(order.likelihood, Categorical) else None
    soundness = Soundness(list(accumulate(num_rows, initial=block.first_row)), class_axis)
    draws = stream(
        model,
        batches,
        order.num_samples,
        seed=order.seed,
        executor=order.executor,
        chunk=order.chunk,
        num_rows=num_rows,
        first_row=block.first_row,
        trial=block.rows(0, MODEST_ROWS) if on_cpu and num_rows[0] > MODEST_ROWS else None,
        use=_use(order, block, num_rows[0]),
    )
    for place, (number, outputs) in enumerate(draws):
        checked = soundness.checked(number, outputs)
        if place == 0 and block.first_row == 0 and on_cpu:  # elsewhere the question would wait for the device
            warn_of_probabilities(checked, order.likelihood)
        statistics[number].update(checked)
    soundness.check()
    return joined([part.finish(order.seed) for part in statistics])


def _use(order: _Order, block: Block, rows: int) -> Use:
    """What becomes of the outputs of a batch: sums of them, and where they are kept, all of them until the end."""
    is_rounded = torch.is_autocast_enabled(block.tensors()[0].device.type)
    consumed = (2 if is_rounded else 1) * TIMES_CONSUMED
    if not order.keep_samples:
        return Use(consumed=consumed)
    copies = COPIES_OF_REAL if isinstance(order.likelihood, Gaussian) else COPIES_OF_CLASSES
    all_rows = block.first_row + block.num_rows
    return Use(0.0, copies * all_rows / rows, consumed, "keep none of the draws (keep_samples=False), ")


def _seed(seed: int | None) -> int:
    if seed is not None:
        return seed
    if STATE.own.settings.seed is not None:
        return int(STATE.own.settings.seed)
    return int(new_seed(2**62))
