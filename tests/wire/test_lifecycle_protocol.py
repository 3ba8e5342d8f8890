"""Handshake and restore as bytes, and which version and features come out of it."""

from __future__ import annotations

from uuid import UUID

import pytest

from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.types import ServerId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.fields import Reader
from waltz.wire.lifecycle_protocol import (
    CLIENT_CODE,
    FEATURE_BYTES_MAX,
    FEATURE_SET,
    FEATURES,
    LIFECYCLE_MESSAGES,
    MAGIC_BYTES,
    PROTOCOL_VERSIONS,
    Acknowledgement,
    ConnectionEnd,
    ConnectionRestoreRequest,
    ConnectionRestoreResponse,
    Feature,
    HandshakeRequest,
    HandshakeResponse,
    Heartbeat,
    ProtocolVersion,
    version_taken,
)
from waltz.wire.message import Message

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
KEY = UUID("ffeeddcc-bbaa-9988-7766-554433221100")
REQUEST = HandshakeRequest(
    MAGIC_BYTES, ProtocolVersion(5, 1, 258), CLIENT_CODE, frozenset({0, 1, 9}), (("a", b"bc"),)
)
RESPONSE = HandshakeResponse(
    ProtocolVersion(5, 0, 0), 0, "", KEY, ID, ServerId(3), "n:1", 30_000, 10_000, frozenset(), ()
)
GOLDEN: list[tuple[Message, str]] = [
    (REQUEST, ("4c00050000002120 574c545a 0005 0001 0102 01 00000002 0302 00000001 00000001 61"
              " 00000002 6263")),
    (RESPONSE, ("4c00050000004a21 0005 0000 0000 00000000 00000000"
               " ffeeddccbbaa99887766554433221100 00112233445566778899aabbccddeeff"
               " 00000003 00000003 6e3a31 00007530 00002710 00000000 00000000")),
    (ConnectionRestoreRequest(MAGIC_BYTES, ID, 258, 3),
     "4c00050000002122 574c545a 00112233445566778899aabbccddeeff 0000000000000102 00000003"),
    (ConnectionRestoreResponse(True, 258, ""),
     "4c00050000000e23 01 0000000000000102 00000000"),
    (ConnectionRestoreResponse(False, 0, "gone"),
     "4c00050000001223 00 0000000000000000 00000004 676f6e65"),
    (Heartbeat(258, True), "4c00050000000a24 0000000000000102 01"),
    (Acknowledgement(258), "4c00050000000925 0000000000000102"),
    (ConnectionEnd("bye"), "4c00050000000826 00000003 627965"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "expected"), GOLDEN)
def test_every_message_has_these_bytes(message: Message, expected: str) -> None:
    """LC-31: six bytes of version in that order. LC-42. Pinned: others speak to us with them."""
    frame = bytes.fromhex(expected)
    assert CLIENT_CODEC.encode(message, 5) == frame
    assert CLIENT_CODEC.decode(frame[7:], 5) == message


def test_every_message_is_pinned() -> None:
    assert {type(message) for message, _ in GOLDEN} == set(LIFECYCLE_MESSAGES)


@pytest.mark.parametrize("kind", LIFECYCLE_MESSAGES)
def test_older_versions_have_none_of_them(kind: type[Message]) -> None:
    with pytest.raises(RemoteProtocolError, match=f"unknown message type {kind.CODE}"):
        CLIENT_CODEC.decode(bytes([kind.CODE]), 4)


def test_another_magic_is_shown() -> None:
    """LC-30."""
    body = bytearray(CLIENT_CODEC.encode(REQUEST, 5)[7:])
    body[1:5] = b"GET "
    with pytest.raises(RemoteProtocolError, match=r"unexpected magic b'GET ' = 47 45 54 20"):
        CLIENT_CODEC.decode(bytes(body), 5)
    with pytest.raises(LocalProtocolError, match="expected b'WLTZ'"):
        CLIENT_CODEC.encode(ConnectionRestoreRequest(b"else", ID, 0, 1), 5)


@pytest.mark.parametrize(
    ("features", "size"), [(set(), 0), ({0}, 1), ({7}, 1), ({8}, 2), ({0, 1, 9}, 2), ({40}, 6)]
)
def test_a_feature_set_is_as_long_as_need_be(features: set[int], size: int) -> None:
    """LC-32."""
    parts: list[bytes] = []
    FEATURE_SET.write(parts, frozenset(features))
    data = b"".join(parts)
    assert len(data) == 4 + size
    assert FEATURE_SET.read(Reader(data)) == features
    longer = (size + 3).to_bytes(4, "big") + data[4:] + bytes(3)
    assert FEATURE_SET.read(Reader(longer)) == features


def test_a_feature_set_is_bounded() -> None:
    with pytest.raises(LocalProtocolError):
        FEATURE_SET.write([], frozenset({8 * FEATURE_BYTES_MAX}))
    assert set(FEATURES) == {*Feature} == {*map(Feature, range(9))}


@pytest.mark.parametrize(
    ("asked", "supported", "taken"),
    [
        ((3, 1, 0), [(3, 0, 0)], (3, 0, 0)),
        ((3, 0, 7), [(3, 0, 0)], (3, 0, 7)),
        ((3, 1, 0), [(2, 0, 0), (4, 0, 0)], (2, 0, 0)),
        ((5, 0, 0), [(9, 0, 0)], (9, 0, 0)),
        ((9, 9, 9), [(9, 8, 0), (9, 9, 0)], (9, 9, 9)),
    ],
)
def test_a_version_is_taken_or_another_one_is_named(
    asked: tuple[int, int, int],
    supported: list[tuple[int, int, int]],
    taken: tuple[int, int, int],
) -> None:
    """LC-39."""
    ours = [ProtocolVersion(*each) for each in supported]
    assert version_taken(ProtocolVersion(*asked), ours) == taken
    assert str(ProtocolVersion(*taken)) == ".".join(map(str, taken))


def test_the_latest_version_is_the_last() -> None:
    assert list(PROTOCOL_VERSIONS) == sorted(PROTOCOL_VERSIONS)
    assert all(version.major == 5 for version in PROTOCOL_VERSIONS)
