"""One end of a logical connection, without the connections that carry it.

Owns what both ends do with the messages of `lifecycle_protocol` once the handshake is over: they
acknowledge, answer heartbeats, and resume after a break. Owns the edge to versions 0 to 4 as well:
both ends say and hear the messages of version 5 alone. Must not know sockets or time: the owner of
a socket writes what `retain` and `take_replies` return. With a peer of versions 0 to 4 nothing is
kept, counted or acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from waltz.errors import RemoteProtocolError
from waltz.wire.batch_protocol import FeedBatch
from waltz.wire.before_batches import apart, feed_frames, joined
from waltz.wire.client_protocol import BATCHES_SINCE
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


class Shared:
    """A message that many connections are sent: it is encoded once per version."""

    __slots__ = ("frames", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.frames: dict[int, bytes] = {}


class LogicalLink:
    """Carries messages over one connection after the other; `features` are those of both sides."""

    def __init__(self, link: Link, features: Collection[int] = ()) -> None:
        """`link` has taken everything up to the end of the handshake, and nothing after it."""
        assert link.version is not None
        self.version = link.version
        self.features = frozenset(features)
        self.link = link
        self.knows_batches = link.version >= BATCHES_SINCE
        """Whether the peer knows the messages of `batch_protocol`: among others it tells, or is
        told, the outcome of each append."""
        self.end_reason: str | None = None
        """Why the other end has given it up, if it has."""
        self.has_lifecycle = link.version >= LIFECYCLE_SINCE
        """Whether there was a handshake, after which both ends know heartbeats."""
        self.retained = Retained()
        """The bytes that were sent and may have to be sent again."""
        self._replies: list[bytes] = []

    @property
    def is_restorable(self) -> bool:
        """Whether it may go on after a break."""
        return (
            Feature.RESTORE in self.features
            and self.end_reason is None
            and not self.retained.has_overflowed
        )

    @property
    def received(self) -> int:
        """The number of bytes of the stream that have arrived."""
        return self.retained.received

    def retain(self, data: bytes) -> bytes:
        """Return `data`, whole frames, for the connection, if there is one."""
        if self.has_lifecycle and Feature.RESTORE in self.features:
            self.retained.send(data)
        return data

    def encode(self, part: Message | Shared) -> bytes:
        """Return the frames that say `part` to this peer; none if its version has no word for it.

        Raises LocalProtocolError: the version lacks one of the fields, or a value is out of range.
        """
        if type(part) is not Shared:
            assert isinstance(part, Message)
            return self._encode(part)
        frames = part.frames.get(self.version)
        if frames is None:
            part.frames[self.version] = frames = self._encode(part.message)
        return frames

    def _encode(self, message: Message) -> bytes:
        if self.knows_batches:
            return self.link.encode(message)
        if type(message) is FeedBatch:
            return feed_frames(message, self.version)
        return b"".join(map(self.link.encode, apart(message)))

    def apart(self, message: Message) -> Sequence[Message]:
        """Return the messages by which `message` is said to this peer."""
        return (message,) if self.knows_batches else apart(message)

    def receive(self, data: bytes) -> Sequence[Message]:
        """Return what `data` completes as messages of version 5, without those about the connection
        itself.

        Raises RemoteProtocolError: the connection is at its end.
        """
        messages = self.link.receive(data)
        if not self.has_lifecycle:
            return joined(messages)
        self.retained.receive(len(data))
        if not _LIFECYCLE.isdisjoint(map(type, messages)):
            messages = [message for message in messages if not self._takes(message)]
        if self.retained.owes_acknowledgement and Feature.RESTORE in self.features:
            self._reply(Acknowledgement(self.retained.tell_received()))
        return joined(messages)

    def take_replies(self) -> bytes:
        """Return, once, the frames that are to be sent for what has arrived; often none."""
        if not self._replies:
            return b""
        replies, self._replies = self._replies, []
        return self.retain(b"".join(replies))

    def heartbeat(self, *, wants_answer: bool) -> bytes:
        """Return a heartbeat to be sent."""
        beat = Heartbeat(self.retained.tell_received(), wants_answer)
        return self.retain(self.link.encode(beat))

    def end(self, reason: str) -> bytes:
        """Give it up; return what the other end is to be told."""
        self.retained.end()
        if not self.has_lifecycle:
            return b""
        try:
            return self.link.encode(ConnectionEnd(reason))
        except RemoteProtocolError:
            return b""  # the other end has broken the protocol, and is told nothing more

    def break_off(self) -> None:
        """The connection that carried it has ended."""
        self.retained.break_off()

    def resume(self, received: int) -> bytes | None:
        """Return what a new connection has to carry first; None: it cannot go on.

        `received` is how much the other end has got. Raises RemoteProtocolError: more than that.
        """
        return self.retained.resume(received) if self.is_restorable else None

    def check_invariants(self) -> None:
        self.retained.check_invariants()

    def _takes(self, message: Message) -> bool:
        match message:
            case Heartbeat(received, wants_answer):
                self._acknowledge(received)
                if wants_answer:
                    self._reply(Heartbeat(self.retained.tell_received(), False))
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
            self.retained.acknowledge(received)

    def _reply(self, message: Message) -> None:
        self._replies.append(self.link.encode(message))
