"""Callbacks for SQL databases: PostgreSQL, MySQL, MariaDB, SQLite, through SQLAlchemy.

Owns the table of high-water marks and the database transaction in which a mark and its change are
written together. Never waits: a database that is away, locked or in a deadlock becomes a
PostponedError. SQLAlchemy is imported when a SqlCallbacks is made. Rows PM-50 to PM-57.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.transaction import Transaction
from waltz.errors import (
    HistoryChangedError,
    LocalProtocolError,
    NotFoundError,
    PostponedError,
)
from waltz.limits import APPLY_RETRY_SECONDS_MAX, APPLY_RETRY_SECONDS_MIN
from waltz.types import NOTHING, PartitionId, TransactionId

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Table
    from sqlalchemy.exc import DBAPIError

    from waltz.client.databases.guarded_connection import GuardedConnection
    from waltz.client.databases.idempotency_keys import IdempotencyKeys

CALLBACK_POLL_SECONDS_MIN: Final = 0.004
CALLBACK_POLL_SECONDS_MAX: Final = 0.02
"""Seconds between two checks whether another process has applied a partition: a check costs every
waiting process about as much as applying a transaction."""

CALLBACK_PATIENCE_SECONDS: Final = 1.0
"""Seconds for which a process leaves a partition that it does not prefer to other processes."""


logger = logging.getLogger(__name__)

MARKS_TABLE: Final = "waltz_high_water_marks"

CONTENTION_STATES: Final = frozenset({"40001", "40P01", "55P03"})
"""PostgreSQL's SQLSTATEs of a serialization failure, a deadlock and a lock that is not free."""

CONTENTION_NUMBERS: Final = frozenset({1020, 1205, 1213})
"""The same errors in MySQL and MariaDB: a record has changed, a lock was not had in time, a
deadlock."""

FAILED_STATE: Final = "25P02"
"""PostgreSQL's SQLSTATE of a transaction that is continued after an error in it."""


@dataclass(slots=True)
class _Progress:
    """The progress of one partition: its mark, since when the mark has not moved, consecutive
    failures.

    A partition has one call of a callback at a time, and only that changes it.
    """

    mark: TransactionId = NOTHING
    waited_at: TransactionId = NOTHING
    waited_seconds: float = 0.0
    pause_seconds: float = 0.0
    failures: int = 0
    readings: int = 0
    found: UUID | None = None
    """The history stored next to the mark when the mark was read last; None if none was stored."""
    found_mark: TransactionId = NOTHING
    """The mark as it was read then."""
    history: UUID | None = None
    """The history that this process's changes are bound to: the one that was stored when the client
    asked last, which it checks before it hands anything over."""


