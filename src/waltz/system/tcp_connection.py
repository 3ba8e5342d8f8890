"""One connection on asyncio: by TCP, with or without TLS, or by a socket of this machine.

Owns the socket's options, the bounds of the buffers in both directions, and how the two sides agree
on TLS or plain. Knows nothing of the meaning of the bytes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast
from weakref import WeakSet

from waltz.limits import (
    HANDSHAKE_SECONDS_MAX,
    READ_BYTES_MAX,
    WRITE_BUFFER_BYTES_HIGH,
    WRITE_BUFFER_BYTES_LOW,
)
from waltz.peer_log import PeerLog
from waltz.system.peer_watch import PEER_CAN_BE_WATCHED, PeerWatch, probe_when_silent
from waltz.system.received_bytes import ReceivedBytes
from waltz.system.tls import ALERT_BYTE, HANDSHAKE_BYTE, NO_PLAIN_ALERT, Tls
from waltz.system.tls_session import TlsSession
from waltz.system.tls_trouble import (
    CLOSED_ON_PLAIN,
    ENDED,
    EXPECTED_TLS,
    EXPECTS_TLS,
    SLOW,
    explain,
)
from waltz.types import Address, CertificateNames, LocalUser

if TYPE_CHECKING:
    from waltz.system.local_socket import Peer

WHOLE_WRITE_BYTES_MIN: Final = 64 * 1024
"""Writes of at least this size go to the system as they are; smaller ones of a turn are joined."""

HANDSHAKE_SPREAD: Final = 0.2
"""Connections get up to this share less than the handshake timeout, each another share, so that
those accepted together are not closed together."""

CONNECTION_BYTES_STEP: Final = 16 * 1024
"""A connection that holds less than this is not counted, nor is a smaller change: most connections
never hold this much, and counting costs."""

UNWEIGHED_BYTES_MAX: Final = 1024
"""Bytes received before the bytes held are summed up again, which costs as much as a few bytes."""

TLS_VERDICT_SECONDS_MAX: Final = 1.0
"""In TLS 1.3 the connecting side has finished before its certificate is judged: it waits this long
for the next bytes of the other side, for they may be a refusal."""

CLOSE_SECONDS_MAX: Final = 5.0
"""A closed connection has this long to send its queued bytes."""


log = logging.getLogger(__name__)

SPREAD_STEPS: Final = 256
"""Steps from the longest to the shortest handshake timeout; a peer's port chooses its step."""

