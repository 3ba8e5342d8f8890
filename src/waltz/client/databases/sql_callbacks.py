"""Callbacks for SQL databases: PostgreSQL, MySQL, MariaDB, SQLite, through SQLAlchemy.

Owns the table of high-water marks and the database transaction in which a mark and its change are
written together; the decisions are `MarkedCallbacks`. SQLAlchemy is imported when a SqlCallbacks is
made. Rows PM-50 to PM-57.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from waltz.client.databases.marked_callbacks import CALLBACK_PATIENCE_SECONDS, MarkedCallbacks
from waltz.client.databases.stored_marks import MARKS_TABLE, StoredMark, parked_table_name
from waltz.client.transaction import Transaction
from waltz.errors import LocalProtocolError
from waltz.types import NOTHING, PartitionId, TransactionId

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Table

    from waltz.client.databases.guarded_connection import GuardedConnection
    from waltz.client.databases.idempotency_keys import IdempotencyKeys
    from waltz.client.databases.sql_tables import ParkedTable


class SqlCallbacks(MarkedCallbacks):
    """Applies the log to a SQL database, each transaction once, whichever other processes apply it
    too.

    The client's high-water mark is in a table of the same database and moves in the same database
    transaction as the change. Moving it is guarded, so of several processes that share the database
    exactly one applies a transaction (PM-50 to PM-52).

    Every process sees every transaction, and fetching all data in each would be wasted work: a
    process leaves the partitions that are not in `preferred_partitions` to others, and applies them
    only when no process has for `patience_seconds`. With None, the default, it prefers all.

    The database transaction is serializable, whatever the engine's own isolation, and the
    connection that `apply` gets cannot end it (PM-53, PM-56). When the database fails, because of a
    deadlock or because it is away, everything is rolled back and repeated, with growing pauses
    (PM-54).

    Next to the mark is the history that it belongs to, at first the cluster's key: a database that
    has followed one cluster is refused for another one, before anything is applied.

    With `keys` the idempotency keys of transactions are noted where `apply` makes its changes.

    With `on_apply_failure="park"` a transaction that cannot be applied goes into a table of its
    own, `waltz_parked`, in the database transaction in which the mark passes it.

    A subclass has `apply(connection, transactions)`; it may override `wants_data`.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        table_name: str = MARKS_TABLE,
        preferred_partitions: Collection[int] | None = None,
        patience_seconds: float = CALLBACK_PATIENCE_SECONDS,
        keys: IdempotencyKeys | None = None,
    ) -> None:
        """Does not connect yet. Raises LocalProtocolError: the keys are of another engine."""
        import sqlalchemy

        from waltz.client.databases.sql_tables import marks_table

        super().__init__(preferred_partitions, patience_seconds)
        self.engine = engine
        self.table: Table = marks_table(table_name)
        self.parked_table_name = parked_table_name(table_name)
        self._select_mark = sqlalchemy.select(self.table.c.high_water_mark)
        if keys is not None and keys.engine is not engine:
            raise LocalProtocolError(
                "the idempotency keys are in another database, or of another engine: they are noted"
                " in the database transaction that applies; give both one engine"
            )
        self._keys = keys

    @abstractmethod
    def apply(self, connection: Connection, transactions: Sequence[Transaction]) -> None:
        """Make the changes of `transactions`, dense and in order, on `connection`.

        The caller commits the database transaction; on any error it is rolled back and everything
        is repeated. A statement that would end it raises LocalProtocolError; savepoints are
        allowed. `sqlalchemy.orm.Session(connection, join_transaction_mode="create_savepoint")`
        works on it.
        """

    def _make_ready(self) -> None:
        from waltz.client.databases.sql_tables import make_marks_ready

        make_marks_ready(self.table, self.engine)
        if self._keys is not None:
            self._keys.create_table()

    def _stored_marks(self) -> dict[PartitionId, StoredMark]:
        from waltz.client.databases.sql_tables import read_marks

        with self.engine.connect() as connection:
            return read_marks(connection, self.table)

    def _insert_mark(self, partition_id: PartitionId) -> None:
        from sqlalchemy.exc import IntegrityError

        try:
            with self.engine.begin() as connection:
                connection.execute(
                    self.table.insert().values(partition_id=partition_id, high_water_mark=NOTHING)
                )
        except IntegrityError:
            pass  # another process was faster

    def _replace_history(
        self,
        partition_id: PartitionId,
        mark: TransactionId,
        history: UUID,
        before: UUID | None,
    ) -> None:
        columns = self.table.c
        is_before = columns.history.is_(None) if before is None else columns.history == str(before)
        update = (
            self.table.update()
            .where(columns.partition_id == partition_id, columns.high_water_mark == mark, is_before)
            .values(history=str(history))
        )
        with self.engine.begin() as connection:
            connection.execute(update)

    def _keep_apart(self, transaction: Transaction, text: str) -> None:
        parked = self._parked_table()
        number = transaction.transaction_id

        def park(connection: GuardedConnection) -> None:
            parked.add(connection, transaction, text)
            if self._keys is not None:
                self._keys.note(connection, [transaction])

        parked.create(self.engine)
        self._change_guarded(transaction.partition_id, TransactionId(number - 1), number, park)

    def apply_parked(self, partition_id: int, transaction_id: int) -> None:
        from waltz.client.databases.guarded_connection import GuardedConnection

        parked = self._parked_table()
        with GuardedConnection(self.engine) as connection:
            connection.make_serializable()
            _begin_immediate(connection)
            row = parked.one(connection, partition_id, transaction_id)
            parked.remove(connection, partition_id, transaction_id)
            with connection.guarded():
                self.apply(connection, [row.transaction()])
            is_parked = self._is_parked(connection, partition_id, transaction_id)
            self._check_unparked(partition_id, transaction_id, is_parked=is_parked)
            connection.commit()

    def _is_parked(
        self, connection: GuardedConnection, partition_id: int, transaction_id: int
    ) -> bool:
        """Return whether the row is there, or would be after the rollback of what has failed."""
        from sqlalchemy.exc import DBAPIError

        try:
            return bool(
                self._parked_table().rows(
                    connection,
                    partition_id=partition_id,
                    transaction_id=transaction_id,
                    with_data=False,
                )
            )
        except DBAPIError as error:
            if not self._has_failed(error):
                raise
            return True

    def _reads(self, transaction: Transaction) -> bool:
        return self._keys is not None or self.wants_data(transaction)

    def _change(
        self, partition_id: PartitionId, rest: Sequence[Transaction], expected: TransactionId
    ) -> bool:
        """Move the mark and apply in one database transaction; False: another process has moved the
        mark.

        The guarded update comes first: its lock makes other processes wait for the outcome.
        """

        def apply(connection: GuardedConnection) -> None:
            if self._keys is not None:
                self._keys.note(connection, rest)
            with connection.guarded():
                self.apply(connection, rest)

        return self._change_guarded(partition_id, expected, rest[-1].transaction_id, apply)

    def _change_guarded(
        self,
        partition_id: PartitionId,
        expected: TransactionId,
        mark: TransactionId,
        change: Callable[[GuardedConnection], None],
    ) -> bool:
        """Move the mark from `expected` and make `change`; False: another process has moved the
        mark."""
        from waltz.client.databases.guarded_connection import GuardedConnection

        table = self.table
        history = self._progress_of(partition_id).history
        conditions = [table.c.partition_id == partition_id, table.c.high_water_mark == expected]
        if history is not None:
            conditions.append(table.c.history == str(history))
        with GuardedConnection(self.engine) as connection:
            connection.make_serializable()
            _begin_immediate(connection)
            updated = connection.execute(
                table.update().where(*conditions).values(high_water_mark=mark)
            )
            if updated.rowcount != 1:
                connection.rollback()
                return False
            change(connection)
            self._check_transaction(connection, partition_id, mark)
            connection.commit()
        return True

    def _check_transaction(
        self, connection: GuardedConnection, partition_id: PartitionId, mark: TransactionId
    ) -> None:
        """Check that the transaction to be committed is still the one that moved the mark."""
        from sqlalchemy.exc import DBAPIError

        found: int | None = None
        try:
            found = connection.execute(
                self._select_mark.where(self.table.c.partition_id == partition_id)
            ).scalar_one()
        except DBAPIError as error:
            if not self._has_failed(error):
                raise
        self._check_outlived(partition_id, mark, found)

    def _wanted_again(self, partition_id: PartitionId) -> Sequence[TransactionId]:
        from waltz.client.databases.sql_tables import RETRY

        parked = self._parked_table()
        if not parked.exists(self.engine):
            return []
        with self.engine.connect() as connection:
            rows = parked.rows(connection, partition_id=partition_id, state=RETRY)
        return [row.transaction_id for row in rows]

    def _stays_parked(self, partition_id: PartitionId, number: TransactionId, text: str) -> None:
        from waltz.client.databases.sql_tables import PARKED

        with self.engine.begin() as connection:
            self._parked_table().change(connection, partition_id, number, PARKED, text)

    def _parked_table(self) -> ParkedTable:
        from waltz.client.databases.sql_tables import ParkedTable

        return ParkedTable(self.parked_table_name)

    def _is_away(self, error: Exception) -> bool:
        from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError

        kinds = OperationalError | InterfaceError | InternalError
        return isinstance(error, kinds) or (
            isinstance(error, DBAPIError) and error.connection_invalidated
        )

    def _driver_error(self, error: Exception) -> BaseException | None:
        from sqlalchemy.exc import DBAPIError

        return (error.orig or error) if isinstance(error, DBAPIError) else None


def _begin_immediate(connection: Connection) -> None:
    """Take SQLite's write lock at once: a lock that has to be upgraded from a read lock fails
    instead of waiting.

    Other databases, and drivers that have begun already, take it with the first update.
    """
    if connection.dialect.name != "sqlite":
        return
    driver = connection.connection.dbapi_connection
    if driver is not None and not getattr(driver, "in_transaction", True):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
