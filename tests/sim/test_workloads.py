"""The simulated application writes down what it does and sees."""

from __future__ import annotations

from random import Random

import pytest

from waltz.client.transaction import Transaction, TransactionBuilder
from waltz.sim.history import Fed, History, Payload
from waltz.sim.trace import Trace
from waltz.sim.workloads import KEYS, WORKLOADS, Application, Intent, draw_intent
from waltz.types import NOTHING, ClientId, Generation, PartitionId, RequestId, TransactionId

P = PartitionId(1)


def application() -> Application:
    return Application("client", History(), Trace(), lambda: 0.0)


def no_fetch(partition_id: PartitionId, transaction_id: TransactionId) -> bytes:
    raise AssertionError("the data is here")


def apply(user: Application, transaction_id: int, payload: Payload) -> Fed:
    request_id = RequestId(ClientId(1), Generation(1), P, transaction_id)
    fed = Fed(TransactionId(transaction_id), request_id, 7, payload.encode())
    user.apply_transaction(
        Transaction(request_id, fed.transaction_id, fed.header, fed.data, no_fetch)
    )
    return fed


def intent(user: Application, *, counts: bool) -> Intent:
    return Intent(user, P, key=2, counts=counts, locked=counts, header=5, padding=b"pad")


def written(drawn: Intent) -> Payload:
    builder = TransactionBuilder()
    assert drawn.execute(builder)
    payload = Payload.decode(builder.data)
    assert payload is not None
    assert bool(builder.write_locks) == (payload.value > 0)
    return payload


@pytest.mark.parametrize("name", WORKLOADS)
def test_equal_seeds_draw_equal_plans(name: str) -> None:
    for seed in range(50):
        plans = WORKLOADS[name](Random(seed))
        assert plans == WORKLOADS[name](Random(seed))
        assert all(plan.transactions > 0 and plan.concurrency > 0 for plan in plans)


def test_what_is_fed_is_written_down_and_moves_the_mark() -> None:
    user = application()
    assert user.get_client_high_water_mark(P) == NOTHING
    fed = [apply(user, number, Payload(number, 1, 2, number, b"")) for number in range(3)]
    assert user.history.feed("client", P) == fed
    assert user.get_client_high_water_mark(P) == 2
    assert user.contexts_seen == {0, 1, 2}


def test_counting_contexts_write_one_more_than_was_applied_last() -> None:
    user = application()
    drawn = intent(user, counts=True)
    assert written(drawn).value == 1
    apply(user, 0, Payload(99, 1, 2, 41, b""))
    assert written(drawn) == Payload(drawn.number, 2, 2, 42, b"pad")


def test_other_contexts_count_nothing() -> None:
    assert written(intent(application(), counts=False)).value == 0


def test_every_attempt_and_ending_is_written_down() -> None:
    user = application()
    drawn = intent(user, counts=True)
    first, second = written(drawn), written(drawn)
    drawn.on_completion(True)
    submission = user.history.submissions[drawn.number]
    assert submission.written == [(5, first.encode()), (5, second.encode())]
    assert submission.endings == [True]
    assert drawn.ended.is_set()


def test_expiry_and_exceptions_are_endings_too() -> None:
    user = application()
    expired, failed = intent(user, counts=False), intent(user, counts=False)
    expired.on_expiration()
    failed.on_exception(ValueError("no"))
    assert [s.endings for s in user.history.submissions.values()] == [
        ["expired"],
        ["ValueError('no')"],
    ]


def test_drawn_contexts_stay_within_partitions_and_keys() -> None:
    user, random = application(), Random(1)
    partitions = set()
    for _ in range(100):
        drawn = draw_intent(random, user, 2, counts=True)
        partitions.add(drawn.partition_id(2))
        assert 0 <= written(drawn).key < KEYS
    assert partitions == {0, 1}


def test_exceptions_of_callbacks_are_kept() -> None:
    user = application()
    user.uncaught_exception(P, TransactionId(3), ValueError("broken"))
    assert user.errors == ["client in partition 1: ValueError('broken')"]
