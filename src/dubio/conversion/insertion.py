"""Put noise before the layers of a copied network, and make its own dropout random.

Layers change their class in place and keep their parameters under the same names (``layers.noised``).
"""

import warnings
from collections.abc import Callable, Sequence

from torch import nn

from dubio._engine import attach
from dubio.conversion.choice import ConversionWarning, Where, chooses
from dubio.conversion.copying import is_norm, make_mappable, own_parameters, plain_copy
from dubio.conversion.replacement import refuse_unconvertible
from dubio.nn import DROPOUTS, UNCALLED, InputMask, InputSource, noise_input, takes_noise

__all__ = ["insert_noise", "randomise_dropout"]

DROPOUT = nn.modules.dropout._DropoutNd
PLACES = "noise goes before linear layers and convolutions"


def insert_noise(
    net: nn.Module,
    make_noise: Callable[[dict[str, nn.Module]], Sequence[InputSource]],
    *,
    where: Where = None,
    strict: bool = True,
    freeze: bool = False,
) -> nn.Module:
    """A copy of ``net`` with noise before its chosen layers; ``make_noise`` gives one source for each, by name.

    With ``freeze`` the network's own parameters are not trained, and its running statistics stay.
    """
    model = plain_copy(net)
    chosen = _layers(model, where, strict)
    if not chosen:
        raise ValueError(_nothing_chosen(model, where))
    make_mappable(model)
    if freeze:
        _freeze(model)
    for layer, noise in zip(chosen.values(), make_noise(chosen), strict=True):
        noise_input(layer, noise.to(next(layer.parameters())))
    return attach(model)


def randomise_dropout(
    net: nn.Module, rate: float | None, inserted_rate: float, where: Where, strict: bool
) -> nn.Module:
    """A copy of ``net`` in which the chosen dropout modules are always on and other chosen layers have a mask before.

    Without a choice: its dropout modules or, in a network that has none, a mask before every linear layer. A ``rate``
    overrides that of all modules.
    """
    model = plain_copy(net)
    own = {name: module for name, module in model.named_modules() if type(module) in DROPOUTS}
    if strict:
        foreign = {n: m for n, m in model.named_modules() if isinstance(m, DROPOUT) and type(m) not in DROPOUTS}
        refuse_unconvertible({n: f"{type(m).__name__} is a dropout of its own kind" for n, m in foreign.items()})
    if where is None:
        chosen = {} if own else _layers(model, nn.Linear, strict=False)
    else:
        own = {name: module for name, module in own.items() if chooses(where, name, module)}
        chosen = _layers(model, where, strict)
    if not own and not chosen:
        raise ValueError(_nothing_chosen(model, where))
    if not chosen and rate is None and not any(module.p for module in own.values()):
        raise ValueError(f"p must be given: all dropout of this network has rate 0 ({', '.join(own)})")
    _warn_of_hidden_dropout(model)
    make_mappable(model)
    for name, module in own.items():
        p = module.p if rate is None else rate
        assert isinstance(p, float | int)
        if not 0.0 <= p < 1.0:
            raise ValueError(f"rates of dropout must be in [0, 1), got {p} at {name}")
        module.p = float(p)
        module.__class__ = DROPOUTS[type(module)]
    for layer in chosen.values():
        noise_input(layer, InputMask(inserted_rate if rate is None else rate))
    return attach(model)


def _freeze(model: nn.Module) -> None:
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.momentum = 0.0  # training normalises by the batch still, and leaves no trace


def _layers(model: nn.Module, where: Where, strict: bool) -> dict[str, nn.Module]:
    """The layers that ``where`` chooses for noise; with ``strict``, refuse other modules with parameters but norms."""
    chosen = {name: module for name, module in model.named_modules() if chooses(where, name, module)}
    if strict and where is not None:
        others = {
            name: m
            for name, m in chosen.items()
            if own_parameters(m) and not takes_noise(m) and not is_norm(m) and not isinstance(m, UNCALLED)
        }
        refuse_unconvertible({name: f"{type(module).__name__}: {PLACES}" for name, module in others.items()})
    return {name: module for name, module in chosen.items() if takes_noise(module)}


def _warn_of_hidden_dropout(model: nn.Module) -> None:
    """Dropout inside torch's own attention and recurrent layers is out of reach."""
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout:
            warnings.warn(
                f"the dropout inside {name or 'the network'} ({type(module).__name__}) stays as it is, random in "
                "training mode only",
                ConversionWarning,
                stacklevel=4,
            )


def _nothing_chosen(model: nn.Module, where: Where) -> str:
    possible = [name or "the network itself" for name, module in model.named_modules() if takes_noise(module)]
    listed = f"; it could be {', '.join(possible[:5])}" if possible else ", of which this network has none"
    return f"nothing to convert: where={where!r} chooses no layer, and {PLACES}{listed}"
