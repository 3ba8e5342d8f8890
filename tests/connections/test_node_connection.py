"""One address, and how a connection to its node comes about."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from waltz.connections.node_connection import (
    ConnectionWanted,
    Event,
    NodeConnection,
    NodeFound,
    NodeNotFound,
    NotResolved,
    OpenTransport,
    Resolve,
    Resolved,
    TransportFailed,
    TransportOpened,
)
from waltz.types import Address

NAME = Address("db", 6000)
IPS = [Address(f"10.0.0.{number}", 6000) for number in range(1, 5)]


def effects(*events: Event) -> list[object]:
    machine = NodeConnection(NAME)
    found: list[object] = []
    for event in events:
        found += machine.step([event], 0.0)
        machine.check_invariants()
        assert machine.deadline is None
    assert machine.closed == isinstance(found[-1], NodeFound | NodeNotFound)
    return found


def test_the_name_is_resolved_first_and_the_transport_comes_before_all_else() -> None:
    """LC-20 to LC-22."""
    assert effects(ConnectionWanted(), Resolved(IPS[:1], [0.3]), TransportOpened()) == [
        Resolve(NAME),
        OpenTransport(IPS[0]),
        NodeFound(),
    ]


def test_the_next_address_is_tried_when_one_fails() -> None:
    """LC-23: in the order of the draws."""
    assert effects(
        ConnectionWanted(),
        Resolved(IPS[:3], [0.9, 0.1, 0.5]),
        TransportFailed("refused"),
        TransportOpened(),
    ) == [Resolve(NAME), OpenTransport(IPS[1]), OpenTransport(IPS[2]), NodeFound()]


def test_a_failure_names_every_address() -> None:
    """LC-24."""
    assert effects(
        ConnectionWanted(),
        Resolved(IPS[:2], [0.1, 0.9]),
        TransportFailed("10.0.0.1: refused"),
        TransportFailed("10.0.0.2: no answer"),
    )[-1] == NodeNotFound("10.0.0.1: refused; 10.0.0.2: no answer")


def test_a_name_that_cannot_be_resolved_fails_this_connection_only() -> None:
    """LC-22."""
    assert effects(ConnectionWanted(), NotResolved("nobody has the name")) == [
        Resolve(NAME),
        NodeNotFound("nobody has the name"),
    ]


def test_nothing_is_tried_once_the_transport_is_open() -> None:
    """LC-25: addresses of one name are one node, so a failed handshake ends its connection."""
    machine = NodeConnection(NAME)
    for event in (ConnectionWanted(), Resolved(IPS, [0.1, 0.2, 0.3, 0.4]), TransportOpened()):
        machine.step([event], 0.0)
    assert machine.closed
    with pytest.raises(AssertionError):
        machine.step([TransportFailed("the handshake")], 0.0)


def test_every_address_comes_first_about_as_often() -> None:
    """LC-23: 400 connections to 4 addresses."""
    random = Random(7)
    first: Counter[Address] = Counter()
    for _ in range(400):
        draws = [random.random() for _ in IPS]
        opened = effects(ConnectionWanted(), Resolved(IPS, draws))[-1]
        assert isinstance(opened, OpenTransport)
        first[opened.address] += 1
    assert sorted(first) == IPS
    assert all(60 <= count <= 140 for count in first.values())
