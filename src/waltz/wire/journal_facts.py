"""The conclusions from the entries of a journal: when a record became durable on a node, which
store session gave it its ID, and which clients had mounted the partition.

Nothing here guesses: where entries are lost, where a clock was set back or a node restarted between
two entries, the answer is that nothing is recorded. All times are wall times of the node that wrote
the entries, in milliseconds since 1970.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from waltz.types import ClientId, SessionId, TransactionId
from waltz.wire.journal_entries import (
    ClientNoted,
    ClockSetBack,
    DurableTime,
    EarlierTime,
    JournalEntry,
    JournalOpened,
    LogCut,
    RecordsRepaired,
    SessionBegan,
    SessionFenced,
)


class DurableInterval(NamedTuple):
    """A copy of the record became durable on a node between these two times of its wall clock."""

    not_before: int
    not_after: int
    clock_went_back: bool = False
    """Whether that clock was set back later: it may have been ahead then."""


class AuthorSession(NamedTuple):
    """A session gave their IDs to the transactions from `first` to `last`."""

    session_id: SessionId
    first: TransactionId
    last: TransactionId


@dataclass(slots=True)
class _Piece:
    """The records from `first` on, up to the next piece."""

    first: int
    low: int | None
    """A time at which they were not here yet; None: no such time is known."""
    high: int | None = None
    """The first time after that at which they were durable here; None: not known yet, or never."""
    clocks: int = 0
    """The times that the clock had been set back when `low` was noted."""


class JournalFacts:
    """The facts that follow from the entries of one journal, in the order they were written."""

    def __init__(
        self,
        entries: Iterable[JournalEntry],
        holds: Callable[[DurableTime], bool] = lambda entry: True,
    ) -> None:
        """`holds` says whether the record that a time names is still in the log, with the same
        checksum. In answers of nodes an `EarlierTime` stands for the others."""
        self.cuts: list[LogCut] = []
        self.repairs: list[RecordsRepaired] = []
        self.sessions: list[AuthorSession] = []
        """Ascending; transactions whose session is not proved are in none of them."""
        self.begun: list[SessionBegan] = []
        """The store sessions that have started on the node, in the order of the entries."""
        self._clients: dict[ClientId, list[ClientNoted]] = {}
        self._pieces = [_Piece(0, None)]
        self._open = 0
        """The position of the first piece that may still get its `high`."""
        self._clocks = 0
        self._latest: int | None = None
        self._live: tuple[SessionId, TransactionId] | None = None
        """The session that has started and was not fenced since, with its mark."""
        for entry in entries:
            self._take(entry, holds)

    def interval(self, transaction_id: int) -> DurableInterval | None:
        """Return when the record became durable on the node; None: that is not recorded."""
        piece = self._pieces[bisect_right(self._pieces, transaction_id, key=_FIRST) - 1]
        if piece.low is None or piece.high is None or transaction_id < 0:
            return None
        return DurableInterval(piece.low, piece.high, self._clocks > piece.clocks)

    def last_by(self, milliseconds: int, first: int, end: int) -> int | None:
        """Return the last of the records from `first` to `end` - 1 that is known to have been
        durable at a time; None: none is known to."""
        for position in range(len(self._pieces) - 1, -1, -1):
            piece = self._pieces[position]
            following = end
            if position + 1 < len(self._pieces):
                following = min(end, self._pieces[position + 1].first)
            is_known = piece.low is not None and piece.high is not None
            if (
                is_known
                and (piece.high or 0) <= milliseconds
                and max(piece.first, first) < following
            ):
                return following - 1
        return None

    def first_after(self, milliseconds: int, first: int, end: int) -> int | None:
        """Return the first of the records from `first` to `end` - 1 that is known to have come to
        the node after a time; None: none is known to."""
        for position, piece in enumerate(self._pieces):
            following = end
            if position + 1 < len(self._pieces):
                following = min(end, self._pieces[position + 1].first)
            is_known = piece.low is not None and piece.high is not None
            if (
                is_known
                and (piece.low or 0) >= milliseconds
                and max(piece.first, first) < following
            ):
                return max(piece.first, first)
        return None

    def session(self, transaction_id: int) -> SessionId | None:
        """Return the session that gave the transaction its ID; None: that is not recorded."""
        for found in reversed(self.sessions):
            if found.first <= transaction_id <= found.last:
                return found.session_id
        return None

    def notes_of(self, client_id: ClientId) -> Sequence[ClientNoted]:
        """Return the notes of the client, in order: another client of the same ID is another
        note."""
        return self._clients.get(client_id, ())

    @property
    def clients(self) -> Sequence[ClientNoted]:
        """The latest note of each client."""
        return [notes[-1] for notes in self._clients.values()]

    def _take(self, entry: JournalEntry, holds: Callable[[DurableTime], bool]) -> None:
        match entry:
            case ClientNoted():
                self._clients.setdefault(entry.client_id, []).append(entry)
                return
            case RecordsRepaired():
                self.repairs.append(entry)
                return
            case SessionBegan():
                self._live = entry.session_id, entry.low_water_mark
                self.begun.append(entry)
                return
            case SessionFenced():
                self._live = None
                return
        if self._latest is not None and entry.milliseconds < self._latest:
            self._clocks += 1
            self._lose()
        self._latest = entry.milliseconds
        match entry:
            case DurableTime():
                if holds(entry):
                    self._settle(entry)
                self._begin(entry)
            case EarlierTime():
                self._begin(entry)
            case LogCut():
                self.cuts.append(entry)
                self._begin(entry)
            case JournalOpened():
                self._live = None
                self._lose()
                self._begin(entry)
            case ClockSetBack():
                self._clocks += entry.before_milliseconds > entry.milliseconds
                self._lose()

    def _begin(self, entry: DurableTime | EarlierTime | JournalOpened | LogCut) -> None:
        """Note that what is after the transaction now came here after this time."""
        following = self._drop_after(entry.transaction_id)
        self._pieces.append(_Piece(following, entry.milliseconds, clocks=self._clocks))
        self._open = min(self._open, len(self._pieces) - 1)

    def _settle(self, entry: DurableTime) -> None:
        """Note that everything up to the transaction was durable at this time."""
        self._drop_after(entry.transaction_id)
        for piece in self._pieces[self._open :]:
            if piece.low is not None and piece.high is None:
                piece.high = entry.milliseconds
        self._open = len(self._pieces)
        if self._live is not None:
            session_id, mark = self._live
            first = max(mark + 1, self.sessions[-1].last + 1 if self.sessions else 0)
            if first <= entry.transaction_id:
                found = AuthorSession(session_id, TransactionId(first), entry.transaction_id)
                if self.sessions and self.sessions[-1][::2] == (session_id, first - 1):
                    found = found._replace(first=self.sessions.pop().first)
                self.sessions.append(found)

    def _drop_after(self, transaction_id: TransactionId) -> int:
        """Forget all that was known of what is after the transaction; return the next ID."""
        following = transaction_id + 1
        while self._pieces and self._pieces[-1].first >= following:
            self._pieces.pop()
        while self.sessions and self.sessions[-1].last >= following:
            session_id, first, _ = self.sessions.pop()
            if first < following:
                self.sessions.append(AuthorSession(session_id, first, transaction_id))
        return following

    def _lose(self) -> None:
        """Forget the times of all records that are not known to be durable yet: the next time may
        be another clock's, or that of a copy which came after one that is lost."""
        for piece in self._pieces[self._open :]:
            if piece.high is None:
                piece.low = None


_FIRST: Final = attrgetter("first")


def majority_interval(
    intervals: Sequence[DurableInterval | None], count: int
) -> tuple[int | None, int | None]:
    """Return bounds of the time from which on `count` of the copies that are there now were there,
    each by its own node's clock: not before, not after; None where a bound is not recorded.

    A replica without an interval may have its copy since any time, or have none.
    """
    known = [each for each in intervals if each is not None]
    lows = sorted(each.not_before for each in known)
    highs = sorted(each.not_after for each in known)
    needed = count - (len(intervals) - len(known))
    low = lows[needed - 1] if 0 < needed <= len(lows) else None
    high = highs[count - 1] if 0 < count <= len(highs) else None
    return low, high


def milliseconds_apart(intervals: Iterable[DurableInterval | None]) -> int:
    """Return by how much the intervals miss each other: 0 if there is a time in all of them. Else
    a replica got the record later by at least that time, as one does that was away, or clocks
    disagree; intervals alone do not tell which."""
    known = [each for each in intervals if each is not None]
    if not known:
        return 0
    lowest = min(each.not_after for each in known)
    return max(0, max(each.not_before for each in known) - lowest)
