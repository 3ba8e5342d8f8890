"""The knowledge of one attempt of a sink's task: which of its rows are in the log already.

Decides what may be written. Owns the rules by which a row is written once: every row has a lock of
its own, and the note written beforehand tells the appends of attempts from those of strangers.
Called by the client's threads and by the one that submits.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

import waltz
from waltz import (
    ClusterNotes,
    PartitionLocalLock,
    Transaction,
    TransactionBuilder,
    TransactionContext,
    WaltzClientCallbacks,
)
from waltz.errors import ConfigurationError, UnavailableError, VersionConflictError
from waltz.spark.codes import LOCK_REFUSED, UNAVAILABLE
from waltz.spark.sink_progress import TaskIdentity, TaskProgress, joined
from waltz.spark.sink_rows import SinkRow, content_digest
from waltz.types import ClientId, PartitionId, TransactionId

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROW_LOCK: Final = "waltz.spark.row"

PROGRESS_SECONDS_MAX: Final = 120.0
"""Seconds that a task waits without any progress, for a server for example."""

RowKey: TypeAlias = tuple[int, bytes]
"""Partition and digest of the content: rows that have both in common are interchangeable."""


class RowLocks:
    """The locks of a task's rows, which all attempts of the task compute alike."""

    def __init__(self, identity: TaskIdentity) -> None:
        self._seed = f"{identity.write_id}\0{identity.batch}\0{identity.task}".encode()

    def lock(self, digest: bytes) -> PartitionLocalLock:
        """Return the lock of a row whose content has that digest."""
        return PartitionLocalLock(ROW_LOCK, int(self._numbers([digest])[0]))

    def hashes(self, digests: Sequence[bytes]) -> NDArray[np.int32]:
        """Return the hashes of the locks of rows, by the digests of their contents."""
        return waltz.lock_hashes(ROW_LOCK, self._numbers(digests))

    def _numbers(self, digests: Sequence[bytes]) -> NDArray[np.int64]:
        seed = self._seed
        numbers = b"".join([sha256(seed + each).digest()[:8] for each in digests])
        return np.frombuffer(numbers, ">i8").astype(np.int64)


