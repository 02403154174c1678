"""Datasets by name, from a folder of images or from a table, and the batches that networks are trained on.

Corruptions and label noise are imported when they are first used; training does not need them.
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
from dubio.data.columns import TableChunk, Target, Task, read_rows
from dubio.data.encoder import TableColumn, TableEncoder, fit_encoder, remarks_as_text as remarks_as_text
from dubio.data.examples import Examples, Splits, scaled
from dubio.data.files import DataError, DataWarning, TableWarning
from dubio.data.fingerprints import (
    DataFingerprint as DataFingerprint,
    fingerprint_of,
    fingerprint_of_batches,
    order_of as order_of,
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
    find_name as find_name,
    held_out_classes,
    load,
    load_test,
    load_unseen,
    ood_sets,
    standardised,
    status,
)
from dubio.data.stored import DownloadError
from dubio.data.tables import TABLES as TABLES, NewRows, read_new, read_table

if TYPE_CHECKING:
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
    "NewRows",
    "NoisyLabels",
    "OOD_PAIRS",
    "Rotation",
    "Splits",
    "Status",
    "Symmetric",
    "TableChunk",
    "TableColumn",
    "TableEncoder",
    "TableWarning",
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
    "read_new",
    "read_rows",
    "read_table",
    "scaled",
    "standardised",
    "status",
]

if not TYPE_CHECKING:  # a type checker would accept every other name too
    __getattr__ = import_later("dubio.data", {"corruptions": tuple({*__all__} - {*globals()})})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
