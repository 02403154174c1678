"""Data: datasets by name, from a folder or a table, held in memory.

What reads and changes datasets is imported when it is first asked for; training needs examples and batches alone.
"""

from typing import TYPE_CHECKING

from dubio._lazy import import_later
from dubio.data.batches import (
    Batch as Batch,
    Batches as Batches,
    CropAndFlip,
    Loader,
    batches_from as batches_from,
    epoch_order,
    refuse_string_inputs as refuse_string_inputs,
    shared_batches as shared_batches,
)
from dubio.data.columns import Target, Task
from dubio.data.encoder import TableColumn, TableEncoder, fit_encoder, remarks_as_text as remarks_as_text
from dubio.data.examples import Examples, Splits, scaled
from dubio.data.files import DataError, DataWarning, TableWarning
from dubio.data.fingerprints import (
    DataFingerprint as DataFingerprint,
    fingerprint_of,
    fingerprint_of_batches,
    order_of as order_of,
)
from dubio.data.registry import find_name as find_name
from dubio.data.tables import TABLES as TABLES, NewRows, read_new

if TYPE_CHECKING:
    from dubio.data.columns import TableChunk, read_rows
    from dubio.data.corruptions import (
        CORRUPTIONS,
        Blur,
        Contrast,
        Corruption,
        Flip,
        GaussianNoise,
        Inversion,
        LabelNoise,
        MnistAsymmetric,
        NoisyLabels,
        Rotation,
        Symmetric,
        UniformMix,
        corrupt,
        parse_label_noise,
    )
    from dubio.data.image_files import read_image_folder
    from dubio.data.registry import (
        NAMES,
        OOD_PAIRS,
        Status,
        clusters,
        curve,
        data_folder,
        diabetes,
        diabetes_table,
        digits,
        fetch,
        held_out_classes,
        load,
        load_test,
        load_unseen,
        ood_sets,
        standardised,
        status,
    )
    from dubio.data.stored import DownloadError
    from dubio.data.tables import read_table

LATER = {
    "columns": ("TableChunk", "read_rows"),
    "corruptions": (
        "Blur",
        "CORRUPTIONS",
        "Contrast",
        "Corruption",
        "Flip",
        "GaussianNoise",
        "Inversion",
        "LabelNoise",
        "MnistAsymmetric",
        "NoisyLabels",
        "Rotation",
        "Symmetric",
        "UniformMix",
        "corrupt",
        "parse_label_noise",
    ),
    "image_files": ("read_image_folder",),
    "registry": (
        "NAMES",
        "OOD_PAIRS",
        "Status",
        "clusters",
        "curve",
        "data_folder",
        "diabetes",
        "diabetes_table",
        "digits",
        "fetch",
        "held_out_classes",
        "load",
        "load_test",
        "load_unseen",
        "ood_sets",
        "standardised",
        "status",
    ),
    "stored": ("DownloadError",),
    "tables": ("read_table",),
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
