"""What is asked for ahead and what is taken out, whatever the server hands out at a time."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.builders import batch
from waltz.errors import NotFoundError, RemoteProtocolError, UnavailableError
from waltz.limits import READER_FETCH_ROWS_MAX, READER_FETCHES_IN_FLIGHT_MAX
from waltz.reader.range_blocks import BlockCursor
from waltz.record import empty_batch
from waltz.types import PartitionId, TransactionId
from waltz.wire.batch_protocol import HeaderBlock, HeadersRequest, ReadRequest, RecordBlock
from waltz.wire.header_columns import HeaderColumns, header_columns, no_headers

ALL = 3 * READER_FETCH_ROWS_MAX // 2
LOG = batch(0, ALL, 8)


def cursor(first: int, end: int) -> BlockCursor:
    return BlockCursor(PartitionId(3), first, end)


def answer(request: ReadRequest, count_max: int) -> RecordBlock:
    """What a server says that hands out at most so many records at a time."""
    first = request.first_transaction_id
    records = LOG.slice(first, min(count_max, request.count_max))
    if not len(records):
        records = empty_batch(first)
    return RecordBlock(request.request_id, TransactionId(ALL - 1), None, records)


@given(st.integers(0, ALL), st.integers(0, ALL), st.data())
def test_a_range_comes_whole_and_in_order_however_it_is_cut(
    first: int, length: int, data: st.DataObject
) -> None:
    end = min(first + length, ALL)
    made = cursor(first, end)
    waiting: deque[ReadRequest] = deque()
    found: list[int] = []
    while not made.done:
        for request in made.ask():
            assert isinstance(request, ReadRequest)
            waiting.append(request)
        assert 1 <= len(waiting) <= READER_FETCHES_IN_FLIGHT_MAX
        waiting.rotate(-data.draw(st.integers(0, len(waiting) - 1)))
        size = data.draw(st.sampled_from([7, 100, READER_FETCH_ROWS_MAX]))
        for records in made.receive([answer(waiting.popleft(), size + length // 20)]):
            found += range(records.first_transaction_id, records.next_transaction_id)
    assert found == list(range(first, end))
    assert made.position == max(first, end)


def answer_with_headers(request: HeadersRequest, count_max: int) -> HeaderBlock:
    first = request.first_transaction_id
    records = LOG.slice(first, min(count_max, request.count_max))
    found = header_columns(records) if len(records) else no_headers(first)
    return HeaderBlock(request.request_id, TransactionId(ALL - 1), None, found)


@given(st.integers(0, ALL), st.integers(0, ALL), st.data())
def test_headers_of_a_range_come_whole_and_in_order_however_it_is_cut(
    first: int, length: int, data: st.DataObject
) -> None:
    end = min(first + length, ALL)
    made = BlockCursor(PartitionId(3), first, end, with_data=False)
    waiting: deque[HeadersRequest] = deque()
    found: list[int] = []
    while not made.done:
        for request in made.ask():
            assert isinstance(request, HeadersRequest)
            assert request.first_transaction_id + request.count_max <= end
            waiting.append(request)
        assert 1 <= len(waiting) <= READER_FETCHES_IN_FLIGHT_MAX
        waiting.rotate(-data.draw(st.integers(0, len(waiting) - 1)))
        size = data.draw(st.sampled_from([7, 100, READER_FETCH_ROWS_MAX]))
        request = waiting.popleft()
        for headers in made.receive([answer_with_headers(request, size + length // 20)]):
            assert isinstance(headers, HeaderColumns)
            found += range(headers.first_transaction_id, headers.next_transaction_id)
    assert found == list(range(first, end))


def test_headers_are_asked_for_ahead_from_the_beginning() -> None:
    made = BlockCursor(PartitionId(3), 5, 100_005, with_data=False)
    asked = [
        (each.first_transaction_id, each.count_max)
        for each in made.ask()
        if isinstance(each, HeadersRequest)
    ]
    assert asked == [(5 + 10_000 * number, 10_000) for number in range(4)]


def test_records_are_no_answer_to_a_request_for_headers() -> None:
    made = BlockCursor(PartitionId(3), 1, 3, with_data=False)
    (request,) = made.ask()
    assert isinstance(request, HeadersRequest)
    records = LOG.slice(TransactionId(1), 2)
    assert made.receive([RecordBlock(request.request_id, TransactionId(9), None, records)]) == []
    too_many = header_columns(LOG.slice(TransactionId(1), 3))
    with pytest.raises(RemoteProtocolError, match="3 records in answer to a request for 2"):
        made.receive([HeaderBlock(request.request_id, TransactionId(9), None, too_many)])


def test_a_log_that_ends_before_the_range_is_an_error() -> None:
    made = cursor(ALL - 1, ALL + 1)
    (request,) = made.ask()
    assert isinstance(request, ReadRequest)
    assert len(made.receive([answer(request, 1)])) == 1
    (request,) = made.ask()
    assert isinstance(request, ReadRequest)
    with pytest.raises(NotFoundError, match=f"ends before transaction {ALL}; .* to {ALL}"):
        made.receive([answer(request, 1)])


def test_a_server_that_cannot_read_says_so() -> None:
    made = cursor(0, 5)
    (request,) = made.ask()
    assert isinstance(request, ReadRequest)
    failed = RecordBlock(
        request.request_id, TransactionId(-1), "no replica", empty_batch(TransactionId(0))
    )
    with pytest.raises(UnavailableError, match="no replica"):
        made.receive([failed])


@pytest.mark.parametrize("first", [0, 1])
def test_an_answer_to_nothing_that_was_asked_is_refused(first: int) -> None:
    made = cursor(1, 3)
    (request,) = made.ask()
    assert isinstance(request, ReadRequest)
    records = LOG.slice(TransactionId(first), 3)
    with pytest.raises(RemoteProtocolError, match="request"):
        made.receive([RecordBlock(request.request_id, TransactionId(9), None, records)])
