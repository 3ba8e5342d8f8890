"""What an attempt lets through, on a note of the cluster and transactions made of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from waltz import ClusterNotes, PartitionLocalLock, RequestId, Transaction
from waltz.spark.sink_progress import TaskIdentity, TaskProgress, join
from waltz.spark.sink_rows import SinkRow, content_digest
from waltz.spark.sink_state import ROW_LOCK, LoggedRows, RowContext, RowLocks
from waltz.types import ClientId, Generation, PartitionId, TransactionId

TASK = TaskIdentity("accounts", 0, 0, "run")
OWN, EARLIER, LATER, STRANGER = (ClientId(number) for number in range(1, 5))
MARKS = {PartitionId(0): TransactionId(9)}
LOCK_NUMBERS = (-7539132497152182643, 5351352004805871812)
"""Those of the contents `a` and `b`: an attempt of an earlier release has the same."""


class OneNote:
    """The cluster's notes, of which only one is asked for."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.asked = 0

    def change(self, name: str, change: Callable[[bytes | None], bytes]) -> bytes:
        assert name == TASK.note
        self.asked += 1
        self.data = change(self.data)
        return self.data


def begun(note: OneNote) -> LoggedRows:
    for client_id in (EARLIER, OWN):
        note.data = join(note.data, TASK, client_id, MARKS)
    assert note.data is not None
    state = LoggedRows(TASK, cast(ClusterNotes, note))
    state.begin(OWN, TaskProgress.decode(note.data))
    return state


def logged(client_id: ClientId, transaction_id: int, data: bytes) -> Transaction:
    request_id = RequestId(client_id, Generation(1), PartitionId(0), transaction_id)
    return Transaction(request_id, TransactionId(transaction_id), 0, data, lambda _, __: b"")


def row_of(state: LoggedRows, data: bytes, rank: int = 0) -> RowContext:
    row = RowContext(SinkRow(0, 0, data), content_digest(0, data), rank, state)
    state.note_start(row)
    return row


def test_it_is_followed_from_where_the_batch_began() -> None:
    state = begun(OneNote())
    assert state.get_client_high_water_mark(PartitionId(0)) == 9
    assert state.get_client_high_water_mark(PartitionId(1)) == -1  # added since


def test_what_other_attempts_wrote_is_not_wanted_again() -> None:
    """PS-07."""
    note = OneNote()
    state = begun(note)
    row, second = row_of(state, b"a"), row_of(state, b"a", rank=1)
    assert state.wants(row)
    state.apply_transactions([logged(EARLIER, 10, b"a")])
    assert not state.wants(row)
    assert state.wants(second)
    assert not note.asked


def test_an_attempt_that_joined_later_is_known_by_its_first_transaction() -> None:
    """PS-07. A zombie must see what its successor writes."""
    note = OneNote()
    state = begun(note)
    row = row_of(state, b"a")
    note.data = join(note.data, TASK, LATER, MARKS)
    transactions = [logged(STRANGER, 10, b"a"), logged(LATER, 11, b"a"), logged(STRANGER, 12, b"a")]
    assert state.choose_prefetch(transactions) == transactions[1:2]
    state.apply_transactions(transactions[:1])
    assert state.wants(row)
    state.apply_transactions(transactions[1:])
    assert not state.wants(row)
    assert note.asked == 1  # the stranger was asked for, and the note names all


def test_nothing_is_wanted_once_a_later_batch_has_begun() -> None:
    note = OneNote()
    state = begun(note)
    row = row_of(state, b"a")
    note.data = join(note.data, TaskIdentity("accounts", 1, 0, "run"), LATER, MARKS)
    state.apply_transactions([logged(LATER, 10, b"a")])
    assert not state.wants(row)
    assert str(state.error).startswith("WALTZ-2011 ")


def test_what_is_too_much_is_named() -> None:
    state = begun(OneNote())
    key = 0, content_digest(0, b"a")
    state.apply_transactions([logged(EARLIER, 10, b"a"), logged(EARLIER, 11, b"a")])
    assert state.first_other({key: 2}) is None
    assert state.first_other({key: 1}) == "transaction 11 of partition 0"


def test_a_lock_is_refused_only_for_what_somebody_else_wrote_meanwhile() -> None:
    lock = PartitionLocalLock("account", 17)
    state = begun(OneNote())
    row = row_of(state, b"a")
    row.executed_at = TransactionId(10)
    state.apply_transactions([logged(STRANGER, 10, b""), logged(EARLIER, 11, b"b")])
    state.refuse(row, TransactionId(11), lock)
    assert state.error is None
    state.apply_transactions([logged(STRANGER, 12, b""), logged(EARLIER, 13, b"c")])
    state.refuse(row, TransactionId(13), lock)
    assert state.refusal is not None
    assert state.refusal.endswith("partition 0 was taken by transaction 12")
    assert not state.wants(row)


def test_the_lock_of_a_row_is_the_same_for_all_attempts_and_for_nobody_else() -> None:
    digests = [content_digest(0, b"a"), content_digest(0, b"b")]
    ours = [RowLocks(TASK).lock(each) for each in digests]
    assert ours == [PartitionLocalLock(ROW_LOCK, each) for each in LOCK_NUMBERS]
    assert RowLocks(TASK).hashes(digests).tolist() == [each.hash for each in ours]
    others = [TaskIdentity("accounts", 0, 1, ""), TaskIdentity("accounts", 1, 0, "")]
    assert len({RowLocks(each).lock(digests[0]) for each in others} | {ours[0]}) == 3
