"""What attempts of a task leave each other in the cluster's notes."""

from __future__ import annotations

import pytest

from waltz.errors import ConfigurationError, CorruptionError, VersionConflictError
from waltz.spark.sink_progress import (
    TaskIdentity,
    TaskProgress,
    current,
    join,
    refused,
    tasks_beyond,
    with_task,
    without_tasks,
)
from waltz.types import ClientId, PartitionId, TransactionId

TASK = TaskIdentity("accounts", 5, 2, "run 1")
MARKS = {PartitionId(0): TransactionId(17), PartitionId(10): TransactionId(-1)}
LATER = {PartitionId(0): TransactionId(99)}


def joined(data: bytes | None, client: int, identity: TaskIdentity = TASK) -> bytes:
    return join(data, identity, ClientId(client), MARKS if data is None else LATER)


def test_the_first_attempt_leaves_the_marks_and_all_leave_their_clients() -> None:
    """PS-07."""
    note = joined(joined(None, 7), 8)
    assert TaskProgress.decode(note) == TaskProgress(5, MARKS, (ClientId(7), ClientId(8)))


def test_a_later_batch_begins_anew_and_an_earlier_one_is_over() -> None:
    """PS-07."""
    note = joined(None, 7)
    later = TaskIdentity("accounts", 6, 2, "run 1")
    assert current(note, later) is None
    note = joined(note, 8, later)
    assert TaskProgress.decode(note) == TaskProgress(6, LATER, (ClientId(8),))
    with pytest.raises(
        ConfigurationError,
        match=r"^WALTZ-2011 task 2 of batch 5 of accounts: batch 6 has begun, so batch 5 is over",
    ):
        joined(note, 9)


def test_a_refused_lock_stays_refused_for_the_run() -> None:
    note = refused(joined(None, 7), TASK, "WALTZ-2010 the lock")
    with pytest.raises(VersionConflictError, match=r"^WALTZ-2010 the lock$"):
        joined(note, 8)
    next_run = TaskIdentity("accounts", 5, 2, "run 2")
    found = TaskProgress.decode(joined(note, 8, next_run))
    assert found == TaskProgress(5, MARKS, (ClientId(7), ClientId(8)))


def test_the_tasks_of_the_newest_batch_are_known() -> None:
    note = None
    for task in (3, 0, 3):
        note = with_task(note, TaskIdentity("a", 5, task, ""))
    assert tasks_beyond(note, 5, 1) == [3]
    assert tasks_beyond(note, 5, 4) == tasks_beyond(note, 4, 0) == tasks_beyond(None, 0, 0) == []
    assert tasks_beyond(with_task(note, TaskIdentity("a", 6, 0, "")), 6, 0) == [0]
    with pytest.raises(
        ConfigurationError, match=r"^WALTZ-2011 task 0 of batch 4 of a: batch 5 has"
    ):
        with_task(note, TaskIdentity("a", 4, 0, ""))
    with pytest.raises(CorruptionError, match=r"^WALTZ-2012 "):
        tasks_beyond(b"[]", 0, 0)


def test_the_tasks_of_a_write_without_a_name_need_the_note_that_it_began_with() -> None:
    once = TaskIdentity("once-1", 0, 2, "run", is_once=True)
    assert with_task(None, once) == with_task(b"", once) == b""
    begun = without_tasks(once)
    assert tasks_beyond(begun, 0, 0) == []
    assert tasks_beyond(with_task(begun, once), 0, 0) == [2]


def test_tasks_have_notes_of_their_own_whatever_the_write_is_called() -> None:
    names = {
        TaskIdentity(write_id, 0, task, "").note
        for write_id in ("a", "a-1", "a/b", "a%2Fb")
        for task in (1, 11)
    }
    assert len(names) == 8
    assert not any("/" in name for name in names)


@pytest.mark.parametrize("note", [b"", b"{}", b'{"format": 2}', b"[1]", b"\xff"])
def test_a_note_that_is_none_is_not_guessed_at(note: bytes) -> None:
    with pytest.raises(CorruptionError, match=r"^WALTZ-2012 .* expected format 1"):
        joined(note, 7)
