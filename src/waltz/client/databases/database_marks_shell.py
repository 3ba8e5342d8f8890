"""The marks of a database that `SqlCallbacks` applies to, for processes that only read it.

Owns the wait for a consistency token in a process that may have no client: a web server reads the
database, and another process applies the log to it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from waltz.client.consistency_token import DROP_IT, ConsistencyToken, pauses
from waltz.client.databases.stored_marks import MARKS_TABLE
from waltz.errors import HistoryChangedError, OperationTimeoutError
from waltz.types import PartitionId

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from waltz.client.databases.stored_marks import StoredMark


class MarksOfDatabase(ABC):
    """The marks in a database, whatever library reads them. For threads: on an event loop, call it
    in a thread."""

    def has_applied(self, token: ConsistencyToken) -> bool:
        """Return whether the database has all that `token` names. One query.

        Raises HistoryChangedError: the database follows another history, so nobody can tell from
        its marks; the library's own error: the database did not answer.
        """
        return not self._missing(token)

    def wait_until_applied(self, token: ConsistencyToken, timeout_seconds: float) -> None:
        """Return once the database has all that `token` names.

        Raises OperationTimeoutError, with what is missing; and as `has_applied`.
        """
        ends_at = time.monotonic() + timeout_seconds
        for pause in pauses():
            missing = self._missing(token)
            if not missing:
                return
            left = ends_at - time.monotonic()
            if left <= 0:
                raise OperationTimeoutError(
                    f"transactions were not applied in {timeout_seconds} s: {'; '.join(missing)}"
                )
            time.sleep(min(pause, left))

    def _missing(self, token: ConsistencyToken) -> list[str]:
        """Return what the database lacks, in words."""
        stored = self._stored()
        missing = []
        for partition_id, wanted in token.marks.items():
            found = stored.get(partition_id)
            if found is None or found.history is None:
                missing.append(f"partition {partition_id} has no mark with a history")
            elif token.history_among([found.history]) is None:
                raise HistoryChangedError(
                    f"the consistency token names transaction {wanted} of partition {partition_id}"
                    " in another history than the one that the database has applied: the token is"
                    f" of another log, or of before a restore. {DROP_IT}"
                )
            elif found.high_water_mark < wanted:
                missing.append(
                    f"partition {partition_id} is at {found.high_water_mark} of {wanted}"
                )
        return missing

    @abstractmethod
    def _stored(self) -> dict[PartitionId, StoredMark]:
        """Return the marks of all partitions; none if the table is not there yet."""


class DatabaseMarks(MarksOfDatabase):
    """The marks in a database: the last transaction of each partition that was applied to it.

    For threads: on an event loop, call it in a thread. `table_name` as given to `SqlCallbacks`.
    """

    def __init__(self, engine: Engine, *, table_name: str = MARKS_TABLE) -> None:
        from waltz.client.databases.sql_tables import marks_table

        self._engine = engine
        self._table = marks_table(table_name)

    def _stored(self) -> dict[PartitionId, StoredMark]:
        import sqlalchemy

        from waltz.client.databases.sql_tables import read_marks

        try:
            with self._engine.connect() as connection:
                return read_marks(connection, self._table)
        except sqlalchemy.exc.DBAPIError:
            if sqlalchemy.inspect(self._engine).has_table(self._table.name):
                raise
            return {}  # nothing has been applied yet
