"""A small file system without privileges: real files, of which only so many blocks are had."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from waltz.host import File, Space
from waltz.system.real_disk import RealDisk


class SmallDisk(RealDisk):
    """The directory as a file system of its own. Blocks are the real file system's; what would take
    more of them than there are fails as it does on a full one, half done."""

    def __init__(self, directory: Path, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._directory = directory

    @property
    def used_bytes(self) -> int:
        return sum(path.stat().st_blocks * 512 for path in self._directory.rglob("*"))

    def space(self, path: str) -> Space:
        return Space(max(0, self.capacity_bytes - self.used_bytes), self.capacity_bytes)

    def open(self, path: str, *, create: bool = False) -> SmallFile:
        return SmallFile(self, super().open(path, create=create), path)


class SmallFile:
    """Implements `host.File`."""

    def __init__(self, disk: SmallDisk, file: File, path: str) -> None:
        self._disk = disk
        self._file = file
        self._path = path
        self.size = file.size
        self.read_at = file.read_at
        self.truncate = file.truncate
        self.sync = file.sync
        self.close = file.close

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        had, size = self._disk.used_bytes, self._file.size()
        self._file.write_at(offset, data)
        # Blocks are given to what was written, not to what waits for it.
        self._file.sync()
        if self._disk.used_bytes > max(had, self._disk.capacity_bytes):
            self._file.truncate(max(size, offset + len(data) // 2))
            raise self._no_space()

    def preallocate(self, size: int) -> None:
        had = self._disk.used_bytes
        self._file.preallocate(size)
        if self._disk.used_bytes > max(had, self._disk.capacity_bytes):
            self._file.truncate(self._file.size())
            raise self._no_space()

    def _no_space(self) -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
