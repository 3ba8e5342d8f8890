"""A disk in memory that forgets what was not synced, and fails when told to.

Owns what a real disk guarantees and what it does not: after a crash all synced bytes are there; of
the writes and name changes since, any subset, in pieces of one sector. Harsher than most file
systems, so code that works here relies on no more than was promised. Only the bytes of files take
up space. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from posixpath import dirname
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from waltz.errors import DirectoryInUseError
from waltz.host import File, Space

SECTOR_BYTES: Final = 512
"""The unit that a disk writes whole or not at all."""

BOUNDLESS: Final = Space(1 << 50, 1 << 50)
"""The room on a disk without a capacity."""


class DiskOperation(StrEnum):
    OPEN = "open"
    READ = "read"
    WRITE = "write"
    TRUNCATE = "truncate"
    PREALLOCATE = "preallocate"
    SYNC = "sync"
    MAKE_DIRECTORY = "make directory"
    REMOVE = "remove"
    RENAME = "rename"
    LINK = "link"
    SYNC_DIRECTORY = "sync directory"


Fault = Callable[[DiskOperation, str], None]
"""Called with every operation and its path before it happens; may raise OSError."""


class PartlyDoneError(OSError):
    """Raised by a fault: the operation fails, yet the share `done` (0 to 1) of it has happened.

    Of a write that is the first bytes, of a sync the first of the changes that waited for it. Any
    other error of a fault leaves half of a write and nothing of a sync.
    """

    done: float = 0.0


def fail_nth(
    operation: DiskOperation,
    number: int,
    error_number: int = errno.EIO,
    *,
    done: float | None = None,
    forever: bool = False,
) -> Fault:
    """Return a fault that fails the `number`-th `operation` from now on, counted from 1; once, or
    that one and all that follow. `done`: see PartlyDoneError."""
    seen = 0

    def fault(found: DiskOperation, path: str) -> None:
        nonlocal seen
        if found is not operation:
            return
        seen += 1
        if seen == number or (forever and seen > number):
            kind = OSError if done is None else PartlyDoneError
            error = kind(error_number, f"{operation.value} number {seen} fails", path)
            if isinstance(error, PartlyDoneError):
                error.done = done or 0.0
            raise error

    return fault


class _Write(NamedTuple):
    offset: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        offset, data = self
        if not data:
            return
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data


class _Truncate(NamedTuple):
    size: int

    def apply(self, content: bytearray) -> None:
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


class _Content:
    """The content of a file: as seen now, as durable, and the changes in between."""

    __slots__ = ("changes", "durable", "locked", "reserved", "seen")

    def __init__(self, durable: bytes = b"") -> None:
        self.seen = bytearray(durable)
        self.durable = bytearray(durable)
        self.changes: list[_Write | _Truncate] = []
        self.reserved = 0
        """The end of reserved space, if that is beyond the end of the file."""
        self.locked = False

    @property
    def allocated(self) -> int:
        """Bytes of the disk's capacity that the file takes."""
        return max(len(self.seen), self.reserved)

    def change(self, change: _Write | _Truncate) -> None:
        change.apply(self.seen)
        self.changes.append(change)

    def sync(self) -> None:
        for change in self.changes:
            change.apply(self.durable)
        self.changes.clear()

    def fail_sync(self, done: float) -> None:
        """Fail a sync as operating systems do: unwritten changes are still seen, count as clean,
        and no later sync will try them again."""
        for change in self.changes[: int(len(self.changes) * done)]:
            change.apply(self.durable)
        self.changes.clear()

    def crash(self, random: Random) -> _Content:
        """Return the content after a crash: of each unsynced change all, nothing, or some
        sectors."""
        survivor = _Content(bytes(self.durable))
        survivor.reserved = self.reserved
        for change in self.changes:
            fate = random.random()
            if fate < 0.4:
                change.apply(survivor.durable)
            elif fate < 0.7 and isinstance(change, _Write):
                for sector in _sectors(change):
                    if random.random() < 0.5:
                        sector.apply(survivor.durable)
        survivor.seen = bytearray(survivor.durable)
        return survivor


