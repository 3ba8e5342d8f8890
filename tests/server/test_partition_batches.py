"""The machine of one partition and clients of version 5: batches in, batches out, no silence."""

from __future__ import annotations

import pytest

from tests.server.builders import (
    PARTITION,
    append,
    batch,
    feed_request,
    flush,
    mount,
    peer,
    received,
    request_id,
    tid,
    together,
)
from tests.server.partition_bench import READY, Bench, opened
from waltz.limits import WRITE_BUFFER_BYTES_HIGH
from waltz.server.server_partition import RELEASE_SECONDS_MAX, REPEATED
from waltz.server.server_partition_events import (
    CloseClientConnection,
    ConnectionLost,
    PartitionRevoked,
    ReleaseRequested,
    RequestsDropped,
)
from waltz.store.events import AppendsFailed, StoreClosed
from waltz.types import RequestId, TransactionId
from waltz.wire.batch_protocol import AppendRejected, DataWanted, FeedBatch, Reason, Rejection
from waltz.wire.client_protocol import ClientMessage, FlushResponse, MountResponse, MountState

NONE = TransactionId(-1)


class Batches(Bench):
    """Connection 1 of client 7 speaks version 5."""

    def hear(self, *messages: ClientMessage) -> list[object]:
        return self.say(*messages, version=5)


def mounted(mark: int = -1) -> Batches:
    bench = Batches(mark)
    assert bench.hear(mount(mark)) == [READY]
    bench.hear(feed_request(mark))
    return bench


def told(first: int, length: int, reason: Reason, at: int = -1, lock: int = 0) -> AppendRejected:
    return AppendRejected(
        request_id(sequence=first), (Rejection(first, length, reason, tid(at), lock),)
    )


def in_feed(message: object) -> list[tuple[int, RequestId]]:
    assert isinstance(message, FeedBatch)
    assert message.partition_id == PARTITION
    return list(enumerate(message.feed.request_ids(), message.first_transaction_id))


def test_a_batch_is_stored_in_order_and_comes_back_as_one() -> None:
    """CS-11, CS-15."""
    bench = mounted()
    assert bench.hear(together(append(2), append(3), append(4))) == []
    assert bench.stored() == [2, 3, 4]
    (heard,) = bench.commit().values()
    assert [in_feed(each) for each in heard] == [
        [(n, request_id(sequence=n + 2)) for n in range(3)]
    ]


def test_a_refused_lock_is_told_with_the_lock_and_who_has_it() -> None:
    """PM-20, PM-24."""
    bench = mounted()
    bench.hear(together(append(2, write=[1]), append(3, write=[5])))
    bench.commit()
    answer = bench.hear(together(append(4, 0, read=[1, 5]), append(5, 1), append(6, -1, write=[1])))
    assert answer == [
        AppendRejected(
            request_id(sequence=4),
            (
                Rejection(4, 1, Reason.LOCKED, tid(1), 5),
                Rejection(6, 1, Reason.LOCKED, tid(0), 1),
            ),
        )
    ]
    assert bench.stored() == [5]


def test_a_stale_generation_is_told() -> None:
    bench = mounted()
    old = together(append(2, generation=0), append(3, generation=0))
    stale = Rejection(2, 2, Reason.STALE_GENERATION, NONE, 0)
    assert bench.hear(old) == [AppendRejected(request_id(sequence=2, generation=0), (stale,))]
    assert bench.worked_off[1] > 0


def test_a_connection_that_does_not_speak_for_its_client_is_told() -> None:
    """CS-24."""
    bench = mounted()
    newer = peer(2, sequence=1, version=5)
    bench.step(received(newer, mount(connection_sequence=1)))
    assert bench.hear(together(append(2), append(3))) == [told(2, 2, Reason.NOT_MOUNTED)]
    assert Batches().hear(together(append(2))) == [told(2, 1, Reason.NOT_MOUNTED)]


def test_what_a_change_of_session_has_lost_is_told() -> None:
    """Without it the client would have to ask with a flush."""
    bench = mounted()
    bench.hear(together(append(2), append(3), append(4)))
    bench.say(append(2, client=8), connection=2, client=8)
    (heard,) = bench.commit(1).values()
    assert [in_feed(each) for each in heard] == [[(0, request_id(sequence=2))]]
    bench.step(StoreClosed("a replica was lost"))
    assert bench.step(AppendsFailed(2), opened(0, session=1)) == {
        1: [told(3, 2, Reason.NOT_COMMITTED)]
    }


