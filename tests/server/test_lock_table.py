"""The lock table against an exact list of locks, and its two ways of checking compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz.server.appends.lock_table import COLUMNS_MIN, Admission, LockTable
from waltz.server.appends.locked_appends import LockedAppends, lock_slots
from waltz.server.appends.refusals import RefusingLock
from waltz.types import NOTHING, ClientId, Generation, PartitionId, RequestId, TransactionId

NUMBERS = count(1)


@dataclass(frozen=True)
class Request:
    request_id: RequestId
    client_high_water_mark: TransactionId
    write_locks: tuple[int, ...] = ()
    read_locks: tuple[int, ...] = ()
    append_locks: tuple[int, ...] = ()


def request(
    mark: int,
    write: Sequence[int] = (),
    read: Sequence[int] = (),
    append: Sequence[int] = (),
    *,
    client: int | None = None,
) -> Request:
    """A request of the client, or of one that sends nothing else."""
    number = next(NUMBERS)
    request_id = RequestId(
        ClientId(1000 + number if client is None else client), Generation(1), PartitionId(0), number
    )
    return Request(request_id, TransactionId(mark), tuple(write), tuple(read), tuple(append))


def columns(requests: Sequence[Request]) -> LockedAppends:
    kinds = [(r.write_locks, r.read_locks, r.append_locks) for r in requests]
    return LockedAppends(
        np.array([r.request_id.client_id for r in requests], np.int32),
        np.array([r.client_high_water_mark for r in requests], np.int64),
        np.array([[len(locks) for locks in each] for each in kinds], np.uint16).reshape(-1, 3),
        np.array([lock for each in kinds for locks in each for lock in locks], np.int32),
    )


def admit(table: LockTable, requests: Sequence[Request]) -> Admission:
    return table.admit(columns(requests))


def accepted(admission: Admission, requests_count: int) -> list[int]:
    return [
        i
        for i in range(requests_count)
        if i not in admission.refused and i not in admission.waiting
    ]


# Behaviour observed at the original


def test_write_and_read_of_a_newer_lock_are_refused_and_append_is_not() -> None:
    """PM-20, PM-21, PM-22: write 123 is transaction 1; then a client that stands at 0."""
    table = LockTable(TransactionId(0))
    assert not any(admit(table, [request(0, write=[123])]))
    table.commit(TransactionId(1), 1)
    admission = admit(
        table, [request(0, write=[123]), request(0, read=[123]), request(0, append=[123])]
    )
    assert admission == Admission({0: TransactionId(1), 1: TransactionId(1)}, {})
    table.commit(TransactionId(2), 1)
    assert admit(table, [request(1, write=[123])]).refused == {0: TransactionId(2)}


def test_equal_mark_passes() -> None:
    """SV-11."""
    table = LockTable(TransactionId(41))
    assert admit(table, [request(41, write=[7])]) == Admission({}, {})


def test_several_locks_are_refused_for_any_of_them() -> None:
    """PM-23."""
    table = LockTable(NOTHING)
    admit(table, [request(-1, write=[1, 2])])
    table.commit(TransactionId(0), 1)
    admission = admit(table, [request(-1, [1, 2]), request(-1, [2, 3]), request(-1, [4, 5])])
    assert admission == Admission({0: TransactionId(0), 1: TransactionId(0)}, {})


def test_read_locks_are_not_recorded() -> None:
    """PM-21: read then read, and read then write, pass at equal marks."""
    table = LockTable(NOTHING)
    assert not any(admit(table, [request(-1, read=[9])]))
    assert not any(admit(table, [request(-1, read=[9])]))
    assert not any(admit(table, [request(-1, write=[9])]))


def test_new_table_refuses_clients_behind_once() -> None:
    """SV-10."""
    table = LockTable(TransactionId(9))
    assert admit(table, [request(8, write=[1])]).refused == {0: TransactionId(9)}
    assert admit(table, [request(9, write=[1])]) == Admission({}, {})


def test_take_over_computed_before_the_owners_updates_is_refused() -> None:
    """PM-22: the owner updates under (read parent, append child), a rival writes both."""
    table = LockTable(NOTHING)
    parent, child = 100, 200
    updates = [request(5, read=[parent], append=[child])] * 2
    assert admit(table, updates) == Admission({}, {}), "updates do not wait for each other"
    table.commit(TransactionId(6), 2)
    assert admit(table, [request(5, write=[parent, child])]).refused == {0: TransactionId(7)}


def test_no_locks_and_a_mark_below_nothing_is_refused() -> None:
    """The estimate without locks is -1."""
    table = LockTable(NOTHING)
    assert admit(table, [request(-1)]) == Admission({}, {})
    assert admit(table, [request(-2)]).refused == {0: NOTHING}
    assert admit(table, [request(-2)] * COLUMNS_MIN).refused == dict.fromkeys(
        range(COLUMNS_MIN), NOTHING
    )


# Waiting


def test_conflict_in_flight_waits_for_that_transaction_only() -> None:
    """SV-09."""
    table = LockTable(NOTHING)
    assert admit(
        table, [request(-1, [1]), request(-1, [2]), request(-1, [1]), request(-1, [3])]
    ) == Admission({}, {2: 1})
    assert table.issued == 3
    table.commit(TransactionId(0), 1)
    assert admit(table, [request(-1, [1])]).refused == {0: TransactionId(0)}


def test_failed_append_lets_the_waiting_one_pass() -> None:
    table = LockTable(NOTHING)
    assert admit(table, [request(-1, [1]), request(-1, [1])]).waiting == {1: 1}
    table.fail(1)
    table.forget_reservations()
    assert admit(table, [request(-1, [1])]) == Admission({}, {})


def test_later_request_queues_behind_a_waiting_one() -> None:
    table = LockTable(NOTHING)
    assert admit(table, [request(-1, [1]), request(-1, [1, 2]), request(-1, [2])]).waiting == {
        1: 1,
        2: 1,
    }
    assert admit(table, [request(-1, append=[2])]).waiting == {0: 1}
    assert admit(table, [request(-1, append=[3])]) == Admission({}, {})


def test_appends_of_one_client_do_not_overtake_each_other() -> None:
    """CI-15: a client that sees a later append of its own in the feed gives up the earlier ones."""
    table = LockTable(NOTHING)
    batch = [
        request(-1, [1], client=8),
        request(-1, [1], client=7),
        request(-1, client=7),
        request(-1, client=8),
        request(-1, [5], client=7),
    ]
    assert admit(table, batch) == Admission({}, {1: 1, 2: 1, 4: 1})
    assert admit(table, [request(-1, client=7)] * COLUMNS_MIN).waiting == dict.fromkeys(
        range(COLUMNS_MIN), 1
    )


def test_append_lock_does_not_wait_for_a_claim() -> None:
    table = LockTable(NOTHING)
    assert admit(table, [request(-1, [1]), request(-1, append=[1])]) == Admission({}, {})
    assert admit(table, [request(5, [1])]).waiting == {0: 2}


def test_raised_marks_refuse_what_others_may_have_written() -> None:
    table = LockTable(NOTHING)
    table.raise_marks(TransactionId(10))
    assert admit(table, [request(9, [1])]).refused == {0: TransactionId(10)}


@pytest.mark.parametrize("filler", [0, COLUMNS_MIN])
def test_the_lock_that_refuses_is_named(filler: int) -> None:
    """PM-24: the one last written by the transaction that is told."""
    table = LockTable(NOTHING)
    admit(table, [request(-1, [1]), request(-1, [2]), request(-1, [3])])
    table.commit(TransactionId(0), 3)
    asked = [request(9)] * filler + [request(-1, [1, 4], [2, 5], [3]), request(-2)]
    refused = admit(table, asked).refused
    assert refused == {filler: TransactionId(1), filler + 1: NOTHING}
    assert table.refusing_locks(columns(asked[filler:])) == [
        RefusingLock(2, TransactionId(1), is_exact=True),
        RefusingLock(0, NOTHING, is_exact=False),
    ]


def test_a_winner_that_may_not_have_written_the_lock_is_an_estimate() -> None:
    table = LockTable(NOTHING, slot_count=2, slots_max=2)
    admit(table, [request(-1, [1])])
    table.commit(TransactionId(0), 1)
    (refused, other) = (request(-1, [1]), request(-1, [2]))
    assert admit(table, [refused, other]).refused == {0: TransactionId(0), 1: TransactionId(0)}
    assert [each.is_exact for each in table.refusing_locks(columns([refused, other]))] == [
        True,
        False,
    ]
    table.raise_marks(TransactionId(7))
    assert admit(table, [refused]).refused == {0: TransactionId(7)}
    assert table.refusing_locks(columns([refused])) == [
        RefusingLock(1, TransactionId(7), is_exact=False)
    ]


def test_deciding_more_than_was_accepted_is_a_bug() -> None:
    table = LockTable(NOTHING)
    with pytest.raises(AssertionError):
        table.commit(TransactionId(0), 1)


# Against simpler truths

LOCKS = st.lists(st.integers(0, 12), max_size=3)

Drawn: TypeAlias = tuple[int, int, list[int], list[int], list[int]]
"""Client, lag behind the mark, write, read and append locks."""


@st.composite
def requests(draw: st.DrawFn) -> Drawn:
    lag = draw(st.integers(0, 4))
    kinds = draw(st.sampled_from(["w", "r", "a", "wra"]))
    return (
        draw(st.integers(0, 3)),
        lag,
        draw(LOCKS) if "w" in kinds else [],
        draw(LOCKS) if "r" in kinds else [],
        draw(LOCKS) if "a" in kinds else [],
    )


@given(st.lists(requests(), min_size=1, max_size=8), st.data())
def test_picked_appends_keep_their_locks(drawn: list[Drawn], data: st.DataObject) -> None:
    asked = [request(-lag, w, r, a, client=c) for c, lag, w, r, a in drawn]
    rows = data.draw(st.lists(st.booleans(), min_size=len(asked), max_size=len(asked)))
    everything = columns(asked).requests()
    assert columns(asked).pick(np.array(rows)).requests() == [
        each for each, is_picked in zip(everything, rows, strict=True) if is_picked
    ]


@st.composite
def batches(draw: st.DrawFn) -> list[Drawn]:
    """Batches of several clients, of one, or of two of which the second comes after the first."""
    batch = draw(st.lists(requests(), min_size=1, max_size=16))
    switch = draw(st.integers(0, len(batch)))
    if draw(st.booleans()):
        return batch
    return [(int(i >= switch), lag, w, r, a) for i, (_, lag, w, r, a) in enumerate(batch)]


STEPS = st.lists(
    st.one_of(
        batches(),
        st.tuples(st.sampled_from(["commit", "fail"]), st.integers(1, 6)),
    ),
    max_size=25,
)


class Driver:
    """Runs a table the way a partition does, and keeps an exact list of locks beside it."""

    def __init__(self, slot_count: int, *, by_columns: bool) -> None:
        self.table = LockTable(NOTHING, slot_count)
        self.mark = -1
        self.in_flight: list[Request] = []
        self.waiting: list[tuple[int, Request]] = []
        self.exact: dict[int, int] = {}
        self.trace: list[object] = []
        self.last_passed: dict[ClientId, int] = {}
        self._by_columns = by_columns

    def admit(self, arrived: list[Request]) -> None:
        table = self.table
        if self.waiting and table.decided >= min(until for until, _ in self.waiting):
            table.forget_reservations()
            arrived = [waiting for _, waiting in self.waiting] + arrived
            self.waiting = []
        if not arrived:
            return
        before = len(self.in_flight)
        admission = (
            table._admit_by_columns(columns(arrived))
            if self._by_columns
            else table._admit_one_by_one(columns(arrived).requests())
        )
        self.trace.append((admission, table.issued))
        self.check_refused([arrived[index] for index in admission.refused], admission)
        for index in accepted(admission, len(arrived)):
            self.check_passed(arrived[index])
            self.in_flight.append(arrived[index])
        assert table.issued - table.decided == len(self.in_flight) >= before
        for index in sorted(admission.waiting):
            assert table.decided < admission.waiting[index] <= table.issued
            self.waiting.append((admission.waiting[index], arrived[index]))
        table.check_invariants()

    def check_refused(self, refused: list[Request], admission: Admission) -> None:
        """The lock is one of the request's, the winner the estimate; an exact one wrote it."""
        locks = self.table.refusing_locks(columns(refused))
        for each, estimate, lock in zip(refused, admission.refused.values(), locks, strict=True):
            if estimate == NOTHING:
                continue
            assert lock.lock_hash in (*each.write_locks, *each.read_locks)
            assert lock.winner == estimate
            written = self.exact.get(lock.lock_hash, -1)
            assert written == lock.winner if lock.is_exact else written <= lock.winner

    def check_passed(self, passed: Request) -> None:
        """No checked lock is newer than the client's mark, nor about to be."""
        client_id, number = passed.request_id.client_id, passed.request_id.sequence_number
        assert self.last_passed.get(client_id, 0) < number, "overtaken by a later one"
        self.last_passed[client_id] = number
        checked = {*passed.write_locks, *passed.read_locks}
        assert all(self.exact.get(lock, -1) <= passed.client_high_water_mark for lock in checked)
        for other in self.in_flight:
            assert checked.isdisjoint({*other.write_locks, *other.append_locks})

    def commit(self, count: int) -> None:
        self.table.commit(TransactionId(self.mark + 1), count)
        for committed in self.in_flight[:count]:
            self.mark += 1
            for lock in (*committed.write_locks, *committed.append_locks):
                self.exact[lock] = self.mark
        del self.in_flight[:count]

    def fail(self, count: int) -> None:
        self.table.fail(count)
        del self.in_flight[:count]

    def run(self, steps: Sequence[object]) -> None:
        for step in steps:
            match step:
                case list():
                    self.admit(
                        [request(self.mark - lag, w, r, a, client=c) for c, lag, w, r, a in step]
                    )
                case (str() as outcome, int() as count):
                    count = min(count, len(self.in_flight))
                    self.commit(count) if outcome == "commit" else self.fail(count)
                    self.admit([])
        for _ in range(1000):
            if not self.in_flight:
                break
            self.commit(1)
            self.admit([])
        assert not self.waiting, "whoever waits is decided in the end"


