"""The messages by which a logical connection begins, is restored, kept alive and ended: version 5.

Owns their declarations and which version and features both sides end up with. The first frame after
the Hello is a handshake request or a restore request, its answer is the second; what follows is one
stream of bytes per direction, which outlives the TCP connection that carries it (`retained.py`).
Source: IEP-90, "Handshake" and "Logical connection"; IEP-76 and IEP-83 for the fields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import IntEnum
from typing import Annotated, Final, NamedTuple
from uuid import UUID

from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.types import ServerId
from waltz.wire.fields import (
    BOOLEAN,
    BYTE,
    INT,
    LONG,
    SHORT,
    TEXT,
    UUID_16,
    Blob,
    ListOf,
    Pair,
    Reader,
    Structure,
    check_size,
)
from waltz.wire.message import Audience, Message, message

EXTENSIONS_MAX: Final = 100
EXTENSION_BYTES_MAX: Final = 16 * 1024
"""Bytes of extensions per handshake message, which as a whole fits into HELLO_BYTES_MAX."""

FEATURE_BYTES_MAX: Final = 1024


LIFECYCLE_SINCE: Final = 5
"""The version of the client protocol that has all this."""

MAGIC_BYTES: Final = b"WLTZ"
CLIENT_CODE: Final = 1
"""The kind of client that asks: this one."""


class ProtocolVersion(NamedTuple):
    """`major` breaks, `minor` adds, `revision` repairs. Source: IEP-90, "Handshake"."""

    major: int
    minor: int
    revision: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.revision}"


PROTOCOL_VERSIONS: Final = (ProtocolVersion(5, 0, 0),)
"""The versions that this release speaks, the latest last; one revision per minor version."""


class Feature(IntEnum):
    """Bits of the feature set; both sides use what both have."""

    HEARTBEAT = 0
    RESTORE = 1
    GROWTH = 2
    """Follows when the cluster gets more partitions; a server says so if it is asked."""
    HEADERS = 3
    """Knows requests for ranges of headers, if it is a server; a client may make them."""
    CLIENTS = 4
    """Tells what it has applied, if it is a client; a server takes that, and says who its clients
    are if it is asked."""
    CUTS = 5
    """Holds back what its partitions know of further commits, if it is a server; tools may ask."""
    HISTORY = 6
    """Names the newest history of the log in its handshake, and tells all if asked, if it is a
    server; a client may ask."""
    MARKS = 7
    """Tells the high-water marks of all its partitions in one answer, if it is a server; a client
    may ask."""
    DENIALS = 8
    """Answers a request that its policy denies, if it is a server, and goes on; a client without
    the feature is cut off."""


FEATURES: Final = frozenset(Feature)


class HandshakeCode(IntEnum):
    """Known error codes; every other one but 0 is a refusal as well."""

    NONE = 0
    VERSION = 1
    TOKEN = 2
    """The server does not take the bearer token, or none was shown and the server demands one."""


class MagicBytes:
    """Four fixed bytes: a peer that sends other bytes speaks another protocol (LC-30)."""

    name = f"4 bytes: {MAGIC_BYTES.decode()}"
    size_min = len(MAGIC_BYTES)

    def write(self, parts: list[bytes], value: bytes) -> None:
        if value != MAGIC_BYTES:
            raise LocalProtocolError(f"magic {value!r}; expected {MAGIC_BYTES!r}")
        parts.append(value)

    def read(self, reader: Reader) -> bytes:
        found = reader.take(len(MAGIC_BYTES))
        if found != MAGIC_BYTES:
            raise RemoteProtocolError(
                f"unexpected magic {found!r} = {found.hex(' ')}; expected {MAGIC_BYTES!r} ="
                f" {MAGIC_BYTES.hex(' ')}"
            )
        return found


class FeatureSet:
    """Numbers of features as bits, the lowest bit of the first byte first; as long as need be."""

    name = "length, then bits"
    size_min = 4

    def write(self, parts: list[bytes], value: Collection[int]) -> None:
        size = max(value, default=-1) // 8 + 1
        check_size(size, FEATURE_BYTES_MAX)
        FEATURE_BITS.write(parts, sum(1 << bit for bit in value).to_bytes(size, "little"))

    def read(self, reader: Reader) -> frozenset[int]:
        bits = int.from_bytes(FEATURE_BITS.read(reader), "little")
        return frozenset(bit for bit in range(bits.bit_length()) if bits >> bit & 1)


FEATURE_BITS: Final = Blob("length, then bits", FEATURE_BYTES_MAX)
MAGIC: Final = MagicBytes()
FEATURE_SET: Final = FeatureSet()
VERSION: Final = Structure(
    "version (major, minor, revision: short each)",
    ProtocolVersion,
    major=SHORT,
    minor=SHORT,
    revision=SHORT,
)
EXTENSIONS: Final = ListOf(
    Pair(TEXT, Blob("length, then bytes", EXTENSION_BYTES_MAX)), EXTENSIONS_MAX
)


CLIENT_TOKEN_EXTENSION: Final = "client-token"  # noqa: S105
CLIENT_TOKEN_BYTES: Final = 16
"""Random bytes that a client shows on each of its connections: proof of being the same client."""


def client_token(extensions: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the token among the extensions of a handshake; empty if there is none. Raises
    RemoteProtocolError: it has another length."""
    token = dict(extensions).get(CLIENT_TOKEN_EXTENSION, b"")
    if len(token) not in (0, CLIENT_TOKEN_BYTES):
        raise RemoteProtocolError(
            f"client token of {len(token)} bytes; expected {CLIENT_TOKEN_BYTES}"
        )
    return token


