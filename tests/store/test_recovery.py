"""The recovery procedure as a table, as stories, and against itself when it is cut short.

Rows ST-07, ST-22 to ST-37. Replicas are plain objects; everything is by value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from random import Random

import pytest

from tests.store.world import FakeReplica, RefusedError
from waltz.cluster.partition_metadata import (
    SESSION_CLIMB,
    PartitionMetadata,
    ReplicaState,
    last_session,
)
from waltz.record import NewRecord, RecordBatch, join_batches, pack_records
from waltz.store.judgement import RecoveryStanding, judge
from waltz.store.recovery import (
    AdmitReplicas,
    CopyRecords,
    EndRecovery,
    HighWaterMarkResolved,
    Recovery,
    RecoveryEffect,
    RecoveryEvent,
    recovered_metadata,
)
from waltz.store.requests import (
    AppendToReplica,
    AskMaxTransactionId,
    AskSessionInfo,
    DropReplica,
    MetadataRead,
    MetadataReadFailed,
    MetadataWriteFailed,
    MetadataWritten,
    ReadFromReplica,
    ReadMetadata,
    ReplicaConnected,
    ReplicaLink,
    ReplicaLost,
    RequestAnswered,
    RequestFailed,
    SendRequest,
    SetLowWaterMark,
    TruncateReplica,
    WriteMetadata,
)
from waltz.types import NO_SESSION, NOTHING, Generation, ReplicaId, SessionId, TransactionId
from waltz.wire.storage_protocol import SessionInfo

A, B, C, D, E = (ReplicaId(f"{name}:1") for name in "abcde")
ALL = (A, B, C, D, E)


def record(transaction_id: int) -> RecordBatch:
    request_id = transaction_id.to_bytes(16, "big")
    return pack_records(TransactionId(transaction_id), [NewRecord(request_id, 0, b"", 0)])


def node(replica_id: ReplicaId, session: int, mark: int, last: int) -> FakeReplica:
    log = [record(transaction_id) for transaction_id in range(last + 1)]
    return FakeReplica(
        replica_id, log, len(log), SessionId(session), TransactionId(mark), TransactionId(mark)
    )


def open_state(session: int) -> ReplicaState:
    return ReplicaState(SessionId(session), None)


def closed(session: int, mark: int) -> ReplicaState:
    return ReplicaState(SessionId(session), TransactionId(mark))


class Bench:
    """A recovery with its replicas, done step by step; `absent` ones are not reached."""

    def __init__(
        self,
        session: int,
        states: Mapping[ReplicaId, ReplicaState],
        nodes: Sequence[FakeReplica],
        assigned: Sequence[ReplicaId] | None = None,
    ) -> None:
        self.nodes = {each.replica_id: each for each in nodes}
        self.assigned = tuple(assigned or states or self.nodes)
        self.session_id = SessionId(session)
        self.stored = PartitionMetadata(Generation(1), self.session_id, dict(states))
        self.recovery = Recovery(self.stored, 1, self.assigned)
        self.version = 1
        self.waiting: list[RecoveryEffect] = []
        self.log: list[RecoveryEffect] = []
        self.writes = True

    def link(self, replica_id: ReplicaId) -> ReplicaLink:
        return ReplicaLink(self.stored.session_id, replica_id, 1)

    def connect(self, *replica_ids: ReplicaId) -> None:
        self.feed(*(ReplicaConnected(self.link(each)) for each in replica_ids))

    def fail_to_read(self, copy: RecoveryEffect) -> None:
        assert isinstance(copy, CopyRecords)
        read = ReadFromReplica(copy.first, 10, self.link(copy.replica_id))
        self.feed(RequestFailed(self.link(copy.source), read, "unreadable"))

    def feed(self, *events: RecoveryEvent) -> None:
        effects = self.recovery.step(events, 0.0)
        self.recovery.check_invariants()
        self.log += effects
        self.waiting += effects

    def reach(self, *replica_ids: ReplicaId) -> Bench:
        for replica_id in replica_ids:
            self.connect(replica_id)
        return self.run()

    def run(self, count: int = 10_000) -> Bench:
        """Do up to `count` of the things that were asked for."""
        while self.waiting and count:
            count -= 1
            self.do(self.waiting.pop(0))
        return self

    def do(self, effect: RecoveryEffect) -> None:
        match effect:
            case SendRequest(link, request):
                replica = self.nodes[link.replica_id]
                replica.announce(self.session_id)
                answer = replica.process(self.session_id, request)
                self.feed(RequestAnswered(link, request, answer))
            case CopyRecords(replica_id, source, first, through):
                found = self.nodes[source].log[first : min(through, first + 9) + 1]
                if not found:
                    self.fail_to_read(effect)
                    return
                append = AppendToReplica(join_batches(found))
                self.nodes[replica_id].process(self.session_id, append)
                self.feed(RequestAnswered(self.link(replica_id), append, None))
            case WriteMetadata(metadata, version):
                if self.writes:
                    assert version == self.version
                    self.stored, self.version = metadata, version + 1
                    self.feed(MetadataWritten(self.version))
            case _:
                pass

    def mark(self) -> TransactionId | None:
        return self.recovery.high_water_mark

    def admitted(self) -> tuple[ReplicaId, ...]:
        return self.recovery.admitted

    def newest(self) -> RecoveryEffect:
        return self.log[-1]

    @property
    def lasts(self) -> dict[ReplicaId, int]:
        return {replica_id: replica.last for replica_id, replica in self.nodes.items()}

    def next_session(self, assigned: Sequence[ReplicaId] | None = None) -> Bench:
        session = SessionId(self.stored.session_id + 1)
        return Bench(
            session, self.stored.replica_states, [*self.nodes.values()], assigned or self.assigned
        )

    def asked(self, replica_id: ReplicaId) -> list[object]:
        return [
            effect.request
            for effect in self.log
            if isinstance(effect, SendRequest) and effect.link.replica_id == replica_id
        ]


def test_the_last_session_is_the_one_that_open_states_name() -> None:
    assert last_session({}) == NO_SESSION
    assert last_session({A: open_state(4), B: closed(9, 3)}) == 4


@pytest.mark.parametrize(
    ("state", "recovered", "expected"),
    [
        (None, True, open_state(7)),
        (open_state(5), True, open_state(7)),
        (closed(3, 9), True, open_state(7)),
        (None, False, closed(-1, 40)),
        (open_state(5), False, closed(5, 40)),
        (closed(3, 9), False, closed(3, 9)),
        (open_state(7), False, open_state(7)),
    ],
)
def test_states_at_the_end_of_recovery(
    state: ReplicaState | None, recovered: bool, expected: ReplicaState
) -> None:
    """ST-28."""
    states = {B: open_state(5), **({} if state is None else {A: state})}
    metadata = PartitionMetadata(Generation(2), SessionId(7), states)
    found = recovered_metadata(metadata, [A], [A] if recovered else [], TransactionId(40))
    assert found == PartitionMetadata(Generation(2), SessionId(7), {A: expected})


# Stories of the documents


def test_a_new_partition_starts_empty() -> None:
    """ST-33."""
    bench = Bench(0, {}, [node(each, -1, -1, -1) for each in (A, B, C)])
    bench.reach(A)
    assert bench.mark() == NOTHING
    assert bench.admitted() == ()
    bench.reach(B)
    assert bench.admitted() == (A, B)
    assert bench.stored.replica_states == {A: open_state(0), B: open_state(0), C: closed(-1, -1)}
    bench.reach(C)
    assert bench.stored.replica_states == {each: open_state(0) for each in (A, B, C)}
    assert bench.version == 3


def test_one_that_missed_a_session_is_cut_and_caught_up() -> None:
    """ST-24: A, B at 120, C closed at 100 with records up to 115."""
    states = {A: open_state(4), B: open_state(4), C: closed(3, 100)}
    nodes = [node(A, 4, 110, 120), node(B, 4, 110, 120), node(C, 3, 90, 115)]
    bench = Bench(5, states, nodes).reach(C, A, B)
    assert TruncateReplica(TransactionId(100)) in bench.asked(C)
    assert bench.mark() == 120
    assert bench.lasts == {A: 120, B: 120, C: 120}
    assert bench.stored.replica_states == {each: open_state(5) for each in (A, B, C)}
    assert all(each.low_water_mark == 120 and each.session_id == 5 for each in nodes)


def test_a_replica_behind_catches_up_where_the_mark_is_undecidable() -> None:
    """ST-26, ST-30: A 125, B 120, C offline."""
    states = {each: open_state(4) for each in (A, B, C)}
    bench = Bench(5, states, [node(A, 4, 110, 125), node(B, 4, 110, 120)]).reach(A, B)
    assert bench.mark() == 125
    assert bench.lasts == {A: 125, B: 125}
    assert bench.stored.replica_states == {A: open_state(5), B: open_state(5), C: closed(4, 125)}


def test_one_replica_of_three_waits_and_the_next_one_unblocks_it() -> None:
    """ST-30, ST-32: waits, without asking for anything; B returns."""
    states = {each: open_state(4) for each in (A, B, C)}
    bench = Bench(5, states, [node(A, 4, 1, 5), node(B, 4, 1, 7), node(C, 4, 1, 3)]).reach(A)
    assert bench.mark() is None
    assert bench.waiting == []
    bench.reach(B)
    assert bench.mark() == 7


@pytest.mark.parametrize(
    ("lasts", "marks"),
    [
        ((5, 7, 3), {5, 7}),
        ((120, 120, 115), {120}),
        ((125, 125, 120, 115, 115), {120, 125}),
        ((-1, -1, -1), {-1}),
    ],
)
def test_all_orders_of_arrival_end_in_a_legal_mark(lasts: tuple[int, ...], marks: set[int]) -> None:
    """ST-29: what a majority held is kept; a higher tail may be, if it is copied first."""
    replica_ids = ALL[: len(lasts)]
    states = {each: open_state(4) for each in replica_ids}
    for seed in range(60):
        order = Random(seed).sample(replica_ids, len(replica_ids))
        nodes = [node(each, 4, -1, last) for each, last in zip(replica_ids, lasts, strict=True)]
        bench = Bench(5, states, nodes).reach(*order)
        assert bench.mark() in marks
        assert set(bench.lasts.values()) == {bench.mark()}


def test_a_node_restored_from_an_old_backup_does_not_vote() -> None:
    """ST-23, ST-37: B is cut to its own low-water mark and copies the rest."""
    states = {each: open_state(4) for each in (A, B, C)}
    nodes = [node(A, 4, 110, 120), node(B, 2, 40, 60), node(C, 4, 110, 118)]
    bench = Bench(5, states, nodes).reach(B)
    assert bench.lasts[B] == 40
    bench.reach(C)
    assert bench.mark() is None
    bench.reach(A)
    assert bench.mark() == 120
    assert bench.lasts == {A: 120, B: 120, C: 120}


def test_a_blank_node_and_a_missing_one_leave_no_majority() -> None:
    """I11: what B acknowledged before it lost its disk may be on A only."""
    states = {each: open_state(4) for each in (A, B, C)}
    nodes = [node(A, 4, 110, 120), node(B, -1, -1, -1), node(C, 4, 110, 115)]
    bench = Bench(5, states, nodes).reach(B, C)
    assert bench.mark() is None
    bench.reach(A)
    assert bench.mark() == 120


@pytest.mark.parametrize("session", [-1, 0, 3])
def test_a_blank_or_rolled_back_replica_never_lowers_a_vote(session: int) -> None:
    """I11, CX-03: another directory at the replica's address, an empty one or one put back from
    before the session, is of an older session than the metadata: it is absent for the count, with
    whatever it holds."""
    states = {each: open_state(4) for each in (A, B, C)}
    for mark, last in ((-1, -1), (-1, 60), (40, 60), (110, 114)):
        info = SessionInfo(SessionId(session), TransactionId(mark), TransactionId(mark))
        for known in (states, states | {B: closed(4, 118)}):
            assert judge(B, known, info) == (RecoveryStanding.INCONSISTENT, mark)
        nodes = [node(A, 4, 110, 120), node(B, session, mark, last), node(C, 4, 110, 115)]
        bench = Bench(5, states, nodes)
        assert bench.reach(B, C).mark() is None
        assert bench.reach(A).mark() == 120
        assert bench.lasts == {A: 120, B: 120, C: 120}


def test_a_node_that_lost_its_tail_does_not_vote_either() -> None:
    """Case D: less than its own low-water mark."""
    states = {each: open_state(4) for each in (A, B, C)}
    nodes = [node(A, 4, 110, 120), node(B, 4, 110, 109), node(C, 4, 110, 119)]
    bench = Bench(5, states, nodes).reach(B, C)
    assert bench.mark() is None
    assert bench.lasts[B] == 109
    bench.reach(A)
    assert bench.mark() == 120
    assert bench.lasts == {A: 120, B: 120, C: 120}


def test_nobody_who_may_vote_means_no_mark() -> None:
    """Hazard R3: it waits, and touches nothing above what is proved."""
    states = {each: open_state(4) for each in (A, B, C)}
    bench = Bench(5, states, [node(each, 2, 40, 60) for each in (A, B, C)]).reach(A, B, C)
    assert bench.mark() is None
    assert bench.admitted() == ()


def test_a_new_replica_takes_no_part_in_the_vote() -> None:
    """ST-31: {A, B, C} -> {A, B, D}; C counts as absent."""
    states = {each: open_state(4) for each in (A, B, C)}
    nodes = [node(A, 4, 110, 120), node(B, 4, 110, 118), node(D, -1, -1, -1)]
    bench = Bench(5, states, nodes, (A, B, D)).reach(A, D)
    assert bench.mark() is None
    bench.reach(B)
    assert bench.mark() == 120
    assert bench.stored.replica_states == {each: open_state(5) for each in (A, B, D)}


@pytest.mark.parametrize(
    ("assigned", "online", "mark"),
    [
        ((A, B, C, D), (A, B, D), 120),
        ((A, B, C, D, E), (A, B, D), 120),
        ((A, B, C, D, E), (A, D, E), None),
        ((A, B), (A, B), 120),
        ((A,), (A,), None),
    ],
)
def test_replicas_added_and_removed(
    assigned: tuple[ReplicaId, ...], online: tuple[ReplicaId, ...], mark: int | None
) -> None:
    """ST-31, ST-40: the vote is of the last replicas, the session of the present ones."""
    states = {each: open_state(4) for each in (A, B, C)}
    nodes = [node(each, 4, 110, 120) for each in (A, B, C)] + [node(D, -1, -1, -1)]
    nodes.append(node(E, -1, -1, -1))
    bench = Bench(5, states, nodes, assigned).reach(*online)
    assert bench.mark() == mark
    admitted = len(bench.admitted())
    assert admitted == (len(online) if mark is not None else 0)
    assert set(bench.stored.replica_states) == set(assigned if mark is not None else (A, B, C))


def test_data_without_metadata_is_left_alone() -> None:
    """A lost coordinator must not wipe the storage nodes."""
    bench = Bench(0, {}, [node(A, 4, 110, 120), node(B, 0, -1, 3), node(C, -1, -1, -1)])
    bench.reach(A, B, C)
    refused = [effect.link.replica_id for effect in bench.log if isinstance(effect, DropReplica)]
    assert refused == [A, B]
    assert bench.lasts == {A: 120, B: 3, C: -1}
    assert bench.admitted() == ()


# What differs from the original, and what happens in between


def test_nobody_is_admitted_before_the_metadata_is_written() -> None:
    """Hazard R1."""
    states = {each: open_state(4) for each in (A, B, C)}
    bench = Bench(5, states, [node(each, 4, 110, 120) for each in (A, B, C)])
    bench.writes = False
    bench.reach(A, B, C)
    assert [effect for effect in bench.log if isinstance(effect, WriteMetadata)]
    assert bench.admitted() == ()
    assert bench.recovery.awaits_coordinator
    bench.feed(MetadataWritten(2))
    assert bench.admitted() == (A, B)


def test_one_that_joins_late_is_admitted_after_its_state_is_written() -> None:
    states = {each: open_state(4) for each in (A, B, C)}
    bench = Bench(5, states, [node(each, 4, 110, 120) for each in (A, B, C)]).reach(A, B)
    assert bench.stored.replica_states[C] == closed(4, 120)
    bench.writes = False
    bench.reach(C)
    assert bench.admitted() == (A, B)
    bench.feed(MetadataWritten(3))
    assert bench.admitted() == (A, B, C)
    assert bench.newest() == AdmitReplicas((C,))


def test_losing_one_replica_makes_it_absent_and_no_more() -> None:
    """Hazard R2."""
    states = {each: open_state(4) for each in (A, B, C)}
    bench = Bench(5, states, [node(A, 4, 1, 9), node(B, 4, 1, 8), node(C, 4, 1, 7)]).reach(A)
    bench.feed(ReplicaLost(bench.link(A), "cut"))
    bench.reach(B, C)
    assert bench.mark() == 8
    assert bench.admitted() == (B, C)
    assert bench.stored.replica_states[A] == closed(4, 8)
    bench.reach(A)
    assert bench.lasts == {A: 8, B: 8, C: 8}


def test_a_failed_copy_is_tried_from_another_source() -> None:
    states = {each: open_state(4) for each in (A, B, C)}
    bench = Bench(5, states, [node(A, 4, 1, 9), node(B, 4, 1, 9), node(C, 4, 1, 3)])
    bench.reach(A, B)
    bench.connect(C)
    bench.run(2)
    copy = bench.waiting.pop()
    assert copy == CopyRecords(C, A, TransactionId(4), TransactionId(9))
    bench.fail_to_read(copy)
    assert bench.waiting[-1] == CopyRecords(C, B, TransactionId(4), TransactionId(9))


@pytest.mark.parametrize("failure", [MetadataWriteFailed("conflict"), MetadataWriteFailed("lost")])
def test_metadata_is_read_again_before_it_is_written_again(failure: MetadataWriteFailed) -> None:
    """Hazard R10; a write whose answer was lost may have been done."""
    states = {each: open_state(4) for each in (A, B)}
    bench = Bench(5, states, [node(A, 4, 1, 9), node(B, 4, 1, 9)])
    bench.writes = False
    bench.reach(A, B)
    write = bench.newest()
    assert isinstance(write, WriteMetadata)
    bench.feed(failure)
    assert bench.newest() == ReadMetadata(0.1)
    bench.feed(MetadataReadFailed("lost"))
    assert bench.newest() == ReadMetadata(0.2)
    if failure.reason == "lost":
        bench.feed(MetadataRead(write.metadata, 2, (A, B)))
        assert bench.admitted() == (A, B)
    else:
        bench.feed(MetadataRead(bench.stored, 8, (A, B)))
        assert bench.newest() == WriteMetadata(write.metadata, 8)


def test_a_stranger_in_the_metadata_ends_the_recovery() -> None:
    """ST-05."""
    bench = Bench(5, {A: open_state(4)}, [node(A, 4, 1, 9)])
    bench.writes = False
    bench.reach(A)
    bench.feed(MetadataWriteFailed("conflict"))
    stranger = PartitionMetadata(Generation(2), SessionId(6), {A: open_state(4)})
    bench.feed(MetadataRead(stranger, 9, (A,)))
    assert isinstance(bench.newest(), EndRecovery)
    assert bench.recovery.closed


def test_recovery_is_idempotent() -> None:
    """ST-34: fail just before the metadata is written, run again, same result."""
    states = {A: open_state(4), B: open_state(4), C: closed(3, 100)}
    nodes = [node(A, 4, 110, 125), node(B, 4, 110, 120), node(C, 3, 90, 115)]
    first = Bench(5, states, nodes)
    first.writes = False
    first.reach(A, B, C)
    assert first.stored.replica_states == states
    second = first.next_session().reach(C, B, A)
    assert (second.mark(), second.lasts) == (first.mark(), first.lasts)
    assert second.stored.replica_states == {each: open_state(6) for each in (A, B, C)}


def recover_in_part(
    nodes: Sequence[FakeReplica],
    states: Mapping[ReplicaId, ReplicaState],
    random: Random,
    session: int,
) -> tuple[Bench, bool]:
    """Run a recovery in a random order up to a random point, any replica absent or not."""
    bench = Bench(session, states, nodes)
    bench.writes = random.random() < 0.3
    for replica_id in random.sample(bench.assigned, random.randint(1, len(bench.assigned))):
        bench.connect(replica_id)
        for _ in range(random.randint(0, 20)):
            if bench.waiting:
                random.shuffle(bench.waiting)
                bench.run(1)
    return bench, bench.admitted() != ()


@pytest.mark.parametrize("replica_count", [3, 5])
def test_recovery_after_failed_recoveries_keeps_what_a_majority_had(replica_count: int) -> None:
    """ST-35: mixed session IDs; whatever was cut short, no later mark is below a durable one."""
    for seed in range(300):
        random = Random(seed)
        replica_ids = ALL[:replica_count]
        quorum = replica_count // 2 + 1
        open_count = random.randint(quorum, replica_count)
        states = {
            each: open_state(4) if index < open_count else closed(3, random.randint(0, 3))
            for index, each in enumerate(replica_ids)
        }
        nodes = [
            node(each, 4, 3, random.randint(3, 12)) if index < open_count else node(each, 3, 0, 6)
            for index, each in enumerate(replica_ids)
        ]
        lasts = sorted((each.last for each in nodes[:open_count]), reverse=True)
        committed = lasts[quorum - 1]
        session = 5
        for _ in range(random.randint(1, 5)):
            bench, opened = recover_in_part(nodes, states, random, session)
            mark = bench.mark()
            assert mark is None or mark >= committed
            if opened:
                assert mark is not None
                committed = mark
            states, session = dict(bench.stored.replica_states), session + 1
        durable = [each.low_water_mark for each in nodes]
        final = Bench(session, states, nodes).reach(*random.sample(replica_ids, replica_count))
        mark = final.mark()
        assert mark is not None
        assert mark >= max(committed, *durable)
        assert set(final.lasts.values()) == {mark}


def test_a_mark_on_a_disk_is_never_undercut() -> None:
    """A recovery that counted a closed replica's copy failed right after the first low-water mark;
    the voter that held the tail is away next time."""
    states = {A: open_state(4), B: open_state(4), C: closed(3, 3)}
    nodes = [node(A, 4, 3, 15), node(B, 4, 3, 12), node(C, 3, 3, 3)]
    first = Bench(5, states, nodes)
    first.connect(A, C)
    while not any(each.low_water_mark == 15 for each in nodes):
        first.run(1)
    second = first.next_session().reach(B, C)
    assert second.mark() == 15
    third = first.next_session().reach(A, B)
    assert third.mark() == 15


def test_a_voter_s_low_water_mark_is_the_floor_of_the_resolved_mark() -> None:
    """Session 2 had A and B. Session 3 resolved 5 with A's tail and a copy on C, put 5
    on both disks, and did not open; then C lost its disk. Without the floor B and C, or A and B,
    would settle for 3, and A could take part again only once the log had grown past 5."""
    states = {A: open_state(2), B: open_state(2), C: closed(1, 1)}
    for seed in range(20):
        nodes = [node(A, 3, 5, 5), node(B, 2, 3, 3), node(C, -1, -1, -1)]
        bench = Bench(4, states, nodes)
        order = Random(seed).sample((A, B, C), 3)
        for replica_id in order:
            bench.connect(replica_id)
        bench.run()
        assert bench.mark() == 5
        assert bench.admitted() == (A, B, C)
        assert bench.recovery.awaited_mark is None


def test_a_mark_that_was_undercut_by_another_is_waited_for() -> None:
    """A node never lowers its low-water mark; it takes part once the log has grown beyond it."""
    states = {A: open_state(4), B: open_state(4), C: closed(3, 3)}
    nodes = [node(A, 4, 3, 12), node(B, 4, 3, 12), node(C, 3, 15, 3)]
    bench = Bench(5, states, nodes).reach(A, B, C)
    assert bench.admitted() == (A, B)
    assert bench.recovery.awaited_mark == 15
    assert bench.lasts[C] == 12
    assert SetLowWaterMark(TransactionId(12)) not in bench.asked(C)


def test_requests_of_a_simple_recovery_are_those_of_the_original() -> None:
    states = {each: open_state(0) for each in (A, B)}
    bench = Bench(1, states, [node(A, 0, -1, 2), node(B, 0, -1, 2)]).reach(A, B)
    assert bench.asked(A) == [
        AskSessionInfo(),
        AskMaxTransactionId(),
        SetLowWaterMark(TransactionId(2)),
    ]
    assert HighWaterMarkResolved(TransactionId(2)) in bench.log


def test_a_refusal_is_not_an_answer() -> None:
    with pytest.raises(RefusedError):
        node(A, 4, 3, 5).process(SessionId(2), AskSessionInfo())


# Metadata that were set back


def test_one_that_has_joined_since_the_metadata_were_copied_votes() -> None:
    """C joined session 4 late and has committed 8 to 13 with A. Written off at 3 by the metadata of
    before, it would be cut, and A alone would hold what was acknowledged."""
    states = {A: open_state(4), B: open_state(4), C: closed(3, 3)}
    for first, second in ((B, C), (C, B), (A, C), (C, A), (A, B), (B, A)):
        nodes = [node(A, 4, 8, 13), node(B, 4, 8, 8), node(C, 4, 8, 13)]
        bench = Bench(5, states, nodes).reach(first, second)
        assert bench.mark() == 13
        bench.reach(*({A, B, C} - {first, second}))
        assert bench.lasts == {A: 13, B: 13, C: 13}
        assert same_logs(bench)


def test_a_mark_of_the_last_session_alone_makes_no_voter_of_a_closed_replica() -> None:
    """Nor does a mark of a session of the same number that was given before the set-back."""
    states = {A: open_state(4), B: open_state(4), C: closed(3, 3)}
    nodes = [node(A, 4, 8, 13), node(B, 4, 8, 13), diverged(C, 4, 10, 10, 3)]
    bench = Bench(5, states, nodes).reach(C)
    assert bench.lasts[C] == 3
    bench.reach(A, B)
    assert bench.mark() == 13
    assert same_logs(bench)


def diverged(replica_id: ReplicaId, session: int, mark: int, last: int, own: int) -> FakeReplica:
    """As `node`, but the last `own` records are such as nobody else has."""
    found = node(replica_id, session, mark, last)
    for number in range(last + 1 - own, last + 1):
        request_id = b"x" + number.to_bytes(15, "big")
        found.log[number] = pack_records(TransactionId(number), [NewRecord(request_id, 0, b"", 0)])
    return found


def same_logs(bench: Bench) -> bool:
    blocks = [[each.block for each in found.log] for found in bench.nodes.values()]
    return all(block == blocks[0] for block in blocks)


CLIMBED = 9 + SESSION_CLIMB


@pytest.mark.parametrize("order", list(permutations((A, B, C))))
def test_set_back_metadata_do_not_let_a_stale_replica_vote(
    order: tuple[ReplicaId, ...],
) -> None:
    """By the metadata all three are of session 5; since then A and B alone were in session 9."""
    states = {each: open_state(5) for each in (A, B, C)}
    nodes = [node(A, 9, 100, 120), node(B, 9, 100, 118), diverged(C, 5, 70, 103, 20)]
    bench = Bench(CLIMBED, states, nodes).reach(*order)
    assert bench.mark() in (118, 120)
    assert bench.recovery.admitted
    assert same_logs(bench)
    assert set(bench.lasts.values()) == {bench.mark()}


def test_a_replica_that_was_away_is_cut_to_what_it_knows_in_the_session_after_too() -> None:
    states = {each: open_state(5) for each in (A, B, C)}
    nodes = [node(A, 9, 100, 120), node(B, 9, 100, 120), diverged(C, 5, 70, 103, 20)]
    bench = Bench(CLIMBED, states, nodes).reach(A, B)
    assert bench.mark() == 120
    assert bench.stored.replica_states[C] == closed(9, 120)
    following = bench.next_session().reach(A, B, C)
    assert not following.recovery.is_set_back
    assert same_logs(following)


@pytest.mark.parametrize(
    "nodes",
    [
        [node(A, 9, 100, 120), node(C, 5, 70, 103)],
        [node(A, 12, 110, 110), node(B, 9, 100, 110)],
        [node(A, 9, 100, 120), node(B, -1, -1, -1), node(C, 5, 70, 103)],
        [node(A, 9, 100, 120)],
    ],
)
def test_without_a_majority_that_knows_nothing_is_decided_and_nothing_is_cut(
    nodes: list[FakeReplica],
) -> None:
    states = {each: open_state(5) for each in (A, B, C)}
    lasts = [each.last for each in nodes]
    bench = Bench(CLIMBED, states, nodes).reach(*(each.replica_id for each in nodes))
    assert bench.mark() is None
    assert [each.last for each in nodes] == lasts


def test_a_climb_that_went_no_further_is_gone_on_with_by_the_next_server() -> None:
    """A has begun the session that outran the others, and no metadata say so."""
    states = {each: open_state(5) for each in (A, B, C)}
    nodes = [node(A, CLIMBED, 120, 120), node(B, 9, 100, 120), node(C, 9, 100, 125)]
    bench = Bench(CLIMBED + 1, states, nodes).reach(A, B, C)
    assert bench.mark() == 120
    assert set(bench.lasts.values()) == {120}


def test_a_blank_replica_of_set_back_metadata_is_filled_and_does_not_vote() -> None:
    states = {each: open_state(5) for each in (A, B, C)}
    nodes = [node(A, 9, 100, 120), node(B, -1, -1, -1), node(C, 9, 100, 120)]
    bench = Bench(CLIMBED, states, nodes).reach(B, A, C)
    assert bench.mark() == 120
    assert same_logs(bench)
