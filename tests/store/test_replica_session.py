"""One replica's attempts, requests and stream of appends. Rows ST-09, ST-10, ST-14, ST-42."""

from __future__ import annotations

from waltz.limits import BATCHES_IN_FLIGHT_MAX, RETRY_SECONDS_MAX
from waltz.record import NewRecord, RecordBatch, pack_records
from waltz.store.catch_up import RecentBatches
from waltz.store.replica_session import ReplicaPhase, ReplicaSession
from waltz.store.requests import (
    AppendToReplica,
    AskMaxTransactionId,
    AskSessionInfo,
    ConnectReplica,
    DropReplica,
    ReadFromReplica,
    ReplicaConnected,
    ReplicaLink,
    SetLowWaterMark,
    TruncateReplica,
)
from waltz.types import ReplicaId, SessionId, TransactionId

A, B = ReplicaId("a:1"), ReplicaId("b:1")


def batch(first: int, count: int = 1) -> RecordBatch:
    return pack_records(TransactionId(first), [NewRecord(b"\0" * 16, 0, b"", 0)] * count)


def live(mark: int = -1) -> ReplicaSession:
    replica = ReplicaSession(SessionId(3), A)
    replica.connected(ReplicaConnected(replica.link))
    request = SetLowWaterMark(TransactionId(mark))
    replica.asked(request)
    replica.answered(request)
    replica.admit(TransactionId(mark))
    replica.check_invariants()
    return replica


def test_one_lost_before_anything_was_changed_is_tried_again_ever_later() -> None:
    """ST-42."""
    replica = ReplicaSession(SessionId(3), A)
    assert replica.connect() == ConnectReplica(ReplicaLink(SessionId(3), A, 1), 0.0)
    delays = []
    for attempt in range(1, 12):
        replica.connected(ReplicaConnected(replica.link))
        replica.asked(AskSessionInfo())
        replica.asked(AskMaxTransactionId())
        old = replica.link
        drop, connect = replica.lose("cut")
        assert drop == DropReplica(old, "cut")
        assert isinstance(connect, ConnectReplica)
        assert connect.link == ReplicaLink(SessionId(3), A, attempt + 1)
        assert replica.phase is ReplicaPhase.CONNECTING
        assert not replica.is_busy
        delays.append(connect.delay_seconds)
    assert delays[:3] == [0.1, 0.2, 0.4]
    assert delays[-1] == RETRY_SECONDS_MAX


def test_one_lost_after_a_change_is_out_of_this_session() -> None:
    """ST-09: what is still on its way must not meet a second connection of the same session."""
    for request in (TruncateReplica(TransactionId(4)), SetLowWaterMark(TransactionId(4))):
        replica = ReplicaSession(SessionId(3), A)
        replica.connected(ReplicaConnected(replica.link))
        replica.asked(request)
        link = replica.link
        again = link._replace(attempt=2)
        assert replica.lose("cut") == [DropReplica(link, "cut"), ConnectReplica(again, 0.1)]
        assert replica.phase is ReplicaPhase.EXCLUDED
        assert replica.is_excluded
        replica.connected(ReplicaConnected(replica.link))
        assert replica.phase.name == "RETURNED"
        assert replica.is_excluded
        assert replica.lose("cut again")[0] == DropReplica(again, "cut again")
        assert replica.phase.name == "EXCLUDED"


def test_appends_go_out_in_order_up_to_the_window() -> None:
    recent = RecentBatches(10**6)
    for number in range(10):
        recent.add(batch(number))
    replica = live()
    sent = replica.feed(recent)
    assert [effect.request for effect in sent] == [
        AppendToReplica(batch(number)) for number in range(BATCHES_IN_FLIGHT_MAX)
    ]
    assert replica.feed(recent) == []
    replica.appended(batch(0))
    assert [effect.request for effect in replica.feed(recent)] == [AppendToReplica(batch(4))]
    replica.check_invariants()


def test_the_newest_batch_goes_at_once_to_one_that_lacks_nothing_else() -> None:
    replica = live()
    assert replica.append(AppendToReplica(batch(1))) is None
    first = AppendToReplica(batch(0))
    sent = replica.append(first)
    assert sent is not None
    assert sent.request is first
    for number in range(1, BATCHES_IN_FLIGHT_MAX):
        assert replica.append(AppendToReplica(batch(number))) is not None
    assert replica.append(AppendToReplica(batch(BATCHES_IN_FLIGHT_MAX))) is None
    replica.check_invariants()


def test_an_answer_acknowledges_all_before_it() -> None:
    recent = RecentBatches(10**6)
    recent.add(batch(0, 2))
    recent.add(batch(2, 2))
    replica = live()
    replica.feed(recent)
    replica.appended(batch(2, 2))
    assert replica.acknowledged_through == 3
    replica.appended(batch(0, 2))
    assert replica.acknowledged_through == 3


def test_what_it_has_synced_stays_counted_when_it_is_lost() -> None:
    replica = live(7)
    replica.lose("cut")
    assert replica.acknowledged_through == 7


def test_it_reads_one_batch_at_a_time_and_waits_longer_after_failures() -> None:
    """ST-14, ST-15."""
    replica, source = live(4), ReplicaSession(SessionId(3), B)
    read = replica.reads.ask(replica.link, source.link, TransactionId(5), TransactionId(9))
    assert read.link == source.link
    assert read.request == ReadFromReplica(TransactionId(5), 5, replica.link)
    assert not replica.has_room
    assert isinstance(read.request, ReadFromReplica)
    assert replica.reads.is_under_way(B, read.request)
    assert not replica.reads.is_under_way(A, read.request)
    replica.reads.fail()
    assert replica.reads.source is None
    assert replica.reads.failures == {B: 1}
    again = replica.reads.ask(replica.link, source.link, TransactionId(5), TransactionId(9))
    assert again.delay_seconds == 0.1
    assert not replica.is_busy
    replica.reads.succeed(batch(5, 5))
    copied = AppendToReplica(batch(5, 5))
    sent = replica.append(copied)
    assert sent is not None
    assert sent.request is copied
    third = replica.reads.ask(replica.link, source.link, TransactionId(10), TransactionId(10))
    assert third.delay_seconds == 0.0
