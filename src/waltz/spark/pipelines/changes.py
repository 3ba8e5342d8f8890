"""The change feed of a derived table: what each commit has changed, for a program that follows it.

A reader keeps the position of the last commit that it has applied, and asks for what came after it.
Neither the cluster nor Spark is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_DEFINITION
from waltz.spark.pipelines.definition import PipelineDefinition, parse_definition
from waltz.spark.pipelines.definition_change import stored_table
from waltz.spark.pipelines.open_tables import open_tables
from waltz.spark.pipelines.row_changes import CommittedChanges, Position
from waltz.spark.pipelines.tables import columns_of
from waltz.spark.pipelines.target import DerivedTables


class TableChanges:
    """The changes of one table; a context manager. Made by `open_changes`."""

    def __init__(self, definition: PipelineDefinition, table: str) -> None:
        """Open the target. Raises as `open_changes`."""
        if definition.kind != "tables":
            raise ConfigurationError(
                f"{INVALID_DEFINITION} the pipeline is {definition.kind}; only tables have changes"
            )
        self._store: DerivedTables = open_tables(definition, create=False)
        try:
            stored = self._store.definition()
            if stored is None:
                raise ConfigurationError(
                    f"{INVALID_DEFINITION} {definition.place} has no tables yet; run the pipeline"
                )
            self._definition = stored_table(stored, table, definition.place)
        except BaseException:
            self._store.__exit__()
            raise

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values of a row, the keys first."""
        return tuple(columns_of(self._definition))

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the columns by which rows are told apart. A key may be None."""
        return tuple(name for name, _ in self._definition.keys)

    def after(self, position: Position | None) -> Iterator[CommittedChanges]:
        """Yield the changes of each commit after a position, in order; nothing if there is none.
        None: all rows of the table as of now, as one commit of inserts.

        Applied in this order to the table as it was at the position, they come to the table as it
        was at the position of the last commit. Raises ChangesMissingError: they cannot be told, and
        the table must be read anew; ConfigurationError: the target keeps no changes;
        CorruptionError: it cannot be read; ArchiveUnreachableError: the bucket does not answer.
        """
        return self._store.changes(self._definition, position)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exctype: type[BaseException] | None = None,
        excinst: BaseException | None = None,
        exctb: TracebackType | None = None,
    ) -> None:
        self._store.__exit__(exctype, excinst, exctb)


def open_changes(definition: str | Path, table: str) -> TableChanges:
    """Return the change feed of one table of the pipeline that the file `definition` defines, to be
    closed.

    Raises NotFoundError: there are no tables; ConfigurationError: the definition is wrong, there is
    no such table, or a package is missing; OSError: the file cannot be read.
    """
    path = Path(definition)
    parsed = parse_definition(path.read_text(), directory=path.absolute().parent)
    return TableChanges(parsed, table)
