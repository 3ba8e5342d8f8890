"""Entries that wait, by value: bounds, losses and sums."""

from __future__ import annotations

from dataclasses import replace

from tests.audit.logs import entry
from waltz.audit.audit_entry import AuditDecision
from waltz.audit.pending_entries import OTHERS, SUM_SECONDS, PendingEntries, Summed


def summed(principal: str, partition: int | None = 3) -> Summed:
    return Summed(principal, "append", partition, 7)


def test_entries_stay_until_they_are_written() -> None:
    pending = PendingEntries()
    assert pending.put(entry(1))
    assert pending.put(entry(2))
    assert pending.to_write(0, 0.0) == pending.to_write(0, 0.0) == [entry(1), entry(2)]
    pending.put(entry(3))
    pending.wrote(2)
    assert pending.to_write(0, 0.0) == [entry(3)]
    assert pending.written_count == 2


def test_what_there_is_no_room_for_is_counted_and_told_once_there_is() -> None:
    pending = PendingEntries(entries_max=2, reserved=0)
    assert [pending.put(entry(number)) for number in range(5)] == [True, True, False, False, False]
    assert not pending.has_room
    assert pending.to_write(9, 0.0) == [entry(0), entry(1)]
    pending.wrote(2)
    (told,) = pending.to_write(9, 0.0)
    assert (told.decision, told.count, told.at) == (AuditDecision.LOST, 3, 9)
    pending.wrote(1)
    assert (pending.lost, pending.to_write(9, 0.0)) == (3, [])


def test_denials_leave_room_for_what_operators_do() -> None:
    pending = PendingEntries(entries_max=5, reserved=2)
    assert [pending.put(entry(number)) for number in range(4)] == [True, True, True, False]
    assert pending.has_room
    allowed = replace(entry(9), decision=AuditDecision.ALLOWED)
    assert [pending.put(allowed) for _ in range(3)] == [True, True, False]
    assert not pending.has_room


def test_after_a_failure_there_is_no_room_until_something_is_written() -> None:
    pending = PendingEntries()
    pending.put(entry(1))
    pending.failed()
    assert not pending.has_room
    assert pending.put(entry(2)), "kept, for the disk may come back"
    pending.wrote(1)
    assert pending.has_room


def test_sums_are_a_line_per_minute_principal_verb_and_partition() -> None:
    pending = PendingEntries()
    pending.add(summed("CN=a"), 2, 10.0)
    pending.add(summed("CN=a"), 3, 60.0)
    pending.add(summed("CN=b", None), 1, 60.0)
    assert pending.to_write(5, 10.0 + SUM_SECONDS - 0.1) == []
    first, second = pending.to_write(5, 10.0 + SUM_SECONDS)
    assert (first.principal, first.verb, first.partition, first.count) == ("CN=a", "append", 3, 5)
    assert (first.decision, first.policy, first.at) == (AuditDecision.ALLOWED, 7, 5)
    assert (second.principal, second.partition, second.count) == ("CN=b", None, 1)
    pending.wrote(2)
    pending.add(summed("CN=a"), 1, 200.0)
    assert pending.to_write(5, 200.0) == []
    assert [each.count for each in pending.to_write(5, 200.0, is_last=True)] == [1]


def test_sums_are_bounded_and_none_is_lost_when_there_is_no_room() -> None:
    pending = PendingEntries(entries_max=2, reserved=0, sums_max=3)
    for number in range(10):
        pending.add(summed(f"CN={number}"), 1, 0.0)
    pending.put(entry(1))
    found = []
    while batch := pending.to_write(0, SUM_SECONDS):
        assert len(batch) <= 2
        pending.wrote(len(batch))
        found += [each for each in batch if each.decision is AuditDecision.ALLOWED]
    assert [(each.principal, each.count) for each in found] == [
        ("CN=0", 1), ("CN=1", 1), ("CN=2", 1), (OTHERS, 7),
    ]  # fmt: skip
    assert pending.lost == 0
