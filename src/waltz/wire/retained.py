"""Two streams of bytes, one each way, that outlive the connections that carry them.

Owns, at one end, how much was sent and received since the logical connection began, and the newest
of what was sent, until the other end has acknowledged it. Must not know what the bytes mean nor
what carries them. Both ends count bytes, so an end that resumes begins with exactly the byte that
the other end lacks: nothing is lost and nothing comes twice. Source: IEP-90, "Logical connection".
"""

from __future__ import annotations

from collections import deque
from typing import Final

from waltz.errors import RemoteProtocolError

RETAINED_BYTES_MAX: Final = 4 * 1024 * 1024
RETAINED_WRITES_MAX: Final = 10_000
"""One end of a logical connection keeps at most this much that was sent and not acknowledged."""

ACKNOWLEDGE_BYTES: Final = 256 * 1024
"""So much arrives between two acknowledgements; heartbeats acknowledge, too."""


class Retained:
    """One end of a logical connection.

    While it is carried, what exceeds the bounds is forgotten, the oldest first: nobody who is slow
    to acknowledge is cut off for it, but to go on may be impossible until acknowledgements have
    caught up. While it is broken nothing may be forgotten: it has overflowed then.
    """

    def __init__(
        self,
        *,
        bytes_max: int = RETAINED_BYTES_MAX,
        writes_max: int = RETAINED_WRITES_MAX,
        acknowledge_bytes: int = ACKNOWLEDGE_BYTES,
    ) -> None:
        self.sent = 0
        self.received = 0
        self.is_broken = False
        self.has_overflowed = False
        """It can never be resumed."""
        self._bytes_max = bytes_max
        self._writes_max = writes_max
        self._acknowledge_bytes = acknowledge_bytes
        self._writes: deque[bytes] = deque()
        self._first = 0
        self._told = 0

    @property
    def byte_count(self) -> int:
        """Return the bytes that are kept."""
        return self.sent - self._first

    @property
    def owes_acknowledgement(self) -> bool:
        """Whether so much has arrived that the other end should be told."""
        return self.received - self._told >= self._acknowledge_bytes

    def send(self, data: bytes) -> None:
        """Keep `data`, which goes on its way now or when it is resumed."""
        self.sent += len(data)
        writes = self._writes
        writes.append(data)
        while self.sent - self._first > self._bytes_max or len(writes) > self._writes_max:
            if self.is_broken:
                self.end()
                return
            self._first += len(writes.popleft())

    def receive(self, byte_count: int) -> None:
        """`byte_count` more bytes have arrived, and will be worked off."""
        self.received += byte_count

    def tell_received(self) -> int:
        """Return how much has arrived; the other end is told so."""
        self._told = self.received
        return self.received

    def acknowledge(self, received: int) -> None:
        """The other end has got everything before byte `received`; it may have said so before.

        Raises RemoteProtocolError: more than was sent.
        """
        if received > self.sent:
            raise RemoteProtocolError(f"{received} bytes acknowledged; {self.sent} were sent")
        writes = self._writes
        while writes and self._first + len(writes[0]) <= received:
            self._first += len(writes.popleft())

    def break_off(self) -> None:
        """Nothing carries it any more."""
        self.is_broken = True

    def resume(self, received: int) -> bytes | None:
        """Return what is to be sent first on a new connection; None: it is not there any more.

        `received` is how much the other end has got of what this one has sent. Raises
        RemoteProtocolError: more than was sent.
        """
        self.acknowledge(received)
        if self.has_overflowed or received < self._first:
            self.end()
            return None
        self.is_broken = False
        return b"".join(self._writes)[received - self._first :]

    def end(self) -> None:
        """Keep nothing; this is never resumed."""
        self.is_broken = self.has_overflowed = True
        self._writes.clear()
        self._first = self.sent

    def check_invariants(self) -> None:
        assert self._first + sum(map(len, self._writes)) == self.sent
        assert self.byte_count <= self._bytes_max
        assert len(self._writes) <= self._writes_max
        assert self._told <= self.received