@settings(max_examples=150)
@given(STEPS, st.sampled_from([7, 40, 30_000]))
def test_no_request_passes_that_an_exact_list_of_locks_would_refuse(
    steps: list[object], slot_count: int
) -> None:
    """SV-07. Small tables make collisions the rule; the table then refuses more, never less."""
    Driver(slot_count, by_columns=False).run(steps)


@settings(max_examples=150)
@given(STEPS, st.sampled_from([7, 40, 30_000]))
def test_checking_by_columns_gives_what_checking_one_by_one_gives(
    steps: list[object], slot_count: int
) -> None:
    slow = Driver(slot_count, by_columns=False)
    fast = Driver(slot_count, by_columns=True)
    slow.run(steps)
    fast.run(steps)
    assert fast.trace == slow.trace
    assert state(fast.table) == state(slow.table)


def state(table: LockTable) -> tuple[object, ...]:
    return (
        table._marks.tolist(),
        table._claims.table.tolist(),
        table._reservations.table.tolist(),
        table._reservations.until,
        table._reservations.client_until,
        [ticket for claimed in table._claims._undecided for ticket in claimed.tickets],
        [lock for claimed in table._claims._undecided for lock in claimed.locks],
    )


@pytest.mark.parametrize("seed", range(40))
def test_checking_long_batches_by_columns_gives_what_checking_one_by_one_gives(seed: int) -> None:
    """Batches as clients send them: many locks of all kinds, few or many of them contended, of one
    client or several, while others are in flight and wait."""
    random = np.random.default_rng(seed)
    slot_count = int(random.choice([50, 400, 30_000]))
    locks_count = int(random.choice([3, 60, 100_000]))
    clients_count = int(random.choice([1, 2, 30]))
    shares = random.dirichlet((1, 1, 1, 1))
    slow, fast = LockTable(NOTHING, slot_count), LockTable(NOTHING, slot_count)
    mark = -1
    for _ in range(6):
        batch = []
        for _ in range(int(random.integers(1, 150))):
            kinds: list[list[int]] = [[], [], []]
            for _ in range(int(random.integers(0, 4))):
                kind = int(random.choice(4, p=shares))
                lock = int(random.integers(locks_count))
                for each in (0, 2) if kind == 3 else (kind,):
                    kinds[each].append(lock)
            client = int(random.integers(clients_count))
            batch.append(request(mark - int(random.integers(3)), *kinds, client=client))
        asked = columns(batch)
        admission = fast._admit_by_columns(asked)
        assert admission == slow._admit_one_by_one(asked.requests())
        assert state(fast) == state(slow)
        in_flight = slow.issued - slow.decided
        decided_count = int(random.integers(in_flight + 1))
        is_failed = bool(random.integers(4) == 0)
        is_forgotten = bool(random.integers(2))
        for table in (slow, fast):
            if is_failed:
                table.fail(decided_count)
            else:
                table.commit(TransactionId(mark + 1), decided_count)
            if is_forgotten:
                table.forget_reservations()
            table.check_invariants()
        mark += 0 if is_failed else decided_count


