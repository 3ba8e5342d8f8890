"""One replica inside one store session: its attempts to connect, its requests, its appends.

Owns which answers still count. Must not decide about the session: what a replica's loss or answer
means to the others is `store_session.py`'s business. Several appends are under way at a time, in
order; an answer to one acknowledges all before it.

A replica lost before anything was changed on it may be tried again. One lost later may not, in this
session: what is still on its way over the old connection could be carried out in the middle of what
is sent over the new one. Only the next session's ID fences that out. It is connected to all the
same, and asked nothing: that it can be reached again is what the next session is opened for.
"""

from __future__ import annotations

from enum import Enum

from waltz.limits import BATCHES_IN_FLIGHT_MAX, RETRY_SECONDS_MAX, RETRY_SECONDS_MIN
from waltz.record import RecordBatch
from waltz.store.catch_up import CopyReads, RecentBatches
from waltz.store.requests import (
    AppendToReplica,
    AskMaxTransactionId,
    AskSessionInfo,
    ConnectReplica,
    DropReplica,
    ReadFromReplica,
    RepairerRequest,
    ReplicaConnected,
    ReplicaLink,
    ReplicaRequest,
    SendRequest,
)
from waltz.types import ReplicaId, SessionId, TransactionId


class ReplicaPhase(Enum):
    """The phases of a replica within a session. `ReplicaSession` moves it from one to the next:

    connected   CONNECTING -> RECOVERING, EXCLUDED -> RETURNED
    abstain     RECOVERING -> ABSTAINING
    vote_again  ABSTAINING -> RECOVERING
    admit       RECOVERING -> LIVE
    lose        any -> CONNECTING, or -> EXCLUDED once something was changed on the replica
    release     any -> RELEASED
    """

    CONNECTING = "waiting for a connection"
    RECOVERING = "in recovery, or waiting to be admitted"
    ABSTAINING = "does not vote, for it may be damaged; repaired before it recovers"
    LIVE = "admitted: gets every append, now or by catching up"
    EXCLUDED = "lost after something was changed on it; not before the next session again"
    RETURNED = "excluded, and connected again: the next session may have it"
    RELEASED = "no longer assigned, and no longer needed"


