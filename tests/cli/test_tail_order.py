"""The order of lines of several partitions: by value, and compared with what was true."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz.cli.tail_order import LONG_AGO, NEVER, LeftOut, TimeOrder

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


DRAWN = st.lists(st.lists(st.tuples(*[st.integers(0, 20)] * 3), max_size=5), min_size=1, max_size=4)


def intervals_around(
    truth: list[list[int]], drawn: list[list[tuple[int, int, int]]]
) -> list[list[Interval]]:
    """Return an interval around each true time, some without a bound."""
    return [
        [
            (LONG_AGO if before > 15 else at - before, NEVER if after > 15 else at + after)
            for at, (_, before, after) in zip(times, rows, strict=True)
        ]
        for times, rows in zip(truth, drawn, strict=True)
    ]


@given(DRAWN)
def test_a_row_that_is_not_marked_is_newer_than_all_before_it(
    drawn: list[list[tuple[int, int, int]]],
) -> None:
    truth = [sorted(at for at, _, _ in rows) for rows in drawn]
    found = ordered(*intervals_around(truth, drawn))
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


def left_out(
    intervals: list[list[Interval]], rows: list[tuple[int, int, bool]], shown: int
) -> LeftOut[int]:
    """Return what is left out before the last `shown` rows."""
    found: LeftOut[int] = LeftOut()
    for place, (number, row, _) in enumerate(rows):
        low, high = intervals[number][row]
        if place < len(rows) - shown:
            found.leave(number, high)
        else:
            found.show(number, low)
    return found


def test_a_row_without_a_time_is_left_out_and_said_to_be_perhaps_newer() -> None:
    """Nobody has noted the newest transaction of partition 1 yet."""
    intervals = [[(0, 1), (4, 5), (9, 12)], [(LONG_AGO, NEVER)]]
    rows = ordered(*intervals)
    assert rows[0] == (1, 0, True)
    assert left_out(intervals, rows, 2).newer_count() == 1
    apart = [[(0, 1), (4, 5), (9, 12)], [(2, 3)]]
    assert left_out(apart, ordered(*apart), 2).newer_count() == 0
    assert left_out(apart, ordered(*apart), 0).newer_count() == 0


@given(DRAWN, st.integers(0, 8))
def test_no_row_that_is_left_out_is_newer_than_a_shown_one_without_being_counted(
    drawn: list[list[tuple[int, int, int]]], shown: int
) -> None:
    truth = [sorted(at for at, _, _ in rows) for rows in drawn]
    intervals = intervals_around(truth, drawn)
    rows = ordered(*intervals)
    place = max(0, len(rows) - shown)
    newer = [
        (number, row)
        for number, row, _ in rows[:place]
        if any(truth[number][row] > truth[other][of] for other, of, _ in rows[place:]
               if other != number)
    ]  # fmt: skip
    assert len(newer) <= left_out(intervals, rows, shown).newer_count()
