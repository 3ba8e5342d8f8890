"""Appends on their way through a partition, side by side, whatever message brought them.

Owns the columns, how they come out of messages, and how they are joined and picked. Knows neither
locks nor the store: both are handed the columns that they want.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from waltz.limits import BATCHED_APPEND_BYTES, LOCK_BYTES, REQUEST_BYTES
from waltz.record import NewRecords
from waltz.server.appends.locked_appends import LockedAppends
from waltz.types import RequestId, TransactionId
from waltz.wire.batch_protocol import AppendBatch, AppendRejected, Reason, Rejection
from waltz.wire.client_protocol import AppendRequest, LockFailure
from waltz.wire.columns import LOCK_KINDS, request_id_runs


@dataclass(slots=True)
class Senders:
    """The senders of appends, and the room that these take; one entry per column each.

    is_told        whether every refusal is told: from version 5 on.
    request_ids    client ID, generation, partition ID, sequence number.
    """

    connection_ids: NDArray[np.int64]
    is_told: NDArray[np.bool_]
    byte_counts: NDArray[np.int64]
    request_ids: NDArray[np.int32]

    def __len__(self) -> int:
        return self.connection_ids.size

    @property
    def byte_count(self) -> int:
        """What all of them take."""
        return int(np.add.reduce(self.byte_counts))

    def pick(self, rows: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Senders:
        return Senders(
            self.connection_ids[rows],
            self.is_told[rows],
            self.byte_counts[rows],
            self.request_ids[rows],
        )

    def runs(self) -> list[tuple[int, Senders]]:
        """Return runs of one connection each, in order."""
        connection_ids = self.connection_ids
        if connection_ids.size == 1:
            return [(int(connection_ids[0]), self)]
        breaks = np.flatnonzero(np.diff(connection_ids)) + 1
        return [
            (int(connection_ids[start]), self.pick(slice(start, end)))
            for start, end in pairwise((0, *breaks.tolist(), connection_ids.size))
        ]


@dataclass(slots=True)
class Appends:
    """Appends of one partition and generation, in the order of arrival.

    arrivals   count what arrived at the partition.
    """

    arrivals: NDArray[np.int64]
    senders: Senders
    locks: LockedAppends
    records: NewRecords

    def __len__(self) -> int:
        return self.arrivals.size

    def pick(self, rows: NDArray[np.bool_]) -> Appends:
        """Return those for which `rows` is true."""
        places = np.flatnonzero(rows)
        records = self.records
        return Appends(
            self.arrivals[places],
            self.senders.pick(places),
            self.locks.pick(rows),
            NewRecords(
                records.request_ids[places],
                records.headers[places],
                [records.data[place] for place in places.tolist()],
                records.checksums[places],
            ),
        )


class InFlight:
    """Whose appends the store has, in its order, which is that of its outcomes."""

    def __init__(self) -> None:
        self._senders: deque[Senders] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._senders))

    @property
    def byte_count(self) -> int:
        return sum(each.byte_count for each in self._senders)

    def add(self, senders: Senders) -> None:
        self._senders.append(senders)

    def decide(self, count: int) -> list[tuple[int, Senders]]:
        """Take out the `count` oldest: runs of one connection each, in order."""
        decided: list[tuple[int, Senders]] = []
        while count:
            senders = self._senders.popleft()
            if senders.connection_ids.size > count:
                self._senders.appendleft(senders.pick(slice(count, None)))
                senders = senders.pick(slice(count))
            count -= senders.connection_ids.size
            decided += senders.runs()
        return decided


def of_requests(
    requests: Sequence[AppendRequest], connection_id: int, first_arrival: int
) -> Appends:
    """Return what versions 0 to 4 send one by one."""
    count = len(requests)
    counts: list[int] = []
    hashes: list[int] = []
    for request in requests:
        for locks in (request.write_locks, request.read_locks, request.append_locks):
            counts.append(len(locks))
            if locks:
                hashes += locks
    data = [request.data for request in requests]
    return _appends(
        np.array([request.request_id for request in requests], np.int32),
        np.fromiter((request.client_high_water_mark for request in requests), np.int64, count),
        np.array(counts, np.int64).reshape(-1, LOCK_KINDS),
        np.array(hashes, np.int64),
        np.fromiter((request.header for request in requests), np.int32, count),
        data,
        np.fromiter((request.checksum for request in requests), np.uint32, count),
        (connection_id, first_arrival, REQUEST_BYTES),
    )


def of_batch(message: AppendBatch, connection_id: int, first_arrival: int) -> Appends:
    """Return what one message of version 5 brings: its columns as they are."""
    columns = message.appends
    count = columns.headers.size
    request_ids = np.empty((count, 4), np.int32)
    request_ids[:] = message.request_id
    if count > 1:
        request_ids[:, 3] += np.arange(count, dtype=np.int32)
    return _appends(
        request_ids,
        columns.client_high_water_marks,
        columns.lock_counts.astype(np.int64),
        columns.lock_hashes.astype(np.int64),
        columns.headers,
        columns.bodies.data,
        columns.bodies.checksums,
        (connection_id, first_arrival, BATCHED_APPEND_BYTES),
    )


def _appends(
    request_ids: NDArray[np.int32],
    marks: NDArray[np.int64],
    lock_counts: NDArray[np.int64],
    lock_hashes: NDArray[np.int64],
    headers: NDArray[np.int32],
    data: list[bytes],
    checksums: NDArray[np.uint32],
    arrival: tuple[int, int, int],
) -> Appends:
    connection_id, first_arrival, byte_count = arrival
    count = len(data)
    connection_ids = np.empty(count, np.int64)
    connection_ids[:] = connection_id
    is_told = np.empty(count, np.bool_)
    is_told[:] = byte_count == BATCHED_APPEND_BYTES
    byte_counts = np.fromiter(map(len, data), np.int64, count)
    byte_counts += byte_count
    if lock_hashes.size:
        byte_counts += LOCK_BYTES * lock_counts.sum(axis=1)
    return Appends(
        np.arange(first_arrival, first_arrival + count),
        Senders(connection_ids, is_told, byte_counts, request_ids),
        LockedAppends(request_ids[:, 0], marks, lock_counts, lock_hashes),
        NewRecords(request_ids.astype(">i4").view(np.uint8), headers, data, checksums),
    )


def join_appends(parts: Sequence[Appends]) -> Appends:
    """Return all of `parts`, at least one, one after the other."""
    if len(parts) == 1:
        return parts[0]
    senders = [part.senders for part in parts]
    locks = [part.locks for part in parts]
    records = [part.records for part in parts]
    return Appends(
        np.concatenate([part.arrivals for part in parts]),
        Senders(
            np.concatenate([each.connection_ids for each in senders]),
            np.concatenate([each.is_told for each in senders]),
            np.concatenate([each.byte_counts for each in senders]),
            np.concatenate([each.request_ids for each in senders]),
        ),
        LockedAppends(
            np.concatenate([each.client_ids for each in locks]),
            np.concatenate([each.client_high_water_marks for each in locks]),
            np.concatenate([each.lock_counts for each in locks]),
            np.concatenate([each.lock_hashes for each in locks]),
        ),
        NewRecords(
            np.concatenate([each.request_ids for each in records]),
            np.concatenate([each.headers for each in records]),
            list(chain.from_iterable(each.data for each in records)),
            np.concatenate([each.checksums for each in records]),
        ),
    )


def refused_all(message: AppendBatch, reason: Reason) -> AppendRejected:
    """Return what is told of a message none of whose appends is taken."""
    first = message.request_id.sequence_number
    rejection = Rejection(first, len(message.appends), reason, TransactionId(-1), 0)
    return AppendRejected(message.request_id, (rejection,))


def rejected(senders: Senders, reason: Reason) -> Iterator[tuple[int, AppendRejected]]:
    """Yield whom to tell what when none of the appends is in the log; those of older versions
    learn it from the feed."""
    if not senders.is_told.any():
        return
    for connection_id, run in senders.pick(senders.is_told).runs():
        rows = run.request_ids.astype(">i4").view(np.uint8).reshape(-1, 16)
        for *request_id, length in request_id_runs(rows).tolist():
            rejection = Rejection(request_id[3], length, reason, TransactionId(-1), 0)
            yield connection_id, AppendRejected(RequestId._make(request_id), (rejection,))


def locked_out(
    senders: Senders, locked: Sequence[tuple[TransactionId, int]]
) -> Iterator[tuple[int, LockFailure | AppendRejected]]:
    """Yield whom to tell what when appends are refused for their locks.

    `locked` has the estimate and the lock of each. What has come in batches is told together.
    """
    together: dict[tuple[int, RequestId], list[Rejection]] = {}
    for index, (transaction_id, lock_hash) in enumerate(locked):
        connection_id = int(senders.connection_ids[index])
        request_id = RequestId._make(senders.request_ids[index].tolist())
        if not senders.is_told[index]:
            yield connection_id, LockFailure(request_id, transaction_id)
            continue
        rejection = Rejection(
            request_id.sequence_number, 1, Reason.LOCKED, transaction_id, lock_hash
        )
        together.setdefault((connection_id, request_id._replace(sequence_number=0)), []).append(
            rejection
        )
    for (connection_id, request_id), rejections in together.items():
        first = request_id._replace(sequence_number=rejections[0].first)
        yield connection_id, AppendRejected(first, tuple(rejections))
