"""Data: datasets by name, from a folder or a table, held in memory."""

from dubio.data.downloads import DownloadError
from dubio.data.errors import DataError
from dubio.data.examples import Examples, Splits, scaled
from dubio.data.image_folder import read_image_folder
from dubio.data.ood import OOD_PAIRS, held_out_classes, ood_sets
from dubio.data.registry import NAMES, Status, data_folder, fetch, load, load_test, status
from dubio.data.tables import read_table
from dubio.data.toy import clusters, curve, diabetes, digits

__all__ = [
    "DataError",
    "DownloadError",
    "Examples",
    "NAMES",
    "OOD_PAIRS",
    "Splits",
    "Status",
    "clusters",
    "curve",
    "data_folder",
    "diabetes",
    "digits",
    "fetch",
    "held_out_classes",
    "load",
    "load_test",
    "ood_sets",
    "read_image_folder",
    "read_table",
    "scaled",
    "status",
]
