"""The feed of one partition, by value, and reads of its store that fail."""

from __future__ import annotations

import pytest

from tests.server.builders import (
    PARTITION,
    append,
    batch,
    data_request,
    fed,
    feed_request,
    flush,
    mount,
    peer,
    received,
    request_id,
    tid,
)
from tests.server.partition_bench import READY, Bench, feed_of, mounted
from waltz.errors import UnavailableError
from waltz.limits import RETRY_SECONDS_MIN
from waltz.server.feeding.fetches import UNREADABLE_SECONDS, FetchRecords
from waltz.server.server_partition_events import (
    CloseClientConnection,
    ConnectionDrained,
    ConnectionLost,
    PartitionRevoked,
    RecordsRead,
    StoreReadFailed,
)
from waltz.wire.client_protocol import FeedSuspended, FlushResponse, TransactionDataResponse
from waltz.wire.header_columns import header_columns

# Feeding


def test_feed_request_ahead_of_the_log_ends_the_connection() -> None:
    bench = mounted(5)
    assert bench.say(feed_request(6)) == []
    (closing,) = bench.others
    assert isinstance(closing, CloseClientConnection)
    assert closing.connection_id == 1


def test_quota_ends_in_a_suspension() -> None:
    """SV-16, CS-21: after IDs 0 to 99."""
    bench = mounted()
    bench.say(*[append(n) for n in range(150)])
    heard = bench.commit()
    assert heard == {1: [*feed_of(range(100), 0), FeedSuspended(request_id())]}
    assert bench.say(feed_request(99)) == feed_of(range(100, 150), 100)


def test_commit_moves_cache_locks_and_feed_together() -> None:
    """SV-06: neither the feed nor the first body needs a read."""
    bench = mounted()
    bench.say(append(2, write=[1], data=b"body"))
    assert bench.commit() == {1: feed_of([2], 0)}
    response = bench.say(data_request(0))
    assert response == [
        TransactionDataResponse(
            request_id(), tid(0), b"body", append(2, data=b"body").checksum, None
        )
    ]
    assert bench.reads == []


def test_full_connection_is_fed_when_it_has_drained() -> None:
    """SV-19."""
    bench = mounted()
    bench.full.add(1)
    bench.say(append(2))
    assert bench.commit() == {}
    bench.full.clear()
    assert bench.step(ConnectionDrained(1)) == {1: feed_of([2], 0)}


def test_lost_connection_is_forgotten() -> None:
    """SV-17."""
    bench = mounted()
    bench.step(ConnectionLost(1))
    assert bench.say(append(2)) == []
    assert bench.store == []


def test_appends_of_a_lost_connection_are_still_decided() -> None:
    bench = mounted()
    bench.say(append(2))
    bench.step(ConnectionLost(1))
    bench.commit()
    assert bench.say(flush(1, client=8), connection=2, client=8) == [
        FlushResponse(request_id(8, 1), tid(0))
    ]


# Reading


def test_data_at_hand_needs_no_step() -> None:
    bench = mounted(mark=2)
    bench.cache.add(PARTITION, batch(0, 3))
    asking = received(peer(1, 7), data_request(0), data_request(2))
    answers = bench.machine.answers_at_hand(asking)
    assert [each.transaction_id for each in answers] == [0, 2]  # type: ignore[attr-defined]
    assert bench.step(asking) == {1: answers}
    bench.full.add(1)
    assert bench.machine.answers_at_hand(asking) == ()
    bench.full.clear()
    bench.step(PartitionRevoked(comes_back=False))
    assert bench.machine.answers_at_hand(asking) == ()
    assert Bench(None).machine.answers_at_hand(asking) == (), "no store session yet"


def test_a_connection_that_repeats_another_has_nothing_at_hand() -> None:
    bench = Bench(2)
    bench.cache.add(PARTITION, batch(0, 3))
    bench.step(received(peer(1, 7, 4, 5), mount()))
    assert bench.machine.answers_at_hand(received(peer(1, 7, 4, 5), data_request(0)))
    assert bench.machine.answers_at_hand(received(peer(2, 7, 4, 5), data_request(0))) == ()


def test_failed_read_fails_those_who_asked_and_poisons_nothing() -> None:
    """H1: the same transaction is served as soon as it can be."""
    bench = Bench(99)
    assert bench.say(data_request(40)) == []
    assert bench.reads == [FetchRecords(tid(40), 60)]
    assert bench.step(StoreReadFailed(tid(40), "no quorum")) == {
        1: [TransactionDataResponse(request_id(), tid(40), None, 0, "no quorum")]
    }
    bench.now = 10.0
    assert bench.say(data_request(40)) == []
    assert bench.reads == [FetchRecords(tid(40), 60)] * 2
    heard = bench.step(RecordsRead(tid(40), batch(40, 60)))
    assert [type(m) for m in heard[1]] == [TransactionDataResponse]
    assert heard[1] == bench.say(data_request(40))


