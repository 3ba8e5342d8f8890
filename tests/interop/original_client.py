"""A client of the Java original as its server sees it: two connections to the server, a window of
five appends per partition, the feed on one connection, each body fetched by a call on the other.

Its requests are the frames that the original printed, with other numbers in the places of IDs; what
it hears is cut by length and read by place. It shares no code with our client.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.interop.conversation import FRAMES, HEADER_BYTES, SECONDS_MAX, with_versions
from waltz.types import Address

WINDOW: Final = 5
"""Appends of one partition between their sending and their return in the feed."""

READ_BYTES: Final = 65_536
PLACE_OF_REQUEST_ID: Final = 1
PLACE_OF_FIELDS: Final = 17

MOUNTED, FEED, SUSPENDED, BODY, FLUSHED, REFUSED = 1, 4, 5, 7, 9, 10


class NotServedError(Exception):
    """The server has ended the connection, or does not mount a partition."""


class Frames:
    """Cuts what one connection brings into payloads."""

    def __init__(self, address: Address, version: int, tls: ssl.SSLContext | None) -> None:
        self.socket = socket.create_connection((address.host, address.port), SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=address.host)
        self._left = b""
        self.socket.sendall(with_versions(FRAMES["hello client"], version))
        while not (heard := self.read()):
            pass
        self.rest = heard[1:]
        """What came after the server's Hello."""

    def read(self) -> list[bytes]:
        """Return the payloads that one read completes. Raises NotServedError: the end."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise NotServedError("the server has ended the connection")
        # What TLS has decrypted already makes no socket readable.
        while isinstance(self.socket, ssl.SSLSocket) and (count := self.socket.pending()):
            data += self.socket.recv(count)
        data = self._left + data
        place, found = 0, []
        while len(data) - place >= HEADER_BYTES:
            (length,) = struct.unpack_from(">i", data, place + 3)
            if len(data) - place - HEADER_BYTES < length:
                break
            found.append(data[place + HEADER_BYTES : place + HEADER_BYTES + length])
            place += HEADER_BYTES + length
        self._left = data[place:]
        return found


@dataclass
class Followed:
    """One partition as the client knows it."""

    mark: int = -1
    mount: bytes = b""
    is_mounted: bool = False
    fed: deque[tuple[int, bytes]] = field(default_factory=deque)
    """Transactions that were fed and are not applied: ID, and whose request it was."""
    asked_at: float | None = None
    """When the body of the first of `fed` was asked for."""
    window: dict[bytes, float] = field(default_factory=dict)
    """Appends on their way, and when they were sent."""


class OriginalClient:
    """See the module. Runs in one thread; `run` does all of the work."""

    def __init__(
        self,
        address: Address,
        client_id: int,
        generations: dict[int, int],
        *,
        version: int = 4,
        data: bytes | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`generations`: by partition; `data`: of its own appends, None: it only follows; `tls`
        None: it speaks without."""
        self._client_id = client_id
        self._generations = generations
        self._version = version
        self._data = data
        self.sequence = 0
        self.partitions = {number: Followed() for number in generations}
        self.applied = 0
        self.committed = 0
        self.bodies_bytes = 0
        self.call_seconds: list[float] = []
        self.window_seconds: list[float] = []
        """How long each of its appends was in the window."""
        self._stream = Frames(address, version, tls)
        self._calls = Frames(address, version, tls)

    def close(self) -> None:
        self._stream.socket.close()
        self._calls.socket.close()

    @property
    def longest_wait(self) -> float:
        """Seconds that an append has waited at most, those in the window included."""
        now = time.monotonic()
        waiting = [now - at for each in self.partitions.values() for at in each.window.values()]
        return max([*waiting, *self.window_seconds], default=0.0)

    def note_sent(self, number: int, request_id: bytes) -> None:
        """An append of the partition is about to be sent; for classes that write that down."""

    def note_committed(self, number: int, request_id: bytes, transaction_id: int) -> None:
        """An append of this client came back in the feed."""

    def mount(self, marks: dict[int, int]) -> None:
        """Ask for the partitions, each from its mark on; they are fed once this runs."""
        for number, mark in marks.items():
            followed = self.partitions[number]
            followed.mark = mark
            followed.mount = self._request_id(number)
            self._say(self._stream, "MountRequest hwm=99 seq=1", followed.mount, mark, 0)

    def run(self, seconds: float) -> None:
        """Follow, fetch, append until the time is over. Raises NotServedError, OSError: this client
        is of no use any more."""
        end = time.monotonic() + seconds
        both = [self._stream.socket, self._calls.socket]
        for frames in (self._stream, self._calls):
            rest, frames.rest = frames.rest, []
            self._take(rest)
        while (left := end - time.monotonic()) > 0:
            readable, _, _ = select.select(both, [], [], left)
            for each in readable:
                self._take((self._stream if each is both[0] else self._calls).read())
            self._fill_windows()

    def _take(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            if not payload:
                continue
            kind, request_id = payload[0], payload[PLACE_OF_REQUEST_ID:PLACE_OF_FIELDS]
            (number,) = struct.unpack_from(">i", request_id, 8)
            followed = self.partitions[number]
            if kind == FEED:
                (transaction_id,) = struct.unpack_from(">q", payload, PLACE_OF_FIELDS)
                followed.fed.append((transaction_id, request_id))
                if followed.asked_at is None:
                    self._ask(number, followed)
            elif kind == BODY:
                self._apply(number, followed, payload)
            elif kind == MOUNTED:
                state = payload[PLACE_OF_FIELDS:]
                if state not in (b"\x01", bytes(4)):
                    raise NotServedError(f"not mounted: {state.hex()}")
                followed.is_mounted = True
                self._want_more(followed)
            elif kind == SUSPENDED and request_id == followed.mount:
                self._want_more(followed)

    def _want_more(self, followed: Followed) -> None:
        mark = followed.fed[-1][0] if followed.fed else followed.mark
        self._say(self._stream, "FeedRequest", followed.mount, mark)

    def _ask(self, number: int, followed: Followed) -> None:
        followed.asked_at = time.monotonic()
        transaction_id = followed.fed[0][0]
        self._say(self._calls, "TxDataRequest", self._request_id(number), transaction_id)

    def _apply(self, number: int, followed: Followed, payload: bytes) -> None:
        transaction_id, request_id = followed.fed.popleft()
        answered, is_found = struct.unpack_from(">q?", payload, PLACE_OF_FIELDS)
        assert answered == transaction_id
        if not is_found:
            raise NotServedError(f"transaction {transaction_id} is not given")
        assert transaction_id == followed.mark + 1
        assert followed.asked_at is not None
        now = time.monotonic()
        self.call_seconds.append(now - followed.asked_at)
        self.bodies_bytes += len(payload) - 34
        followed.mark, followed.asked_at = transaction_id, None
        self.applied += 1
        if (sent_at := followed.window.pop(request_id, None)) is not None:
            self.note_committed(number, request_id, transaction_id)
            self.committed += 1
            self.window_seconds.append(now - sent_at)
        if followed.fed:
            self._ask(number, followed)

    def _fill_windows(self) -> None:
        if self._data is None:
            return
        for number, followed in self.partitions.items():
            while followed.is_mounted and len(followed.window) < WINDOW:
                request_id = self._request_id(number)
                self.note_sent(number, request_id)
                followed.window[request_id] = time.monotonic()
                head = bytes([2]) + request_id + struct.pack(">q", followed.mark)
                locks = bytes(4 * min(3, self._version + 1))
                self._send(self._stream, head + locks + bytes(4) + self._data)

    def _request_id(self, number: int) -> bytes:
        self.sequence += 1
        generation = self._generations[number]
        return struct.pack(">iiii", self._client_id, generation, number, self.sequence)

    def _say(self, frames: Frames, name: str, request_id: bytes, *numbers: int) -> None:
        golden = FRAMES[f"V{self._version} {name}"]
        content = golden[HEADER_BYTES : HEADER_BYTES + 1] + request_id
        content += struct.pack(f">{len(numbers)}q", *numbers)
        assert len(content) == len(golden) - HEADER_BYTES
        frames.socket.sendall(golden[:HEADER_BYTES] + content)

    def _send(self, frames: Frames, content: bytes) -> None:
        head = FRAMES[f"V{self._version} Append nolocks"][:3]
        frames.socket.sendall(head + struct.pack(">i", len(content)) + content)
