"""Commits to Iceberg tables on a local disk: files replaced in one snapshot, synced before it is.

pyiceberg does not sync what it writes to a local disk, and its overwrite keeps each manifest whose
files are all deleted, so that a table would have one more with every commit.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from pyarrow.fs import LocalFileSystem
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles

from waltz.spark.pipelines.iceberg_format import local_path
from waltz.spark.pipelines.table_files import make_directory, sync

MANIFESTS_MAX: Final = 16
"""Manifests of a snapshot; a commit that would have more makes one of all."""

MANIFEST_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of manifests that become one; of more, several are made."""


class ReplacedFiles(_OverwriteFiles):
    """A snapshot in which files take the place of others; not tried again on top of another."""

    def __init__(
        self, transaction: Transaction, properties: dict[str, str], *, is_append: bool
    ) -> None:
        """Begin a snapshot; `is_append`: no file is removed."""
        super().__init__(
            operation=Operation.APPEND if is_append else Operation.OVERWRITE,
            transaction=transaction,
            io=transaction._table.io,  # noqa: SLF001 - as pyiceberg's own transactions do
            snapshot_properties=properties,
        )

    def _existing_manifests(self) -> list[ManifestFile]:
        found = super()._existing_manifests()
        return [each for each in found if each.has_added_files() or each.has_existing_files()]

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        merging = _ManifestMergeManager(MANIFEST_BYTES_MAX, MANIFESTS_MAX + 1, True, self)
        return merging.merge_manifests(manifests)

    def _refresh_for_retry(self) -> None:
        raise CommitFailedException("it has a snapshot that this batch was not joined with")


class SyncedFileIO(PyArrowFileIO):
    """The files of a local disk; a file that is written is on the disk when it is closed."""

    def new_output(self, location: str) -> PyArrowFile:
        path = local_path(location)
        return _SyncedFile(location, str(path), LocalFileSystem())


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = local_path(self.location)
        make_directory(path.parent)
        return _SyncedStream(path, path.open("wb" if overwrite else "xb"))


class _SyncedStream:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file

    def write(self, b: bytes) -> int:
        return self._file.write(b)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            sync(self._path.parent)

    def __enter__(self) -> _SyncedStream:
        return self

    def __exit__(
        self,
        exctype: type[BaseException] | None,
        excinst: BaseException | None,
        exctb: TracebackType | None,
    ) -> None:
        self.close()
