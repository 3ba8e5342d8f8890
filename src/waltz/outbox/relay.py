"""The machine of a relay: which rows of an outbox go to the log next, and when the table is told.

Owns the cycle: look, claim, append, settle. Always: rows are appended only under a claim that the
database keeps, of each key one row at a time, in the order of their IDs; a row leaves the table
only when it is in the log, or parked with its reason; and after any failure everything is read
again. Knows no SQL and no client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from waltz import PartitionId
from waltz.outbox.claim import RelayState, chosen
from waltz.outbox.outbox_row import OutboxRow, UnfitRow

RETRY_SECONDS_MIN: Final = 0.1
RETRY_SECONDS_MAX: Final = 10.0
"""Pause after a failure; it doubles from the first to the second."""

BEATS_PER_TAKE_OVER: Final = 3
"""Signs of life that a relay gives within the time after which another one takes over."""

GRACE_SECONDS: Final = 5.0
"""Time that a relay which is told to stop gives rows under way; a later relay finds them."""


# Events


@dataclass(frozen=True, slots=True)
class Stood:
    """The relay's row was read. `is_free`: nobody holds the outbox, or this process does."""

    version: int
    beat: int
    is_free: bool


@dataclass(frozen=True, slots=True)
class TookOver:
    """The outbox is held under `version`. `rows` are those of the claim that the table still
    has."""

    version: int
    state: RelayState
    rows: tuple[OutboxRow, ...]


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Another relay was faster."""


@dataclass(frozen=True, slots=True)
class Followed:
    """The log was followed to its end; `logged` are the claimed rows that are there."""

    logged: frozenset[int]


@dataclass(frozen=True, slots=True)
class RowLogged:
    row_id: int


@dataclass(frozen=True, slots=True)
class RowRefused:
    row_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The log was followed to its end after a row was refused; whether the row is there."""

    row_id: int
    is_logged: bool


