"""Derived tables as Delta tables in an object store: runs share nothing but a prefix of a bucket.

The database, `waltz.db` in a directory, is in the bucket as its states (`stored_states.py`). A
batch makes two of them, its plan and its end; between them each table takes the batch in one
commit, which delta-rs makes in the same manner: of two runs one makes it.

Tables have all their versions, so a snapshot takes of each table the version with the number of
batches that the state has, whatever runs commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from uuid import UUID

from waltz.archive.archive_target import (
    PROBE,
    REQUEST_SECONDS_MAX,
    Target,
    open_target,
)
from waltz.errors import (
    ArchiveUnreachableError,
    ConfigurationError,
    CorruptionError,
    NotFoundError,
    VersionConflictError,
)
from waltz.spark.codes import DEFINITION_CHANGED, INVALID_TABLES, TABLES_CONFLICT
from waltz.spark.pipelines.delta_format import (
    LOG,
    STORE_ERROR,
    DeltaFile,
    DeltaFormat,
    Partitions,
)
from waltz.spark.pipelines.lake_tables import DATABASE, LakeTables
from waltz.spark.pipelines.stored_states import StoredStates
from waltz.spark.pipelines.table_files import expect_obstore
from waltz.spark.pipelines.table_store import Joining, Layout, TableStore
from waltz.types import PartitionId

if TYPE_CHECKING:
    from deltalake import DeltaTable

STORE_OPTIONS: Final = {
    "allow_http": "true",  # only if the endpoint in the environment says http://
    "aws_conditional_put": "etag",
    "timeout": f"{REQUEST_SECONDS_MAX:.0f}s",
}
"""The options with which delta-rs reaches a bucket; credentials come from the environment."""

VERSIONS_BACK_MAX: Final = 100
"""Versions of a table that a snapshot goes back to find the one it wants; if runs commit more in
the meantime, it gives up."""

NAMES: Final = "CREATE TABLE IF NOT EXISTS waltz_names (name TEXT PRIMARY KEY) STRICT"
"""The tables of the definition: a bucket would have to list all objects to find them."""


class ObjectStoreFormat(DeltaFormat):
    """The Delta tables below one prefix of a bucket, each by itself."""

    def __init__(
        self,
        url: str,
        objects: Target,
        names: Callable[[], list[str]],
        partitions: Partitions,
    ) -> None:
        """Note the place. `names` returns the names of the tables, in order."""
        super().__init__(url, partitions, STORE_OPTIONS)
        self._objects = objects
        self._noted_names = names

    def names(self) -> list[str]:
        return self._noted_names()

    def _sizes(self, name: str) -> dict[str, int]:
        found = self._objects.list(name)
        sizes = {each.path.removeprefix(f"{name}/"): each.byte_count for each in found}
        return {path: size for path, size in sizes.items() if not path.startswith(LOG)}

    def _sync_log(self, name: str, version: int) -> None:
        """Do nothing: a bucket answers once it has what was put."""


class ObjectStoreTables(LakeTables["DeltaTable", DeltaFile]):
    """The Delta tables below one prefix of a bucket; a context manager."""

    def __init__(self, url: str, *, create: bool, buckets: int | None = None) -> None:
        """Open what `url`, `s3://bucket/prefix`, has; `buckets` is the number that the definition
        names.

        Raises NotFoundError: there are no tables, and they are not to be made; ConfigurationError:
        a package is missing, or the prefix is something else's; ArchiveUnreachableError: the bucket
        does not answer.
        """
        expect_obstore()
        self._url = url.rstrip("/")
        objects = open_target(self._url)
        self._copy = TemporaryDirectory(prefix="waltz-tables-")
        self._states = StoredStates(objects, self._url)
        try:
            path = Path(self._copy.name, DATABASE)
            if self._states.newest():
                self._states.fetch(path)
            elif not create:
                raise NotFoundError(f"{INVALID_TABLES} {self._url} has no tables; run the pipeline")
            elif any(not each.path.startswith(PROBE) for each in objects.list("")):
                raise ConfigurationError(
                    f"{INVALID_TABLES} {self._url} has objects that no pipeline made; name another"
                    " target"
                )
            tables = ObjectStoreFormat(self._url, objects, self._names, self._known_partitions)
            super().__init__(path.parent, tables, create=True, buckets=buckets)
            self._states.note_content(self._database.serialize())
        except BaseException:
            self._copy.cleanup()
            raise

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._copy.cleanup()

    @property
    def place(self) -> str:
        return self._states.place

    def prepare(self, cluster_key: UUID, fingerprint: str, layouts: Iterable[Layout]) -> None:
        known = list(layouts)
        super().prepare(cluster_key, fingerprint, known)
        if not self._exists("waltz_names"):
            with self._locked(), self._transaction() as database:
                database.execute(NAMES)
                database.executemany(
                    "INSERT INTO waltz_names VALUES (?)",
                    [(each.definition.name,) for each in known],
                )

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let everything that is read in the block be of one moment, whatever runs commit.

        Raises VersionConflictError: runs commit too fast to find it.
        """
        with self._locked(), TableStore.snapshot(self), self._format_errors_named():
            if self._exists(self._format.state_table):
                number = self._state().number
                self._pinned = {each: self._at(each, number) for each in self._names()}
            try:
                yield
            finally:
                self._pinned = {}

    def _at(self, name: str, number: int) -> DeltaTable:
        """Return a table as it was with that number of batches."""
        table = self._format.opened(name)
        for _ in range(VERSIONS_BACK_MAX):
            found = self._format.batches(table)
            if found == number:
                return table
            if found < number or table.version() == 0:
                raise CorruptionError(
                    f"{INVALID_TABLES} {self._format.table_root(name)} has {found} batches,"
                    f" {self.place} has {number}: one of them was put back or replaced"
                )
            table.load_as_version(table.version() - 1)
        raise VersionConflictError(
            f"{TABLES_CONFLICT} {self._format.table_root(name)} has had more than"
            f" {VERSIONS_BACK_MAX} commits while it was opened; run again"
        )

    def adopt(self, fresh: TableStore, joining: Joining) -> bool:
        """Raise ConfigurationError: a bucket renames nothing."""
        raise not_joined(self._url)

    def replace_by(self, other: TableStore) -> None:
        """Raise ConfigurationError: a bucket renames nothing."""
        raise not_rebuilt(self._url)

    def _names(self) -> list[str]:
        if not self._exists("waltz_names"):
            return []
        return [name for (name,) in self._rows("SELECT name FROM waltz_names ORDER BY name")]

    def _known_partitions(self) -> set[PartitionId]:
        with self._locked():  # runs may have added to the state that the copy is of
            return {*self.marks(), *self.planned()}

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Work on the newest state; other runs are found when the next one is made."""
        if self._states.has_newer():
            self._database.close()
            for each in Path(self._copy.name).iterdir():
                each.unlink()
            self._states.fetch(self.path)
            self._connect()
            self._states.note_content(self._database.serialize())
        yield

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with super()._transaction() as database:
            yield database
        try:
            self._states.publish(self._database.serialize())
        except BaseException:
            self._states.forget()
            raise

    @contextmanager
    def _format_errors_named(self) -> Iterator[None]:
        try:
            with super()._format_errors_named():
                yield
        except CorruptionError as error:
            # delta-rs has no class of its own for a bucket that refuses or does not answer.
            if STORE_ERROR in str(error.__cause__):
                raise ArchiveUnreachableError(
                    f"{self._url} does not answer delta-rs: {error.__cause__}; look at the"
                    " credentials in the environment, the endpoint, the bucket and the network"
                ) from error
            raise


def not_rebuilt(url: str) -> ConfigurationError:
    """Return the error of a rebuild."""
    return ConfigurationError(
        f"{INVALID_TABLES} {url} cannot be rebuilt in its place, since a bucket renames nothing:"
        " name another prefix as the target, run the pipeline, let readers read from there, and"
        " delete this one"
    )


def not_joined(url: str) -> ConfigurationError:
    """Return the error of a definition that has other tables."""
    return ConfigurationError(
        f"{DEFINITION_CHANGED} {url} was made with other tables, and tables in a bucket cannot be"
        " added, changed or dropped, since a bucket renames nothing: name another prefix as the"
        " target, run the pipeline, let readers read from there, and delete this one"
    )
