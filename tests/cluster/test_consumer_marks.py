"""The marks of named consumers: their bytes, and that they only grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.cluster.consumer_marks import (
    CONSUMER_BYTES_MAX,
    CONSUMER_PARTITIONS_MAX,
    KeptMark,
    decode_kept,
    encode_kept,
    merged,
)
from waltz.errors import RemoteProtocolError
from waltz.types import PartitionId, TransactionId

MARKS = st.dictionaries(
    st.integers(0, 9).map(PartitionId),
    st.builds(KeptMark, st.integers(-1, 2**63 - 1).map(TransactionId), st.integers(0, 2**62)),
)


def kept(**marks: tuple[int, int]) -> dict[PartitionId, KeptMark]:
    return {
        PartitionId(int(name[1:])): KeptMark(TransactionId(mark), wall)
        for name, (mark, wall) in marks.items()
    }


def test_the_bytes_are_those_that_were_pinned() -> None:
    data = b'{"0": [41, 1760000000000], "12": [-1, 5]}'
    assert encode_kept(kept(p12=(-1, 5), p0=(41, 1_760_000_000_000))) == data
    assert decode_kept(data) == kept(p0=(41, 1_760_000_000_000), p12=(-1, 5))


@given(MARKS)
def test_marks_come_back_as_they_were(marks: dict[PartitionId, KeptMark]) -> None:
    assert decode_kept(encode_kept(marks)) == marks


@given(MARKS, MARKS)
def test_marks_only_grow_and_the_order_of_writers_does_not_matter(
    one: dict[PartitionId, KeptMark], other: dict[PartitionId, KeptMark]
) -> None:
    both = merged(one, other)
    assert both == merged(other, one)
    for before in (one, other):
        assert all(
            both[each].transaction_id >= mark.transaction_id for each, mark in before.items()
        )


def test_the_same_mark_at_a_later_time_was_seen_later() -> None:
    assert merged(kept(p0=(5, 100)), kept(p0=(5, 200))) == kept(p0=(5, 200))
    assert merged(kept(p0=(5, 100)), kept(p0=(4, 200))) == kept(p0=(5, 100))


def test_the_partitions_of_a_consumer_are_bounded() -> None:
    mark = KeptMark(TransactionId(1), 1)
    many = {PartitionId(each): mark for each in range(CONSUMER_PARTITIONS_MAX + 5)}
    assert len(merged({}, many)) == CONSUMER_PARTITIONS_MAX
    assert len(encode_kept(merged({}, many))) < CONSUMER_BYTES_MAX


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"7", b"{", b"\xff", b"[" * 100_000, b'{"a": [1, 2]}', b'{"-1": [1, 2]}',
        b'{"0": [1]}', b'{"0": [1, 2, 3]}', b'{"0": [1, null]}', b'{"0": [true, 2]}',
        b'{"0": [1.0, 2]}', b'{"0": [-2, 2]}', b'{"0": [9223372036854775808, 2]}', b'{"0": 5}',
        '{"²": [1, 2]}'.encode(), b'{"00000000000000": [1, 2]}', b" " * (CONSUMER_BYTES_MAX + 1),
    ],
)  # fmt: skip
def test_what_is_no_node_of_a_consumer_is_refused_in_printable_words(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        decode_kept(data)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 300
