"""Files of the operating system.

Owns descriptors, locks and the calls that make data durable: `fdatasync` for contents and sizes,
`fsync` of the directory for names. Knows nothing of the meaning of the bytes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import struct
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from waltz.errors import DirectoryInUseError
from waltz.host import File, Space

log = logging.getLogger(__name__)

LOCKED_BYTES: Final = 128
"""The original locks its control file's header; with the same range each respects the other."""

FILE_MODE: Final = 0o600
"""The mode of new files. No umask widens it, and that of a file that exists is never changed."""

DIRECTORY_MODE: Final = 0o700
"""The mode of new directories."""

UMASK: Final = 0o077
"""The umask of a process that creates files by itself, and so with these modes at most."""

_FLOCK: Final = struct.Struct("@hhqqi0q")
"""`struct flock`: type, whence, start, length, owner."""

_FALLOC_FL_KEEP_SIZE: Final = 1


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return the C library's `fallocate` for 64-bit sizes, or None if there is none. The function
    in `os` changes the size, and writes zeros on a file system that cannot reserve."""
    library = ctypes.CDLL(None, use_errno=True)
    for name in ("fallocate64", "fallocate"):
        if function := getattr(library, name, None):
            function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
            function.restype = ctypes.c_int
            return function  # type: ignore[no-any-return]
    return None


_fallocate = _find_fallocate()


def owner_only(path: str, flags: int) -> int:
    """Open a file, and create it with its mode if `flags` say so: an `opener` for `open`."""
    return os.open(path, flags, FILE_MODE)


class RealFile:
    """Implements `host.File` by positioned reads and writes, so threads may share it."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, offset: int, count: int) -> bytes:
        data = os.pread(self._descriptor, count, offset)
        if not data or len(data) == count:
            return data
        parts, found = [data], len(data)
        while found < count and (data := os.pread(self._descriptor, count - found, offset + found)):
            parts.append(data)
            found += len(data)
        return b"".join(parts)

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        written = os.pwrite(self._descriptor, data, offset)
        if written == len(data) and type(data) is bytes:
            return
        rest = memoryview(data).cast("B")[written:]
        while rest:
            if written == 0:
                raise OSError(errno.EIO, "nothing was written", self._path)
            offset += written
            written = os.pwrite(self._descriptor, rest, offset)
            rest = rest[written:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def preallocate(self, size: int) -> None:
        if size <= 0 or _fallocate is None:
            return
        while _fallocate(self._descriptor, _FALLOC_FL_KEEP_SIZE, 0, size) != 0:
            number = ctypes.get_errno()
            if number in (errno.EOPNOTSUPP, errno.ENOSYS):
                return
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number), self._path)

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError:
            # The system now marks the lost pages clean. Drop them, so that the next read of this
            # file returns what the disk has, not what it should have.
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            raise

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class RealFileToRead(RealFile):
    """Refuses every change, and a sync, which only a writer needs."""

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        self._refuse()

    def truncate(self, size: int) -> None:
        self._refuse()

    def preallocate(self, size: int) -> None:
        self._refuse()

    def sync(self) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise OSError(errno.EBADF, "the file was opened for reading only", self._path)


class RealDisk:
    """Implements `host.Disk`."""

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return RealFile(owner_only(path, flags), path)

    def open_to_read(self, path: str) -> File:
        return RealFileToRead(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def lock(self, path: str) -> Callable[[], None]:
        """Lock the file at `path`. The lock belongs to its own open file: a second one is refused
        in this process, too; it survives a rename, and the original's record lock respects it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, LOCKED_BYTES, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise DirectoryInUseError(
                    f"{path} is locked: another process works in {os.path.dirname(path)}"
                ) from error
            raise
        return RealFile(descriptor, path).close

    def exists(self, path: str) -> bool:
        # Not `lexists`, for which a path that cannot be looked at is not there: what is there would
        # be made anew.
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False
        return True

    def list_directory(self, path: str) -> Sequence[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        os.mkdir(path, DIRECTORY_MODE)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def tell_of_open_files(directory: str) -> None:
    """Warn of a file in the directory that other users of this machine may read: an earlier release
    or the original made it. Its mode stays, for somebody may rely on it."""
    try:
        names = sorted(os.listdir(directory))
        modes = {name: os.stat(os.path.join(directory, name)).st_mode & 0o777 for name in names}
    except OSError:
        return  # the node reports what is wrong with the directory
    for name, mode in modes.items():
        if mode & 0o077:
            log.warning(
                "files_open_to_others path=%s/%s mode=%o: others on this machine may read"
                " records; new files can be read by their owner only; for the older files: chmod"
                " -R go= %s",
                directory, name, mode, directory,
            )  # fmt: skip
            return
