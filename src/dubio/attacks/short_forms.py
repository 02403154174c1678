"""``pgd(model, inputs, targets, epsilon=8/255)`` for ``Pgd(epsilon=8/255)(model, inputs, targets).inputs``."""

import dataclasses
import inspect
import re
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from dubio.attacks.attack import Attack
from dubio.attacks.victims import Model

__all__ = ["ShortForm", "short_form"]


@runtime_checkable
class ShortForm(Protocol):
    """A function of a network, inputs, labels and the fields of an attack, that gives adversarial inputs."""

    def __call__(self, model: Model, inputs: Tensor, targets: Tensor, **fields: Any) -> Tensor:
        """Adversarial inputs."""


def short_form(attack: type[Attack]) -> ShortForm:
    """The short form of an attack; ``help`` shows its fields as keyword arguments."""

    def attack_inputs(model: Model, inputs: Tensor, targets: Tensor, **fields: Any) -> Tensor:
        return attack(**fields)(model, inputs, targets).inputs

    name = re.sub(r"(?<!^)(?=[A-Z])", "_", attack.__name__).lower()
    kinds = inspect.Parameter
    wanted = [kinds(argument, kinds.POSITIONAL_OR_KEYWORD) for argument in ("model", "inputs", "targets")]
    wanted += [kinds(field.name, kinds.KEYWORD_ONLY, default=field.default) for field in dataclasses.fields(attack)]
    attack_inputs.__name__ = attack_inputs.__qualname__ = name
    attack_inputs.__doc__ = f"``{attack.__name__}(...)(model, inputs, targets).inputs``.\n\n    {attack.__doc__}"
    attack_inputs.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined]
    return attack_inputs
