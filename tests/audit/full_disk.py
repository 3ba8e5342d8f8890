"""A disk on which some files cannot grow for a while."""

from __future__ import annotations

import errno

from waltz.host import File
from waltz.system.real_disk import RealDisk


class FullDisk(RealDisk):
    """Takes no bytes in files whose path ends with `end` while `is_full`."""

    def __init__(self, end: str) -> None:
        self.is_full = False
        self._end = end

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        return FullFile(self, file) if path.endswith(self._end) else file


class FullFile:
    """Implements `host.File`."""

    def __init__(self, disk: FullDisk, file: File) -> None:
        self._disk = disk
        self._write_at = file.write_at
        self.size = file.size
        self.read_at = file.read_at
        self.truncate = file.truncate
        self.preallocate = file.preallocate
        self.sync = file.sync
        self.close = file.close

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        if self._disk.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        self._write_at(offset, data)