class SqlCallbacks(WaltzClientCallbacks):
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

        self.engine = engine
        self.table: Table = marks_table(table_name)
        self.parked_table_name = parked_table_name(table_name)
        self._select_mark = sqlalchemy.select(self.table.c.high_water_mark)
        self._table_is_ready = False
        self._seen_histories: dict[PartitionId, UUID | None] = {}
        self._preferred = None if preferred_partitions is None else frozenset(preferred_partitions)
        self._patience_seconds = patience_seconds
        self._progress_by_partition: dict[PartitionId, _Progress] = {}
        self._seen: dict[PartitionId, TransactionId] = {}
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

    def wants_data(self, transaction: Transaction) -> bool:
        """Return whether `apply` will ask for the data; then it is fetched ahead."""
        return True

    def on_error_getting_client_high_water_mark(self, attempt: int, error: Exception) -> None:
        """Take note that the database does not answer; `attempt` counts from 1 (PM-55).

        The database is asked again later, unless this raises: then that error is reported as the
        error of the partition, which does not proceed until the mark can be read.
        """

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        from sqlalchemy.exc import DBAPIError

        from waltz.client.databases.sql_tables import make_marks_ready

        progress = self._progress_of(partition_id)
        try:
            if not self._table_is_ready:
                make_marks_ready(self.table, self.engine)
                if self._keys is not None:
                    self._keys.create_table()
                self._table_is_ready = True
            mark = self._stored_or_new(partition_id)
            self._apply_again(partition_id)
        except DBAPIError as error:
            progress.readings += 1
            self.on_error_getting_client_high_water_mark(progress.readings, error)
            raise PostponedError(
                f"high-water mark of partition {partition_id} not read: {error}",
                _back_off(progress.readings),
            ) from error
        progress.readings = 0
        progress.history = progress.found
        return mark

    @property
    def seen_high_water_marks(self) -> Mapping[PartitionId, TransactionId]:
        """The marks of all partitions, as of the last time that marks were read."""
        return self._seen

    def get_client_history(self, partition_id: PartitionId) -> UUID | None:
        """Return the history stored next to the mark, as of the last time that marks were read."""
        return self._progress_of(partition_id).found or self._seen_histories.get(partition_id)

    def keep_client_history(
        self, partition_id: PartitionId, history: UUID, before: UUID | None
    ) -> None:
        """Store `history`, if the stored one is still `before` and the mark is as it was read last:
        in one statement, so that no process which follows `before` moves the mark in between.

        Raises PostponedError: the database failed.
        """
        column = self.table.c.history
        is_before = column.is_(None) if before is None else column == str(before)
        progress = self._progress_of(partition_id)
        update = (
            self.table.update()
            .where(
                self.table.c.partition_id == partition_id,
                self.table.c.high_water_mark == progress.found_mark,
                is_before,
            )
            .values(history=str(history))
        )
        with _Retrying(progress):
            with self.engine.begin() as connection:
                connection.execute(update)
            self._read_mark(partition_id)
        progress.history = progress.found

    def park(self, transaction: Transaction, error: Exception) -> None:
        """Move the mark past `transaction`, which `apply` cannot apply, and keep it in a table.

        Raises PostponedError: the database failed.
        """
        from waltz.client.applying.blocked import one_line
        from waltz.client.databases.sql_tables import ParkedTable

        parked = ParkedTable(self.parked_table_name)
        partition_id, number = transaction.partition_id, transaction.transaction_id
        _ = transaction.data  # fetched here, so that the database transaction does not wait for it
        progress = self._progress_of(partition_id)

        def park(connection: GuardedConnection) -> None:
            parked.add(connection, transaction, one_line(error))
            if self._keys is not None:
                self._keys.note(connection, [transaction])

        with _Retrying(progress):
            parked.create(self.engine)
            self._change_guarded(
                partition_id,
                TransactionId(number - 1),
                number,
                park,
            )
            self._read_mark(partition_id)  # also if another process was faster

    def apply_parked(self, partition_id: int, transaction_id: int) -> None:
        """Apply a parked transaction after all, and delete it from the table, in one database
        transaction.

        The transactions after it are applied already: the application must know that this does no
        harm. Raises NotFoundError: it is not parked; LocalProtocolError: its data was not kept; and
        any error of `apply`: then it stays parked.
        """
        from waltz.client.databases.guarded_connection import GuardedConnection
        from waltz.client.databases.sql_tables import ParkedTable

        parked = ParkedTable(self.parked_table_name)
        with GuardedConnection(self.engine) as connection:
            connection.make_serializable()
            _begin_immediate(connection)
            row = parked.one(connection, partition_id, transaction_id)
            parked.remove(connection, partition_id, transaction_id)
            with connection.guarded():
                self.apply(connection, [row.transaction()])
            connection.commit()

    def choose_prefetch(self, transactions: Sequence[Transaction]) -> Sequence[Transaction]:
        """Return the transactions that this process is about to apply, if it is its turn.

        Raises PostponedError: they are left to another process for now, or the database is away.
        """
        partition_id = transactions[0].partition_id
        progress = self._progress_of(partition_id)
        progress.mark = max(progress.mark, self._seen.get(partition_id, NOTHING))
        if progress.mark < transactions[-1].transaction_id:
            with _Retrying(progress):
                self._read_mark(partition_id)
        mark = progress.mark
        rest = [each for each in transactions if each.transaction_id > mark]
        is_preferred = self._preferred is None or partition_id in self._preferred
        if rest and not is_preferred:
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
        if self._keys is not None:
            return rest
        return [each for each in rest if self.wants_data(each)]

    def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        """Apply what no other process has applied. Raises PostponedError: the database failed."""
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
        """Check that the transaction to be committed is still the one that moved the mark.

        An error that `apply` has caught may have ended it: MySQL rolls back all of it at a
        deadlock, and PostgreSQL answers a commit with a rollback. Raises LocalProtocolError.
        """
        from sqlalchemy.exc import DBAPIError

        found: int | None = None
        try:
            found = connection.execute(
                self._select_mark.where(self.table.c.partition_id == partition_id)
            ).scalar_one()
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != FAILED_STATE:
                raise
        if found != mark:
            raise LocalProtocolError(
                f"the database transaction of {type(self).__name__}.apply did not outlive it:"
                f" transaction {mark} of partition {partition_id} would be committed in part;"
                " errors of the database may be caught around a savepoint only"
            )

    def _apply_again(self, partition_id: PartitionId) -> None:
        """Apply the parked transactions that an operator has marked for another attempt."""
        from waltz.client.applying.blocked import one_line
        from waltz.client.databases.sql_tables import PARKED, RETRY, ParkedTable

        parked = ParkedTable(self.parked_table_name)
        if not parked.exists(self.engine):
            return
        with self.engine.connect() as connection:
            wanted = parked.rows(connection, partition_id=partition_id, state=RETRY)
        for row in wanted:
            number = row.transaction_id
            try:
                self.apply_parked(partition_id, number)
            except NotFoundError:
                pass  # another process was faster
            except (
                Exception
            ) as error:  # whatever an application raises, the transaction stays parked
                _raise_if_away(error)
                logger.warning(
                    "parked_not_applied partition=%d transaction=%d error=%r; it stays in %s",
                    partition_id, number, one_line(error), parked.table.name,
                )  # fmt: skip
                with self.engine.begin() as connection:
                    parked.change(connection, partition_id, number, PARKED, one_line(error))
            else:
                logger.info("parked_applied partition=%d transaction=%d", partition_id, number)

    def _read_again(self, partition_id: PartitionId, expected: TransactionId) -> None:
        """Read the mark again. Raises LocalProtocolError: it is below what this client has
        passed."""
        progress = self._progress_of(partition_id)
        with _Retrying(progress):
            mark = self._read_mark(partition_id)
        self._check_history(partition_id)
        if mark < expected:
            raise LocalProtocolError(
                f"the database is at transaction {mark} of partition {partition_id}; expected"
                f" {expected}: the database was set back; restart the client"
            )

    def _check_history(self, partition_id: PartitionId) -> None:
        """Raise HistoryChangedError if another process has bound the database to another log."""
        progress = self._progress_of(partition_id)
        known, found = progress.history, progress.found
        if known is not None and found != known:
            raise HistoryChangedError(
                f"the database now belongs to history {found} of partition {partition_id}; this"
                f" client has applied history {known} to the database. Nothing more was applied:"
                " restart the client once it is clear which of the two is right"
            )

    def _read_mark(self, partition_id: PartitionId) -> TransactionId:
        """Return the stored mark; NoResultFound if there is none yet.

        All marks are read at once, so that partitions waiting for other processes need not ask one
        by one. The remembered marks only grow (PM-57).
        """
        from sqlalchemy.exc import NoResultFound

        from waltz.client.databases.sql_tables import read_marks

        with self.engine.connect() as connection:
            found = read_marks(connection, self.table)
        stored = {each: mark.high_water_mark for each, mark in found.items()}
        histories = {each: mark.history for each, mark in found.items()}
        self._seen, self._seen_histories = stored, histories
        if partition_id not in stored:
            raise NoResultFound(f"no mark of partition {partition_id} in {self.table.name}")
        progress = self._progress_of(partition_id)
        progress.found = histories[partition_id]
        progress.found_mark = stored[partition_id]
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

    def _progress_of(self, partition_id: PartitionId) -> _Progress:
        return self._progress_by_partition.setdefault(partition_id, _Progress())


