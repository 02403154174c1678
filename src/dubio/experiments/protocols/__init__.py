"""How experiments are made, by name: functions of settings, a seed and a device that give numbers."""

from collections.abc import Callable

from dubio.experiments.protocols.flow_on_images import flow_honest, flow_images
from dubio.experiments.protocols.flow_on_plane import flow_lengths, flow_paired, flow_plane
from dubio.experiments.protocols.regression import regression
from dubio.experiments.protocols.trial import Trial
from dubio.experiments.results import Findings

__all__ = ["PROTOCOLS", "Protocol", "Trial"]

Protocol = Callable[[Trial], Findings]

PROTOCOLS: dict[str, Protocol] = {
    "regression": regression,
    "flow_plane": flow_plane,
    "flow_lengths": flow_lengths,
    "flow_paired": flow_paired,
    "flow_images": flow_images,
    "flow_honest": flow_honest,
}
