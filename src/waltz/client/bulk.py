"""The appends of one `append_many`: their columns, and the transaction ID of each.

Owns which rows have to be sent, for the first time or again. Knows no connection, and of verdicts
only ranges of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, TypedDict, Unpack
from zlib import crc32

from waltz.arrays import np
from waltz.client.transaction import (
    PartitionLocalLock,
    TransactionBuilder,
    TransactionContext,
    checked_mark,
)
from waltz.errors import LocalProtocolError
from waltz.limits import DATA_BYTES_MAX, LOCKS_MAX
from waltz.types import NOTHING, TransactionId
from waltz.wire.columns import LOCK_KINDS, AppendColumns, Bodies

if TYPE_CHECKING:
    from numpy.typing import NDArray

LockColumn: TypeAlias = "NDArray[np.int32] | Sequence[Sequence[PartitionLocalLock]]"
"""Locks of one kind: hashes in one row per append, or locks in a sequence per append."""


ROW_BYTES: Final = 26
"""Bytes of an append in a message, without its data and locks."""

LOCK_BYTES: Final = 4
"""Bytes of a lock in a message."""


Rows: TypeAlias = "NDArray[np.int64]"
"""Indices of appends of one call, ascending."""


class RowColumns(TypedDict, total=False):
    """The columns of appends besides their data, an entry per append; a column that is left out is
    0, or no locks."""

    headers: Sequence[int] | NDArray[np.int32]
    write_locks: LockColumn
    read_locks: LockColumn
    append_locks: LockColumn


class BulkRows:
    """Appends as columns, as they are sent."""

    def __init__(self, data: Sequence[bytes], **columns: Unpack[RowColumns]) -> None:
        """Check and convert the columns.

        Raises LocalProtocolError: a column is not as long as the data, or has values that do not
        fit.
        """
        count = len(data)
        self.data = list(data)
        lengths = np.fromiter(map(len, self.data), np.int64, count)
        if count and int(lengths.max()) > DATA_BYTES_MAX:
            raise LocalProtocolError(
                f"transaction data of {lengths.max()} bytes; expected at most {DATA_BYTES_MAX}"
            )
        self.checksums = np.fromiter(map(crc32, self.data), np.uint32, count)
        self.headers = _header_column(columns.get("headers"), count)
        kinds = [
            _lock_column(columns.get("write_locks"), count, "write"),
            _lock_column(columns.get("read_locks"), count, "read"),
            _lock_column(columns.get("append_locks"), count, "append"),
        ]
        self.lock_counts = np.stack([counts for counts, _ in kinds], axis=1).astype(np.uint16)
        self.lock_hashes = _interleaved(kinds)
        self.locks_per_row = self.lock_counts.sum(axis=1, dtype=np.int64)
        self.bytes_per_row = lengths + ROW_BYTES + LOCK_BYTES * self.locks_per_row
        self.byte_count = int(self.bytes_per_row.sum())
        self.is_checked = bool(self.lock_counts[:, :2].any())
        """Whether any row can be refused for a lock."""
        self._lock_starts = np.cumsum(self.locks_per_row) - self.locks_per_row

    def __len__(self) -> int:
        return len(self.data)

    def columns(self, rows: Rows, mark: TransactionId) -> AppendColumns:
        """Return rows as sent with `mark`: their locks must be no newer."""
        start, end = int(rows[0]), int(rows[-1]) + 1
        if end - start == len(rows):  # as nearly always
            data = self.data[start:end]
        else:
            data = [self.data[row] for row in rows.tolist()]
        return AppendColumns(
            np.full(len(rows), mark, np.int64),
            self.headers[rows],
            self.lock_counts[rows],
            self.lock_hashes[self._lock_places(rows)],
            Bodies(data, self.checksums[rows]),
        )

    def _lock_places(self, rows: Rows) -> NDArray[np.int64]:
        counts = self.locks_per_row[rows]
        before = np.cumsum(counts) - counts
        total = int(counts.sum())
        return np.repeat(self._lock_starts[rows] - before, counts) + np.arange(total)


class ManyAppends(TransactionContext):
    """The context that the verb `append_many` submits: rows that do not depend on anything."""

    def __init__(
        self,
        partition_id: int,
        rows: BulkRows,
        timeout_seconds: float | None = None,
        locks_as_of: int | None = None,
    ) -> None:
        """Raises LocalProtocolError: `locks_as_of` is less than -1."""
        self.timeout_seconds = timeout_seconds
        self._partition_id = partition_id
        self.rows = rows
        self.locks_as_of = None if locks_as_of is None else checked_mark(locks_as_of)
        self.transaction_ids = np.full(len(rows), NOTHING, np.int64)
        """The transaction ID of each row; -1 for rows that are not known to be in the log, and at
        the end, with `locks_as_of`, for rows that are not in the log and never will be."""

    def partition_id(self, partition_count: int) -> int:
        return self._partition_id

    def execute(self, builder: TransactionBuilder) -> bool:
        """Raise LocalProtocolError: rows are not one transaction."""
        raise LocalProtocolError(f"{len(self.rows)} transactions; expected one to be built")


class Bulk:
    """Rows on their way into the log; their transaction IDs are written into `transaction_ids`."""

    def __init__(
        self,
        rows: BulkRows,
        transaction_ids: NDArray[np.int64],
        locks_as_of: TransactionId | None = None,
    ) -> None:
        self.rows = rows
        self.transaction_ids = transaction_ids
        self.left = len(rows)
        """Rows that have no outcome: not in the log, as far as is known, nor given up."""
        self.last_transaction_id = NOTHING
        """The highest transaction ID of a row so far."""
        self._locks_as_of = locks_as_of
        self._beaten_by = NOTHING
        self._next = 0
        self._again = np.zeros(0, np.int64)

    @property
    def waiting(self) -> int:
        """Return the number of rows that have to be sent."""
        return len(self._again) + len(self.rows) - self._next

    @property
    def has_started(self) -> bool:
        """Return whether any row was taken out to be sent."""
        return self._next > 0

    def cut(self, rows_max: int, bytes_max: int, locks_max: int) -> Rows:
        """Take out the next rows to send, in order: all that fit the bounds, and at least one
        if there is any."""
        again = self._again[:rows_max]
        end = min(len(self.rows), self._next + rows_max - len(again))
        rows = np.concatenate((again, np.arange(self._next, end)))
        bytes_so_far = np.cumsum(self.rows.bytes_per_row[rows])
        locks_so_far = np.cumsum(self.rows.locks_per_row[rows])
        fits = (bytes_so_far <= bytes_max) & (locks_so_far <= locks_max)
        rows = rows[: max(1, int(fits.sum()))]
        self._again = self._again[min(len(rows), len(again)) :]
        self._next += max(0, len(rows) - len(again))
        return rows

    def byte_count(self, rows: Rows) -> int:
        """Return the size of the rows in a message, in bytes."""
        return int(self.rows.bytes_per_row[rows].sum())

    def columns(self, rows: Rows, mark: TransactionId) -> AppendColumns:
        """Return rows as sent by a client that has applied up to `mark`."""
        as_of = self._locks_as_of
        return self.rows.columns(rows, mark if as_of is None else min(mark, as_of))

    @property
    def is_sent_again(self) -> bool:
        """Whether a row that is not in the log after it was sent is sent again, on whatever state:
        not if its locks must be no newer than a mark that the caller has chosen."""
        return self._locks_as_of is None

    def give_back(self, rows: Rows) -> None:
        """Have rows sent again: they are not in the log and will not be."""
        self._again = np.sort(np.concatenate((self._again, rows)))

    def give_up(self, rows: Rows, beaten_by: int = NOTHING) -> None:
        """Take note that rows are not in the log and will not be; `beaten_by` is the last
        transaction that one of them was refused for."""
        self.left -= len(rows)
        self._beaten_by = max(self._beaten_by, TransactionId(beaten_by))

    def has_ended(self, mark: TransactionId) -> bool:
        """Return whether each row has an outcome, and the client has applied, up to `mark`, the
        rows that are in the log and what the others were refused for."""
        return not self.left and max(self.last_transaction_id, self._beaten_by) <= mark

    def commit(self, rows: Rows, transaction_ids: NDArray[np.int64]) -> None:
        """Take note that rows are in the log."""
        self.transaction_ids[rows] = transaction_ids
        self.left -= len(rows)
        last = TransactionId(int(transaction_ids[-1]))
        self.last_transaction_id = max(self.last_transaction_id, last)

    def data_between(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield the IDs from `first` to `last` that belong to rows, and their data."""
        ids = self.transaction_ids.copy()  # the loop's thread keeps writing
        rows = np.flatnonzero((first <= ids) & (ids <= last)).tolist()
        data = self.rows.data
        return ((int(ids[row]), data[row]) for row in rows)


