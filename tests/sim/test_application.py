"""The simulated application writes down what it sees, and builds its state from the log."""

from __future__ import annotations

import pytest

from waltz.client.transaction import Transaction, TransactionBuilder
from waltz.errors import ClientClosedError, NotFoundError
from waltz.sim.applications.application import Application, Draft, Intent
from waltz.sim.judges.history import ContextVerdict, FedRecord, History, LockRefusal
from waltz.sim.judges.payload import EntryKind, Payload
from waltz.sim.judges.run_trace import RunTrace
from waltz.types import NOTHING, ClientId, Generation, PartitionId, RequestId, TransactionId

P = PartitionId(1)


def application() -> Application:
    return Application("client", History(), RunTrace(), lambda: 0.0)


def no_fetch(partition_id: PartitionId, transaction_id: TransactionId) -> bytes:
    raise AssertionError("the data is here")


def apply(user: Application, transaction_id: int, payload: Payload) -> FedRecord:
    request_id = RequestId(ClientId(1), Generation(1), P, transaction_id)
    fed = FedRecord(TransactionId(transaction_id), request_id, 7, payload.encode())
    user.apply_transaction(
        Transaction(request_id, fed.transaction_id, fed.header, fed.data, no_fetch)
    )
    return fed


def intent(user: Application, draft: Draft | None) -> Intent:
    return Intent(user, P, lambda application, partition_id: draft, header=5, padding=b"pad")


def written(drawn: Intent) -> Payload:
    builder = TransactionBuilder()
    assert drawn.execute(builder)
    payload = Payload.decode(builder.data)
    assert payload is not None
    assert builder.header == 5
    assert len(builder.write_locks) == len(payload.write_locks)
    assert len(builder.read_locks) == len(payload.read_locks)
    assert len(builder.append_locks) == len(payload.append_locks)
    return payload


def test_what_is_fed_is_written_down_and_moves_the_mark() -> None:
    user = application()
    assert user.get_client_high_water_mark(P) == NOTHING
    fed = [apply(user, number, Payload(number, 1)) for number in range(3)]
    assert user.history.feed("client", P) == fed
    assert user.get_client_high_water_mark(P) == 2
    assert user.contexts_seen == {0, 1, 2}


def test_its_state_is_what_was_counted_and_what_is_on_the_accounts() -> None:
    user = application()
    apply(user, 0, Payload(1, 1, EntryKind.COUNT, entries=((2, 41),)))
    apply(user, 1, Payload(2, 1, EntryKind.DEPOSIT, entries=((2, 1),)))
    assert user.values == {(P, 2): 41}
    assert user.accounts(P).balance(2) == 101
    assert user.accounts(PartitionId(0)).balance(2) == 100


def test_contexts_say_what_they_are_based_on_and_what_they_lock() -> None:
    user = application()
    drawn = intent(user, Draft(EntryKind.COUNT, (1, 2), (3,), (4,), ((1, 9),)))
    assert written(drawn) == Payload(
        1, 1, EntryKind.COUNT, -1, (1, 2), (3,), (4,), ((1, 9),), b"pad"
    )
    apply(user, 0, Payload(99, 1))
    assert written(drawn).mark == 0
    assert written(drawn).attempt == 3


def test_a_context_may_have_nothing_to_write() -> None:
    drawn = intent(application(), None)
    assert not drawn.execute(TransactionBuilder())
    assert drawn.submission.written == []


def test_every_attempt_and_ending_is_written_down() -> None:
    drawn = intent(application(), Draft(EntryKind.NOTE))
    first, second = written(drawn), written(drawn)
    drawn.on_completion(True)
    assert drawn.submission.written == [(5, first.encode()), (5, second.encode())]
    assert drawn.submission.has_ended(ContextVerdict.COMMITTED)
    assert drawn.ended.is_set()


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ClientClosedError("closed"), ContextVerdict.FAILED),
        (NotFoundError("no such partition"), ContextVerdict.UNWRITTEN),
        (ValueError("whatever"), ContextVerdict.FAILED),
    ],
)
def test_an_exception_says_whether_it_may_be_written(
    error: Exception, verdict: ContextVerdict
) -> None:
    drawn = intent(application(), Draft(EntryKind.NOTE))
    drawn.on_exception(error)
    (ending,) = drawn.submission.endings
    assert (ending.verdict, ending.text) == (verdict, repr(error))


def test_expiry_and_refusal_are_endings_too() -> None:
    user = application()
    expired, refused = intent(user, None), intent(user, None)
    expired.on_expiration()
    refused.on_completion(False)
    assert expired.submission.has_ended(ContextVerdict.EXPIRED)
    assert refused.submission.has_ended(ContextVerdict.REFUSED)


def test_refused_locks_are_kept_with_what_the_attempt_was_based_on() -> None:
    user = application()
    drawn = intent(user, Draft(EntryKind.NOTE, write_locks=(1,)))
    apply(user, 0, Payload(99, 1))
    written(drawn)
    apply(user, 1, Payload(98, 1))
    drawn.on_lock_failure(TransactionId(1))
    assert drawn.submission.refusals == [
        LockRefusal(TransactionId(0), TransactionId(1), drawn.request_id, 1)
    ]


def test_exceptions_of_callbacks_are_kept() -> None:
    user = application()
    user.uncaught_exception(P, TransactionId(3), ValueError("broken"))
    assert user.errors == ["client in partition 1: ValueError('broken')"]