BEARER_TOKEN_EXTENSION: Final = "waltz.token"  # noqa: S105 -- the name of the extension
BEARER_TOKEN_BYTES_MAX: Final = 128
"""Bytes of the bearer token that a handshake may have; with more, the peer has no token."""


def bearer_token(extensions: Iterable[tuple[str, bytes]]) -> str | None:
    """Return the bearer token among the extensions of a handshake, empty if it cannot be one; None:
    there is none."""
    shown = dict(extensions).get(BEARER_TOKEN_EXTENSION)
    if shown is None:
        return None
    is_short = len(shown) <= BEARER_TOKEN_BYTES_MAX
    return shown.decode() if is_short and shown.isascii() else ""


@message(32, since=LIFECYCLE_SINCE, audience=Audience.LINK)
class HandshakeRequest(Message):
    """Begin a logical connection. Extensions that the server does not know are skipped."""

    magic: Annotated[bytes, MAGIC]
    version: Annotated[ProtocolVersion, VERSION]
    client_code: Annotated[int, BYTE]
    features: Annotated[frozenset[int], FEATURE_SET]
    extensions: Annotated[tuple[tuple[str, bytes], ...], EXTENSIONS]


@message(33, since=LIFECYCLE_SINCE, audience=Audience.LINK)
class HandshakeResponse(Message):
    """Name the logical connection, or say what is wrong.

    Another version than the one asked for is the version that the server would take. A time-out of
    0 is none; a restore time-out of 0 means that the connection cannot be restored.
    """

    version: Annotated[ProtocolVersion, VERSION]
    error_code: Annotated[int, INT]
    text: Annotated[str, TEXT]
    cluster_key: Annotated[UUID, UUID_16]
    connection_id: Annotated[UUID, UUID_16]
    node_id: Annotated[ServerId, INT]
    node_name: Annotated[str, TEXT]
    idle_milliseconds: Annotated[int, INT]
    restore_milliseconds: Annotated[int, INT]
    features: Annotated[frozenset[int], FEATURE_SET]
    extensions: Annotated[tuple[tuple[str, bytes], ...], EXTENSIONS]


@message(34, since=LIFECYCLE_SINCE, audience=Audience.LINK)
class ConnectionRestoreRequest(Message):
    """Resume a logical connection; its stream is wanted from byte `received` on.

    `attempt` grows with every request of a connection, so that a replayed request differs from the
    next one.
    """

    magic: Annotated[bytes, MAGIC]
    connection_id: Annotated[UUID, UUID_16]
    received: Annotated[int, LONG]
    attempt: Annotated[int, INT]


@message(35, since=LIFECYCLE_SINCE, audience=Audience.LINK)
class ConnectionRestoreResponse(Message):
    """Restored: the other stream is wanted from byte `received` on. Or unknown, and why."""

    restored: Annotated[bool, BOOLEAN]
    received: Annotated[int, LONG]
    text: Annotated[str, TEXT]


@message(36, since=LIFECYCLE_SINCE, audience=Audience.LINK)
class Heartbeat(Message):
    """Say that one lives and how much of the stream has arrived, and ask for the same or not."""

    received: Annotated[int, LONG]
    wants_answer: Annotated[bool, BOOLEAN]


@message(37, since=LIFECYCLE_SINCE, audience=Audience.LINK)
class Acknowledgement(Message):
    """Say how much of the stream has arrived: the sender need not keep it any longer."""

    received: Annotated[int, LONG]


@message(38, since=LIFECYCLE_SINCE, audience=Audience.LINK)
class ConnectionEnd(Message):
    """The sender has given the logical connection up; nothing is kept."""

    reason: Annotated[str, TEXT]


LIFECYCLE_MESSAGES: Final[tuple[type[Message], ...]] = (
    HandshakeRequest,
    HandshakeResponse,
    ConnectionRestoreRequest,
    ConnectionRestoreResponse,
    Heartbeat,
    Acknowledgement,
    ConnectionEnd,
)


def version_taken(
    asked: ProtocolVersion, supported: Iterable[ProtocolVersion] = PROTOCOL_VERSIONS
) -> ProtocolVersion:
    """Return `asked` if some supported version differs in its revision at most; otherwise the
    latest supported one before it, or the earliest."""
    ordered = sorted(supported)
    if any(each[:2] == asked[:2] for each in ordered):
        return asked
    earlier = [each for each in ordered if each < asked]
    return earlier[-1] if earlier else ordered[0]