def test_a_long_chain_of_waiting_requests_is_checked_in_bounded_time() -> None:
    """Each waits for the lock of the one before it, which no single look would find."""
    chain = [request(-1, [0])]
    chain += [request(-1, [lock, lock + 1]) for lock in range(200)]
    chain.insert(100, request(-1, read=[777_777]))
    slow, fast = LockTable(NOTHING), LockTable(NOTHING)
    admission = fast._admit_by_columns(columns(chain))
    assert admission == slow._admit_one_by_one(columns(chain).requests())
    assert admission.waiting == {i: 1 for i in range(1, 202) if i != 100}
    assert state(fast) == state(slow)


def test_a_lock_whose_slots_are_reserved_before_and_in_the_batch_waits() -> None:
    between = 12_215_864
    """The first lock hash after 2 whose slots are all those of 1 or of 2, and not all of one."""
    held, taken = {*lock_slots(1, 1000)}, {*lock_slots(2, 1000)}
    slots = {*lock_slots(between, 1000)}
    assert slots <= held | taken
    assert not slots <= held
    assert not slots <= taken
    tables = LockTable(NOTHING, 1000), LockTable(NOTHING, 1000)
    for table in tables:
        admit(table, [request(-1, [1]), request(-1, [2]), request(-1, [1])])
    asked = columns([request(-1, [2]), request(-1, append=[between])])
    admission = tables[0]._admit_by_columns(asked)
    assert admission == tables[1]._admit_one_by_one(asked.requests())
    assert admission.waiting == {0: 2, 1: 1}


