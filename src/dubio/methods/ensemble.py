"""Deep ensembles: the draws of the network are its members.

References: Lakshminarayanan, Pritzel and Blundell 2017, Deep Ensembles; Breiman 1996, Bagging Predictors.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Inputs, attach
from dubio.checks import check_count, check_flag
from dubio.convert import finish, make_mappable, plain_copy
from dubio.likelihoods import Categorical, Likelihood
from dubio.methods.method import Method, NoiseOff, Recipe
from dubio.models import Standardise, architecture_of, build
from dubio.nn import Members
from dubio.objectives import EnsembleLoss


@dataclass(frozen=True)
class Ensemble(Method):
    """Independent networks, trained together in one run: the members are the draws.

    Args:
        members: how many.
        bootstrap: whether each member is trained on a sample of the examples with replacement (bagging).
    """

    noise_off: ClassVar[NoiseOff] = "none"

    members: int = 5
    bootstrap: bool = False

    def __post_init__(self) -> None:
        check_count("members", self.members)
        check_flag("bootstrap", self.bootstrap)

    @property
    def recipe(self) -> Recipe:
        """All members are trained in every step."""
        return Recipe(num_samples=self.members)

    def objective(self, num_data: int | None = None) -> EnsembleLoss:
        """The sum of the members' losses."""
        return EnsembleLoss(num_data)

    def example_weights(self, num_data: int, seed: int) -> Float[Tensor, "example member"] | None:
        """How often each member sees each example in an epoch; None where all see all."""
        if not self.bootstrap:
            return None
        return functional.variational.bootstrap_counts(num_data, self.members, torch.Generator().manual_seed(seed))

    def convert(
        self,
        net: nn.Module | Sequence[nn.Module],
        likelihood: Likelihood = Categorical(),
        *,
        strict: bool = True,
        example: Inputs | None = None,
    ) -> nn.Module:
        """Return an ensemble of copies of ``net``, or of networks of one architecture that are trained already.

        The first member starts with the weights of ``net``, the others with new ones: from ``dubio.models`` where that
        built the network, else by ``reset_parameters`` of its modules. The networks given are not changed.

        Without ``strict``, modules without ``reset_parameters`` start with the same weights in all members.
        """
        if isinstance(net, nn.Module):
            return finish(self._convert(net, strict), None, self, likelihood, example)
        _check_alike(net)
        method = replace(self, members=len(net))
        return finish(_ensemble([plain_copy(member) for member in net]), None, method, likelihood, example)

    def _convert(self, net: nn.Module, strict: bool) -> nn.Module:
        return _ensemble([plain_copy(net), *(_reinitialised(net, strict) for _ in range(self.members - 1))])


def _ensemble(members: list[nn.Module]) -> nn.Module:
    for member in members:
        make_mappable(member)
    model = attach(Members(members))
    if (architecture := architecture_of(members[0])) is not None:
        model.dubio_architecture = architecture  # type: ignore[assignment]
    return model


def _check_alike(nets: object) -> None:
    """Refuse what is not a list of networks of one architecture."""
    if not isinstance(nets, Sequence) or not all(isinstance(net, nn.Module) for net in nets):
        raise TypeError(f"net must be a torch.nn.Module, got {type(nets).__name__}; or a list of them")
    if not nets:
        raise ValueError("net must be a network or several, got none")
    for place, net in enumerate(nets):
        differing = _differing(_shapes(net), _shapes(nets[0])) or _differing(_settings(net), _settings(nets[0]))
        if differing or str(net) != str(nets[0]):  # a network's text lists its modules and their settings
            part = differing[0] if differing else "its modules"
            raise ValueError(f"members must be networks of one kind, but number {place} differs in {part}")


def _differing(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """Names whose values differ, or that only one of the two has."""
    return sorted(name for name in {**first, **second} if first.get(name) != second.get(name))


def _settings(net: nn.Module) -> dict[str, str]:
    """The attributes of all modules as text: members that are stacked must agree in them."""
    return {
        f"{place}.{name}".lstrip("."): repr(value)
        for place, module in net.named_modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in ("training", "dubio_architecture")
    }


def _reinitialised(net: nn.Module, strict: bool) -> nn.Module:
    """A copy of a network with new weights."""
    member, architecture = copy.deepcopy(net), architecture_of(net)
    built = None if architecture is None else build(architecture)
    if built is not None and _shapes(built) == _shapes(net):  # else the network was changed after it was built
        # Means and standard deviations of the inputs belong to the data: all members share them.
        shared = [(place, module) for place, module in net.named_modules() if isinstance(module, Standardise)]
        of_data = {f"{place}.{name}" for place, module in shared for name in module.state_dict()}
        new = {name: tensor for name, tensor in built.state_dict().items() if name not in of_data}
        member.load_state_dict(member.state_dict() | new)
        return member
    reset: set[int] = set()
    for module in reversed(list(member.modules())):  # a module may reset its children, and comes after them
        reset_parameters = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(reset_parameters):
            reset_parameters()
            reset.update(id(parameter) for parameter in module.parameters())
    left = [name for name, parameter in member.named_parameters() if id(parameter) not in reset]
    if left and strict:
        raise ValueError(
            f"cannot give {left[0]} new weights: its module has no reset_parameters; pass the members themselves, "
            "Ensemble().convert([net, another, ...])"
        )
    return member


def _shapes(net: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in net.state_dict().items()}
