"""How far copies have to be what the log has, and where they part ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from waltz import Replica, ReplicaMarks
from waltz.spark.copies import (
    ARCHIVE,
    TASK_BLOCKS,
    Copy,
    CopyDifference,
    comparable_to,
    comparisons,
    first_difference,
    missing_promised,
)
from waltz.spark.offsets import TransactionRange
from waltz.types import PartitionId, ReplicaId, TransactionId

P = PartitionId(3)
NODE = Replica(P, ReplicaId("a:1"), 2, is_current=True, closing_mark=None)


def t(number: int) -> TransactionId:
    return TransactionId(number)


def run(first: int, end: int) -> TransactionRange:
    return TransactionRange(P, t(first), t(end))


def rows(**changed: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    for number in range(5):
        row = {"request_id": bytes([number]) * 16, "header": number, "data": b"data %d" % number}
        change = changed.get(f"at_{number}", {})
        if change is None:
            return
        yield {**row, **change}


def test_nothing_above_its_marks_has_to_be_equal() -> None:
    """What a replica has taken in sessions whose end it has not heard of may be cut off."""
    marks = ReplicaMarks(t(10), t(10), t(25))
    assert comparable_to(NODE, marks, t(20)) == 20
    assert comparable_to(NODE, replace(marks, last=t(15)), t(20)) == 15
    away = replace(NODE, is_current=False)
    assert comparable_to(away, marks, t(20)) == 10
    closed = replace(away, closing_mark=t(12))
    assert comparable_to(closed, marks, t(20)) == 12
    assert comparable_to(closed, marks, t(11)) == 11
    nothing = ReplicaMarks(t(-1), t(-1), t(-1))
    assert comparable_to(NODE, nothing, t(20)) == -1


def test_what_a_replica_has_promised_must_be_there() -> None:
    assert missing_promised(NODE, ReplicaMarks(t(10), t(10), t(10))) is None
    assert missing_promised(NODE, ReplicaMarks(t(-1), t(-1), t(-1))) is None
    lost = missing_promised(NODE, ReplicaMarks(t(10), t(9), t(6)))
    assert lost is not None
    assert (lost.transaction_id, lost.names) == (7, ("a:1",))
    assert str(lost) == (
        "partition 3, transaction 7: a:1 lacks it and all that follow, and has promised to hold"
        " everything to transaction 9"
    )


def test_ranges_have_the_copies_that_reach_so_far() -> None:
    a, b, c = Copy("a", t(30)), Copy("b", t(12), NODE), Copy(ARCHIVE, t(30))
    assert list(comparisons(P, [a, b, c])) == [(run(0, 12), (a, b, c)), (run(12, 30), (a, c))]
    assert list(comparisons(P, [a, b])) == [(run(0, 12), (a, b))]
    assert list(comparisons(P, [a])) == []
    assert list(comparisons(P, [Copy("a", t(0)), Copy("b", t(0))])) == []
    span = TASK_BLOCKS * 10_000
    long = [Copy("a", t(2 * span + 1)), Copy("b", t(2 * span + 1))]
    assert [each for each, _ in comparisons(P, long)] == [
        run(0, span),
        run(span, 2 * span),
        run(2 * span, 2 * span + 1),
    ]


def test_the_first_difference_is_named_with_whom_most_contradict() -> None:
    def found(**sides: Iterator[dict[str, Any]]) -> CopyDifference | None:
        return first_difference(run(0, 5), sides)

    assert found(a=rows(), b=rows()) is None
    one = found(a=rows(), b=rows(at_2={"data": b"dAta 2"}, at_4={"header": 9}), c=rows())
    assert one is not None
    assert (one.transaction_id, one.names) == (2, ("b",))
    assert str(one) == (
        "partition 3, transaction 2: b: data at byte 1 is 0x41, not 0x61, unlike a and c"
    )
    several = found(a=rows(), b=rows(at_1={"header": 7, "data": b""}))
    assert several is not None
    assert several.names == ("a", "b")
    assert several.detail == "b: header is 7, not 1 and data has 0 bytes, not 6, unlike a"
    short = found(a=rows(), b=rows(), c=rows(at_3=None))
    assert short is not None
    assert (short.transaction_id, short.detail) == (3, "c: it is missing, unlike a and b")
    more = found(a=rows(at_0=None), b=rows(at_0=None), c=rows())
    assert more is not None
    assert more.detail == "c: it is there, unlike a and b"