def test_locks_that_are_only_read_do_not_hold_up_each_other_in_a_batch() -> None:
    """SV-09: the take-over pattern, with one lock that all read."""
    table = LockTable(NOTHING)
    batch = [request(-1, read=[1], append=[lock]) for lock in range(1000, 1500)]
    assert admit(table, batch) == Admission({}, {})
    assert table.issued == 500


def test_large_batch_of_different_locks_is_accepted_whole() -> None:
    table = LockTable(NOTHING)
    batch = [request(-1, [lock * 7919]) for lock in range(500)]
    assert not admit(table, batch).refused
    table.check_invariants()


def test_commits_may_cut_batches_anywhere() -> None:
    table = LockTable(NOTHING)
    admit(table, [request(-1, [lock * 7919]) for lock in range(200)])
    for first in range(0, 200, 3):
        table.commit(TransactionId(first), min(3, 200 - first))
        table.check_invariants()
    for lock in range(200):
        assert admit(table, [request(lock - 1, [lock * 7919])]).refused == {0: TransactionId(lock)}


def lock_with_the_slots_of(locks: Sequence[int], slot_count: int) -> int:
    """Return another lock, higher than these, whose slots are all among theirs."""
    covered = {slot for lock in locks for slot in lock_slots(lock, slot_count)}
    return next(
        lock for lock in count(max(locks) + 1) if covered.issuperset(lock_slots(lock, slot_count))
    )


