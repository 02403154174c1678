"""An ordinary twin: the architecture of a network without its noise and its defence, which an attack must break."""

import copy

from torch import Tensor, nn

from dubio._engine import Stream, redirected, seeded_run
from dubio.attacks import Model, Victim, score, untouched
from dubio.convert import to_mean
from dubio.methods import Deterministic
from dubio.nn import Members
from dubio.training import fit

__all__ = ["ordinary_twin"]

EPOCHS, BATCH, RATE = 40, 32, 1e-3
LEARNED = 0.9


def ordinary_twin(model: Model, inputs: Tensor, targets: Tensor, seed: int) -> nn.Module | None:
    """A network of the same architecture, from new weights, trained in the ordinary way on these very images.

    None where there is none: for a bare function, noise that cannot be taken out, or what does not learn them.
    """
    if not isinstance(model, nn.Module):
        return None
    try:
        with redirected(Stream(seed)):  # modules draw their weights from torch's global generator
            twin = Deterministic().convert(_without_noise(model))
            for module in twin.modules():
                if callable(reset := getattr(module, "reset_parameters", None)):
                    reset()
        fit(twin, (inputs, targets), epochs=EPOCHS, lr=RATE, batch_size=BATCH, seed=seed, progress=False)
    except (ValueError, TypeError, RuntimeError):  # it cannot be copied, converted back or trained
        return None
    return twin.eval() if _is_good(twin, inputs, targets, seed) else None


def _without_noise(model: nn.Module) -> nn.Module:
    members = next((module.members for module in model.modules() if isinstance(module, Members)), None)
    if members is not None:
        return copy.deepcopy(members[0])
    return to_mean(model) if hasattr(model, "dubio_spec") else copy.deepcopy(model)


def _is_good(twin: nn.Module, inputs: Tensor, targets: Tensor, seed: int) -> bool:
    """Whether it has no noise of its own and knows the images."""
    victim = Victim(twin, 1, "predictive", "margin", "fresh", 0)
    with untouched(twin):
        seeded_run(seed, inputs.device, lambda: victim.check(inputs, targets))
    if victim.is_random:
        return False
    return score(twin, inputs, targets, num_samples=1, num_tries=1).predictive.value >= LEARNED
