from __future__ import annotations

from tests.server.builders import PARTITION, batch, tid
from waltz.limits import RECORD_LIST_RECORDS_MAX, RETRY_SECONDS_MAX, RETRY_SECONDS_MIN
from waltz.server.feeding.feed_cache import FeedCache
from waltz.server.feeding.fetches import (
    READ_AHEAD_READS,
    READ_AHEAD_RECORDS,
    READ_AHEAD_RECORDS_MAX,
    READS_IN_FLIGHT_MAX,
    UNREADABLE_MAX,
    UNREADABLE_SECONDS,
    Fetches,
    FetchRecords,
)

MARK = tid(100_000)


def test_records_that_no_replica_can_give_are_remembered_in_bounds() -> None:
    """F-20: each for a while, the oldest ones for less if there are very many."""
    fetches = Fetches(PARTITION, FeedCache())
    for number in range(UNREADABLE_MAX + 2):
        fetches.put_off(tid(number), f"lost {number}", 1.0 + number)
        fetches.check_invariants()
    assert fetches.unreadable_count == UNREADABLE_MAX
    assert fetches.unreadable(tid(1)) is None
    assert fetches.unreadable(tid(2)) == "lost 2"
    assert fetches.resumes_at == 3.0 + UNREADABLE_SECONDS
    assert not fetches.resume(2.9 + UNREADABLE_SECONDS)
    assert fetches.resume(3.0 + UNREADABLE_SECONDS)
    assert fetches.unreadable(tid(2)) is None
    fetches.fail(3.1)
    assert fetches.resumes_at == fetches.retry_at


def test_one_read_serves_all_who_want_what_it_covers() -> None:
    """SV-22."""
    fetches = Fetches(PARTITION, FeedCache())
    for number in (10, 11, 10, 10 + READ_AHEAD_RECORDS - 1):
        fetches.want(tid(number), MARK, 0.0)
    assert fetches.take_started() == [FetchRecords(tid(10), READ_AHEAD_RECORDS)]
    assert fetches.take_started() == []
    assert fetches.end(tid(10)) == range(10, 10 + READ_AHEAD_RECORDS)
    fetches.want(tid(11), MARK, 0.0)
    assert fetches.take_started() == [FetchRecords(tid(11), READ_AHEAD_RECORDS)]
    fetches.check_invariants()


def test_read_stops_at_the_mark_and_at_what_is_cached() -> None:
    cache = FeedCache()
    fetches = Fetches(PARTITION, cache)
    fetches.want(tid(10), tid(12), 0.0)
    cache.add(PARTITION, batch(25, 5))
    fetches.want(tid(20), MARK, 0.0)
    assert fetches.take_started() == [FetchRecords(tid(10), 3), FetchRecords(tid(20), 5)]


def test_whoever_goes_on_where_a_read_ended_has_more_read_for_it() -> None:
    """One old record is little to read; many in order are read many at a time, for each reader."""
    fetches = Fetches(PARTITION, FeedCache())
    places, counts = [0, 50_000], []
    for _ in range(6):
        for place in places:
            fetches.want(tid(place), MARK, 0.0)
        found = fetches.take_started()
        counts.append({read.count_max for read in found})
        places = [read.first_transaction_id + read.count_max for read in found]
        for read in found:
            fetches.end(read.first_transaction_id)
        fetches.check_invariants()
    assert counts == [
        {min(READ_AHEAD_RECORDS << turn, READ_AHEAD_RECORDS_MAX)} for turn in range(6)
    ]
    fetches.want(tid(7), MARK, 0.0)
    assert fetches.take_started() == [FetchRecords(tid(7), READ_AHEAD_RECORDS)]
    for stranger in range(90):
        fetches.want(tid(1000 * stranger), MARK, 0.0)
        for read in fetches.take_started():
            fetches.end(read.first_transaction_id)
    fetches.check_invariants()


