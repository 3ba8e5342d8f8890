"""The connections of `golden_server`: whole frames both ways, in the version of both Hellos.

Any number of threads send on one connection and one reads it, with or without TLS. A peer that is
silent is waited for without an end, as the original does.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
from concurrent.futures import Future
from typing import Final

from tests.interop.conversation import FRAMES, HEADER_BYTES, patched
from tests.rolling.golden_storage import HEAD_BYTES, framed

CONNECT_SECONDS_MAX: Final = 30.0
READ_BYTES: Final = 65_536
PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""A frame that says that it is larger ends the connection; the original has no limit."""

FAILED: Final = FRAMES["S Failure"][HEADER_BYTES]
ANSWERS: Final = {
    "LastSessionInfoReq": "LastSessionInfoResp",
    "SetLWM": "Success",
    "Truncate": "MaxResp",
    "Append": "Success",
    "MaxReq": "MaxResp",
    "HdrListReq": "HdrListResp",
    "RecListReq": "RecListResp",
}
"""The answer to each request to a storage node, both by the names of the golden frames."""
HEADER: Final = struct.Struct(">q16s4s")
"""A record's header on the wire: transaction ID, request ID, the application's header."""


class RefusedError(Exception):
    """A storage node has answered with a failure; its text."""


class Link:
    """One connection. Each end says its Hello without waiting for the other's."""

    def __init__(
        self,
        plain: socket.socket,
        hello: str,
        codec: bytes,
        tls: ssl.SSLContext | None,
        *,
        server_name: str | None = None,
    ) -> None:
        """`hello`: the name of the golden frame; `server_name` None: the peer has connected.
        Raises OSError: the connection has ended, or no version is in both Hellos."""
        plain.settimeout(CONNECT_SECONDS_MAX)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain
        if tls is not None:
            is_server = server_name is None
            self._socket = tls.wrap_socket(
                plain, server_side=is_server, server_hostname=server_name
            )
        self._socket.setblocking(False)
        self._touched = threading.Lock()
        """Held by the thread that is inside the library of TLS, which bears one at a time."""
        self._sending = threading.Lock()
        self._read = bytearray()
        self.send(FRAMES[hello])
        self._head = b"H\0\0"
        theirs, ours = versions_of(self.read()), versions_of(FRAMES[hello][HEADER_BYTES:])
        if not theirs & ours:
            raise ConnectionError(f"versions {theirs} here, {ours} there")
        self.version = max(theirs & ours)
        self._head = codec + struct.pack(">h", self.version)

    def read(self) -> bytes:
        """Return the next payload that is not empty. Raises ConnectionError: the connection has
        ended, or the frame is not of the version that was agreed on."""
        while True:
            header = self._exactly(HEADER_BYTES)
            (length,) = struct.unpack(">i", header[3:])
            if header[:3] != self._head or not 0 <= length <= PAYLOAD_BYTES_MAX:
                raise ConnectionError(f"not a frame of this connection: {header.hex()}")
            if length:
                return self._exactly(length)

    def send(self, frame: bytes) -> None:
        """Raises OSError: the connection has ended."""
        left = memoryview(frame)
        with self._sending:
            while left:
                try:
                    with self._touched:
                        left = left[self._socket.send(left) :]
                except ssl.SSLWantReadError:
                    self._wait(select.POLLIN)
                except (BlockingIOError, ssl.SSLWantWriteError):
                    self._wait(select.POLLOUT)

    def end(self) -> None:
        """Have every thread that reads or sends here find the connection ended."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give up the socket; for the thread that reads."""
        self.end()
        with self._sending:
            self._socket.close()

    def _exactly(self, count: int) -> bytes:
        while len(self._read) < count:
            try:
                with self._touched:
                    data = self._socket.recv(READ_BYTES)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
                continue
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(select.POLLIN)
                continue
            if not data:
                raise ConnectionError("the peer has ended the connection")
            self._read += data
        found = bytes(self._read[:count])
        del self._read[:count]
        return found

    def _wait(self, event: int) -> None:
        number = self._socket.fileno()
        if number < 0:
            raise ConnectionError("the connection is closed")
        ready = select.poll()
        ready.register(number, event)
        ready.poll()


def versions_of(hello: bytes) -> set[int]:
    """Return the versions that the payload of a Hello lists."""
    (count,) = struct.unpack_from(">i", hello)
    return set(struct.unpack_from(f">{count}h", hello, 4))


