"""Appends on their way through a partition, side by side, whatever messages brought them.

Owns the columns, how they come out of messages, and how they are joined and picked. Knows neither
locks nor the store: both are handed the columns that they want.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from waltz.arrays import total
from waltz.limits import BATCHED_APPEND_BYTES, LOCK_BYTES
from waltz.record import REQUEST_ID, REQUEST_ID_BYTES, NewRecords
from waltz.server.appends.locked_appends import LockedAppends
from waltz.types import RequestId, TransactionId
from waltz.wire.batch_protocol import AppendBatch, AppendRejected, Reason, Rejection
from waltz.wire.columns import AppendColumns, Bodies, request_id_runs

_FEW_MAX: Final = 16
"""Up to this many appends of a message a loop is cheaper than columns; most messages are small."""


@dataclass(slots=True)
class Senders:
    """The senders of appends, and the room that these take; one entry per column each.

    request_ids    client ID, generation, partition ID, sequence number.
    """

    connection_ids: NDArray[np.int64]
    byte_counts: NDArray[np.int64]
    request_ids: NDArray[np.int32]

    def __len__(self) -> int:
        return self.connection_ids.size

    @property
    def byte_count(self) -> int:
        """The memory of all appends."""
        return total(self.byte_counts)

    def pick(self, rows: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Senders:
        return Senders(
            self.connection_ids[rows],
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
    """The senders of the appends that the store has, in the order of its outcomes."""

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


def of_batches(messages: Sequence[AppendBatch], connection_id: int, first_arrival: int) -> Appends:
    """Return the appends of messages of one connection, at least one, in order."""
    if len(messages) == 1 and len(messages[0].appends.bodies.data) <= _FEW_MAX:
        return _of_few(messages[0], connection_id, first_arrival)
    columns = _join_columns([message.appends for message in messages])
    count = columns.headers.size
    request_ids = np.empty((count, 4), np.int32)
    begin = 0
    for message in messages:
        end = begin + message.appends.headers.size
        request_ids[begin:end] = message.request_id
        if end - begin > 1:
            request_ids[begin:end, 3] += np.arange(end - begin, dtype=np.int32)
        begin = end
    data = columns.bodies.data
    connection_ids = np.empty(count, np.int64)
    connection_ids[:] = connection_id
    byte_counts = np.fromiter(map(len, data), np.int64, count)
    byte_counts += BATCHED_APPEND_BYTES
    if columns.lock_hashes.size:
        byte_counts += LOCK_BYTES * np.add.reduce(columns.lock_counts, axis=1, dtype=np.int64)
    return _appends_of(
        columns,
        np.arange(first_arrival, first_arrival + count),
        Senders(connection_ids, byte_counts, request_ids),
        request_ids.astype(">i4").view(np.uint8),
    )


def _of_few(message: AppendBatch, connection_id: int, first_arrival: int) -> Appends:
    """Return the appends of one message of at most `_FEW_MAX`: what `of_batches` returns for more,
    computed in a loop over the appends."""
    columns, first = message.appends, message.request_id
    data = columns.bodies.data
    count = len(data)
    byte_counts = [len(each) + BATCHED_APPEND_BYTES for each in data]
    if columns.lock_hashes.size:
        for place, kinds in enumerate(columns.lock_counts.tolist()):
            byte_counts[place] += LOCK_BYTES * sum(kinds)
    numbers = range(first.sequence_number, first.sequence_number + count)
    ids = [(*first[:3], number) for number in numbers]
    request_ids = np.array(ids, np.int32)
    id_bytes = b"".join([REQUEST_ID.pack(*each) for each in ids])
    return _appends_of(
        columns,
        np.array([*range(first_arrival, first_arrival + count)], np.int64),
        Senders(
            np.array([connection_id] * count, np.int64),
            np.array(byte_counts, np.int64),
            request_ids,
        ),
        np.frombuffer(id_bytes, np.uint8).reshape(count, REQUEST_ID_BYTES),
    )


def _appends_of(
    columns: AppendColumns,
    arrivals: NDArray[np.int64],
    senders: Senders,
    id_bytes: NDArray[np.uint8],
) -> Appends:
    """`id_bytes`: the request IDs as they lie in records, a row of `REQUEST_ID_BYTES` each."""
    return Appends(
        arrivals,
        senders,
        LockedAppends(
            senders.request_ids[:, 0],
            columns.client_high_water_marks,
            columns.lock_counts,
            columns.lock_hashes,
        ),
        NewRecords(id_bytes, columns.headers, columns.bodies.data, columns.bodies.checksums),
    )


def _join_columns(parts: Sequence[AppendColumns]) -> AppendColumns:
    if len(parts) == 1:
        return parts[0]
    return AppendColumns(
        np.concatenate([part.client_high_water_marks for part in parts]),
        np.concatenate([part.headers for part in parts]),
        np.concatenate([part.lock_counts for part in parts]),
        np.concatenate([part.lock_hashes for part in parts]),
        Bodies(
            list(chain.from_iterable(part.bodies.data for part in parts)),
            np.concatenate([part.bodies.checksums for part in parts]),
        ),
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
    """Yield which connection is told what when none of the appends is in the log."""
    for connection_id, run in senders.runs():
        rows = run.request_ids.astype(">i4").view(np.uint8).reshape(-1, 16)
        for *request_id, length in request_id_runs(rows).tolist():
            rejection = Rejection(request_id[3], length, reason, TransactionId(-1), 0)
            yield connection_id, AppendRejected(RequestId._make(request_id), (rejection,))


def locked_out(
    senders: Senders, locked: Sequence[tuple[TransactionId, int]]
) -> Iterator[tuple[int, AppendRejected]]:
    """Yield which connection is told what when appends are refused for their locks.

    `locked` has the estimate and the lock of each. Each connection is told of its appends together.
    """
    together: dict[tuple[int, RequestId], list[Rejection]] = {}
    for connection_id, request_id, (transaction_id, lock_hash) in zip(
        senders.connection_ids.tolist(),
        map(RequestId._make, senders.request_ids.tolist()),
        locked,
        strict=True,
    ):
        number = request_id.sequence_number
        rejection = Rejection(number, 1, Reason.LOCKED, transaction_id, lock_hash)
        key = connection_id, request_id._replace(sequence_number=0)
        together.setdefault(key, []).append(rejection)
    for (connection_id, request_id), rejections in together.items():
        first = request_id._replace(sequence_number=rejections[0].first)
        yield connection_id, AppendRejected(first, tuple(rejections))
