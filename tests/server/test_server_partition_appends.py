"""Appends of one partition, by value: locks, flushes, what is undecided, and its bounds."""

from __future__ import annotations

from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.builders import (
    PARTITION,
    append,
    batch,
    data_request,
    fed,
    feed_request,
    flush,
    mark_request,
    mount,
    peer,
    received,
    request_id,
    tid,
)
from tests.server.partition_bench import Bench, feed_of, mount_ready, mounted, opened
from waltz.limits import REQUEST_BYTES
from waltz.record import NewRecord, pack_records, request_id_bytes, request_id_from
from waltz.server.feeding.backlog import (
    PENDING_APPEND_BYTES_MAX,
    PENDING_APPENDS_MAX,
    ResumeReading,
    StopReading,
    request_bytes,
)
from waltz.server.server_partition_events import (
    AppendToStore,
    ConnectionDrained,
    ConnectionLost,
    RequestsDropped,
)
from waltz.store.events import AppendsFailed, Committed, StoreClosed
from waltz.wire.before_batches import joined
from waltz.wire.client_protocol import (
    AppendRequest,
    ClientMessage,
    FlushResponse,
    HighWaterMarkResponse,
    LockFailure,
)

# Appending


def test_append_comes_back_in_the_feed_with_its_own_request_id() -> None:
    """PM-02, CS-16: there is no other answer."""
    bench = mounted()
    assert bench.say(mount(client=8), feed_request(client=8), connection=2, client=8) == [
        mount_ready(8)
    ]
    assert bench.say(append(5)) == []
    assert bench.commit() == {1: feed_of([5], 0), 2: feed_of([5], 0)}


def test_appends_of_one_step_are_one_batch_for_the_store() -> None:
    bench = mounted()
    effects = bench.machine.step(
        [received(peer(), append(2), append(3)), received(peer(), append(4))], 0.0
    )
    assert [type(effect) for effect in effects] == [AppendToStore]
    assert isinstance(effects[0], AppendToStore)
    assert effects[0].records[2] == NewRecord(
        request_id_bytes(request_id(7, 4)), 0, b"data", append(4).checksum
    )


def test_append_of_another_generation_is_dropped_before_any_lock_is_checked() -> None:
    """CS-23, SV-12: no lock failure, no claim, no answer."""
    bench = Bench(5, generation=3)
    bench.say(mount(5))
    for generation in (2, 4):
        assert bench.say(append(2, -1, generation=generation, write=[1])) == []
    assert bench.store == []
    assert bench.others == [RequestsDropped(1, "stale generation", 1)] * 2
    bench.say(append(3, 5, generation=3, write=[1]))
    assert bench.stored() == [3]


def test_refused_lock_names_the_transaction_that_holds_it() -> None:
    """PM-20, PM-21, PM-22, CS-19: as observed at the original."""
    bench = mounted(0)
    bench.say(append(2, 0, write=[123]))
    bench.commit()
    refusals = bench.say(
        append(3, 0, write=[123]), append(4, 0, read=[123]), append(5, 0, append=[123])
    )
    assert refusals == [
        LockFailure(request_id(7, 3), tid(1)),
        LockFailure(request_id(7, 4), tid(1)),
    ]
    assert bench.stored() == [5]
    bench.commit()
    assert bench.say(append(6, 1, write=[123])) == [LockFailure(request_id(7, 6), tid(2))]
    assert bench.say(append(7, 2, write=[123])) == []


def test_first_locking_append_of_a_client_behind_is_refused_after_a_restart() -> None:
    """SV-10."""
    bench = Bench(9)
    bench.cache.add(PARTITION, batch(0, 10))
    bench.say(mount(8))
    assert bench.say(append(2, 8, write=[1])) == [LockFailure(request_id(7, 2), tid(9))]
    assert bench.say(append(3, 9, write=[1])) == []


def test_partitions_share_no_locks() -> None:
    """SV-08: the same lock in two partitions is two locks."""
    one, other = mounted(0), mounted(0)
    one.say(append(2, 0, write=[123]))
    one.commit()
    assert one.say(append(3, 0, write=[123])) == [LockFailure(request_id(7, 3), tid(1))]
    assert other.say(append(3, 0, write=[123])) == []
    assert other.stored() == [3]


def test_append_waits_for_the_conflict_in_flight_and_nobody_else_does() -> None:
    """SV-09."""
    bench = mounted()
    bench.say(mount(client=8), connection=2, client=8)
    assert bench.say(append(2, write=[1]), append(3, write=[1])) == []
    bench.say(append(4, client=8, write=[2]), connection=2, client=8)
    assert bench.stored() == [2, 4]
    heard = bench.commit(1)
    assert heard == {1: [LockFailure(request_id(7, 3), tid(0)), *feed_of([2], 0)]}
    assert bench.stored() == [4]


