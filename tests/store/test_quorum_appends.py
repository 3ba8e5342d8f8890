"""The appends of an open session by themselves. Rows ST-10, ST-12."""

from __future__ import annotations

from tests.store.test_replica_session import batch
from waltz.limits import BATCHES_IN_FLIGHT_MAX
from waltz.store.events import Committed
from waltz.store.quorum_appends import QuorumAppends
from waltz.store.replica_session import ReplicaSession
from waltz.store.requests import AppendToReplica, ReplicaConnected, SendRequest
from waltz.types import ReplicaId, SessionId, TransactionId

MARK = TransactionId(4)


def live(name: str) -> ReplicaSession:
    replica = ReplicaSession(SessionId(3), ReplicaId(f"{name}:1"))
    replica.connected(ReplicaConnected(replica.link))
    replica.touch()
    replica.admit(MARK)
    return replica


def test_batches_go_to_every_live_replica_and_commit_in_order_once_a_quorum_has_them() -> None:
    replicas = a, b, c = live("a"), live("b"), live("c")
    appends = QuorumAppends(MARK, 2)
    appends.feed(replicas)
    first, second = batch(5, 2), batch(7)
    for each in (first, second):
        sent = appends.append(each, replicas)
        assert sent == [SendRequest(replica.link, AppendToReplica(each)) for replica in replicas]
    assert appends.next_transaction_id == 8
    a.appended(second)
    assert appends.commit(replicas) == []
    b.appended(first)
    assert appends.commit(replicas) == [Committed(first)]
    assert list(appends.in_flight) == [second]
    c.appended(second)
    assert appends.commit(replicas) == [Committed(second)]
    assert (appends.low_water_mark, appends.high_water_mark) == (4, 7)
    appends.check_invariants(replicas)


def test_a_replica_that_was_lost_is_sent_nothing_and_what_it_has_synced_still_counts() -> None:
    replicas = a, b, c = live("a"), live("b"), live("c")
    appends = QuorumAppends(MARK, 2)
    appends.feed(replicas)
    appends.append(batch(5), replicas)
    a.appended(batch(5))
    a.lose("cut")
    assert [each.link for each in appends.append(batch(6), replicas)] == [b.link, c.link]
    b.appended(batch(6))
    assert appends.commit(replicas) == [Committed(batch(5))]


def test_there_is_room_for_a_bounded_number_of_batches() -> None:
    replicas = (live("a"),)
    appends = QuorumAppends(MARK, 1)
    for place in range(BATCHES_IN_FLIGHT_MAX):
        assert appends.has_room
        appends.append(batch(5 + place), replicas)
    assert not appends.has_room
