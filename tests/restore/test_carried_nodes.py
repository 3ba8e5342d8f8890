"""What a restored cluster keeps of notes and named consumers."""

from __future__ import annotations

import json

import pytest

from waltz.cluster.consumer_marks import KeptMark, decode_kept, encode_kept
from waltz.errors import ConfigurationError
from waltz.restore.carried_nodes import NO_BATCH, carried_consumers, carried_notes
from waltz.spark.sink_progress import TaskIdentity, TaskProgress, current, join, with_task
from waltz.types import ClientId, PartitionId, TransactionId

LASTS = {PartitionId(0): TransactionId(100), PartitionId(1): TransactionId(-1)}


def kept(*marks: int) -> bytes:
    return encode_kept(
        {PartitionId(p): KeptMark(TransactionId(mark), 1000) for p, mark in enumerate(marks)}
    )


def test_a_consumers_mark_beyond_the_point_is_dropped_with_a_sentence() -> None:
    carried = carried_consumers({"orders": kept(100, 0), "audit": kept(101)}, LASTS)
    assert {name: decode_kept(data) for name, data in carried.nodes.items()} == {
        "orders": {PartitionId(0): KeptMark(TransactionId(100), 1000)}
    }
    assert carried.changes == (
        "consumer audit: its mark 101 of partition 0 is beyond the point, and dropped",
        "consumer orders: its mark 0 of partition 1 is beyond the point, and dropped",
    )


def test_a_consumer_that_cannot_be_read_is_dropped() -> None:
    carried = carried_consumers({"orders": b"\xff"}, LASTS)
    assert carried.nodes == {}
    assert "consumer orders: dropped" in carried.changes[0]


def note(batch: int, **marks: int) -> bytes:
    found = {PartitionId(int(p[1:])): TransactionId(mark) for p, mark in marks.items()}
    return TaskProgress(batch, found, (ClientId(4),)).encode()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (note(7, p0=105), "batch 7 began after transaction 105 of partition 0, which is beyond"),
        (note(7, p0=90), "batch 7 was the last when the note was archived"),
        (b"nothing", "the archived note cannot be read"),
        (note(7, p5=0), "batch 7 began after transaction 0 of partition 5"),
    ],
)
def test_a_sink_whose_rows_may_be_missing_is_told_so_in_its_next_batch(
    data: bytes, why: str
) -> None:
    identity = TaskIdentity("q", 8, 0, "run")
    carried = carried_notes({identity.note: data, identity.tasks_note: data}, LASTS, "R1")
    assert all(why in change for change in carried.changes)
    assert len(carried.changes) == 2
    for batch in (0, 7, 8, 10_000):
        later = TaskIdentity("q", batch, 0, "run")
        for ask in (
            lambda each=later: join(carried.nodes[each.note], each, ClientId(9), {}),
            lambda each=later: current(carried.nodes[each.note], each),
            lambda each=later: with_task(carried.nodes[each.tasks_note], each),
        ):
            with pytest.raises(ConfigurationError, match="WALTZ-2011") as raised:
                ask()
            assert why in str(raised.value)
            assert "restore R1" in str(raised.value)


def test_a_release_that_does_not_know_restores_refuses_the_batch_as_over() -> None:
    """Such a release reads format, batch and, of the tasks' note, tasks."""
    carried = carried_notes({"spark-q-0": note(7, p0=105)}, LASTS, "R1")
    data = json.loads(carried.nodes["spark-q-0"])
    del data["restored"]
    identity = TaskIdentity("q", 10**9, 0, "run")
    for ask in (current, with_task):
        with pytest.raises(ConfigurationError, match="WALTZ-2011"):
            ask(json.dumps(data).encode(), identity)


def test_the_notes_of_others_are_kept_as_they_are() -> None:
    carried = carried_notes({"import-7": b"\x00\x01"}, LASTS, "R1")
    assert carried.nodes == {"import-7": b"\x00\x01"}
    assert carried.changes == ()


def test_a_note_that_refuses_already_is_not_said_to_have_been_at_a_batch() -> None:
    """A restore that is resumed, and a second restore, find such a note."""
    once = carried_notes({"spark-q-0": note(7, p0=105)}, LASTS, "R1")
    again = carried_notes(once.nodes, LASTS, "R2")
    assert str(NO_BATCH) not in "".join(again.changes)
    (change,) = again.changes
    assert change == (
        "note spark-q-0: refuses every batch from now on, since it did so before: the log was"
        " restored from an archive (restore R1): batch 7 began after transaction 105 of partition"
        " 0, which is beyond the point: rows of earlier batches are missing"
    )
    assert again.nodes == once.nodes