class ReplicaSession:
    def __init__(self, session_id: SessionId, replica_id: ReplicaId) -> None:
        self.replica_id = replica_id
        self.link = ReplicaLink(session_id, replica_id, 1)
        self.phase = ReplicaPhase.CONNECTING
        self.acknowledged_through: TransactionId | None = None
        """None until admitted. Stays when the replica is lost: what it synced stays synced."""
        self.is_repairable = False
        self.is_tolerant = False
        self.reads = CopyReads()
        self.trouble = ""
        """Why the last attempt ended."""
        self.lacks = TransactionId(0)
        """The first transaction ID that was not sent to the live replica."""
        self._in_flight_count = 0
        """Appends under way while it is live; `_request_count` has the other requests but reads."""
        self._changed = False
        self._request_count = 0
        self._retry_seconds = 0.0

    @property
    def is_excluded(self) -> bool:
        return self.phase is ReplicaPhase.EXCLUDED or self.phase is ReplicaPhase.RETURNED

    @property
    def absence(self) -> str | None:
        """Why it is not in the session now, for people; None if it is, or is asked to be."""
        if self.phase is ReplicaPhase.CONNECTING:
            return f"is not connected ({self.trouble or 'never was in this session'})"
        if self.phase is ReplicaPhase.RETURNED:
            return f"was lost ({self.trouble}), is back, and waits for the next session"
        return f"was lost ({self.trouble})" if self.phase is ReplicaPhase.EXCLUDED else None

    @property
    def is_busy(self) -> bool:
        """Whether an answer is on its way; not while a read is only being tried again."""
        return self._request_count > 0 or self._in_flight_count > 0 or self.reads.is_expected

    def check_invariants(self) -> None:
        assert 0 <= self._in_flight_count <= BATCHES_IN_FLIGHT_MAX
        if self.acknowledged_through is not None:
            assert self._changed
            assert self.acknowledged_through < self.lacks
        assert (self.phase is ReplicaPhase.LIVE) <= (self.acknowledged_through is not None)
        if self.reads.source is not None:
            assert self.phase is ReplicaPhase.RECOVERING or self.phase is ReplicaPhase.LIVE

    def connect(self) -> ConnectReplica:
        return ConnectReplica(self.link, self._retry_seconds)

    def connected(self, event: ReplicaConnected) -> None:
        if self.phase is ReplicaPhase.EXCLUDED:
            self.phase = ReplicaPhase.RETURNED
            return
        assert self.phase is ReplicaPhase.CONNECTING
        self.phase = ReplicaPhase.RECOVERING
        self.is_repairable, self.is_tolerant = event.repairable, event.tolerant

    def abstain(self) -> None:
        """Its word was asked for, and refused."""
        assert self.phase is ReplicaPhase.RECOVERING
        self.phase = ReplicaPhase.ABSTAINING
        self._request_count = 0

    def vote_again(self) -> None:
        assert self.phase is ReplicaPhase.ABSTAINING
        self.phase = ReplicaPhase.RECOVERING

    def touch(self) -> None:
        """Something is changed there, by what does not pass through here."""
        self._changed = True

    def asked(self, request: ReplicaRequest) -> None:
        """Note a request that is sent outside of the stream of appends."""
        if isinstance(request, ReadFromReplica | RepairerRequest):
            return
        assert self.phase is ReplicaPhase.RECOVERING or self.phase is ReplicaPhase.ABSTAINING
        self._request_count += 1
        if not isinstance(request, AskSessionInfo | AskMaxTransactionId):
            self._changed = True

    def answered(self, request: ReplicaRequest) -> None:
        """Note the answer to a request of which `asked` was told."""
        if not isinstance(request, ReadFromReplica | RepairerRequest):
            self._request_count -= 1

    def lose(self, reason: str) -> list[DropReplica | ConnectReplica]:
        """Give the present attempt up and start another one, to take part if that is safe."""
        effects: list[DropReplica | ConnectReplica] = [self._give_up(reason)]
        self.phase = ReplicaPhase.EXCLUDED if self._changed else ReplicaPhase.CONNECTING
        self.link = self.link._replace(attempt=self.link.attempt + 1)
        self._retry_seconds = min(
            max(2 * self._retry_seconds, RETRY_SECONDS_MIN), RETRY_SECONDS_MAX
        )
        effects.append(self.connect())
        return effects

    def release(self, reason: str) -> DropReplica:
        self.phase = ReplicaPhase.RELEASED
        return self._give_up(reason)

    def _give_up(self, reason: str) -> DropReplica:
        self.trouble = reason
        self._request_count = self._in_flight_count = 0
        self.reads.source = None
        return DropReplica(self.link, reason)

    # The stream of appends

    def admit(self, high_water_mark: TransactionId) -> None:
        assert self.phase is ReplicaPhase.RECOVERING
        self.phase = ReplicaPhase.LIVE
        self.acknowledged_through = high_water_mark
        self.lacks = TransactionId(high_water_mark + 1)

    @property
    def has_room(self) -> bool:
        return (
            self.phase is ReplicaPhase.LIVE
            and self.reads.source is None
            and self._in_flight_count < BATCHES_IN_FLIGHT_MAX
        )

    def feed(self, recent: RecentBatches) -> list[SendRequest]:
        """Send what is remembered and lacking here, as much as may be under way at a time."""
        effects: list[SendRequest] = []
        while self.lacks < recent.end and self.has_room:
            batch = recent.starting_at(self.lacks)
            sent = None if batch is None else self.append(AppendToReplica(batch))
            if sent is None:
                break
            effects.append(sent)
        return effects

    def append(self, request: AppendToReplica) -> SendRequest | None:
        """Send a batch to a live replica; None if it lacks records before it, or has no room."""
        batch = request.batch
        if (
            batch.first_transaction_id != self.lacks
            or self._in_flight_count >= BATCHES_IN_FLIGHT_MAX
            or self.reads.source is not None
        ):
            return None
        assert self._changed
        self.lacks = batch.next_transaction_id
        self._in_flight_count += 1
        return SendRequest(self.link, request)

    def appended(self, batch: RecordBatch) -> None:
        """Note that everything up to the end of `batch` is synced there."""
        assert self.acknowledged_through is not None
        last = batch.last_transaction_id
        assert last < self.lacks
        self._in_flight_count -= 1
        if last > self.acknowledged_through:
            self.acknowledged_through = last
