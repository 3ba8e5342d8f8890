"""Appends as columns: the same whatever messages brought them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.server.builders import append, request_id, together
from waltz.record import NewRecord, request_id_bytes
from waltz.server.appends.appends import (
    Appends,
    InFlight,
    join_appends,
    locked_out,
    of_batches,
    refused_all,
    rejected,
)
from waltz.server.feeding.backlog import request_bytes
from waltz.types import TransactionId
from waltz.wire.batch_protocol import AppendRejected, Reason, Rejection
from waltz.wire.client_protocol import AppendRequest

NONE = TransactionId(-1)
REQUESTS = [
    append(2, 5, write=[1, -2], read=[3], data=b"one"),
    append(3, 6, append=[4], data=b""),
    append(4, -1, data=b"three"),
]


def content(appends: Appends) -> list[object]:
    return [
        appends.arrivals.tolist(),
        appends.senders.connection_ids.tolist(),
        appends.senders.request_ids.tolist(),
        appends.locks.requests(),
        list(appends.records),
    ]


def test_appends_in_one_message_and_in_many_are_the_same() -> None:
    at_once = of_batches([together(*REQUESTS)], 9, 4)
    assert content(of_batches([*map(together, REQUESTS)], 9, 4)) == content(at_once)
    assert at_once.arrivals.tolist() == [4, 5, 6]
    assert list(at_once.records) == [
        NewRecord(request_id_bytes(r.request_id), r.header, r.data, r.checksum) for r in REQUESTS
    ]


def test_few_appends_of_a_message_are_taken_as_many_are() -> None:
    many = [append(5 + n, n, write=[n] * (n % 3), read=[-n], data=b"%d" % n) for n in range(100)]
    whole = of_batches([together(*many)], 9, 1)
    for first, count in ((0, 1), (1, 1), (2, 5), (3, 16), (4, 17)):
        rows = np.zeros(len(many), np.bool_)
        rows[first : first + count] = True
        few = of_batches([together(*many[first : first + count])], 9, first + 1)
        expected = whole.pick(rows)
        assert content(few) == content(expected)
        assert few.senders.byte_counts.tolist() == expected.senders.byte_counts.tolist()
        assert few.arrivals.dtype == expected.arrivals.dtype
        assert few.senders.request_ids.dtype == expected.senders.request_ids.dtype


def test_appends_take_what_their_messages_were_counted_with() -> None:
    """CS-24."""
    messages = [*map(together, REQUESTS)]
    taken = of_batches(messages, 9, 1).senders.byte_counts
    assert taken.tolist() == [request_bytes(each) for each in messages]
    assert taken.sum() == request_bytes(together(*REQUESTS))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_what_is_joined_and_picked_is_what_it_was(sizes: list[int], data: st.DataObject) -> None:
    parts = []
    requests: list[AppendRequest] = []
    for size in sizes:
        some = [append(len(requests) + n, n, write=[n], data=b"%d" % n) for n in range(size)]
        messages = [together(*some)] if data.draw(st.booleans()) else [*map(together, some)]
        parts.append(of_batches(messages, 1, len(requests)))
        requests += some
    whole = join_appends(parts)
    assert content(whole) == content(of_batches([together(*requests)], 1, 0))
    rows = data.draw(st.lists(st.booleans(), min_size=len(whole), max_size=len(whole)))
    picked = whole.pick(np.array(rows))
    assert picked.arrivals.tolist() == np.flatnonzero(rows).tolist()
    chosen = [together(each) for each, is_in in zip(requests, rows, strict=True) if is_in]
    if chosen:
        assert content(picked)[2:] == content(of_batches(chosen, 1, 0))[2:]


def test_outcomes_may_cut_what_is_in_flight_anywhere() -> None:
    in_flight = InFlight()
    in_flight.add(of_batches([together(*REQUESTS)], 1, 1).senders)
    in_flight.add(join_appends([of_batches([together(*REQUESTS)], c, 4) for c in (1, 2)]).senders)
    decided = [
        (connection_id, run.request_ids[:, 3].tolist())
        for count in (2, 3, 4)
        for connection_id, run in in_flight.decide(count)
    ]
    assert decided == [(1, [2, 3]), (1, [4]), (1, [2, 3]), (1, [4]), (2, [2, 3, 4])]
    assert (len(in_flight), in_flight.byte_count) == (0, 0)


def test_refusals_are_told_in_ranges() -> None:
    later = together(append(9, client=8), append(10, client=8), append(12, client=8))
    appends = join_appends([of_batches([together(*REQUESTS)], 2, 4), of_batches([later], 3, 7)])
    assert list(rejected(appends.senders, Reason.NOT_COMMITTED)) == [
        (
            2,
            AppendRejected(request_id(7, 2), (Rejection(2, 3, Reason.NOT_COMMITTED, NONE, 0),)),
        ),
        (
            3,
            AppendRejected(request_id(8, 9), (Rejection(9, 3, Reason.NOT_COMMITTED, NONE, 0),)),
        ),
    ]
    assert refused_all(later, Reason.STOPPING) == AppendRejected(
        request_id(8, 9), (Rejection(9, 3, Reason.STOPPING, NONE, 0),)
    )


def test_each_connection_is_told_of_its_locks_together() -> None:
    """PM-24."""
    appends = join_appends([of_batches([together(*REQUESTS)], c, 4) for c in (1, 2)])
    refused = appends.pick(np.array([True, False, False, True, False, True]))
    locked = [(TransactionId(8), 1), (TransactionId(8), 1), (TransactionId(9), 7)]
    first = Rejection(2, 1, Reason.LOCKED, TransactionId(8), 1)
    second = Rejection(4, 1, Reason.LOCKED, TransactionId(9), 7)
    assert list(locked_out(refused.senders, locked)) == [
        (1, AppendRejected(request_id(7, 2), (first,))),
        (2, AppendRejected(request_id(7, 2), (first, second))),
    ]
