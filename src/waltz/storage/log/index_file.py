"""The index file of a segment: per record the place of its first byte in the data file.

Owns the order in which entries become durable: an entry is written only once its record is synced,
and no entry after a multiple of 64,000 is written before all entries up to that multiple are
synced. So after a crash the file has no holes before the last multiple that it reaches beyond. A
place of 0 is no entry: a hole, or beyond the end.
Source: Waltz Internals, "Segment Index File".
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from waltz.host import File
from waltz.limits import INDEX_SYNC_RECORDS
from waltz.storage.log.preallocation import Preallocation
from waltz.types import TransactionId

INDEX_PREALLOCATED_BYTES: Final = 8 * 64_000
"""Bytes reserved ahead of the end of an index file: as many as are written between two syncs."""


ENTRY: Final = struct.Struct(">q")
ENTRY_BYTES: Final = ENTRY.size


def index_entries(offsets: NDArray[np.int64]) -> bytes:
    """Return the entries of records at these offsets."""
    return offsets.astype(">i8").tobytes()


class IndexFile:
    """An open index file with `header_bytes` before its entries. All failures raise OSError."""

    def __init__(
        self, file: File, first_transaction_id: TransactionId, *, header_bytes: int
    ) -> None:
        self.file = file
        self._first = first_transaction_id
        self._header_bytes = header_bytes
        self._preallocation = Preallocation(file)
        self.reserved_count = 0
        """Entries that space is reserved for."""
        self.is_synced = False
        """Whether all entries are known to be durable."""
        self.count = max(0, file.size() - header_bytes) // ENTRY_BYTES
        """Entries that the file has room for, holes included."""

    def entries(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the `count` entries from the zero-based `start` on: 0 for an entry that is not
        there or cannot be read."""
        try:
            return self._read(start, count)
        except OSError:
            return np.zeros(count, np.int64)

    def _read(self, start: int, count: int) -> NDArray[np.int64]:
        entries = np.zeros(count, np.int64)
        data = self.file.read_at(self._offset(start), count * ENTRY_BYTES)
        found = len(data) // ENTRY_BYTES
        entries[:found] = np.frombuffer(data, ">i8", found)
        return entries

    def proved_count(self) -> int:
        """Return one past the last entry; what cannot be read counts as an entry."""
        end = self.count
        while end > 0:
            start = max(0, end - INDEX_SYNC_RECORDS)
            try:
                present = np.flatnonzero(self._read(start, end - start))
            except OSError:
                return end
            if len(present):
                return start + int(present[-1]) + 1
            end = start
        return 0

    def reserve(self, count: int) -> None:
        """Reserve space for the first `count` entries."""
        end = self._offset(count)
        if end > self._preallocation.end:
            self._preallocation.cover(
                end, ahead=INDEX_PREALLOCATED_BYTES, limit=end + INDEX_PREALLOCATED_BYTES
            )
        self.reserved_count = (self._preallocation.end - self._header_bytes) // ENTRY_BYTES

    def write(self, start: int, entries: bytes) -> None:
        """Write `entries` from the zero-based `start` on; their records are synced already. Return
        once the new entries up to the last multiple are durable."""
        count = len(entries) // ENTRY_BYTES
        position = 0
        while position < count:
            place = start + position
            room = INDEX_SYNC_RECORDS - (self._first + place) % INDEX_SYNC_RECORDS
            end = min(count, position + room)
            self.is_synced = False
            self.file.write_at(
                self._header_bytes + ENTRY_BYTES * place,
                entries[ENTRY_BYTES * position : ENTRY_BYTES * end],
            )
            if start + end > self.count:
                self.count = start + end
            if end - position == room:
                self.sync()
            position = end

    def put(self, start: int, offsets: NDArray[np.int64]) -> None:
        """Write the entries of records at `offsets` as `write` does; return once all entries are
        durable."""
        self.write(start, index_entries(offsets))
        self.sync()

    def sync(self) -> None:
        """Return once all entries are durable."""
        if not self.is_synced:
            self.file.sync()
            self.is_synced = True

    def resize(self, count: int) -> None:
        """Cut or lengthen the file, durably, to `count` entries; new entries are holes."""
        self.reserved_count = 0
        self._preallocation.truncate(self._offset(count))
        self.file.sync()
        self.is_synced = True
        self.count = count

    def give_back(self) -> None:
        """Release the space reserved ahead."""
        self.reserved_count = 0
        self._preallocation.give_back(self._offset(self.count))

    def close(self) -> None:
        self.file.close()

    def _offset(self, count: int) -> int:
        return self._header_bytes + ENTRY_BYTES * count
