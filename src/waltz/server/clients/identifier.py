"""Refuses arrivals of which nobody knows who they are from.

Owns the count, the log line and the answer; the rule is in `identification.py`.
"""

from __future__ import annotations

from waltz.peer_log import PeerLog
from waltz.server.clients.arrivals_shell import Arrival
from waltz.server.clients.contexts import UNKNOWN
from waltz.server.clients.identification import Identification, Identified
from waltz.server.clients.reception import refused
from waltz.wire.lifecycle_protocol import (
    ConnectionRestoreResponse,
    HandshakeRequest,
    bearer_token,
)


class Identifier:
    """The rule, asked about each arrival."""

    def __init__(self, identification: Identification, peer_log: PeerLog) -> None:
        self.refusals = 0
        """Arrivals that were refused."""
        self._identification = identification
        self._peer_log = peer_log

    def identified(self, arrival: Arrival) -> Identified | None:
        """Return who the arrival is from; None: it was refused, and told why if it can be."""
        connection, request = arrival.connection, arrival.request
        shown = bearer_token(request.extensions) if isinstance(request, HandshakeRequest) else None
        found = self._identification.of(
            connection.certificate,
            shown,
            is_encrypted=connection.is_encrypted,
            user=connection.user,
        )
        if isinstance(found, Identified):
            return found
        self.refusals += 1
        self._peer_log.warning(
            "client_unidentified peer=%s reason=%s", connection.peer, found.reason
        )
        if isinstance(request, HandshakeRequest):
            connection.write(arrival.link.encode(refused(request, found.reason)))
        elif request is not None:
            connection.write(arrival.link.encode(ConnectionRestoreResponse(False, 0, UNKNOWN)))
        return None
