"""Ranges of records, from the cache and from the store, within the bounds of who asks."""

from __future__ import annotations

import pytest

from tests.server.builders import PARTITION, batch, mount, request_id, tid
from tests.server.partition_bench import Bench
from waltz.limits import RECORD_LIST_RECORDS_MAX, WRITE_BUFFER_BYTES_HIGH
from waltz.record import empty_batch, join_batches
from waltz.server.clients.client_connection import PARTITION_NOT_READY, answer_without_partition
from waltz.server.feeding.transaction_data import HEADER_PARTS_MAX
from waltz.server.server_partition_events import ConnectionDrained, RecordsRead, StoreReadFailed
from waltz.wire.batch_protocol import HeaderBlock, HeadersRequest, ReadRequest, RecordBlock
from waltz.wire.header_columns import header_columns, no_headers

MANY = 1 << 30


def read(first: int, count: int = 1000, size: int = MANY, sequence: int = 1) -> ReadRequest:
    return ReadRequest(request_id(sequence=sequence), tid(first), count, size)


def bench(mark: int = 9) -> Bench:
    made = Bench(mark)
    made.cache.add(PARTITION, batch(0, 4))
    made.cache.add(PARTITION, batch(4, 3))
    made.cache.add(PARTITION, batch(8, 2))
    return made


def records(made: Bench, request: ReadRequest) -> range:
    (block,) = made.say(request, version=5)
    assert isinstance(block, RecordBlock)
    assert (block.request_id, block.error) == (request.request_id, None)
    assert block.high_water_mark == made.mark
    first = block.records.first_transaction_id
    assert block.records == batch(first, len(block.records))
    return range(first, block.records.next_transaction_id)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (read(0), range(7)),
        (read(2), range(2, 7)),
        (read(2, 3), range(2, 5)),
        (read(2, 0), range(2, 3)),
        (read(2, -5, -5), range(2, 3)),
        (read(0, size=3 * 48), range(3)),
        (read(0, size=5 * 48 + 47), range(5)),
        (read(0, size=4 * 48), range(4)),
        (read(8), range(8, 10)),
        (read(10), range(10, 10)),
        (read(99), range(99, 99)),
    ],
)
def test_what_lies_side_by_side_in_the_cache_comes_as_one(
    request_: ReadRequest, expected: range
) -> None:
    """B-6: as it lies on disk, no mount needed."""
    assert records(bench(), request_) == expected


def test_what_is_not_in_the_cache_is_read_from_the_store() -> None:
    """SV-17."""
    made = bench()
    assert made.say(read(7), version=5) == []
    (fetch,) = made.reads
    assert (fetch.first_transaction_id, fetch.count_max) == (7, 1)
    (heard,) = made.step(RecordsRead(tid(7), batch(7, 1))).values()
    assert heard == [
        RecordBlock(request_id(), tid(9), None, join_batches([batch(7, 1), batch(8, 2)]))
    ]


def test_what_cannot_be_read_is_told() -> None:
    made = bench()
    made.say(read(7), version=5)
    (heard,) = made.step(StoreReadFailed(tid(7), "no replica")).values()
    assert heard == [RecordBlock(request_id(), tid(-1), "no replica", empty_batch(tid(7)))]


def test_a_server_without_the_partition_or_its_store_says_so() -> None:
    """SV-30."""
    absent = RecordBlock(request_id(), tid(-1), PARTITION_NOT_READY, empty_batch(tid(3)))
    assert answer_without_partition(read(3)) == absent
    assert Bench(None).say(read(3), version=5) == [absent]
    (negative,) = bench().say(read(-1), version=5)
    assert isinstance(negative, RecordBlock)
    assert negative.error is not None


def test_blocks_are_bounded_in_records_and_a_full_connection_gets_none() -> None:
    """CS-24."""
    made = Bench(RECORD_LIST_RECORDS_MAX + 1)
    made.cache.add(PARTITION, batch(0, RECORD_LIST_RECORDS_MAX + 1, 1))
    (block,) = made.say(read(0, MANY), version=5)
    assert isinstance(block, RecordBlock)
    assert len(block.records) == RECORD_LIST_RECORDS_MAX
    made.full.add(1)
    assert made.say(read(0, 5), version=5) == []
    made.full.clear()
    (heard,) = made.step(ConnectionDrained(1)).values()
    assert len(heard) == 1


