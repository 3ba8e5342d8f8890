from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.builders import (
    PARTITION,
    batch,
    decoded,
    fed,
    feed_request,
    request_id,
    tid,
)
from waltz.limits import FEED_FETCH_MIN, FEED_RUN_RECORDS_MAX
from waltz.server.feeding.feed import FEED_RUNS_PER_STEP_MAX, Feeds
from waltz.server.feeding.feed_cache import FeedCache
from waltz.server.feeding.fetches import Fetches, FetchRecords
from waltz.server.feeding.outbox import Outbox
from waltz.wire.client_protocol import FeedData, FeedSuspended, MountResponse, MountState
from waltz.wire.header_columns import header_columns

READY = MountResponse(request_id(), MountState.READY)
SUSPENDED = FeedSuspended(request_id())


class Bench:
    """Feeds over a log of which the cache has what is committed here."""

    def __init__(self, count: int = 0, *, cached: bool = True) -> None:
        self.cache = FeedCache()
        self.fetches = Fetches(PARTITION, self.cache)
        self.feeds = Feeds(PARTITION, self.cache, self.fetches)
        self.mark = count - 1
        self.blocked: set[int] = set()
        self.now = 0.0
        self.has_work = False
        if cached and count:
            self.cache.add(PARTITION, batch(0, count))

    def mount(self, mark: int, connection: int = 1) -> None:
        self.feeds.expect_mount(connection, request_id())
        self.feeds.mount(connection, tid(mark + 1), self.mark - mark)

    def request(self, mark: int, connection: int = 1) -> None:
        self.feeds.request(connection, feed_request(mark), tid(self.mark))

    def commit(self, count: int) -> None:
        self.cache.add(PARTITION, batch(self.mark + 1, count))
        self.mark += count
        self.feeds.wake_at_head()

    def serve(self) -> dict[int, list[object]]:
        """One step: what each connection hears."""
        outbox = Outbox()
        self.has_work = self.feeds.serve(tid(self.mark), self.blocked, outbox, self.now)
        self.feeds.check_invariants(tid(self.mark))
        return {
            send.connection_id: [m for part in send.parts for m in decoded(part)]
            for send in outbox.take()
        }

    def serve_all(self) -> dict[int, list[object]]:
        heard: dict[int, list[object]] = {}
        for _ in range(10_000):
            for connection, messages in self.serve().items():
                heard.setdefault(connection, []).extend(messages)
            if not self.has_work:
                return heard
        raise AssertionError("the feeds never come to rest")


def test_mount_feeds_exactly_what_is_missing_and_then_says_ready() -> None:
    """PM-03, SV-13, CS-11."""
    bench = Bench(10)
    bench.mount(6)
    assert bench.serve() == {1: [*fed(7, 3), READY]}
    bench.commit(5)
    assert bench.serve() == {}, "nothing more is owed until the client asks"


def test_mount_that_misses_nothing_is_ready_at_once() -> None:
    bench = Bench(10)
    bench.mount(9)
    assert bench.serve() == {1: [READY]}


def test_feed_request_before_data_grants_the_minimum() -> None:
    """SV-16: 100 records and then suspended."""
    bench = Bench()
    bench.request(-1)
    assert bench.serve() == {}
    bench.commit(60)
    assert bench.serve() == {1: fed(0, 60)}
    bench.commit(60)
    assert bench.serve() == {1: [*fed(60, FEED_FETCH_MIN - 60), SUSPENDED]}
    bench.commit(1)
    assert bench.serve() == {}


def test_feed_request_after_more_was_stored_grants_all_of_it() -> None:
    """SV-16: 200 records and then suspended."""
    bench = Bench(200)
    bench.request(-1)
    assert bench.serve() == {1: [*fed(0, 200), SUSPENDED]}


def test_next_request_goes_on_where_the_client_says() -> None:
    """CS-15."""
    bench = Bench(200)
    bench.request(-1)
    bench.serve()
    bench.request(149)
    assert bench.serve() == {1: fed(150, 50)}


