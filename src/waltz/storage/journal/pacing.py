"""The machine that decides when a partition's journal gets an entry.

Owns the pace. Every entry that it returns is true by itself: which records were durable at one time
of the wall clock. Writes nothing; `partition_journal.py` adds the checksums of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from waltz.types import TransactionId
from waltz.wire.journal_entries import (
    ClientNoted,
    ClockSetBack,
    DurableTime,
    JournalEntry,
    JournalOpened,
    LogCut,
)

PACE_SECONDS: Final = 1.0
"""The least time between two pairs of times, unless a session, a cut or a new segment comes between
them; a record that no pair has named by then is named at most this much later."""


@dataclass(slots=True)
class LogWorked:
    """A drain has ended well; all times are readings of the wall clock, in milliseconds. Not
    frozen, for there is one per drain."""

    opening: int
    """The number of times that the log was opened so far."""
    segment_before: TransactionId
    """First transaction ID of the newest segment when the drain began."""
    segment: TransactionId
    """First transaction ID of the newest segment now."""
    last_before: TransactionId
    """The last record that was durable when the drain began."""
    began: int
    """A reading from before the drain's first write."""
    last: TransactionId
    """The last record that is durable now."""
    ended: int
    """A reading from after the drain's last sync."""
    notes: tuple[JournalEntry, ...] = ()
    """The drain's own notes, in order."""


class JournalPacing:
    """Decides which entries are written after a drain, and which later."""

    def __init__(self) -> None:
        self._opening: int | None = None
        """The opening of the log that the journal has an entry of."""
        self._pending: TransactionId | None = None
        """The newest record, while no entry names it."""
        self._next_at = 0.0
        """From when on another pair is due."""
        self._latest: int | None = None
        """The last reading of the wall clock: when the newest record was durable."""
        self._set_back: ClockSetBack | None = None
        """The wall clock was set back since the last entry."""

    @property
    def deadline(self) -> float | None:
        """The time at which a step without an event returns an entry; None: it never does."""
        return None if self._pending is None else self._next_at

    def step(self, events: Sequence[LogWorked], now: float) -> Sequence[JournalEntry]:
        """Return the entries that are to be written now, in order."""
        entries: list[JournalEntry] = []
        for event in events:
            self._take(event, now, entries)
        if self._pending is not None and now >= self._next_at:
            entries += self.flush()
            self._next_at = now + PACE_SECONDS
        return entries

    def flush(self) -> Sequence[JournalEntry]:
        """Return the entries that wait for their time."""
        pending, self._pending = self._pending, None
        if pending is None:
            return ()
        assert self._latest is not None
        newest = DurableTime(pending, self._latest, 0)
        set_back, self._set_back = self._set_back, None
        return (newest,) if set_back is None else (set_back, newest)

    def _take(self, event: LogWorked, now: float, entries: list[JournalEntry]) -> None:
        if event.last == event.last_before and not event.notes:
            return
        if self._opening != event.opening:
            # Nothing that was not written yet can be told apart from what was lost.
            self._opening, self._pending, self._set_back = event.opening, None, None
            entries.append(JournalOpened(event.last_before, event.began))
        elif (
            event.last == event.last_before
            or (now < self._next_at and event.segment == event.segment_before)
        ) and not (event.notes and _is_urgent(event.notes)):
            entries += event.notes
            if event.last != event.last_before:
                latest = self._latest
                if (latest is not None and event.began < latest) or event.ended < event.began:
                    self._set_back = set_back_between(event.began, event.ended) or set_back_between(
                        latest, event.began
                    )
                self._latest, self._pending = event.ended, event.last
            return
        else:
            set_back = set_back_between(self._latest, event.began) or self._set_back
            if set_back is not None:
                entries.append(set_back)
            if not any(isinstance(note, LogCut) for note in event.notes):
                # After a cut another record may have the ID of the last one that was here before.
                entries.append(DurableTime(event.last_before, event.began, 0))
        entries += event.notes
        if set_back := set_back_between(event.began, event.ended):
            entries.append(set_back)
        entries.append(DurableTime(event.last, event.ended, 0))
        self._latest = event.ended
        self._pending = self._set_back = None
        self._next_at = now + PACE_SECONDS

    def check_invariants(self) -> None:
        assert self._pending is None or self._opening is not None
        assert self._pending is None or self._latest is not None


def _is_urgent(notes: Sequence[JournalEntry]) -> bool:
    """Return whether any of the notes gives a meaning to the times around it."""
    return not all(isinstance(note, ClientNoted) for note in notes)


def set_back_between(earlier: int | None, later: int) -> ClockSetBack | None:
    """Return the entry for a clock that was read twice; None: it was not set back in between."""
    if earlier is None or earlier <= later:
        return None
    return ClockSetBack(earlier, later)
