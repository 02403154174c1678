"""Keeping networks: one safetensors file with JSON metadata, never pickle."""

from dubio.persistence.command_log import (
    Command as Command,
    forget_commands as forget_commands,
    read_commands as read_commands,
    write_commands as write_commands,
)
from dubio.persistence.files import (
    Identity as Identity,
    file_content as file_content,
    identity_of as identity_of,
    load,
    save,
)
from dubio.persistence.lock import locked as locked
from dubio.persistence.records import Record as Record, read_history as read_history
from dubio.persistence.tensors import with_ties as with_ties, without_ties as without_ties
from dubio.persistence.values import from_json as from_json

__all__ = ["load", "save"]
