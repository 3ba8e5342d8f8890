"""The reserve file: disk space of the node that is released when other programs fill the disk.

Owns the file `waltz-storage.reserve` in the storage directory, which is empty and yet has space
allocated. Decides nothing: `space.py` says when it is held.
"""

from __future__ import annotations

from typing import Final

from waltz.host import Disk
from waltz.limits import SPACE_RESERVE_BYTES

RESERVE_NAME: Final = "waltz-storage.reserve"


class Reserve:
    """The reserve of one node; it counts as not held until this process takes it."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.is_held = False
        self._disk = disk
        self._path = f"{directory}/{RESERVE_NAME}"

    def take(self) -> None:
        """Allocate the part of the reserve that is not allocated yet. Raises OSError: there is not
        enough space, and none is taken.

        The reserve need not survive a power cut, so nothing is synced.
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
        """Release the space; it can be used once this returns. Raises OSError."""
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
