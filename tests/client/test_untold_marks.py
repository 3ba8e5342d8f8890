"""Marks that a client has to tell servers, and the states with nothing to tell."""

from __future__ import annotations

from waltz.client.untold_marks import AppliedPosition, UntoldMarks
from waltz.types import PartitionId, TransactionId
from waltz.wire.clients_protocol import APPLIED_MARKS_MAX, AppliedMark, AppliedMarks

P0, P1 = PartitionId(0), PartitionId(1)


def at(mark: int, stream: int | None = 7, *, is_applying: bool = False) -> AppliedPosition:
    return AppliedPosition(stream, TransactionId(mark), is_applying)


def marks(*pairs: tuple[PartitionId, int]) -> AppliedMarks:
    return AppliedMarks(tuple(AppliedMark(each, TransactionId(mark)) for each, mark in pairs))


def test_a_mark_that_moved_is_told_once() -> None:
    untold = UntoldMarks()
    untold.note(P0)
    untold.note(P0)
    assert untold
    assert untold.take({P0: at(5)}.get) == [(7, marks((P0, 5)))]
    assert not untold
    untold.note(P0)
    assert untold.take({P0: at(5)}.get) == []


def test_marks_on_one_stream_go_in_one_message() -> None:
    untold = UntoldMarks()
    for partition_id in (P1, P0, PartitionId(2)):
        untold.note(partition_id)
    positions = {P0: at(5), P1: at(6), PartitionId(2): at(1, 8)}
    told = untold.take(positions.get)
    assert told == [(7, marks((P0, 5), (P1, 6))), (8, marks((PartitionId(2), 1)))]


def test_a_partition_that_is_applying_is_looked_at_again() -> None:
    """One call of an application may take hours, and move the mark with each transaction."""
    untold = UntoldMarks()
    untold.note(P0)
    assert untold.take({P0: at(5, is_applying=True)}.get) == [(7, marks((P0, 5)))]
    assert untold.take({P0: at(5, is_applying=True)}.get) == []
    assert untold.take({P0: at(6, is_applying=True)}.get) == [(7, marks((P0, 6)))]
    assert untold.take({P0: at(9)}.get) == [(7, marks((P0, 9)))]
    assert not untold


def test_a_new_stream_is_told_what_the_one_before_was_told() -> None:
    untold = UntoldMarks()
    untold.note(P0)
    untold.take({P0: at(5)}.get)
    untold.note(P0)
    assert untold.take({P0: at(5, 8)}.get) == [(8, marks((P0, 5)))]


def test_nothing_is_told_of_partitions_that_are_not_mounted() -> None:
    untold = UntoldMarks()
    untold.note(P0)
    untold.note(P1)
    assert untold.take({P0: at(5, None)}.get) == []
    assert not untold


def test_many_marks_are_told_in_several_messages() -> None:
    untold = UntoldMarks()
    count = APPLIED_MARKS_MAX + 1
    for number in range(count):
        untold.note(PartitionId(number))
    told = untold.take(lambda _: at(5))
    assert [len(message.marks) for _, message in told] == [APPLIED_MARKS_MAX, 1]
