"""What a server answers to a handshake."""

from __future__ import annotations

from uuid import UUID

import pytest

from waltz.server.clients.reception import NO_CONNECTION, Terms
from waltz.types import ServerId
from waltz.wire.lifecycle_protocol import (
    FEATURES,
    MAGIC_BYTES,
    Feature,
    HandshakeCode,
    HandshakeRequest,
    ProtocolVersion,
)

KEY, ID = UUID(int=1), UUID(int=2)
TERMS = Terms(KEY, ServerId(3), "name:1", idle_seconds=30.0, restore_seconds=2.5)


def request(
    version: tuple[int, int, int] = (5, 0, 0), features: frozenset[int] = FEATURES
) -> HandshakeRequest:
    return HandshakeRequest(
        MAGIC_BYTES, ProtocolVersion(*version), 1, features, (("unheard of", b"x"),)
    )


def test_a_client_is_told_who_answers_and_on_what_terms() -> None:
    """LC-33, LC-34, LC-42; LC-35: it has an extension that the server does not know."""
    answer = TERMS.answer(request(), ID)
    assert (answer.error_code, answer.version) == (HandshakeCode.NONE, (5, 0, 0))
    assert (answer.cluster_key, answer.connection_id) == (KEY, ID)
    assert (answer.node_id, answer.node_name) == (3, "name:1")
    assert (answer.idle_milliseconds, answer.restore_milliseconds) == (30_000, 2_500)


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [({0, 1, 9}, {0, 1}), ({0}, {0}), ({1, 40}, {1}), (set(), set())],
)
def test_features_are_those_of_both(asked: set[int], agreed: set[int]) -> None:
    """LC-32."""
    answer = TERMS.answer(request(features=frozenset(asked)), ID)
    assert answer.features == agreed
    assert (answer.restore_milliseconds > 0) == (Feature.RESTORE in agreed)


def test_a_server_may_keep_nothing() -> None:
    terms = Terms(KEY, ServerId(3), "name:1", restore_seconds=0.0)
    answer = terms.answer(request(), ID)
    assert answer.features == set(Feature) - {Feature.RESTORE}
    assert answer.restore_milliseconds == 0


@pytest.mark.parametrize("asked", [(5, 1, 0), (6, 0, 0), (4, 9, 9)])
def test_another_version_is_answered_with_ours(asked: tuple[int, int, int]) -> None:
    """LC-38, LC-39."""
    answer = TERMS.answer(request(asked), ID)
    assert answer.version == (5, 0, 0)
    assert answer.error_code == HandshakeCode.VERSION
    assert answer.connection_id == NO_CONNECTION
    assert "speaks 5.0.0" in answer.text


def test_a_revision_is_no_obstacle() -> None:
    """LC-31."""
    assert TERMS.answer(request((5, 0, 77)), ID).version == (5, 0, 77)
