"""Offsets in text, ranges from marks, tasks from ranges (PS-01, PS-04, PS-08)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import ConfigurationError, NotFoundError
from waltz.spark.offsets import (
    TASK_ROWS,
    Offsets,
    TransactionRange,
    parse_offsets,
    parse_partitions,
    resolve_ranges,
    select_partitions,
    share_out,
    split_ranges,
    task_count_max,
)
from waltz.types import PartitionId, TransactionId

EARLIEST = Offsets("earliest", {})
LATEST = Offsets("latest", {})


def span(partition_id: int, first: int, end: int) -> TransactionRange:
    return TransactionRange(PartitionId(partition_id), TransactionId(first), TransactionId(end))


def marks(*values: int) -> dict[PartitionId, TransactionId]:
    return {PartitionId(index): TransactionId(value) for index, value in enumerate(values)}


def test_partitions_are_numbers_and_ranges() -> None:
    assert parse_partitions("7") == (7,)
    assert parse_partitions("0-3,7") == (0, 1, 2, 3, 7)
    assert parse_partitions("5, 2-3 ,3") == (2, 3, 5)


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,,2", "0-99999999", "²"])
def test_a_malformed_list_of_partitions_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option partitions"):
        parse_partitions(text)


def test_offsets_are_words_or_json_per_partition() -> None:
    assert parse_offsets("startingOffsets", "latest", "earliest") == LATEST
    assert parse_offsets("startingOffsets", "earliest", "latest") == EARLIEST
    assert parse_offsets("endingOffsets", '{"0": 17, "12": "earliest"}', "latest") == Offsets(
        "latest", {PartitionId(0): TransactionId(17), PartitionId(12): "earliest"}
    )


@pytest.mark.parametrize(
    "text",
    ["newest", "17", "[1]", '{"0": -1}', '{"0": true}', '{"0": 1.5}', '{"x": 1}', '{"0": "last"}'],
)
def test_malformed_offsets_are_refused_by_the_name_of_their_option(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option endingOffsets"):
        parse_offsets("endingOffsets", text, "latest")


def test_all_partitions_are_read_unless_some_are_selected() -> None:
    assert select_partitions(None, 3) == [0, 1, 2]
    assert select_partitions((PartitionId(2),), 3) == (2,)
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1005 .*partition 3; .*0 to 2"):
        select_partitions((PartitionId(3),), 3)


def test_everything_committed_is_read_and_empty_partitions_need_no_task() -> None:
    assert resolve_ranges(EARLIEST, LATEST, marks(9, -1, 0)) == [span(0, 0, 10), span(2, 0, 1)]


def test_named_offsets_bound_a_partition_and_the_end_is_not_read() -> None:
    starting = parse_offsets("startingOffsets", '{"0": 4}', "earliest")
    ending = parse_offsets("endingOffsets", '{"0": 6, "1": 10}', "latest")
    assert resolve_ranges(starting, ending, marks(9, 9)) == [span(0, 4, 6), span(1, 0, 10)]


def test_nothing_is_read_from_the_end_on() -> None:
    assert resolve_ranges(LATEST, LATEST, marks(9)) == []


def test_offsets_beyond_the_high_water_mark_are_not_in_the_log() -> None:
    ending = parse_offsets("endingOffsets", '{"0": 11}', "latest")
    with pytest.raises(NotFoundError, match=r"^WALTZ-2001 .*partition 0 at 11; .* is 9$"):
        resolve_ranges(EARLIEST, ending, marks(9))


def test_or_they_are_taken_for_the_end_of_the_log() -> None:
    """PS-08."""
    ending = parse_offsets("endingOffsets", '{"0": 11}', "latest")
    found = resolve_ranges(EARLIEST, ending, marks(9), fail_on_data_loss=False)
    assert found == [span(0, 0, 10)]


def test_a_start_after_its_end_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 partition 0 starts at 10"):
        resolve_ranges(LATEST, EARLIEST, marks(9))


def test_offsets_of_a_partition_that_is_not_read_are_refused() -> None:
    starting = parse_offsets("startingOffsets", '{"5": 1}', "earliest")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1005 .*partition 5"):
        resolve_ranges(starting, LATEST, marks(9))


def test_a_short_range_is_one_task_and_a_long_one_several() -> None:
    assert split_ranges([span(0, 5, 10)], task_count_min=1) == [span(0, 5, 10)]
    long = [span(0, 0, 3 * TASK_ROWS)]
    assert [each.row_count for each in split_ranges(long, task_count_min=1)] == [TASK_ROWS] * 3


def test_one_partition_is_split_over_eight_tasks() -> None:
    tasks = split_ranges([span(0, 0, 100)], task_count_min=8)
    assert len(tasks) == 8
    assert {each.row_count for each in tasks} == {12, 13}


def test_no_range_needs_no_task() -> None:
    assert split_ranges([], task_count_min=8) == []


ranges = st.lists(
    st.tuples(st.integers(0, 1 << 50), st.integers(1, 5 * TASK_ROWS)), min_size=1, max_size=6
).map(lambda pairs: [span(p, first, first + count) for p, (first, count) in enumerate(pairs)])


@given(ranges, st.integers(1, 200))
def test_tasks_are_the_ranges_cut_in_even_pieces(
    wanted: list[TransactionRange], task_count_min: int
) -> None:
    tasks = split_ranges(wanted, task_count_min=task_count_min)
    assert len(tasks) >= min(task_count_min, sum(each.row_count for each in wanted))
    for each in wanted:
        pieces = [task for task in tasks if task.partition_id == each.partition_id]
        assert pieces[0].first == each.first
        assert pieces[-1].end == each.end
        assert all(left.end == right.first for left, right in pairwise(pieces))
        counts = [piece.row_count for piece in pieces]
        assert min(counts) > 0
        assert max(counts) - min(counts) <= 1


def test_a_read_may_begin_with_the_last_transactions_of_each_partition() -> None:
    starting = parse_offsets("startingOffsets", "latest-3", "earliest")
    assert resolve_ranges(starting, LATEST, marks(9, 1, -1)) == [span(0, 7, 10), span(1, 0, 2)]
    mixed = parse_offsets("startingOffsets", '{"0": "latest-1"}', "earliest")
    assert resolve_ranges(mixed, LATEST, marks(9, 1)) == [span(0, 9, 10), span(1, 0, 2)]
    ending = parse_offsets("endingOffsets", "latest-4", "latest")
    assert resolve_ranges(EARLIEST, ending, marks(9, 1)) == [span(0, 0, 6)]


@pytest.mark.parametrize("text", ["latest-", "latest--1", "latest-1e3", "latest+5", "latest- 5"])
def test_a_number_before_the_end_is_a_number(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option startingOffsets is"):
        parse_offsets("startingOffsets", text, "earliest")


def test_tasks_are_two_per_core_unless_they_would_be_large_or_more_are_asked_for() -> None:
    assert task_count_max(10_000, 1, cores=2) == 4
    assert task_count_max(10_000, 7, cores=2) == 7
    assert task_count_max(9 * TASK_ROWS + 1, 1, cores=2) == 10


def test_a_thousand_small_ranges_are_shared_out_evenly() -> None:
    items = range(1000)
    shares = share_out(items, [10] * 1000, 4)
    assert [len(share) for share in shares] == [250] * 4
    assert [each for share in shares for each in share] == [*items]
    assert share_out([], [], 4) == []


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 70))
def test_shares_are_in_order_and_no_larger_than_a_fair_share_and_an_item(
    sizes: list[int], count_max: int
) -> None:
    places = range(len(sizes))
    shares = share_out(places, sizes, count_max)
    assert [each for share in shares for each in share] == [*places]
    assert len(shares) <= max(count_max, 1)
    assert all(shares)
    fair = sum(sizes) / count_max
    if len(sizes) > count_max:
        assert all(sum(sizes[n] for n in share) <= fair + max(sizes) for share in shares)
