"""Versions 0 to 4 say one transaction per message; batches say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.builders import (
    append,
    data_request,
    fed,
    flush,
    link,
    request_id,
    tid,
    together,
)
from waltz.record import request_id_from
from waltz.types import SEQUENCE_NUMBER_MAX, PartitionId, TransactionId
from waltz.wire.batch_protocol import (
    AppendRejected,
    DataWanted,
    FeedBatch,
    Reason,
    Rejection,
)
from waltz.wire.before_batches import apart, feed_frames, joined
from waltz.wire.client_protocol import CLIENT_CODEC, AppendRequest, FeedData, LockFailure
from waltz.wire.columns import FeedColumns, request_id_runs
from waltz.wire.discovery_protocol import TopologyRequest
from waltz.wire.message import Message

OLDER = CLIENT_CODEC.versions[:-1]
LOCKS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3).map(tuple)


@st.composite
def append_requests(draw: st.DrawFn, number: int) -> AppendRequest:
    data = draw(st.binary(max_size=3))
    mark = TransactionId(draw(st.integers(-1, 2**63 - 1)))
    header = draw(st.integers(-(2**31), 2**31 - 1))
    return AppendRequest(
        request_id(sequence=number), mark, draw(LOCKS), draw(LOCKS), draw(LOCKS), header, data,
        crc32(data),
    )  # fmt: skip


def said_apart(messages: Sequence[Message]) -> list[Message]:
    return [each for message in messages for each in apart(message)]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_appends_are_the_same_once_joined_and_taken_apart(
    steps: list[int], data: st.DataObject
) -> None:
    numbers = np.cumsum(steps).tolist()
    requests = [data.draw(append_requests(number)) for number in numbers]
    batches = joined(requests)
    assert len(batches) == 1 + sum(step != 1 for step in steps[1:])
    assert said_apart(batches) == requests


def test_no_batch_passes_the_highest_sequence_number() -> None:
    """The original's clients continue with the least one."""
    numbers = [SEQUENCE_NUMBER_MAX - 1, SEQUENCE_NUMBER_MAX, -SEQUENCE_NUMBER_MAX - 1]
    requests = [append(number) for number in numbers]
    first, second = joined(requests)
    assert first == together(*requests[:2])
    assert second == together(requests[2])


def other(message: Message, partition: int = 9) -> Message:
    changed = message.request_id._replace(partition_id=PartitionId(partition))  # type: ignore[attr-defined]
    return replace(message, request_id=changed)  # type: ignore[type-var]


def test_partitions_are_joined_by_themselves_and_keep_their_order() -> None:
    """CI-15: a flush is about the appends before it."""
    a, b, c = append(2), append(3), append(4)
    topology = TopologyRequest(subscribe=True)
    said = [a, other(a), topology, b, other(flush()), flush(), other(b), c]
    assert joined(said) == [
        together(a, b),
        *joined([other(a)]),
        topology,
        other(flush()),
        flush(),
        *joined([other(b)]),
        together(c),
    ]


def test_appends_of_two_clients_or_generations_are_not_joined() -> None:
    said = [append(2), append(3, generation=2), append(4, client=8, generation=2)]
    assert joined(said) == [*map(together, said)]


def test_what_has_no_older_word_is_left_alone() -> None:
    said = [flush(), data_request(5), TopologyRequest(subscribe=True)]
    assert joined(said) is said
    assert said_apart(said) == said
    assert apart(DataWanted(request_id())) == ()


def test_the_feed_is_joined_where_ids_follow_on_each_other() -> None:
    """CS-15."""
    assert [
        (message.first_transaction_id, len(message.feed))  # type: ignore[attr-defined]
        for message in joined([*fed(3, 2), *fed(4, 3), *fed(9, 1)])
    ] == [(3, 2), (4, 3), (9, 1)]


@pytest.mark.parametrize("version", OLDER)
@given(data=st.data())
def test_a_feed_batch_is_its_feed_data_frames_back_to_back(
    version: int, data: st.DataObject
) -> None:
    headers = data.draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5))
    count = len(headers)
    first = data.draw(st.integers(-1, 2**63 - 1 - count))
    rows = data.draw(st.lists(st.binary(min_size=16, max_size=16), min_size=count, max_size=count))
    request_ids = np.frombuffer(b"".join(rows), np.uint8).reshape(count, 16)
    columns = FeedColumns(request_id_runs(request_ids), np.array(headers, np.int32), None)
    messages = [
        FeedData(request_id_from(row), TransactionId(first + index), header)
        for index, (row, header) in enumerate(zip(rows, headers, strict=True))
    ]
    frames = b"".join(CLIENT_CODEC.encode_declared(each, version) for each in messages)
    assert feed_frames(FeedBatch(PartitionId(3), tid(first), columns), version) == frames


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
def test_a_joined_feed_has_the_request_ids_that_came(steps: list[int], data: st.DataObject) -> None:
    ids = [request_id(data.draw(st.sampled_from([7, 8])), number) for number in np.cumsum(steps)]
    (batch,) = joined([FeedData(each, tid(5 + n), n) for n, each in enumerate(ids)])
    assert isinstance(batch, FeedBatch)
    assert [*batch.feed.request_ids()] == ids
    assert batch.first_transaction_id == 5
    assert batch.feed.headers.tolist() == [*range(len(ids))]


def test_a_lock_failure_is_a_refusal_of_one_append_with_an_unknown_lock() -> None:
    failure = LockFailure(request_id(sequence=4), tid(9))
    (refusal,) = joined([failure])
    assert refusal == AppendRejected(
        failure.request_id, (Rejection(4, 1, Reason.LOCKED, tid(9), 0),)
    )
    assert apart(refusal) == [failure]


@pytest.mark.parametrize("version", OLDER)
def test_refusals_without_a_lock_stay_silent(version: int) -> None:
    """R12, CI-15."""
    rejections = [
        Rejection(4 + 2 * reason, 2, reason, tid(7), 5 if reason is Reason.LOCKED else 0)
        for reason in Reason
    ]
    told = AppendRejected(request_id(sequence=4), tuple(rejections))
    assert apart(told) == [LockFailure(request_id(sequence=n), tid(7)) for n in (4, 5)]
    silent = AppendRejected(told.request_id, tuple(rejections[1:]))
    assert link(version).encode(silent) == b""


@pytest.mark.parametrize("version", CLIENT_CODEC.versions)
def test_bytes_of_every_version_arrive_as_batches(version: int) -> None:
    """CI-15: version 5 knows the append request, too."""
    requests = [append(number) for number in (2, 3, 5)]
    data = b"".join(CLIENT_CODEC.encode(each, version) for each in requests)
    assert link(version).receive(data) == [together(*requests[:2]), together(requests[2])]


@pytest.mark.parametrize("version", OLDER)
def test_a_batch_leaves_as_one_append_request_each(version: int) -> None:
    requests = [append(number, write=[number]) for number in (2, 3)]
    frames = b"".join(CLIENT_CODEC.encode(each, version) for each in requests)
    assert link(version).encode(together(*requests)) == frames
    assert [*link(version).apart(together(*requests))] == requests


def test_a_peer_of_version_5_is_sent_the_batch() -> None:
    batch = together(append(2), append(3))
    assert link(5).encode(batch) == CLIENT_CODEC.encode(batch, 5)
    assert [*link(5).apart(batch)] == [batch]