class LoggedRows(WaltzClientCallbacks):
    """The rows of a task in the log, as far as it was followed; decides what may be written.

    Called by the client's threads and by the one that submits.
    """

    def __init__(self, identity: TaskIdentity, notes: ClusterNotes) -> None:
        self.identity = identity
        self.notes = notes
        self.locks = RowLocks(identity)
        self.changed = threading.Condition()
        self.error: Exception | None = None
        self.appended = 0
        self.found = 0
        self.client_id = ClientId(0)
        self._marks: Mapping[PartitionId, TransactionId] = {}
        self._attempts: set[ClientId] = set()
        self._strangers: set[ClientId] = set()
        self._logged: Counter[RowKey] = Counter()
        self._earlier: dict[RowKey, TransactionId] = {}
        self._foreign: dict[PartitionId, array[int]] = {}
        self._pending: dict[RowKey, RowContext] = {}
        self.refusal: str | None = None
        """The text of the error, if a lock was refused."""

    def begin(self, client_id: ClientId, progress: TaskProgress) -> None:
        """Called before anything is followed."""
        self.client_id = client_id
        self._marks = progress.marks
        self._attempts.update(progress.clients)

    def stop(self, error: Exception) -> None:
        """Write nothing more; the first error counts."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def check(self) -> None:
        """Raise the error that stopped the task, if any."""
        if self.error is not None:
            raise self.error

    def wants(self, row: RowContext) -> bool:
        """Return whether the row is still to be written: not if as many rows of its content are in
        the log already."""
        return self.error is None and not self.is_logged(row.key, row.rank)

    def is_logged(self, key: RowKey, rank: int) -> bool:
        """Return whether a row is in the log before which there were `rank` with this key."""
        return self._logged[key] > rank

    def pending(self, key: RowKey) -> RowContext | None:
        """Return the row with this content that is on its way, if there is one."""
        return self._pending.get(key)

    def note_start(self, row: RowContext) -> None:
        self._pending[row.key] = row

    def note_end(self, row: RowContext, *, appended: bool) -> None:
        with self.changed:
            del self._pending[row.key]
            if appended:
                self._logged[row.key] += 1
                self.appended += 1
            else:
                self.found += 1
            self.changed.notify_all()

    def first_other(self, wanted: Mapping[RowKey, int]) -> str | None:
        """Return an append of an earlier attempt that is not among the rows `wanted`."""
        for key, count in self._logged.items():
            if count > wanted.get(key, 0):
                return f"transaction {self._earlier[key]} of partition {key[0]}"
        return None

    def choose(
        self, keys: Sequence[RowKey], ranks: Sequence[int], rows: Iterable[int]
    ) -> tuple[list[int], list[int]]:
        """Return those of `rows` that are to be written now, and those to be looked at later, for
        they have the same content as one of the first; the others are in the log. Each is an index
        of `keys` and `ranks`."""
        now: list[int] = []
        later: list[int] = []
        chosen: set[RowKey] = set()
        found = 0
        for row in rows:
            key = keys[row]
            if key in chosen:
                later.append(row)
            elif self.is_logged(key, ranks[row]):
                found += 1
            else:
                chosen.add(key)
                now.append(row)
        self.found += found
        return now, later

    def note_appended(self, keys: Iterable[RowKey]) -> None:
        """Rows with these keys were appended by this attempt."""
        with self.changed:
            for key in keys:
                self._logged[key] += 1
                self.appended += 1

    def refuse(
        self, context: RowContext, transaction_id: TransactionId, lock: PartitionLocalLock
    ) -> None:
        """Take note that a lock of the row was newer than what was known here.

        Rows of this task with the same lock do not count, and neither does an estimate where the
        log has no transaction of a stranger.
        """
        partition_id = PartitionId(context.row.partition_id)
        winner = self._foreign_between(partition_id, context.executed_at, transaction_id)
        if winner is None:
            return
        self.refusal = (
            f"{LOCK_REFUSED} {self.identity}: lock {lock.name} {lock.id} of a row for partition"
            f" {partition_id} was taken by transaction {winner}"
        )
        self.stop(VersionConflictError(self.refusal))

    def _foreign_between(
        self, partition_id: PartitionId, after: TransactionId, through: TransactionId
    ) -> TransactionId | None:
        """Return the last transaction of a stranger in that part of the log."""
        foreign = self._foreign.get(partition_id, array("q"))
        place = bisect_right(foreign, through)
        if place and foreign[place - 1] > after:
            return TransactionId(foreign[place - 1])
        return None

    # Called by the client

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        return self._marks.get(partition_id, waltz.NOTHING)

    def choose_prefetch(self, transactions: Sequence[Transaction]) -> list[Transaction]:
        """Return the rows of other attempts: only their data is read."""
        chosen: list[Transaction] = []
        for run in waltz.client_runs(transactions):
            if run.client_id != self.client_id and self._is_attempt(run.client_id):
                chosen += transactions[run.places]
        return chosen

    def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        earlier: list[tuple[RowKey, TransactionId]] = []
        foreign: list[waltz.ClientRun] = []
        for run in waltz.client_runs(transactions):
            if run.client_id == self.client_id:
                continue  # the context has the error
            if self._is_attempt(run.client_id):
                for each in transactions[run.places]:
                    key: RowKey = each.partition_id, content_digest(each.header, each.data)
                    earlier.append((key, each.transaction_id))
            else:
                foreign.append(run)
        with self.changed:
            for key, transaction_id in earlier:
                self._logged[key] += 1
                self._earlier[key] = transaction_id
            for run in foreign:
                first = run.first_transaction_id
                written = range(first, first + run.places.stop - run.places.start)
                self._foreign.setdefault(run.partition_id, array("q")).extend(written)
            self.changed.notify_all()

    def _is_attempt(self, client_id: ClientId) -> bool:
        """Return whether an attempt of this task has this client.

        Raises CoordinatorLostError; the client asks again then.
        """
        if client_id in self._attempts:
            return True
        if client_id in self._strangers:
            return False
        # An attempt is noted before it appends, so a note read after its transaction was seen
        # names it; and one that is not named now never will be.
        try:
            clients = joined_clients(self.notes, self.identity)
        except ConfigurationError as error:
            self.stop(error)
            clients = ()
        self._attempts.update(clients)
        if client_id in self._attempts:
            return True
        self._strangers.add(client_id)
        return False


def joined_clients(notes: ClusterNotes, identity: TaskIdentity) -> tuple[ClientId, ...]:
    """Return the clients of all attempts that have joined until now.

    Through a change that changes nothing: a read might return an earlier state. Raises as
    `sink_progress.joined`.
    """

    def same(data: bytes | None) -> bytes:
        return joined(data, identity).encode()

    return TaskProgress.decode(notes.change(identity.note, same)).clients


class RowContext(TransactionContext):
    """A row on its way. Of rows with the same content `rank` come before it."""

    timeout_seconds = PROGRESS_SECONDS_MAX

    def __init__(self, row: SinkRow, digest: bytes, rank: int, state: LoggedRows) -> None:
        self.row = row
        self.key = row.partition_id, digest
        self.rank = rank
        self._state = state

    def partition_id(self, partition_count: int) -> int:
        return self.row.partition_id

    def execute(self, builder: TransactionBuilder) -> bool:
        if not self._state.wants(self):
            return False
        row = self.row
        builder.set_header(row.header)
        builder.set_data(row.data)
        builder.set_write_locks((*row.write_locks, self._state.locks.lock(self.key[1])))
        builder.set_read_locks(row.read_locks)
        builder.set_append_locks(row.append_locks)
        return True

    def on_lock_failure(self, transaction_id: TransactionId) -> None:
        lock = self.refused_lock
        if lock is not None and lock in (*self.row.write_locks, *self.row.read_locks):
            self._state.refuse(self, transaction_id, lock)

    def on_completion(self, result: bool) -> None:
        self._state.note_end(self, appended=result)

    def on_expiration(self) -> None:
        self._state.stop(no_progress(self._state.identity, "a row on its way"))

    def on_exception(self, error: Exception) -> None:
        self._state.stop(error)


def no_progress(identity: TaskIdentity, what: str) -> UnavailableError:
    return UnavailableError(
        f"{UNAVAILABLE} {identity}: no progress for {PROGRESS_SECONDS_MAX:g} s; waited for {what}"
    )
