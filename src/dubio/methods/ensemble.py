"""Several networks instead of one: the members of an ensemble are its draws.

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
from dubio.methods.method import NoiseOff, Recipe
from dubio.models import architecture_of
from dubio.nn import Members
from dubio.objectives import EnsembleLoss


@dataclass(frozen=True)
class Ensemble:
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
        """How it is trained by default: all members in every step."""
        return Recipe(num_samples=self.members)

    def objective(self, num_data: int | None = None) -> EnsembleLoss:
        """What this method minimises on ``num_data`` training examples; ``dubio.fit`` fills the number in."""
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
        """An ensemble of copies of ``net``, or of networks of one kind that were trained elsewhere.

        The first member begins with the weights of ``net``, the others with new ones: from ``dubio.models`` where it
        was built there, else by the ``reset_parameters`` of its modules. Networks given are left untouched.

        Without ``strict``, what has no ``reset_parameters`` begins with the same weights in all members.
        """
        if not isinstance(net, nn.Module):
            return self._gather(net, likelihood, example)
        first = plain_copy(net)
        others = [_anew(net, strict) for _ in range(self.members - 1)]
        return self._finish([first, *others], likelihood, example)

    def _gather(self, nets: Sequence[nn.Module], likelihood: Likelihood, example: Inputs | None) -> nn.Module:
        if not isinstance(nets, Sequence) or not all(isinstance(net, nn.Module) for net in nets):
            raise TypeError(f"net must be a torch.nn.Module, got {type(nets).__name__}; or a list of them")
        if not nets:
            raise ValueError("net must be a network or several, got none")
        for place, net in enumerate(nets):
            different = _differing(_shapes(net), _shapes(nets[0])) or _differing(_settings(net), _settings(nets[0]))
            if different or str(net) != str(nets[0]):  # a network's text tells its modules and their settings
                what = different[0] if different else "its modules"
                raise ValueError(f"members must be networks of one kind, but number {place} differs in {what}")
        own = replace(self, members=len(nets))
        return own._finish([plain_copy(net) for net in nets], likelihood, example)

    def _finish(self, members: list[nn.Module], likelihood: Likelihood, example: Inputs | None) -> nn.Module:
        for member in members:
            make_mappable(member)
        model = attach(Members(members))
        architecture = architecture_of(members[0])
        if architecture is not None:
            model.dubio_architecture = architecture  # type: ignore[assignment]
        return finish(model, None, self, likelihood, example)


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Names under which two differ, or that only one has."""
    return sorted(name for name in {**one, **other} if one.get(name) != other.get(name))


def _settings(net: nn.Module) -> dict[str, str]:
    """What the modules of a network keep beside tensors, as text: members that run as one must agree in it."""
    return {
        f"{place}.{name}".lstrip("."): repr(value)
        for place, module in net.named_modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in ("training", "dubio_architecture")
    }


def _anew(net: nn.Module, strict: bool) -> nn.Module:
    """A copy of a network with new weights."""
    from dubio.models import Standardise, build

    member = copy.deepcopy(net)
    architecture = architecture_of(net)
    built = None if architecture is None else build(architecture)
    if built is not None and _shapes(built) == _shapes(net):  # unless its owner has changed it since
        # Means and standard deviations of the inputs belong to the data: every member has the same.
        of_data = {
            f"{place}.{name}"
            for place, module in net.named_modules()
            if isinstance(module, Standardise)
            for name in module.state_dict()
        }
        new = {name: tensor for name, tensor in built.state_dict().items() if name not in of_data}
        member.load_state_dict(member.state_dict() | new)
        return member
    reset: set[int] = set()
    for module in reversed(list(member.modules())):  # what a module does to its children comes last
        begin = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(begin):
            begin()
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
