"""Marks as a database has them: values, whatever library reads them.

Owns what a mark's row says, and the reading of its history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from waltz.errors import HistoryChangedError
from waltz.types import TransactionId

MARKS_TABLE: Final = "waltz_high_water_marks"

HISTORY_CHARACTERS: Final = 36
"""Characters of a UUID."""


@dataclass(frozen=True, slots=True)
class StoredMark:
    """The last transaction of a partition that was applied to a database, and its history; None: an
    earlier release has kept the mark."""

    high_water_mark: TransactionId
    history: UUID | None


def parked_table_name(table_name: str) -> str:
    """Return the name of the table of parked transactions that belongs to a table of marks."""
    return "waltz_parked" if table_name == MARKS_TABLE else f"{table_name}_parked"


def history_of(text: str | None) -> UUID | None:
    """Return the history of a column's text. Raises HistoryChangedError: the text is none."""
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise HistoryChangedError(
            f"the column history has {text!r}; expected the key of a cluster. Nothing was applied:"
            " restore the database, or set the column to the key that `waltz status` shows"
        ) from None
