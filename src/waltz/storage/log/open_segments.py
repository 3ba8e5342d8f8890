"""The segments of one partition: which there are, and which of them are open.

Owns the list of their first IDs, the last segment, which takes appends, and the complete segments
that were used lately. What the opening of a segment finds goes into the known damage. Writes no
records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from waltz.storage.log.damage import DAMAGE_FILE_NAME, KnownDamage
from waltz.storage.log.listing import find_segments, segment_names
from waltz.storage.log.segment import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    JOURNAL_SUFFIX,
    SET_ASIDE_SUFFIX,
    Segment,
    SegmentHome,
    create_segment,
)
from waltz.storage.log.segment_recovery import NO_TRUST, TornTail, Trust, open_segment
from waltz.types import TransactionId


class OpenSegments:
    """The segments of a partition, the open ones and the others."""

    def __init__(
        self,
        home: SegmentHome,
        damage: KnownDamage,
        *,
        open_max: int,
        wall_milliseconds: Callable[[], int],
    ) -> None:
        self.firsts: list[TransactionId] = []
        """First IDs of all segments, ascending."""
        self.last: Segment | None = None
        self.indexes_healed = 0
        """Wrong index entries and headers that were corrected since the node started."""
        self._home = home
        self._damage = damage
        self._open_max = open_max
        self._wall_milliseconds = wall_milliseconds
        self._complete: OrderedDict[TransactionId, Segment] = OrderedDict()
        """Complete segments that are open, the least recently used one first."""

    def find(self, trust: Trust) -> None:
        """List the segments that are there, or that `trust` tells of, but for those in which
        nothing is durable; these are removed. Raises CorruptionError: an index names a segment that
        cannot be opened; OSError."""
        firsts = self.firsts = find_segments(self._home, trust, self.remove)
        position = 0
        while position < len(firsts) - 1:
            segment = self._complete_segment(firsts[position])
            if segment.next_transaction_id < firsts[position + 1]:
                # According to its own index it ends there: the segment after it is missing.
                firsts.insert(position + 1, segment.next_transaction_id)
            position += 1

    def open_last(self, trust: Trust, lose: Callable[[], None]) -> TornTail | None:
        """Open the last segment, with `lose` as in `open_segment`; return what was cut off."""
        self.last, torn = self._open(self.firsts[-1], trust, following=None, lose=lose)
        return torn

    def add(self, first: TransactionId) -> Segment:
        """Make an empty segment the last one. Raises as `create_segment`."""
        before = self.last
        self.last = create_segment(self._home, first, self._wall_milliseconds())
        self.firsts.append(first)
        if before is not None:
            self._keep_open(before)
        return self.last

    def of(self, transaction_id: TransactionId) -> Segment:
        """Return the segment of the transaction, open. Raises CorruptionError, OSError."""
        first = self.firsts[bisect_right(self.firsts, transaction_id) - 1]
        if self.last is not None and first == self.last.first_transaction_id:
            return self.last
        return self._complete_segment(first)

    def make_last(self, segment: Segment) -> None:
        """Make `segment` the last one and close all later ones."""
        assert self.last is not None
        self.last.close()
        self.last = segment
        self._complete.pop(segment.first_transaction_id)
        for first in [first for first in self._complete if first > segment.first_transaction_id]:
            self._complete.pop(first).close()

    def close(self) -> None:
        """Close all files as they are."""
        for segment in self._complete.values():
            segment.close()
        self._complete.clear()
        if self.last is not None:
            self.last.close()
            self.last = None
        self.firsts = []
        self._damage.ranges = ()

    def remove(self, first: TransactionId) -> None:
        """Remove both files, the index first and durably, so that it never names missing data; then
        the journal."""
        disk = self._home.disk
        for suffix in (INDEX_SUFFIX, DATA_SUFFIX):
            path = self._home.path(first, suffix)
            if disk.exists(path):
                disk.remove(path)
                disk.sync_directory(self._home.directory)
        with suppress(OSError):
            # Nothing rests on a journal, nor on its absence.
            if disk.exists(path := self._home.path(first, JOURNAL_SUFFIX)):
                disk.remove(path)

    def remove_all(self) -> None:
        """Remove all segments from the disk, the newest first; none may be open. Raises OSError."""
        assert self.last is None
        disk, directory = self._home.disk, self._home.directory
        if not disk.exists(directory):
            return
        for name in disk.list_directory(directory):
            is_ours_alone = JOURNAL_SUFFIX in name or name.startswith(DAMAGE_FILE_NAME)
            if is_ours_alone or name.endswith(SET_ASIDE_SUFFIX):
                disk.remove(f"{directory}/{name}")
        disk.sync_directory(directory)
        names = [segment_names(self._home, suffix) for suffix in (DATA_SUFFIX, INDEX_SUFFIX)]
        for first in sorted({*names[0], *names[1]}, reverse=True):
            self.remove(first)

    def remember_damage(self) -> None:
        """Write the known damage to its file, if it has changed and the disk allows."""
        if self.last is not None:
            self._damage.remember(self.last.durable_next)

    def _complete_segment(self, first: TransactionId) -> Segment:
        """Return a complete segment, open and marked as used last. Raises CorruptionError,
        OSError."""
        segment = self._complete.get(first)
        if segment is None:
            following = self.firsts[bisect_right(self.firsts, first)]
            segment, _ = self._open(first, NO_TRUST, following=following)
            self.remember_damage()
        self._keep_open(segment)
        return segment

    def _open(
        self,
        first: TransactionId,
        trust: Trust,
        *,
        following: TransactionId | None,
        lose: Callable[[], None] = lambda: None,
    ) -> tuple[Segment, TornTail | None]:
        opened = open_segment(
            self._home,
            first,
            trust,
            following=following,
            wall_milliseconds=self._wall_milliseconds(),
            lose=lose,
        )
        self.indexes_healed += opened.indexes_healed
        for start, end in opened.damage:
            self._damage.replace(start, end, opened.damage, firsts=self.firsts)
        return opened.segment, opened.torn

    def _keep_open(self, segment: Segment) -> None:
        self._complete[segment.first_transaction_id] = segment
        self._complete.move_to_end(segment.first_transaction_id)
        while len(self._complete) > self._open_max:
            self._complete.popitem(last=False)[1].close()
