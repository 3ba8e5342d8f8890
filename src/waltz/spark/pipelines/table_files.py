"""The Parquet files of a table, which tasks write and read: in a directory that every machine has
under the same path, or in a bucket of an object store.

Credentials and the endpoint of a bucket come from the environment of the process that asks, so on a
cluster from that of the executors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from waltz.errors import ConfigurationError, CorruptionError, NotFoundError

BUCKET_SCHEME: Final = "s3://"

OBJECT_BYTES_MAX: Final = 512 * 1024 * 1024
"""Bytes of a file in a bucket, which a task has in memory; a larger one is an error. It is twice
what its rows may have as Arrow."""


class TableFiles(Protocol):
    """The files of one table. Both verbs raise ArchiveUnreachableError: a bucket does not answer;
    OSError: a directory does not."""

    def write(self, path: str, table: Any) -> int:
        """Make a new file, durable when this returns its size in bytes."""
        ...

    def opened(self, path: str) -> Any:
        """Return a context manager with a file for reading. Raises CorruptionError: a bucket does
        not have it, or it is too large."""
        ...


class DirectoryFiles:
    """Files in a directory; each new file and its name are synced."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, path: str, table: Any) -> int:
        place = self._root / path
        directory = place.parent
        if not directory.exists():
            directory.mkdir(exist_ok=True)
            sync(directory.parent)
        with place.open("xb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        sync(directory)
        return size

    def opened(self, path: str) -> Any:
        return pq.ParquetFile(self._root / path)


class BucketFiles:
    """Files below a prefix of a bucket."""

    def __init__(self, url: str) -> None:
        from waltz.archive.archive_target import open_target

        self._target = open_target(url)

    def write(self, path: str, table: Any) -> int:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        content = sink.getvalue().to_pybytes()
        # The name is this attempt's own, so a put may be sent again after a lost answer.
        self._target.put(path, content)
        return len(content)

    @contextmanager
    def opened(self, path: str) -> Iterator[Any]:
        try:
            content = self._target.get(path, OBJECT_BYTES_MAX)
        except NotFoundError as error:
            raise CorruptionError(f"the table names a file that is not there: {error}") from error
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            yield file


def open_files(root: str) -> TableFiles:
    """Return the files of the table at a directory's path or a bucket's URL. Raises
    ConfigurationError: obstore is missing."""
    if not root.startswith(BUCKET_SCHEME):
        return DirectoryFiles(Path(root))
    expect_obstore()
    return BucketFiles(root)


def expect_obstore() -> None:
    """Raise ConfigurationError: obstore is missing on this machine."""
    try:
        import obstore  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "tables in a bucket need obstore on every machine that runs tasks: run `pip install"
            " '.[lakehouse]'` in a checkout of Waltz"
        ) from error


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