AT_ONCE: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which the system drops all data of a connection that ends."""


class Door(Protocol):
    """The place where connections are accepted."""

    @property
    def log(self) -> PeerLog:
        """The log for lines about accepted connections."""
        ...

    def enter(self, connection: TcpConnection) -> bool:
        """Let the connection in, if there is room; return whether it may stay."""
        ...

    def leave(self, connection: TcpConnection) -> None:
        """Note that an accepted connection has ended."""
        ...

    def weigh(self, connection: TcpConnection, byte_count: int) -> None:
        """Note that an accepted connection holds `byte_count` bytes; it may be closed for that."""
        ...

    def note_dispensable(self, connection: TcpConnection, is_dispensable: bool) -> None:
        """Note whether an accepted connection may be closed to make room for another."""
        ...


class TcpConnection(asyncio.Protocol):
    """Implements `host.Connection`; one task reads at a time.

    A connection is open once both sides have agreed on TLS or plain: the connecting side decides by
    the other side's address, the accepting side by the first byte. Earlier writes wait until then,
    at most `handshake_seconds`. The socket is not read while more than `READ_BYTES_MAX` bytes wait
    for `read`. Once unsent bytes exceed the high mark, `drain` waits until they reach the low mark.
    """

    def __init__(
        self,
        security: Tls,
        door: Door | None = None,
        *,
        server_name: str = "",
        speaks_tls: bool = False,
        plain_refused: Callable[[], None] | None = None,
        handshake_seconds: float | None = None,
    ) -> None:
        """`door` is where the connection was accepted; None: this side connects, to `server_name`.
        `speaks_tls`: use TLS even if plain is allowed. `plain_refused` is called if this side has
        spoken plain and the peer has ended the connection without a plain answer.
        """
        self._security = security
        self._door = door
        self._log = log if door is None else door.log
        self._server_name = server_name
        self._speaks_tls = speaks_tls
        self._plain_refused = plain_refused
        self._handshake_seconds = handshake_seconds
        self._has_spoken = False
        self._transport: asyncio.Transport | None = None
        self._tls: TlsSession | None = None
        self._has_begun = False
        self._is_open = False
        self._has_heard = False
        self.peer_host = ""
        """The IP address of the other side, or the user there."""
        self.local_peer: Peer | None = None
        """The process on the other side of a socket of this machine; None: it is a connection by
        TCP."""
        self.user: LocalUser | None = None
        """Set by those who accept connections of this machine."""
        self.peer = "unconnected"
        self.trouble = ""
        self._receive: Callable[[bytes], None] | None = None
        """Called with bytes that arrive; None: they wait for `read`."""
        self._is_held = False
        """Whether `pause_reading` holds what arrives back from `_receive`."""
        self._received = ReceivedBytes()
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._reading_paused = False
        self._writing_paused = False
        self._ended = False
        self._closing = False
        self._drainers: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._watch: PeerWatch | None = None
        self._held_by_reader = 0
        self._unweighed = 0
        """Bytes received since the bytes held were summed up last."""
        self._weight = 0
        """The bytes held, as the door was told last."""
        self._loop = asyncio.get_running_loop()
        self.verdict: asyncio.Future[str] = self._loop.create_future()
        """An empty text once both sides have agreed, or the reason for which they do not."""

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_HIGH, WRITE_BUFFER_BYTES_LOW)
        connected_socket = transport.get_extra_info("socket")
        if connected_socket.family == socket.AF_UNIX:
            from waltz.system.local_socket import peer_of

            self.local_peer = peer_of(connected_socket)
            name = (f"uid-{self.local_peer.uid}", self.local_peer.pid)
        else:
            name = transport.get_extra_info("peername")
            connected_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            probe_when_silent(connected_socket)
            if PEER_CAN_BE_WATCHED:
                self._watch = PeerWatch(self._transport, self.give_up)
        self.peer_host = name[0] if name else ""
        self.peer = str(Address(name[0], name[1])) if name else "unknown"
        if self._door is not None and not self._door.enter(self):
            self._door = None
            self._abort()
            return
        seconds = self._handshake_seconds or HANDSHAKE_SECONDS_MAX
        if self._door is not None and name:
            seconds *= 1 - HANDSHAKE_SPREAD * (name[1] % SPREAD_STEPS) / SPREAD_STEPS
        self._timer = self._loop.call_later(seconds, self._fail, SLOW.format(seconds=seconds))
        if self._door is None:
            _CONNECTED.add(self)
            self._begin_connecting()

    def data_received(self, data: bytes) -> None:
        if self._ended and not self._closing:
            return
        if not self._has_begun:
            self._begin_accepted(data[0])
        if self._tls is not None:
            data = self._decrypted(data)
        elif self._door is None and not self._has_heard and data[0] == ALERT_BYTE:
            self._fail(EXPECTS_TLS)
            if self._plain_refused is not None:
                self._plain_refused()
        self._has_heard = True
        if data and not self._ended:
            if self._receive is not None and not self._is_held:
                self._receive(data)
            else:
                self._received.keep(data)
                if self._received.byte_count > READ_BYTES_MAX:
                    self._pace()
                # A peer that sends byte by byte must not cost as much per byte as per message.
                self._unweighed += len(data)
                if self._unweighed >= UNWEIGHED_BYTES_MAX:
                    self._weigh()
        if self._tls is not None and self._tls.has_ended:
            # Last: what came before the end can still be read.
            self._end()
            self._close_transport()

    def eof_received(self) -> bool:
        self._note_early_end()
        self._end()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._note_early_end()
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.stop()
        if self._door is not None:
            self._door.leave(self)
        _CONNECTED.discard(self)
        self._end()

    def _note_early_end(self) -> None:
        """Note the trouble if the peer has ended the connection too early: before it was open,
        before the verdict on this side's certificate, or without an answer in plain."""
        if self._door is not None:
            pass
        elif not self._is_open or not self.verdict.done():
            self._fail(ENDED)
        elif self._tls is None and self._has_spoken and not (self._has_heard or self._ended):
            self.trouble = CLOSED_ON_PLAIN
            if self._plain_refused is not None:
                self._plain_refused()

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._pace()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._pace()
        self._weigh()
        self._wake_drainers()

    # Agreement on TLS or plain

    def _begin_connecting(self) -> None:
        self._has_begun = True
        if self.local_peer is not None or (
            self._security.may_be_plain(self.peer_host) and not self._speaks_tls
        ):
            self._open()
            return
        try:
            self._tls = self._security.connecting_to(self._server_name)
        except ValueError as error:
            self._fail(f"{self._server_name!r} cannot be the name in a certificate: {error}")
            return
        self._tls.start()
        self._send_records()

    def _begin_accepted(self, first_byte: int) -> None:
        self._has_begun = True
        if self.local_peer is not None:
            self._open()
        elif first_byte == HANDSHAKE_BYTE:
            self._tls = self._security.accepted()
        elif self._security.may_be_plain(self.peer_host):
            self._open()
        else:
            if self._transport is not None:
                self._transport.write(NO_PLAIN_ALERT)
            self._fail(EXPECTED_TLS)

    def _decrypted(self, data: bytes) -> bytes:
        """Return the data in the TLS records that have arrived; empty if they cannot be read."""
        assert self._tls is not None
        had_opened = self._is_open
        try:
            plain = self._tls.receive(data)
        except ssl.SSLError as error:
            self._send_records()
            self._fail(explain(error, self._security.settings))
            return b""
        self._send_records()
        if self._tls.is_established and not had_opened:
            self._open()
        if had_opened or plain:
            self._settle("")
        return plain

    def _open(self) -> None:
        self._is_open = True
        if self._timer is not None:
            self._timer.cancel()
        if self._tls is None or self._tls.version != "TLSv1.3":
            self._settle("")
        elif self._door is None:
            self._timer = self._loop.call_later(TLS_VERDICT_SECONDS_MAX, self._settle, "")
        if self._closing:
            self._finish()
        else:
            self.flush()

    def _fail(self, reason: str) -> None:
        """Give the connection up; tell the reason to the task that opens it, or else to the log."""
        if self._ended and not self._closing:
            return
        if self._door is not None or self.verdict.done():
            self._log.warning("connection_refused peer=%s reason=%s", self.peer, reason)
        self.trouble = reason
        self._settle(reason)
        self._end()
        self._close_transport()

    def _settle(self, reason: str) -> None:
        if not self.verdict.done():
            self.verdict.set_result(reason)

    # `host.Connection`

    @property
    def certificate(self) -> CertificateNames | None:
        return None if self._tls is None else self._tls.certificate

    @property
    def is_encrypted(self) -> bool:
        return self._tls is not None and self._tls.is_established

    @property
    def token(self) -> str:
        shown = self._door is None and self.is_encrypted
        return self._security.token if shown else ""

    async def read(self, wanted: int = 1) -> bytes:
        received = self._received
        while received.byte_count < wanted and not self._ended:
            await received.expect(wanted)
        data = received.take()
        if self._reading_paused:
            self._pace()
        return data

    def hand_over(self, receive: Callable[[bytes], None]) -> None:
        self._receive = receive
        if self._ended:
            self._loop.call_soon(receive, b"")
        self.resume_reading()

    def pause_reading(self) -> None:
        self._is_held = True
        self._pace()

    def resume_reading(self) -> None:
        self._is_held = False
        if self._receive is not None and (received := self._received.take_all()):
            self._receive(received)
        self._pace()

    def _pace(self) -> None:
        """Pause or resume the reading of the socket, as it is due now."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._receive is None:
            is_due = self._received.byte_count > READ_BYTES_MAX
        else:
            is_due = self._is_held or (self._door is not None and self._writing_paused)
        if is_due != self._reading_paused:
            self._reading_paused = is_due
            if is_due:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        # Messages of all partitions to one peer in one turn of the loop leave with one call to the
        # operating system: that call costs more than making most of the messages.
        if self._ended:
            return
        if not self._outgoing:
            self._loop.call_soon(self.flush)
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)

    def send(self, data: bytes) -> None:
        if not self._ended:
            self._outgoing.append(data)
            self._outgoing_bytes += len(data)
            self.flush()

    def flush(self) -> None:
        if not self._is_open:
            return
        outgoing, self._outgoing, self._outgoing_bytes = self._outgoing, [], 0
        if not outgoing or self._transport is None or self._transport.is_closing():
            return
        self._has_spoken = True
        if self._tls is None:
            for data in outgoing if len(outgoing) == 1 else _joined(outgoing):
                self._transport.write(data)
        else:
            self._tls.send(b"".join(outgoing))
            self._send_records()
        if self._door is not None and (self._weight or self._transport.get_write_buffer_size()):
            self._weigh()
        if self._watch is not None and self._watch.timer is None:
            self._watch.look_later()

    def _send_records(self) -> None:
        assert self._tls is not None
        if self._transport is not None and (records := self._tls.outgoing()):
            self._transport.write(records)

    @property
    def unsent_bytes(self) -> int:
        if self._ended or self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + self._outgoing_bytes

    def note_held(self, byte_count: int) -> None:
        self._held_by_reader = byte_count
        # Called for each message; most connections never hold enough to be counted.
        if byte_count >= CONNECTION_BYTES_STEP // 2 or self._weight:
            self._weigh()

    def note_dispensable(self, is_dispensable: bool) -> None:
        if self._door is not None and not self._ended:
            self._door.note_dispensable(self, is_dispensable)

    @property
    def held_bytes(self) -> int:
        """All bytes that this side holds for the connection."""
        if self._ended or self._transport is None:
            return 0
        unsent_bytes = self._transport.get_write_buffer_size() + self._outgoing_bytes
        return self._received.byte_count + self._held_by_reader + unsent_bytes

    def _weigh(self) -> None:
        self._unweighed = 0
        if self._door is None:
            return
        weight = self.held_bytes
        if abs(weight - self._weight) >= CONNECTION_BYTES_STEP:
            self._weight = weight
            self._door.weigh(self, weight)

    def give_up(self, reason: str) -> None:
        """End the connection at once and drop all bytes that it holds."""
        self._log.warning("connection_given_up peer=%s reason=%s", self.peer, reason)
        self._received.clear()
        self._outgoing.clear()
        self._outgoing_bytes = 0
        if self._transport is not None and not self._transport.is_closing():
            # Otherwise the system would keep unacknowledged data, and not tell the peer.
            connected_socket = self._transport.get_extra_info("socket")
            connected_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self._abort()

    def leave_to_parent(self) -> None:
        """Release the socket without a word, for it belongs to the process that this one was forked
        from: while both have it, the peer does not learn that the parent has closed it."""
        descriptor = self._transport.get_extra_info("socket").fileno() if self._transport else -1
        if descriptor >= 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            # Not closed: the number could be given to another file, which would be closed later.
            os.dup2(nothing, descriptor, inheritable=False)
            os.close(nothing)

    async def drain(self) -> None:
        if self._outgoing_bytes > WRITE_BUFFER_BYTES_HIGH:
            self.flush()
        while (
            self._writing_paused or self._outgoing_bytes > WRITE_BUFFER_BYTES_HIGH
        ) and not self._ended:
            drainer: asyncio.Future[None] = self._loop.create_future()
            self._drainers.append(drainer)
            await drainer

    def close(self) -> None:
        if self._ended:
            self._close_transport()
            return
        self._received.clear()
        self._end()
        if self._is_open or not self._outgoing:
            self._finish()
        else:
            self._closing = True  # once the peer has opened it, the queued bytes are still sent

    def _finish(self) -> None:
        """Send queued bytes and the end of the stream."""
        self._closing = False
        self.flush()
        if self._tls is not None and self._is_open:
            self._tls.finish()
            self._send_records()
        self._close_transport()

    def _close_transport(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._closing = False
        self._transport.close()
        if self._timer is not None:
            self._timer.cancel()
        # A peer that reads nothing would hold queued bytes and the socket for ever.
        self._timer = self._loop.call_later(CLOSE_SECONDS_MAX, self._transport.abort)

    def _abort(self) -> None:
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        if self._receive is not None and not self._ended:
            self._loop.call_soon(self._receive, b"")
        self._ended = True
        # The timer that would settle it ends with the connection, and a task may wait.
        self._settle(self.trouble)
        self._received.wake()
        self._wake_drainers()

    def _wake_drainers(self) -> None:
        drainers, self._drainers = self._drainers, []
        for drainer in drainers:
            if not drainer.done():
                drainer.set_result(None)


def _joined(writes: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in fewer pieces, without copying the large ones."""
    small: list[bytes] = []
    for data in writes:
        if len(data) < WHOLE_WRITE_BYTES_MIN:
            small.append(data)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield data
    if small:
        yield b"".join(small)


_CONNECTED: WeakSet[TcpConnection] = WeakSet()
"""Connections that this process has opened."""


def _leave_all_to_parent() -> None:
    for connection in list(_CONNECTED):
        connection.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)
