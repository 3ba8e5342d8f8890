"""Every checker finds the violation that it exists for, and nothing in a clean history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from waltz.sim.judges.checkers import check_users
from waltz.sim.judges.history import (
    ContextVerdict,
    Ending,
    FedRecord,
    History,
    LockRefusal,
    OutcomeTold,
)
from waltz.sim.judges.payload import EntryKind, Payload
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

P = PartitionId(0)


class Run:
    """Contexts that all were committed, one after the other; every test spoils one thing."""

    def __init__(self, *payloads: Payload) -> None:
        self.history = History()
        self.log: dict[PartitionId, list[FedRecord]] = {P: []}
        for payload in payloads:
            context = self.history.submit("client", P)
            assert context == payload.context
            self.history.submissions[context].written.append((context, payload.encode()))
            self.history.end(context, ContextVerdict.COMMITTED)
            self.log[P].append(fed(len(self.log[P]), payload))
        self.history.feed("client", P).extend(self.log[P])

    def put(self, transaction_id: int, payload: Payload) -> None:
        """Let the log, and what was written and fed, have `payload` there instead."""
        self.log[P][transaction_id] = fed(transaction_id, payload)
        self.history.submissions[payload.context].written.append(
            (payload.context, payload.encode())
        )
        self.history.feed("client", P)[transaction_id] = self.log[P][transaction_id]

    def violations(self) -> list[str]:
        return check_users(self.history, self.log)


def fed(transaction_id: int, payload: Payload) -> FedRecord:
    request_id = RequestId(ClientId(1), Generation(1), P, payload.context)
    return FedRecord(TransactionId(transaction_id), request_id, payload.context, payload.encode())


def count(context: int, value: int, mark: int) -> Payload:
    return Payload(context, 1, EntryKind.COUNT, mark, write_locks=(1,), entries=((1, value),))


def counting() -> Run:
    return Run(count(1, 1, -1), count(2, 2, 0), count(3, 3, 1))


def test_a_clean_history_has_no_violation() -> None:
    assert counting().violations() == []


def lose_a_committed_transaction(run: Run) -> None:
    run.log[P].pop()


def leave_a_gap(run: Run) -> None:
    run.log[P][1] = run.log[P][1]._replace(transaction_id=TransactionId(7))


def feed_twice(run: Run) -> None:
    run.history.feed("client", P).insert(1, run.log[P][0])


def feed_what_is_not_there(run: Run) -> None:
    run.history.feed("client", P).append(fed(3, count(3, 3, 1)))


def change_bytes(run: Run) -> None:
    run.log[P][1] = run.log[P][1]._replace(data=run.log[P][1].data + b"!")


def change_the_header(run: Run) -> None:
    run.log[P][1] = run.log[P][1]._replace(header=99)


def say_not_committed(run: Run) -> None:
    run.history.submissions[2].endings[:] = [Ending(ContextVerdict.REFUSED, 9)]


def say_unwritten(run: Run) -> None:
    run.history.submissions[2].endings[:] = [Ending(ContextVerdict.UNWRITTEN, 9, "NotFoundError()")]


def never_answer(run: Run) -> None:
    run.history.submissions[2].endings.clear()


def answer_twice(run: Run) -> None:
    run.history.submissions[2].endings.append(Ending(ContextVerdict.COMMITTED, 9))


def go_to_another_partition(run: Run) -> None:
    run.history.submissions[2].partition_id = PartitionId(1)


def write_twice(run: Run) -> None:
    run.log[P].append(run.log[P][0]._replace(transaction_id=TransactionId(3)))


def overwrite_an_update(run: Run) -> None:
    run.put(2, count(3, 2, 1))


def pass_a_lock_that_was_taken(run: Run) -> None:
    run.put(2, Payload(3, 2, EntryKind.NOTE, 0, write_locks=(1,)))


def pass_a_read_lock_that_was_taken(run: Run) -> None:
    run.put(2, Payload(3, 2, EntryKind.NOTE, 0, read_locks=(1,)))


def refuse_for_what_was_applied(run: Run) -> None:
    run.history.submissions[3].refusals.append(LockRefusal(TransactionId(1), TransactionId(1)))


def refuse_for_what_never_was(run: Run) -> None:
    run.history.submissions[3].refusals.append(LockRefusal(TransactionId(1), TransactionId(7)))


def say(run: Run, context: int, transaction_id: int | None) -> None:
    request_id = RequestId(ClientId(1), Generation(1), P, context)
    place = None if transaction_id is None else TransactionId(transaction_id)
    run.history.outcomes.append(OutcomeTold("client", request_id, place))


def say_that_it_is_nowhere(run: Run) -> None:
    say(run, 2, None)


def say_that_it_is_elsewhere(run: Run) -> None:
    say(run, 2, 2)


def say_that_it_is_somewhere(run: Run) -> None:
    say(run, 9, 1)


def test_outcomes_that_are_those_of_the_log_are_right() -> None:
    run = counting()
    say(run, 2, 1)
    say(run, 9, None)
    assert run.violations() == []


@pytest.mark.parametrize(
    ("spoil", "promise"),
    [
        (lose_a_committed_transaction, "I1 durability"),
        (leave_a_gap, "I4 density"),
        (feed_twice, "I4 feed"),
        (feed_what_is_not_there, "I4 feed"),
        (change_bytes, "I1 durability"),
        (change_the_header, "I1 durability"),
        (say_not_committed, "I5 verdict"),
        (say_unwritten, "I5 verdict"),
        (never_answer, "I5 verdict"),
        (answer_twice, "I5 verdict"),
        (go_to_another_partition, "I5 verdict"),
        (write_twice, "I6 at most once"),
        (write_twice, "I5 verdict"),
        (overwrite_an_update, "I7 lost update"),
        (pass_a_lock_that_was_taken, "I7 lock safety"),
        (pass_a_read_lock_that_was_taken, "I7 lock safety"),
        (refuse_for_what_was_applied, "I8 lock progress"),
        (refuse_for_what_never_was, "I8 lock progress"),
        (say_that_it_is_nowhere, "I13 outcome"),
        (say_that_it_is_elsewhere, "I13 outcome"),
        (say_that_it_is_somewhere, "I13 outcome"),
    ],
)
def test_every_broken_promise_is_found(spoil: Callable[[Run], None], promise: str) -> None:
    run = counting()
    spoil(run)
    assert any(violation.startswith(promise) for violation in run.violations())


@pytest.mark.parametrize(
    "verdict",
    [ContextVerdict.COMMITTED, ContextVerdict.FAILED, ContextVerdict.EXPIRED, ContextVerdict.LOST],
)
def test_who_does_not_know_may_find_it_in_the_log(verdict: ContextVerdict) -> None:
    run = counting()
    run.history.submissions[2].endings[:] = [Ending(verdict, 9)]
    assert run.violations() == []


def test_append_locks_are_taken_but_not_checked() -> None:
    run = Run(
        Payload(1, 1, mark=-1, append_locks=(1,)),
        Payload(2, 1, mark=-1, append_locks=(1,)),
        Payload(3, 1, mark=1, read_locks=(1,)),
    )
    assert run.violations() == []
    run.put(2, Payload(3, 2, mark=0, read_locks=(1,)))
    assert run.violations()[0].startswith("I7 lock safety: transaction 2")


def test_refusals_for_what_was_not_applied_are_right() -> None:
    run = counting()
    run.history.submissions[3].refusals.append(LockRefusal(TransactionId(0), TransactionId(1)))
    assert run.violations() == []


TRANSFER = Payload(2, 1, EntryKind.TRANSFER, 0, write_locks=(1, 2), entries=((1, 80), (2, 130)))
AUDIT = Payload(3, 1, EntryKind.AUDIT, 1, read_locks=(1, 2), entries=((1, 80), (2, 130)))


def banking(transfer: Payload = TRANSFER, audit: Payload = AUDIT) -> Run:
    deposit = Payload(1, 1, EntryKind.DEPOSIT, -1, append_locks=(2,), entries=((2, 10),))
    return Run(deposit, transfer, audit)


def test_a_clean_bank_has_no_violation() -> None:
    assert banking().violations() == []


@pytest.mark.parametrize(
    "entries", [((1, 80), (2, 120)), ((1, -10), (2, 220)), ((1, 81), (2, 130))]
)
def test_a_transfer_that_makes_money_or_debts_is_found(
    entries: tuple[tuple[int, int], ...],
) -> None:
    bad = Payload(2, 1, EntryKind.TRANSFER, 0, write_locks=(1, 2), entries=entries)
    assert banking(transfer=bad).violations()[0].startswith("I7 money: transaction 1")


def test_an_audit_that_saw_an_older_state_is_found() -> None:
    bad = Payload(3, 1, EntryKind.AUDIT, 1, read_locks=(1, 2), entries=((1, 100), (2, 110)))
    assert banking(audit=bad).violations()[0].startswith("I7 money: transaction 2")
