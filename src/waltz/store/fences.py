"""Replicas that refuse a session because they have promised a later one.

Owns what they have promised and the number that the next session must be above. Whether the later
one is another server's or the coordinator was set back is told by the metadata, not here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from waltz.majority import majority
from waltz.store.requests import AskSessionInfo, RequestAnswered, RequestFailed
from waltz.types import ReplicaId, SessionId
from waltz.wire.storage_protocol import SessionInfo

NEAR_SESSIONS: Final = 100
"""An open session ends for a replica that has promised one at most this far above it: sessions in
order come there soon. One farther off may be forged, and would end session after session."""


class Fences:
    """Sessions that the replicas of a session have promised instead of it."""

    def __init__(self, session_id: SessionId) -> None:
        self._session_id = session_id
        self._promised: dict[ReplicaId, SessionId] = {}

    def take(self, event: RequestAnswered | RequestFailed) -> str | None:
        """Return why the replica cannot be in this session, if it says that it cannot."""
        match event:
            case RequestFailed(link, AskSessionInfo(), reason, fence) if (
                fence is not None and fence > self._session_id
            ):
                self._promised[link.replica_id] = fence
                return reason
            case RequestAnswered(link, AskSessionInfo(), SessionInfo() as info) if (
                info.session_id >= self._session_id
            ):
                # Begun before this server was given the number: the coordinator has given it twice.
                # The next number in order would open a session as if nothing were wrong.
                self._promised[link.replica_id] = SessionId(info.session_id + 1)
                return f"session {info.session_id} has begun there already"
            case _:
                return None

    def is_near(self, replica_id: ReplicaId) -> bool:
        """Return whether a session soon after this one may have the replica."""
        promised = self._promised.get(replica_id)
        return promised is not None and promised - self._session_id <= NEAR_SESSIONS

    def outrun(self, replicas: Collection[ReplicaId]) -> SessionId | None:
        """Return what a majority of `replicas` would let pass, if they do not let this one pass.

        What one of them says does not count alone: it may be forged.
        """
        promised = sorted(self._promised[each] for each in replicas if each in self._promised)
        silent_count, quorum = len(replicas) - len(promised), majority(len(replicas))
        return promised[quorum - silent_count - 1] if silent_count < quorum else None
