"""Negotiates a logical connection from the client's side.

Owns the attempts with one version after the other, and what both sides agree on in the end. Must
not know sockets: the caller sends what `request` returns and hands the answers to `take`. Source:
IEP-90, "Handshake".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from waltz.errors import HandshakeRefusedError, LocalProtocolError, RemoteProtocolError
from waltz.limits import HANDSHAKE_ATTEMPTS_MAX, HEARTBEATS_PER_IDLE_TIME
from waltz.types import ServerId
from waltz.wire.client_label import ClientLabel, label_extension
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.history_protocol import newest_history
from waltz.wire.lifecycle_protocol import (
    BEARER_TOKEN_EXTENSION,
    CLIENT_CODE,
    CLIENT_TOKEN_EXTENSION,
    FEATURES,
    MAGIC_BYTES,
    PROTOCOL_VERSIONS,
    Feature,
    HandshakeCode,
    HandshakeRequest,
    HandshakeResponse,
    ProtocolVersion,
)
from waltz.wire.message import Codec, Message

HEARTBEAT_TIMEOUT_FACTOR: Final = 2
"""A heartbeat is answered within this many heartbeat intervals, or the server is dead."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Settings of a client's connections; intervals of None follow from the server's idle
    time-out."""

    codec: Codec = CLIENT_CODEC
    features: Collection[Feature] = FEATURES
    heartbeat_interval_seconds: float | None = None
    heartbeat_timeout_seconds: float | None = None
    token: bytes = b""
    """The secret by which a server recognises the connections of one client; empty for none."""
    label: ClientLabel | None = None
    """The name that the client gives itself, for people; None: none."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of a handshake. `cluster_key` is the cluster's tag, `node_id` the server's ID,
    `history` the newest history of the log that began with a restore."""

    version: ProtocolVersion
    features: frozenset[int]
    cluster_key: UUID
    connection_id: UUID
    node_id: ServerId
    node_name: str
    idle_seconds: float
    restore_seconds: float
    history: UUID | None = None

    def heartbeat_seconds(self, settings: ConnectionSettings) -> tuple[float, float] | None:
        """Return the interval between heartbeats and the time for an answer; None if there are no
        heartbeats.

        The interval is at most a third of the server's idle time-out, whatever is set (LC-82).
        """
        if Feature.HEARTBEAT not in self.features:
            return None
        longest = self.idle_seconds / HEARTBEATS_PER_IDLE_TIME
        interval = settings.heartbeat_interval_seconds or longest
        if longest:
            interval = min(interval, longest)
        if not interval:
            return None
        timeout = settings.heartbeat_timeout_seconds or HEARTBEAT_TIMEOUT_FACTOR * interval
        return interval, timeout

    def expect(self, feature: Feature) -> None:
        """Check that both sides have the feature (LC-41). Raises LocalProtocolError if not."""
        if feature not in self.features:
            raise LocalProtocolError(
                f"{feature.name} was not agreed on with {self.node_name}, which speaks version"
                f" {self.version}; upgrade the servers"
            )


class Handshake:
    """One handshake, on one TCP connection."""

    def __init__(
        self,
        features: Collection[Feature] = FEATURES,
        supported: Sequence[ProtocolVersion] = PROTOCOL_VERSIONS,
        *,
        token: bytes = b"",
        label: ClientLabel | None = None,
        bearer: str = "",
    ) -> None:
        """`bearer` is the token that says who the client is; empty: none."""
        shown = [(CLIENT_TOKEN_EXTENSION, token)] if token else []
        if label is not None:
            shown.append(label_extension(label))
        if bearer:
            shown.append((BEARER_TOKEN_EXTENSION, bearer.encode()))
        self._extensions = tuple(shown)
        self._features = frozenset(features)
        self._supported = tuple(supported)
        self._tried = [max(supported)]

    @property
    def request(self) -> HandshakeRequest:
        """Return the request to send now: first one with the latest version and all features
        (LC-36)."""
        return HandshakeRequest(
            MAGIC_BYTES, self._tried[-1], CLIENT_CODE, self._features, self._extensions
        )

    def take(self, answer: Message) -> Agreement | None:
        """Return what was agreed on; None if the server wants another version, which the next
        `request` has.

        Raises HandshakeRefusedError: the server refuses, or no version is common to both;
        RemoteProtocolError: not an answer.
        """
        if not isinstance(answer, HandshakeResponse):
            raise RemoteProtocolError(
                f"{type(answer).__name__} as answer to a handshake; expected HandshakeResponse"
            )
        asked = self._tried[-1]
        if answer.version != asked:
            self._try_next(answer)
            return None
        if answer.error_code != HandshakeCode.NONE:
            raise HandshakeRefusedError(
                f"the server refuses with code {answer.error_code}: {answer.text!r}; it was asked"
                f" for version {asked}"
            )
        return Agreement(
            answer.version,
            answer.features & self._features,
            answer.cluster_key,
            answer.connection_id,
            answer.node_id,
            answer.node_name,
            answer.idle_milliseconds / 1000,
            answer.restore_milliseconds / 1000,
            newest_history(answer.extensions),
        )

    def _try_next(self, answer: HandshakeResponse) -> None:
        wanted = answer.version
        is_known = any(each[:2] == wanted[:2] for each in self._supported)
        if not is_known or wanted in self._tried or len(self._tried) == HANDSHAKE_ATTEMPTS_MAX:
            raise HandshakeRefusedError(
                f"no common version: the server wants {wanted} ({answer.text!r}), this side speaks"
                f" {', '.join(map(str, self._supported))} and has asked for"
                f" {', '.join(map(str, self._tried))}"
            )
        self._tried.append(wanted)
