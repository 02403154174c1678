"""The record a converted network carries: which method made it, what its outputs mean, and what was decided since.

The end of every conversion: the record that the network carries, and the proof on an example.

Prove a conversion on an example: noise off equals the original, and every random parameter is really read.

A module that reads its parameters in some other way than as attributes - from a list it made when it was built, say -
would convert and then quietly compute with its means. Running the network once shows it.
"""

import contextlib
import inspect
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dubio import functional
from dubio._engine import STATE, Inputs, Pass, Settings, arguments, run, same_numbers, unchanged
from dubio.calibrators import Calibration, DecisionWarning, PredictionSets, Threshold, decisions_of, removal_message
from dubio.convert.randomise import ConversionWarning, consists_of, random_names, share_draw
from dubio.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from dubio.nn import Drawn, Source, WeightSource


@dataclass(frozen=True)
class ModelSpec:
    """All that is known of a converted network. Immutable; kept by deepcopy, pickle and ``save``."""

    method: Any
    likelihood: Likelihood
    calibration: Calibration | None = None
    """What ``dubio.calibrate`` found: a ``Temperature`` or a ``VectorScaling``."""
    threshold: Threshold | None = None
    """What ``dubio.abstain`` found: when a prediction is accepted."""
    sets: PredictionSets | None = None
    """What ``dubio.conformal`` found: which classes go into a set."""
    pruning: Any = None
    """What ``dubio.prune`` removed."""
    evaluated: tuple[str, ...] = ()
    """Fingerprints of the data that the network was judged on, which must not decide anything about it any more."""


def spec(model: nn.Module) -> ModelSpec:
    """The record of a converted network."""
    found = getattr(model, "dubio_spec", None)
    if not isinstance(found, ModelSpec):
        raise ValueError(f"this {type(model).__name__} was not converted by a dubio method, so it carries no spec")
    return found


def attach_spec(model: nn.Module, record: ModelSpec) -> None:
    """Give a network its record, and the parameter that its likelihood learns."""
    likelihood = record.likelihood
    if isinstance(likelihood, Gaussian) and likelihood.std == "learned":
        start = functional.variational.inverse_softplus(torch.tensor(likelihood.INITIAL_STD))
        first = next(model.parameters())
        model.register_parameter("observation_rho", nn.Parameter(start.to(first)))
    model.dubio_spec = record  # type: ignore[assignment]


def change_spec(model: nn.Module, **changes: Any) -> None:
    """Give a network a record that differs in some fields."""
    model.dubio_spec = replace(spec(model), **changes)  # type: ignore[assignment]


def reset_decisions(model: nn.Module) -> None:
    """Take back what ``calibrate``, ``abstain`` and ``conformal`` decided: ``predict`` gives what the network says."""
    change_spec(model, calibration=None, threshold=None, sets=None)


def drop_decisions(model: nn.Module, cause: str) -> None:
    """Take decisions back because ``cause`` changes predictions; warns, where there are any, at the caller's caller."""
    removed = list(decisions_of(model).made)
    if not removed:
        return
    reset_decisions(model)
    warnings.warn(removal_message(cause, removed), DecisionWarning, stacklevel=3)


def warn_of_probabilities(model: nn.Module, likelihood: Likelihood) -> None:
    """Warn of a network that ends in probabilities where the likelihood makes them itself, from logits."""
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
    """Give a converted network its record; with an example, prove the conversion on it.

    Without ``net`` there is nothing that noise off could equal, and the network is only run.

    A function in the method's ``where`` is kept as the names that it chose.
    """
    if not isinstance(likelihood, Likelihood):
        raise TypeError(f"likelihood must be a Categorical, a Gaussian or a Bernoulli, got {likelihood!r}")
    if not consists_of(getattr(method, "where", None), str, type):
        method = replace(method, where=random_names(model))
    attach_spec(model, ModelSpec(method, likelihood))
    warn_of_probabilities(model, likelihood)
    if example is not None and net is not None:
        prove(model, net, example)
    elif example is not None:
        with torch.no_grad(), unchanged(model):
            run(model, example)
    return model


DROPOUTS = (
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout),
)


TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


@dataclass(frozen=True)
class FunctionCall:
    """A function called by a network's own code."""

    function: str
    file: str
    line: int


