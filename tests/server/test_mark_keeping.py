"""When a server writes the marks of consumers, and what it writes."""

from __future__ import annotations

from waltz.cluster.consumer_marks import CONSUMERS_MAX, KeptMark
from waltz.server.clients.mark_keeping import (
    KEEP_SECONDS,
    LEFT_SECONDS,
    MarkKeeping,
    MarksToWrite,
)
from waltz.types import PartitionId, TransactionId

P0, P1 = PartitionId(0), PartitionId(1)


def mark(number: int, wall: int = 100) -> KeptMark:
    return KeptMark(TransactionId(number), wall)


def test_a_first_mark_is_written_at_once_and_the_next_ones_together_later() -> None:
    keeping = MarkKeeping()
    keeping.note(1, "orders", P0, mark(5), 10.0)
    assert keeping.take(10.0) == MarksToWrite("orders", {P0: mark(5)})
    keeping.note(1, "orders", P0, mark(6), 11.0)
    keeping.note(1, "orders", P1, mark(2), 12.0)
    keeping.note(1, "orders", P0, mark(9), 13.0)
    assert keeping.deadline == 10.0 + KEEP_SECONDS
    assert keeping.take(39.9) is None
    assert keeping.take(40.0) == MarksToWrite("orders", {P0: mark(9), P1: mark(2)})
    assert len(keeping) == 0
    keeping.check_invariants()


def test_a_client_that_leaves_was_seen_until_then() -> None:
    keeping = MarkKeeping()
    keeping.note(1, "orders", P0, mark(5), 10.0)
    keeping.take(10.0)
    keeping.leave(1, 999, 10.5)
    assert keeping.deadline == 10.0 + LEFT_SECONDS
    assert keeping.take(11.0) == MarksToWrite("orders", {P0: mark(5, 999)})
    keeping.leave(1, 1_000, 12.0)
    assert len(keeping) == 0


def test_nothing_is_kept_of_connections_that_told_nothing() -> None:
    keeping = MarkKeeping()
    keeping.leave(7, 999, 10.0)
    assert keeping.take_any(10.0) is None


def test_what_could_not_be_written_is_tried_again_with_what_came_since() -> None:
    keeping = MarkKeeping()
    keeping.note(1, "orders", P0, mark(5), 10.0)
    taken = keeping.take(10.0)
    assert taken is not None
    keeping.note(1, "orders", P0, mark(8), 11.0)
    keeping.put_back(*taken, 15.0)
    assert keeping.take(15.0) is None
    assert keeping.take(40.0) == MarksToWrite("orders", {P0: mark(8)})


def test_a_fallen_mark_does_not_lower_what_waits() -> None:
    keeping = MarkKeeping()
    keeping.note(1, "orders", P0, mark(5), 10.0)
    keeping.note(1, "orders", P0, mark(2, 200), 10.1)
    assert keeping.take(10.2) == MarksToWrite("orders", {P0: mark(5)})


def test_the_names_that_wait_are_bounded() -> None:
    """A hostile peer may take as many names as it likes."""
    keeping = MarkKeeping()
    for number in range(CONSUMERS_MAX + 100):
        keeping.note(number, f"c{number}", P0, mark(1), 10.0)
    keeping.note(3, "c3", P1, mark(1), 10.0)
    assert len(keeping) == CONSUMERS_MAX
    keeping.check_invariants()
    taken = set()
    while (wanted := keeping.take(10.0)) is not None:
        taken.add(wanted.name)
    assert len(taken) == CONSUMERS_MAX


def test_a_client_that_comes_and_goes_is_written_once_a_second_at_most() -> None:
    keeping = MarkKeeping()
    writes = 0
    for tick in range(600):
        now = tick / 10
        keeping.note(tick, "orders", P0, mark(tick), now)
        keeping.leave(tick, tick, now)
        while keeping.take(now) is not None:
            writes += 1
    assert writes <= 61


def test_a_server_that_stops_takes_all_that_waits() -> None:
    keeping = MarkKeeping()
    for name in ("a", "b"):
        keeping.note(1, name, P0, mark(1), 10.0)
        keeping.take(10.0)
        keeping.note(1, name, P0, mark(2), 11.0)
    taken = [keeping.take_any(12.0), keeping.take_any(12.0), keeping.take_any(12.0)]
    assert taken == [MarksToWrite("a", {P0: mark(2)}), MarksToWrite("b", {P0: mark(2)}), None]
