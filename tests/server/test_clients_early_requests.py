"""Requests that wait for a store session, by value."""

from __future__ import annotations

from waltz.server.clients.client_connection import ClientPeer
from waltz.server.clients.early_requests import (
    EARLY_MOUNT_SECONDS_MAX,
    EarlyMount,
    EarlyRequests,
)
from waltz.types import NOTHING, ClientId, Generation, PartitionId, RequestId
from waltz.wire.client_protocol import HighWaterMarkRequest, MountRequest

REQUEST_ID = RequestId(ClientId(7), Generation(1), PartitionId(0), 1)
QUESTION = HighWaterMarkRequest(REQUEST_ID)


def peer(connection_id: int) -> ClientPeer:
    return ClientPeer(connection_id, ClientId(7), 1)


def mount(sequence: int) -> MountRequest:
    return MountRequest(REQUEST_ID, NOTHING, sequence)


def test_the_last_mount_of_a_connection_waits_and_is_refused_in_time() -> None:
    assert EarlyRequests().deadline is None
    early = EarlyRequests()
    assert not early.add_mount(peer(1), mount(1), 10.0)
    assert early.add_mount(peer(1), mount(2), 11.0)
    assert not early.add_mount(peer(2), mount(1), 12.0)
    first, second = (at + EARLY_MOUNT_SECONDS_MAX for at in (11.0, 12.0))
    assert early.deadline == first
    assert early.take_overdue(first) == [EarlyMount(peer(1), mount(2), first)]
    assert early.deadline == second
    assert early.take_mounts() == [EarlyMount(peer(2), mount(1), second)]
    early.check_invariants(is_open=True, knows_mark=False)
    assert early.take_mounts() == []


def test_all_questions_wait_and_what_a_lost_connection_asked_is_counted() -> None:
    early = EarlyRequests()
    early.add_question(1, QUESTION)
    early.add_question(2, QUESTION)
    early.add_question(1, QUESTION)
    early.add_mount(peer(1), mount(1), 0.0)
    assert early.forget(1) == 3
    assert early.deadline is None
    assert early.forget(1) == 0
    assert early.take_questions() == [(2, QUESTION)]
    assert early.take_questions() == []
    early.check_invariants(is_open=True, knows_mark=True)
