"""The result of tidying a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TidiedTable:
    """A table and its files that no version of the retained time needs, relative to the table.

    byte_count  their sizes together.
    changes     changes of rows that are older than the retained time: of tables in SQLite, which
                have no files.
    """

    table: str
    files: tuple[str, ...]
    byte_count: int
    changes: int = 0
