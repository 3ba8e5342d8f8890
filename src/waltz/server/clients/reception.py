"""The answer of a server to a client that wants a logical connection.

Owns the judgement of one handshake request. Must not know sockets or who is connected already.
Source: IEP-90, "Handshake"; IEP-76 for the fields of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from waltz.limits import CONNECTION_RESTORE_SECONDS, IDLE_SECONDS_MAX
from waltz.types import ServerId
from waltz.wire.history_protocol import HISTORY_EXTENSION
from waltz.wire.lifecycle_protocol import (
    FEATURES,
    PROTOCOL_VERSIONS,
    Feature,
    HandshakeCode,
    HandshakeRequest,
    HandshakeResponse,
    ProtocolVersion,
    version_taken,
)

NO_CONNECTION = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms that a server offers to every client.

    `history` is the newest history of the log that began with a restore; None: there is none.
    `idle_seconds` 0: silence ends no connection; `restore_seconds` 0: nothing is kept of a
    connection that has ended."""

    cluster_key: UUID
    node_id: ServerId
    node_name: str
    idle_seconds: float = IDLE_SECONDS_MAX
    restore_seconds: float = CONNECTION_RESTORE_SECONDS
    features: frozenset[Feature] = FEATURES
    supported: Sequence[ProtocolVersion] = PROTOCOL_VERSIONS
    history: UUID | None = None

    def answer(
        self, request: HandshakeRequest, connection_id: UUID, *, by_token: bool = False
    ) -> HandshakeResponse:
        """Return the answer to `request`; `connection_id` is in it if it is taken. `by_token`:
        the peer is known by a bearer token, which nobody shows again to restore a connection.

        Extensions of the request that this server does not know are skipped (LC-35).
        """
        version = version_taken(request.version, self.supported)
        is_taken = version == request.version
        features = request.features & self.features
        if by_token or not self.restore_seconds:
            features -= {Feature.RESTORE}
        extensions: tuple[tuple[str, bytes], ...] = ()
        if is_taken and self.history is not None and Feature.HISTORY in features:
            extensions = ((HISTORY_EXTENSION, self.history.bytes),)
        restore_seconds = self.restore_seconds if Feature.RESTORE in features else 0.0
        return HandshakeResponse(
            version,
            HandshakeCode.NONE if is_taken else HandshakeCode.VERSION,
            "" if is_taken else f"this server speaks {', '.join(map(str, self.supported))}",
            self.cluster_key,
            connection_id if is_taken else NO_CONNECTION,
            self.node_id,
            self.node_name,
            round(self.idle_seconds * 1000),
            round(restore_seconds * 1000) if is_taken else 0,
            frozenset(features) if is_taken else frozenset(),
            extensions,
        )


def refused(request: HandshakeRequest, reason: str) -> HandshakeResponse:
    """Return the answer to a peer that has not shown who it is: the reason, and nothing of the
    cluster."""
    return HandshakeResponse(
        request.version,
        HandshakeCode.TOKEN,
        reason,
        NO_CONNECTION,
        NO_CONNECTION,
        ServerId(0),
        "",
        0,
        0,
        frozenset(),
        (),
    )
