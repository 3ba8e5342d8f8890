"""The live tail's sample: bounded, newest first to be kept, and exact about what is skipped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.console.hostile import ALL
from waltz.console.tail_sample import (
    TAIL_DATA_BYTES,
    TAIL_RANGES_MAX,
    TAIL_ROWS_MAX,
    Range,
    Row,
    sample,
)
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

Marks = dict[PartitionId, TransactionId]
MARKS = st.dictionaries(
    st.integers(0, 30).map(PartitionId), st.integers(-1, 500).map(TransactionId), max_size=20
)


def marks(*values: int) -> Marks:
    return {PartitionId(number): TransactionId(mark) for number, mark in enumerate(values)}


def test_a_partition_begins_at_its_mark() -> None:
    assert sample({}, marks(100)).ranges == ()


def test_all_of_little_is_read() -> None:
    found = sample(marks(9, 99), marks(12, 100))
    assert found.ranges == (Range(PartitionId(0), 10, 13), Range(PartitionId(1), 100, 101))
    assert found.skipped == 0


def test_of_much_the_newest_is_read_and_the_rest_counted() -> None:
    found = sample(marks(0), marks(2_000_000))
    assert found.ranges == (Range(PartitionId(0), 2_000_001 - TAIL_ROWS_MAX, 2_000_001),)
    assert found.skipped == 2_000_000 - TAIL_ROWS_MAX


def test_small_partitions_are_read_whole_next_to_a_large_one() -> None:
    found = sample(marks(0, 0), marks(1000, 3))
    assert [each.end - each.first for each in found.ranges] == [TAIL_ROWS_MAX - 3, 3]


def test_with_many_partitions_the_turn_goes_round() -> None:
    before, now = marks(*[0] * 20), marks(*[5] * 20)
    seen = {each.partition_id for turn in range(5) for each in sample(before, now, turn).ranges}
    assert len(seen) == 20


@given(MARKS, MARKS, st.integers(0, 100))
def test_every_new_transaction_is_read_or_counted(before: Marks, now: Marks, turn: int) -> None:
    found = sample(before, now, turn)
    read = sum(each.end - each.first for each in found.ranges)
    new = sum(max(0, mark - before.get(number, mark)) for number, mark in now.items())
    assert read + found.skipped == new
    assert read <= TAIL_ROWS_MAX
    assert len(found.ranges) <= TAIL_RANGES_MAX
    for each in found.ranges:
        assert before[each.partition_id] < each.first < each.end == now[each.partition_id] + 1


def test_a_row_is_plain_and_small_whatever_its_data() -> None:
    request_id = RequestId(ClientId(1), Generation(2), PartitionId(0), 3)
    for text in ALL:
        row = Row(0, 17, -1, request_id, text.encode(errors="surrogatepass")).to_json()
        assert row["data"].isprintable()
        assert len(row["data"]) <= 4 * TAIL_DATA_BYTES + 50
    assert "data" not in Row(0, 17, -1, request_id, None).to_json()
