"""Every checker finds the violation that it exists for, and nothing in a clean history."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import pytest

from waltz.record import NewRecord, pack_records, request_id_bytes
from waltz.sim.checkers import (
    FILE_HEADER_BYTES,
    agreement,
    check_users,
    held_by_majority,
    records_on_disk,
)
from waltz.sim.history import Fed, History, Payload
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

P = PartitionId(0)


def payload(context: int, value: int = 0) -> bytes:
    return Payload(context, attempt=1, key=1, value=value, padding=b"x" * context).encode()


def fed(transaction_id: int, context: int, value: int = 0) -> Fed:
    return Fed(
        TransactionId(transaction_id),
        RequestId(ClientId(1), Generation(1), P, context),
        context,
        payload(context, value),
    )


class Run:
    """Three contexts, all committed, in a counting workload; every test spoils one thing."""

    def __init__(self) -> None:
        self.history = History()
        for context in (1, 2, 3):
            assert self.history.submit("client", P) == context
            submission = self.history.submissions[context]
            submission.written.append((context, payload(context, value=context)))
            self.history.end(context, True)
        self.log = {P: [fed(0, 1, 1), fed(1, 2, 2), fed(2, 3, 3)]}
        self.history.feed("client", P).extend(self.log[P])

    def violations(self) -> list[str]:
        return check_users(self.history, self.log)


def test_a_clean_history_has_no_violation() -> None:
    run = Run()
    assert run.violations() == []
    assert agreement({"storage": run.log}, run.log) == []
    assert run.history.ended_count == 3


def lose_a_committed_transaction(run: Run) -> None:
    run.log[P].pop()


def leave_a_gap(run: Run) -> None:
    run.log[P][1] = run.log[P][1]._replace(transaction_id=TransactionId(7))


def feed_twice(run: Run) -> None:
    run.history.feed("client", P).insert(1, run.log[P][0])


def feed_what_is_not_there(run: Run) -> None:
    run.history.feed("client", P).append(fed(3, 3))


def change_bytes(run: Run) -> None:
    run.log[P][1] = run.log[P][1]._replace(data=payload(2, value=2) + b"!")


def say_not_committed(run: Run) -> None:
    run.history.submissions[2].endings[:] = [False]


def never_answer(run: Run) -> None:
    run.history.submissions[2].endings.clear()


def answer_twice(run: Run) -> None:
    run.history.submissions[2].endings.append(True)


def write_twice(run: Run) -> None:
    run.log[P].append(run.log[P][0]._replace(transaction_id=TransactionId(3)))


def overwrite_an_update(run: Run) -> None:
    run.log[P][2] = fed(2, 3, 2)


@pytest.mark.parametrize(
    ("spoil", "promise"),
    [
        (lose_a_committed_transaction, "I1"),
        (leave_a_gap, "I4 density"),
        (feed_twice, "I4 feed"),
        (feed_what_is_not_there, "I4 feed"),
        (change_bytes, "I1"),
        (say_not_committed, "I5"),
        (never_answer, "I5"),
        (answer_twice, "I5"),
        (write_twice, "I6"),
        (overwrite_an_update, "I7"),
    ],
)
def test_every_broken_promise_is_found(spoil: Callable[[Run], None], promise: str) -> None:
    run = Run()
    spoil(run)
    assert any(violation.startswith(promise) for violation in run.violations())


def test_replicas_that_differ_are_found() -> None:
    run = Run()
    other = [*run.log[P][:2], fed(2, 1)]
    assert agreement({"a": run.log, "b": {P: other}}, run.log)[0].startswith("I2 agreement: b")
    assert agreement({"a": run.log, "b": {}}, run.log)


def test_uncommitted_records_beyond_the_log_are_no_violation() -> None:
    run = Run()
    assert agreement({"a": {P: [*run.log[P], fed(3, 1)]}}, run.log) == []


def test_a_committed_transaction_must_lie_on_a_majority_of_disks() -> None:
    run = Run()
    shorter = {P: run.log[P][:2]}
    assert held_by_majority(run.history, {"a": run.log, "b": run.log, "c": shorter}) == []
    (violation,) = held_by_majority(run.history, {"a": run.log, "b": shorter, "c": shorter})
    assert "context 3" in violation
    assert "1 of 3" in violation


def segment(first: int, contexts: list[int]) -> bytes:
    new = [
        NewRecord(request_id_bytes(item.request_id), item.header, item.data, checksum(item.data))
        for item in (fed(0, context) for context in contexts)
    ]
    return bytes(FILE_HEADER_BYTES) + pack_records(TransactionId(first), new).block


def checksum(data: bytes) -> int:
    return crc32(data)


def test_segment_files_are_read_in_order_of_their_names() -> None:
    files = {
        "0000000000000000002.seg": segment(2, [3]),
        "0000000000000000000.seg": segment(0, [1, 2]),
        "0000000000000000000.idx": b"whatever",
    }
    assert records_on_disk(files) == [fed(0, 1), fed(1, 2), fed(2, 3)]


def test_reading_ends_at_damage_and_at_every_torn_tail() -> None:
    whole = segment(0, [1, 2])
    for size in range(FILE_HEADER_BYTES, len(whole)):
        assert len(records_on_disk({"0000000000000000000.seg": whole[:size]})) < 2
    for offset in range(FILE_HEADER_BYTES, len(whole)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1
        assert len(records_on_disk({"0000000000000000000.seg": bytes(damaged)})) < 2
