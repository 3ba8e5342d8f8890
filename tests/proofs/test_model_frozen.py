"""Machines as values: what comes back is the same machine, and equal ones are one."""

from __future__ import annotations

from collections import deque

from proofs.model.frozen import LATER, NOW, Frozen, freeze, thaw
from proofs.model.replica import batch_of
from waltz.cluster.partition_metadata import NEW_PARTITION, PartitionMetadata, ReplicaState
from waltz.limits import RETRY_SECONDS_MIN
from waltz.store.judgement import RecoveryStanding
from waltz.store.recovery import Recovery
from waltz.store.requests import (
    AskSessionInfo,
    MetadataRead,
    MetadataWritten,
    ReadFromReplica,
    ReplicaConnected,
    ReplicaLink,
    ReplicaLost,
    SendRequest,
)
from waltz.store.session_keeper import SessionKeeper
from waltz.types import Generation, ReplicaId, SessionId, TransactionId

A, B = ReplicaId("a:1"), ReplicaId("b:1")


def started_keeper() -> SessionKeeper:
    keeper = SessionKeeper(Generation(1))
    keeper.step([], NOW)
    keeper.step([MetadataRead(NEW_PARTITION, 0, (A, B))], NOW)
    keeper.step([MetadataWritten(1)], NOW)
    return keeper


def test_a_thawed_machine_does_what_the_frozen_one_would_have_done() -> None:
    keeper = started_keeper()
    copy = thaw(freeze(keeper))
    event = ReplicaConnected(ReplicaLink(SessionId(0), A, 1))
    assert copy is not keeper
    assert copy.step([event], NOW) == keeper.step([event], NOW)
    assert freeze(copy) is freeze(keeper)


def test_a_thawed_machine_shares_nothing_that_changes() -> None:
    recovery = Recovery(NEW_PARTITION, 1, (A, B))
    frozen = freeze(recovery)
    link = ReplicaLink(SessionId(0), A, 1)
    effects = thaw(frozen).step([ReplicaConnected(link)], NOW)
    assert SendRequest(link, AskSessionInfo()) in effects
    assert freeze(recovery) is frozen
    assert freeze(thaw(frozen)) is frozen


def test_equal_values_are_frozen_to_one_object() -> None:
    def metadata(mark: int | None) -> PartitionMetadata:
        closed = None if mark is None else TransactionId(mark)
        state = ReplicaState(SessionId(1), closed)
        return PartitionMetadata(Generation(1), SessionId(2), {A: state})

    assert freeze(metadata(3)) is freeze(metadata(3))
    assert freeze(metadata(3)) is not freeze(metadata(None))
    assert thaw(freeze(metadata(3))) == metadata(3)
    assert isinstance(freeze(metadata(3)), Frozen)


def test_containers_and_plain_values_come_back() -> None:
    batch = batch_of(TransactionId(0), (1, 2))
    values: tuple[object, ...] = (
        [1, (2, None)],
        deque([3.0]),
        {A: {"x": b"y"}},
        RecoveryStanding.NEW,
        batch,
        True,
        [],
        {},
    )
    assert thaw(freeze(values)) == values
    assert freeze([]) is not freeze({})
    assert freeze(batch) is batch


def test_what_is_frozen_of_one_kind_is_not_taken_for_another() -> None:
    assert freeze((1, 2)) is not freeze([1, 2])
    assert freeze(AskSessionInfo()) is not freeze(())


def test_the_number_of_an_attempt_is_forgotten() -> None:
    first, second = (
        ReadFromReplica(TransactionId(0), 1, ReplicaLink(SessionId(0), A, attempt))
        for attempt in (1, 7)
    )
    assert freeze(first) is freeze(second)
    assert thaw(freeze(second)) == first


def test_delays_are_forgotten_and_so_is_how_often_one_was_lost() -> None:
    def lost(times: int) -> SessionKeeper:
        keeper = started_keeper()
        for attempt in range(1, times + 1):
            link = ReplicaLink(SessionId(0), A, attempt)
            keeper.step([ReplicaConnected(link)], NOW)
            keeper.step([ReplicaLost(link, "cut")], NOW)
        return keeper

    assert freeze(lost(4)) is freeze(lost(1))
    assert freeze(lost(1)) is not freeze(started_keeper()), "what A said may matter"


def test_what_waits_for_its_time_still_waits() -> None:
    assert NOW < RETRY_SECONDS_MIN < LATER
    keeper = started_keeper()
    assert thaw(freeze(keeper)).deadline == keeper.deadline