def test_appends_of_one_client_keep_their_order_when_one_waits() -> None:
    """CI-15: whoever sees its later append in the feed writes the earlier ones again."""
    bench = mounted()
    bench.say(append(2, write=[1]), append(3, write=[1]), append(4))
    assert bench.stored() == [2]
    bench.say(append(5))
    assert bench.fail(1) == {}
    assert bench.stored() == [3, 4, 5]


def test_append_that_waited_for_one_that_failed_goes_on() -> None:
    bench = mounted()
    bench.say(append(2, write=[1]), append(3, write=[1]))
    assert bench.fail(1) == {}
    assert bench.stored() == [3]
    assert bench.commit() == {1: feed_of([3], 0)}


def test_failed_append_is_silent_and_a_flush_tells() -> None:
    bench = mounted()
    bench.say(append(2))
    assert bench.say(flush(2)) == []
    assert bench.fail(1) == {1: [FlushResponse(request_id(7, 2), tid(-1))]}


def test_mark_raised_by_others_refuses_locks_and_feeds_what_they_wrote() -> None:
    bench = mounted()
    bench.cache.add(PARTITION, batch(0, 4))
    bench.step(StoreClosed("fenced"))
    assert bench.step(opened(3, session=2)) == {1: fed(0, 4)}
    assert bench.say(append(2, 2, write=[1])) == [LockFailure(request_id(7, 2), tid(3))]


# Flush and high-water mark


def test_flush_is_answered_when_all_earlier_appends_are_decided() -> None:
    """CS-18, SV-23: those of other clients too, those after it not."""
    bench = mounted()
    bench.say(append(2), append(3))
    assert bench.say(flush(1, client=8), connection=2, client=8) == []
    bench.say(append(4))
    assert 2 not in bench.commit(1)
    assert bench.commit(1)[2] == [FlushResponse(request_id(8, 1), tid(1))]


def test_flush_with_nothing_undecided_is_answered_at_once() -> None:
    bench = Bench(6)
    assert bench.say(flush(9)) == [FlushResponse(request_id(7, 9), tid(6))]


def test_flush_waits_for_appends_that_wait_for_locks() -> None:
    bench = mounted()
    bench.say(append(2, write=[1]), append(3, write=[1]), flush(3))
    bench.fail(1)
    assert bench.stored() == [3]
    assert bench.commit() == {1: [FlushResponse(request_id(7, 3), tid(0)), *feed_of([3], 0)]}


def test_flushes_are_answered_across_store_sessions() -> None:
    """H7: a session that ends with appends undecided answers nobody, the next one everybody."""
    bench = mounted()
    bench.say(append(2), append(3), flush(3))
    assert bench.step(StoreClosed("quorum lost")) == {}
    done, bench.store, bench.mark = bench.store[:1], [], 0
    heard = bench.step(
        Committed(pack_records(tid(0), done)), AppendsFailed(1), opened(0, session=2)
    )
    assert heard == {1: [FlushResponse(request_id(7, 3), tid(0)), *feed_of([2], 0)]}


def test_mark_is_answered_only_once_it_is_known() -> None:
    """H8, SV-24, CS-20: never a number that means nothing."""
    bench = Bench(None)
    assert bench.say(mark_request(4)) == []
    assert bench.say(flush(5)) == []
    assert bench.step(opened(-1)) == {
        1: [
            HighWaterMarkResponse(request_id(7, 4), tid(-1)),
            FlushResponse(request_id(7, 5), tid(-1)),
        ]
    }
    assert bench.say(mark_request(6)) == [HighWaterMarkResponse(request_id(7, 6), tid(-1))]


# Bounds


