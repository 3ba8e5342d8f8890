"""Offsets of a stream and how far a micro-batch goes, against simpler truths."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import ConfigurationError, NotFoundError
from waltz.spark.offsets import TransactionRange
from waltz.spark.progress import NextIds, Progress, admit, available
from waltz.types import PartitionId, TransactionId

KEY = UUID(int=1)


def ids(*values: int) -> NextIds:
    return {PartitionId(n): TransactionId(value) for n, value in enumerate(values)}


def progress(*values: int) -> Progress:
    return Progress(KEY, ids(*values))


def span(partition_id: int, first: int, end: int) -> TransactionRange:
    return TransactionRange(PartitionId(partition_id), TransactionId(first), TransactionId(end))


def test_an_offset_passes_through_the_json_of_a_checkpoint() -> None:
    offset = progress(7, 0, 1 << 60).encode()
    assert offset == {"cluster": str(KEY), "0": 7, "1": 0, "2": 1 << 60}
    assert Progress.decode(json.loads(json.dumps(offset))) == progress(7, 0, 1 << 60)


def test_an_offset_names_the_history_if_a_restore_has_begun_one() -> None:
    restored = Progress(KEY, ids(7), UUID(int=2))
    offset = restored.encode()
    assert json.dumps(offset) == (
        '{"cluster": "00000000-0000-0000-0000-000000000001",'
        ' "history": "00000000-0000-0000-0000-000000000002", "0": 7}'
    )
    assert Progress.decode(json.loads(json.dumps(offset))) == restored


def test_an_offset_keeps_how_its_batch_was_cut_and_where_the_stream_ends() -> None:
    bounded = Progress(KEY, ids(7, 9), None, 4, {PartitionId(1): TransactionId(12)})
    offset = bounded.encode()
    assert json.dumps(offset) == (
        '{"cluster": "00000000-0000-0000-0000-000000000001", "tasks": 4, "end": {"1": 12},'
        ' "0": 7, "1": 9}'
    )
    assert Progress.decode(json.loads(json.dumps(offset))) == bounded


@pytest.mark.parametrize(
    "offset",
    [
        {"cluster": str(KEY), "tasks": "4"},
        {"cluster": str(KEY), "end": 4},
        {"cluster": str(KEY), "end": {"0": -1}},
        {},
        {"0": 1},
        {"cluster": "home", "0": 1},
        {"cluster": str(KEY), "zero": 1},
        {"cluster": str(KEY), "0": "1"},
        {"cluster": str(KEY), "0": True},
        {"cluster": str(KEY), "0": -1},
        {"cluster": str(KEY), "history": "mine", "0": 1},
    ],
)
def test_the_offset_of_something_else_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1006 the checkpoint"):
        Progress.decode(offset)


def test_a_checkpoint_is_not_continued_on_another_cluster() -> None:
    progress(1).expect_cluster(KEY, "host:1")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2003 host:1 leads to cluster .*0002;"):
        progress(1).expect_cluster(UUID(int=2), "host:1")


def test_the_ranges_between_two_offsets_have_new_partitions_from_their_first_transaction() -> None:
    assert progress(5, 5).ranges_to(progress(7, 5, 3)) == [span(0, 5, 7), span(2, 0, 3)]


def test_a_log_shorter_than_what_was_read_is_an_error() -> None:
    """PS-08."""
    with pytest.raises(NotFoundError, match=r"^WALTZ-2001 partition 1 was read to 6; .* is 3"):
        available(progress(1, 7), ids(2, 4), fail_on_data_loss=True)


def test_or_the_stream_waits_where_it_stands() -> None:
    """PS-08."""
    assert available(progress(1, 7), ids(2, 4), fail_on_data_loss=False) == ids(2, 7)


def test_a_micro_batch_is_shared_and_a_short_backlog_is_read_whole() -> None:
    """PS-03."""
    assert admit(progress(0, 0, 0), ids(1000, 1000, 10), 110) == ids(50, 50, 10)
    assert admit(progress(0, 0), ids(5, 5), 10) == ids(5, 5)
    assert admit(progress(3), ids(9), None) == ids(9)


positions = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 500)), min_size=1, max_size=8)


@given(positions, st.integers(1, 3000))
def test_a_micro_batch_has_all_it_may_and_takes_from_nobody(
    given_positions: list[tuple[int, int]], rows_max: int
) -> None:
    """PS-03."""
    start = progress(*(first for first, _ in given_positions))
    ends = ids(*(first + backlog for first, backlog in given_positions))
    reached = admit(start, ends, rows_max)
    shares = [reached[each] - start.next_id(each) for each in ends]
    backlogs = [backlog for _, backlog in given_positions]
    assert sum(shares) == min(rows_max, sum(backlogs))
    assert all(0 <= share <= backlog for share, backlog in zip(shares, backlogs, strict=True))
    # Whoever is not read whole has as much as anybody, but for one transaction.
    cut_short = [share for share, backlog in zip(shares, backlogs, strict=True) if share < backlog]
    assert not cut_short or min(cut_short) >= max(shares) - 1


@given(st.integers(1, 5), st.integers(2, 7))
def test_no_partition_starves_where_there_are_more_than_transactions(
    rows_max: int, partition_count: int
) -> None:
    """PS-03."""
    start = progress(*[0] * partition_count)
    ends = ids(*[10_000] * partition_count)
    for _ in range(3 * partition_count):
        start = Progress(KEY, admit(start, ends, rows_max))
    read = list(start.next_ids.values())
    assert max(read) - min(read) <= 3
    assert min(read) > 0