def test_a_server_that_stops_takes_nothing_and_says_so() -> None:
    """SV-31."""
    bench = mounted()
    bench.hear(together(append(2)))
    bench.step(ReleaseRequested())
    assert bench.hear(together(append(3))) == [told(3, 1, Reason.STOPPING)]


@pytest.mark.parametrize("comes_back", [False, True])
def test_what_waits_for_a_lock_when_the_partition_goes_is_told_what_the_store_has_is_not(
    comes_back: bool,
) -> None:
    """The next owner decides what the store has; nobody else will ever see what it has not."""
    bench = mounted()
    bench.hear(together(append(2, write=[1]), append(3, write=[1]), append(4)))
    assert bench.step(PartitionRevoked(comes_back)) == {1: [told(3, 2, Reason.NOT_HERE)]}


def test_a_release_that_takes_too_long_tells_who_waits() -> None:
    bench = mounted()
    bench.hear(together(append(2, write=[1]), append(3, write=[1])))
    bench.step(ReleaseRequested())
    bench.now += RELEASE_SECONDS_MAX
    assert bench.step() == {1: [told(3, 1, Reason.NOT_HERE)]}


def test_one_after_the_other_and_together_keep_their_order() -> None:
    """CI-15: version 5 knows the append request, too."""
    bench = mounted()
    bench.hear(append(2), together(append(3), append(4)), append(5), flush(5), together(append(6)))
    assert bench.stored() == [2, 3, 4, 5, 6]
    assert not any(isinstance(each, FlushResponse) for each in bench.commit(3)[1])
    heard = bench.commit()[1]
    assert heard[0] == FlushResponse(request_id(sequence=5), tid(4))


def test_data_come_along_for_those_who_want_them() -> None:
    """B-6: saves a round trip for each body."""
    bench = Batches(2)
    bench.cache.add(PARTITION, batch(0, 3))
    heard = bench.hear(DataWanted(request_id()), mount(-1))
    (feed, ready) = heard
    assert ready == READY
    assert isinstance(feed, FeedBatch)
    assert feed.feed.bodies is not None
    assert feed.feed.bodies.data == [b"%08d" % n for n in range(3)]
    (other,) = bench.say(mount(-1, client=8), connection=2, client=8, version=5)[:1]
    assert isinstance(other, FeedBatch)
    assert other.feed.bodies is None


def test_data_of_a_feed_are_bounded_per_step_but_one_transaction_always_goes() -> None:
    """CS-24."""
    bench = Batches(9)
    bench.cache.add(PARTITION, batch(0, 10, WRITE_BUFFER_BYTES_HIGH // 2))
    heard = bench.hear(DataWanted(request_id()), mount(-1))
    counts = []
    while heard[-1] != READY:
        counts.append(sum(len(each.feed) for each in heard if isinstance(each, FeedBatch)))
        heard = bench.step().get(1, [])
    counts.append(sum(len(each.feed) for each in heard if isinstance(each, FeedBatch)))
    assert sum(counts) == 10
    assert max(counts) == 1, "each takes a little more than half of the bound"


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_another_connection_repeats_is_neither_stored_nor_spoken_of(is_gone: bool) -> None:
    """LC-54, CS-24: the appends have their outcome; a refusal would have them written again."""
    bench = mounted()
    bench.hear(together(append(2), append(3)))
    bench.commit()
    if is_gone:
        bench.step(ConnectionLost(1))
    repeated = [mount(), feed_request(), together(append(2), append(3)), flush(4)]
    assert bench.say(*repeated, connection=2, version=5) == []
    assert bench.stored() == []
    assert bench.others[-2:] == [
        RequestsDropped(2, REPEATED, 4),
        CloseClientConnection(2, REPEATED),
    ]
    assert bench.machine.state(0).counters.requests_dropped == 4
    if not is_gone:
        bench.hear(together(append(5)))
        assert bench.stored() == [5], "the one that was first goes on"


def test_a_client_whose_words_came_before_it_comes_again() -> None:
    """LC-54: it is the second to say them, and takes the next sequence number."""
    bench = mounted()
    bench.hear(together(append(2)))
    bench.say(mount(), together(append(2)), connection=2, version=5)
    again = mount(sequence=3, connection_sequence=1)
    assert bench.say(again, connection=3, sequence=1, version=5) == []
    *fed, ready = bench.commit()[3]
    assert [in_feed(each) for each in fed] == [[(0, request_id(sequence=2))]]
    assert ready == MountResponse(request_id(sequence=3), MountState.READY)
    assert bench.hear(together(append(4))) == [told(4, 1, Reason.NOT_MOUNTED)]
    assert bench.stored() == []
