"""Points of the log: which transactions an operator's words mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.restore.memory_archive import Cut, make_archive
from waltz.errors import ConfigurationError
from waltz.restore.points import AtCut, AtMarks, AtTime, Latest, Place, Point, place_at, places
from waltz.types import NOTHING, PartitionId, TransactionId


def t(*numbers: int) -> dict[PartitionId, TransactionId]:
    return {PartitionId(p): TransactionId(number) for p, number in enumerate(numbers)}


def lasts(point: Point, *counts: int, **options: object) -> dict[int, int]:
    archive = make_archive(counts)
    for name, value in options.items():
        setattr(archive, name, value)
    return {p: place.last for p, place in places(archive, point, len(counts)).items()}


def test_the_latest_point_is_all_that_is_archived() -> None:
    assert lasts(Latest(), 10, 0, 3) == {0: 9, 1: -1, 2: 2}


def test_marks_and_cuts_are_taken_as_they_are() -> None:
    assert lasts(AtMarks(t(4, -1)), 10, 3) == {0: 4, 1: -1}
    cuts = {"month": Cut(t(4, 2), 1000)}
    assert lasts(AtCut("month"), 10, 3, cuts=cuts) == {0: 4, 1: 2}


def test_a_partition_that_was_added_after_the_cut_is_restored_empty() -> None:
    assert lasts(AtCut("month"), 10, 3, cuts={"month": Cut(t(4), 1000)}) == {0: 4, 1: -1}


@pytest.mark.parametrize(
    ("point", "error"),
    [
        (AtCut("year"), "no cut named 'year'; it has: month"),
        (AtCut("month"), "transaction 10 of partition 0, which is archived up to 9"),
        (AtMarks(t(4)), "lack partition 1; expected one mark for each partition"),
        (AtMarks(t(4, 2, 0)), "name partition 2"),
        (AtMarks(t(10, 2)), "transaction 10 of partition 0, which is archived up to 9"),
        (AtMarks(t(-2, 2)), "transaction -2 of partition 0"),
    ],
)
def test_a_point_that_the_archive_does_not_have_is_refused(point: Point, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        lasts(point, 10, 3, cuts={"month": Cut(t(10), 1000)})


def marks(*found: tuple[int, int]) -> list[tuple[TransactionId, int]]:
    return [(TransactionId(each), at) for each, at in found]


def test_a_time_is_the_last_transaction_known_to_have_been_durable_by_then() -> None:
    found = marks((10, 1000), (20, 2000), (30, 3000))
    end = TransactionId(40)
    assert place_at(found, 2000, end) == Place(TransactionId(20), end, TransactionId(30))
    assert place_at(found, 2999, end) == Place(TransactionId(20), end, TransactionId(30))
    assert place_at(found, 999, end) == Place(NOTHING, end, TransactionId(10))
    assert place_at(found, 9000, end) == Place(TransactionId(30), end, TransactionId(39))
    assert place_at([], 9000, end) == Place(NOTHING, end, TransactionId(39))
    assert place_at([], 9000, TransactionId(0)) == Place(NOTHING, TransactionId(0), NOTHING)


def test_a_clock_that_was_set_back_makes_more_of_the_log_unsure() -> None:
    found = marks((10, 1000), (20, 5000), (30, 2000), (40, 6000))
    end = TransactionId(50)
    assert place_at(found, 3000, end) == Place(TransactionId(10), end, TransactionId(30))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8),
    st.integers(0, 10),
    st.integers(0, 60),
)
def test_no_transaction_noted_before_a_time_lies_beyond_what_is_called_unsure(
    steps: list[tuple[int, int]], at: int, end: int
) -> None:
    found, number = [], -1
    for more, durable_by in steps:
        number += more + 1
        found.append((TransactionId(number), durable_by))
    place = place_at(found, at, TransactionId(end))
    assert -1 <= place.last <= place.unsure_to < max(end, 1) or place.unsure_to == -1
    known = [each for each, durable_by in found if durable_by <= at and each < end]
    assert all(each <= place.unsure_to for each in known)
    # What is restored was durable by then, whatever the clocks did.
    noted = [durable_by for each, durable_by in found if each <= place.last]
    assert all(durable_by <= at for durable_by in noted)


def test_times_are_asked_of_each_partition() -> None:
    times = {PartitionId(0): marks((4, 1000)), PartitionId(1): marks((1, 9000))}
    assert lasts(AtTime(2000), 10, 3, times=times) == {0: 4, 1: -1}
    archive = make_archive([10])
    archive.times = {PartitionId(0): marks((4, 1000), (9, 5000))}
    (place,) = places(archive, AtTime(2000), 1).values()
    assert place.left_out == 5
