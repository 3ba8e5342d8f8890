"""Objects in a directory: whole or not there, and durable before anybody is told.

Owns the order of writes. An object is written under another name, synced, given its name, and then
the directories of the name are synced. Many objects go through these steps together, so that each
directory is synced once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Final
from uuid import uuid4

from waltz.host import Disk

STAGING: Final = "staging"
"""The directory of objects that have no name yet; those of a killed writer are swept."""


class DurableDirectory:
    """Writes objects below `directory`, which is there. All methods raise OSError."""

    def __init__(self, disk: Disk, directory: str, *, writers: int = 1) -> None:
        """`writers`: the files that are written and synced at a time; a file system makes several
        durable for the price of one."""
        self._disk = disk
        self._directory = directory
        self._writers = writers

    def put_all_if_absent(self, objects: Sequence[tuple[str, bytes]]) -> list[str]:
        """Make objects, given as path and bytes. Return the paths of those that were there, which
        stay as they are.

        All names are durable when this returns, also of objects that were there: a writer that was
        killed may have given a name and not have synced it.
        """
        found = []
        parents = self._parents(path for path, _ in objects)
        with self._all_staged([data for _, data in objects]) as sources:
            for (path, _), source in zip(objects, sources, strict=True):
                try:
                    self._disk.link(source, self._path(path))
                except FileExistsError:
                    found.append(path)
                self._disk.remove(source)
        self._sync(parents)
        return found

    def put(self, path: str, data: bytes) -> None:
        """Make an object, or replace it."""
        parents = self._parents([path])
        with self._all_staged([data]) as (source,):
            self._disk.rename(source, self._path(path))
        self._sync(parents)

    @contextmanager
    def _all_staged(self, contents: Sequence[bytes]) -> Iterator[Sequence[str]]:
        """Write and sync files that have no name among the objects yet; yield their paths.

        After an error they are removed: on a full disk each attempt would else take what was freed
        since the one before.
        """
        staged: list[str] = []

        def stage(data: bytes) -> str:
            path = self._staged(data)
            staged.append(path)
            return path

        writers = min(self._writers, len(contents))
        try:
            if writers <= 1:
                yield [stage(data) for data in contents]
            else:
                with ThreadPoolExecutor(writers) as pool:
                    found = list(pool.map(stage, contents))
                yield found
        except OSError:
            for path in staged:
                self._discard(path)
            raise

    def _staged(self, data: bytes) -> str:
        """Write and sync one such file; return its path."""
        self._make_directory(STAGING)
        path = self._path(f"{STAGING}/{uuid4().hex}")
        file = self._disk.open(path, create=True)
        try:
            file.write_at(0, data)
            file.sync()
        except OSError:
            self._discard(path)
            raise
        finally:
            file.close()
        return path

    def _discard(self, path: str) -> None:
        with suppress(OSError):  # it may be gone
            self._disk.remove(path)

    def _parents(self, paths: Iterable[str]) -> list[str]:
        """Return the directories that the paths lead through, `directory` itself first; make those
        that are missing."""
        found = sorted({str(each) for path in paths for each in PurePosixPath(path).parents})
        for each in found:
            self._make_directory(each)
        return found

    def _make_directory(self, path: str) -> None:
        if not self._disk.exists(self._path(path)):
            with suppress(FileExistsError):  # another process makes it at the same moment
                self._disk.make_directory(self._path(path))

    def _sync(self, directories: Sequence[str]) -> None:
        for each in directories:
            self._disk.sync_directory(self._path(each))

    def _path(self, path: str) -> str:
        return self._directory if path == "." else f"{self._directory}/{path}"
