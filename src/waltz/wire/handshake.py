"""The link: what both ends of every connection use between bytes and messages.

Owns the handshake and the version agreed on. Must not know sockets: the owner of one sends what
`hello` and `encode` return and hands over what arrives. Each end sends its Hello at once, neither
waits for the other; both then take the highest version that is in both lists. Source: Client-Server
Communication, "Message Format"; the Hello is that of the Java original.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final

from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import FRAME_BYTES_MAX, HELLO_BYTES_MAX
from waltz.recognition import GREETINGS, mistaken, recognized
from waltz.wire.fields import LENIENT_TEXT, SHORT, Numbers, Reader
from waltz.wire.frame import FrameDecoder, encode_frame
from waltz.wire.message import Codec, Message, layout_of, read_fields, write_fields

HELLO_VERSIONS_MAX: Final = 1024


HELLO_MAGIC: Final = ord("H")
HELLO_VERSION: Final = 0
VERSION_LIST: Final = Numbers(SHORT, "h", HELLO_VERSIONS_MAX)


@dataclass(frozen=True, slots=True)
class Hello:
    """The versions its sender can speak, in any order, and who it says it is.

    The one payload without a type byte.
    """

    versions: Annotated[tuple[int, ...], VERSION_LIST]
    greeting: Annotated[str, LENIENT_TEXT]

    def encode(self) -> bytes:
        parts: list[bytes] = []
        write_fields(HELLO_LAYOUT, self, HELLO_VERSION, parts)
        return encode_frame(HELLO_MAGIC, HELLO_VERSION, parts)


HELLO_LAYOUT: Final = layout_of(Hello)


def decode_hello(body: bytes) -> Hello:
    """Return the Hello in `body`. Raises RemoteProtocolError."""
    try:
        return read_fields(Hello, HELLO_LAYOUT, Reader(body), HELLO_VERSION)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"Hello: {error}") from None


@lru_cache(maxsize=64)
def _encoded_hello(versions: tuple[int, ...], greeting: str) -> bytes:
    """All connections of a process that speak one protocol begin with the same bytes."""
    return Hello(versions, greeting).encode()


class Link:
    """One end of a connection, without the connection.

    After the first RemoteProtocolError it is dead: every later call raises the same again.
    """

    def __init__(self, codec: Codec, greeting: str, *, opens: bool = False) -> None:
        """`opens`: after the Hello frames stay small, until `opened` says who the peer is."""
        self.version: int | None = None
        self.peer_greeting: str | None = None
        self._codec = codec
        self._greeting = greeting
        self._greeted = False
        self.frames = FrameDecoder(HELLO_MAGIC, HELLO_VERSION, HELLO_BYTES_MAX)
        """To be asked what has arrived of a frame, and what it lacks."""
        self._agreed_bytes_max = HELLO_BYTES_MAX if opens else FRAME_BYTES_MAX
        self._fault: str | None = None

    def opened(self) -> None:
        """The peer has shown that it belongs here."""
        assert self.version is not None
        self.frames.expect(self._codec.magic, self.version, FRAME_BYTES_MAX)

    def hello(self) -> bytes:
        """Return what to send first, at once, exactly one time."""
        self._check_alive()
        if self._greeted:
            raise LocalProtocolError("a second Hello on one connection; expected one")
        self._greeted = True
        return _encoded_hello(self._codec.versions, self._greeting)

    def greet(self, data: bytes) -> bytes | None:
        """Take `data` until the peer's Hello is complete; return what came after it, None before.

        Raises RemoteProtocolError, as `receive`.
        """
        self._check_alive()
        assert self.version is None
        if (body := self._next_frame(data)) is None:
            return None
        try:
            self._agree(decode_hello(body))
        except RemoteProtocolError as error:
            self._fault = str(error)
            raise
        return self.frames.take_rest()

    def receive_first(self, data: bytes) -> tuple[Message, bytes] | None:
        """Return the first message that `data` completes and what came after it; None before.

        Raises RemoteProtocolError, as `receive`.
        """
        self._check_alive()
        assert self.version is not None
        if (body := self._next_frame(data)) is None:
            return None
        try:
            return self._codec.decode(body, self.version), self.frames.take_rest()
        except RemoteProtocolError as error:
            self._fault = str(error)
            raise

    def receive(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes; the peer's Hello is consumed inside.

        Raises RemoteProtocolError: the connection must be closed. Messages before the fault in
        the same `data` are lost with it; a lost connection means unknown anyway.
        """
        if self._fault is not None:
            self._check_alive()
        messages = []
        frames = self.frames
        try:
            frames.receive(data)
            while frames.has_more and (body := frames.next_frame()) is not None:
                if self.version is None:
                    self._agree(decode_hello(body))
                else:
                    messages.append(self._codec.decode(body, self.version))
        except RemoteProtocolError as error:
            raise self._faulted(error, data) from error
        return messages

    def encode(self, message: Message) -> bytes:
        """Return the frame of `message`.

        Raises LocalProtocolError: the version is not agreed on yet, or lacks the message or one of
        its fields.
        """
        if self._fault is not None:
            self._check_alive()
        if self.version is None:
            raise LocalProtocolError(
                f"{type(message).__name__} before the peer's Hello; expected to wait for it"
            )
        return self._codec.encode(message, self.version)

    def keep_alive(self) -> bytes:
        """Return an empty frame, which the peer ignores."""
        self._check_alive()
        if self.version is None:
            return encode_frame(HELLO_MAGIC, HELLO_VERSION, ())
        return encode_frame(self._codec.magic, self.version, ())

    def _next_frame(self, data: bytes) -> bytes | None:
        try:
            self.frames.receive(data)
            return self.frames.next_frame()
        except RemoteProtocolError as error:
            raise self._faulted(error, data) from error

    def _faulted(self, error: RemoteProtocolError, data: bytes) -> RemoteProtocolError:
        """Return what to raise: `error`, or what it is that has answered there at first."""
        mistake = None
        if self.version is None:
            mistake = mistaken(self._greeting, recognized(data))
        self._fault = mistake or str(error)
        return RemoteProtocolError(self._fault)

    def _agree(self, hello: Hello) -> None:
        # Versions of different protocols have the same numbers.
        if mistake := mistaken(self._greeting, GREETINGS.get(hello.greeting)):
            raise RemoteProtocolError(mistake)
        common = set(hello.versions).intersection(self._codec.versions)
        if not common:
            raise RemoteProtocolError(
                f"no common version with {hello.greeting!r}: it speaks {list(hello.versions)},"
                f" this side {list(self._codec.versions)}"
            )
        self.version = max(common)
        self.peer_greeting = hello.greeting
        self.frames.expect(self._codec.magic, self.version, self._agreed_bytes_max)

    def _check_alive(self) -> None:
        if self._fault is not None:
            raise RemoteProtocolError(self._fault)
