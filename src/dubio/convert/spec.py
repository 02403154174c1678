"""The record of a converted network, and the proof of a conversion on an example.

``ModelSpec`` is the record: which method made the network, what its outputs mean, and what was decided since.
``finish`` ends every conversion: it attaches the record and, with an example, proves the conversion.

``prove`` runs the network: with noise off it must equal the original, and every random parameter must be read. A module
that reads its parameters in another way than as attributes, from a list it made at construction, say, would convert and
then silently compute with its means.
"""

import inspect
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dubio import functional
from dubio._engine import STATE, Inputs, Pass, Settings, arguments, isolated, run, same_numbers
from dubio.calibrators import Calibration, DecisionWarning, PredictionSets, Threshold, decisions_of, removal_message
from dubio.convert.randomise import ConversionWarning, calls_of, consists_of, random_names, share_draw
from dubio.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from dubio.nn import Drawn, Source, WeightSource

DROPOUTS = (
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout),
)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


@dataclass(frozen=True)
class ModelSpec:
    """The record of a converted network. Immutable; kept by deepcopy, pickle and ``save``."""

    method: Any
    likelihood: Likelihood
    calibration: Calibration | None = None
    """The result of ``dubio.calibrate``: a ``Temperature`` or a ``VectorScaling``."""
    threshold: Threshold | None = None
    """The result of ``dubio.abstain``: when a prediction is accepted."""
    sets: PredictionSets | None = None
    """The result of ``dubio.conformal``: which classes go into a set."""
    pruning: Any = None
    """What ``dubio.prune`` removed."""
    evaluated: tuple[str, ...] = ()
    """Fingerprints of the data that the network was evaluated on, which must not be used for decisions any more."""


@dataclass(frozen=True)
class FunctionCall:
    """A function called by a network's own code."""

    function: str
    file: str
    line: int


def spec(model: nn.Module) -> ModelSpec:
    """The record of a converted network."""
    record = getattr(model, "dubio_spec", None)
    if not isinstance(record, ModelSpec):
        raise ValueError(f"this {type(model).__name__} was not converted by a dubio method, so it carries no spec")
    return record


def change_spec(model: nn.Module, **changes: Any) -> None:
    """Give a network a record that differs in some fields."""
    model.dubio_spec = replace(spec(model), **changes)  # type: ignore[assignment]


def reset_decisions(model: nn.Module) -> None:
    """Remove what ``calibrate``, ``abstain`` and ``conformal`` decided, so that ``predict`` does not apply it."""
    change_spec(model, calibration=None, threshold=None, sets=None)


def drop_decisions(model: nn.Module, cause: str) -> None:
    """Remove decisions because ``cause`` changes predictions; where there are any, warn at the caller's caller."""
    removed = list(decisions_of(model).made)
    if not removed:
        return
    reset_decisions(model)
    warnings.warn(removal_message(cause, removed), DecisionWarning, stacklevel=3)


def warn_of_probabilities(model: nn.Module, likelihood: Likelihood) -> None:
    """Warn of a network that ends in probabilities where the likelihood expects logits."""
    *_, last = model.modules()
    if isinstance(last, nn.Softmax) and isinstance(likelihood, Categorical):
        remedy = "leave it out, or end in nn.LogSoftmax with likelihood=dubio.Categorical(output='log_probs')"
    elif isinstance(last, nn.Sigmoid) and isinstance(likelihood, Bernoulli):
        remedy = "leave it out"
    else:
        return
    warnings.warn(
        f"this network ends in {type(last).__name__}, and {likelihood!r} expects "
        f"{'log-probabilities' if getattr(likelihood, 'output', '') == 'log_probs' else 'logits'}; {remedy}",
        ConversionWarning,
        stacklevel=4,
    )


def finish(
    model: nn.Module, net: nn.Module | None, method: Any, likelihood: Likelihood, example: Inputs | None
) -> nn.Module:
    """Give a converted network its record and what its likelihood learns; with an example, prove the conversion.

    Without ``net`` the example is only run. A function in the method's ``where`` is replaced by the names it chose.
    """
    if not isinstance(likelihood, Likelihood):
        raise TypeError(f"likelihood must be a Categorical, a Gaussian or a Bernoulli, got {likelihood!r}")
    if not consists_of(getattr(method, "where", None), str, type):
        method = replace(method, where=random_names(model))
    if isinstance(likelihood, Gaussian) and likelihood.std == "learned":
        start = functional.variational.inverse_softplus(torch.tensor(likelihood.INITIAL_STD))
        model.register_parameter("observation_rho", nn.Parameter(start.to(next(model.parameters()))))
    model.dubio_spec = ModelSpec(method, likelihood)  # type: ignore[assignment]
    warn_of_probabilities(model, likelihood)
    if example is not None and net is not None:
        prove(model, net, example)
    elif example is not None:
        with torch.no_grad(), isolated(model, trial=True):
            run(model, example)
    return model


