"""``predict``: many draws of a network, averaged, with the doubt that is in them.

Every prediction has a seed, drawn where none is given, so that one draw is one function over all inputs and the
prediction can be repeated. Draws run in eval mode; the network's mode is put back afterwards.

Images of a prediction channels last, where a GPU convolves them faster and the network takes it.

A network may not: ``x.view(len(x), -1)`` wants its rows in one piece, and some operators cannot be mapped so. It is
tried on a few rows in either layout, once, and must give the same in the same way; else images stay as they are. The
network itself is not touched: filters are small, and a convolution lays them out as its images lie.

Whether a network gave numbers: outputs are looked at as they come, and asked about as seldom as possible.

On a CPU a NaN is told at once. On other devices each question would wait for all work sent there, so the rows that went
wrong are marked there and asked about once, when the draws are done.
"""

import weakref
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine import (
    STATE,
    Call,
    DoesNotFitError,
    Estimator,
    Executor,
    Inputs,
    Numbers,
    OutputUse,
    Precision,
    Using,
    channels_last,
    check_num_samples,
    check_precision,
    computing_in,
    device_of,
    eval_mode,
    free_memory,
    image_channels,
    is_faster_channels_last,
    is_out_of_memory,
    is_plain,
    map_draws,
    memory_budget,
    new_seed,
    one_draw,
    same_numbers,
    settings_for_run,
    signature,
    stream,
    unchanged,
    warn_of_plain,
)
from dubio.calibrators import Decisions, decisions_of
from dubio.likelihoods import Categorical, Gaussian, Likelihood, likelihood_of, observation_scale, warn_of_probabilities
from dubio.nn import num_members
from dubio.prediction.inputs import (
    MODEST_ROWS,
    WORTH_A_TRIAL,
    Readable,
    RowBlock,
    blocks_of,
    is_in_memory,
    rows_at_a_time,
)
from dubio.prediction.predictive import ClassificationPredictive, Predictive, joined, moved, statistics_for

SHARE_OF_INPUTS = 4
"""Inputs may take a quarter of what a chunk of draws may."""


MOST_READ = 2**30
"""Bytes that are read ahead at most."""


TIMES_CONSUMED = 12
"""Bytes that statistics take for a moment, in float64, for each byte of outputs in float32."""


COPIES_OF_CLASSES, COPIES_OF_REAL = 2, 4
"""Draws that are kept are there as they come and joined; of real targets, means and deviations of the noise."""


