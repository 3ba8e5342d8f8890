"""The journal of a partition: one file next to each segment, continued as the log grows.

Owns which file gets which entries, and what a question about some transactions is answered with.
Runs in the partition's thread, after the answers of a drain were sent. Never raises for a disk's
fault: that ends the journal of the newest segment until the log is opened anew.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from waltz.storage.journal.journal_file import JournalFile, JournalPlace, read_journal
from waltz.storage.journal.thinning import forgotten_count, journal_bytes_max, kept_clients
from waltz.storage.log.segment import SegmentHome
from waltz.storage.log.segments import SegmentChain
from waltz.types import NO_SESSION, SessionId, TransactionId
from waltz.wire.journal_entries import (
    ClientNoted,
    ClientsTold,
    DurableTime,
    EarlierTime,
    JournalEntry,
    JournalOpened,
    NotesForgotten,
    SessionBegan,
    SessionFenced,
    encode_entries,
    note_text,
)

ANSWER_TIMES_MAX: Final = 1_000
"""Times of records that one answer has at most, for each of them a record is looked at."""

log = logging.getLogger(__name__)


class JournalPart(NamedTuple):
    """A part of a partition's journal."""

    entries: bytes
    next_transaction_id: TransactionId
    """The transactions before it are answered; those from it on may be asked for next."""


