"""Archives by their places: one interface for both formats.

A process imports only the format that it works with, and one that reads the log alone neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from waltz.spark.archive_location import ArchiveLocation
from waltz.spark.offsets import TransactionRange
from waltz.spark.parquet_archive import Archive, ArchivedFile, Contents


class AnyArchive(Protocol):
    """An archive of either format. Each method raises as those of `Archive` and `DeltaArchive`."""

    cluster_key: UUID

    @property
    def directory(self) -> ArchiveLocation:
        """The place of the archive."""
        ...

    def expect_cluster(self, cluster_key: UUID) -> None:
        """Check the archive's cluster. Raises ConfigurationError: it has another cluster's log."""

    def contents(self) -> Contents:
        """Return what is archived now. Raises CorruptionError: it does not join up."""
        ...

    def commit(
        self, before: Contents, added: Sequence[ArchivedFile], history: UUID | None = None
    ) -> Contents:
        """Add files of `history` to `before`, all or none, and return the new contents. Raises
        VersionConflictError: another writer has committed in between."""
        ...

    def sweep(self, contents: Contents, *, now: float | None = None) -> list[str]:
        """Remove what killed writers have left and return its names, sorted."""
        ...


def open_archive(location: ArchiveLocation) -> AnyArchive:
    """Open an archive. Raises ConfigurationError: there is none, or one of another format."""
    if isinstance(location, Path):
        return Archive.open(location)
    from waltz.spark.delta_archive import DeltaArchive

    return DeltaArchive.open(location)


def create_archive(location: ArchiveLocation, cluster_key: UUID) -> AnyArchive:
    """Make an archive of the cluster's log, or open the one that is there. Raises
    ConfigurationError: it is another cluster's, or something else is in its place."""
    if isinstance(location, Path):
        return Archive.create(location, cluster_key)
    from waltz.spark.delta_archive import DeltaArchive

    return DeltaArchive.create(location, cluster_key)


def write_files(
    location: ArchiveLocation, wanted: TransactionRange, batches: Iterable[Any]
) -> list[ArchivedFile]:
    """Write `wanted`, given as Arrow record batches of all columns, and return its files, which
    are durable and not committed. Raises CorruptionError: the batches are not `wanted`."""
    if isinstance(location, Path):
        from waltz.spark import archive_files

        return archive_files.write_files(location, wanted, batches)
    from waltz.spark import delta_archive_files

    return delta_archive_files.write_delta_files(location, wanted, batches)


def read_file(
    location: ArchiveLocation,
    file: ArchivedFile,
    wanted: TransactionRange,
    columns: list[str] | None = None,
) -> Iterator[Any]:
    """Yield the Arrow record batches of `wanted`, which `file` has, all columns or some. Raises
    CorruptionError: the file is missing, damaged or not the one that was archived."""
    if isinstance(location, Path):
        from waltz.spark import archive_files

        return archive_files.read_file(location, file, wanted, columns)
    from waltz.spark import delta_archive_files

    return delta_archive_files.read_delta_file(location, file, wanted, columns)
