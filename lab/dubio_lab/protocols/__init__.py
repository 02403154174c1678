"""How experiments are made, by name: functions of settings, a seed and a device that give numbers."""

from collections.abc import Callable

from dubio_lab.protocols import bbb
from dubio_lab.protocols.alpha import alpha_classification, alpha_honest, alpha_samples
from dubio_lab.protocols.alpha_attacks import alpha_targeted, alpha_untargeted
from dubio_lab.protocols.alpha_detection import alpha_detection
from dubio_lab.protocols.alpha_regression import alpha_regression
from dubio_lab.protocols.bws import bws_clean, bws_honest, bws_pruning, bws_sources, bws_transfer
from dubio_lab.protocols.embeddings import embedding_plane, embeddings_judged
from dubio_lab.protocols.flow_on_images import flow_honest, flow_images
from dubio_lab.protocols.flow_on_plane import flow_lengths, flow_paired, flow_plane
from dubio_lab.protocols.image_calibration import image_calibration, image_search
from dubio_lab.protocols.image_defence import image_defence, image_defence_search
from dubio_lab.protocols.regression import regression
from dubio_lab.protocols.trial import Trial
from dubio_lab.protocols.wrong_labels import label_noise, label_noise_search
from dubio_lab.results import Findings

__all__ = ["PROTOCOLS", "Protocol", "Trial"]

Protocol = Callable[[Trial], Findings]

PROTOCOLS: dict[str, Protocol] = {
    "bbb_error": bbb.error,
    "bbb_fgsa": bbb.fgsa,
    "bbb_honest": bbb.honest,
    "bbb_learning_curve": bbb.learning_curve,
    "bbb_ood": bbb.ood,
    "bbb_pruning": bbb.pruning,
    "bbb_search": bbb.search,
    "bbb_speed": bbb.speed,
    "alpha_classification": alpha_classification,
    "alpha_detection": alpha_detection,
    "alpha_honest": alpha_honest,
    "alpha_regression": alpha_regression,
    "alpha_samples": alpha_samples,
    "alpha_targeted": alpha_targeted,
    "alpha_untargeted": alpha_untargeted,
    "bws_clean": bws_clean,
    "bws_honest": bws_honest,
    "bws_pruning": bws_pruning,
    "bws_sources": bws_sources,
    "bws_transfer": bws_transfer,
    "embedding_plane": embedding_plane,
    "embeddings_judged": embeddings_judged,
    "image_calibration": image_calibration,
    "image_defence": image_defence,
    "image_defence_search": image_defence_search,
    "image_search": image_search,
    "label_noise": label_noise,
    "label_noise_search": label_noise_search,
    "flow_honest": flow_honest,
    "flow_images": flow_images,
    "flow_lengths": flow_lengths,
    "flow_paired": flow_paired,
    "flow_plane": flow_plane,
    "regression": regression,
}
