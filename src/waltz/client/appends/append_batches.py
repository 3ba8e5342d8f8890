"""Appends that wait to be sent together: what one step of a partition has brought.

Owns what fits into one message. Knows no connection and no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from zlib import crc32

from waltz.arrays import np
from waltz.client.transaction import TransactionBuilder
from waltz.limits import BATCH_APPENDS_MAX, BATCH_BYTES_MAX, BATCH_LOCKS_MAX
from waltz.types import RequestId, TransactionId
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.columns import AppendColumns, Bodies


@dataclass(slots=True)
class _Run:
    """Appends under request IDs that follow on each other, and what their client had applied when
    it executed each."""

    first: RequestId
    drafts: list[TransactionBuilder]
    marks: list[TransactionId]

    def part(self, start: int, end: int) -> AppendBatch:
        first = self.first._replace(sequence_number=self.first.sequence_number + start)
        return AppendBatch(first, _columns(self.drafts[start:end], self.marks[start:end]))


class AppendBatches:
    """Appends of one client and partition, in batches within the bounds: each of one generation,
    with sequence numbers that follow on each other."""

    def __init__(self) -> None:
        self.runs: list[_Run] = []
        """The appends that wait."""

    def add(
        self, first: RequestId, drafts: list[TransactionBuilder], marks: list[TransactionId]
    ) -> None:
        """Add appends under request IDs from `first` on, at least one, each with the mark that its
        client had applied up to when it executed it. Keeps the lists."""
        if self.runs:
            run = self.runs[-1]
            end = run.first.sequence_number + len(run.drafts)
            if first.sequence_number == end and first[:3] == run.first[:3]:
                run.drafts.extend(drafts)
                run.marks.extend(marks)
                return
        self.runs.append(_Run(first, drafts, marks))

    def take(self) -> list[AppendBatch]:
        """Return what was added, once."""
        runs, self.runs = self.runs, []
        batches: list[AppendBatch] = []
        for run in runs:
            columns = _columns(run.drafts, run.marks)
            if (
                len(run.drafts) <= BATCH_APPENDS_MAX
                and len(columns.lock_hashes) <= BATCH_LOCKS_MAX
                and sum(map(len, columns.bodies.data)) <= BATCH_BYTES_MAX
            ):
                batches.append(AppendBatch(run.first, columns))
            else:
                batches += _cut(run)
        return batches

    def clear(self) -> None:
        self.runs.clear()


def _cut(run: _Run) -> Iterator[AppendBatch]:
    """Yield as few batches as the bounds allow; one append always goes."""
    start = locks = size = 0
    for place, draft in enumerate(run.drafts):
        more_locks = len(draft.write_locks) + len(draft.read_locks) + len(draft.append_locks)
        more = len(draft.plain_data)
        if place > start and not (
            place - start < BATCH_APPENDS_MAX
            and locks + more_locks <= BATCH_LOCKS_MAX
            and size + more <= BATCH_BYTES_MAX
        ):
            yield run.part(start, place)
            start, locks, size = place, 0, 0
        locks += more_locks
        size += more
    yield run.part(start, len(run.drafts))


def _columns(drafts: Sequence[TransactionBuilder], marks: Sequence[TransactionId]) -> AppendColumns:
    count = len(drafts)
    locks = [
        kind for each in drafts for kind in (each.write_locks, each.read_locks, each.append_locks)
    ]
    counts = [*map(len, locks)]
    data = [each.plain_data for each in drafts]
    return AppendColumns(
        np.array(marks, np.int64),
        np.array([each.plain_header for each in drafts], np.int32),
        np.array(counts, np.uint16).reshape(-1, 3),
        np.fromiter(chain.from_iterable(locks), np.int32, sum(counts)),
        Bodies(data, np.fromiter(map(crc32, data), np.uint32, count)),
    )
