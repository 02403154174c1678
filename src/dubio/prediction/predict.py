"""``predict``: many draws of a network, averaged, with their uncertainty.

Every prediction has a seed, drawn if none is given, so that one draw is one function over all inputs and the prediction
can be repeated. Draws run in eval mode; the network's mode is restored afterwards.

Images are laid out channels last where a GPU convolves them faster and the network accepts it. Some do not:
``x.view(len(x), -1)`` needs its rows in one piece, and some operators cannot be mapped in this layout. So the network
is tried once on a few rows in either layout, and must give the same outputs in the same way; otherwise images stay as
they are. The network itself is not changed: filters are small, and a convolution follows the layout of its images.

Outputs are checked for NaN and infinity as they come. On a CPU an error is raised at once. On other devices each check
would wait for all work sent there, so that the rows are marked there and checked once, when the draws are done.
"""

import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine import (
    STATE,
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
    image_channels,
    is_faster_channels_last,
    is_out_of_memory,
    is_plain,
    isolated,
    map_draws,
    memory_budget,
    new_seed,
    one_draw,
    same_numbers,
    signature,
    stream,
    tensors_in,
    warn_of_plain,
    with_less_memory,
)
from dubio.calibrators import Decisions, decisions_of
from dubio.likelihoods import Categorical, Gaussian, Likelihood, likelihood_of, observation_scale, warn_of_probabilities
from dubio.nn import num_members
from dubio.prediction.inputs import WORTH_A_TRIAL, Readable, RowBlock, blocks_of, rows_at_a_time
from dubio.prediction.predictive import ClassificationPredictive, Predictive, joined, moved, statistics_for

SHARE_OF_INPUTS = 4
"""Inputs may take a quarter of what a chunk of draws may."""
MOST_READ = 2**30
"""Bytes that are read ahead at most."""
TIMES_CONSUMED = 12
"""Bytes that statistics take for a moment, in float64, for each byte of outputs in float32."""
COPIES_OF_CLASSES, COPIES_OF_REAL = 2, 4
"""Copies of draws that are kept: the chunks and their concatenation; of real targets, means and deviations."""
ROWS_TRIED = 2
SHARE_OF_COPIES = 2
"""A copy of the images may take one part in so many of what a chunk of draws may."""
TOLERANCE = 0.05
"""Of the largest output: algorithms for either layout round differently, and some of them in tf32."""
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
"""Types of arguments beside tensors that are compared by value."""
CHECKED_AT_ONCE = ("cpu",)
"""Devices on which reading a value costs nothing."""

_LAYOUTS: weakref.WeakKeyDictionary[nn.Module, dict[Any, bool]] = weakref.WeakKeyDictionary()
"""Whether a network accepts images channels last, by how it is called."""


