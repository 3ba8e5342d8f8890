"""An archive as a Delta table, in a directory or a bucket, which any reader of Delta can open.

The log of the table says everything: its description the cluster, the names of its files their
ranges and digests (`delta_archive_files.py`), application transactions the number of commits, the
end of each partition and the history. All of these outlive checkpoints and the removal of old
entries of the log. A commit is refused if another writer has made the next version. Knows neither
Spark nor the cluster.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

from waltz.errors import (
    ArchiveUnreachableError,
    ConfigurationError,
    CorruptionError,
    VersionConflictError,
)
from waltz.spark.archive_files import SCHEMA
from waltz.spark.archive_location import DeltaLocation
from waltz.spark.codes import ARCHIVE_CONFLICT, INVALID_ARCHIVE
from waltz.spark.delta_archive_files import PARTITION, file_of
from waltz.spark.parquet_archive import (
    HEAD,
    ORPHAN_SECONDS_MIN,
    ArchivedFile,
    Contents,
    expect_cluster_of,
    followed,
    replaced,
)
from waltz.spark.pipelines.delta_format import MARK_ID, STORE_ERROR, sync_log
from waltz.spark.pipelines.object_store_tables import STORE_OPTIONS
from waltz.spark.pipelines.table_files import make_directory

if TYPE_CHECKING:
    from deltalake import DeltaTable

DESCRIPTION: Final = "Waltz archive, format 2, of cluster {}"
DESCRIBED: Final = re.compile(r"Waltz archive, format (\d+), of cluster ([0-9a-f-]{36})")
FORMAT: Final = 2
COMMITS_ID: Final = "waltz-commits"
"""The application whose transaction is the number of commits of runs."""

HISTORY_IDS: Final = ("waltz-history-high", "waltz-history-low")
"""The applications whose transactions are the two halves of the history, as signed numbers."""

FOREIGN: Final = (
    "another program has changed the table, such as by OPTIMIZE or INSERT: restore the version"
    " before that, or rebuild the archive"
)


class DeltaArchive:
    """An archive that is one Delta table."""

    def __init__(self, location: DeltaLocation, cluster_key: UUID, table_id: str) -> None:
        self.directory = location
        self.cluster_key = cluster_key
        self._table_id = table_id

    @classmethod
    def open(cls, location: DeltaLocation) -> Self:
        """Open an archive. Raises ConfigurationError: there is no archive, one of another format,
        or a package is missing; ArchiveUnreachableError: the bucket does not answer."""
        from_delta = _deltalake()
        try:
            with _errors_named(location):
                metadata = _table(location).metadata()
        except from_delta.exceptions.TableNotFoundError:
            raise ConfigurationError(f"{INVALID_ARCHIVE} {_missing(location)}") from None
        described = metadata.description or ""
        found = DESCRIBED.fullmatch(described)
        if found is None or int(found[1]) != FORMAT:
            raise ConfigurationError(
                f"{INVALID_ARCHIVE} {location} is a Delta table with the description"
                f" {described[:200]!r}; this release reads archives of format {FORMAT}"
            )
        return cls(location, UUID(found[2]), str(metadata.id))

    @classmethod
    def create(cls, location: DeltaLocation, cluster_key: UUID) -> Self:
        """Make an archive of the cluster's log, or open the one that is there.

        Raises ConfigurationError: it is another cluster's, the directory has something else, or as
        `open`.
        """
        from_delta = _deltalake()
        try:
            with _errors_named(location):
                _table(location)
        except from_delta.exceptions.TableNotFoundError:
            is_there = False
        else:
            is_there = True
        if not is_there:
            directory = location.directory
            if directory is not None:
                # With a log of Delta another run has just made the table, which may have files.
                is_made = (directory / "_delta_log").exists()
                if directory.exists() and not is_made and any(directory.iterdir()):
                    raise ConfigurationError(f"{INVALID_ARCHIVE} {_missing(location)}")
                make_directory(directory)
            cls._make(location, cluster_key)
            if directory is not None:
                sync_log(directory, 0)
        archive = cls.open(location)
        archive.expect_cluster(cluster_key)
        return archive

    @staticmethod
    def _make(location: DeltaLocation, cluster_key: UUID) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError

        # Another run may make it at the same moment.
        with contextlib.suppress(CommitFailedError), _errors_named(location):
            DeltaTable.create(
                location.root,
                SCHEMA,
                mode="ignore",
                partition_by=[PARTITION],
                description=DESCRIPTION.format(cluster_key),
                configuration={"delta.appendOnly": "true"},
                storage_options=_store_options(location),
            )

    def expect_cluster(self, cluster_key: UUID) -> None:
        """Check the archive's cluster. Raises ConfigurationError: it has another cluster's log."""
        expect_cluster_of(self.directory, self.cluster_key, cluster_key)

    def contents(self) -> Contents:
        """Return what is archived now. Raises CorruptionError: the files do not join up, or are not
        those of the archive's own commits; ArchiveUnreachableError: the bucket does not answer."""
        with _errors_named(self.directory):
            table = _table(self.directory)
            files = list(self._files(table))
            contents = followed(Contents(0, ()), files, _history(table))
            ends = contents.next_ids()
            for partition_id, end in ends.items():
                noted = table.transaction_version(MARK_ID.format(partition_id))
                if noted != end:
                    raise CorruptionError(
                        f"{INVALID_ARCHIVE} {self.directory} has partition {partition_id} to"
                        f" transaction {end - 1}, its commits say {(noted or 0) - 1}; {FOREIGN}"
                    )
            commits = _commits(table)
            if commits and not files:
                raise CorruptionError(
                    f"{INVALID_ARCHIVE} {self.directory} has no files after {commits} commits;"
                    f" {FOREIGN}"
                )
            return Contents(commits, contents.files, contents.history)

    def _files(self, table: DeltaTable) -> Iterator[ArchivedFile]:
        import pyarrow as pa

        actions = pa.table(table.get_add_actions(flatten=True))
        if not len(actions):
            return
        names = ("path", "size_bytes", f"partition.{PARTITION}", "num_records")
        for path, size, partition, count in zip(
            *(actions[each].to_pylist() for each in names), strict=True
        ):
            file = file_of(path, size)
            if file is None or (partition, count) != (
                file.range.partition_id,
                file.range.row_count,
            ):
                raise CorruptionError(
                    f"{INVALID_ARCHIVE} {self.directory} names {path} with {count} rows of"
                    f" partition {partition}, which no run of this archive wrote; {FOREIGN}"
                )
            yield file

    def commit(
        self, before: Contents, added: Sequence[ArchivedFile], history: UUID | None = None
    ) -> Contents:
        """Add files of `history` to `before`, all or none, and return the new contents.

        Their bytes are durable already. Raises VersionConflictError: another writer has committed
        in between, or a rebuild has put another table here, so these files are not wanted;
        CorruptionError as `followed`; ArchiveUnreachableError: the bucket does not answer.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        contents = followed(before, added, history)
        ends = contents.next_ids()
        marks = {
            MARK_ID.format(each): ends[each] for each in {file.range.partition_id for file in added}
        }
        halves = _halves(history or UUID(int=0))
        noted = {
            COMMITS_ID: contents.commits,
            **marks,
            **dict(zip(HISTORY_IDS, halves, strict=True)),
        }
        # Not once again on top of what another writer has committed meanwhile.
        properties = CommitProperties(
            max_commit_retries=0,
            app_transactions=[Transaction(name, number) for name, number in noted.items()],
        )
        now = time.time_ns() // 1_000_000
        with _errors_named(self.directory):
            table = _table(self.directory)
            if str(table.metadata().id) != self._table_id:
                raise replaced(self.directory)
            if _commits(table) != before.commits:
                raise self._conflict()
            version = table.version() + 1
            try:
                table.create_write_transaction(
                    [
                        AddAction(
                            file.path,
                            file.byte_count,
                            {PARTITION: str(file.range.partition_id)},
                            now,
                            True,
                            _statistics(file),
                        )
                        for file in added
                    ],
                    "append",
                    SCHEMA,
                    [PARTITION],
                    commit_properties=properties,
                )
            except CommitFailedError as error:
                if STORE_ERROR in str(error):
                    raise
                raise self._conflict() from error
        if self.directory.directory is not None:
            sync_log(self.directory.directory, version)
        return contents

    def _conflict(self) -> VersionConflictError:
        return VersionConflictError(
            f"{ARCHIVE_CONFLICT} another run has added to {self.directory}; run again"
        )

    def sweep(self, contents: Contents, *, now: float | None = None) -> list[str]:
        """Remove what killed writers have left in a directory and return its names, sorted.

        A bucket is only swept by `waltz pipeline tidy`: each run would have to list it.
        """
        if self.directory.directory is None:
            return []
        found = self.unnamed(ORPHAN_SECONDS_MIN, contents, now=now)
        self.remove([path for path, _ in found])
        return [path for path, _ in found]

    def unnamed(
        self, seconds_min: float, contents: Contents | None = None, *, now: float | None = None
    ) -> list[tuple[str, int]]:
        """Return files that no commit names and that are older than `seconds_min`, with their
        sizes in bytes; without `contents` the newest."""
        limit = (time.time() if now is None else now) - seconds_min
        listed = sorted(self._listed())  # before the contents: what is committed meanwhile is known
        known = {each.path for each in (contents or self.contents()).files}
        return [
            (path, size)
            for path, size, changed_at in listed
            if path not in known and changed_at < limit
        ]

    def _listed(self) -> Iterator[tuple[str, int, float]]:
        root = self.directory.directory
        if root is not None:
            for path in root.glob(f"{PARTITION}=*/*.parquet*"):
                with contextlib.suppress(FileNotFoundError):  # another run has swept it
                    status = path.stat()
                    yield str(path.relative_to(root)), status.st_size, status.st_mtime
            return
        from waltz.archive.archive_target import open_target

        for each in open_target(self.directory.root).list(""):
            if each.path.startswith(f"{PARTITION}="):
                yield each.path, each.byte_count, each.changed_at / 1000

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files that no commit names. Raises OSError, ArchiveUnreachableError."""
        if self.directory.directory is not None:
            for path in paths:
                Path(self.directory.directory, path).unlink(missing_ok=True)
            return
        from waltz.archive.archive_target import open_target

        target = open_target(self.directory.root)
        for path in paths:
            target.delete(path)


