"""The order of lines of several partitions: by value, and compared with what was true."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz.cli.tail_order import LONG_AGO, NEVER, TimeOrder

Interval = tuple[int, int]


def ordered(*partitions: list[Interval]) -> list[tuple[int, int, bool]]:
    """The rows of partitions as they are taken, each partition's in pieces of two."""
    order: TimeOrder[int] = TimeOrder()
    given_so_far = [0] * len(partitions)
    offsets = [0] * len(partitions)

    def give(number: int) -> None:
        offsets[number] = given_so_far[number]
        rows = partitions[number][offsets[number] : offsets[number] + 2]
        given_so_far[number] += len(rows)
        if rows:
            order.add(number, [low for low, _ in rows], [high for _, high in rows])
        else:
            order.end(number)

    for number in range(len(partitions)):
        give(number)
    found = []
    while (taken := order.take()) is not None:
        number, row, is_ordered = taken
        found.append((number, offsets[number] + row, is_ordered))
        if offsets[number] + row + 1 == given_so_far[number]:
            give(number)
    return found


def test_rows_come_by_their_times_and_overlapping_ones_are_marked() -> None:
    assert ordered([(0, 1), (4, 5), (9, 12)], [(2, 3), (10, 11)]) == [
        (0, 0, True),
        (1, 0, True),
        (0, 1, True),
        (1, 1, True),
        (0, 2, False),
    ]


def test_after_a_row_without_times_nothing_of_other_partitions_is_in_order() -> None:
    assert ordered([(0, 1), (LONG_AGO, NEVER), (4, 5)], [(2, 3), (8, 9)]) == [
        (0, 0, True),
        (0, 1, True),
        (1, 0, False),
        (0, 2, True),
        (1, 1, False),
    ]


@given(st.lists(st.lists(st.tuples(*[st.integers(0, 20)] * 3), max_size=5), min_size=1, max_size=4))
def test_a_row_that_is_not_marked_is_newer_than_all_before_it(
    drawn: list[list[tuple[int, int, int]]],
) -> None:
    truth = [sorted(at for at, _, _ in rows) for rows in drawn]
    intervals = [
        [
            (LONG_AGO if before > 15 else at - before, NEVER if after > 15 else at + after)
            for at, (_, before, after) in zip(times, rows, strict=True)
        ]
        for times, rows in zip(truth, drawn, strict=True)
    ]
    found = ordered(*intervals)
    assert sorted((number, row) for number, row, _ in found) == [
        (number, row) for number, rows in enumerate(drawn) for row in range(len(rows))
    ]
    for number in range(len(drawn)):
        rows = [row for other, row, _ in found if other == number]
        assert rows == sorted(rows), "IDs order the rows of one partition"
    latest = LONG_AGO
    for number, row, is_ordered in found:
        if is_ordered:
            others = [
                truth[other][earlier]
                for other, earlier, _ in found[: found.index((number, row, is_ordered))]
                if other != number
            ]
            assert truth[number][row] >= max(others, default=latest)
