"""``describe``: what is random in a network, what is deterministic and why, and how its draws run."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import nn

from dubio._engine import check_module, noticed, plans
from dubio.calibrators import decisions_of
from dubio.convert.randomise import (
    PLACES,
    chooses,
    is_norm,
    is_random,
    own_parameters,
    visible_modules,
    why_unconvertible,
)
from dubio.convert.spec import ModelSpec
from dubio.nn import Drawn, Head, Masked, Members, Removed, Rewritten, WeightSource, takes_noise

T = TypeVar("T")


@dataclass(frozen=True)
class LayerDescription:
    """One layer that holds parameters."""

    name: str
    kind: str
    random: tuple[str, ...]
    """Names of drawn parameters; ``inputs`` for noise before the layer, ``mask`` for dropout."""
    num_random: int
    """Weights with a posterior, counted where they first appear."""
    num_fixed: int
    remark: str
    num_removed: int = 0
    """Weights that pruning removed; they count neither as random nor as fixed."""


@dataclass(frozen=True)
class Description:
    """The result of ``describe``; prints as a table."""

    method: str
    likelihood: str
    layers: tuple[LayerDescription, ...]
    executors: tuple[str, ...]
    decided: tuple[str, ...] = ()
    """What ``predict`` applies: calibration, threshold, sets."""
    global_generators: tuple[str, ...] = ()
    """Global generators that the network itself draws from, as ordinary dropout does."""

    @property
    def num_random(self) -> int:
        """The number of weights that are drawn."""
        return sum(layer.num_random for layer in self.layers)

    @property
    def num_noisy(self) -> int:
        """The number of layers with noise on their activations."""
        return sum(bool({"inputs", "outputs", "mask", "clouds"} & {*layer.random}) for layer in self.layers)

    @property
    def num_fixed(self) -> int:
        """The number of parameters that are not drawn."""
        return sum(layer.num_fixed for layer in self.layers)

    @property
    def num_removed(self) -> int:
        """The number of removed weights."""
        return sum(layer.num_removed for layer in self.layers)

    def __str__(self) -> str:
        rows = [("layer", "type", "random", "weights", "remark")]
        for layer in self.layers:
            random, weights = ", ".join(layer.random) or "-", f"{layer.num_random + layer.num_fixed:,}"
            rows.append((layer.name or "(root)", layer.kind, random, weights, layer.remark))
        removed = f", {self.num_removed:,} were removed" if self.num_removed else ""
        layers = "1 layer has" if self.num_noisy == 1 else f"{self.num_noisy} layers have"
        noisy = f"; {layers} noise on activations" if self.num_noisy else ""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"method      {self.method}", f"likelihood  {self.likelihood}"]
        lines += [f"decided     {decision}" for decision in self.decided]
        lines += ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows), ""]
        lines.append(f"{self.num_random:,} weights are random, {self.num_fixed:,} are not{removed}{noisy}")
        lines += self.executors
        lines += [f"draws from {name} itself: seeded runs of it hold one lock" for name in self.global_generators]
        return "\n".join(lines)


def describe(model: nn.Module) -> Description:
    """Describe what is random in a network, layer by layer, and how its draws run.

    Args:
        model: the network, converted or not.

    >>> print(dubio.describe(model))
    """
    check_module(model)
    record = getattr(model, "dubio_spec", None)
    record = record if isinstance(record, ModelSpec) else None
    seen: set[int] = set()
    draws_weights = any(isinstance(module, Drawn) for module in model.modules())
    layers = [
        _with_removed(_describe_layer(name, module, record, draws_weights, seen), module, record, seen)
        for name, module in visible_modules(model)
        if own_parameters(module) or is_random(module)
    ]
    executors = [f"executor in {name}: {plan.executor}; {plan.reason}" for name, plan in plans(model).items()]
    executors = executors or ["executor: chosen at the first run with several draws"]
    made = ("none: not converted", "none") if record is None else (repr(record.method), repr(record.likelihood))
    decided = tuple(decisions_of(model).summary().values())
    return Description(*made, tuple(layers), tuple(executors), decided, noticed(model))


def _describe_layer(
    name: str, module: nn.Module, record: ModelSpec | None, draws_weights: bool, seen: set[int]
) -> LayerDescription:
    num_fixed = sum(parameter.numel() for parameter in _first_seen(module.parameters(recurse=False), seen))
    kind = type(module).__name__
    if isinstance(module, Head | Members):
        num_fixed = sum(parameter.numel() for parameter in module.parameters())
        return LayerDescription(name, kind, module.random, 0, num_fixed, module.describe())
    random, remark = module.dubio_describe() if isinstance(module, Rewritten) else ((), "")
    if not random:
        return LayerDescription(name, kind, (), 0, num_fixed, _why_fixed(name, module, record, draws_weights))
    if not isinstance(module, Drawn):
        return LayerDescription(name, kind, random, 0, num_fixed, remark)
    posteriors = list(dict.fromkeys(getattr(module, f"{parameter}_posterior") for parameter in random))
    new = _first_seen(posteriors, seen)
    num_random = sum(posterior.num_random for posterior in new)
    num_fixed += sum(posterior.mean.numel() - posterior.num_random for posterior in new)
    remark += "; weights tied to a layer above" if len(new) < len(posteriors) else ""
    return LayerDescription(name, kind, random, num_random, num_fixed, remark)


def _with_removed(
    layer: LayerDescription, module: nn.Module, record: ModelSpec | None, seen: set[int]
) -> LayerDescription:
    """A layer's description with what pruning removed; tied weights count where they first appear."""
    parts = module.modules() if isinstance(module, Members) else (module, *module.children())
    masks = [
        mask for part in parts for name, mask in part._buffers.items() if mask is not None and _is_mask(part, name)
    ]
    num_removed = sum(int(mask.sum()) for mask in _first_seen(masks, seen))
    remark = layer.remark
    if num_removed:
        remark += f"; {num_removed:,} of {layer.num_random + layer.num_fixed:,} weights removed"
    sizes = record.pruning.sizes if record is not None and isinstance(record.pruning, Removed) else ()
    for _, inputs, outputs in [size for size in sizes if size[0] == layer.name]:
        remark += f"; cut down to {inputs} inputs and {outputs} outputs"
    return replace(layer, num_fixed=layer.num_fixed - num_removed, remark=remark, num_removed=num_removed)


def _first_seen(objects: Iterable[T], seen: set[int]) -> list[T]:
    """Those objects that were not seen before; marks them as seen."""
    new = [value for value in objects if id(value) not in seen]
    seen.update(id(value) for value in new)
    return new


def _is_mask(part: nn.Module, name: str) -> bool:
    if isinstance(part, WeightSource):
        return name == "removed"
    return isinstance(part, Masked) and name.removesuffix("_removed") in part.dubio_masked_names


def _why_fixed(name: str, module: nn.Module, record: ModelSpec | None, draws_weights: bool) -> str:
    if record is None:
        return "not converted"
    if own_parameters(module) == ["observation_rho"]:
        return "fixed: the learned noise of the data"
    if is_norm(module) and not getattr(record.method, "norms", False):
        return "fixed: normalisation layers stay deterministic"
    if not chooses(getattr(record.method, "where", None), name, module):
        return "fixed: not chosen by where"
    if draws_weights:
        return f"fixed: {why_unconvertible(module) or 'biases stay deterministic'}"
    return f"fixed: {'no noise goes before it' if takes_noise(module) else PLACES}"
