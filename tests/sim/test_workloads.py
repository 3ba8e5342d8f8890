"""Workloads are equal for equal seeds, and what their contexts write follows from the state."""

from __future__ import annotations

from random import Random

import pytest

from waltz.client.transaction import TransactionBuilder
from waltz.limits import LOCK_TABLE_SLOTS
from waltz.server.appends.lock_table import COLUMNS_MIN
from waltz.sim.applications.application import Application
from waltz.sim.applications.workloads import (
    ACCOUNTS,
    KEYS,
    WORKLOADS,
    ClientPlan,
    draw_intent,
    late_reader,
    lone_client,
    slow_consumer,
)
from waltz.sim.judges.history import FedRecord, History
from waltz.sim.judges.payload import EntryKind, Payload
from waltz.sim.judges.run_trace import RunTrace
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

P = PartitionId(0)
BY_WORK = {
    "append": {EntryKind.NOTE},
    "count": {EntryKind.COUNT},
    "bank": {EntryKind.TRANSFER, EntryKind.DEPOSIT, EntryKind.AUDIT},
    "alone": {EntryKind.NOTE},
    "many_locks": {EntryKind.COUNT},
    "crowd": {EntryKind.COUNT},
}


def application() -> Application:
    return Application("client", History(), RunTrace(), lambda: 0.0)


def write(user: Application, work: str, seed: int, number: int = 0) -> Payload | None:
    plan = ClientPlan(work=work, padding_bytes_max=10, expiring_share=0.5)
    drawn = draw_intent(Random(seed), user, 1, plan, number)
    builder = TransactionBuilder()
    return Payload.decode(builder.data) if drawn.execute(builder) else None


def deposit(user: Application, payload: Payload) -> None:
    mark = user.get_client_high_water_mark(P)
    request_id = RequestId(ClientId(1), Generation(1), P, 1)
    user.take(P, FedRecord(TransactionId(mark + 1), request_id, 0, payload.encode()))


@pytest.mark.parametrize("name", WORKLOADS)
def test_equal_seeds_draw_equal_clients(name: str) -> None:
    for seed in range(50):
        plans = WORKLOADS[name](Random(seed), 1)
        assert plans == WORKLOADS[name](Random(seed), 1)
        assert sum(plan.transactions for plan in plans) > 0
        assert all(plan.concurrency > 0 for plan in plans)


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "lone_client"])
def test_longer_runs_have_more_transactions(name: str) -> None:
    def total(length: int) -> int:
        return sum(plan.transactions for plan in WORKLOADS[name](Random(1), length))

    assert 9 * total(1) < total(10) < 12 * total(1)


@pytest.mark.parametrize("work", BY_WORK)
def test_each_kind_of_work_writes_its_kinds_of_transactions(work: str) -> None:
    kinds = set()
    for seed in range(100):
        payload = write(application(), work, seed)
        assert payload is not None
        kinds.add(payload.kind)
    assert kinds == BY_WORK[work]


def test_counting_contexts_write_one_more_than_was_applied_last() -> None:
    user = application()
    for key in range(KEYS):
        deposit(user, Payload(99, 1, EntryKind.COUNT, entries=((key, 41),)))
    payload = write(user, "count", 1)
    assert payload is not None
    assert payload.entries == ((payload.write_locks[0], 42),)


def test_transfers_lock_both_accounts_and_keep_the_sum() -> None:
    user = application()
    payloads = [write(user, "bank", seed) for seed in range(100)]
    transfers = [p for p in payloads if p is not None and p.kind is EntryKind.TRANSFER]
    assert len(transfers) > 10
    for payload in transfers:
        assert payload.write_locks == tuple(account for account, _ in payload.entries)
        assert sum(amount for _, amount in payload.entries) == 200


def test_nobody_transfers_what_is_not_there() -> None:
    user = application()
    for account in range(ACCOUNTS):
        deposit(user, Payload(99, 1, EntryKind.DEPOSIT, entries=((account, -100),)))
    payloads = [write(user, "bank", seed) for seed in range(100)]
    assert not any(p is not None and p.kind is EntryKind.TRANSFER for p in payloads)
    assert None in payloads


def test_audits_read_all_accounts_and_deposits_read_none() -> None:
    payloads = [write(application(), "bank", seed) for seed in range(100)]
    for payload in payloads:
        if payload is None or payload.kind is EntryKind.TRANSFER:
            continue
        is_audit = payload.kind is EntryKind.AUDIT
        assert payload.read_locks == (tuple(range(ACCOUNTS)) if is_audit else ())
        assert payload.write_locks == ()
        assert bool(payload.append_locks) != is_audit


def test_a_lone_client_shares_no_lock_even_with_itself() -> None:
    for seed in range(20):
        (plan,) = lone_client(Random(seed), 10)
        assert plan.work == "alone"
        locks = [write(application(), "alone", 1, number) for number in range(plan.transactions)]
        keys = [payload.write_locks for payload in locks if payload is not None]
        assert len({*keys}) == len(keys) == plan.transactions


def test_a_slow_consumer_writes_nothing() -> None:
    *writers, slow = slow_consumer(Random(1), 1)
    assert slow.transactions == 0
    assert slow.slowest_call_seconds > 0.0
    assert all(writer.slowest_call_seconds == 0.0 for writer in writers)


def test_late_readers_start_while_others_write() -> None:
    works = set()
    for seed in range(20):
        late = [plan for plan in late_reader(Random(seed), 1) if plan.starts_at > 0.0]
        assert late
        assert all(plan.transactions == 0 for plan in late)
        works |= {plan.work for plan in late}
    assert works == {"read", "append"}


def test_some_contexts_have_little_time() -> None:
    plan = ClientPlan(work="append", expiring_share=0.5)
    drawn = [draw_intent(Random(seed), application(), 2, plan, 0) for seed in range(50)]
    assert {intent.timeout_seconds is None for intent in drawn} == {True, False}
    assert {intent.partition_id(2) for intent in drawn} == {0, 1}


def test_many_locks_are_taken_by_contexts_that_count_a_few() -> None:
    """As many as have a lock table of the usual size grow while a handful is undecided."""
    for seed in range(50):
        payload = write(application(), "many_locks", seed)
        assert payload is not None
        assert 50 <= len(payload.append_locks) <= 190
        (counted,) = payload.write_locks
        assert counted not in payload.append_locks
        assert payload.entries == ((counted, 1),)
    plans = [plan for seed in range(20) for plan in WORKLOADS["many_locks"](Random(seed), 1)]
    assert min(plan.contexts_max for plan in plans) * 50 > LOCK_TABLE_SLOTS // 64


def test_a_crowd_has_more_contexts_under_way_than_are_checked_one_by_one() -> None:
    plans = [plan for seed in range(20) for plan in WORKLOADS["crowd"](Random(seed), 1)]
    assert all(min(plan.concurrency, plan.contexts_max) > COLUMNS_MIN for plan in plans)


def test_processes_share_databases_and_others_stop_in_the_middle() -> None:
    shared = [
        [plan.application for plan in WORKLOADS["database"](Random(seed), 1)] for seed in range(50)
    ]
    assert any(len(names) > len({*names}) for names in shared)
    assert any(len({*names}) == 2 for names in shared)
    for seed in range(20):
        plans = WORKLOADS["postponing"](Random(seed), 1)
        assert {plan.application for plan in plans} == {"postponing"}
        assert not any(plan.forgets for plan in plans)
