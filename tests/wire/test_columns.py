"""What the columns of a batch are made of, against the plain way."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.server.builders import append, together
from tests.wire.strategies import bodies
from waltz.errors import RemoteProtocolError
from waltz.record import NewRecord, pack_records, request_id_bytes
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.columns import (
    AppendColumns,
    Bodies,
    FeedColumns,
    feed_columns,
    read_runs,
    request_id_runs,
)
from waltz.wire.fields import Reader

SMALL = st.integers(0, 2)
REQUEST_IDS = st.lists(
    st.builds(RequestId, *[SMALL] * 3, st.integers(0, 4) | st.just(2**31 - 1) | st.just(-(2**31))),
    min_size=1,
    max_size=12,
)


MANY = [RequestId(ClientId(9), Generation(9), PartitionId(9), 7 + n) for n in range(100)]


@given(REQUEST_IDS, st.sampled_from([[], MANY]))
def test_runs_are_the_fewest_that_say_all_request_ids(
    request_ids: list[RequestId], before: list[RequestId]
) -> None:
    """Few are looked at one by one, many by columns."""
    request_ids = before + request_ids
    rows = np.frombuffer(b"".join(map(request_id_bytes, request_ids)), np.uint8).reshape(-1, 16)
    found = FeedColumns(request_id_runs(rows), np.zeros(len(rows), np.int32), None)
    assert list(found.request_ids()) == request_ids
    breaks = sum(
        later[:3] != earlier[:3] or later[3] != earlier[3] + 1
        for earlier, later in pairwise(request_ids)
    )
    assert len(found.runs) == breaks + 1


@pytest.mark.parametrize("before", [[], [list(each) for each in MANY]])
def test_a_carry_from_the_sequence_number_into_the_partition_is_no_run(
    before: list[list[int]],
) -> None:
    ids = [*before, [1, 2, 3, -1], [1, 2, 4, 0], [1, 2, 4, 1]]
    runs = request_id_runs(np.array(ids, ">i4").view(np.uint8)).tolist()
    assert runs[-2:] == [[1, 2, 3, -1, 1], [1, 2, 4, 0, 2]]
    assert len(runs) == 2 + bool(before)


@given(st.lists(st.tuples(st.integers(-3, 2**31 - 1), st.integers(-1, 3)), max_size=40))
def test_runs_that_are_read_are_those_of_as_many_transactions(
    numbers: list[tuple[int, int]],
) -> None:
    count = sum(length for _, length in numbers)
    text = np.array([[1, 2, 3, *each] for each in numbers], "<i4").tobytes()
    are_runs = all(length > 0 and first + length <= 2**31 for first, length in numbers)
    if are_runs:
        found = read_runs(Reader(text), len(numbers), count).tolist()
        assert [(first, length) for *_, first, length in found] == numbers
    for wrong in (count + 1, *(() if are_runs else (count,))):
        with pytest.raises(RemoteProtocolError):
            read_runs(Reader(text), len(numbers), wrong)


@pytest.mark.parametrize("places", [[], [1], [2], [1, 2], [3], [1, 2, 3]])
def test_appends_that_are_split_say_together_what_they_said(places: list[int]) -> None:
    whole = together(
        append(1, write=[11, 12], data=b"one"),
        append(2, read=[21], data=b"two"),
        append(3, data=b"three"),
        append(4, append=[41, 42, 43], data=b"four"),
    ).appends
    parts = whole.split(places)
    assert [len(part) for part in parts] == np.diff([0, *places, 4]).tolist()
    for part in parts:
        assert part.lock_counts.sum() == len(part.lock_hashes)

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    again = AppendColumns(
        joined("client_high_water_marks"),
        joined("headers"),
        joined("lock_counts"),
        joined("lock_hashes"),
        Bodies(
            [data for part in parts for data in part.bodies.data],
            np.concatenate([part.bodies.checksums for part in parts]),
        ),
    )
    assert again == whole


def test_a_feed_of_one_record_says_the_same_as_one_of_many() -> None:
    new = [NewRecord(request_id_bytes(each), each[3] % 7, b"", 0) for each in MANY]
    whole = feed_columns(pack_records(TransactionId(0), new), with_data=True)
    for place, each in enumerate(new):
        one = feed_columns(pack_records(TransactionId(place), [each]), with_data=True)
        assert list(one.request_ids()) == [MANY[place]]
        assert one.headers.tolist() == whole.headers[place : place + 1].tolist()
        assert one.headers.dtype == whole.headers.dtype
        assert one.runs.dtype == whole.runs.dtype


def test_a_feed_has_what_the_records_have() -> None:
    """CS-15."""
    request_id = RequestId(ClientId(7), Generation(3), PartitionId(2), 5)
    data = [b"a", b"", b"ccc"]
    batch = pack_records(
        TransactionId(100),
        [
            NewRecord(
                request_id_bytes(request_id._replace(sequence_number=5 + index)),
                index - 1,
                each,
                crc32(each),
            )
            for index, each in enumerate(data)
        ],
    )
    expected = FeedColumns(
        np.array([[7, 3, 2, 5, 3]], np.int32), np.array([-1, 0, 1], np.int32), bodies(data)
    )
    assert feed_columns(batch, with_data=True) == expected
    assert feed_columns(batch, with_data=False) == FeedColumns(
        expected.runs, expected.headers, None
    )
    assert feed_columns(batch, with_data=True) != feed_columns(batch, with_data=False)