@dataclass(frozen=True)
class _PredictRequest:
    """The options of a prediction, whatever the rows."""

    num_samples: int
    keep_samples: bool
    batch_size: int | None
    seed: int | None
    likelihood: Likelihood
    executor: Executor
    chunk: int | None
    estimator: Estimator | None
    precision: Precision
    decisions: Decisions


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
    """Predict with ``num_samples`` draws: probabilities, or mean and spread, and how much the draws disagree.

    Args:
        model: a converted network, or any ``nn.Module`` (whose draws are all equal).
        inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments, rows on axis 0; or data to
            read, which need not fit into memory: an array, ``dubio.data.Examples``, a ``Dataset`` or loader of
            ``(inputs, targets)`` or of inputs alone, or an iterable of batches, each what ``inputs`` can be itself.
            They are moved to the network's device. The prediction for data that are read is on the CPU.
        num_samples: how many draws; of an ensemble, at most its members.
        keep_samples: keep every draw. Otherwise memory does not grow with the number of draws, and quantiles are not
            available.
        estimator: ``"weight"`` makes each draw one function for all inputs; ``None`` takes each layer's own.
        batch_size: rows at a time; by default as many as memory allows. It changes nothing but rounding.
        precision: ``"fp32"``, ``"tf32"`` or ``"bf16"`` (autocast), for the network alone: the prediction is made from
            its outputs in float32 at least.
        seed: which draws; by default a new seed, reported as ``Predictive.seed``.
        likelihood: what the outputs mean; by default the converted network's, else ``Categorical()``. Decisions are
            not applied with a likelihood that differs from the network's.
        shared: positions or names of inputs that have no rows and go to every batch whole, such as a mask.
        executor: ``"vmap"``, ``"loop"`` or ``"auto"``.
        chunk: draws at a time, at most; by default as many as memory allows.
        decisions: apply what ``dubio.calibrate``, ``dubio.abstain`` and ``dubio.conformal`` decided, where they did.

    Returns:
        A ``Predictive``: with class probabilities, or with mean and standard deviations.
    """
    likelihood = likelihood_of(model) if likelihood is None else likelihood
    options = num_samples, keep_samples, batch_size, seed, likelihood, executor, chunk, estimator, precision
    parts = list(_parts(model, inputs, _checked(model, _PredictRequest(*options, Decisions()), decisions), shared))
    return _checked_for_noise(model, joined([part for part, _ in parts]))


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
    options = num_samples, keep_samples, None, seed, likelihood_of(model), executor, None, estimator, precision
    request = _checked(model, _PredictRequest(*options, Decisions()), decisions)
    first_row = 0
    for batch in batches:
        parts = list(_parts(model, batch, request, (), first_row))
        first_row += sum(num_rows for _, num_rows in parts)
        yield moved(_checked_for_noise(model, joined([part for part, _ in parts])), torch.device("cpu"))


def _checked(model: nn.Module, request: _PredictRequest, decisions: bool) -> _PredictRequest:
    """The arguments of a prediction, checked, with the defaults of the network."""
    if request.estimator is not None and request.estimator not in get_args(Estimator):
        raise ValueError(f"estimator must be 'weight', 'local', 'flipout' or None, got {request.estimator!r}")
    num_samples, seed, settings = request.num_samples, request.seed, STATE.own.settings
    check_num_samples(num_samples)
    if request.batch_size is not None and request.batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {request.batch_size}")
    check_precision(request.precision)
    num_samples = min(num_samples, num_members(model) or num_samples)
    if not isinstance(request.likelihood, Likelihood):
        raise TypeError(f"likelihood must be a Categorical, a Gaussian or a Bernoulli, got {request.likelihood!r}")
    if settings.mode == "off":
        num_samples, seed = 1, None
    elif seed is None:
        seed = int(new_seed(2**62) if settings.seed is None else settings.seed)
    applied = decisions_of(model) if decisions and request.likelihood == likelihood_of(model) else Decisions()
    return replace(request, num_samples=num_samples, seed=seed, decisions=applied)


def _parts(
    model: nn.Module, inputs: Readable, request: _PredictRequest, shared: Collection[int | str], first_row: int = 0
) -> Iterator[tuple[Predictive, int]]:
    """The prediction of one block of rows after the other, and the number of rows of each."""
    device, in_memory = device_of(model), isinstance(inputs, Tensor | tuple | Mapping)
    place = device or torch.device("cpu")
    share = memory_budget(place) // SHARE_OF_INPUTS
    for block in blocks_of(inputs, shared, device, share if in_memory else min(share, MOST_READ)):
        placed = replace(block, first_row=first_row + block.first_row)
        precise = computing_in(request.precision, place)
        with torch.no_grad(), Using(estimator=request.estimator), precise, isolated(model, training=False):
            prediction = _BlockPrediction(model, placed, request)
            part = with_less_memory(prediction.attempt, prediction.shrink, also=(Exception,))
        yield (part if in_memory else moved(part, torch.device("cpu"))), block.num_rows


def _checked_for_noise(model: nn.Module, pred: Predictive) -> Predictive:
    """The prediction, after a warning where nothing in the network is random."""
    if pred.num_samples > 1 and is_plain(model):
        if pred.samples is not None:
            are_equal = torch.equal(pred.samples, pred.samples[:1].expand_as(pred.samples))
        else:
            spread = "class_variance" if isinstance(pred, ClassificationPredictive) else "epistemic_std"
            are_equal = not bool(getattr(pred, spread).any())
        if are_equal:
            warn_of_plain(model, f"all {pred.num_samples} draws are equal and no uncertainty of the network is seen")
    return pred


