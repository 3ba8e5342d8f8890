"""A recovery among plain objects, stepped by hand: what its tests and its pictures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.store.fake_replica import FakeReplica
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState
from waltz.record import NewRecord, RecordBatch, join_batches, pack_records
from waltz.store.recovery import CopyRecords, Recovery, RecoveryEffect, RecoveryEvent
from waltz.store.requests import (
    AppendToReplica,
    MetadataWritten,
    ReadFromReplica,
    ReplicaConnected,
    ReplicaLink,
    RequestAnswered,
    RequestFailed,
    SendRequest,
    WriteMetadata,
)
from waltz.types import Generation, ReplicaId, SessionId, TransactionId

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