def test_new_request_replaces_the_one_before() -> None:
    bench = Bench(10)
    bench.request(9)
    bench.serve()
    bench.request(4)
    assert bench.serve() == {1: fed(5, 5)}
    bench.commit(1)
    assert bench.serve() == {1: fed(10, 1)}, "fed once, not twice"


def test_each_request_is_answered_by_a_word_of_its_end() -> None:
    """A client counts what it has under way; with a word too few it would never ask again."""
    bench = Bench(10)
    for _ in range(3):
        bench.request(9)
        bench.serve()
    bench.commit(FEED_FETCH_MIN)
    assert bench.serve() == {1: [*fed(10, FEED_FETCH_MIN), SUSPENDED, SUSPENDED, SUSPENDED]}
    bench.request(9 + FEED_FETCH_MIN)
    bench.serve()
    bench.commit(FEED_FETCH_MIN)
    assert bench.serve() == {1: [*fed(10 + FEED_FETCH_MIN, FEED_FETCH_MIN), SUSPENDED]}


def test_feed_request_during_a_mount_is_served_after_it() -> None:
    bench = Bench(FEED_RUN_RECORDS_MAX + 5)
    bench.mount(-1)
    bench.serve()
    bench.request(FEED_RUN_RECORDS_MAX + 4)
    assert bench.serve_all() == {1: [*fed(FEED_RUN_RECORDS_MAX, 5), READY]}
    bench.commit(2)
    assert bench.serve() == {1: fed(FEED_RUN_RECORDS_MAX + 5, 2)}


def test_clients_at_the_same_position_get_the_very_same_bytes() -> None:
    bench = Bench()
    for connection in range(5):
        bench.request(-1, connection)
    bench.serve()
    bench.commit(7)
    outbox = Outbox()
    bench.feeds.serve(tid(bench.mark), bench.blocked, outbox, 0.0)
    runs = [send.parts[0] for send in outbox.take()]
    assert len(runs) == 5
    assert all(run is runs[0] for run in runs)


def test_run_spans_batches() -> None:
    bench = Bench()
    bench.request(-1)
    bench.serve()
    for count in (1, 2, 3):
        bench.commit(count)
    assert bench.serve() == {1: fed(0, 6)}


def test_client_far_behind_gets_one_run_per_turn() -> None:
    """SV-15."""
    bench = Bench(3 * FEED_RUN_RECORDS_MAX)
    bench.request(-1)
    assert bench.serve() == {1: fed(0, FEED_RUN_RECORDS_MAX)}
    assert bench.has_work
    assert bench.serve_all() == {
        1: [*fed(FEED_RUN_RECORDS_MAX, 2 * FEED_RUN_RECORDS_MAX), SUSPENDED]
    }


def test_many_clients_far_behind_do_not_hold_up_one_at_the_head() -> None:
    """SV-14, SV-15."""
    bench = Bench(3 * FEED_RUN_RECORDS_MAX)
    laggards = 3 * FEED_RUNS_PER_STEP_MAX
    for connection in range(2, 2 + laggards):
        bench.request(-1, connection)
    bench.request(bench.mark, connection=1)
    heard = bench.serve()
    assert len(heard) == FEED_RUNS_PER_STEP_MAX
    bench.commit(1)
    heard = bench.serve()
    assert heard[1] == fed(3 * FEED_RUN_RECORDS_MAX, 1)
    assert len(heard) == FEED_RUNS_PER_STEP_MAX + 1
    rest = bench.serve_all()
    assert all(rest[connection][-1] == SUSPENDED for connection in range(2, 2 + laggards))


def test_full_connection_is_passed_over_and_later_gets_every_record() -> None:
    """SV-19."""
    bench = Bench()
    bench.request(-1, 1)
    bench.request(-1, 2)
    bench.serve()
    bench.blocked.add(1)
    bench.commit(3)
    assert bench.serve() == {2: fed(0, 3)}
    bench.commit(3)
    assert bench.serve() == {2: fed(3, 3)}
    bench.blocked.remove(1)
    bench.feeds.resume(1)
    assert bench.serve() == {1: fed(0, 6)}


