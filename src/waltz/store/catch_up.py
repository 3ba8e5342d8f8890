"""Catching up: the records that a replica lacks, the replica to read them from, and batch sizes.

A session remembers the batches it packed last. A replica that lags a little is fed from this
memory; one that lags more reads from another replica, a bounded batch at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

import numpy as np

from waltz.errors import CorruptionError, RemoteProtocolError
from waltz.limits import (
    CATCH_UP_BYTES_MAX,
    CATCH_UP_RECORDS_MAX,
    RETRY_SECONDS_MAX,
    RETRY_SECONDS_MIN,
)
from waltz.record import RecordBatch
from waltz.store.requests import ReadFromReplica, ReplicaLink, SendRequest
from waltz.types import NOTHING, ReplicaId, TransactionId

FIRST_COPY_RECORDS = 20
"""Asked for before anything is known about the size of records; what the original always asks."""


class RecentBatches:
    """The newest batches of a session, adjoining, the oldest forgotten first."""

    def __init__(self, bytes_max: int) -> None:
        self.end = NOTHING
        """The transaction ID after the newest; NOTHING while there is none."""
        self._bytes_max = bytes_max
        self._bytes = 0
        self._batches: list[RecordBatch] = []
        self._firsts: list[int] = []

    def add(self, batch: RecordBatch) -> None:
        assert batch.first_transaction_id == self.end or self.end == NOTHING
        self.end = batch.next_transaction_id
        self._batches.append(batch)
        self._firsts.append(batch.first_transaction_id)
        self._bytes += len(batch.block)

    def starting_at(self, first: TransactionId) -> RecordBatch | None:
        """Return records from `first` to the end of the batch it is in; None if not remembered."""
        index = bisect_right(self._firsts, first) - 1
        if index < 0:
            return None
        batch = self._batches[index]
        if first == batch.first_transaction_id:
            return batch
        return batch.slice(first, len(batch)) if first < batch.next_transaction_id else None

    def forget(self, committed: TransactionId) -> None:
        """Drop the oldest batches up to `committed` while there are too many bytes."""
        count = 0
        while self._bytes > self._bytes_max and count < len(self._batches):
            batch = self._batches[count]
            if batch.last_transaction_id > committed:
                break
            self._bytes -= len(batch.block)
            count += 1
        del self._batches[:count], self._firsts[:count]

    def check_invariants(self) -> None:
        assert self._bytes == sum(len(batch.block) for batch in self._batches)
        assert not self._batches or self.end == self._batches[-1].next_transaction_id
        for batch, follower in zip(self._batches, self._batches[1:], strict=False):
            assert batch.next_transaction_id == follower.first_transaction_id


def choose_source(
    first: TransactionId,
    holdings: Iterable[tuple[ReplicaId, TransactionId]],
    failures: Mapping[ReplicaId, int],
) -> ReplicaId | None:
    """Return the replica to read `first` from: of those that hold it, the one that failed least,
    then the fullest, then the first named. None: nobody holds it."""
    able = [(replica_id, held) for replica_id, held in holdings if held >= first]
    if not able:
        return None
    return min(able, key=lambda source: (failures.get(source[0], 0), -source[1]))[0]


class CopySize:
    """The number of records to ask for, so that an answer stays near `CATCH_UP_BYTES_MAX`.

    The storage protocol bounds an answer by count alone.
    """

    def __init__(self, bytes_max: int | None = None) -> None:
        """`bytes_max`: what an answer should stay near; None: `CATCH_UP_BYTES_MAX`."""
        self._records = FIRST_COPY_RECORDS
        self._bytes_max = bytes_max

    def count(self, first: TransactionId, through: TransactionId) -> int:
        return min(self._records, through - first + 1)

    def copied(self, batch: RecordBatch) -> None:
        bytes_max = CATCH_UP_BYTES_MAX if self._bytes_max is None else self._bytes_max
        fitting = bytes_max * len(batch) // max(1, len(batch.block))
        self._records = max(1, min(fitting, 8 * self._records, CATCH_UP_RECORDS_MAX))


class CopyReads:
    """The reads from other replicas of what one replica lacks, one at a time."""

    def __init__(self) -> None:
        self.source: ReplicaId | None = None
        """The replica where a read is under way."""
        self.request: ReadFromReplica | None = None
        """The read that is under way there, or was the last."""
        self.failures: dict[ReplicaId, int] = {}
        self._size = CopySize()
        self._retry_seconds = 0.0

    @property
    def is_expected(self) -> bool:
        """Whether an answer is on its way; not while a read is only being tried again."""
        return self.source is not None and not self._retry_seconds

    def ask(
        self,
        reader: ReplicaLink,
        source: ReplicaLink,
        first: TransactionId,
        through: TransactionId,
    ) -> SendRequest:
        """Ask `source` for a bounded batch that `reader` lacks."""
        assert self.source is None
        self.source = source.replica_id
        self.request = ReadFromReplica(first, self._size.count(first, through), reader)
        return SendRequest(source, self.request, self._retry_seconds)

    def is_under_way(self, source: ReplicaId, request: ReadFromReplica) -> bool:
        """Return whether `request` is the read that is waited for, not one given up before."""
        return self.source == source and self.request == request

    def succeed(self, batch: RecordBatch) -> None:
        self.source = None
        self._retry_seconds = 0.0
        self._size.copied(batch)

    def fail(self) -> None:
        """Note that the source has failed; the next one asked may be another, and later."""
        source, self.source = self.source, None
        assert source is not None
        self.failures[source] = self.failures.get(source, 0) + 1
        self._retry_seconds = min(
            max(2 * self._retry_seconds, RETRY_SECONDS_MIN), RETRY_SECONDS_MAX
        )


def checked_copy(
    batch: RecordBatch, first: TransactionId, count_max: int, bytes_max: int | None = None
) -> RecordBatch:
    """Return what of `batch`, read from a replica that holds `first`, to write in one go.

    At least one record, at most `bytes_max`, or `CATCH_UP_BYTES_MAX`, unless a single record is
    larger.
    Raises RemoteProtocolError: no records, or others than were asked for. CorruptionError: data
    that is no longer what the client sent; it must not spread.
    """
    if not len(batch) or batch.first_transaction_id != first or len(batch) > count_max:
        raise RemoteProtocolError(
            f"{len(batch)} records from {batch.first_transaction_id} on; expected 1 to {count_max}"
            f" from {first} on"
        )
    wrong = batch.wrong_data()
    if wrong.any():
        raise CorruptionError(
            f"the data of transaction {first + int(np.argmax(wrong))} does not match its checksum"
        )
    limit = CATCH_UP_BYTES_MAX if bytes_max is None else bytes_max
    fitting = int(np.searchsorted(batch.offsets, limit, side="right")) - 1
    return batch if fitting >= len(batch) else batch.slice(first, max(1, fitting))
