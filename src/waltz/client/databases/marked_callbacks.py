"""The part of callbacks for databases that is the same whichever library talks to the database.

Owns the decisions: how far a database is known to be, which process applies a partition, what is
repeated and when, and that a database follows one history. A mark moves in the database transaction
of its change; how that is done, a subclass says. Never waits: a database that is away, locked or in
a deadlock becomes a PostponedError. Rows PM-50 to PM-57.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from waltz.client.applying.blocked import one_line
from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.databases.stored_marks import MARKS_TABLE, StoredMark, parked_table_name
from waltz.client.transaction import Transaction
from waltz.errors import (
    HistoryChangedError,
    LocalProtocolError,
    NotFoundError,
    PostponedError,
)
from waltz.limits import APPLY_RETRY_SECONDS_MAX, APPLY_RETRY_SECONDS_MIN
from waltz.types import NOTHING, PartitionId, TransactionId

CALLBACK_POLL_SECONDS_MIN: Final = 0.004
CALLBACK_POLL_SECONDS_MAX: Final = 0.02
"""Seconds between two checks whether another process has applied a partition: a check costs every
waiting process about as much as applying a transaction."""

CALLBACK_PATIENCE_SECONDS: Final = 1.0
"""Seconds for which a process leaves a partition that it does not prefer to other processes."""


logger = logging.getLogger(__name__)

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


class MarkedDatabase(ABC):
    """The work of a library for `MarkedCallbacks`: statements, the database transaction, and which
    errors mean that the database is away."""

    @abstractmethod
    def _make_ready(self) -> None:
        """Make the tables, or see that they are there."""

    @abstractmethod
    def _stored_marks(self) -> dict[PartitionId, StoredMark]:
        """Return the marks of all partitions."""

    @abstractmethod
    def _insert_mark(self, partition_id: PartitionId) -> None:
        """Insert the mark of a new partition, unless another process is faster."""

    @abstractmethod
    def _replace_history(
        self,
        partition_id: PartitionId,
        mark: TransactionId,
        history: UUID,
        before: UUID | None,
    ) -> None:
        """Store `history` where `mark` and the history `before` are stored, in one statement."""

    @abstractmethod
    def _change(
        self, partition_id: PartitionId, rest: Sequence[Transaction], expected: TransactionId
    ) -> bool:
        """Move the mark from `expected` and apply `rest` in one database transaction; False:
        another process has moved the mark."""

    @abstractmethod
    def _keep_apart(self, transaction: Transaction, text: str) -> None:
        """Move the mark past `transaction`, and insert it with the error's text into the table of
        parked ones, in one database transaction; unless another process has moved the mark."""

    @abstractmethod
    def _wanted_again(self, partition_id: PartitionId) -> Sequence[TransactionId]:
        """Return the parked transactions that an operator has marked for another attempt."""

    @abstractmethod
    def _reads(self, transaction: Transaction) -> bool:
        """Return whether the data is to be fetched ahead."""

    @abstractmethod
    def _stays_parked(self, partition_id: PartitionId, number: TransactionId, text: str) -> None:
        """Note why another attempt at a parked transaction has failed."""

    @abstractmethod
    def apply_parked(self, partition_id: int, transaction_id: int) -> None:
        """Apply a parked transaction after all, and delete it from the table, in one database
        transaction.

        The transactions after it are applied already: the application must know that this does no
        harm. Raises NotFoundError: it is not parked; LocalProtocolError: its data was not kept; and
        any error of `apply`: then it stays parked.
        """

    @abstractmethod
    def _is_away(self, error: Exception) -> bool:
        """Return whether `error` says that the database cannot do it now: to be repeated."""

    @abstractmethod
    def _driver_error(self, error: Exception) -> BaseException | None:
        """Return what the driver has raised; None: `error` is not the database's."""


