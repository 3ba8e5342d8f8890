"""The file of an audit log, which is replaced by a new one when it is large enough.

Owns the files `PATH`, `PATH.1` (the one before) and so on, and their bound. Synchronous: called off
the loop. A line that was not finished before a process ended stays in the file, ended by a line
break; the next line says which one it follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final, NamedTuple

from waltz.audit.audit_entry import (
    LINE_BYTES_MAX,
    NOTHING_YET,
    AuditDecision,
    AuditEntry,
    Position,
    line_of,
    position_of,
)
from waltz.errors import ConfigurationError, DirectoryInUseError
from waltz.host import Disk, File

TAIL_BYTES: Final = 2 * LINE_BYTES_MAX
"""Bytes at the end of a file in which its last whole line is, with an unfinished one behind it."""


LINE_START: Final = b'{"number":'
"""The first bytes of each line."""


_NUMBER: Final = re.compile("[1-9][0-9]{0,8}")
"""The end of the name of a file that was replaced."""


class AuditSettings(NamedTuple):
    """`bytes_max` is the size from which on a file is replaced, `files_max` the number of files;
    `is_strict`: nothing is served that cannot be audited."""

    path: str
    is_strict: bool = False
    bytes_max: int = 64 << 20
    files_max: int = 10


class _Tail(NamedTuple):
    size: int
    position: Position | None
    """None: there is no whole line."""
    is_torn: bool
    """Whether the file ends without a line break."""


class AuditFile:
    """See the module. Methods raise OSError, after which `write` may be tried again."""

    def __init__(
        self, disk: Disk, settings: AuditSettings, process: str, clock: Callable[[], int]
    ) -> None:
        """`clock` returns milliseconds since 1970."""
        self._disk = disk
        self._settings = settings
        self._process = process
        self._clock = clock
        self._position = NOTHING_YET
        self._size = 0
        self._file: File | None = None
        self._unlock: Callable[[], None] | None = None
        self._is_soiled = False
        """Whether there may be a part of a write behind `_size`."""
        self._is_named = True
        """Whether the name of the file is durable."""

    def open(self) -> None:
        """Go on where the file ends, or begin it. Raises ConfigurationError: another process writes
        to it, it cannot be opened, or it is no audit log."""
        path = self._settings.path
        try:
            if not self._disk.exists(path + ".lock"):
                with suppress(FileExistsError):
                    self._disk.open(path + ".lock", create=True).close()
            self._unlock = self._disk.lock(path + ".lock")
            self._go_on()
        except DirectoryInUseError:
            raise ConfigurationError(
                f"{path}: another process writes its audit log there; give each process a file of"
                " its own"
            ) from None
        except OSError as error:
            self.close()
            reason = error.strerror or str(error)
            raise ConfigurationError(f"cannot write the audit log {path}: {reason}") from error
        except ConfigurationError:
            self.close()
            raise

    def write(self, entries: Sequence[AuditEntry]) -> None:
        """Return once all entries are on stable storage; raises OSError: none of them counts as
        written."""
        if self._size >= self._settings.bytes_max:
            self._replace()
        self._keep_name()
        self._append(entries)

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def _go_on(self) -> None:
        path = self._settings.path
        if not self._disk.exists(path):
            self._position = self._before()
            self._begin("the file begins")
            return
        self._file = self._disk.open(path)
        self._is_named = False  # the process that began it may have been killed before that
        self._keep_name()
        self._size, position, is_torn = _tail(self._file, path)
        self._position = position or self._before()
        if is_torn:
            self._file.write_at(self._size, b"\n")
            self._size += 1
        self._append([self._opened("the process has started")])

    def _before(self) -> Position:
        """Return the end of the newest of the older files."""
        before = next(filter(self._disk.exists, self._older()), None)
        if before is None:
            return NOTHING_YET
        file = self._disk.open_to_read(before)
        try:
            return _tail(file, before).position or NOTHING_YET
        finally:
            file.close()

    def _begin(self, reason: str) -> None:
        """Begin another file with a line that says which one it follows. A file of that name has no
        line that counts as written."""
        path = self._settings.path
        if self._disk.exists(path):
            self._disk.remove(path)
        file = self._disk.open(path, create=True)
        self._file, self._size, self._is_soiled, self._is_named = file, 0, False, False
        try:
            self._append([self._opened(reason)])
        except OSError:
            file.close()
            self._file, self._size = None, self._settings.bytes_max  # to be begun again
            raise
        self._keep_name()

    def _keep_name(self) -> None:
        """Make the name of the file durable, if it may not be."""
        if not self._is_named:
            self._disk.sync_directory(_directory(self._settings.path))
            self._is_named = True

    def _opened(self, reason: str) -> AuditEntry:
        return AuditEntry(self._clock(), AuditDecision.OPENED, "audit", reason=reason)

    def _append(self, entries: Sequence[AuditEntry]) -> None:
        assert self._file is not None, "open"
        if self._is_soiled:
            self._file.truncate(self._size)
            self._is_soiled = False
        position, lines = self._position, []
        for entry in entries:
            line, position = line_of(entry, self._process, position)
            lines.append(line)
        data = b"".join(lines)
        self._is_soiled = True
        self._file.write_at(self._size, data)
        self._file.sync()
        self._is_soiled = False
        self._size += len(data)
        self._position = position

    def _older(self) -> list[str]:
        """Return the paths of the files before this one, the newest first."""
        return [f"{self._settings.path}.{number}" for number in range(1, self._settings.files_max)]

    def _surplus(self) -> list[str]:
        """Return the paths of files from a time when the log might have more, the oldest first."""
        start = f"{self._settings.path.rpartition('/')[2]}."
        ends = [
            each.removeprefix(start)
            for each in self._disk.list_directory(_directory(self._settings.path))
            if each.startswith(start)
        ]
        numbers = sorted((int(each) for each in ends if _NUMBER.fullmatch(each)), reverse=True)
        return [
            f"{self._settings.path}.{each}" for each in numbers if each >= self._settings.files_max
        ]

    def _replace(self) -> None:
        """Begin another file; if there are too many, the oldest goes."""
        names = [self._settings.path, *self._older()]
        if self._file is not None:
            directory = _directory(self._settings.path)
            # An attempt before may have failed after a rename: its name is free, and no further
            # file has to go.
            self._disk.sync_directory(directory)
            for surplus in self._surplus():
                self._disk.remove(surplus)
            free = next((n for n, each in enumerate(names) if not self._disk.exists(each)), None)
            if free is None:
                self._disk.remove(names[-1])
                free = len(names) - 1
            for newer, older in reversed([*pairwise(names[: free + 1])]):
                self._disk.rename(newer, older)
                # Else a power cut could keep this rename and undo the one before.
                self._disk.sync_directory(directory)
            self._file.close()
            self._file = None
        self._begin("the file before was large enough")


def _tail(file: File, path: str) -> _Tail:
    """Return how the file ends. Raises ConfigurationError: it is no audit log."""
    size = file.size()
    data = file.read_at(max(0, size - TAIL_BYTES), TAIL_BYTES)
    is_torn = bool(data) and not data.endswith(b"\n")
    for line in reversed(data.split(b"\n")):  # the last may lack nothing but its line break
        with suppress(ValueError):
            return _Tail(size, position_of(line + b"\n"), is_torn)
    if b"\n" not in data and data[: len(LINE_START)] == LINE_START[: len(data)]:
        return _Tail(size, None, is_torn)
    raise ConfigurationError(f"{path} is no audit log; move it away, or name another file")


def _directory(path: str) -> str:
    head, slash, _ = path.rpartition("/")
    return head or slash or "."
