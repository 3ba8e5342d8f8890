"""Callbacks for SQL databases: PostgreSQL, MySQL, MariaDB, SQLite, through SQLAlchemy.

Owns the table of high-water marks and the database transaction in which a mark and the change that
goes with it move together. Never waits: a database that is away, locked or in a deadlock becomes a
PostponedError. SQLAlchemy is imported when a SqlCallbacks is made. Rows PM-50 to PM-57.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from waltz.client.callbacks import WaltzClientCallbacks
from waltz.client.transaction import Transaction
from waltz.errors import LocalProtocolError, PostponedError
from waltz.limits import (
    APPLY_RETRY_SECONDS_MAX,
    APPLY_RETRY_SECONDS_MIN,
    CALLBACK_PATIENCE_SECONDS,
    CALLBACK_POLL_SECONDS_MAX,
    CALLBACK_POLL_SECONDS_MIN,
)
from waltz.types import NOTHING, PartitionId, TransactionId

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Table
    from sqlalchemy.exc import DBAPIError

    from waltz.client.guarded_connection import GuardedConnection

logger = logging.getLogger(__name__)

CONTENTION_STATES: Final = frozenset({"40001", "40P01", "55P03"})
"""PostgreSQL's SQLSTATE of a serialization failure, a deadlock and a lock that is not free."""

CONTENTION_NUMBERS: Final = frozenset({1020, 1205, 1213})
"""The same in MySQL and MariaDB: a record that has changed, a lock not had in time, a deadlock."""

FAILED_STATE: Final = "25P02"
"""PostgreSQL's SQLSTATE of a transaction that goes on after an error in it."""


@dataclass(slots=True)
class _Progress:
    """Of one partition: its mark, how long it has stayed at which, failures in a row.

    A partition has one call of a callback at a time, and only that changes it.
    """

    mark: TransactionId = NOTHING
    waited_at: TransactionId = NOTHING
    waited_seconds: float = 0.0
    pause_seconds: float = 0.0
    failures: int = 0
    readings: int = 0


