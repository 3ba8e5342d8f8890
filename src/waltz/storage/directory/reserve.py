"""The reserve file: disk space of the node, to be given back when others have filled the disk.

Owns the file `waltz-storage.reserve` in the storage directory, which is empty and yet has space
allocated. Decides nothing: `space.py` says when it is held.
"""

from __future__ import annotations

from typing import Final

from waltz.host import Disk
from waltz.limits import SPACE_RESERVE_BYTES

RESERVE_NAME: Final = "waltz-storage.reserve"


class Reserve:
    """Not held until it is taken, whatever an earlier process has left."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.is_held = False
        self._disk = disk
        self._path = f"{directory}/{RESERVE_NAME}"

    def take(self) -> None:
        """Allocate what of it is not allocated yet. Raises OSError: there is no room for it, and
        none is taken.

        It need not survive a power cut, so nothing is synced.
        """
        file = self._disk.open(self._path, create=not self._disk.exists(self._path))
        try:
            file.preallocate(SPACE_RESERVE_BYTES)
        except OSError:
            file.truncate(0)
            file.sync()
            raise
        finally:
            file.close()
        self.is_held = True

    def give_back(self) -> None:
        """Let others have the space; once this returns it can be used. Raises OSError."""
        self.is_held = False
        if not self._disk.exists(self._path):
            return
        file = self._disk.open(self._path)
        try:
            file.truncate(0)
            # File systems hand out freed space again only once the freeing itself is durable.
            file.sync()
        finally:
            file.close()