def headers(first: int, count: int = 1000, sequence: int = 1) -> HeadersRequest:
    return HeadersRequest(request_id(sequence=sequence), tid(first), count)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (headers(0), range(7)),
        (headers(2), range(2, 7)),
        (headers(2, 3), range(2, 5)),
        (headers(2, 0), range(2, 3)),
        (headers(2, -5), range(2, 3)),
        (headers(8), range(8, 10)),
        (headers(10), range(10, 10)),
        (headers(99), range(99, 99)),
    ],
)
def test_headers_side_by_side_in_the_cache_come_as_one(
    request_: HeadersRequest, expected: range
) -> None:
    made = bench()
    (block,) = made.say(request_, version=5)
    assert isinstance(block, HeaderBlock)
    assert (block.request_id, block.error) == (request_.request_id, None)
    assert block.high_water_mark == made.mark
    found = block.headers
    assert range(found.first_transaction_id, found.next_transaction_id) == expected
    if expected:
        whole = batch(expected.start, len(expected))
        assert found.request_ids().tolist() == whole.request_ids().tolist()
        assert found.headers().tolist() == whole.headers().tolist()


def test_headers_of_records_and_headers_in_the_cache_come_as_one() -> None:
    made = bench()
    made.cache.add(PARTITION, header_columns(batch(7, 1)))
    (block,) = made.say(headers(1), version=5)
    assert isinstance(block, HeaderBlock)
    found = block.headers
    assert (found.first_transaction_id, found.next_transaction_id) == (1, 10)
    assert found.request_ids().tolist() == batch(1, 9).request_ids().tolist()
    assert found.headers().tolist() == batch(1, 9).headers().tolist()


def test_headers_that_are_not_in_the_cache_are_read_without_data_and_no_further_than_asked() -> (
    None
):
    made = Bench(5000)
    assert made.say(headers(7, 20), version=5) == []
    (fetch,) = made.reads
    assert (fetch.first_transaction_id, fetch.count_max, fetch.with_data) == (7, 20, False)
    (heard,) = made.step(
        RecordsRead(tid(7), header_columns(batch(7, 20)), with_data=False)
    ).values()
    assert heard == [HeaderBlock(request_id(), tid(5000), None, header_columns(batch(7, 20)))]


def test_headers_that_cannot_be_read_are_told_and_nothing_else_is() -> None:
    made = bench()
    made.say(headers(7), version=5)
    made.say(read(7, sequence=2), version=5)
    (heard,) = made.step(StoreReadFailed(tid(7), "no replica", with_data=False)).values()
    assert heard == [HeaderBlock(request_id(), tid(-1), "no replica", no_headers(tid(7)))]


def test_a_failed_read_of_records_is_told_to_a_request_for_headers_that_waits_for_it() -> None:
    made = bench()
    made.say(read(7), version=5)
    assert made.say(headers(7, sequence=2), version=5) == []
    (heard,) = made.step(StoreReadFailed(tid(7), "no replica")).values()
    assert [type(each) for each in heard] == [RecordBlock, HeaderBlock]


def test_a_server_without_the_partition_has_no_headers() -> None:
    absent = HeaderBlock(request_id(), tid(-1), PARTITION_NOT_READY, no_headers(tid(3)))
    assert answer_without_partition(headers(3)) == absent
    assert Bench(None).say(headers(3), version=5) == [absent]
    (negative,) = bench().say(headers(-1), version=5)
    assert isinstance(negative, HeaderBlock)
    assert negative.error is not None


def test_headers_are_bounded_in_records_and_in_batches() -> None:
    made = Bench(RECORD_LIST_RECORDS_MAX + 1)
    made.cache.add(PARTITION, batch(0, RECORD_LIST_RECORDS_MAX + 1, 1))
    (block,) = made.say(headers(0, MANY), version=5)
    assert isinstance(block, HeaderBlock)
    assert len(block.headers) == RECORD_LIST_RECORDS_MAX
    small = Bench(HEADER_PARTS_MAX)
    for number in range(HEADER_PARTS_MAX + 1):
        small.cache.add(PARTITION, batch(number, 1))
    (block,) = small.say(headers(0, MANY), version=5)
    assert isinstance(block, HeaderBlock)
    assert len(block.headers) == HEADER_PARTS_MAX


def test_a_read_of_no_records_or_fewer_asks_the_store_for_one() -> None:
    for request_ in (read(7, -5), headers(7, 0)):
        made = bench()
        made.say(request_, version=5)
        (fetch,) = made.reads
        assert fetch.count_max == 1


def test_one_step_hands_out_little_more_than_a_buffer() -> None:
    made = Bench(9)
    made.cache.add(PARTITION, batch(0, 10, WRITE_BUFFER_BYTES_HIGH))
    asked = [read(n, 1, sequence=n + 1) for n in range(5)]
    heard = made.say(mount(9), *asked, version=5)
    assert sum(isinstance(each, RecordBlock) for each in heard) == 1
