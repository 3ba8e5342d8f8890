"""A small file of promises: each change is durable when the call returns.

Owns the rule that after a failure nothing in the file is believed. Knows nothing of the content.
"""

from __future__ import annotations

import errno
from typing import Final

from waltz.errors import SegmentFailedError
from waltz.host import File

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
"""Errors that leave the file as it was."""


class SyncedFile:
    """An open file with a `name` for errors.

    After a failed write or sync nobody knows what the disk holds, so that every later write is
    refused; only one that found no space may be tried again.
    """

    def __init__(self, file: File, name: str) -> None:
        self._file = file
        self._name = name
        self._failed = False

    def write(self, offset: int, data: bytes) -> None:
        """Replace bytes from `offset` on and sync. Raises SegmentFailedError."""
        self.check_sound()
        try:
            self._file.write_at(offset, data)
        except OSError as error:
            self._failed = error.errno not in NO_SPACE
            raise SegmentFailedError(f"{self._name} at byte {offset}: {error}") from error
        try:
            self._file.sync()
        except OSError as error:
            self._failed = True
            raise SegmentFailedError(f"{self._name} at byte {offset}: {error}") from error

    def check_sound(self) -> None:
        """Raises SegmentFailedError: a write or a sync has failed."""
        if self._failed:
            raise SegmentFailedError(
                f"{self._name} takes no update after a failed one, until the node is started again"
            )

    def close(self) -> None:
        self._file.close()
