"""How far a database is, when marks, digests and rows do not say the same."""

from __future__ import annotations

from typing import Any

import pytest

from waltz.errors import NotFoundError
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.extent import Extent, StatedExtent, different_blocks, extent_of
from waltz.spark.pipelines.table_store import BLOCK_TRANSACTIONS
from waltz.types import PartitionId, TransactionId

END = BLOCK_TRANSACTIONS + 50
BLOCKS = {(0, 0): (BLOCK_TRANSACTIONS, "d0"), (0, 1): (50, f"d{END}")}


def extent(
    marks: dict[int, int], blocks: Any = None, mentioned: int = END, log_end: int = END + 9
) -> Extent:
    def digest_of(wanted: TransactionRange) -> str:
        return f"d{wanted.end}" if wanted.first else "d0"

    claims = StatedExtent(
        {PartitionId(each): TransactionId(mark) for each, mark in marks.items()},
        BLOCKS if blocks is None else blocks,
        {0: mentioned},
    )
    return extent_of(claims, {PartitionId(0): TransactionId(log_end)}, digest_of)


def named(found: Extent) -> list[tuple[str, int, int]]:
    return [(each.table, each.partition_id, each.transaction_id) for each in found.differences]


def test_where_all_say_the_same_that_is_how_far_it_is() -> None:
    assert extent({0: END}) == Extent({PartitionId(0): TransactionId(END)}, ())


@pytest.mark.parametrize("mark", [0, 7, BLOCK_TRANSACTIONS, END - 1, END + 1, END + 10_000])
def test_a_changed_mark_is_told_with_the_first_transaction_that_it_is_wrong_of(mark: int) -> None:
    found = extent({0: mark})
    assert found.ends == {0: END}
    assert named(found) == [("waltz_marks", 0, min(mark, END))]
    assert f"next_transaction_id is {mark}, expected {END}" in str(found.differences[0])


def test_a_mark_under_another_partition_is_missing_here_and_too_much_there() -> None:
    found = extent({5: END})
    assert found.ends == {0: END}
    assert named(found) == [("waltz_marks", 0, 0), ("waltz_marks", 5, 0)]


@pytest.mark.parametrize(
    "blocks",
    [
        {(0, 0): (BLOCK_TRANSACTIONS, "d0"), (0, 1): (49, f"d{END}")},
        {(0, 0): (BLOCK_TRANSACTIONS - 1, "d0"), (0, 1): (50, f"d{END}")},
        {(0, 0): (BLOCK_TRANSACTIONS, "d0"), (3, 1): (50, f"d{END}")},
        {(0, 0): (BLOCK_TRANSACTIONS, "d0"), (0, 7): (50, f"d{END}")},
        {(0, 0): (BLOCK_TRANSACTIONS, "d0")},
        {},
    ],
)
def test_changed_blocks_do_not_put_the_mark_into_doubt(blocks: Any) -> None:
    found = extent({0: END}, blocks)
    assert found.ends == {0: END}
    assert [each for each in named(found) if each[1] == 0] == []


def test_a_log_that_is_shorter_than_what_was_taken_in_has_lost_data() -> None:
    with pytest.raises(NotFoundError, match=r"^WALTZ-2001 partition 0 was taken in .* lost data"):
        extent({0: END}, log_end=END - 1)


def test_blocks_that_differ_are_named_with_their_first_transaction() -> None:
    found = {(0, 0): (4, "a"), (0, 1): (4, "b"), (1, 9): (4, "c")}
    expected = {(0, 0): (4, "a"), (0, 1): (5, "x"), (1, 0): (4, "c")}
    several = list(different_blocks(found, expected))
    assert [(each.partition_id, each.transaction_id) for each in several] == [
        (0, BLOCK_TRANSACTIONS),
        (1, 0),
        (1, 9 * BLOCK_TRANSACTIONS),
    ]
    assert [column.name for column in several[0].columns] == ["transactions", "digest"]
    assert "digest is 'b', expected 'x'" in str(several[0])
    assert "missing" in str(several[1])
    assert "none of them were taken in" in str(several[2])