@dataclass(frozen=True, slots=True)
class Looked:
    """The first rows of the table that no parked row holds back, but for the claimed ones,
    ascending."""

    rows: tuple[OutboxRow, ...]
    unfit: tuple[UnfitRow, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """The database has taken the claim under a new version."""

    version: int
    state: RelayState


@dataclass(frozen=True, slots=True)
class Beaten:
    """`waiting` is the number of rows in the table, which are counted up to a bound."""

    waiting: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another relay holds the outbox."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An effect, or a row, has failed; `is_final`: no attempt can help."""

    text: str
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class WasReset:
    """The client is closed: nothing is appended any more."""


@dataclass(frozen=True, slots=True)
class Released: ...


@dataclass(frozen=True, slots=True)
class StopAsked: ...


Event: TypeAlias = (
    Stood
    | TookOver
    | NotTaken
    | Followed
    | RowLogged
    | RowRefused
    | Confirmed
    | Looked
    | Settled
    | Beaten
    | Superseded
    | Failed
    | WasReset
    | Released
    | StopAsked
)

# Effects


@dataclass(frozen=True, slots=True)
class Stand:
    """Read the relay's row. Answer: Stood."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Open a client, and name it in the claim if the version is still this one. Answer: TookOver,
    NotTaken."""

    version: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Follow these partitions, to the present end of the log. Answer: Followed."""

    partitions: frozenset[PartitionId]


@dataclass(frozen=True, slots=True)
class Append:
    """Answer: RowLogged, RowRefused."""

    row: OutboxRow


@dataclass(frozen=True, slots=True)
class Confirm:
    """Follow a partition to its end. Answer: Confirmed."""

    row_id: int
    partition_id: PartitionId


@dataclass(frozen=True, slots=True)
class Look:
    """Read rows of the table, but for these. Answer: Looked."""

    claimed: frozenset[int]


@dataclass(frozen=True, slots=True)
class Settle:
    """In one transaction: check and raise the version, delete `relayed`, park `refused` and
    `unfit`, claim `rows`. Answer: Settled, Superseded."""

    version: int
    state: RelayState
    relayed: tuple[int, ...]
    parked: tuple[UnfitRow, ...]
    rows: tuple[OutboxRow, ...]


@dataclass(frozen=True, slots=True)
class Beat:
    """Give a sign of life under this version. Answer: Beaten, Superseded."""

    version: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Close the client. Answer: WasReset."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give the outbox up under this version. Answer: Released, Superseded."""

    version: int


Effect: TypeAlias = (
    Stand | TakeOver | Follow | Append | Confirm | Look | Settle | Beat | Reset | Release
)


class Phase(Enum):
    """The work of a relay now; but for PAUSE, STANDBY, IDLE and APPEND one effect is under way."""

    STAND = "looks who holds the outbox"
    STANDBY = "stands by for the relay that holds the outbox"
    TAKE_OVER = "takes over"
    RECOVER = "looks in the log for rows that were claimed before"
    APPEND = "appends"
    LOOK = "looks for rows"
    IDLE = "waits for rows"
    FOLLOW = "follows partitions"
    SETTLE = "settles"
    RESET = "closes its client"
    PAUSE = "pauses after a failure"
    RELEASE = "gives the outbox up"
    CLOSED = "has ended"


class Relay:
    """See the module. `once`: the relay ends when the table has no row that it may append."""

    def __init__(
        self, *, every_seconds: float, take_over_seconds: float, once: bool = False
    ) -> None:
        self.phase = Phase.STAND
        self.trouble: str | None = None
        """Why nothing is relayed now; None: nothing is wrong."""
        self.final_error: str | None = None
        self.is_complete = False
        """Whether a relay that runs once has found that no row is left that it may append."""
        self.relayed = 0
        self.found = 0
        """Rows that an earlier relay had appended without noting it."""
        self.parked = 0
        self.failures = 0
        self.take_overs = 0
        self.vanished = 0
        """Claimed rows that were deleted from the table by others before they were appended."""
        self.waiting: int | None = None
        self._every = every_seconds
        self._take_over_seconds = take_over_seconds
        self._once = once
        self._started = False
        self._stopping = False
        self._due: float | None = None
        self._beat_due = 0.0
        self._beating = False
        self._pause = RETRY_SECONDS_MIN
        self._seen: tuple[int, int] | None = None
        self._seen_at = 0.0
        self._version = 0
        self._state: RelayState | None = None
        self._known: set[PartitionId] = set()
        self._queues: dict[str, deque[OutboxRow]] = {}
        self._under_way: dict[int, OutboxRow] = {}
        self._refusals: dict[int, str] = {}
        self._done: list[int] = []
        self._parks: list[UnfitRow] = []
        self._next: tuple[OutboxRow, ...] = ()
        self._found = self._vanished = 0
        """Those of the claim; after a failure they are looked for again: they count at its end."""
        self._is_followed = False
        """Whether new partitions are followed, and the claim is made once a beat has ended."""

    @property
    def closed(self) -> bool:
        return self.phase is Phase.CLOSED

    @property
    def deadline(self) -> float | None:
        if not self._started:
            return 0.0
        due = [] if self._due is None or self._waits_for_beat else [self._due]
        if self._may_beat:
            due.append(self._beat_due)
        return min(due, default=None)

    @property
    def is_holder(self) -> bool:
        """Whether this relay holds the outbox, as far as it knows."""
        return self._state is not None

    @property
    def under_way(self) -> int:
        """The number of claimed rows whose end is not known yet."""
        return len(self._under_way) + sum(map(len, self._queues.values()))

    @property
    def _may_beat(self) -> bool:
        waiting = (Phase.APPEND, Phase.IDLE, Phase.RECOVER, Phase.FOLLOW)
        return not self._beating and self.phase in waiting

    @property
    def _waits_for_beat(self) -> bool:
        """Whether the database is asked for nothing else until the beat under way has ended: what
        changes the version would make that beat fail."""
        return self._beating and self.phase is Phase.IDLE

    def check_invariants(self) -> None:
        keys = [each.key for each in self._under_way.values()]
        assert len(keys) == len(set(keys)), "one row of a key at a time"
        quiet = (Phase.APPEND, Phase.RESET, Phase.RELEASE, Phase.CLOSED)
        assert not self._under_way or self.phase in quiet
        assert self.phase is not Phase.APPEND or self._state is not None
        for queue in self._queues.values():
            numbers = [each.row_id for each in queue]
            assert numbers == sorted(numbers), "in the order of the IDs"
        if self._state is not None:
            claimed = {each.row_id for each in self._state.claim}
            assert self._under_way.keys() <= claimed, "nothing is appended that is not claimed"
            assert set(self._done) <= claimed

    def step(self, events: Sequence[Event], now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not self._started:
            self._started = True
            effects.append(Stand())
        for event in events:
            effects += self._take(event, now)
        if self._due is not None and now >= self._due and not self._waits_for_beat:
            self._due = None
            effects += self._on_time(now)
        if self._may_beat and now >= self._beat_due and not self.closed:
            self._beating = True
            effects.append(Beat(self._version))
        return effects

    def _take(self, event: Event, now: float) -> list[Effect]:
        match event:
            case StopAsked():
                return self._stop(now)
            case Failed(text, is_final):
                return self._fail(text, is_final=is_final)
            case Superseded():
                return self._fail("another relay has taken over the outbox")
            case WasReset():
                return self._was_reset(now)
            case Released():
                self.phase = Phase.CLOSED
                return []
        return self._take_answer(event, now)

    def _take_answer(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Stood():
                return self._stood(event, now)
            case NotTaken() if self.phase is Phase.TAKE_OVER:
                return self._stand_by(now)
            case TookOver() if self.phase is Phase.TAKE_OVER:
                return self._took_over(event, now)
            case Followed(logged) if self.phase is Phase.RECOVER:
                return self._recovered(logged, now)
            case Followed() if self.phase is Phase.FOLLOW:
                self._is_followed = True
                return [] if self._beating else self._settle()
            case Looked() if self.phase is Phase.LOOK:
                return self._looked(event, now)
            case Settled(version, state) if self.phase is Phase.SETTLE:
                return self._settled(version, state, now)
            case Beaten(waiting):
                self._beating = False
                self.waiting = waiting
                self._beat_due = now + self._take_over_seconds / BEATS_PER_TAKE_OVER
                if self.phase is Phase.FOLLOW and self._is_followed:
                    return self._settle()
                return self._proceed(now) if self.phase is Phase.APPEND else []
            case RowLogged() | RowRefused() | Confirmed() if self.phase is Phase.APPEND:
                return self._row_ended(event, now)
        return []  # of before a reset

    # Holding the outbox

    def _stood(self, event: Stood, now: float) -> list[Effect]:
        if self.phase is not Phase.STAND:
            return []
        if self._stopping:
            self.phase = Phase.CLOSED
            return []
        seen = event.version, event.beat
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        if event.is_free or now >= self._seen_at + self._take_over_seconds:
            self.phase = Phase.TAKE_OVER
            return [TakeOver(event.version)]
        return self._stand_by(now)

    def _stand_by(self, now: float) -> list[Effect]:
        if self._stopping:
            self.phase = Phase.CLOSED
            return []
        self.phase = Phase.STANDBY
        self.trouble = None
        self._due = now + min(self._every, self._take_over_seconds / BEATS_PER_TAKE_OVER)
        return []

    def _took_over(self, event: TookOver, now: float) -> list[Effect]:
        self._version, self._state = event.version, event.state
        self.take_overs += 1
        if self._stopping:  # to follow the log may take as long as the cluster is away
            self.phase = Phase.RELEASE
            return [Release(self._version)]
        self._beat_due = now + self._take_over_seconds / BEATS_PER_TAKE_OVER
        self._known = {each.partition_id for each in event.state.claim}
        self._next = event.rows
        self.phase = Phase.RECOVER
        if not event.state.claim:
            return self._recovered(frozenset(), now)
        return [Follow(frozenset(self._known))]

    def _recovered(self, logged: frozenset[int], now: float) -> list[Effect]:
        assert self._state is not None
        rows = {each.row_id: each for each in self._next}
        digests = {each.row_id: each.digest for each in self._state.claim}
        self._done = sorted(logged)
        self._found = len(logged)
        left = [each for row_id, each in sorted(rows.items()) if row_id not in logged]
        changed = next((each for each in left if each.digest != digests[each.row_id]), None)
        if changed is not None:
            return self._fail(
                f"row {changed.row_id} was changed after a relay had claimed it, and is not in the"
                " log: rows are written once. Give the row its former header and data, or delete"
                " it, then start the relay",
                is_final=True,
            )
        self._vanished = len(digests.keys() - rows.keys() - logged)
        return self._begin(left, now)

    # Rows

    def _begin(self, rows: Sequence[OutboxRow], now: float) -> list[Effect]:
        self._next = ()
        self._queues = {}
        for each in rows:
            self._queues.setdefault(each.key, deque()).append(each)
        self.phase = Phase.APPEND
        if self._stopping:
            return self._proceed(now)
        effects: list[Effect] = [self._send(key) for key in list(self._queues)]
        return effects or self._proceed(now)

    def _send(self, key: str) -> Append:
        queue = self._queues[key]
        row = queue.popleft()
        if not queue:
            del self._queues[key]
        self._under_way[row.row_id] = row
        return Append(row)

    def _row_ended(self, event: RowLogged | RowRefused | Confirmed, now: float) -> list[Effect]:
        row = self._under_way.get(event.row_id)
        if row is None:
            return []
        if isinstance(event, RowRefused):
            # Perhaps it was refused because another relay's append of it is in the log.
            self._refusals[row.row_id] = event.reason
            return [Confirm(row.row_id, row.partition_id)]
        del self._under_way[row.row_id]
        self._note_success()
        if isinstance(event, Confirmed) and not event.is_logged:
            reason = self._refusals.pop(row.row_id)
            self._parks.append(UnfitRow(row.row_id, row.key, reason))
            # What comes after it in its key stays in the table until the row is out of the way.
            self._queues.pop(row.key, None)
        else:
            self._refusals.pop(row.row_id, None)
            self._done.append(row.row_id)
            if row.key in self._queues and not self._stopping:
                return [self._send(row.key)]
        return self._proceed(now)

    def _proceed(self, now: float) -> list[Effect]:
        """Look for the next rows once all of the claim have ended."""
        if self._beating or self._under_way:
            return []
        if self._stopping:
            return self._end_claim()
        if self._queues:
            return []
        return self._look()

    def _look(self) -> list[Effect]:
        assert self._state is not None
        self.phase = Phase.LOOK
        return [Look(frozenset(each.row_id for each in self._state.claim))]

    def _looked(self, event: Looked, now: float) -> list[Effect]:
        if self._stopping:
            return self._end_claim()
        held = {each.key for each in self._parks}
        self._next = tuple(chosen(event.rows, event.unfit, held))
        self._parks += [each for each in event.unfit if each.key not in held]
        new = {each.partition_id for each in self._next} - self._known
        if new:
            self._known |= new
            self.phase = Phase.FOLLOW
            self._is_followed = False
            return [Follow(frozenset(new))]
        if self._next or self._parks or self._has_claim:
            return self._settle()
        self._note_success()
        if self._once:
            self.is_complete = self._stopping = True
            return self._end_claim()
        self.phase = Phase.IDLE
        self._due = now + self._every
        return []

    def _note_success(self) -> None:
        """The relay is further than at its last failure. To have begun again is no success: a row
        that fails at each attempt would be tried without pauses, and seem well in between."""
        self.trouble, self._pause = None, RETRY_SECONDS_MIN

    @property
    def _has_claim(self) -> bool:
        return self._state is not None and bool(self._state.claim)

    def _settle(self) -> list[Effect]:
        assert self._state is not None
        self.phase = Phase.SETTLE
        done, parks, rows = tuple(self._done), tuple(self._parks), self._next
        return [Settle(self._version, self._state, done, parks, rows)]

    def _settled(self, version: int, state: RelayState, now: float) -> list[Effect]:
        self.relayed += len(self._done)
        self.parked += len(self._parks)
        self.found += self._found
        self.vanished += self._vanished
        self._version, self._state = version, state
        self._done, self._parks = [], []
        self._found = self._vanished = 0
        self._note_success()
        self._beat_due = now + self._take_over_seconds / BEATS_PER_TAKE_OVER
        return self._begin(self._next, now)

    # Ends

    def _stop(self, now: float) -> list[Effect]:
        if self._stopping:
            return []
        self._stopping = True
        match self.phase:
            case Phase.STANDBY | Phase.PAUSE:
                self._due = None
                self.phase = Phase.CLOSED
            case Phase.IDLE:
                self._due = None
                return self._end_claim()
            case Phase.APPEND:
                self._due = now + GRACE_SECONDS
                return self._proceed(now)
            case Phase.RECOVER | Phase.FOLLOW:  # which may take as long as the cluster is away
                self.phase = Phase.RELEASE
                return [Release(self._version)]
        return []  # once the effect under way has ended

    def _end_claim(self) -> list[Effect]:
        """Settle what has ended, if all of the claim has; then give the outbox up."""
        self._due = None
        self._next = ()
        if self._has_claim and not self._queues and not self._under_way:
            return self._settle()
        self.phase = Phase.RELEASE
        return [Release(self._version)]

    def _fail(self, text: str, *, is_final: bool = False) -> list[Effect]:
        self._beating = False
        if self.phase in (Phase.RESET, Phase.PAUSE, Phase.CLOSED, Phase.STANDBY):
            return []
        if self.phase is Phase.RELEASE:  # another relay takes over when nobody gives a sign of life
            self.phase = Phase.CLOSED
            return []
        self.failures += 1
        self.trouble = text
        if is_final:
            self.final_error = text
        self.phase = Phase.RESET
        self._due = None
        return [Reset()]

    def _was_reset(self, now: float) -> list[Effect]:
        if self.phase is not Phase.RESET:
            return []
        self._state = None
        self._queues, self._under_way, self._refusals = {}, {}, {}
        self._done, self._parks, self._next, self._known = [], [], (), set()
        self._found = self._vanished = 0
        if self.final_error is not None or self._stopping:
            self.phase = Phase.CLOSED
            return []
        self.phase = Phase.PAUSE
        self._due = now + self._pause
        self._pause = min(RETRY_SECONDS_MAX, 2 * self._pause)
        return []

    def _on_time(self, now: float) -> list[Effect]:
        match self.phase:
            case Phase.STANDBY | Phase.PAUSE:
                self.phase = Phase.STAND
                return [Stand()]
            case Phase.IDLE:
                return self._look()
            case Phase.APPEND if self._stopping:
                self.phase = Phase.RELEASE
                return [Release(self._version)]
        return []