def _deltalake() -> Any:
    """Return the package. Raises ConfigurationError: it is missing."""
    try:
        import deltalake
        import deltalake.exceptions
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "an archive that is a Delta table needs deltalake: run `pip install '.[lakehouse]'` in"
            " a checkout of Waltz"
        ) from error
    return deltalake


def _table(location: DeltaLocation) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    directory = location.directory
    if directory is not None and not directory.exists():
        raise TableNotFoundError(f"no directory {directory}")
    return DeltaTable(location.root, storage_options=_store_options(location))


def _store_options(location: DeltaLocation) -> dict[str, str]:
    return dict(STORE_OPTIONS) if location.directory is None else {}


def _missing(location: DeltaLocation) -> str:
    """Return what is wrong with a place that has no table."""
    directory = location.directory
    if directory is None or not directory.exists() or not any(directory.iterdir()):
        return f"{location} holds no archive; run the pipeline"
    if (directory / HEAD).exists():
        return (
            f"{directory} holds an archive of the older format: `waltz pipeline rebuild` converts"
            f" it, and target: {directory} adds to it as it is"
        )
    return f"{directory} has files but no archive; choose an empty directory"


@contextmanager
def _errors_named(location: DeltaLocation) -> Iterator[None]:
    """Give what delta-rs raises a cause and a remedy, but for conflicts and tables not found."""
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

    try:
        yield
    except (DeltaError, OSError) as error:
        # delta-rs has no class of its own for a bucket that refuses or does not answer.
        if STORE_ERROR in str(error):
            raise ArchiveUnreachableError(
                f"{location} does not answer delta-rs: {error}; look at the credentials in the"
                " environment, the endpoint, the bucket and the network"
            ) from error
        if isinstance(error, CommitFailedError | TableNotFoundError | OSError):
            raise
        raise CorruptionError(f"{INVALID_ARCHIVE} {location} cannot be read: {error}") from error


def _commits(table: DeltaTable) -> int:
    return table.transaction_version(COMMITS_ID) or 0


def _history(table: DeltaTable) -> UUID | None:
    high, low = (table.transaction_version(each) or 0 for each in HISTORY_IDS)
    number = (high % (1 << 64)) << 64 | low % (1 << 64)
    return UUID(int=number) if number else None


def _halves(history: UUID) -> tuple[int, int]:
    """Return the two halves of a history's ID, each as a signed number of 64 bits."""
    high, low = divmod(history.int, 1 << 64)
    return tuple((each + (1 << 63)) % (1 << 64) - (1 << 63) for each in (high, low))  # type: ignore[return-value]


def _statistics(file: ArchivedFile) -> str:
    """Return what lets readers of Delta leave out a file."""
    return json.dumps(
        {
            "numRecords": file.range.row_count,
            "minValues": {"transaction_id": file.range.first},
            "maxValues": {"transaction_id": file.range.end - 1},
            "nullCount": {"transaction_id": 0},
        }
    )