def test_a_reader_who_goes_on_has_the_next_reads_made_while_he_is_given_the_last() -> None:
    """Not after one read: who wants a single old record is not read ahead of. Not twice either."""
    cache = FeedCache()
    fetches = Fetches(PARTITION, cache)

    def read(first: int) -> int:
        fetches.want(tid(first), MARK, 0.0)
        return come(fetches.take_started()[0])

    def come(found: FetchRecords) -> int:
        first, count = found.first_transaction_id, found.count_max
        fetches.end(first, count)
        cache.add(PARTITION, batch(first, count))
        return first + count

    second = read(0)
    fetches.go_on(tid(10), MARK, 0.0, with_data=True)
    assert fetches.take_started() == []
    third = read(second)
    for _ in range(2):
        fetches.go_on(tid(second + 1), MARK, 0.0, with_data=True)
        fetches.check_invariants()
    ahead = fetches.take_started()
    assert [each.first_transaction_id for each in ahead] == [third, third + ahead[0].count_max]
    assert len(ahead) == READ_AHEAD_READS
    fetches.go_on(tid(come(ahead[0])), tid(third + 1), 0.0, with_data=True)
    assert fetches.take_started() == [], "that is all there is"


def test_a_read_that_comes_short_is_gone_on_with_from_where_it_ends() -> None:
    fetches = Fetches(PARTITION, FeedCache())
    fetches.want(tid(0), MARK, 0.0)
    assert fetches.end(tid(0), 10) == range(READ_AHEAD_RECORDS)
    fetches.want(tid(10), MARK, 0.0)
    assert fetches.take_started()[-1] == FetchRecords(tid(10), 2 * READ_AHEAD_RECORDS)


def test_who_asks_ahead_by_himself_has_read_what_he_asks_for() -> None:
    fetches = Fetches(PARTITION, FeedCache())
    for first in (0, 700):
        fetches.want(tid(first), MARK, 0.0, count=700)
    fetches.want(tid(1400), MARK, 0.0, count=10**9)
    assert fetches.take_started() == [
        FetchRecords(tid(0), 700),
        FetchRecords(tid(700), 700),
        FetchRecords(tid(1400), RECORD_LIST_RECORDS_MAX),
    ]


def test_headers_are_read_where_no_data_are_wanted_and_records_have_them_too() -> None:
    fetches = Fetches(PARTITION, FeedCache())
    fetches.want(tid(0), MARK, 0.0, with_data=False)
    fetches.want(tid(5), MARK, 0.0, with_data=False)
    fetches.want(tid(5), MARK, 0.0)
    fetches.want(tid(READ_AHEAD_RECORDS + 1), MARK, 0.0, with_data=False)
    assert fetches.take_started() == [
        FetchRecords(tid(0), READ_AHEAD_RECORDS, with_data=False),
        FetchRecords(tid(5), READ_AHEAD_RECORDS),
    ]
    fetches.end(tid(0), with_data=False)
    assert fetches.covers(tid(5), with_data=False)
    assert not fetches.covers(tid(0), with_data=False)


def test_reads_under_way_are_bounded() -> None:
    fetches = Fetches(PARTITION, FeedCache())
    for number in range(READS_IN_FLIGHT_MAX + 3):
        fetches.want(tid(number * 1000), MARK, 0.0)
    assert len(fetches.take_started()) == READS_IN_FLIGHT_MAX
    fetches.check_invariants()


def test_failed_read_leaves_only_a_growing_pause() -> None:
    """H1."""
    fetches = Fetches(PARTITION, FeedCache())
    now, pauses = 0.0, []
    for _ in range(12):
        fetches.want(tid(5), MARK, now)
        assert len(fetches.take_started()) == 1
        fetches.end(tid(5))
        fetches.fail(now)
        fetches.want(tid(5), MARK, now)
        assert fetches.take_started() == []
        assert fetches.retry_at is not None
        pauses.append(fetches.retry_at - now)
        now = fetches.retry_at
    assert abs(pauses[0] - RETRY_SECONDS_MIN) < 1e-9
    assert max(pauses) <= RETRY_SECONDS_MAX + 1e-6
    assert pauses[-1] > 10 * pauses[0]
    fetches.succeed()
    fetches.want(tid(5), MARK, now)
    assert len(fetches.take_started()) == 1
