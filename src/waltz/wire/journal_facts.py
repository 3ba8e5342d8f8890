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
from typing import TYPE_CHECKING, Final, NamedTuple

from waltz.arrays import np
from waltz.types import ClientId, SessionId, TransactionId
from waltz.wire.journal_entries import (
    ClientNoted,
    ClientsTold,
    ClockSetBack,
    DurableTime,
    EarlierTime,
    JournalEntry,
    JournalOpened,
    LogCut,
    NotesForgotten,
    RecordsRepaired,
    SessionBegan,
    SessionFenced,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_LOWER_BOUND: Final = -(1 << 63)
NO_UPPER_BOUND: Final = (1 << 63) - 1
"""These two stand in columns of times for a bound that is not recorded."""

IN_FLIGHT_MILLISECONDS: Final = 5_000
"""The longest time for which an append is taken to wait on its way to a node while another client
mounts under the ID of its author: all clients that had the ID within this time may be the author.
"""


class DurableInterval(NamedTuple):
    """A copy of the record became durable on a node between these two times of its wall clock."""

    not_before: int
    not_after: int
    clock_went_back: bool = False
    """Whether that clock was set back later: it may have been ahead then."""


class BoundColumns(NamedTuple):
    """Bounds of the times of some records, dense, in milliseconds since 1970; NO_LOWER_BOUND and
    NO_UPPER_BOUND where none is recorded.

    not_before  from the nodes that took the record from the session that gave it its ID: a copy
                that was made anew does not tell how old the record is.
    not_after   from all nodes that have the record.
    """

    not_before: NDArray[np.int64]
    not_after: NDArray[np.int64]


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
    low_at: int = 0
    high_at: int = 0
    """The number of entries up to those that have noted `low` and `high`."""


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
        self._clients: dict[ClientId, list[tuple[int, ClientNoted]]] = {}
        """The notes of each client, each with the number of entries up to it."""
        self._told: set[SessionId] = set()
        """The sessions whose servers have told which clients have mounted the partition."""
        self._forgotten_at = 0
        """The number of entries up to the last note that others are forgotten."""
        self._has_forgotten_clients = False
        self._count = 0
        """The number of entries so far."""
        self._pieces = [_Piece(0, None)]
        self._open = 0
        """The position of the first piece that may still get its `high`."""
        self._clocks = 0
        self._latest: int | None = None
        self._live: tuple[SessionId, TransactionId] | None = None
        """The session that has started and was not fenced since, with its mark."""
        for entry in entries:
            self._count += 1
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

    def first_new_after(self, milliseconds: int, first: int, end: int) -> int | None:
        """Return the first of the records from `first` to `end` - 1 that is known to be newer than
        a time; None: none is known to be. The node did not have it yet and then took it from the
        session that gave it its ID: a copy that was made anew may be of any age."""
        for position, piece in enumerate(self._pieces):
            following = end
            if position + 1 < len(self._pieces):
                following = min(end, self._pieces[position + 1].first)
            if piece.high is None or (self._lower_bound(piece) or NO_LOWER_BOUND) < milliseconds:
                continue
            for session in self.sessions:
                found = max(piece.first, first, session.first)
                if found < min(following, session.last + 1):
                    return found
        return None

    def _lower_bound(self, piece: _Piece) -> int | None:
        """Return the time after which the records came; None: it is not known, or the clock was set
        back later, and may have been ahead."""
        return piece.low if self._clocks == piece.clocks else None

    def columns(self, first: int, end: int) -> BoundColumns:
        """Return what is known of the age of the records from `first` to `end` - 1."""
        ids = np.arange(first, end)
        firsts = [each.first for each in self._pieces]
        rows = np.searchsorted(firsts, ids, side="right") - 1
        lows = np.full(len(firsts), NO_LOWER_BOUND, np.int64)
        highs = np.full(len(firsts), NO_UPPER_BOUND, np.int64)
        for row, piece in enumerate(self._pieces):
            if piece.low is not None and piece.high is not None:
                highs[row] = piece.high
                if (low := self._lower_bound(piece)) is not None:
                    lows[row] = low
        taken = np.full(end - first, NO_LOWER_BOUND, np.int64)
        for session in self.sessions:
            part = slice(max(session.first - first, 0), max(session.last + 1 - first, 0))
            taken[part] = lows[rows[part]]
        return BoundColumns(taken, highs[rows])

    def session(self, transaction_id: int) -> SessionId | None:
        """Return the session that gave the transaction its ID; None: that is not recorded."""
        for found in reversed(self.sessions):
            if found.first <= transaction_id <= found.last:
                return found.session_id
        return None

    def notes_of(self, client_id: ClientId) -> Sequence[ClientNoted]:
        """Return the notes of the client, in order: another client of the same ID is another
        note."""
        return [note for _, note in self._clients.get(client_id, ())]

    def holders(self, client_id: ClientId, transaction_id: TransactionId) -> Sequence[ClientNoted]:
        """Return the notes of which one is that of the transaction's author, whose client ID is
        given; none: that is not recorded.

        The journal tells it of records that the node took from a session whose server had told who
        has mounted the partition: the notes that came before the record in the order of the entries
        are then all there were. The last of them counts, those that came while the record may have,
        and those of clients that had the ID until shortly before.
        """
        piece = self._pieces[bisect_right(self._pieces, transaction_id, key=_FIRST) - 1]
        if self.session(transaction_id) not in self._told or transaction_id < 0:
            return ()
        if piece.low is None or piece.high is None:
            return ()
        notes = [each for each in self._clients.get(client_id, ()) if each[0] <= piece.high_at]
        first = len(notes)
        while first:
            at, note = notes[first - 1]
            first -= 1
            is_old = note.milliseconds < piece.low - IN_FLIGHT_MILLISECONDS
            if at <= piece.low_at and is_old:
                break
        else:
            # The client may have taken the ID over from one whose note is gone.
            if notes and (self._has_forgotten_clients or notes[0][0] < self._forgotten_at):
                return ()
        found = [note for _, note in notes[first:]]
        # Of a client whose connection was gone before its server looked nothing is known.
        return found if all(note.address for note in found) else ()

    @property
    def clients(self) -> Sequence[ClientNoted]:
        """The latest note of each client."""
        return [notes[-1][1] for notes in self._clients.values()]

    def _take(self, entry: JournalEntry, holds: Callable[[DurableTime], bool]) -> None:
        match entry:
            case ClientNoted():
                self._clients.setdefault(entry.client_id, []).append((self._count, entry))
                return
            case ClientsTold():
                self._told.add(entry.session_id)
                return
            case NotesForgotten():
                self._forgotten_at = self._count
                self._has_forgotten_clients |= entry.client_count > 0
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
        piece = _Piece(following, entry.milliseconds, clocks=self._clocks, low_at=self._count)
        self._pieces.append(piece)
        self._open = min(self._open, len(self._pieces) - 1)

    def _settle(self, entry: DurableTime) -> None:
        """Note that everything up to the transaction was durable at this time."""
        self._drop_after(entry.transaction_id)
        for piece in self._pieces[self._open :]:
            if piece.low is not None and piece.high is None:
                piece.high, piece.high_at = entry.milliseconds, self._count
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


def commit_bounds(nodes: Sequence[BoundColumns], count: int, rows: int) -> BoundColumns:
    """Return bounds of the time at which `count` of the nodes had each of `rows` records.

    A record is at least as old as the time from which on `count` of the nodes have it. At a time at
    which fewer than `count` of them can have had it, it was not committed.
    """
    if not 0 < count <= len(nodes):
        return BoundColumns(
            np.full(rows, NO_LOWER_BOUND, np.int64), np.full(rows, NO_UPPER_BOUND, np.int64)
        )
    return BoundColumns(
        np.sort([each.not_before for each in nodes], axis=0)[count - 1],
        np.sort([each.not_after for each in nodes], axis=0)[count - 1],
    )
