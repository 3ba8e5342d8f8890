"""Appends as columns: the same whatever message brought them."""

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
    of_batch,
    of_requests,
    refused_all,
    rejected,
)
from waltz.server.feeding.backlog import request_bytes
from waltz.types import TransactionId
from waltz.wire.batch_protocol import AppendRejected, Reason, Rejection
from waltz.wire.client_protocol import AppendRequest, LockFailure

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


def test_one_by_one_and_together_are_the_same() -> None:
    apart, at_once = of_requests(REQUESTS, 9, 4), of_batch(together(*REQUESTS), 9, 4)
    assert content(apart) == content(at_once)
    assert apart.arrivals.tolist() == [4, 5, 6]
    assert list(apart.records) == [
        NewRecord(request_id_bytes(r.request_id), r.header, r.data, r.checksum) for r in REQUESTS
    ]
    assert not apart.senders.is_told.any()
    assert at_once.senders.is_told.all()


def test_appends_take_what_their_messages_were_counted_with() -> None:
    """CS-24."""
    apart, at_once = of_requests(REQUESTS, 9, 1), of_batch(together(*REQUESTS), 9, 1)
    assert apart.senders.byte_counts.tolist() == [request_bytes(each) for each in REQUESTS]
    assert at_once.senders.byte_counts.sum() == request_bytes(together(*REQUESTS))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_what_is_joined_and_picked_is_what_it_was(sizes: list[int], data: st.DataObject) -> None:
    parts = []
    requests: list[AppendRequest] = []
    for size in sizes:
        some = [append(len(requests) + n, n, write=[n], data=b"%d" % n) for n in range(size)]
        is_batch, arrival = data.draw(st.booleans()), len(requests)
        parts.append(
            of_batch(together(*some), 1, arrival) if is_batch else of_requests(some, 1, arrival)
        )
        requests += some
    whole = join_appends(parts)
    assert content(whole) == content(of_requests(requests, 1, 0))
    rows = data.draw(st.lists(st.booleans(), min_size=len(whole), max_size=len(whole)))
    picked = whole.pick(np.array(rows))
    assert picked.arrivals.tolist() == np.flatnonzero(rows).tolist()
    chosen = [each for each, is_picked in zip(requests, rows, strict=True) if is_picked]
    if chosen:
        assert content(picked)[2:] == content(of_requests(chosen, 1, 0))[2:]


def test_outcomes_may_cut_what_is_in_flight_anywhere() -> None:
    in_flight = InFlight()
    in_flight.add(of_requests(REQUESTS, 1, 1).senders)
    in_flight.add(join_appends([of_batch(together(*REQUESTS), c, 4) for c in (1, 2)]).senders)
    decided = [
        (connection_id, run.request_ids[:, 3].tolist())
        for count in (2, 3, 4)
        for connection_id, run in in_flight.decide(count)
    ]
    assert decided == [(1, [2, 3]), (1, [4]), (1, [2, 3]), (1, [4]), (2, [2, 3, 4])]
    assert (len(in_flight), in_flight.byte_count) == (0, 0)


def test_who_sent_batches_is_told_in_ranges_and_others_are_not() -> None:
    later = together(append(9, client=8), append(10, client=8), append(12, client=8))
    appends = join_appends(
        [of_requests(REQUESTS, 1, 1), of_batch(together(*REQUESTS), 2, 4), of_batch(later, 3, 7)]
    )
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
    assert list(rejected(of_requests(REQUESTS, 1, 1).senders, Reason.NOT_HERE)) == []
    assert refused_all(later, Reason.STOPPING) == AppendRejected(
        request_id(8, 9), (Rejection(9, 3, Reason.STOPPING, NONE, 0),)
    )


def test_locks_are_told_in_the_words_of_each_version() -> None:
    """PM-24."""
    appends = join_appends([of_requests(REQUESTS, 1, 1), of_batch(together(*REQUESTS), 2, 4)])
    refused = appends.pick(np.array([True, False, False, True, False, True]))
    locked = [(TransactionId(8), 1), (TransactionId(8), 1), (TransactionId(9), 7)]
    assert list(locked_out(refused.senders, locked)) == [
        (1, LockFailure(request_id(7, 2), TransactionId(8))),
        (
            2,
            AppendRejected(
                request_id(7, 2),
                (
                    Rejection(2, 1, Reason.LOCKED, TransactionId(8), 1),
                    Rejection(4, 1, Reason.LOCKED, TransactionId(9), 7),
                ),
            ),
        ),
    ]
