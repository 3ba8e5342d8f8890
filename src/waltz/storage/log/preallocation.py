"""Space reserved ahead of the end of a file that grows, so that writes find their blocks allocated.

Owns how far the reservation reaches. The file's size stays the end of what was written; what is
left over is given back when the file is complete or closed.
"""

from __future__ import annotations

from typing import Final

from waltz.host import File
from waltz.storage.directory.space import is_no_space

PREALLOCATED_BYTES_MIN: Final = 1024 * 1024
PREALLOCATED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Reserved ahead of the end of a data file, a quarter of its size within these two: a sync that
finds its blocks allocated takes 20 to 35 % less time."""


def data_bytes_ahead(size: int) -> int:
    """How much to reserve ahead of a data file of `size` bytes: it grows with the file."""
    return min(PREALLOCATED_BYTES_MAX, max(PREALLOCATED_BYTES_MIN, size // 4))


class Preallocation:
    """The reservation of one open file; what an earlier process left reserved is not known."""

    def __init__(self, file: File) -> None:
        self.end = 0
        """Up to which byte there is space."""
        self._file = file

    def cover(self, end: int, *, ahead: int, limit: int) -> None:
        """Have space up to byte `end`: reserve `ahead` more bytes if it has to be extended, but
        none beyond `limit`, and none if there is no room for them.

        Raises OSError: there is no room up to `end`.
        """
        if end <= self.end:
            return
        target = max(end, min(end + ahead, limit))
        if not self._reserve(target, is_last_try=target == end):
            self._reserve(end, is_last_try=True)

    def _reserve(self, end: int, *, is_last_try: bool) -> bool:
        try:
            self._file.preallocate(end)
        except OSError as error:
            if is_no_space(error):
                # What did fit was reserved: others need it more.
                self.truncate(self._file.size())
            if is_last_try or not is_no_space(error):
                raise
            return False
        self.end = end
        return True

    def give_back(self, size: int) -> None:
        """Give back what is reserved beyond `size`, the end of what was written. Raises OSError."""
        if self.end > size:
            self.truncate(size)

    def truncate(self, size: int) -> None:
        """Cut the file to `size` and give back all beyond. Raises OSError."""
        self._file.truncate(size)
        self.end = 0