def test_old_records_are_fetched_and_then_fed() -> None:
    bench = Bench(1000, cached=False)
    bench.request(899)
    assert bench.serve() == {}
    assert bench.fetches.take_started() == [FetchRecords(tid(900), 100, with_data=False)]
    assert not bench.has_work
    bench.fetches.end(tid(900), 60, with_data=False)
    bench.cache.add(PARTITION, header_columns(batch(900, 60)))
    bench.feeds.wake_fetching()
    assert bench.serve() == {1: fed(900, 60)}
    assert bench.serve() == {}
    assert bench.fetches.take_started() == [FetchRecords(tid(960), 40, with_data=False)]


def test_removed_client_hears_nothing_more() -> None:
    """SV-17."""
    bench = Bench()
    bench.request(-1)
    bench.serve()
    bench.feeds.remove(1)
    bench.feeds.remove(1)
    bench.commit(1)
    assert bench.serve() == {}
    assert len(bench.feeds) == 0


class Watcher:
    """Clients that check what they hear and ask for more when they are told to."""

    def __init__(self, bench: Bench, starts: dict[int, int]) -> None:
        self.bench = bench
        self.expected = dict(starts)
        self.granted = {c: bench.mark + 1 - start for c, start in starts.items()}

    def serve(self) -> None:
        for connection, messages in self.bench.serve().items():
            assert connection not in self.bench.blocked
            for message in messages:
                self.hear(connection, message)

    def hear(self, connection: int, message: object) -> None:
        if isinstance(message, FeedData):
            assert message == fed(self.expected[connection], 1)[0]
            self.expected[connection] += 1
            self.granted[connection] -= 1
            assert self.granted[connection] >= 0
        else:
            assert self.granted[connection] == 0
            self.bench.request(self.expected[connection] - 1, connection)
            missed = self.bench.mark + 1 - self.expected[connection]
            self.granted[connection] = max(missed, FEED_FETCH_MIN)

    def read(self) -> None:
        """Answer the reads under way, a few records each."""
        bench = self.bench
        for read in bench.fetches.take_started():
            assert not read.with_data
            found = header_columns(batch(read.first_transaction_id, min(read.count_max, 7)))
            bench.fetches.end(read.first_transaction_id, len(found), with_data=False)
            bench.cache.add(PARTITION, found)
            bench.feeds.wake_fetching()
            self.serve()


@settings(max_examples=100)
@given(st.data())
def test_every_client_gets_every_transaction_once_and_in_order(data: st.DataObject) -> None:
    """PM-03, PM-04, SV-16, SV-19."""
    bench = Bench(data.draw(st.integers(0, 30)), cached=data.draw(st.booleans()))
    bench.cache._bytes_max = data.draw(st.sampled_from([1500, 10**9]))
    starts = {c: data.draw(st.integers(0, bench.mark + 1)) for c in (1, 2, 3)}
    for connection, start in starts.items():
        bench.mount(start - 1, connection)
    watcher = Watcher(bench, starts)
    for _ in range(data.draw(st.integers(0, 20))):
        connection = data.draw(st.integers(1, 3))
        match data.draw(st.sampled_from(["commit", "block", "resume", "read", "serve"])):
            case "commit":
                bench.commit(data.draw(st.integers(1, 40)))
            case "block":
                bench.blocked.add(connection)
            case "resume":
                bench.blocked.discard(connection)
                bench.feeds.resume(connection)
            case "read":
                watcher.read()
            case _:
                watcher.serve()
    bench.blocked.clear()
    for connection in starts:
        bench.feeds.resume(connection)
    for _ in range(500):
        watcher.serve()
        watcher.read()
    assert set(watcher.expected.values()) == {bench.mark + 1}