def prove(model: nn.Module, net: nn.Module, example: Inputs) -> None:
    """Raise unless ``model`` with noise off gives what ``net`` gives on ``example``; warn of what the run shows.

    Both run in eval mode, and are put back. A layer that is called several times draws its weights from then on: they
    have one draw in a pass.
    """
    args, kwargs = arguments(example)
    with torch.no_grad(), _plain_attention(), same_numbers(net):
        expected = _leaves(_run(net, args, kwargs, None))
        if not expected:
            raise TypeError(
                "the network's outputs must be tensors, in tuples, lists or dicts, or have .logits, to be compared"
            )
        for place, (found, wanted) in enumerate(
            zip(_leaves(_run(model, args, kwargs, Settings("off"))), expected, strict=True)
        ):
            if not _close(found, wanted):
                distance = (found.double() - wanted.double()).abs().max().item()
                raise RuntimeError(
                    f"the conversion is not exact: with noise off, output {place} is {distance:.3g} away from the "
                    "original network's"
                )
        reading = Settings(estimator="weight")
        running = Pass(reading)
        with _counted_calls(model) as calls:
            _run(model, args, kwargs, reading, running)
    for module in {module for module in calls if calls[module] > 1}:
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
    """Where a network's own code calls dropout as a function, found by running it once."""
    args, kwargs = arguments(example)
    calls: list[FunctionCall] = []
    for training in (False, True):
        with (
            torch.no_grad(),
            _Dropouts() as found,
            contextlib.suppress(*((RuntimeError, ValueError) if training else ())),
        ):
            _run(net, args, kwargs, None, training=training)  # batch norm may refuse to train on one row
        calls += found.calls
    return list(dict.fromkeys(calls))


def _was_read(source: Source, running: Pass) -> bool:
    return id(source.mean) in running.drawn if isinstance(source, WeightSource) else id(source) in running.calls


@contextmanager
def _counted_calls(model: nn.Module) -> Iterator[Counter[Drawn]]:
    """How often each drawn module is called."""
    calls: Counter[Drawn] = Counter()
    drawn = [module for module in model.modules() if isinstance(module, Drawn)]
    handles = [module.register_forward_pre_hook(lambda module, _: calls.update([module])) for module in drawn]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


class _Dropouts(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[FunctionCall] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in DROPOUTS:
            self._note(func)
        return func(*args, **(kwargs or {}))

    def _note(self, func: Any) -> None:
        """Note the calling line, unless it is torch's own: a module, which conversion can see."""
        frames = [info.frame for info in inspect.stack(context=0)]
        names = [str(frame.f_globals.get("__name__", "")) for frame in frames]
        if func.__module__ == F.__name__:  # up to the function itself, and to whoever called it
            caller = next(i for i in range(names.index(F.__name__), len(names)) if names[i] != F.__name__)
        else:
            caller = next(i for i, name in enumerate(names) if name not in (__name__, "torch.overrides"))
        frame = frames[caller]
        if not names[caller].startswith("torch."):
            self.calls.append(FunctionCall(func.__name__, frame.f_code.co_filename, frame.f_lineno))


def _run(
    net: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    settings: Settings | None,
    running: Pass | None = None,
    training: bool = False,
) -> Any:
    modes = {module: module.training for module in net.modules()}
    former = STATE.own.settings, STATE.own.current
    net.train(training)
    STATE.own.settings, STATE.own.current = settings or Settings(), running
    try:
        with unchanged(net):  # the same random state for every run, and no trace of it
            return net(*args, **kwargs)
    finally:
        STATE.own.settings, STATE.own.current = former
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


def _close(found: Tensor, wanted: Tensor) -> bool:
    if not wanted.is_floating_point() or wanted.numel() == 0:
        return torch.equal(found, wanted)
    tolerance = TOLERANCE.get(wanted.dtype, 1e-2)
    finite = wanted[wanted.isfinite()].abs()
    scale = finite.max().item() if finite.numel() else 0.0
    return torch.allclose(found, wanted, rtol=tolerance, atol=tolerance * min(scale, 1.0), equal_nan=True)


def _leaves(outputs: Any) -> list[Tensor]:
    outputs = getattr(outputs, "logits", outputs)
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