def test_reading_stops_while_too_many_appends_are_undecided() -> None:
    """CS-28."""
    bench = mounted()
    bench.say(*[append(n) for n in range(PENDING_APPENDS_MAX)])
    assert bench.others == [StopReading(1)]
    bench.commit(PENDING_APPENDS_MAX // 2)
    assert bench.others == [StopReading(1)]
    bench.commit(1)
    assert bench.others == [StopReading(1), ResumeReading(1)]


def test_reading_stops_while_undecided_appends_are_too_large() -> None:
    """CS-28, UA-40: in bytes."""
    bench = mounted()
    large = bytes(PENDING_APPEND_BYTES_MAX // 4)
    bench.say(*[append(n, data=large) for n in range(4)])
    assert bench.others == [StopReading(1)]
    bench.fail(3)
    assert bench.others == [StopReading(1), ResumeReading(1)]


def test_those_who_have_little_under_way_are_read_while_the_partition_is_full() -> None:
    """H6: whoever fills a partition does not close it to the others."""
    bench = mounted()
    bench.say(mount(client=8), connection=2, client=8)
    bench.say(*[append(n) for n in range(PENDING_APPENDS_MAX)])
    bench.say(append(1, client=8), connection=2, client=8)
    assert bench.others == [StopReading(1)]


def test_requests_for_data_do_not_fill_the_partition() -> None:
    """They may wait for ever for a client that reads nothing."""
    bench = Bench(9)
    bench.full.add(1)
    assert bench.say(*[data_request(0) for _ in range(PENDING_APPENDS_MAX)]) == []
    assert bench.others == []
    bench.step(ConnectionLost(1))
    assert bench.worked_off == {1: PENDING_APPENDS_MAX * REQUEST_BYTES}


def test_refused_and_stale_appends_take_no_room() -> None:
    bench = mounted(5)
    bench.say(append(1, 4, write=[1]), append(2, 5, generation=9))
    assert bench.machine.pending_count == 0
    assert bench.machine.state().pending_bytes == 0


@given(st.lists(st.sampled_from(["commit", "fail", "open", "close", "lose", "drain"]), max_size=8))
def test_all_that_was_read_is_worked_off_in_the_end(happenings: list[str]) -> None:
    """Else a connection would be read no further one day, with nothing under way."""
    bench = Bench(9)
    messages: list[ClientMessage] = [
        mount(9),
        append(2, 9, write=[1], data=bytes(100)),
        append(3, 9, write=[1]),
        append(4, 9, generation=5),
        append(5, 3, read=[7]),
        flush(3),
        data_request(3),
        data_request(30),
        mark_request(),
        feed_request(9),
    ]
    read = 0
    for happening in ["open", *happenings]:
        bench.full.add(1)
        bench.say(*messages)
        read += sum(map(request_bytes, joined(messages)))  # type: ignore[arg-type]
        match happening:
            case "commit" if bench.store:
                bench.commit(1)
            case "fail" if bench.store:
                bench.fail(1)
            case "open":
                bench.step(opened(bench.mark))
            case "close":
                bench.step(StoreClosed("a replica was lost"))
            case "lose":
                bench.step(ConnectionLost(1))
            case _:
                bench.full.clear()
                bench.step(ConnectionDrained(1))
    bench.full.clear()
    bench.step(opened(bench.mark))
    while bench.store:
        bench.commit()
    bench.step(ConnectionLost(1))
    assert bench.worked_off == {1: read}


# Against a simpler truth


class Judge:
    """Keeps an exact list of locks and what became of every append."""

    def __init__(self) -> None:
        self.bench = mounted()
        self.bench.say(mount(client=8), connection=2, client=8)
        self.sequence = 1
        self.newest: dict[int, int] = {}
        self.undecided: dict[int, AppendRequest] = {}
        self.exact: dict[int, int] = {}

    def send(
        self, client: int, lag: int, write: list[int], read: list[int], added: list[int]
    ) -> None:
        self.sequence += 1
        mark = max(-1, self.bench.mark - lag)
        new = append(self.sequence, mark, client=client, write=write, read=read, append=added)
        self.undecided[self.sequence] = new
        connection = client - 6
        # Appends of the other client may have waited for this one, and be refused now.
        self.hear(self.bench.step(received(peer(connection, client), new)))

    def settle(self, record: NewRecord) -> AppendRequest:
        request_id = request_id_from(record.request_id)
        assert self.newest.get(request_id.client_id, 0) < request_id.sequence_number
        self.newest[request_id.client_id] = request_id.sequence_number
        return self.undecided.pop(request_id.sequence_number)

    def hear(self, heard: dict[int, list[object]]) -> None:
        for message in chain(*heard.values()):
            if isinstance(message, LockFailure):
                refused = self.undecided.pop(message.request_id.sequence_number)
                assert message.transaction_id > refused.client_high_water_mark

    def commit(self, count: int) -> None:
        first = self.bench.mark + 1
        for number, record in enumerate(self.bench.store[:count], first):
            done = self.settle(record)
            for lock in (*done.write_locks, *done.read_locks):
                assert self.exact.get(lock, -1) <= done.client_high_water_mark
            for lock in (*done.write_locks, *done.append_locks):
                self.exact[lock] = number
        self.hear(self.bench.commit(count))

    def fail(self, count: int) -> None:
        for record in self.bench.store[:count]:
            self.settle(record)
        self.hear(self.bench.fail(count))


@settings(max_examples=60)
@given(st.data())
def test_no_append_is_committed_over_a_newer_lock_and_none_is_forgotten(
    data: st.DataObject,
) -> None:
    """PM-20 to PM-23, SV-07: an exact list of locks judges every commit."""
    judge = Judge()
    locks = st.lists(st.integers(0, 6), max_size=2)
    request = st.tuples(st.integers(7, 8), st.integers(0, 2), locks, locks, locks)
    for _ in range(data.draw(st.integers(1, 12))):
        for new in data.draw(st.lists(request, max_size=6)):
            judge.send(*new)
        count = data.draw(st.integers(0, len(judge.bench.store)))
        if data.draw(st.booleans()):
            judge.commit(count)
        else:
            judge.fail(count)
    while judge.bench.store:
        judge.commit(1)
    assert not judge.undecided, "every append was committed, refused, or reported as failed"
