"""Appends that wait to be sent together: what one step of a partition has brought.

Owns what fits into one message. Knows no connection and no verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from waltz.client.transaction import Draft
from waltz.limits import BATCH_APPENDS_MAX, BATCH_BYTES_MAX, BATCH_LOCKS_MAX
from waltz.types import RequestId, TransactionId
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.client_protocol import AppendRequest
from waltz.wire.columns import AppendColumns, Bodies


class AppendBatches:
    """Appends of one client and partition, in batches within the bounds: each of one generation,
    with sequence numbers that follow on each other."""

    def __init__(self) -> None:
        self._full: list[AppendBatch] = []
        self._first: RequestId | None = None
        self._drafts: list[Draft] = []
        self._marks: list[TransactionId] = []
        self._locks = 0
        self._bytes = 0

    def add(self, request_id: RequestId, draft: Draft, mark: TransactionId) -> None:
        """Add an append that its client has executed when it had applied up to `mark`."""
        locks = len(draft.write_locks) + len(draft.read_locks) + len(draft.append_locks)
        size = len(draft.data)
        if self._first is None or not self._has_room(request_id, locks, size):
            self._close()
            self._first = request_id
        self._drafts.append(draft)
        self._marks.append(mark)
        self._locks += locks
        self._bytes += size

    def take(self) -> list[AppendBatch]:
        """Return what was added, once."""
        self._close()
        full, self._full = self._full, []
        return full

    def clear(self) -> None:
        self._close()
        self._full.clear()

    def _has_room(self, request_id: RequestId, locks: int, size: int) -> bool:
        assert self._first is not None
        count = len(self._drafts)
        return (
            request_id.sequence_number == self._first.sequence_number + count
            and request_id.generation == self._first.generation
            and count < BATCH_APPENDS_MAX
            and self._locks + locks <= BATCH_LOCKS_MAX
            and self._bytes + size <= BATCH_BYTES_MAX
        )

    def _close(self) -> None:
        if self._first is None:
            return
        self._full.append(AppendBatch(self._first, _columns(self._drafts, self._marks)))
        self._first = None
        self._drafts, self._marks = [], []
        self._locks = self._bytes = 0


def _columns(drafts: Sequence[Draft], marks: Sequence[TransactionId]) -> AppendColumns:
    count = len(drafts)
    locks = [(each.write_locks, each.read_locks, each.append_locks) for each in drafts]
    flat = list(chain.from_iterable(locks))
    counts = np.fromiter(map(len, flat), np.uint16, 3 * count)
    return AppendColumns(
        np.array(marks, np.int64),
        np.array([each.header for each in drafts], np.int32),
        counts.reshape(-1, 3),
        np.fromiter(chain.from_iterable(flat), np.int32, int(counts.sum(dtype=np.int64))),
        Bodies(
            [each.data for each in drafts], np.array([each.checksum for each in drafts], np.uint32)
        ),
    )


def append_request(request_id: RequestId, draft: Draft, mark: TransactionId) -> AppendRequest:
    """Return the append as versions 0 to 4 say it, one by one."""
    return AppendRequest(
        request_id,
        mark,
        draft.write_locks,
        draft.read_locks,
        draft.append_locks,
        draft.header,
        draft.data,
        draft.checksum,
    )
