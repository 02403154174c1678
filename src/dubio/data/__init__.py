"""Data: datasets by name, from a folder or a table, held in memory.

What reads and changes datasets is imported when it is first asked for; training needs examples and batches alone.
"""

from typing import TYPE_CHECKING

from dubio._lazy import import_later
from dubio.data.batches import (
    Batch as Batch,
    Batches as Batches,
    batches_from as batches_from,
    refuse_string_inputs as refuse_string_inputs,
)
from dubio.data.encoding import TableColumn, TableEncoder, fit_encoder, remarks_as_text as remarks_as_text
from dubio.data.errors import DataError, DataWarning, TableWarning
from dubio.data.examples import Examples, Splits, scaled
from dubio.data.fingerprints import (
    DataFingerprint as DataFingerprint,
    fingerprint_of,
    fingerprint_of_batches,
    order_of as order_of,
)
from dubio.data.loading import CropAndFlip, Loader, epoch_order
from dubio.data.registry import find_name as find_name
from dubio.data.sharing import shared_batches as shared_batches
from dubio.data.tables import TABLES as TABLES
from dubio.data.targets import Target, Task
from dubio.data.unlabelled import NewRows, read_new

if TYPE_CHECKING:
    from dubio.data.columns import TableChunk, read_rows
    from dubio.data.corruptions import (
        CORRUPTIONS,
        Blur,
        Contrast,
        Corruption,
        GaussianNoise,
        Inversion,
        Rotation,
        corrupt,
    )
    from dubio.data.downloads import DownloadError
    from dubio.data.image_folder import read_image_folder
    from dubio.data.label_noise import (
        Flip,
        LabelNoise,
        MnistAsymmetric,
        NoisyLabels,
        Symmetric,
        UniformMix,
        parse_label_noise,
    )
    from dubio.data.ood import OOD_PAIRS, held_out_classes, ood_sets
    from dubio.data.registry import NAMES, Status, data_folder, fetch, load, load_test, load_unseen, status
    from dubio.data.tables import read_table
    from dubio.data.toy import clusters, curve, diabetes, diabetes_table, digits, standardised

LATER = {
    "columns": ("TableChunk", "read_rows"),
    "corruptions": (
        *("CORRUPTIONS", "Blur", "Contrast", "Corruption", "GaussianNoise", "Inversion", "Rotation", "corrupt"),
    ),
    "downloads": ("DownloadError",),
    "image_folder": ("read_image_folder",),
    "label_noise": (
        *("Flip", "LabelNoise", "MnistAsymmetric", "NoisyLabels", "Symmetric", "UniformMix", "parse_label_noise"),
    ),
    "ood": ("OOD_PAIRS", "held_out_classes", "ood_sets"),
    "registry": ("NAMES", "Status", "data_folder", "fetch", "load", "load_test", "load_unseen", "status"),
    "tables": ("read_table",),
    "toy": ("clusters", "curve", "diabetes", "diabetes_table", "digits", "standardised"),
}

__all__ = [
    "Blur",
    "CORRUPTIONS",
    "Contrast",
    "Corruption",
    "CropAndFlip",
    "DataError",
    "DataWarning",
    "DownloadError",
    "Examples",
    "Flip",
    "GaussianNoise",
    "Inversion",
    "LabelNoise",
    "Loader",
    "MnistAsymmetric",
    "NAMES",
    "NoisyLabels",
    "OOD_PAIRS",
    "Rotation",
    "Splits",
    "Status",
    "Symmetric",
    "TableChunk",
    "TableColumn",
    "NewRows",
    "TableEncoder",
    "TableWarning",
    "read_new",
    "Target",
    "Task",
    "UniformMix",
    "clusters",
    "corrupt",
    "curve",
    "data_folder",
    "diabetes",
    "diabetes_table",
    "digits",
    "epoch_order",
    "fetch",
    "fingerprint_of",
    "fingerprint_of_batches",
    "fit_encoder",
    "held_out_classes",
    "load",
    "load_test",
    "load_unseen",
    "ood_sets",
    "parse_label_noise",
    "read_image_folder",
    "read_rows",
    "read_table",
    "scaled",
    "standardised",
    "status",
]

if not TYPE_CHECKING:  # which knows all names, and would take any other for one of them
    __getattr__ = import_later("dubio.data", LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