class StorageConnection:
    """A connection to a storage node, which all partitions of a server share."""

    def __init__(self, place: str, opening: bytes, tls: ssl.SSLContext | None) -> None:
        """`opening`: cluster key and number of partitions. Raises OSError, RefusedError."""
        host, _, port = place.rpartition(":")
        plain = socket.create_connection((host, int(port)), CONNECT_SECONDS_MAX)
        self._link = Link(plain, "hello Waltz Storage Client", b"S", tls, server_name=host)
        self._lock = threading.Lock()
        self._sequence = 0
        self._awaited: dict[int, Future[bytes]] = {}
        self.is_ended = False
        threading.Thread(target=self._hear, name=f"from {place}", daemon=True).start()
        try:
            self._ask(-1, patched(FRAMES["S Open"], [(HEAD_BYTES, opening)]), "Success")
        except RefusedError:
            self._link.end()
            raise

    def call(self, name: str, session: int, partition: int, rest: bytes = b"") -> bytes:
        """Return what follows the head of the answer; `rest`: what follows that of the request.
        Raises RefusedError, OSError: the connection has ended."""
        with self._lock:
            sequence = self._sequence
            self._sequence += 1
        code = FRAMES[f"S {name}"][HEADER_BYTES : HEADER_BYTES + 1]
        head = struct.pack(">qqi", session, sequence, partition)
        return self._ask(sequence, framed(f"S {name}", code + head + rest), ANSWERS[name])

    def end(self) -> None:
        self._link.end()

    def _ask(self, sequence: int, frame: bytes, expected: str) -> bytes:
        awaited: Future[bytes] = Future()
        with self._lock:
            if self.is_ended:
                raise ConnectionError("disconnected")
            self._awaited[sequence] = awaited
        self._link.send(frame)
        answer = awaited.result()
        if answer[0] == FAILED:
            (length,) = struct.unpack_from(">i", answer, HEAD_BYTES)
            raise RefusedError(answer[HEAD_BYTES + 4 : HEAD_BYTES + 4 + length].decode())
        assert answer[0] == FRAMES[f"S {expected}"][HEADER_BYTES]
        return answer[HEAD_BYTES:]

    def _hear(self) -> None:
        try:
            while True:
                answer = self._link.read()
                (sequence,) = struct.unpack_from(">q", answer, 9)
                with self._lock:
                    awaited = self._awaited.pop(sequence, None)
                if awaited is None:
                    raise ConnectionError(f"nobody asked for answer {sequence}")
                awaited.set_result(answer)
        except OSError as error:
            with self._lock:
                self.is_ended = True
                lost, self._awaited = self._awaited, {}
            for each in lost.values():
                each.set_exception(ConnectionError(f"disconnected: {error}"))
            self._link.close()


class Storages:
    """The connections of a server to its storage nodes, one to each; a lost one is replaced."""

    def __init__(self, opening: bytes, tls: ssl.SSLContext | None) -> None:
        self._opening = opening
        self._tls = tls
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._connections: dict[str, StorageConnection] = {}

    def connection(self, place: str) -> StorageConnection:
        """Raises OSError, RefusedError: the node cannot be reached, or is another cluster's."""
        with self._lock:
            opening = self._locks.setdefault(place, threading.Lock())
        with opening:
            found = self._connections.get(place)
            if found is None or found.is_ended:
                found = self._connections[place] = self.fresh(place)
            return found

    def fresh(self, place: str) -> StorageConnection:
        """Return a connection of its own. Raises as `connection`."""
        return StorageConnection(place, self._opening, self._tls)


def split_headers(content: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return transaction ID, request ID and header of each entry of a list."""
    (count,) = struct.unpack_from(">i", content)
    assert len(content) == 4 + HEADER.size * count
    return list(HEADER.iter_unpack(content[4:]))


def split_records(content: bytes) -> list[bytes]:
    """Return the records of a list, each as it is on the wire."""
    (count,) = struct.unpack_from(">i", content)
    found, place = [], 4
    for _ in range(count):
        (length,) = struct.unpack_from(">i", content, place + HEADER.size)
        end = place + HEADER.size + 4 + length + 4
        found.append(content[place:end])
        place = end
    assert place == len(content)
    return found


def joined_records(records: list[bytes]) -> bytes:
    """Return what follows the head of an append request: not for an offline recovery."""
    return struct.pack(">i", len(records)) + b"".join(records) + b"\0"
