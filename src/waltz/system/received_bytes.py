"""Bytes that have arrived on a connection and were not read yet."""

from __future__ import annotations

import asyncio
from typing import Final

from waltz.limits import READ_BYTES_MAX

RECEIVED_PIECES_MAX: Final = 64
"""Unread pieces kept per connection. More are joined, for a piece of one byte costs fifty bytes."""


class ReceivedBytes:
    """Pieces in order of arrival, `byte_count` bytes in all; one task reads at a time."""

    def __init__(self) -> None:
        self.byte_count = 0
        self._pieces: list[bytes] = []
        self._reader: asyncio.Future[None] | None = None
        self._wanted = 1
        """Bytes that the reader waits for."""

    def keep(self, data: bytes) -> None:
        """Keep `data` as it came: what is read at once is never copied."""
        if len(self._pieces) >= RECEIVED_PIECES_MAX:
            self._pieces = [b"".join(self._pieces)]
        self._pieces.append(data)
        self.byte_count += len(data)
        if self._reader is not None and self.byte_count >= self._wanted:
            self.wake()

    def expect(self, wanted: int) -> asyncio.Future[None]:
        """Return a future that ends once `wanted` bytes are there, or with `wake`."""
        assert self._reader is None or self._reader.done(), "two tasks read one connection"
        self._wanted = wanted
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

    def wake(self) -> None:
        """Let the reader look again: enough has come, or no more will."""
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def take(self) -> bytes:
        """Return received bytes, at most `READ_BYTES_MAX`; a piece that fits is not copied."""
        pieces, size = self._pieces, 0
        for count, piece in enumerate(pieces):  # noqa: B007 - how many fit
            size += len(piece)
            if size > READ_BYTES_MAX:
                break
        else:
            self._pieces, self.byte_count = [], 0
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if count:
            data = pieces[0] if count == 1 else b"".join(pieces[:count])
            self._pieces = pieces[count:]
        else:
            data = pieces[0][:READ_BYTES_MAX]
            pieces[0] = pieces[0][READ_BYTES_MAX:]
        self.byte_count -= len(data)
        return data

    def take_all(self) -> bytes:
        """Return all bytes; no task may be reading."""
        assert self._reader is None or self._reader.done(), "a task reads the connection"
        pieces, self._pieces, self.byte_count = self._pieces, [], 0
        return b"".join(pieces)

    def clear(self) -> None:
        self._pieces.clear()
        self.byte_count = 0