class MarkedCallbacks(MarkedDatabase, WaltzClientCallbacks):
    """Applies the log to a database that has the client's high-water mark next to its data.

    A subclass has `apply`, and what its library does.
    """

    parked_table_name: str = parked_table_name(MARKS_TABLE)

    def __init__(
        self, preferred_partitions: Collection[int] | None, patience_seconds: float
    ) -> None:
        """`preferred_partitions` None: all."""
        self._table_is_ready = False
        self._seen_histories: dict[PartitionId, UUID | None] = {}
        self._preferred = None if preferred_partitions is None else frozenset(preferred_partitions)
        self._patience_seconds = patience_seconds
        self._progress_by_partition: dict[PartitionId, _Progress] = {}
        self._seen: dict[PartitionId, TransactionId] = {}

    def wants_data(self, transaction: Transaction) -> bool:
        """Return whether `apply` will ask for the data; then it is fetched ahead."""
        return True

    def on_error_getting_client_high_water_mark(self, attempt: int, error: Exception) -> None:
        """Take note that the database does not answer; `attempt` counts from 1 (PM-55).

        The database is asked again later, unless this raises: then that error is reported as the
        error of the partition, which does not proceed until the mark can be read.
        """

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        progress = self._progress_of(partition_id)
        try:
            if not self._table_is_ready:
                self._make_ready()
                self._table_is_ready = True
            mark = self._stored_or_new(partition_id)
            self._apply_again(partition_id)
        except Exception as error:
            if self._driver_error(error) is None:
                raise
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
        progress = self._progress_of(partition_id)
        with self._retrying(progress):
            self._replace_history(partition_id, progress.found_mark, history, before)
            self._read_mark(partition_id)
        progress.history = progress.found

    def park(self, transaction: Transaction, error: Exception) -> None:
        """Move the mark past `transaction`, which `apply` cannot apply, and keep it in a table.

        Raises PostponedError: the database failed. LocalProtocolError: it was set back, and has not
        kept the transaction. HistoryChangedError: it belongs to another log by now.
        """
        _ = transaction.data  # fetched here, so that the database transaction does not wait for it
        partition_id = transaction.partition_id
        with self._retrying(self._progress_of(partition_id)):
            self._keep_apart(transaction, one_line(error))
        self._read_again(partition_id, transaction.transaction_id)  # another one may be faster

    def choose_prefetch(self, transactions: Sequence[Transaction]) -> Sequence[Transaction]:
        """Return the transactions that this process is about to apply, if it is its turn.

        Raises PostponedError: they are left to another process for now, or the database is away.
        """
        partition_id = transactions[0].partition_id
        progress = self._progress_of(partition_id)
        progress.mark = max(progress.mark, self._seen.get(partition_id, NOTHING))
        if progress.mark < transactions[-1].transaction_id:
            with self._retrying(progress):
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
        return [each for each in rest if self._reads(each)]

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
            with self._retrying(progress):
                applied = self._change(partition_id, rest, expected)
            if applied:
                progress.mark = progress.waited_at = last
                progress.failures = 0
            else:
                self._read_again(partition_id, expected)

    def _apply_again(self, partition_id: PartitionId) -> None:
        """Apply the parked transactions that an operator has marked for another attempt."""
        for number in self._wanted_again(partition_id):
            try:
                self.apply_parked(partition_id, number)
            except NotFoundError:
                pass  # another process was faster
            except (
                Exception
            ) as error:  # whatever an application raises, the transaction stays parked
                if self._is_away(error):
                    raise
                logger.warning(
                    "parked_not_applied partition=%d transaction=%d error=%r; it stays in %s",
                    partition_id, number, one_line(error), self.parked_table_name,
                )  # fmt: skip
                self._stays_parked(partition_id, number, one_line(error))
            else:
                logger.info("parked_applied partition=%d transaction=%d", partition_id, number)

    def _check_outlived(
        self, partition_id: PartitionId, mark: TransactionId, found: int | None
    ) -> None:
        """Check that the transaction to be committed, in which `found` was read just now, is still
        the one that moved the mark; None: the database has refused to read in it.

        An error that `apply` has caught may have ended it: MySQL rolls back all of it at a
        deadlock, and PostgreSQL answers a commit with a rollback. Raises LocalProtocolError.
        """
        if found != mark:
            raise LocalProtocolError(
                f"the database transaction of {type(self).__name__}.apply did not outlive it:"
                f" transaction {mark} of partition {partition_id} would be committed in part;"
                " errors of the database may be caught around a savepoint only"
            )

    def _check_unparked(self, partition_id: int, number: int, *, is_parked: bool) -> None:
        """Check that the row of a parked transaction is deleted. Raises LocalProtocolError: the
        row is there, so the database has ended the transaction that deleted the row."""
        if is_parked:
            raise LocalProtocolError(
                f"the database transaction of {type(self).__name__}.apply did not outlive it:"
                f" transaction {number} of partition {partition_id} stays parked; errors of the"
                " database may be caught around a savepoint only"
            )

    def _has_failed(self, error: Exception) -> bool:
        """Return whether `error` says that an error was caught without a savepoint before."""
        return getattr(self._driver_error(error), "sqlstate", None) == FAILED_STATE

    def _read_again(self, partition_id: PartitionId, expected: TransactionId) -> None:
        """Read the mark again. Raises LocalProtocolError: it is below what this client has
        passed."""
        progress = self._progress_of(partition_id)
        with self._retrying(progress):
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
        """Return the stored mark; NotFoundError if there is none yet.

        All marks are read at once, so that partitions waiting for other processes need not ask one
        by one. The remembered marks only grow (PM-57).
        """
        found = self._stored_marks()
        stored = {each: mark.high_water_mark for each, mark in found.items()}
        histories = {each: mark.history for each, mark in found.items()}
        self._seen, self._seen_histories = stored, histories
        if partition_id not in stored:
            raise NotFoundError(f"no mark of partition {partition_id} in the database")
        progress = self._progress_of(partition_id)
        progress.found = histories[partition_id]
        progress.found_mark = stored[partition_id]
        if stored[partition_id] > progress.mark:
            progress.mark = stored[partition_id]
            progress.failures = 0
        return stored[partition_id]

    def _stored_or_new(self, partition_id: PartitionId) -> TransactionId:
        try:
            return self._read_mark(partition_id)
        except NotFoundError:
            pass
        self._insert_mark(partition_id)
        return self._read_mark(partition_id)

    def _progress_of(self, partition_id: PartitionId) -> _Progress:
        return self._progress_by_partition.setdefault(partition_id, _Progress())

    @contextmanager
    def _retrying(self, progress: _Progress) -> Iterator[None]:
        """Turn a database that is away, locked or in a deadlock into PostponedError (PM-54).

        A constraint that the application's own statements violate is the application's error and is
        passed on.
        """
        try:
            yield
        except Exception as error:
            if not self._is_away(error):
                raise
            progress.failures += 1
            if not _is_contention(self._driver_error(error)):
                logger.warning("database_failed attempt=%d error=%s", progress.failures, error)
            raise PostponedError(
                f"database failed: {error}", _back_off(progress.failures)
            ) from error


def _is_contention(error: BaseException | None) -> bool:
    """Return whether the failure is only contention with another process, which is not logged."""
    arguments = error.args if error is not None else ()
    return (
        getattr(error, "sqlstate", None) in CONTENTION_STATES
        or arguments[:1] in {(number,) for number in CONTENTION_NUMBERS}
        or arguments[:1] == ("database is locked",)
    )


def _back_off(failures: int) -> float:
    return min(APPLY_RETRY_SECONDS_MAX, APPLY_RETRY_SECONDS_MIN * 2.0 ** min(failures - 1, 20))
