"""Derived tables as Iceberg tables: open files, readable by what reads Iceberg.

Metadata has absolute paths, so a table cannot be moved: tables that join others, or replace them,
are made anew in their place, with links to the files that are there. Then one transaction of the
database changes the catalog and the marks together.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_TABLES
from waltz.spark.pipelines.iceberg_format import (
    BATCH_ID,
    CATALOG,
    NAMESPACE,
    IcebergFormat,
    local_path,
    noted,
    replace_files,
)
from waltz.spark.pipelines.lake_tables import DATABASE, LakeTables
from waltz.spark.pipelines.table_files import make_directory, sync
from waltz.spark.pipelines.table_store import Batch, Joining, Layout, TableStore

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

ARRIVING: Final = "arriving"
"""The namespace of tables that are about to join the others."""

_FORGET: Final = (
    "DELETE FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
)
_MOVE: Final = (
    "UPDATE iceberg_tables SET table_namespace = ?"
    " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
)
"""Changes of a table's row in the catalog."""

_REFUSED: Final = "#?"
"""Characters that end a path in the locations that tables and readers write."""


class IcebergTables(LakeTables["Table", "DataFile"]):
    """The Iceberg tables in one directory of a local disk; a context manager."""

    _format: IcebergFormat

    def __init__(self, directory: Path, *, create: bool, buckets: int | None = None) -> None:
        """Open the directory. Raises as `LakeTables`, and ConfigurationError: a location cannot say
        the directory's name."""
        if any(each in str(directory.absolute()) for each in _REFUSED):
            raise ConfigurationError(
                f"{INVALID_TABLES} {directory} has one of {_REFUSED} in its path, which no location"
                " of Iceberg tables can have; name another target"
            )
        tables = IcebergFormat(directory, directory / DATABASE)
        super().__init__(directory, tables, create=create, buckets=buckets)

    def __exit__(self, *given: object) -> None:
        self._format.close()
        super().__exit__(*given)

    def prepare(self, cluster_key: UUID, fingerprint: str, layouts: Iterable[Layout]) -> None:
        """Make the directory that of these tables of this cluster, or make sure that it is.

        Raises ConfigurationError: it is another's; CorruptionError: it cannot be written.
        """
        super().prepare(cluster_key, fingerprint, layouts)
        with self._locked(), self._format_errors_named():
            self._format.hint()  # a run may have been killed before it did this

    def adopt(self, fresh: Self, joining: Joining) -> bool:
        """Put the tables of `fresh` among these, at once for readers of the catalog. Return False:
        these have more or less of the log than those by now.

        Raises ConfigurationError: the decoding puts other transactions aside; CorruptionError: the
        log was another one; VersionConflictError: another run was faster.
        """
        with self._locked(), self._format_errors_named():
            if not self._is_joinable(fresh, joining):
                return False
            number, catalog = self._state().number, self._format.catalog
            catalog.create_namespace_if_not_exists(NAMESPACE)
            catalog.create_namespace_if_not_exists(ARRIVING)
            for name in joining.names:
                if catalog.table_exists((ARRIVING, name)):  # of a run that was killed
                    catalog.drop_table((ARRIVING, name))
                table, home = fresh._format.opened(name), self._format.home(name)
                made = self._made_at(home, table, ARRIVING)
                files = _linked(fresh._format, table, home)
                replace_files(made, files, (), noted(table) | {BATCH_ID: str(number)})
            with self._transaction() as database:
                for name in (*joining.names, *joining.dropped):
                    database.execute(_FORGET, (CATALOG, NAMESPACE, name))
                for name in joining.names:
                    database.execute(_MOVE, (NAMESPACE, CATALOG, ARRIVING, name))
                self._note_joined(database, fresh, joining)
            self._format.hint()
        return True

    def replace_by(self, other: TableStore) -> None:
        """Put the tables of `other` in the place of these, at once for readers of the catalog.

        Files of the old tables stay until they are tidied away.
        """
        assert isinstance(other, IcebergTables)
        with self._locked(), self._format_errors_named():
            other.settle_at(self.directory.absolute())
            super().replace_by(other)
            self._format.hint()

    def settle_at(self, directory: Path) -> None:
        """Make each table anew in `directory`, with links to the files of now.

        Raises OSError; pyiceberg's errors.
        """
        for name in self._format.names():
            self._settle(name, directory / name)

    def _settle(self, name: str, home: Path) -> None:
        table = self._format.opened(name)
        self._format.catalog.drop_table((NAMESPACE, name))
        made = self._made_at(home, table, NAMESPACE)
        if properties := noted(table):
            replace_files(made, _linked(self._format, table, home), (), properties)

    def _made_at(self, home: Path, like: Table, namespace: str) -> Table:
        """Make a table without rows in a directory."""
        return self._format.catalog.create_table(
            (namespace, home.name),
            like.schema(),
            location=f"file://{home}",
            partition_spec=like.spec(),
            properties=like.properties,
        )

    def _note_done(self, batch: Batch) -> None:
        self._format.hint()
        super()._note_done(batch)


def _linked(source: IcebergFormat, table: Table, home: Path) -> list[DataFile]:
    """Have links to the files of a table in a directory; return what manifests say of them."""
    from pyiceberg.manifest import DataFile

    found = []
    old = source.home(home.name)
    for file in (each for files in source.files(table).values() for each in files):
        path = local_path(file.file_path)
        place = home / path.relative_to(old)
        make_directory(place.parent)
        if not place.exists():
            place.hardlink_to(path)
            sync(place.parent)
        values = {each: getattr(file, each) for each in _FACTS}
        found.append(DataFile.from_args(file_path=f"file://{place}", **values))
    return found


_FACTS: Final = (
    "content",
    "file_format",
    "partition",
    "record_count",
    "file_size_in_bytes",
    "value_counts",
    "null_value_counts",
    "lower_bounds",
    "upper_bounds",
    "spec_id",
)
"""The facts of a file that its manifest has, except its path."""