class PartitionJournal:
    """The journal of one partition: `write` adds to it, `part` reads it."""

    def __init__(
        self,
        home: SegmentHome,
        directory_id: UUID,
        chain: SegmentChain,
        *,
        segment_bytes_threshold: int,
        wall_milliseconds: Callable[[], int],
    ) -> None:
        bytes_max = journal_bytes_max(segment_bytes_threshold)
        self._place = JournalPlace(home, directory_id, bytes_max)
        self._chain = chain
        self._wall_milliseconds = wall_milliseconds
        self._file: JournalFile | None = None
        """The journal of the newest segment, once it was written to."""
        self._failed: TransactionId | None = None
        """The newest segment, if its journal has failed."""
        self._has_logged = False
        self.notes: list[JournalEntry] = []
        """Entries noted since `take_notes` was called last."""
        self._session: SessionBegan | None = None
        """The session that has started here and was not fenced since."""
        self._told: ClientsTold | None = None
        """The entry that the server of this session has told which clients there are."""
        self._untold = NO_SESSION
        """The session that has started here and has not told its clients yet."""
        self._clients: list[ClientNoted] = []
        self._forgotten = 0
        """The number of clients that were noted and are not among these any more."""
        self.openings = 0
        """The number of times that the log was opened."""

    # What happens in the partition

    def opened(self) -> None:
        """Note that the log was opened, or closed: nothing is known of what was written before."""
        self.openings += 1
        self._file = self._failed = self._session = self._told = None
        self._untold = NO_SESSION
        self.notes.clear()

    def note(self, entry: JournalEntry) -> None:
        """Remember an entry of the drain under way."""
        if isinstance(entry, SessionBegan):
            self._untold = entry.session_id
        elif isinstance(entry, SessionFenced):
            self._untold = NO_SESSION
        self.notes.append(entry)

    def note_clients(
        self, session_id: SessionId, notes: Sequence[ClientNoted], milliseconds: int
    ) -> None:
        """Remember those of the clients that were not noted before with the same texts. What a
        session's server tells first after the session has started is all clients that there are."""
        if session_id == self._untold != NO_SESSION:
            self._untold = NO_SESSION
            self.notes.append(ClientsTold(session_id, milliseconds))
        known = {each.client_id: each[2:] for each in self._clients}
        for note in notes:
            shown = ClientNoted._make([*note[:2], *map(note_text, note[2:])])
            if known.get(shown.client_id) != shown[2:]:
                known[shown.client_id] = shown[2:]
                self.notes.append(shown)

    def take_notes(self) -> tuple[JournalEntry, ...]:
        """Return what was noted since the last call."""
        notes = tuple(self.notes)
        self.notes.clear()
        return notes

    # Writing

    def write(self, entries: Sequence[JournalEntry], since: TransactionId) -> None:
        """Add `entries` to the journals of the segments from `since` on; a new journal begins with
        the session and the clients that are known."""
        firsts = self._chain.segments.firsts
        if not firsts or not entries:
            return
        newest = firsts[-1]
        try:
            sealed = list(self._with_checksums(entries))
            for first in [each for each in firsts if each >= since] or [newest]:
                if sealed and first != self._failed:
                    self._write_to(first, sealed)
        except Exception as error:  # whatever it is, the partition goes on without a journal
            self._file, self._failed = None, newest
            if not self._has_logged:
                self._has_logged = True
                log.warning(
                    "journal_failed partition=%d error=%r: times and authors are not recorded"
                    " until the next segment or start",
                    self._place.home.partition_id, error,
                )  # fmt: skip
        for entry in entries:
            if isinstance(entry, SessionBegan):
                self._session, self._told = entry, None
            elif isinstance(entry, SessionFenced | JournalOpened):
                self._session = self._told = None
            elif isinstance(entry, ClientsTold):
                self._told = entry
        if fresh := [each for each in entries if isinstance(each, ClientNoted)]:
            self._keep_clients([*self._clients, *fresh])

    def _keep_clients(self, notes: Sequence[ClientNoted]) -> None:
        self._clients = kept_clients(notes, self._place.bytes_max)
        self._forgotten += len({each.client_id for each in notes}) - len(self._clients)

    def _write_to(self, first: TransactionId, entries: Sequence[JournalEntry]) -> None:
        """Add `entries` to the journal of one segment. Raises OSError, CorruptionError."""
        if self._file is None or self._file.first != first:
            self._file = JournalFile(self._place, first, self._wall_milliseconds())
            entries = [*self._start(self._file, entries), *entries]
        self._file.append(entries)

    def _start(self, file: JournalFile, entries: Sequence[JournalEntry]) -> list[JournalEntry]:
        """Return what goes before `entries`, the next ones of a file that was just opened."""
        noted = [each for each in file.entries if isinstance(each, ClientNoted)]
        if not self._clients:
            self._forgotten += forgotten_count(file.entries)
            self._keep_clients(noted)
        latest = {each.client_id: each for each in noted}
        unnoted = [each for each in self._clients if latest.get(each.client_id) != each]
        file.entries = ()
        start: list[JournalEntry] = []
        if not file.is_new and not isinstance(entries[0], JournalOpened):
            # Meanwhile other files were written: it is as if this one were opened anew.
            start += [
                JournalOpened(each.transaction_id, each.milliseconds)
                for each in entries
                if isinstance(each, DurableTime)
            ][:1]
        if self._session is not None:
            start.append(self._session)
        if self._told is not None:
            start.append(self._told)
        start += unnoted
        if unnoted:
            start.append(NotesForgotten(self._forgotten))
        return start

    def _with_checksums(self, entries: Sequence[JournalEntry]) -> Iterator[JournalEntry]:
        for entry in entries:
            if isinstance(entry, DurableTime):
                checksum = self._chain.checksum(entry.transaction_id)
                if checksum is None:
                    continue
                entry = entry._replace(checksum=checksum)
            yield entry

    # Reading

    def part(self, first: TransactionId, last: TransactionId) -> JournalPart:
        """Return the entries that tell of the transactions from `first` to `last`, of one segment
        and of a bounded number of times; none if `first` is not here. Raises OSError,
        CorruptionError."""
        firsts = self._chain.segments.firsts
        last = TransactionId(min(last, self._chain.next_transaction_id - 1))
        if not 0 <= first <= last:
            return JournalPart(b"", first)
        position = bisect_right(firsts, first) - 1
        following = firsts[position + 1] if position + 1 < len(firsts) else last + 1
        last = TransactionId(min(last, following - 1))
        found = read_journal(self._place, firsts[position])
        entries = [] if found is None else found.entries
        kept, last = self._telling(entries, first, last)
        return JournalPart(encode_entries(kept), TransactionId(last + 1))

    def _telling(
        self, entries: Sequence[JournalEntry], first: TransactionId, last: TransactionId
    ) -> tuple[list[JournalEntry], TransactionId]:
        """Return the entries without the times that tell nothing of the range, up to a number of
        times; and the last transaction of which they tell."""
        kept: list[JournalEntry] = []
        times_count = 0
        is_over = False
        """Whether a time was kept at which all of the range was durable."""
        for entry in entries:
            if not isinstance(entry, DurableTime):
                if not isinstance(entry, ClientNoted):
                    is_over = False
                kept.append(entry)
                continue
            if entry.transaction_id < first:
                is_over = False
                if (
                    kept
                    and isinstance(kept[-1], DurableTime | EarlierTime)
                    and (kept[-1].transaction_id < first)
                ):
                    kept.pop()
                # The record need not be looked at: it is none of those asked about.
                kept.append(EarlierTime(entry.transaction_id, entry.milliseconds))
                continue
            if is_over:
                continue
            times_count += 1
            if self._chain.checksum(entry.transaction_id) == entry.checksum:
                kept.append(entry)
                is_over = entry.transaction_id >= last
            else:
                kept.append(EarlierTime(entry.transaction_id, entry.milliseconds))
            if times_count >= ANSWER_TIMES_MAX and first <= entry.transaction_id < last:
                return kept, entry.transaction_id
        return kept, last
