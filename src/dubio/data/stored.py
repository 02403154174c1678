"""What datasets in files have in common: the files of each part, how to read them, and where they come from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from dubio.data.examples import Examples

__all__ = ["Part", "Remote", "StoredSet"]

Part = Literal["train", "test"]


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded.

    Args:
        path: where it goes, relative to the folder of all data.
        urls: its addresses, to be tried in this order.
        md5: the checksum it must have.
        max_bytes: what it is no larger than: a download ends there, whatever the server goes on to send.
    """

    path: str
    urls: tuple[str, ...]
    md5: str
    max_bytes: int = 256 * 2**20


@runtime_checkable
class StoredSet(Protocol):
    """A dataset in torchvision's layout under the folder of all data."""

    @property
    def name(self) -> str:
        """What users type."""

    @property
    def what(self) -> str:
        """What it holds, in a few words."""

    @property
    def place(self) -> str:
        """Where its files are, relative to the folder of all data."""

    @property
    def train_optional(self) -> bool:
        """Whether the test part alone is enough to open it."""

    def files(self, part: Part) -> tuple[str, ...]:
        """The files of a part, relative to the folder of all data."""

    def missing(self, folder: Path, part: Part) -> tuple[str, ...]:
        """Those of the files that a folder lacks; packed forms count as there."""

    def read(self, folder: Path, part: Part) -> Examples:
        """The examples of a part; ``DataError`` where a file is damaged or not the official one."""

    def remotes(self, part: Part) -> tuple[Remote, ...]:
        """What to download for a part."""