@pytest.mark.parametrize("filler", [0, COLUMNS_MIN])
def test_a_lock_that_only_shares_slots_waits_for_nobody(filler: int) -> None:
    """SV-07: what is undecided is known exactly; only what is decided is estimated."""
    table = LockTable(NOTHING, 100, 100)
    locks = [1, 2]
    admit(table, [request(-1, [lock]) for lock in locks])
    stranger = lock_with_the_slots_of(locks, 100)
    others = [request(-1, read=[5])] * filler
    assert admit(table, [request(-1, [stranger]), *others]) == Admission({}, {})
    again = lock_with_the_slots_of([stranger], 100)
    own = 3 + len(others) + 1
    assert admit(table, [request(-1, [again]), request(-1, [again]), *others]).waiting == {1: own}
    table.check_invariants()


def test_the_table_grows_with_what_is_undecided_and_no_mark_gets_lost() -> None:
    """SV-07, CF-23: few are refused by chance, and nobody passes who was refused before."""
    table = LockTable(NOTHING, 100)
    old = [request(-1, [lock]) for lock in range(3)]
    admit(table, old)
    table.commit(TransactionId(0), 3)
    assert len(table._marks) == 200
    admit(table, [request(2, [10])])
    assert len(table._marks) == 200
    many = [request(2, [1000 + lock]) for lock in range(COLUMNS_MIN)]
    assert admit(table, many) == Admission({}, {})
    assert len(table._marks) == 3200
    table.check_invariants()
    refused = admit(table, [request(-1, [lock]) for lock in range(3)]).refused
    assert all(refused[lock] >= lock for lock in range(3))
    assert admit(table, [request(2, [10])]).waiting == {0: 4}
    table.commit(TransactionId(3), 1 + len(many))
    table.check_invariants()
    last = admit(table, [request(2, [10]), request(2, [1000])]).refused
    assert last[0] >= 3
    assert last[1] >= 4


@pytest.mark.parametrize("grown", [1, 2, 32])
def test_locks_in_flight_by_the_thousand_are_hardly_ever_refused_by_chance(grown: int) -> None:
    """SV-07: as many as a client of `append_many` has under way, none of them applied by it."""
    table = LockTable(NOTHING, 30_000, grown * 30_000)
    random = np.random.default_rng(grown)
    refused = 0
    for first in range(0, 16_000, 4_000):
        batch = [request(-1, [int(lock)]) for lock in random.integers(0, 2**31, 4_000)]
        refused += len(admit(table, batch).refused)
        table.commit(TransactionId(first), table.issued - table.decided)
    assert (refused <= 8) == (grown == 32)
