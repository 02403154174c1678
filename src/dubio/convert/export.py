"""Take a stochastic network out of Python: ``torch.export`` and ONNX, with noise off, fresh or frozen.

With noise off, what is exported is the plain mean network. Otherwise the draws are unrolled in the exported graph:
fresh noise is drawn by the runtime at every run, and frozen draws are constants - drawn weights, written into the
file once per draw. The batch size stays dynamic.
"""

import copy
import inspect
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine import (
    Call,
    Inputs,
    Pass,
    Settings,
    arguments,
    check_num_samples,
    isolated,
    name_sources,
    one_draw,
    seed_tensor,
)
from dubio.checks import check_choice
from dubio.convert.randomise import to_mean
from dubio.nn import GaussianHead, Members, WeightSource, posteriors, sources

Noise = Literal["off", "fresh", "frozen"]
SAME_FOR_ALL_ROWS = GaussianHead | Members
"""Sources that draw nothing for rows."""


def export(
    model: nn.Module,
    inputs: Inputs,
    path: str | Path | None = None,
    *,
    format: Literal["torch", "onnx"] = "torch",
    noise: Noise = "off",
    num_samples: int | None = None,
    seed: int = 0,
    shared: Collection[int | str] = (),
) -> Any:
    """Export a network with a dynamic batch size; returns torch's exported program, or its ONNX program.

    Outputs are raw: of a ``Gaussian`` they are standardised targets, and ``dubio.spec(model).likelihood`` has the
    ``target_mean`` and ``target_std`` that make targets of them.

    Calibration, threshold and prediction sets (``calibrate``, ``abstain``, ``conformal``) are not exported: the program
    gives the network's own outputs, and ``dubio.spec(model)`` has the numbers to apply to them.

    Args:
        model: a converted network, or any ``nn.Module``; it is not changed.
        inputs: an example with at least two rows: a tensor, a tuple of positional or a dict of keyword arguments.
        path: where to write it (``.pt2`` or ``.onnx``, which torch may accompany by ``.onnx.data`` with the weights);
            nothing is written by default.
        format: ``"torch"`` for ``torch.export``, ``"onnx"`` for ONNX (needs ``dubio[export]``).
        noise: ``"off"`` for the mean network, ``"fresh"`` for noise drawn anew at every run, ``"frozen"`` for the draws
            that ``dubio.sample(..., seed=seed)`` gives with weight sampling.
        num_samples: how many draws, as a leading sample axis; by default one draw without that axis.
        seed: which draws, where frozen.
        shared: positions or names of inputs that have no rows, such as a mask.
    """
    check_choice("format", format, ("torch", "onnx"))
    check_choice("noise", noise, get_args(Noise))
    if path is not None and (Path(path).suffix == ".onnx") != (format == "onnx"):
        raise ValueError(f"path must end in .onnx for format='onnx' and only then, got {str(path)!r} with {format!r}")
    if num_samples is not None:
        check_num_samples(num_samples)
        if noise == "off":
            raise ValueError("num_samples must be None with noise off: the mean network has one output")
    for name, module in model.named_modules() if format == "onnx" else ():
        if isinstance(module, nn.LSTM) and module.proj_size > 0:
            raise ValueError(
                f"cannot write {name or 'this network'} to ONNX: its LSTM has no projections, "
                f"got proj_size={module.proj_size}"
            )
    if noise == "frozen" and not all(isinstance(source, WeightSource | SAME_FOR_ALL_ROWS) for source in sources(model)):
        raise ValueError(
            "noise must be 'off' or 'fresh' for a network with noise on its activations, got 'frozen': such draws "
            "belong to rows, of which an exported network may see any number"
        )
    args, kwargs = arguments(inputs)
    if noise == "off":
        network: nn.Module = to_mean(model)
    else:
        network = _Unrolled(model, num_samples, seed if noise == "frozen" else None)
        bound = _bind(model, args, kwargs)
        if bound.kwargs:
            raise ValueError(f"inputs must be positional to export draws, got keyword-only {sorted(bound.kwargs)}")
        names = list(bound.arguments)  # all arguments are positional now
        shared = [names.index(name) if isinstance(name, str) and name in names else name for name in shared]
        args, kwargs = bound.args, {}
    network.eval()
    shapes = _dynamic_rows(network, args, kwargs, shared)
    if noise == "off" and _gives_an_object(network, args, kwargs):
        network = _Logits(network).eval()
        shapes = _dynamic_rows(network, args, kwargs, shared)
    with torch.no_grad():
        if format == "onnx":
            return _to_onnx(network, args, kwargs, shapes, path)
        program = torch.export.export(network, args, kwargs, dynamic_shapes=shapes, strict=False)
    if path is not None:
        torch.export.save(program, str(path))
    return program


