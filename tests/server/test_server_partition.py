"""The machine of one partition, by value: what the original was seen to do, and where it hung."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.builders import (
    PARTITION,
    VERSION,
    append,
    batch,
    data_request,
    decoded,
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
from waltz.errors import UnavailableError
from waltz.limits import REQUEST_BYTES, RETRY_SECONDS_MIN
from waltz.record import NewRecord, pack_records, request_id_bytes, request_id_from
from waltz.server.clients.client_connection import MessagesReceived
from waltz.server.feeding.backlog import (
    PENDING_APPEND_BYTES_MAX,
    PENDING_APPENDS_MAX,
    ResumeReading,
    StopReading,
    WorkedOff,
    request_bytes,
)
from waltz.server.feeding.feed_cache import FeedCache
from waltz.server.feeding.fetches import UNREADABLE_SECONDS, FetchRecords
from waltz.server.feeding.outbox import Send
from waltz.server.server_partition import (
    EARLY_MOUNT_SECONDS_MAX,
    RELEASE_SECONDS_MAX,
    ServerPartition,
)
from waltz.server.server_partition_events import (
    AppendToStore,
    CloseClientConnection,
    ConnectionDrained,
    ConnectionLost,
    PartitionEvent,
    PartitionRevoked,
    RecordsRead,
    ReleaseRequested,
    RequestsDropped,
    StoreReadFailed,
)
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreOpened
from waltz.types import Generation, SessionId
from waltz.wire.before_batches import joined
from waltz.wire.client_protocol import (
    AppendRequest,
    ClientMessage,
    FeedData,
    FeedSuspended,
    FlushResponse,
    HighWaterMarkResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    MountState,
    TransactionDataResponse,
)
from waltz.wire.header_columns import header_columns

READY = MountResponse(request_id(), MountState.READY)
NOT_READY = MountResponse(request_id(), MountState.NOT_READY)
CLIENT_AHEAD = MountResponse(request_id(), MountState.CLIENT_AHEAD)


def opened(mark: int, session: int = 0) -> StoreOpened:
    return StoreOpened(SessionId(session), tid(mark))


class Bench:
    """A partition and its store, which holds appends until the test decides them."""

    def __init__(self, mark: int | None = -1, generation: int = 1) -> None:
        self.cache = FeedCache()
        self.full: set[int] = set()
        self.machine = ServerPartition(PARTITION, Generation(generation), self.cache, self.full)
        self.worked_off: Counter[int] = Counter()
        self.store: list[NewRecord] = []
        self.mark = -1 if mark is None else mark
        self.now = 0.0
        self.heard: dict[int, list[object]] = {}
        self.versions: dict[int, int] = {}
        self.reads: list[FetchRecords] = []
        self.others: list[object] = []
        if mark is not None:
            self.step(opened(mark))

    def step(self, *events: PartitionEvent) -> dict[int, list[object]]:
        """Return what each connection hears in this step."""
        heard: dict[int, list[object]] = {}
        for event in events:
            if isinstance(event, MessagesReceived):
                sender = event.peer
                self.versions[sender.connection_id] = 5 if sender.has_lasting_sequence else VERSION
        for effect in self.machine.step(events, self.now):
            match effect:
                case Send(connection_id, parts):
                    assert connection_id not in heard, "one write per connection and step"
                    version = self.versions[connection_id]
                    told = [message for part in parts for message in decoded(part, version)]
                    if told:
                        heard[connection_id] = told
                case AppendToStore(records):
                    self.store += records
                case FetchRecords():
                    self.reads.append(effect)
                case WorkedOff(connection_id, byte_count):
                    self.worked_off[connection_id] += byte_count
                case _:
                    self.others.append(effect)
        self.machine.check_invariants()
        self.cache.check_invariants()
        return heard

    def say(self, *messages: ClientMessage, connection: int = 1, client: int = 7,
            sequence: int = 0, version: int = VERSION) -> list[object]:  # fmt: skip
        """What the connection hears at once."""
        sender = peer(connection, client, sequence, version)
        return self.step(received(sender, *messages)).get(connection, [])

    def commit(self, count: int | None = None) -> dict[int, list[object]]:
        count = len(self.store) if count is None else count
        done, self.store = self.store[:count], self.store[count:]
        committed = pack_records(tid(self.mark + 1), done)
        self.mark += count
        return self.step(Committed(committed))

    def fail(self, count: int) -> dict[int, list[object]]:
        del self.store[:count]
        return self.step(AppendsFailed(count))

    def stored(self) -> list[int]:
        return [request_id_from(record.request_id).sequence_number for record in self.store]


def mounted(mark: int = -1) -> Bench:
    """A partition on which connection 1 of client 7 is mounted and fed."""
    bench = Bench(mark)
    assert bench.say(mount(mark)) == [READY]
    bench.say(feed_request(mark))
    return bench


# Mounting


def wait_in_vain(bench: Bench) -> dict[int, list[object]]:
    """What is heard when the time is up for which a mount waits for the store."""
    assert bench.machine.deadline == bench.now + EARLY_MOUNT_SECONDS_MAX
    bench.now = bench.machine.deadline
    return bench.step()


def test_mount_before_the_store_is_open_is_answered_when_it_is() -> None:
    """SV-30, SV-31: nobody asks again while a partition that has moved is ready."""
    bench = Bench(None)
    assert bench.say(mount()) == []
    assert bench.say(mount(client=8), connection=2, client=8) == []
    assert bench.step(opened(-1)) == {1: [READY], 2: [mount_ready(8)]}
    assert bench.machine.deadline is None
    assert bench.worked_off == {1: REQUEST_BYTES, 2: REQUEST_BYTES}


def test_mount_of_a_store_that_does_not_open_is_not_ready() -> None:
    """CI-25, SV-30: in bounded time, also after a session that has ended."""
    bench = Bench(None)
    assert bench.say(mount()) == []
    assert wait_in_vain(bench) == {1: [NOT_READY]}
    bench.step(opened(-1))
    assert bench.say(mount()) == [READY]
    bench.step(StoreClosed("a replica was lost"))
    assert bench.say(mount(sequence=2)) == []
    assert wait_in_vain(bench) == {
        1: [MountResponse(request_id(7, 2), MountState.NOT_READY)],
    }
    assert bench.worked_off == {1: 3 * REQUEST_BYTES}


def test_of_the_mounts_that_wait_the_last_of_a_connection_counts() -> None:
    bench = Bench(None)
    bench.say(mount())
    bench.say(mount(sequence=2))
    bench.say(mount(client=8), connection=2, client=8)
    bench.step(ConnectionLost(2))
    assert bench.step(opened(-1)) == {1: [MountResponse(request_id(7, 2), MountState.READY)]}
    assert bench.worked_off == {1: 2 * REQUEST_BYTES, 2: REQUEST_BYTES}


def test_mounts_that_wait_when_the_partition_goes_are_answered() -> None:
    """SV-03, H3."""
    bench = Bench(None)
    bench.say(mount())
    assert bench.step(PartitionRevoked(comes_back=False)) == {1: [NOT_READY]}
    assert bench.machine.closed


def test_feed_comes_before_the_mount_response() -> None:
    """CS-08, CS-11: client at -1, log of 3."""
    bench = Bench(2)
    bench.cache.add(PARTITION, batch(0, 3))
    assert bench.say(mount(-1)) == [*fed(0, 3), READY]


def test_client_ahead_of_the_log_is_told_and_not_fed() -> None:
    """CS-12."""
    bench = Bench(9)
    assert bench.say(mount(1000)) == [CLIENT_AHEAD]


@pytest.mark.parametrize("mark", [-1, 9, 1000])
def test_client_of_a_later_owner_is_not_mounted(mark: int) -> None:
    """It is this server that is out of date. Called ahead, the client would give the partition up
    for good; mounted, it would take what the later owner has committed for not written."""
    bench = Bench(9)
    late = request_id(generation=2)
    answer = bench.say(MountRequest(late, tid(mark), 0))
    assert answer == [MountResponse(late, MountState.NOT_READY)]


def test_client_of_an_earlier_owner_is_mounted() -> None:
    bench = Bench(generation=3)
    assert bench.say(mount()) == [READY]


def test_mount_waits_for_all_earlier_appends() -> None:
    """SV-13: after the answer no earlier append of any client is undecided."""
    bench = mounted()
    bench.say(append(2), append(3))
    assert bench.say(mount(client=8), connection=2, client=8) == []
    assert 2 not in bench.commit(1)
    assert bench.commit(1)[2] == [*fed(2, 0), *feed_of([2, 3], 0), mount_ready(8)]


def mount_ready(client: int) -> MountResponse:
    return MountResponse(request_id(client), MountState.READY)


def feed_of(sequences: Iterable[int], first: int, client: int = 7) -> list[FeedData]:
    return [
        FeedData(request_id(client, sequence), tid(first + n), 0)
        for n, sequence in enumerate(sequences)
    ]


def test_mount_of_an_outranked_connection_is_not_ready() -> None:
    """CS-24, H2, H5: the original says nothing, and its client never learns."""
    bench = Bench()
    assert bench.say(mount(connection_sequence=1), sequence=1) == [READY]
    assert bench.say(mount(), connection=2, sequence=0) == [NOT_READY]
    bench.step(ConnectionLost(1))
    assert bench.say(mount(), connection=2, sequence=0) == [READY]


def test_messages_of_a_replaced_connection_do_not_count() -> None:
    """CS-24, SV-18."""
    bench = mounted()
    assert bench.say(mount(connection_sequence=1), connection=2, sequence=1) == [READY]
    assert bench.say(append(2), feed_request()) == []
    assert bench.store == []
    assert bench.others == [
        CloseClientConnection(1, "a newer connection of its client has taken its place"),
        RequestsDropped(1, "stale connection", 2),
    ]
    bench.say(append(3), connection=2, sequence=1)
    assert bench.commit() == {}, "the old connection's feed has ended, the new one has not asked"


def test_append_without_a_mount_is_ignored() -> None:
    bench = Bench()
    assert bench.say(append(1)) == []
    assert bench.store == []


def test_mount_below_nothing_ends_the_connection() -> None:
    bench = Bench()
    assert bench.say(mount(-2)) == []
    assert isinstance(bench.others[0], CloseClientConnection)


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


# Ending


def test_revoked_partition_answers_what_waits_and_closes() -> None:
    """SV-03, H3."""
    bench = mounted()
    bench.say(append(2))
    bench.say(mount(client=8), data_request(0, client=8), flush(3, 8), connection=2, client=8)
    heard = bench.step(PartitionRevoked(comes_back=False))
    assert heard == {2: [MountResponse(request_id(8), MountState.NOT_READY)]}
    assert bench.machine.closed
    assert bench.others == []


def test_partition_that_comes_back_cuts_off_its_clients() -> None:
    """Clients do not mount again for a higher generation alone."""
    bench = mounted()
    bench.step(PartitionRevoked(comes_back=True))
    (closing,) = bench.others
    assert isinstance(closing, CloseClientConnection)
    assert closing.connection_id == 1


def test_released_partition_closes_when_all_is_decided() -> None:
    """SV-31."""
    bench = mounted()
    bench.say(append(2), flush(2))
    bench.step(ReleaseRequested())
    assert not bench.machine.closed
    bench.say(append(3))
    assert bench.stored() == [2]
    heard = bench.commit()
    assert heard == {1: [FlushResponse(request_id(7, 2), tid(0)), *feed_of([2], 0)]}
    assert bench.machine.closed


def test_released_partition_does_not_wait_for_ever() -> None:
    bench = mounted()
    bench.say(append(2))
    bench.step(ReleaseRequested())
    assert bench.machine.deadline == RELEASE_SECONDS_MAX
    bench.now = RELEASE_SECONDS_MAX
    bench.step()
    assert bench.machine.closed


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
        self.hear({connection: self.bench.say(new, connection=connection, client=client)})

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
