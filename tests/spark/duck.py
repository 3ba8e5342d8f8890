"""DuckDB with its own readers of Delta and Iceberg: it shares no code with what writes tables.

Its readers are extensions, which it accepts only with a signature of DuckDB's makers. They come as
packages here; nothing is fetched while a test runs.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXTENSIONS = ("delta", "avro", "iceberg")


class Duck:
    """A connection of DuckDB that reads tables of other formats."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def rows(
        self, table: Path, columns: Sequence[str], condition: str = "true"
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a table that meet a condition, sorted by their text."""
        names = ", ".join(f'"{each}"' for each in columns)
        query = f"SELECT {names} FROM {_scan(table)} WHERE {condition}"
        return sorted(self._connection.execute(query).fetchall(), key=repr)

    def row(self, query: str, table: Path) -> tuple[Any, ...]:
        """Return the first row of a query that names the table as `{table}`."""
        found = self._connection.execute(query.format(table=_scan(table))).fetchone()
        assert found is not None, "the query has no row"
        return tuple(found)

    def types(self, table: Path) -> dict[str, str]:
        """Return the type of each column, in DuckDB's names."""
        found = self._connection.execute(f"DESCRIBE SELECT * FROM {_scan(table)}")
        return {name: kind for name, kind, *_ in found.fetchall()}


def _scan(table: Path) -> str:
    kind = "delta" if (table / "_delta_log").exists() else "iceberg"
    return f"{kind}_scan('{table}')"


@contextmanager
def opened_duck() -> Iterator[Duck]:
    with duckdb.connect() as connection:
        connection.execute("SET autoinstall_known_extensions = false")
        for each in EXTENSIONS:
            connection.execute(f"LOAD '{_extension(each)}'")
        yield Duck(connection)


def _extension(name: str) -> Path:
    found = find_spec(f"duckdb_extension_{name}")
    assert found is not None, f"there is no package of DuckDB's {name}"
    assert found.origin is not None
    release = f"v{duckdb.__version__}"
    return Path(found.origin).parent / "extensions" / release / f"{name}.duckdb_extension"
