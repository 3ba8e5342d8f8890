"""Requests that are not worked off, in bytes, and the connections not read further because of them.

`Backlog` counts for one partition over all connections, `Intake` for one connection over all
partitions. Both count a request from when it was read until it is decided or answered, with what it
takes in memory. Each connection may always have a share under way in each partition: a client that
sends little is never held up by clients that have filled a partition. Knows no sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from waltz.limits import BATCHED_APPEND_BYTES, LOCK_BYTES, REQUEST_BYTES
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.client_message import ClientMessage

PENDING_APPENDS_MAX: Final = 10_000
PENDING_APPEND_BYTES_MAX: Final = 64 * 1024 * 1024
"""Requests that one partition of a server has not worked off before it is full: connections with
more than their share of them are read no further."""

PARTITION_SHARE_BYTES: Final = 64 * 1024
"""Each connection may have this much under way in a partition even if the partition is full."""

CROWDED_BYTES_MIN: Final = 256 * 1024
"""Bytes that all clients of a server have under way, from which on small appends no longer wait for
a turn of the loop at each step. Below this number turns are short, and waiting joins appends into
batches."""

CONNECTION_BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""Requests of one connection that a server has not worked off before it reads no further; what one
more read brings comes on top. As much as a partition's batches in flight hold."""


def request_bytes(message: ClientMessage) -> int:
    """Return what `message` takes while it waits."""
    if type(message) is AppendBatch:
        appends = message.appends
        count, locks = appends.headers.size, appends.lock_hashes.size
        data_bytes = sum(map(len, appends.bodies.data))
        return BATCHED_APPEND_BYTES * count + data_bytes + LOCK_BYTES * locks
    return REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class WorkedOff:
    """So much of what the connection has asked for is decided, answered or dropped."""

    connection_id: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class StopReading:
    """Take nothing more from the connection until `ResumeReading`."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class ResumeReading:
    connection_id: int


BacklogEffect: TypeAlias = WorkedOff | StopReading | ResumeReading


class Backlog:
    """The appends that one partition has not decided. While the backlog is full, connections that
    hold more than a share of it are not read.

    A request for data is not added: it may wait for a client that reads no answers, and must not
    fill the partition for other clients. The bound of its connection applies to it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.byte_count = 0
        self.is_full = False
        """Whether connections that hold more than a share are not read."""
        self._bytes: dict[int, int] = {}
        self._over_share: set[int] = set()
        self._stopped: set[int] = set()
        self._worked_off: dict[int, int] = {}

    def add(self, connection_id: int, byte_count: int, count: int = 1) -> None:
        """The connection has made `count` requests, of that size together."""
        self.count += count
        self.byte_count += byte_count
        own = self._bytes.get(connection_id, 0) + byte_count
        self._bytes[connection_id] = own
        if own > PARTITION_SHARE_BYTES:
            self._over_share.add(connection_id)

    def drop(self, connection_id: int, byte_count: int) -> None:
        """Requests of that size need nothing any more that were never added."""
        self._worked_off[connection_id] = self._worked_off.get(connection_id, 0) + byte_count

    def settle(self, connection_id: int, byte_count: int, count: int = 1) -> None:
        """`count` requests of the connection, of that size together, need nothing any more."""
        self.count -= count
        self.byte_count -= byte_count
        own = self._bytes[connection_id] - byte_count
        if own:
            self._bytes[connection_id] = own
        else:
            del self._bytes[connection_id]
        if self._over_share and own <= PARTITION_SHARE_BYTES:
            self._over_share.discard(connection_id)
        self.drop(connection_id, byte_count)

    def take_effects(self) -> list[BacklogEffect]:
        """Return what has changed for those who read the connections, once."""
        effects: list[BacklogEffect] = []
        if self._worked_off:
            for connection_id, byte_count in self._worked_off.items():
                effects.append(WorkedOff(connection_id, byte_count))
            self._worked_off = {}
        factor = 2 if self.is_full else 1  # full until half of it is free
        self.is_full = (
            self.count * factor >= PENDING_APPENDS_MAX
            or self.byte_count * factor >= PENDING_APPEND_BYTES_MAX
        )
        if self.is_full or self._stopped:
            wanted = self._over_share if self.is_full else set()
            effects += [StopReading(each) for each in sorted(wanted - self._stopped)]
            effects += [ResumeReading(each) for each in sorted(self._stopped - wanted)]
            self._stopped = set(wanted)
        return effects

    def check_invariants(self) -> None:
        assert self.byte_count == sum(self._bytes.values())
        assert all(own > 0 for own in self._bytes.values())
        assert self._over_share == {
            connection_id
            for connection_id, own in self._bytes.items()
            if own > PARTITION_SHARE_BYTES
        }
        assert self._stopped == (self._over_share if self.is_full else set())


