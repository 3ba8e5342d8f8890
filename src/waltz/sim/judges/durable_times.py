"""Writes down when each record became durable on each storage node, and judges what journals say.

Owns the omniscient list: every sync of a data file is seen, with the reading of that node's wall
clock. Files are read by code of its own.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from zlib import crc32

from waltz.types import PartitionId, TransactionId

NARROW_MILLISECONDS: Final = 2_000
"""The width up to which an interval is called narrow."""

_HEADER_BYTES: Final = 128
_RECORD: Final = struct.Struct(">q4iiiI")
_CHECKSUM: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">q")

DAMAGED_IN_A_ROW_MAX: Final = 100
"""Damaged records that are passed over to find the next good one; beyond, the rest of a file is not
looked at."""


class RecordCopy(NamedTuple):
    """A record on a storage node; the request ID and the checksum tell it from others."""

    name: str
    partition_id: PartitionId
    transaction_id: TransactionId
    request_id: tuple[int, ...]
    checksum: int


@dataclass(slots=True)
class _SeenFile:
    """The records of a data file up to its last sync."""

    ends: list[int] = field(default_factory=list)
    """The byte at which each record ends."""
    damaged: set[int] = field(default_factory=set)
    """The transaction IDs of the records that did not check out; the end of one is where the next
    good record starts."""
    is_settled: bool = False
    """Whether a sync was seen since the process started."""


class DurableTimes:
    """The times at which records became durable, by node."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], _SeenFile] = {}
        self._times: dict[RecordCopy, list[int]] = {}
        self._current: dict[tuple[str, PartitionId, TransactionId], RecordCopy] = {}
        self._looks: list[set[RecordCopy]] = []
        self.counts: Counter[str] = Counter()
        """The answers that were judged, by kind."""

    def started(self, name: str) -> None:
        """A process has started on the machine, perhaps after a power cut: nothing is known of its
        files until they are synced."""
        for machine, path in list(self._files):
            if machine == name:
                del self._files[machine, path]

    def synced(self, name: str, path: str, content: bytes | bytearray, milliseconds: int) -> None:
        """A file was synced with this content, while the machine's wall clock said this."""
        if not path.endswith(".seg"):
            return
        partition, _, stem = path.removesuffix(".seg").rpartition("/")
        partition_id = PartitionId(int(partition.rpartition("/")[2]))
        seen = self._files.setdefault((name, path), _SeenFile())
        while seen.ends and seen.ends[-1] > len(content):
            seen.ends.pop()
        first = int(stem)
        for number in sorted(seen.damaged):
            position = number - first
            if position >= len(seen.ends):
                seen.damaged.remove(number)
                continue
            # A repair writes over as many bytes in the middle of the file.
            start = seen.ends[position - 1] if position else _HEADER_BYTES
            end = _end(content, start, number)
            if end is not None:
                seen.damaged.remove(number)
                seen.ends[position] = end
                copy = _copy(name, partition_id, content, start)
                self._note(copy, milliseconds, is_new=copy not in self._times)
        offset = seen.ends[-1] if seen.ends else _HEADER_BYTES
        expected = first + len(seen.ends)
        while True:
            end = _end(content, offset, expected)
            if end is not None:
                copy = _copy(name, partition_id, content, offset)
                is_new = seen.is_settled or copy not in self._times
                self._note(copy, milliseconds, is_new=is_new)
                seen.ends.append(end)
                offset, expected = end, expected + 1
            elif (good := _next_good(content, offset, expected)) is not None:
                number, offset = good
                seen.damaged.update(range(expected, number))
                seen.ends += [offset] * (number - expected)
                expected = number
            else:
                break
        seen.is_settled = True

    def _note(self, copy: RecordCopy, milliseconds: int, *, is_new: bool) -> None:
        """Note a copy that is durable now; `is_new`: since this time, and not since an earlier."""
        self._current[copy[:3]] = copy
        for look in self._looks:
            look.add(copy)
        if is_new:
            self._times.setdefault(copy, []).append(milliseconds)

    @contextmanager
    def looking(self) -> Iterator[set[RecordCopy]]:
        """Fill a set with the copies that become durable, or are synced anew, meanwhile."""
        look: set[RecordCopy] = set()
        self._looks.append(look)
        try:
            yield look
        finally:
            self._looks = [each for each in self._looks if each is not look]

    def current(
        self, name: str, partition_id: PartitionId, transaction_id: TransactionId
    ) -> RecordCopy | None:
        """Return the copy at this place that was synced last."""
        return self._current.get((name, partition_id, transaction_id))

    def times_of(self, copies: Iterable[RecordCopy]) -> Collection[int]:
        """Return the times at which these copies became durable, by their nodes' clocks."""
        return {time for copy in copies for time in self._times[copy]}

    def judge(
        self,
        name: str,
        partition_id: PartitionId,
        transaction_id: TransactionId,
        told: tuple[int, int] | None,
    ) -> str | None:
        """Return what is wrong with the times that a node has told of its copy of a transaction;
        None: nothing is."""
        copy = self._current.get((name, partition_id, transaction_id))
        if told is None or copy is None:
            self.counts["not recorded" if copy is not None else "not held"] += 1
            return None
        times = self._times[copy]
        not_before, not_after = told
        self.counts["narrow" if not_after - not_before <= NARROW_MILLISECONDS else "wide"] += 1
        if any(not_before <= time <= not_after for time in times):
            return None
        return (
            f"I13 times: {name} says that transaction {transaction_id} of partition {partition_id}"
            f" became durable there between {not_before} and {not_after}; it did at {times}"
        )


def _end(content: bytes | bytearray, start: int, number: int) -> int | None:
    """Return the end of the record `number` at a place of a data file; None: there is no such one,
    or it does not check out."""
    if start + _RECORD.size + _CHECKSUM.size > len(content):
        return None
    found, *_, length, _ = _RECORD.unpack_from(content, start)
    end = start + int(_RECORD.size) + length + _CHECKSUM.size
    if found != number or length < 0 or end > len(content):
        return None
    body = memoryview(content)[start : end - _CHECKSUM.size]
    (checksum,) = _CHECKSUM.unpack_from(content, end - _CHECKSUM.size)
    return int(end) if crc32(body) == checksum else None


def _copy(
    name: str, partition_id: PartitionId, content: bytes | bytearray, start: int
) -> RecordCopy:
    number, *request_id, _, length, _ = _RECORD.unpack_from(content, start)
    (checksum,) = _CHECKSUM.unpack_from(content, start + _RECORD.size + length)
    return RecordCopy(name, partition_id, TransactionId(number), tuple(request_id), checksum)


def _next_good(content: bytes | bytearray, start: int, number: int) -> tuple[int, int] | None:
    """Return the first good record after a damaged one: its transaction ID and where it starts."""
    for later in range(number + 1, number + 1 + DAMAGED_IN_A_ROW_MAX):
        found = content.find(_NUMBER.pack(later), start)
        while found >= 0:
            if _end(content, found, later) is not None:
                return later, found
            found = content.find(_NUMBER.pack(later), found + 1)
    return None