class SqlCallbacks(WaltzClientCallbacks):
    """Applies the log to a SQL database, each transaction once, whoever else applies it too.

    The client's high-water mark lies in a table of the same database and moves in the same database
    transaction as the change. Moving it is guarded, so of several processes that share the database
    exactly one applies a transaction (PM-50 to PM-52).

    Every process sees every transaction, and fetching all data in each would be wasted work: a
    process leaves the partitions that are not in `preferred_partitions` to others, and applies them
    only when nobody has for `patience_seconds`. With None, the default, it prefers all.

    The database transaction is serializable, whatever the engine's own isolation, and the
    connection that `apply` gets cannot end it (PM-53, PM-56). When the database fails, be it for a
    deadlock or because it is away, all is rolled back and done again, later and later (PM-54).

    A subclass has `apply(connection, transactions)`; it may override `wants_data`.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        table_name: str = "waltz_high_water_marks",
        preferred_partitions: Collection[int] | None = None,
        patience_seconds: float = CALLBACK_PATIENCE_SECONDS,
    ) -> None:
        import sqlalchemy

        self.engine = engine
        self.table: Table = sqlalchemy.Table(
            table_name,
            sqlalchemy.MetaData(),
            sqlalchemy.Column(
                "partition_id", sqlalchemy.Integer, primary_key=True, autoincrement=False
            ),
            sqlalchemy.Column("high_water_mark", sqlalchemy.BigInteger, nullable=False),
        )
        self._select_marks = sqlalchemy.select(
            self.table.c.partition_id, self.table.c.high_water_mark
        )
        self._preferred = None if preferred_partitions is None else frozenset(preferred_partitions)
        self._patience_seconds = patience_seconds
        self._progress_by_partition: dict[PartitionId, _Progress] = {}
        self._seen: dict[PartitionId, TransactionId] = {}

    @abstractmethod
    def apply(self, connection: Connection, transactions: Sequence[Transaction]) -> None:
        """Make the changes of `transactions`, dense and in order, on `connection`.

        The database transaction is committed by the caller; on any error it is rolled back and
        everything is done again. What would end it raises LocalProtocolError; savepoints are
        allowed. `sqlalchemy.orm.Session(connection, join_transaction_mode="create_savepoint")`
        works on it.
        """

    def wants_data(self, transaction: Transaction) -> bool:
        """Whether `apply` will ask for the data; then it is fetched ahead."""
        return True

    def on_error_getting_client_high_water_mark(self, attempt: int, error: Exception) -> None:
        """The database does not answer; `attempt` counts from 1 (PM-55).

        It is asked again later, unless this raises: then that is reported as the error of the
        partition, which stays where it is until the mark can be read.
        """

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        from sqlalchemy.exc import DBAPIError

        progress = self._progress_of(partition_id)
        try:
            self._create_table()
            mark = self._stored_or_new(partition_id)
        except DBAPIError as error:
            progress.readings += 1
            self.on_error_getting_client_high_water_mark(progress.readings, error)
            raise PostponedError(
                f"high-water mark of partition {partition_id} not read: {error}",
                _back_off(progress.readings),
            ) from error
        progress.readings = 0
        return mark

    def choose_prefetch(self, transactions: Sequence[Transaction]) -> Sequence[Transaction]:
        """Return what this process is about to apply, if it is its turn.

        Raises PostponedError: it is left to another process for now, or the database is away.
        """
        partition_id = transactions[0].partition_id
        progress = self._progress_of(partition_id)
        progress.mark = max(progress.mark, self._seen.get(partition_id, NOTHING))
        if progress.mark < transactions[-1].transaction_id:
            with _Retrying(progress):
                self._read_mark(partition_id)
        mark = progress.mark
        rest = [each for each in transactions if each.transaction_id > mark]
        if rest and not self._is_preferred(partition_id):
            if mark > progress.waited_at:
                progress.waited_seconds = progress.pause_seconds = 0.0
                progress.waited_at = mark
            if progress.waited_seconds < self._patience_seconds:
                pause = min(
                    CALLBACK_POLL_SECONDS_MAX,
                    max(CALLBACK_POLL_SECONDS_MIN, 2 * progress.pause_seconds),
                )
                progress.pause_seconds = pause
                progress.waited_seconds += pause
                raise PostponedError(
                    f"partition {partition_id} is left to another process", pause, mark
                )
        return [each for each in rest if self.wants_data(each)]

    def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        """Apply what no other process has. Raises PostponedError: the database failed."""
        partition_id = transactions[0].partition_id
        last = transactions[-1].transaction_id
        progress = self._progress_of(partition_id)
        while progress.mark < last:
            rest = [each for each in transactions if each.transaction_id > progress.mark]
            expected = TransactionId(rest[0].transaction_id - 1)
            if progress.mark < expected:
                self._read_again(partition_id, expected)
                continue
            with _Retrying(progress):
                applied = self._apply_guarded(partition_id, rest, expected)
            if applied:
                progress.mark = progress.waited_at = last
                progress.failures = 0
            else:
                self._read_again(partition_id, expected)

    def _apply_guarded(
        self, partition_id: PartitionId, rest: Sequence[Transaction], expected: TransactionId
    ) -> bool:
        """Move the mark and apply in one database transaction; False: somebody else has moved it.

        The guarded update comes first: its lock makes everybody else wait for the outcome.
        """
        from waltz.client.guarded_connection import GuardedConnection

        table, mark = self.table, rest[-1].transaction_id
        with GuardedConnection(self.engine) as connection:
            connection.make_serializable()
            _begin_immediate(connection)
            updated = connection.execute(
                table.update()
                .where(table.c.partition_id == partition_id, table.c.high_water_mark == expected)
                .values(high_water_mark=mark)
            )
            if updated.rowcount != 1:
                connection.rollback()
                return False
            with connection.guarded():
                self.apply(connection, rest)
            self._check_transaction(connection, partition_id, mark)
            connection.commit()
        return True

    def _check_transaction(
        self, connection: GuardedConnection, partition_id: PartitionId, mark: TransactionId
    ) -> None:
        """See that the transaction to be committed is still the one that moved the mark.

        An error that `apply` has caught may have ended it: MySQL rolls back all of it at a
        deadlock, and PostgreSQL answers a commit with a rollback. Raises LocalProtocolError.
        """
        from sqlalchemy.exc import DBAPIError

        found: int | None = None
        try:
            found = connection.execute(
                self._select_marks.where(self.table.c.partition_id == partition_id)
            ).one()[1]
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != FAILED_STATE:
                raise
        if found != mark:
            raise LocalProtocolError(
                f"the database transaction of {type(self).__name__}.apply did not outlive it:"
                f" transaction {mark} of partition {partition_id} would be committed in part;"
                " errors of the database may be caught around a savepoint only"
            )

    def _create_table(self) -> None:
        from sqlalchemy import inspect
        from sqlalchemy.exc import DBAPIError

        try:
            self.table.create(self.engine, checkfirst=True)
        except DBAPIError:
            if not inspect(self.engine).has_table(self.table.name):
                raise  # otherwise another process was faster

    def _read_again(self, partition_id: PartitionId, expected: TransactionId) -> None:
        """Raises LocalProtocolError: the database holds less than this client has passed."""
        progress = self._progress_of(partition_id)
        with _Retrying(progress):
            mark = self._read_mark(partition_id)
        if mark < expected:
            raise LocalProtocolError(
                f"the database is at transaction {mark} of partition {partition_id}; expected"
                f" {expected}: it was set back, restart the client"
            )

    def _read_mark(self, partition_id: PartitionId) -> TransactionId:
        """Return the stored mark; NoResultFound if there is none yet.

        All of them are read at once, so that partitions waiting for others need not ask one by one.
        What is remembered only grows (PM-57).
        """
        from sqlalchemy.exc import NoResultFound

        with self.engine.connect() as connection:
            rows = connection.execute(self._select_marks).all()
        stored = {PartitionId(each): TransactionId(mark) for each, mark in rows}
        self._seen = stored
        if partition_id not in stored:
            raise NoResultFound(f"no mark of partition {partition_id} in {self.table.name}")
        progress = self._progress_of(partition_id)
        if stored[partition_id] > progress.mark:
            progress.mark = stored[partition_id]
            progress.failures = 0
        return stored[partition_id]

    def _stored_or_new(self, partition_id: PartitionId) -> TransactionId:
        from sqlalchemy.exc import IntegrityError, NoResultFound

        try:
            return self._read_mark(partition_id)
        except NoResultFound:
            pass
        try:
            with self.engine.begin() as connection:
                connection.execute(
                    self.table.insert().values(partition_id=partition_id, high_water_mark=NOTHING)
                )
        except IntegrityError:
            pass  # another process was faster
        return self._read_mark(partition_id)

    def _is_preferred(self, partition_id: PartitionId) -> bool:
        return self._preferred is None or partition_id in self._preferred

    def _progress_of(self, partition_id: PartitionId) -> _Progress:
        return self._progress_by_partition.setdefault(partition_id, _Progress())


class _Retrying:
    """Turns a database that is away, locked or in a deadlock into PostponedError (PM-54).

    What the application's own statements violate is its error and goes through.
    """

    def __init__(self, progress: _Progress) -> None:
        self._progress = progress

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError

        if error is None:
            return
        if isinstance(error, OperationalError | InterfaceError | InternalError) or (
            isinstance(error, DBAPIError) and error.connection_invalidated
        ):
            self._progress.failures += 1
            if not _is_contention(error):
                logger.warning(
                    "database_failed attempt=%d error=%s", self._progress.failures, error
                )
            raise PostponedError(
                f"database failed: {error}", _back_off(self._progress.failures)
            ) from error


def _is_contention(error: DBAPIError) -> bool:
    """Whether somebody else was in the way, which is nothing to be told of."""
    arguments = error.orig.args if error.orig is not None else ()
    return (
        getattr(error.orig, "sqlstate", None) in CONTENTION_STATES
        or arguments[:1] in {(number,) for number in CONTENTION_NUMBERS}
        or arguments[:1] == ("database is locked",)
    )


def _back_off(failures: int) -> float:
    return min(APPLY_RETRY_SECONDS_MAX, APPLY_RETRY_SECONDS_MIN * 2.0 ** min(failures - 1, 20))


def _begin_immediate(connection: Connection) -> None:
    """Take SQLite's write lock at once: a lock that must grow from a read fails instead of waiting.

    Other databases, and drivers that have begun already, take it with the first update.
    """
    if connection.dialect.name != "sqlite":
        return
    driver = connection.connection.dbapi_connection
    if driver is not None and not getattr(driver, "in_transaction", True):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
