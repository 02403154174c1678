"""The command line: arguments in, lines out; and what commands of other packages share with it (docs/plugins.md)."""

from typing import TYPE_CHECKING

from dubio._lazy import import_later
from dubio.cli.commands import app, main
from dubio.cli.errors import PartlyFailedError, say
from dubio.cli.options import Device, Quiet, device_for

if TYPE_CHECKING:
    from dubio.cli.terminal import PlainTable as PlainTable

__all__ = ["Device", "PartlyFailedError", "PlainTable", "Quiet", "app", "device_for", "main", "say"]

if not TYPE_CHECKING:  # rich takes long to import, and most commands that fail at once need no table
    __getattr__ = import_later("dubio.cli", {"terminal": ("PlainTable",)})