@torch.no_grad()
def _gives_an_object(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether outputs are objects with logits that are no pytree, which torch cannot export."""
    with isolated(network, trial=True):
        outputs = network(*args, **kwargs)
    return hasattr(outputs, "logits") and pytree.tree_leaves(outputs) == [outputs]


class _Logits(nn.Module):
    """A network that gives the logits of an output object alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The logits."""
        return self.network(*args, **kwargs).logits


class _Unrolled(nn.Module):
    """Several draws of a network, one after another; frozen draws have their perturbations as buffers."""

    def __init__(self, model: nn.Module, num_samples: int | None, seed: int | None) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        self.num_samples = num_samples
        self.frozen = seed is not None
        names = {module: name for name, module in self.model.named_modules()}
        frozen = [] if seed is None else posteriors(self.model)
        self.posteriors = [names[posterior] for posterior in frozen]
        if seed is not None:
            name_sources(self.model)
            with torch.no_grad():
                for place in range(num_samples or 1):
                    run = Pass(Settings("frozen", seed_tensor(seed)), torch.tensor(place))
                    for number, posterior in enumerate(frozen):
                        self.register_buffer(f"draw{place}_{number}", posterior.perturbation(run))

    def forward(self, *args: Any) -> Any:
        """All draws, with a leading axis unless ``num_samples`` is None."""
        settings = Settings(estimator="weight") if self.posteriors else Settings()
        call = Call(self.model, args, {}, settings)
        numbered = self.frozen or self.num_samples is not None  # else a random member of an ensemble
        numbers = [torch.tensor(place) if numbered else None for place in range(self.num_samples or 1)]
        draws = [one_draw(call, number, self._drawn(place))[0] for place, number in enumerate(numbers)]
        return draws[0] if self.num_samples is None else pytree.tree_map(lambda *leaves: torch.stack(leaves), *draws)

    def _drawn(self, place: int) -> dict[int, Tensor]:
        means = [self.model.get_submodule(name).mean for name in self.posteriors]
        return {id(mean): getattr(self, f"draw{place}_{number}") for number, mean in enumerate(means)}


def _bind(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """Arguments by the names of ``forward``, with defaults for omitted ones before the last one given."""
    signature = inspect.signature(model.forward)
    bound = signature.bind(*args, **kwargs)
    given = list(bound.arguments)
    names = list(signature.parameters)
    needed = names[: 1 + max((names.index(name) for name in given), default=-1)]
    values = {name: bound.arguments.get(name, signature.parameters[name].default) for name in needed}
    bound.arguments = {name: value for name, value in values.items() if value is not inspect.Parameter.empty}
    return bound


def _dynamic_rows(
    network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shared: Collection[int | str]
) -> dict[str, Any]:
    """Dynamic shapes for every parameter of ``forward``: the first axis of each tensor, unless it is shared."""
    named = dict([*enumerate(args), *kwargs.items()])
    unknown = [name for name in shared if name not in named]
    if unknown:
        raise ValueError(f"shared must name inputs, got {unknown[0]!r} beside inputs {list(named)}")
    whole = {id(leaf) for name in shared for leaf in pytree.tree_leaves(named[name])}
    for name, value in named.items():
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, Tensor) and id(leaf) not in whole and (leaf.dim() == 0 or leaf.shape[0] < 2):
                raise ValueError(
                    f"inputs must have at least two rows to export with any batch size, got shape {tuple(leaf.shape)} "
                    f"for input {name!r}; name inputs without rows in shared=(...)"
                )

    def rows(leaf: Any) -> Any:
        return {0: torch.export.Dim.DYNAMIC} if isinstance(leaf, Tensor) and id(leaf) not in whole else None

    bound = inspect.signature(network.forward).bind(*args, **kwargs).arguments
    return {name: pytree.tree_map(rows, value) for name, value in bound.items()}


def _to_onnx(
    network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any, path: str | Path | None
) -> Any:
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("ONNX export needs onnx and onnxscript: pip install 'dubio[export]'") from error
    file = None if path is None else str(path)
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)  # without torchvision it warns of each of its operators
    try:
        return torch.onnx.export(network, args, file, kwargs=kwargs, dynamic_shapes=shapes, dynamo=True, verbose=False)
    finally:
        log.setLevel(level)
