"""Bytes of a connection become frames in exactly one place: here.

Owns the bytes that have arrived and do not make a whole frame yet: between two reads, less than one
frame.
Must not know what a payload means.

    offset  size  field
         0     1  magic: which protocol
         1     2  version of it, signed
         3     4  length of the payload, signed; 0 makes a keep-alive
         7     n  payload

Source: Client-Server Communication, "Message Format".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import FRAME_BYTES_MAX

PIECE_BYTES_MIN: Final = 4 * 1024
"""Pieces of a frame that are larger than this are kept as they come, until all are joined."""

WANTED_BYTES_MAX: Final = 64
"""The most that a reader waits for at a time: less than anything whole is of no use to it, and who
sends a byte now and then is still heard now and then."""


FRAME_HEADER: Final = struct.Struct(">Bhi")
FRAME_HEADER_BYTES: Final = FRAME_HEADER.size

_SHOWN_BYTES_MAX = 32


def encode_frame(magic: int, version: int, parts: Sequence[bytes]) -> bytes:
    """Return the frame with the payload `parts`; no bytes make a keep-alive.

    Raises LocalProtocolError: larger than a frame may be.
    """
    length = sum(map(len, parts))
    if length > FRAME_BYTES_MAX:
        raise LocalProtocolError(
            f"payload of {length} bytes; a frame holds at most {FRAME_BYTES_MAX}"
        )
    return b"".join((FRAME_HEADER.pack(magic, version, length), *parts))


class FrameDecoder:
    """Cuts what arrives into payloads. After an error it is of no further use."""

    def __init__(self, magic: int, version: int, bytes_max: int) -> None:
        self.has_more = False
        """Whether bytes have arrived that `next_frame` has not looked at."""
        self.unfinished_bytes = 0
        """Bytes that have arrived of a payload that is not whole yet."""
        self.wanted_bytes = FRAME_HEADER_BYTES
        """The bytes, at least 1, that must arrive before there is another frame."""
        self._data = b""
        self._position = 0
        # A payload of which only a part has arrived: the pieces as they came, joined once. Small
        # ones grow together, for each would cost more than its bytes.
        self._pieces: list[memoryview | bytearray] = []
        self._missing = 0
        self.expect(magic, version, bytes_max)

    def expect(self, magic: int, version: int, bytes_max: int) -> None:
        """Demand this magic and version, and at most `bytes_max` bytes of payload, from now on."""
        self._magic = magic
        self._version = version
        self._bytes_max = bytes_max

    def receive(self, data: bytes) -> None:
        """Take what has arrived. All frames that were whole before must have been taken out."""
        assert self._position == 0
        assert len(self._data) < FRAME_HEADER_BYTES
        self._data = self._data + data if self._data else data
        self.has_more = True

    def next_frame(self) -> bytes | None:
        """Return the next payload, never an empty one; None if more bytes have to arrive.

        Raises RemoteProtocolError: another magic or version, or a length out of bounds; it is
        judged before a byte of the payload is kept.
        """
        if self._missing:
            return self._continued()
        data = self._data
        while (available := len(data) - self._position - FRAME_HEADER_BYTES) >= 0:
            start = self._position
            magic, version, length = FRAME_HEADER.unpack_from(data, start)
            if magic != self._magic or version != self._version:
                raise self._foreign(magic, version, data[start : start + _SHOWN_BYTES_MAX])
            if not 0 <= length <= self._bytes_max:
                raise RemoteProtocolError(f"frame length {length}; expected 0 to {self._bytes_max}")
            start += FRAME_HEADER_BYTES
            if available < length:
                self._position = start
                self._missing = length
                return self._continued()
            self._position = end = start + length
            if length:
                self.has_more = end < len(data)
                if not self.has_more:
                    self._data = b""
                    self._position = 0
                    self.wanted_bytes = FRAME_HEADER_BYTES
                return data[start:end]
        self._data = data[self._position :]
        self._position = 0
        self.has_more = False
        self.wanted_bytes = max(1, FRAME_HEADER_BYTES - len(self._data))
        return None

    def take_rest(self) -> bytes:
        """Return, and forget, what has arrived behind the frame that was taken out last."""
        assert not self._missing
        rest, self._data = self._data[self._position :], b""
        self._position = 0
        self.has_more = False
        self.wanted_bytes = FRAME_HEADER_BYTES
        return rest

    def _continued(self) -> bytes | None:
        """Move what has arrived of the payload begun; return it if that was all of it."""
        data, start = self._data, self._position
        end = min(start + self._missing, len(data))
        count = end - start
        if count >= PIECE_BYTES_MIN:
            self._pieces.append(memoryview(data)[start:end])
        elif self._pieces and isinstance(grown := self._pieces[-1], bytearray):
            grown += data[start:end]
        else:
            self._pieces.append(bytearray(data[start:end]))
        self.unfinished_bytes += count
        self._missing -= count
        self._position = end
        self.has_more = end < len(data)
        if not self.has_more:
            self._data = b""
            self._position = 0
        if self._missing:
            self.wanted_bytes = min(self._missing, WANTED_BYTES_MAX)
            return None
        payload = b"".join(self._pieces)
        self._pieces = []
        self.unfinished_bytes = 0
        self.wanted_bytes = FRAME_HEADER_BYTES
        return payload

    def _foreign(self, magic: int, version: int, shown: bytes) -> RemoteProtocolError:
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in shown)
        return RemoteProtocolError(
            f"magic {magic:#04x} version {version}; expected magic {self._magic:#04x}"
            f" ({chr(self._magic)}) version {self._version}; first bytes"
            f" {text!r} = {shown.hex(' ')}"
        )
