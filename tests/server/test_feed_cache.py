from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.builders import PARTITION, batch, decoded, fed, link, tid
from waltz.record import empty_batch
from waltz.server.feeding.feed_cache import BATCH_OVERHEAD_BYTES, CachedBatch, FeedCache
from waltz.types import PartitionId
from waltz.wire.before_batches import joined
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.header_columns import header_columns

OTHER = PartitionId(4)


def test_record_is_found_in_the_batch_that_has_it() -> None:
    cache = FeedCache()
    cache.add(PARTITION, batch(0, 3))
    cache.add(PARTITION, batch(3, 2))
    for number in range(5):
        entry = cache.find(PARTITION, tid(number))
        assert entry is not None
        assert entry.batch.first_transaction_id == (0 if number < 3 else 3)
    assert cache.find(PARTITION, tid(5)) is None
    assert cache.find(PARTITION, tid(-1)) is None
    assert cache.find(OTHER, tid(0)) is None
    cache.check_invariants()


def test_next_cached_is_where_a_read_may_stop() -> None:
    cache = FeedCache()
    cache.add(PARTITION, batch(10, 5))
    assert cache.next_cached(PARTITION, tid(3)) == 10
    assert cache.next_cached(PARTITION, tid(10)) is None
    assert cache.next_cached(OTHER, tid(3)) is None


def test_headers_are_for_the_feed_alone_and_make_way_for_nothing() -> None:
    cache = FeedCache()
    cache.add(PARTITION, header_columns(batch(0, 9)))
    cache.add(PARTITION, batch(4, 2))
    cache.check_invariants()
    assert cache.find(PARTITION, tid(0)) is None
    assert cache.next_cached(PARTITION, tid(0)) == 4
    assert cache.next_cached(PARTITION, tid(-1)) == 4
    assert cache.next_cached(PARTITION, tid(-1), with_data=False) == 0
    for number, first in ((0, 0), (4, 4), (6, 0)):
        entry = cache.find_headers(PARTITION, tid(number))
        assert entry is not None
        assert entry.batch.first_transaction_id == first
    assert cache.find_headers(PARTITION, tid(9)) is None
    assert cache.find_headers(OTHER, tid(0)) is None
    cache.drop(PARTITION)
    assert cache.byte_count == 0


@given(st.integers(0, 9), st.integers(1, 10))
def test_headers_are_fed_as_their_records_are(start: int, count: int) -> None:
    feeds = []
    records = batch(5, 10)
    count = min(count, 10 - start)
    for found in (records, header_columns(records)):
        cache = FeedCache()
        cache.add(PARTITION, found)
        entry = cache.find_headers(PARTITION, tid(5))
        assert entry is not None
        feeds += [cache.feed(PARTITION, entry, tid(5 + start), count).message for _ in range(2)]
    assert all(feed == feeds[0] for feed in feeds)


def test_empty_batch_leaves_no_trace() -> None:
    cache = FeedCache()
    cache.add(PARTITION, empty_batch(tid(0)))
    assert cache.byte_count == 0
    cache.check_invariants()


def test_longer_batch_replaces_a_shorter_one() -> None:
    cache = FeedCache()
    cache.add(PARTITION, batch(0, 2))
    cache.add(PARTITION, batch(0, 1))
    assert cache.find(PARTITION, tid(1)) is not None
    cache.add(PARTITION, batch(0, 4))
    assert cache.find(PARTITION, tid(3)) is not None
    cache.check_invariants()


@pytest.mark.parametrize("version", CLIENT_CODEC.versions)
def test_a_batch_is_encoded_once_per_version_and_a_part_is_fed_by_itself(version: int) -> None:
    """SV-06, SV-20."""
    cache = FeedCache()
    cache.add(PARTITION, batch(5, 10))
    entry = cache.find(PARTITION, tid(5))
    assert entry is not None
    whole = cache.feed(PARTITION, entry, tid(5), 10)
    assert joined(decoded(whole, version)) == joined(fed(5, 10))  # type: ignore[arg-type]
    again = cache.feed(PARTITION, entry, tid(5), 10)
    assert link(version).encode(again) is link(version).encode(whole)
    part = cache.feed(PARTITION, entry, tid(7), 3)
    assert joined(decoded(part, version)) == joined(fed(7, 3))  # type: ignore[arg-type]


def test_oldest_batches_of_all_partitions_leave_first() -> None:
    """SV-20, SV-21."""
    size = CachedBatch(batch(0, 1)).byte_count
    cache = FeedCache(16 * size)
    for number in range(16):
        cache.add(PARTITION if number % 2 else OTHER, batch(number, 1))
    assert cache.find(OTHER, tid(0)) is not None
    cache.add(PARTITION, batch(16, 1))
    assert cache.find(OTHER, tid(0)) is None
    assert cache.find(PARTITION, tid(1)) is None
    assert cache.find(PARTITION, tid(16)) is not None
    assert cache.byte_count <= 16 * size
    cache.check_invariants()


def test_batch_larger_than_the_cache_stays_until_the_next_one() -> None:
    cache = FeedCache(BATCH_OVERHEAD_BYTES)
    cache.add(PARTITION, batch(0, 1, size=5000))
    assert cache.find(PARTITION, tid(0)) is not None
    cache.add(PARTITION, batch(1, 1, size=5000))
    assert cache.find(PARTITION, tid(0)) is None
    assert cache.find(PARTITION, tid(1)) is not None
    cache.check_invariants()


def test_dropped_partition_gives_its_room_back() -> None:
    cache = FeedCache()
    cache.add(PARTITION, batch(0, 3))
    cache.add(OTHER, batch(0, 3))
    cache.drop(PARTITION)
    cache.drop(PARTITION)
    assert cache.find(PARTITION, tid(0)) is None
    assert cache.find(OTHER, tid(0)) is not None
    cache.check_invariants()


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 8)), max_size=40),
    st.integers(1, 8000),
)
def test_what_is_found_is_what_was_added_and_the_bound_holds(
    additions: list[tuple[int, int, int]], bytes_max: int
) -> None:
    cache = FeedCache(bytes_max)
    for partition, first, count in additions:
        cache.add(PartitionId(partition), batch(first, count))
        cache.check_invariants()
        if count:
            assert cache.find(PartitionId(partition), tid(first)) is not None
    for partition in (0, 1):
        for number in range(50):
            entry = cache.find(PartitionId(partition), tid(number))
            if entry is not None:
                assert entry.batch.slice(tid(number), 1) == batch(number, 1)


def test_looks_that_find_and_looks_that_do_not_are_counted() -> None:
    cache = FeedCache()
    cache.find(PARTITION, tid(0))
    cache.find_headers(PARTITION, tid(0))
    cache.add(PARTITION, header_columns(batch(0, 3)))
    cache.find(PARTITION, tid(0))
    assert (cache.hits, cache.misses) == (0, 3)
    cache.find_headers(PARTITION, tid(2))
    cache.add(PARTITION, batch(3, 1))
    cache.find(PARTITION, tid(3))
    assert (cache.hits, cache.misses) == (2, 3)
