"""One end of a logical connection, without the connections that carry it.

Owns what both ends do with the messages of `lifecycle_protocol` once the handshake is over: they
acknowledge, answer heartbeats, and go on after a break. Must not know sockets or time: whoever has
them writes what `retain` and `take_replies` return. On versions before 5 it is the link and nothing
else: nothing is kept, counted or acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from waltz.errors import RemoteProtocolError
from waltz.wire.handshake import Link
from waltz.wire.lifecycle_protocol import (
    LIFECYCLE_MESSAGES,
    LIFECYCLE_SINCE,
    Acknowledgement,
    ConnectionEnd,
    Feature,
    Heartbeat,
)
from waltz.wire.message import Message
from waltz.wire.retained import Retained

_LIFECYCLE: Final = frozenset(LIFECYCLE_MESSAGES)


class LogicalLink:
    """Carries messages over one connection after the other; `features` are those of both sides."""

    def __init__(self, link: Link, features: Collection[int] = ()) -> None:
        """`link` has taken everything up to the end of the handshake, and nothing after it."""
        assert link.version is not None
        self.version = link.version
        self.features = frozenset(features)
        self.link = link
        self.end_reason: str | None = None
        """Why the other end has given it up, if it has."""
        self._has_lifecycle = link.version >= LIFECYCLE_SINCE
        self._retained = Retained()
        self._replies: list[bytes] = []

    @property
    def is_restorable(self) -> bool:
        """Whether it may go on after a break."""
        return (
            Feature.RESTORE in self.features
            and self.end_reason is None
            and not self._retained.has_overflowed
        )

    @property
    def retained_bytes(self) -> int:
        return self._retained.byte_count

    @property
    def received(self) -> int:
        """How many bytes of the stream have arrived."""
        return self._retained.received

    def retain(self, data: bytes) -> bytes:
        """Return `data`, whole frames, for the connection, if there is one."""
        if self._has_lifecycle and Feature.RESTORE in self.features:
            self._retained.send(data)
        return data

    def receive(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes, those about the connection itself apart.

        Raises RemoteProtocolError: it is at its end.
        """
        messages = self.link.receive(data)
        if not self._has_lifecycle:
            return messages
        self._retained.receive(len(data))
        if not _LIFECYCLE.isdisjoint(map(type, messages)):
            messages = [message for message in messages if not self._takes(message)]
        if self._retained.owes_acknowledgement and Feature.RESTORE in self.features:
            self._reply(Acknowledgement(self._retained.tell_received()))
        return messages

    def take_replies(self) -> bytes:
        """Return, once, the frames that are to be sent for what has arrived; often none."""
        if not self._replies:
            return b""
        replies, self._replies = self._replies, []
        return self.retain(b"".join(replies))

    def heartbeat(self, *, wants_answer: bool) -> bytes:
        """Return a heartbeat to be sent."""
        beat = Heartbeat(self._retained.tell_received(), wants_answer)
        return self.retain(self.link.encode(beat))

    def end(self, reason: str) -> bytes:
        """Give it up; return what the other end is to be told."""
        self._retained.end()
        if not self._has_lifecycle:
            return b""
        try:
            return self.link.encode(ConnectionEnd(reason))
        except RemoteProtocolError:
            return b""  # the other end has broken the protocol, and is told nothing more

    def break_off(self) -> None:
        """The connection that carried it has ended."""
        self._retained.break_off()

    def resume(self, received: int) -> bytes | None:
        """Return what a new connection has to carry first; None: it cannot go on.

        `received` is how much the other end has got. Raises RemoteProtocolError: more than that.
        """
        return self._retained.resume(received) if self.is_restorable else None

    def check_invariants(self) -> None:
        self._retained.check_invariants()

    def _takes(self, message: Message) -> bool:
        match message:
            case Heartbeat(received, wants_answer):
                self._acknowledge(received)
                if wants_answer:
                    self._reply(Heartbeat(self._retained.tell_received(), False))
            case Acknowledgement(received):
                self._acknowledge(received)
            case ConnectionEnd(reason):
                self.end_reason = reason
            case _ if type(message) in _LIFECYCLE:
                raise RemoteProtocolError(
                    f"{type(message).__name__} after the handshake; expected it as first message"
                )
            case _:
                return False
        return True

    def _acknowledge(self, received: int) -> None:
        if Feature.RESTORE in self.features:
            self._retained.acknowledge(received)

    def _reply(self, message: Message) -> None:
        self._replies.append(self.link.encode(message))