def lock_hashes(name: str, ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the hashes of locks with that name, equal to those of `PartitionLocalLock`."""
    numbers = np.asarray(ids, np.int64)
    folded = (numbers ^ (numbers >> 32)).astype(np.int32)
    return folded ^ np.int32(PartitionLocalLock(name, 0).hash)


def _header_column(
    headers: Sequence[int] | NDArray[np.int32] | None, count: int
) -> NDArray[np.int32]:
    if headers is None:
        return np.zeros(count, np.int32)
    given = np.asarray(headers)
    if given.shape != (count,):
        raise LocalProtocolError(f"{len(given)} headers; expected {count}, one per transaction")
    bounds = np.iinfo(np.int32)
    if count and not (bounds.min <= given.min() and given.max() <= bounds.max):
        raise LocalProtocolError(
            f"headers {given.min()} to {given.max()}; expected {bounds.min} to {bounds.max}"
        )
    return given.astype(np.int32, copy=False)


def _lock_column(
    locks: LockColumn | None, count: int, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the number of locks of each append, and all hashes back to back."""
    if locks is None:
        return np.zeros(count, np.int64), np.zeros(0, np.int32)
    if len(locks) != count:
        raise LocalProtocolError(
            f"{name} locks of {len(locks)} transactions; expected {count}, a row for each"
        )
    if isinstance(locks, np.ndarray):
        hashes = locks[:, np.newaxis] if locks.ndim == 1 else locks
        if hashes.dtype != np.int32:
            raise LocalProtocolError(
                f"{name} locks as numbers of type {hashes.dtype}; expected hashes, int32, as"
                " lock_hashes makes them"
            )
        counts = np.full(count, hashes.shape[1], np.int64)
        flat: NDArray[np.int32] = hashes.ravel()
    else:
        counts = np.fromiter(map(len, locks), np.int64, count)
        flat = np.array([lock.hash for row in locks for lock in row], np.int32)
    if count and int(counts.max()) > LOCKS_MAX:
        raise LocalProtocolError(
            f"{counts.max()} {name} locks of one transaction; expected at most {LOCKS_MAX}"
        )
    return counts, flat


def _interleaved(kinds: Sequence[tuple[NDArray[np.int64], NDArray[np.int32]]]) -> NDArray[np.int32]:
    """Return all hashes append by append, and within an append kind by kind."""
    given = [hashes for _, hashes in kinds if len(hashes)]
    if len(given) <= 1:
        return given[0] if given else np.zeros(0, np.int32)
    places = [
        np.repeat(LOCK_KINDS * np.arange(len(counts)) + kind, counts)
        for kind, (counts, _) in enumerate(kinds)
    ]
    order = np.argsort(np.concatenate(places), kind="stable")
    return np.concatenate([hashes for _, hashes in kinds])[order]
