"""The command line, and the names that commands of other packages share with it (docs/plugins.md)."""

from typing import TYPE_CHECKING

from dubio._lazy import import_later
from dubio.cli.commands import app, main
from dubio.cli.errors import PartlyFailedError, say
from dubio.cli.options import Device, Quiet, device_for

if TYPE_CHECKING:
    from dubio.cli.terminal import PlainTable as PlainTable

__all__ = ["Device", "PartlyFailedError", "PlainTable", "Quiet", "app", "device_for", "main", "say"]

if not TYPE_CHECKING:  # importing rich takes long, and an error needs no table
    __getattr__ = import_later("dubio.cli", {"terminal": ("PlainTable",)})