def parked_table_name(table_name: str) -> str:
    """Return the name of the table of parked transactions that belongs to a table of marks."""
    return "waltz_parked" if table_name == MARKS_TABLE else f"{table_name}_parked"


class _Retrying:
    """Turns a database that is away, locked or in a deadlock into PostponedError (PM-54).

    A constraint that the application's own statements violate is the application's error and is
    passed on.
    """

    def __init__(self, progress: _Progress) -> None:
        self._progress = progress

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from sqlalchemy.exc import DBAPIError

        if error is None:
            return
        if isinstance(error, DBAPIError) and _is_away(error):
            self._progress.failures += 1
            if not _is_contention(error):
                logger.warning(
                    "database_failed attempt=%d error=%s", self._progress.failures, error
                )
            raise PostponedError(
                f"database failed: {error}", _back_off(self._progress.failures)
            ) from error


def _is_away(error: DBAPIError) -> bool:
    from sqlalchemy.exc import InterfaceError, InternalError, OperationalError

    kinds = OperationalError | InterfaceError | InternalError
    return isinstance(error, kinds) or error.connection_invalidated


def _raise_if_away(error: Exception) -> None:
    from sqlalchemy.exc import DBAPIError

    if isinstance(error, DBAPIError) and _is_away(error):
        raise error


def _is_contention(error: DBAPIError) -> bool:
    """Return whether the failure is only contention with another process, which is not logged."""
    arguments = error.orig.args if error.orig is not None else ()
    return (
        getattr(error.orig, "sqlstate", None) in CONTENTION_STATES
        or arguments[:1] in {(number,) for number in CONTENTION_NUMBERS}
        or arguments[:1] == ("database is locked",)
    )


def _back_off(failures: int) -> float:
    return min(APPLY_RETRY_SECONDS_MAX, APPLY_RETRY_SECONDS_MIN * 2.0 ** min(failures - 1, 20))


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
