from __future__ import annotations

from waltz.store.requests import ReadFromReplica, ReplicaLink
from waltz.types import ReplicaId, SessionId, TransactionId


def test_links_of_two_sessions_or_attempts_differ() -> None:
    link = ReplicaLink(SessionId(1), ReplicaId("a:1"), 1)
    assert link != link._replace(session_id=SessionId(2))
    assert link != link._replace(attempt=2)


def test_reads_for_two_readers_differ() -> None:
    link = ReplicaLink(SessionId(1), ReplicaId("a:1"), 1)
    assert ReadFromReplica(TransactionId(4), 1, link) != ReadFromReplica(TransactionId(4), 1, None)