class UnderWay:
    """The sum of what all connections of a server have under way."""

    def __init__(self, note_crowded: Callable[[bool], None] = lambda _: None) -> None:
        """`note_crowded` is told `is_crowded` whenever that has changed."""
        self.byte_count = 0
        self.connection_count = 0
        """The number of connections that have anything under way."""
        self.stop_count = 0
        """The number of times that a connection was no longer read."""
        self.is_crowded = False
        """Whether a turn of the loop is long, and a second connection could have a short one."""
        self._note_crowded = note_crowded

    def add(self, byte_count: int, connection_count: int) -> None:
        """Count both; a negative number takes away."""
        self.byte_count += byte_count
        self.connection_count += connection_count
        is_crowded = self.byte_count >= CROWDED_BYTES_MIN and self.connection_count > 1
        if is_crowded is not self.is_crowded:
            self.is_crowded = is_crowded
            self._note_crowded(is_crowded)


class Intake:
    """One connection: it is read while it has less than its bound under way, and no partition has
    stopped it.

    Partitions are told apart by their opening: one that is opened again starts from nothing.
    """

    def __init__(self, all_under_way: UnderWay | None = None) -> None:
        """`all_under_way`: of the server, which counts this connection's along."""
        self.byte_count = 0
        self.may_read = True
        self._all_under_way = UnderWay() if all_under_way is None else all_under_way
        self._bytes: dict[int, int] = {}
        self._stopped_by: set[int] = set()
        self._is_full = False

    def waits_for(self, opening: int) -> bool:
        """Whether the partition has not worked off all that came for it."""
        return opening in self._bytes

    def take(self, opening: int, byte_count: int) -> None:
        """Requests of that size have been handed to the partition."""
        self._bytes[opening] = self._bytes.get(opening, 0) + byte_count
        self._count(byte_count)

    def settle(self, opening: int, byte_count: int) -> None:
        """The partition has worked them off."""
        left = self._bytes[opening] - byte_count
        assert left >= 0
        if left:
            self._bytes[opening] = left
        else:
            del self._bytes[opening]
        self._count(-byte_count)

    def stop(self, opening: int) -> None:
        self._stopped_by.add(opening)
        self.may_read = False

    def resume(self, opening: int) -> None:
        self._stopped_by.discard(opening)
        self.may_read = not self._is_full and not self._stopped_by

    def forget(self, opening: int) -> None:
        """The partition has closed: nothing that came for it is under way any more."""
        self._stopped_by.discard(opening)
        self._count(-self._bytes.pop(opening, 0))

    def end(self) -> None:
        """The connection is gone, and nobody settles any more what it had under way."""
        self._bytes.clear()
        self._count(-self.byte_count)
        self._all_under_way = UnderWay()

    def _count(self, byte_count: int) -> None:
        was_idle = not self.byte_count
        self.byte_count += byte_count
        self._all_under_way.add(byte_count, was_idle - (not self.byte_count))
        factor = 2 if self._is_full else 1  # full until half of it is free
        self._is_full = self.byte_count * factor >= CONNECTION_BACKLOG_BYTES_MAX
        self.may_read = not self._is_full and not self._stopped_by
