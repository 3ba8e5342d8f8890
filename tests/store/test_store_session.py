"""One session, from connecting its replicas to its end. Rows ST-02, ST-09 to ST-14, ST-17."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from zlib import crc32

import pytest

from tests.shares import one_in
from tests.store.fake_replica import FakeReplica, RefusedError
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.limits import BATCHES_IN_FLIGHT_MAX
from waltz.record import NewRecord, RecordBatch, pack_records
from waltz.store.events import Committed
from waltz.store.quorum_appends import RECENT_BATCH_BYTES_MAX, QuorumAppends
from waltz.store.requests import (
    AppendToReplica,
    ConnectReplica,
    DropReplica,
    MetadataRead,
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
    WriteMetadata,
)
from waltz.store.store_session import SessionEffect, SessionEvent, StoreSession
from waltz.types import Generation, ReplicaId, SessionId, TransactionId

A, B, C = (ReplicaId(f"{name}:1") for name in "abc")
METADATA = PartitionMetadata(Generation(1), SessionId(0), {})


def batch(first: int, count: int = 1, size: int = 0) -> RecordBatch:
    data = bytes(size)
    return pack_records(TransactionId(first), [NewRecord(b"\0" * 16, 0, data, crc32(data))] * count)


class Bench:
    """A session of three fresh replicas; answers come when a test asks for them."""

    def __init__(self) -> None:
        self.session = StoreSession(METADATA, 0, (A, B, C))
        self.replicas = {each: FakeReplica(each) for each in (A, B, C)}
        self.outbox: dict[ReplicaId, list[SendRequest]] = {A: [], B: [], C: []}
        self.links: dict[ReplicaId, ReplicaLink] = {}
        self.log: list[SessionEffect] = []
        self.version = 0
        self.step()

    @property
    def appends(self) -> QuorumAppends:
        assert self.session.appends is not None, "open"
        return self.session.appends

    def step(self, *events: SessionEvent) -> list[SessionEffect]:
        return self.took(self.session.step(events, 0.0))

    def took(self, found: Sequence[SessionEffect]) -> list[SessionEffect]:
        effects = list(found)
        self.session.check_invariants()
        self.log += effects
        for effect in effects:
            match effect:
                case ConnectReplica(link):
                    self.links[link.replica_id] = link
                case SendRequest(link):
                    self.outbox[link.replica_id].append(effect)
                case WriteMetadata():
                    self.version += 1
                    effects += self.step(MetadataWritten(self.version))
                case _:
                    pass
        return effects

    def answer(self, replica_id: ReplicaId, count: int = 1000) -> list[SessionEffect]:
        """Let the replica work off up to `count` requests."""
        effects: list[SessionEffect] = []
        while self.outbox[replica_id] and count:
            count -= 1
            link, request = (sent := self.outbox[replica_id].pop(0)).link, sent.request
            self.replicas[replica_id].announce(link.session_id)
            try:
                answer = self.replicas[replica_id].process(link.session_id, request)
                effects += self.step(RequestAnswered(link, request, answer))
            except RefusedError as error:
                effects += self.step(RequestFailed(link, request, str(error)))
        return effects

    def connect(self, *replica_ids: ReplicaId) -> None:
        for replica_id in replica_ids:
            self.step(ReplicaConnected(self.links[replica_id]))
            self.answer(replica_id)

    def lose(self, replica_id: ReplicaId) -> list[SessionEffect]:
        self.outbox[replica_id].clear()
        return self.step(ReplicaLost(self.links[replica_id], "cut"))

    def append(self, *batches: RecordBatch) -> None:
        for each in batches:
            self.took(self.session.append(each))

    def committed(self) -> list[RecordBatch]:
        return [effect.batch for effect in self.log if isinstance(effect, Committed)]

    def is_open(self) -> bool:
        return self.session.is_open

    def ended(self) -> str | None:
        return self.session.ended


def opened(*replica_ids: ReplicaId) -> Bench:
    bench = Bench()
    bench.connect(*replica_ids)
    assert bench.is_open()
    return bench


def test_a_majority_opens_the_session_and_the_last_one_joins_later() -> None:
    """ST-22."""
    bench = Bench()
    bench.connect(A)
    assert not bench.is_open()
    bench.connect(B)
    assert bench.is_open()
    bench.append(batch(0))
    assert bench.outbox[C] == []
    bench.connect(C)
    bench.answer(C)
    assert bench.replicas[C].last == 0


def test_a_commit_needs_a_majority_and_comes_in_order() -> None:
    """ST-02."""
    bench = opened(A, B, C)
    bench.append(batch(0, 2), batch(2), batch(3))
    bench.answer(A)
    assert bench.committed() == []
    bench.answer(C, 1)
    assert bench.committed() == [batch(0, 2)]
    bench.answer(C)
    assert bench.committed() == [batch(0, 2), batch(2), batch(3)]
    assert bench.appends.high_water_mark == 3
    assert bench.appends.next_transaction_id == 4


def test_batches_in_flight_are_bounded() -> None:
    """ST-11."""
    bench = opened(A, B)
    for first in range(BATCHES_IN_FLIGHT_MAX):
        assert bench.appends.has_room
        bench.append(batch(first))
    assert not bench.appends.has_room
    bench.answer(A)
    bench.answer(B, 1)
    assert bench.appends.has_room


def test_a_slow_replica_holds_nobody_up_and_misses_nothing() -> None:
    """ST-10, ST-14."""
    bench = opened(A, B, C)
    for first in range(50):
        bench.append(batch(first))
        bench.answer(A)
        bench.answer(B)
    assert bench.appends.high_water_mark == 49
    assert len(bench.outbox[C]) == BATCHES_IN_FLIGHT_MAX
    bench.answer(C)
    assert bench.replicas[C].last == 49


def test_a_replica_that_lags_beyond_memory_reads_from_another() -> None:
    """ST-14, ST-15: and from a second one if the first cannot."""
    bench = opened(A, B, C)
    size = RECENT_BATCH_BYTES_MAX // 3
    for first in range(BATCHES_IN_FLIGHT_MAX + 6):
        bench.append(batch(first, 1, size))
        bench.answer(A)
        bench.answer(B)
    bench.replicas[A].reads_fail = True
    for _ in range(40):
        for replica_id in (A, B, C):
            bench.answer(replica_id)
    reads = [
        effect for effect in bench.log
        if isinstance(effect, SendRequest) and isinstance(effect.request, ReadFromReplica)
    ]  # fmt: skip
    assert {effect.link.replica_id for effect in reads} == {A, B}
    assert bench.replicas[C].last == BATCHES_IN_FLIGHT_MAX + 5
    assert bench.session.excluded == (), "a failed read says nothing about the replica"
    assert bench.ended() is None


def test_one_lost_replica_of_three_stops_nothing() -> None:
    """ST-02: and what it had acknowledged still counts."""
    bench = opened(A, B, C)
    bench.append(batch(0))
    bench.answer(A)
    assert DropReplica(bench.links[A], "cut") in bench.lose(A)
    assert bench.session.excluded == (A,)
    bench.answer(B)
    assert bench.committed() == [batch(0)]
    bench.append(batch(1))
    bench.answer(B)
    bench.answer(C)
    assert bench.committed() == [batch(0), batch(1)]


def test_a_lost_majority_ends_the_session_with_batches_in_flight() -> None:
    bench = opened(A, B, C)
    bench.append(batch(0), batch(1))
    bench.lose(A)
    assert bench.ended() is None
    bench.lose(B)
    assert bench.ended() == "1 of 3 replicas left, 2 needed; lost: a:1, b:1"
    assert list(bench.appends.in_flight) == [batch(0), batch(1)]
    assert bench.session.end("later") == [
        DropReplica(bench.links[each], str(bench.ended())) for each in (A, B, C)
    ]


def test_a_lost_replica_never_rejoins() -> None:
    """ST-09: it is connected to, and nothing else."""
    bench = opened(A, B, C)
    link = bench.links[C]
    bench.lose(C)
    again = bench.links[C]
    assert again == link._replace(attempt=link.attempt + 1)
    assert bench.step(ReplicaConnected(link)) == []
    assert bench.step(RequestAnswered(link, AppendToReplica(batch(0)), None)) == []
    assert not list(bench.session.returned)
    assert bench.step(ReplicaConnected(again)) == []
    assert list(bench.session.returned) == [C]
    assert bench.session.excluded == (C,)
    bench.append(batch(0))
    bench.answer(A)
    bench.answer(B)
    assert bench.committed() == [batch(0)]
    assert not bench.outbox[C]
    bench.lose(C)
    assert not list(bench.session.returned)
    assert bench.session.excluded == (C,)


def test_one_lost_while_it_recovers_is_only_absent() -> None:
    """Hazard R2: before anything was changed on it, it may even come back."""
    bench = Bench()
    bench.step(ReplicaConnected(bench.links[A]))
    bench.answer(A, 1)
    first = bench.links[A]
    bench.lose(A)
    assert bench.links[A] == first._replace(attempt=2)
    bench.connect(B, C)
    assert bench.is_open()
    bench.connect(A)
    assert len(bench.session.holders(TransactionId(-1))) == 3


def test_nothing_is_sent_before_the_metadata_is_written() -> None:
    """Hazard R1."""
    session = StoreSession(METADATA, 0, (A,))
    link = ReplicaLink(SessionId(0), A, 1)
    replica = FakeReplica(A)
    replica.announce(SessionId(0))
    pending: list[SessionEvent] = [ReplicaConnected(link)]
    effects: Sequence[SessionEffect] = session.step([], 0.0)
    while pending:
        effects = session.step([pending.pop()], 0.0)
        for effect in effects:
            if isinstance(effect, SendRequest):
                answer = replica.process(SessionId(0), effect.request)
                pending.append(RequestAnswered(link, effect.request, answer))
    assert isinstance(effects[-1], WriteMetadata)
    assert not session.is_open
    assert session.appends is None
    assert not session.is_waiting
    assert session.step([MetadataWriteFailed("lost")], 0.0) == [ReadMetadata(0.1)]
    session.step([MetadataRead(effects[-1].metadata, 1, (A,))], 0.0)
    assert session.is_open


def test_another_session_in_the_metadata_ends_this_one() -> None:
    """ST-05."""
    bench = opened(A, B)
    bench.step(ReplicaConnected(bench.links[C]))
    bench.answer(C, 2)
    stranger = PartitionMetadata(Generation(2), SessionId(1), {})
    written = bench.outbox[C].pop(0)
    effects = bench.session.step([RequestAnswered(written.link, written.request, None)], 0.0)
    assert isinstance(effects[-1], WriteMetadata)
    bench.step(MetadataWriteFailed("conflict"), MetadataRead(stranger, 9, (A, B, C)))
    assert "replaced by session 1" in str(bench.ended())


def test_a_failed_append_loses_the_replica() -> None:
    bench = opened(A, B, C)
    bench.append(batch(0))
    for replica_id in (A, B):
        bench.answer(replica_id)
    sent = bench.outbox[C].pop()
    bench.step(RequestFailed(sent.link, sent.request, "disk full"))
    assert bench.session.excluded == (C,)
    assert bench.committed() == [batch(0)]
    assert bench.ended() is None


def test_only_holders_are_offered_for_reads() -> None:
    """ST-17."""
    bench = opened(A, B, C)
    bench.append(batch(0))
    bench.answer(A)
    assert bench.session.holders(TransactionId(0)) == (bench.links[A],)
    assert len(bench.session.holders(TransactionId(-1))) == 3


@pytest.mark.parametrize("seeds", one_in(2, [range(4), range(4, 30)]))
def test_no_replica_acknowledges_a_part_of_a_batch_in_flight(seeds: range) -> None:
    """A replica that lags is given copies that end with the commits and whole batches after them,
    whatever is answered in which order; `check_invariants` looks at it after each step."""
    for seed in seeds:
        random = Random(seed)
        bench = opened(A, B, C)
        first = 0
        for _ in range(60):
            if bench.appends.has_room:
                count = random.randint(1, 4)
                bench.append(batch(first, count, RECENT_BATCH_BYTES_MAX // 8))
                first += count
            bench.answer(random.choice((A, A, B, B, C)), random.randint(1, 3))
            bench.session.check_invariants()
        lag = [
            effect for effect in bench.log
            if isinstance(effect, SendRequest) and isinstance(effect.request, ReadFromReplica)
        ]  # fmt: skip
        assert lag or seed, "the first one lags beyond what is remembered"


def test_an_acknowledgement_within_a_batch_in_flight_would_be_noticed() -> None:
    bench = opened(A, B, C)
    bench.append(batch(0, 3))
    bench.session.check_invariants()
    bench.session._replicas[A].acknowledged_through = TransactionId(1)
    with pytest.raises(AssertionError):
        bench.session.check_invariants()