def test_what_no_replica_can_give_fails_for_those_who_asked_for_it_alone() -> None:
    """F-20: a record behind it, awaited by the same read, is read by itself; others are read
    meanwhile without a pause, and the lost one is asked for anew after a while."""
    bench = Bench(99)
    assert bench.say(data_request(40), data_request(41)) == []
    assert bench.reads == [FetchRecords(tid(40), 60)]
    lost = StoreReadFailed(tid(40), "record 40 is damaged", is_unreadable=True)
    said = TransactionDataResponse(request_id(), tid(40), None, 0, "record 40 is damaged")
    assert bench.step(lost) == {1: [said]}
    assert bench.reads[1:] == [FetchRecords(tid(41), 59)]
    heard = bench.step(RecordsRead(tid(41), batch(41, 59)))
    assert [answer.transaction_id for answer in heard[1]] == [41]  # type: ignore[attr-defined]
    assert bench.say(data_request(40)) == [said]
    assert bench.say(data_request(3)) == []
    assert bench.reads[2:] == [FetchRecords(tid(3), 37)], "not beyond the lost one"
    assert bench.machine.state().unreadable == 1
    bench.step(RecordsRead(tid(3), batch(3, 37)))
    assert bench.machine.deadline == pytest.approx(UNREADABLE_SECONDS)
    bench.now = UNREADABLE_SECONDS
    bench.step()
    assert bench.machine.deadline is None
    assert bench.machine.state().unreadable == 0
    assert bench.say(data_request(40)) == []
    assert bench.reads[3:] == [FetchRecords(tid(40), 1)]


def test_a_feed_waits_before_what_no_replica_can_give_and_others_go_on() -> None:
    """F-20: it is not skipped; and a client that has it already is fed what follows."""
    bench = Bench(9)
    assert bench.say(mount(3)) == []
    assert bench.reads == [FetchRecords(tid(4), 6, with_data=False)]
    bench.step(StoreReadFailed(tid(4), "record 4 is damaged", with_data=False, is_unreadable=True))
    assert bench.say(mount(4, client=8), connection=2, client=8) == []
    assert bench.reads[1:] == [FetchRecords(tid(5), 5, with_data=False)]
    heard = bench.step(RecordsRead(tid(5), header_columns(batch(5, 5)), with_data=False))
    assert [*heard] == [2]
    bench.now = UNREADABLE_SECONDS
    assert bench.step() == {}
    assert bench.reads[2:] == [FetchRecords(tid(4), 1, with_data=False)]
    heard = bench.step(RecordsRead(tid(4), header_columns(batch(4, 1)), with_data=False))
    assert [*heard] == [1], "repaired"


def test_failed_read_that_nobody_wants_any_more_leaves_no_deadline() -> None:
    """A deadline in the past would have the machine stepped without end."""
    bench = Bench(99)
    bench.say(data_request(40))
    bench.step(StoreReadFailed(tid(40), "no quorum"))
    assert bench.machine.deadline == pytest.approx(RETRY_SECONDS_MIN)
    bench.now = RETRY_SECONDS_MIN
    bench.step()
    assert bench.machine.deadline is None


def test_transaction_asked_for_too_early_is_served_once_committed() -> None:
    """H1, CS-17."""
    bench = mounted()
    (early,) = bench.say(data_request(0))
    assert isinstance(early, TransactionDataResponse)
    assert early.data is None
    bench.say(append(2))
    bench.commit()
    (late,) = bench.say(data_request(0))
    assert isinstance(late, TransactionDataResponse)
    assert late.data == b"data"


def test_feed_whose_read_failed_tries_again_after_a_pause() -> None:
    bench = Bench(9)
    assert bench.say(mount(-1)) == []
    assert bench.reads == [FetchRecords(tid(0), 10, with_data=False)]
    bench.step(StoreReadFailed(tid(0), str(UnavailableError("no replica")), with_data=False))
    assert bench.machine.deadline == pytest.approx(RETRY_SECONDS_MIN)
    bench.step()
    assert len(bench.reads) == 1
    bench.now = RETRY_SECONDS_MIN
    bench.step()
    assert bench.reads == [FetchRecords(tid(0), 10, with_data=False)] * 2
    headers = header_columns(batch(0, 10))
    assert bench.step(RecordsRead(tid(0), headers, with_data=False)) == {1: [*fed(0, 10), READY]}
    assert bench.machine.deadline is None


def test_empty_answer_to_a_read_is_a_failure() -> None:
    bench = Bench(9)
    bench.say(data_request(3))
    heard = bench.step(RecordsRead(tid(3), batch(3, 0)))
    assert [type(m) for m in heard[1]] == [TransactionDataResponse]