def prove(model: nn.Module, net: nn.Module, example: Inputs) -> None:
    """Raise unless ``model`` with noise off equals ``net`` on ``example``; warn of unread and hidden randomness.

    Both run in eval mode, and their modes are restored. A layer that is called several times draws its weights from
    then on: it has one draw in a pass.
    """
    with torch.no_grad(), _plain_attention(), same_numbers(net):
        expected = _leaves(_run(net, example, None))
        if not expected:
            raise TypeError(
                "the network's outputs must be tensors, in tuples, lists or dicts, or have .logits, to be compared"
            )
        outputs = _leaves(_run(model, example, Settings("off")))
        for place, (output, target) in enumerate(zip(outputs, expected, strict=True)):
            if not _close(output, target):
                distance = (output.double() - target.double()).abs().max().item()
                raise RuntimeError(
                    f"the conversion is not exact: with noise off, output {place} is {distance:.3g} away from the "
                    "original network's"
                )
        reading = Settings(estimator="weight")
        running = Pass(reading)
        with calls_of(module for module in model.modules() if isinstance(module, Drawn)) as calls:
            _run(model, example, reading, running)
    for module, count in Counter(calls).items():
        if count > 1 and isinstance(module, Drawn):
            share_draw(module, "called several times: it has one draw")
    unread = [
        name for name, module in model.named_modules() if isinstance(module, Source) and not _was_read(module, running)
    ]
    if unread:
        names = ", ".join(name.removesuffix("_posterior") for name in unread)
        warnings.warn(f"random, but not read by the network on this example: {names}", ConversionWarning, stacklevel=4)
    for call in find_functional_dropout(net, example):
        warnings.warn(
            f"{call.function} is called as a function in {call.file}, line {call.line}: it stays as it is, random in "
            "training mode only; make it a torch.nn module to convert it",
            ConversionWarning,
            stacklevel=4,
        )


def find_functional_dropout(net: nn.Module, example: Inputs) -> list[FunctionCall]:
    """Where a network's own code calls dropout as a function; the network runs once in each mode."""
    calls: list[FunctionCall] = []
    for training in (False, True):
        refusals = (RuntimeError, ValueError) if training else ()  # batch norm may refuse to train on one row
        with torch.no_grad(), _Dropouts() as dropouts, suppress(*refusals):
            _run(net, example, None, training=training)
        calls += dropouts.calls
    return list(dict.fromkeys(calls))


def _was_read(source: Source, running: Pass) -> bool:
    return id(source.mean) in running.drawn if isinstance(source, WeightSource) else id(source) in running.calls


class _Dropouts(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[FunctionCall] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in DROPOUTS:
            self._record(func)
        return func(*args, **(kwargs or {}))

    def _record(self, func: Any) -> None:
        """Record the calling line, unless it is torch's own: a module, which conversion converts."""
        frames = [info.frame for info in inspect.stack(context=0)]
        names = [str(frame.f_globals.get("__name__", "")) for frame in frames]
        if func.__module__ == F.__name__:  # up to the function itself, and to its caller
            caller = next(i for i in range(names.index(F.__name__), len(names)) if names[i] != F.__name__)
        else:
            caller = next(i for i, name in enumerate(names) if name not in (__name__, "torch.overrides"))
        frame = frames[caller]
        if not names[caller].startswith("torch."):
            self.calls.append(FunctionCall(func.__name__, frame.f_code.co_filename, frame.f_lineno))


def _run(
    net: nn.Module, inputs: Inputs, settings: Settings | None, running: Pass | None = None, training: bool = False
) -> Any:
    args, kwargs = arguments(inputs)
    modes = {module: module.training for module in net.modules()}
    net.train(training)
    try:
        with isolated(net, trial=True):  # every run has the same random state; settings are put back, too
            STATE.own.settings, STATE.own.current = settings or Settings(), running
            return net(*args, **kwargs)
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Without torch's fused inference path, which gives other values at padded positions."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _close(output: Tensor, expected: Tensor) -> bool:
    if not expected.is_floating_point() or expected.numel() == 0:
        return torch.equal(output, expected)
    tolerance = TOLERANCE.get(expected.dtype, 1e-2)
    finite = expected[expected.isfinite()].abs()
    scale = finite.max().item() if finite.numel() else 0.0
    return torch.allclose(output, expected, rtol=tolerance, atol=tolerance * min(scale, 1.0), equal_nan=True)


def _leaves(outputs: Any) -> list[Tensor]:
    outputs = getattr(outputs, "logits", outputs)
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