def _sectors(write: _Write) -> Iterable[_Write]:
    position, end = write.offset, write.offset + len(write.data)
    while position < end:
        following = min(end, (position // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield _Write(position, write.data[position - write.offset : following - write.offset])
        position = following


class SimulatedFile:
    """Implements `host.File`."""

    def __init__(
        self, disk: SimulatedDisk, path: str, content: _Content, *, to_read: bool = False
    ) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._to_read = to_read
        self._closed = False

    def size(self) -> int:
        self._check_open()
        return len(self._content.seen)

    def read_at(self, offset: int, count: int) -> bytes:
        self._check_open()
        self._disk.begin(DiskOperation.READ, self._path)
        return bytes(memoryview(self._content.seen)[offset : offset + count])

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        self._check_writable()
        data = bytes(data)
        try:
            self._disk.begin(DiskOperation.WRITE, self._path)
        except OSError as error:
            done = error.done if isinstance(error, PartlyDoneError) else 0.5
            self._content.change(_Write(offset, data[: int(len(data) * done)]))
            raise
        end = self._content.allocated + self._disk.free_bytes
        self._content.change(_Write(offset, data[: max(0, end - offset)]))
        if offset + len(data) > end:
            raise self._no_space()

    def truncate(self, size: int) -> None:
        self._check_writable()
        self._disk.begin(DiskOperation.TRUNCATE, self._path)
        self._content.change(_Truncate(size))
        self._content.reserved = 0

    def preallocate(self, size: int) -> None:
        self._check_writable()
        self._disk.begin(DiskOperation.PREALLOCATE, self._path)
        end = self._content.allocated + self._disk.free_bytes
        # Space that fits stays reserved, as on ext4.
        self._content.reserved = max(self._content.reserved, min(size, end))
        if size > end:
            raise self._no_space()

    def sync(self) -> None:
        self._check_writable()
        try:
            self._disk.begin(DiskOperation.SYNC, self._path)
        except OSError as error:
            self._content.fail_sync(error.done if isinstance(error, PartlyDoneError) else 0.0)
            raise
        self._content.sync()
        if self._disk.on_sync is not None:
            self._disk.on_sync(self._path, self._content.durable)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self._path)

    def _check_writable(self) -> None:
        self._check_open()
        if self._to_read:
            raise OSError(errno.EBADF, "the file was opened for reading only", self._path)

    def _no_space(self) -> OSError:
        return OSError(errno.ENOSPC, "no space left on the disk", self._path)


_Entry = _Content | None
"""The entry of a name: a file's content, or None for a directory."""


@dataclass(frozen=True, slots=True)
class _NameChange:
    """Names of one directory, given or (absent in `given`) taken away, all or nothing."""

    taken: tuple[str, ...]
    given: tuple[tuple[str, _Entry], ...]


class DiskFiles:
    """The files of a disk under their names: as seen now, as durable, and the changes in between.

    Tells what a power cut would leave and what it could take, which no process can ask.
    """

    def __init__(self, entries: Mapping[str, _Entry]) -> None:
        self.seen: dict[str, _Entry] = {"/": None, **entries}
        self.durable = dict(self.seen)
        self.changes: dict[str, list[_NameChange]] = {}
        """Changes of names that are not durable, by directory."""

    def file(self, path: str) -> _Content:
        if path not in self.seen:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        entry = self.seen[path]
        if entry is None:
            raise IsADirectoryError(errno.EISDIR, "a directory", path)
        return entry

    def each(self) -> Iterable[_Content]:
        """Return each file once, whatever the number of its names."""
        return {id(entry): entry for entry in self.seen.values() if entry is not None}.values()

    def check_directory(self, path: str) -> None:
        if path not in self.seen:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if self.seen[path] is not None:
            raise NotADirectoryError(errno.ENOTDIR, "a file", path)

    def change(self, change: _NameChange) -> None:
        directory = dirname(change.taken[0] if change.taken else change.given[0][0])
        self.check_directory(directory)
        _apply_names(change, self.seen)
        self.changes.setdefault(directory, []).append(change)

    def rename(self, source: str, target: str) -> None:
        """To another directory the new name of a file and the end of the old one are two changes. A
        directory is moved within its own one, with all that is in it, which must be durable
        there."""
        if self.seen.get(source, ...) is not None:
            self._rename_file(source, target)
            return
        assert dirname(source) == dirname(target)
        if target in self.seen:
            raise OSError(errno.ENOTEMPTY, "the directory exists", target)
        below = [name for name in self.seen if f"{name}/".startswith(f"{source}/")]
        assert not any(self.changes.get(name) for name in below), "names are not durable"
        moved = tuple((target + name[len(source) :], self.seen[name]) for name in below)
        self.change(_NameChange((source, *below), moved))

    def _rename_file(self, source: str, target: str) -> None:
        given = ((target, self.file(source)),)
        if dirname(source) == dirname(target):
            self.change(_NameChange((source,), given))
            return
        self.change(_NameChange((), given))
        self.change(_NameChange((source,), ()))

    def sync_names(self, directory: str) -> None:
        self.check_directory(directory)
        for change in self.changes.pop(directory, []):
            _apply_names(change, self.durable)

    def write_back(self, path: str) -> None:
        """Make a file durable, as the system does with each file after a while."""
        self.file(path).sync()

    @property
    def unsynced_count(self) -> int:
        """Changes of files and names that a power cut now may lose or tear."""
        contents = sum(len(file.changes) for file in self.each())
        return contents + sum(map(len, self.changes.values()))

    def durable_contents(self) -> dict[str, bytes | None]:
        """Return, by path, what a power cut now leaves in the worst case: only what was synced."""
        names = self.durable
        return {
            path: None if entry is None else bytes(entry.durable)
            for path, entry in names.items()
            if all(parent in names for parent in _parents(path))
        }

    def crash(self, random: Random) -> DiskFiles:
        """Return the names after a crash: of each unsynced change all or nothing; and the files as
        a crash leaves them."""
        names = dict(self.durable)
        for directory in sorted(self.changes):
            for change in self.changes[directory]:
                if random.random() < 0.5:
                    _apply_names(change, names)
        found: dict[str, _Entry] = {}
        survivors: dict[int, _Content] = {}
        for path, entry in sorted(names.items()):
            if not all(parent in names for parent in _parents(path)):
                continue
            if entry is not None and id(entry) not in survivors:
                survivors[id(entry)] = entry.crash(random)
            found[path] = None if entry is None else survivors[id(entry)]
        return DiskFiles(found)


class SimulatedDisk:
    """Implements `host.Disk`. Paths are absolute; `/` and the directories named at the start are
    there, durably."""

    def __init__(
        self,
        directories: Sequence[str] = (),
        *,
        contents: Mapping[str, bytes | None] = MappingProxyType({}),
        fault: Fault | None = None,
        capacity_bytes: int | None = None,
    ) -> None:
        """`contents` is there from the start, durably; see the method of that name."""
        self.fault = fault
        self.on_sync: Callable[[str, bytearray], None] | None = None
        """Called with path and content of each file that was synced; None: nobody watches."""
        self.capacity_bytes = capacity_bytes
        """Room for contents and reservations; None: no bound. May change at any time."""
        self.counts: Counter[DiskOperation] = Counter()
        """Calls of each operation."""
        files = {path: None if data is None else _Content(data) for path, data in contents.items()}
        self.files = DiskFiles({**dict.fromkeys(directories), **files})

    def begin(self, operation: DiskOperation, path: str) -> None:
        """Count the operation and let the fault, if any, raise."""
        self.counts[operation] += 1
        if self.fault is not None:
            self.fault(operation, path)

    def open(self, path: str, *, create: bool = False) -> File:
        self.begin(DiskOperation.OPEN, path)
        if create:
            if path in self.files.seen:
                raise FileExistsError(errno.EEXIST, "the file exists", path)
            self.files.change(_NameChange((), ((path, _Content()),)))
        return SimulatedFile(self, path, self.files.file(path))

    def open_to_read(self, path: str) -> File:
        self.begin(DiskOperation.OPEN, path)
        return SimulatedFile(self, path, self.files.file(path), to_read=True)

    def space(self, path: str) -> Space:
        if path not in self.files.seen:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
        if self.capacity_bytes is None:
            return BOUNDLESS
        return Space(self.free_bytes, self.capacity_bytes)

    @property
    def free_bytes(self) -> int:
        """Room that is neither used nor reserved."""
        if self.capacity_bytes is None:
            return BOUNDLESS.free_bytes
        return max(0, self.capacity_bytes - sum(file.allocated for file in self.files.each()))

    def lock(self, path: str) -> Callable[[], None]:
        content = self.files.file(path)
        if content.locked:
            raise DirectoryInUseError(f"{path} is locked: another process works in {dirname(path)}")
        content.locked = True

        def release() -> None:
            content.locked = False

        return release

    def exists(self, path: str) -> bool:
        return path in self.files.seen

    def list_directory(self, path: str) -> Sequence[str]:
        self.files.check_directory(path)
        start = path.rstrip("/") + "/"
        names = [name.removeprefix(start) for name in self.files.seen if name.startswith(start)]
        return sorted(name for name in names if name and "/" not in name)

    def make_directory(self, path: str) -> None:
        self.begin(DiskOperation.MAKE_DIRECTORY, path)
        if path in self.files.seen:
            raise FileExistsError(errno.EEXIST, "the directory exists", path)
        self.files.change(_NameChange((), ((path, None),)))

    def remove(self, path: str) -> None:
        self.begin(DiskOperation.REMOVE, path)
        self.files.file(path)
        self.files.change(_NameChange((path,), ()))

    def rename(self, source: str, target: str) -> None:
        self.begin(DiskOperation.RENAME, source)
        self.files.rename(source, target)

    def link(self, source: str, target: str) -> None:
        self.begin(DiskOperation.LINK, source)
        if target in self.files.seen:
            raise FileExistsError(errno.EEXIST, "the file exists", target)
        self.files.change(_NameChange((), ((target, self.files.file(source)),)))

    def sync_directory(self, path: str) -> None:
        self.begin(DiskOperation.SYNC_DIRECTORY, path)
        self.files.sync_names(path)

    def crash_clone(self, random: Random) -> SimulatedDisk:
        """Return the disk as a power cut now would leave it; this one stays as it is.

        Everything synced is there. Of each unsynced write all, nothing or some sectors are, of each
        unsynced change of names all or nothing. Reservations are kept; locks are gone, and so is
        the fault.
        """
        clone = SimulatedDisk(capacity_bytes=self.capacity_bytes)
        clone.files = self.files.crash(random)
        return clone

    def release_locks(self) -> None:
        """Release all locks, as the end of a process does."""
        for file in self.files.each():
            file.locked = False

    def damage(self, path: str, offset: int, data: bytes) -> None:
        """Overwrite bytes of the file with `data`, unnoticed by the process and durably."""
        content = self.files.file(path)
        for each in (content.seen, content.durable):
            _Write(offset, data).apply(each)

    def content(self, path: str) -> bytes:
        """Return the whole file as it is seen."""
        return bytes(self.files.file(path).seen)

    def contents(self) -> dict[str, bytes | None]:
        """Return everything as it is seen, by path: the bytes of a file, None for a directory."""
        return {
            path: None if entry is None else bytes(entry.seen)
            for path, entry in self.files.seen.items()
        }


def _apply_names(change: _NameChange, names: dict[str, _Entry]) -> None:
    for path in change.taken:
        names.pop(path, None)
    names.update(change.given)


def _parents(path: str) -> Iterable[str]:
    while end := path.rfind("/"):
        path = path[:end]
        yield path
    yield "/"
