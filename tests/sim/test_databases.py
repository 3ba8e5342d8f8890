"""The simulated database has what was committed, whoever dies in the middle of what."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from waltz.client.transaction import Transaction
from waltz.errors import PostponedError
from waltz.sim.applications.databases import DatabaseApplication, SimulatedDatabase
from waltz.sim.judges.history import History
from waltz.sim.judges.payload import EntryKind, Payload
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import ProcessKilled
from waltz.types import NOTHING, ClientId, Generation, PartitionId, RequestId, TransactionId

P = PartitionId(0)


class Quiet(Random):
    """Draws no trouble, and no partition that is left to others."""

    def random(self) -> float:
        return 0.9


def transactions(first: int, count: int) -> list[Transaction]:
    def fetch(*_: object) -> bytes:
        raise AssertionError("the data is here")

    return [
        Transaction(
            RequestId(ClientId(1), Generation(1), P, number + 1),
            TransactionId(number),
            -3,
            Payload(number, 1, EntryKind.COUNT, entries=((7, number),)).encode(),
            fetch,
        )
        for number in range(first, first + count)
    ]


def application(
    database: SimulatedDatabase, history: History, random: Random | None = None
) -> DatabaseApplication:
    return DatabaseApplication(
        "client", history, RunTrace(), lambda: 0.0, random or Quiet(1), database
    )


def dying(statements: int) -> Callable[[], None]:
    left = [statements]

    def pass_statement() -> None:
        if not left[0]:
            raise ProcessKilled("client")
        left[0] -= 1

    return pass_statement


def apply(user: DatabaseApplication, handed: list[Transaction]) -> None:
    user.choose_prefetch(handed)
    user.apply_transactions(handed)


def test_what_is_applied_is_in_the_tables_and_in_the_history() -> None:
    database, history = SimulatedDatabase(), History()
    user = application(database, history)
    assert user.get_client_high_water_mark(P) == NOTHING
    apply(user, transactions(0, 3))
    assert [fed.transaction_id for fed in history.feed("client", P)] == [0, 1, 2]
    assert history.feed("client", P)[0].header == -3
    assert user.value(P, 7) == 2
    assert user.applied_through(P) == user.passed_through(P) == user.marks[P] == 2
    assert user.contexts_seen == {0, 1, 2}
    database.close()


def test_it_may_die_at_each_statement_and_at_each_end_of_a_commit() -> None:
    """Either all of a batch is there then, or nothing, and the next process goes on with it."""
    ends = set()
    for statements in range(40):
        database, history = SimulatedDatabase(), History()
        user = application(database, history)
        user.get_client_high_water_mark(P)
        apply(user, transactions(0, 1))
        user.pass_statement = dying(statements)
        died = False
        try:
            apply(user, transactions(1, 3))
        except ProcessKilled:
            died = True
        following = application(database, history)
        mark = following.get_client_high_water_mark(P)
        assert mark == following.applied_through(P)
        assert mark in (0, 3)
        ends.add((died, mark))
        if mark == 0:
            apply(following, transactions(1, 3))
        assert [fed.transaction_id for fed in history.feed("client", P)] == [0, 1, 2, 3]
        database.close()
    assert ends == {(True, 0), (True, 3), (False, 3)}


def test_of_two_processes_each_transaction_is_applied_by_one() -> None:
    database, history = SimulatedDatabase(), History()
    one, other = application(database, history), application(database, history)
    for user in (one, other):
        user.get_client_high_water_mark(P)
        user.choose_prefetch(transactions(0, 2))
    one.apply_transactions(transactions(0, 2))
    other.apply_transactions(transactions(0, 4))
    assert [fed.transaction_id for fed in history.feed("client", P)] == [0, 1, 2, 3]
    assert one.passed_through(P) == 1
    assert other.passed_through(P) == 3
    database.close()


def test_a_database_in_trouble_has_it_tried_again() -> None:
    database, history = SimulatedDatabase(), History()
    random = Random(3)
    user = application(database, history, random)
    troubles = mark = 0
    while mark < 200:
        try:
            if not mark:
                user.get_client_high_water_mark(P)
            apply(user, transactions(mark, 1))
        except PostponedError:
            troubles += 1
        else:
            mark += 1
    assert troubles > 10
    assert len(history.feed("client", P)) == 200
    database.close()


def test_what_is_left_to_others_is_passed_once_they_have_applied_it() -> None:
    database, history = SimulatedDatabase(), History()
    one = application(database, history)
    one.get_client_high_water_mark(P)
    for seed in range(100):
        other = application(database, history, Random(seed))
        if other._preferred is not None and P not in other._preferred:
            break
    other._random = Quiet(1)
    other._patience_seconds = 5.0
    other.get_client_high_water_mark(P)
    apply(one, transactions(0, 2))
    with pytest.raises(PostponedError) as caught:
        other.choose_prefetch(transactions(0, 3))
    assert caught.value.applied_through == 1
    assert other.passed_through(P) == 1
    database.close()