class _BlockPrediction:
    """All draws for the rows of one block, its images in the fastest layout unless the network fails with it."""

    def __init__(self, model: nn.Module, block: RowBlock, request: _PredictRequest) -> None:
        self._model, self._block, self._request = model, block, request
        self._rows = request.batch_size or rows_at_a_time(
            model, block, request.num_samples, request.seed, request.executor
        )
        self._laid_out = with_images_laid_out(model, block, request.num_samples, request.seed, request.executor)

    def attempt(self) -> Predictive:
        """Predict with as many rows at a time as chosen."""
        request, block = self._request, self._laid_out
        batches, num_rows = block.batches(self._rows)
        on_cpu = block.tensors()[0].device.type == "cpu"
        likelihood = request.likelihood
        scale = observation_scale(self._model)
        statistics = [statistics_for(likelihood, request.keep_samples, scale, request.decisions) for _ in batches]
        class_axis = likelihood.class_axis if isinstance(likelihood, Categorical) else None
        check = FiniteCheck(list(accumulate(num_rows, initial=block.first_row)), class_axis)
        draws = stream(
            self._model,
            batches,
            request.num_samples,
            seed=request.seed,
            executor=request.executor,
            chunk=request.chunk,
            num_rows=num_rows,
            first_row=block.first_row,
            use=_use(request, block, num_rows[0]),
        )
        for place, (number, outputs) in enumerate(draws):
            checked = check.checked(number, outputs)
            if place == 0 and block.first_row == 0 and on_cpu:  # on other devices it would wait for the outputs
                warn_of_probabilities(checked, likelihood)
            statistics[number].update(checked)
        check.check()
        return joined([part.finish(request.seed) for part in statistics])

    def shrink(self, error: Exception) -> bool:
        """Leave images as they lie after an error of their layout; halve a batch size that was not given."""
        is_short = is_out_of_memory(error) or isinstance(error, DoesNotFitError)
        if self._laid_out is not self._block and not is_short and not isinstance(error, NonFiniteError):
            _LAYOUTS[self._model] = dict.fromkeys(_LAYOUTS.get(self._model, {}), False)
            self._laid_out = self._block
            return True
        if self._request.batch_size is not None or self._rows == 1 or not is_short:
            return False
        self._rows = max(1, min(self._rows, self._block.num_rows) // 2)
        return True


def _use(request: _PredictRequest, block: RowBlock, rows: int) -> OutputUse:
    """How the outputs of a batch are kept: as sums, and with ``keep_samples`` all of them until the end."""
    is_rounded = torch.is_autocast_enabled(block.tensors()[0].device.type)
    consumed = (2 if is_rounded else 1) * TIMES_CONSUMED
    if not request.keep_samples:
        return OutputUse(consumed=consumed)
    copies = COPIES_OF_REAL if isinstance(request.likelihood, Gaussian) else COPIES_OF_CLASSES
    all_rows = block.first_row + block.num_rows
    return OutputUse(0.0, copies * all_rows / rows, consumed, "keep none of the draws (keep_samples=False), ")


def with_images_laid_out(
    model: nn.Module, block: RowBlock, num_samples: int, seed: int | None, executor: Executor = "auto"
) -> RowBlock:
    """The same rows, with images channels last where that is faster and there is room for a copy."""
    settings, tensors = STATE.own.settings, block.tensors()
    device = tensors[0].device
    worthwhile = is_faster_channels_last(device) and block.num_rows * num_samples >= WORTH_A_TRIAL
    limited = settings.memory is not None  # the limit is for a run, with nothing beside it
    if not worthwhile or limited or sum(leaf.nbytes for leaf in tensors) > memory_budget(device) // SHARE_OF_COPIES:
        return block
    lay_out = partial(channels_last, channels=image_channels(model))
    few = block.first(ROWS_TRIED)
    laid_out = few.changed(lay_out)
    values = few.args, few.kwargs
    is_comparable = all(isinstance(leaf, (Tensor, *PLAIN)) for leaf in pytree.tree_leaves(values))
    if not is_comparable or [leaf.stride() for leaf in laid_out.tensors()] == [leaf.stride() for leaf in few.tensors()]:
        return block
    looped = executor == "loop" or settings.mode == "off"
    modules = tuple(type(module) for module in model.modules())
    # All that a forward may depend on beside numbers; other objects may change from call to call.
    key = (signature(values), modules, looped, settings.estimator, torch.is_autocast_enabled(device.type))
    layouts = _LAYOUTS.setdefault(model, {})
    if (accepted := layouts.get(key)) is None:
        with same_numbers(model):
            accepted = _gives_the_same(model, few, laid_out, seed, looped)
    if accepted is not None:
        layouts[key] = accepted
    return block.changed(lay_out) if accepted else block


def _gives_the_same(model: nn.Module, block: RowBlock, other: RowBlock, seed: int | None, looped: bool) -> bool | None:
    """None where the network fails in the present layout: the run itself reports what is wrong, if anything is."""
    try:
        expected = _tried(model, block, seed, looped)
    except Exception:
        return None
    try:
        outputs = _tried(model, other, seed, looped)
        return len(outputs) == len(expected) and all(map(_is_close, outputs, expected))
    except Exception as error:
        return None if is_out_of_memory(error) else False


def _tried(model: nn.Module, block: RowBlock, seed: int | None, looped: bool) -> list[Tensor]:
    """The outputs of two mapped draws, or of one where draws are looped or cannot be mapped."""
    outputs: Any = None
    if not looped:
        try:
            with isolated(model, trial=True):
                outputs = map_draws(block.call_on_copies(model, seed), Numbers(0, 2)).outputs
        except Exception as error:
            if is_out_of_memory(error):
                raise
            looped = True
    if looped:
        with isolated(model, trial=True):
            draw = torch.zeros((), dtype=torch.int64, device="cpu")
            outputs, _ = one_draw(block.call_on_copies(model, seed), draw)
    return [leaf.double() for leaf in tensors_in(outputs) if leaf.numel()]


def _is_close(output: Tensor, expected: Tensor) -> bool:
    """Whether two outputs agree in shape, mapped draws with mapped ones, and within ``TOLERANCE``."""
    if output.shape != expected.shape:
        return False
    scale = torch.where(expected.isfinite(), expected.abs(), 0.0).amax()
    return bool(((output == expected) | ((output - expected).abs() <= TOLERANCE * scale)).all())


class NonFiniteError(ValueError):
    """A network gave NaN or infinity."""


class FiniteCheck:
    """Checks the outputs for some batches, draw by draw.

    Minus infinity is a logit of probability zero, but a row in which all classes have it has no probability left.

    Args:
        first_rows: the number of the first row of each batch.
        class_axis: the axis of classes in the output of one draw; None for outputs without classes.
    """

    def __init__(self, first_rows: list[int], class_axis: int | None = None) -> None:
        self._first_rows, self._class_axis = first_rows, class_axis
        self._bad: dict[int, Tensor] = {}

    def checked(self, number: int, outputs: Any) -> Tensor:
        """The outputs of batch ``number``, in float32 at least.

        Raises:
            TypeError: the outputs are no tensor of floating point numbers.
            NonFiniteError: the outputs hold NaN, positive infinity, or rows without any possible class, and are on a
                CPU.
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
        if outputs.device.type in CHECKED_AT_ONCE:
            self.check()
        return outputs.to(torch.promote_types(outputs.dtype, torch.float32))

    def check(self) -> None:
        """Raise where any row since the last check is not finite.

        Raises:
            NonFiniteError: the network gave NaN or infinity.
        """
        marked, self._bad = self._bad, {}
        if not marked or not bool(torch.cat(list(marked.values())).any()):
            return
        places = ((self._first_rows[number], rows.nonzero().flatten().tolist()) for number, rows in marked.items())
        bad = [first + row for first, rows in places for row in rows]
        raise NonFiniteError(f"the network gave NaN or infinity for inputs without NaN, rows {bad[:5]}")
