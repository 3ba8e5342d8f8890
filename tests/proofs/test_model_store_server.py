"""A server as a value: the product's keeper, stepped once per state and event."""

from __future__ import annotations

import pytest

from proofs.model.frozen import freeze
from proofs.model.ledger import ViolationError
from proofs.model.store_server import (
    REPLICA_IDS,
    Answer,
    Break,
    CommittedTokens,
    Connect,
    FailedTokens,
    Ghost,
    Happening,
    Lose,
    MarkResolved,
    ModelServer,
    Note,
    ReadAnswer,
    Servers,
    SessionOpened,
    Show,
    Start,
    SubmitTokens,
    Wake,
    WriteAnswer,
    thaw_metadata,
)
from waltz.cluster.partition_metadata import NEW_PARTITION, PartitionMetadata, next_session
from waltz.store.requests import (
    AppendToReplica,
    AskMaxTransactionId,
    AskSessionInfo,
    SetLowWaterMark,
)
from waltz.types import NO_SESSION, NOTHING, Generation
from waltz.wire.storage_protocol import SessionInfo

ASSIGNED = REPLICA_IDS[:3]
NEW = SessionInfo(NO_SESSION, NOTHING, NOTHING)


class Life:
    """One server, and what happens to it."""

    def __init__(self) -> None:
        self.servers = Servers()
        self.number = self.servers.number(ModelServer(Generation(1), assigned_seen=ASSIGNED))
        self.notes: list[Note] = []

    def now(self) -> ModelServer:
        return self.servers[self.number]

    def tell(self, *happenings: Happening) -> Life:
        for happening in happenings:
            self.number, notes = self.servers.step(self.number, happening)
            self.notes += notes
        return self

    def answer(self, replica: int, answer: SessionInfo | int | None = None) -> Life:
        return self.tell(Answer(replica, is_refusal=False, answer=answer))  # type: ignore[arg-type]

    def written(self) -> PartitionMetadata:
        write = self.now().write
        assert write is not None
        return thaw_metadata(write.metadata)

    def open(self) -> Life:
        """Open the first session with two replicas of three."""
        self.tell(Start(), ReadAnswer(freeze(NEW_PARTITION), 0, ASSIGNED), WriteAnswer(1))
        for replica in (0, 1):
            self.tell(Connect(replica)).answer(replica, NEW).answer(replica, -1).answer(replica)
        return self.tell(WriteAnswer(2))


def test_it_asks_the_coordinator_first() -> None:
    life = Life().tell(Start())
    assert life.now().reads_metadata
    life.tell(ReadAnswer(freeze(NEW_PARTITION), 0, ASSIGNED))
    assert life.written() == next_session(NEW_PARTITION, Generation(1))
    assert life.now().connecting == ()
    life.tell(WriteAnswer(1))
    assert life.now().connecting == (0, 1, 2)
    assert life.now().session_id == 0


def test_requests_wait_in_the_order_they_were_sent() -> None:
    life = Life().tell(Start(), ReadAnswer(freeze(NEW_PARTITION), 0, ASSIGNED), WriteAnswer(1))
    life.tell(Connect(1))
    assert life.now().queues[:3] == (None, (AskSessionInfo(),), None)
    assert life.now().pure_head == 1
    life.answer(1, NEW)
    assert life.now().queues[1] == (AskMaxTransactionId(),)
    life.answer(1, -1)
    assert life.now().queues[1] == (SetLowWaterMark(NOTHING),)
    assert life.now().pure_head is None


def test_it_says_what_was_resolved_opened_and_committed() -> None:
    life = Life().open()
    assert life.now().is_open
    assert life.notes == [MarkResolved(0, NOTHING), SessionOpened(0, NOTHING, (0, 1))]  # type: ignore[arg-type]
    life.tell(SubmitTokens((1,)))
    assert life.now().submitted == (1,)
    for replica in (0, 1):
        (request,) = life.now().queues[replica] or ()
        assert isinstance(request, AppendToReplica)
        life.answer(replica)
    assert life.notes[2:] == [CommittedTokens(0, 0, (1,))]  # type: ignore[arg-type]
    assert (life.now().submitted, life.now().high_water_mark) == ((), 0)


def test_what_was_on_its_way_haunts_the_replicas_when_a_session_ends() -> None:
    life = Life().open().tell(SubmitTokens((1,)), Lose(0))
    assert not life.now().is_open
    (ghost,) = life.notes[2:]
    assert isinstance(ghost, Ghost)
    assert (ghost.replica, ghost.session_id) == (1, 0)
    assert [type(request) for request in ghost.requests] == [AppendToReplica]
    assert life.now().reads_metadata, "the next session follows"


def test_a_broken_connection_swallows_what_is_sent() -> None:
    life = Life().open().tell(Break(0), SubmitTokens((1,)))
    assert life.now().broken == (0,)
    assert life.now().queues[0] == ()
    assert life.now().queues[1] != ()
    life.tell(Lose(0))
    assert (life.now().broken, life.now().queues[0]) == ((), None)


def test_what_was_left_open_is_decided_by_the_next_session() -> None:
    life = Life().open().tell(SubmitTokens((1,)), Lose(0))
    stored = freeze(life_metadata())
    life.tell(ReadAnswer(stored, 2, ASSIGNED), WriteAnswer(3))
    for replica in (0, 1):
        life.tell(Connect(replica)).answer(replica, SessionInfo(0, NOTHING, NOTHING))  # type: ignore[arg-type]
        life.answer(replica, -1)
    for replica in (0, 1):
        life.answer(replica)
    life.tell(WriteAnswer(4))
    assert [note for note in life.notes if isinstance(note, FailedTokens)] == [FailedTokens((1,))]
    assert life.now().session_id == 1


def life_metadata() -> PartitionMetadata:
    """What the first session has written when it is open with two of three."""
    life = Life().tell(Start(), ReadAnswer(freeze(NEW_PARTITION), 0, ASSIGNED), WriteAnswer(1))
    for replica in (0, 1):
        life.tell(Connect(replica)).answer(replica, NEW).answer(replica, -1).answer(replica)
    return life.written()


def test_time_passes_only_when_it_is_told_to() -> None:
    life = Life().open().tell(Connect(2)).answer(2, NEW)
    life.tell(Lose(0))
    assert not life.now().is_open
    life = Life().open()
    life.tell(Show((*REPLICA_IDS[:2], REPLICA_IDS[3])))
    assert life.now().reads_metadata, "a change of the assignment is followed at once"
    assert life.now().is_open, "as long as there is nothing to follow it with"
    life.tell(ReadAnswer(freeze(life_metadata()), 2, ASSIGNED))
    assert not life.now().is_open
    assert not life.now().has_deadline


def test_the_same_step_is_taken_once() -> None:
    life = Life().open()
    count, number = life.servers.step_count, life.number
    again = life.servers.number(ModelServer(Generation(1), assigned_seen=ASSIGNED))
    life.number = again
    life.open()
    assert (life.servers.step_count, life.number) == (count, number)


def test_events_that_look_alike_are_told_apart() -> None:
    """Named tuples of two kinds may be equal: one says what it is."""
    assert tuple(Connect(0)) == tuple(Lose(0))
    life = Life().open()
    assert life.servers.step(life.number, Break(0)) != life.servers.step(life.number, Lose(0))
    assert life.servers.step(life.number, Wake())[0] == life.number


def test_a_failed_assertion_of_the_product_is_a_violation() -> None:
    life = Life().open()
    with pytest.raises(ViolationError, match="assertion"):
        life.tell(WriteAnswer(5))