@dataclass(frozen=True)
class _PredictRequest:
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
) -> _PredictRequest:
    """The arguments of a prediction, checked and completed by the network's own."""
    _check(num_samples, estimator, batch_size, precision)
    num_samples = min(num_samples, num_members(model) or num_samples)
    own = likelihood_of(model)
    likelihood = own if likelihood is None else likelihood
    if not isinstance(likelihood, Likelihood):
        raise TypeError(f"likelihood must be a Categorical, a Gaussian or a Bernoulli, got {likelihood!r}")
    noisy = STATE.own.settings.mode != "off"
    return _PredictRequest(
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
    model: nn.Module, inputs: Readable, order: _PredictRequest, shared: Collection[int | str], first_row: int = 0
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
    spread = pred.class_variance if isinstance(pred, ClassificationPredictive) else pred.epistemic_std  # type: ignore[attr-defined]
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


def _predict_block(model: nn.Module, block: RowBlock, order: _PredictRequest) -> Predictive:
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


def _predict_laid_out(model: nn.Module, block: RowBlock, order: _PredictRequest, batch_size: int) -> Predictive:
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


def _predict_rows(model: nn.Module, block: RowBlock, order: _PredictRequest, batch_size: int) -> Predictive:
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


def _use(order: _PredictRequest, block: RowBlock, rows: int) -> OutputUse:
    """What becomes of the outputs of a batch: sums of them, and where they are kept, all of them until the end."""
    is_rounded = torch.is_autocast_enabled(block.tensors()[0].device.type)
    consumed = (2 if is_rounded else 1) * TIMES_CONSUMED
    if not order.keep_samples:
        return OutputUse(consumed=consumed)
    copies = COPIES_OF_REAL if isinstance(order.likelihood, Gaussian) else COPIES_OF_CLASSES
    all_rows = block.first_row + block.num_rows
    return OutputUse(0.0, copies * all_rows / rows, consumed, "keep none of the draws (keep_samples=False), ")


def _seed(seed: int | None) -> int:
    if seed is not None:
        return seed
    if STATE.own.settings.seed is not None:
        return int(STATE.own.settings.seed)
    return int(new_seed(2**62))


ROWS_TRIED = 2


SHARE_OF_COPIES = 2
"""A copy of the images may take one part in so many of what a chunk of draws may."""


TOLERANCE = 0.05
"""Of the largest output: algorithms for either layout round in other ways, and in tf32 not all of them do."""


PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
"""Types of arguments beside tensors that say all about themselves."""


_TAKEN: weakref.WeakKeyDictionary[nn.Module, dict[Any, bool]] = weakref.WeakKeyDictionary()


def with_images_laid_out(
    model: nn.Module, block: RowBlock, num_samples: int, seed: int | None, executor: Executor = "auto"
) -> RowBlock:
    """The same rows; images among them channels last, where that is faster and there is room for a copy."""
    settings, tensors = STATE.own.settings, block.tensors()
    device = tensors[0].device
    worthwhile = is_faster_channels_last(device) and block.num_rows * num_samples >= WORTH_A_TRIAL
    limited = settings.memory is not None  # for a run, with nothing beside it
    if not worthwhile or limited or sum(leaf.nbytes for leaf in tensors) > memory_budget(device) // SHARE_OF_COPIES:
        return block
    lay_out = partial(channels_last, channels=image_channels(model))
    few = block.first(ROWS_TRIED)
    laid_out = few.changed(lay_out)
    form = _form(few)
    if form is None or _strides(laid_out) == _strides(few):
        return block
    looped = executor == "loop" or settings.mode == "off"
    modules = tuple(type(module) for module in model.modules())
    key = (form, modules, looped, settings.estimator, torch.is_autocast_enabled(device.type))
    known = _TAKEN.setdefault(model, {})
    taken = known.get(key)
    if taken is None:
        with same_numbers(model):
            taken = _gives_the_same(model, few, laid_out, seed, looped)
    if taken is not None:
        known[key] = taken
    return block.changed(lay_out) if taken else block


def forget_layout(model: nn.Module) -> None:
    """Lay out no images for a network any more: what a trial promised did not come true."""
    _TAKEN[model] = dict.fromkeys(_TAKEN.get(model, {}), False)


def _form(block: RowBlock) -> tuple[Any, ...] | None:
    """What a forward may go by beside numbers: structure, shapes and types of its arguments, and what is no tensor.

    None where there are other things among them, which may change from call to call.
    """
    values = (block.args, block.kwargs)
    is_plain = all(isinstance(leaf, (Tensor, *PLAIN)) for leaf in pytree.tree_leaves(values))
    return signature(values) if is_plain else None


def _gives_the_same(
    model: nn.Module, block: RowBlock, laid_out: RowBlock, seed: int | None, looped: bool
) -> bool | None:
    """None where the network fails as it is: the run itself tells what is wrong, or that nothing is."""
    try:
        expected = _tried(model, block, seed, looped)
    except Exception:
        return None
    try:
        return _are_close(_tried(model, laid_out, seed, looped), expected)
    except Exception as error:
        return None if is_out_of_memory(error) else False


def _tried(model: nn.Module, block: RowBlock, seed: int | None, looped: bool) -> Any:
    """Two mapped draws, or one where they are looped or cannot be mapped."""
    if not looped:
        try:
            with unchanged(model):
                return map_draws(_call(model, block, seed), Numbers(0, 2)).outputs
        except Exception as error:
            if is_out_of_memory(error):
                raise
    with unchanged(model):
        return one_draw(_call(model, block, seed), torch.zeros((), dtype=torch.int64, device="cpu"))[0]


def _call(model: nn.Module, block: RowBlock, seed: int | None) -> Call:
    copied = block.copied()  # a network may change its inputs
    return Call(model, copied.args, copied.kwargs, settings_for_run(seed))


def _are_close(found: Any, expected: Any) -> bool:
    """Whether all tensors agree in shape, mapped draws with mapped ones, and within ``TOLERANCE``."""
    mine, others = _tensors(found), _tensors(expected)
    return len(mine) == len(others) and all(_is_close(*pair) for pair in zip(mine, others, strict=True))


def _is_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    scale = torch.where(other.isfinite(), other.abs(), 0.0).amax()
    return bool(((one == other) | ((one - other).abs() <= TOLERANCE * scale)).all())


def _tensors(values: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(values)
    return [leaf.double() for leaf in leaves if isinstance(leaf, Tensor) and leaf.numel()]


def _strides(block: RowBlock) -> list[tuple[int, ...]]:
    return [leaf.stride() for leaf in block.tensors()]


TOLD_AT_ONCE = ("cpu",)
"""Devices that asking costs nothing."""


class UnsoundError(ValueError):
    """A network gave no numbers."""


class Soundness:
    """Looks at the outputs for some batches, draw by draw; ``first_rows`` tells where each batch begins.

    Minus infinity is a logit of probability zero, but no probability is left where all classes have it: ``class_axis``
    says where classes lie in the output of one draw, of a network that tells any apart.
    """

    def __init__(self, first_rows: list[int], class_axis: int | None = None) -> None:
        self._first_rows, self._class_axis = first_rows, class_axis
        self._bad: dict[int, Tensor] = {}

    def checked(self, number: int, outputs: Any) -> Tensor:
        """The outputs of batch ``number``, in float32 at least.

        Raises:
            TypeError: these are no tensor of floating point numbers.
            UnsoundError: there are NaN or positive infinities among them, or rows without any class that is possible,
                and they are on a CPU.
        """
        if not isinstance(outputs, Tensor):
            raise TypeError(
                f"the network must return a tensor, or an object with .logits, to predict with, "
                f"got {type(outputs).__name__}"
            )
        if not outputs.is_floating_point():
            raise TypeError(f"the network must return floating point outputs, got {outputs.dtype}")
        bad = outputs.isnan() | outputs.isposinf()
        if self._class_axis is not None and 1 - outputs.dim() < self._class_axis < outputs.dim() - 1:
            axis = self._class_axis + 1 if self._class_axis > 0 else self._class_axis
            bad = bad | outputs.isneginf().all(dim=axis, keepdim=True)
        bad = bad.any(dim=0)
        rows = bad.flatten(1).any(dim=1) if bad.dim() > 1 else bad.reshape(-1)
        self._bad[number] = rows | self._bad[number] if number in self._bad else rows
        if outputs.device.type in TOLD_AT_ONCE:
            self.check()
        return outputs.to(torch.promote_types(outputs.dtype, torch.float32))

    def check(self) -> None:
        """Raise where any row went wrong since the last time.

        Raises:
            UnsoundError: it did.
        """
        found, self._bad = self._bad, {}
        if not found or not bool(torch.cat(list(found.values())).any()):
            return
        bad = [
            row + self._first_rows[number]
            for number, rows in found.items()
            for row in rows.nonzero().flatten().tolist()
        ]
        raise UnsoundError(f"the network gave NaN or infinity for inputs without NaN, rows {bad[:5]}")
