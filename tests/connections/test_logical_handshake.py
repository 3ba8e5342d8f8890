"""Attempts with one version after the other, and what both sides agree on."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from waltz.connections.logical_handshake import Agreement, ConnectionSettings, Handshake
from waltz.errors import HandshakeRefusedError, LocalProtocolError, RemoteProtocolError
from waltz.server.clients.reception import Terms
from waltz.types import ServerId
from waltz.wire.lifecycle_protocol import (
    FEATURES,
    PROTOCOL_VERSIONS,
    ConnectionEnd,
    Feature,
    ProtocolVersion,
)

KEY, ID = UUID(int=1), UUID(int=2)
TERMS = Terms(KEY, ServerId(3), "name:1", idle_seconds=30.0, restore_seconds=10.0)


def versions(*numbers: tuple[int, int, int]) -> tuple[ProtocolVersion, ...]:
    return tuple(ProtocolVersion(*each) for each in numbers)


def agreed(terms: Terms = TERMS) -> Agreement:
    handshake = Handshake()
    agreement = handshake.take(terms.answer(handshake.request, ID))
    assert agreement is not None
    return agreement


def test_the_first_request_has_the_latest_version_and_all_features() -> None:
    """LC-36."""
    request = Handshake(supported=versions((3, 0, 0), (3, 1, 0))).request
    assert request.version == (3, 1, 0)
    assert request.features == FEATURES
    assert Handshake().request.version == PROTOCOL_VERSIONS[-1]


def test_what_was_agreed_on_is_kept() -> None:
    """LC-06, LC-33, LC-34, LC-41."""
    assert agreed() == Agreement(
        ProtocolVersion(5, 0, 0), FEATURES, KEY, ID, ServerId(3), "name:1", 30.0, 10.0
    )


def test_extensions_that_are_not_known_are_skipped() -> None:
    """LC-35."""
    handshake = Handshake()
    answer = replace(TERMS.answer(handshake.request, ID), extensions=(("flavour", b"sour"),))
    assert handshake.take(answer) == agreed()


def test_a_version_that_the_server_prefers_is_asked_for_next() -> None:
    """LC-39: client 3.1.0, server 3.0.0."""
    handshake = Handshake(supported=versions((3, 0, 0), (3, 1, 0)))
    terms = replace(TERMS, supported=versions((3, 0, 0)))
    assert handshake.take(terms.answer(handshake.request, ID)) is None
    assert handshake.request.version == (3, 0, 0)
    agreement = handshake.take(terms.answer(handshake.request, ID))
    assert agreement is not None
    assert agreement.version == (3, 0, 0)


def test_a_server_of_another_major_version_is_refused_with_both_versions() -> None:
    """LC-38."""
    handshake = Handshake()
    answer = replace(TERMS, supported=versions((9, 0, 0))).answer(handshake.request, ID)
    with pytest.raises(HandshakeRefusedError, match=r"wants 9\.0\.0 .* speaks 5\.0\.0"):
        handshake.take(answer)


def test_a_server_that_changes_its_mind_for_ever_is_given_up() -> None:
    """LC-39."""
    supported = versions((3, 0, 0), (3, 1, 0), (3, 2, 0), (3, 3, 0))
    handshake = Handshake(supported=supported)
    answer = TERMS.answer(handshake.request, ID)
    assert handshake.take(replace(answer, version=supported[0])) is None
    assert handshake.take(replace(answer, version=supported[1])) is None
    with pytest.raises(HandshakeRefusedError, match=r"has asked for 3\.3\.0, 3\.0\.0, 3\.1\.0"):
        handshake.take(replace(answer, version=supported[2]))
    again = Handshake(supported=supported)
    assert again.take(replace(answer, version=supported[0])) is None
    with pytest.raises(HandshakeRefusedError):
        again.take(replace(answer, version=supported[3]))


def test_a_refusal_is_told_with_code_and_text() -> None:
    """LC-40."""
    handshake = Handshake()
    answer = replace(TERMS.answer(handshake.request, ID), error_code=1, text="auth")
    with pytest.raises(HandshakeRefusedError, match="code 1: 'auth'"):
        handshake.take(answer)


def test_another_message_is_no_answer() -> None:
    with pytest.raises(RemoteProtocolError, match="ConnectionEnd as answer to a handshake"):
        Handshake().take(ConnectionEnd("bye"))


def test_what_was_not_asked_for_is_not_agreed_on() -> None:
    handshake = Handshake([Feature.HEARTBEAT])
    answer = replace(TERMS.answer(handshake.request, ID), features=frozenset({0, 1, 9}))
    agreement = handshake.take(answer)
    assert agreement is not None
    assert agreement.features == {Feature.HEARTBEAT}
    agreement.expect(Feature.HEARTBEAT)
    with pytest.raises(LocalProtocolError, match=r"RESTORE was not agreed on with name:1"):
        agreement.expect(Feature.RESTORE)


@pytest.mark.parametrize(
    ("idle", "interval", "timeout", "expected"),
    [
        (30.0, None, None, (10.0, 20.0)),
        (30.0, 4.0, None, (4.0, 8.0)),
        (30.0, 25.0, None, (10.0, 20.0)),
        (30.0, 2.0, 3.0, (2.0, 3.0)),
        (0.0, 4.0, None, (4.0, 8.0)),
        (0.0, None, None, None),
    ],
)
def test_heartbeats_are_at_most_a_third_of_the_idle_timeout_apart(
    idle: float,
    interval: float | None,
    timeout: float | None,
    expected: tuple[float, float] | None,
) -> None:
    """LC-82."""
    settings = ConnectionSettings(
        heartbeat_interval_seconds=interval, heartbeat_timeout_seconds=timeout
    )
    assert agreed(replace(TERMS, idle_seconds=idle)).heartbeat_seconds(settings) == expected


def test_without_the_feature_there_are_no_heartbeats() -> None:
    """LC-82."""
    terms = replace(TERMS, features=frozenset({Feature.RESTORE}))
    assert agreed(terms).heartbeat_seconds(ConnectionSettings()) is None
