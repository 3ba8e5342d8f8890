"""Decides which connections a client opens, keeps and closes: one or two to every server that has
partitions.

Owns, per server and role, whether the client is connected and when to try again, and which
partition is at which server. A connection is a logical one: the TCP connection under it may break,
and for a while it can be restored without its partitions noticing. Must not know what is said on a
connection. Jitter comes with the events. Always: every server of the present view has each
connection open, under way, or due at a known time (CI-01, CI-06 to CI-08; LC-04, LC-44 to LC-50);
and to a server that could not be reached at most one attempt is under way at a time (LC-64).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, assert_never

from waltz.limits import RECONNECT_BROKEN_SECONDS_MAX, RECONNECT_SECONDS_MAX, RECONNECT_SECONDS_MIN
from waltz.types import Address, Generation, PartitionId


class Role(Enum):
    STREAM = "mount, append, feed, flush"
    REQUESTS = "transaction data, high-water marks"


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """The server of each partition now; partitions without a server are missing."""

    partitions: Mapping[PartitionId, tuple[Address, Generation]]


@dataclass(frozen=True, slots=True)
class ConnectionGreeted:
    """The handshake is done on the connection with this sequence number."""

    connection_sequence: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection could not be opened, or has ended. `jitter` is from 0 to 1."""

    connection_sequence: int
    jitter: float


@dataclass(frozen=True, slots=True)
class Broken:
    """The TCP connection under it is lost, or an attempt to restore it has failed; the server keeps
    the logical connection for `restore_seconds` from the break on. `jitter` is from 0 to 1."""

    connection_sequence: int
    restore_seconds: float
    jitter: float


@dataclass(frozen=True, slots=True)
class Restored:
    """The connection was restored and resumes where it broke."""

    connection_sequence: int


@dataclass(frozen=True, slots=True)
class RoleRenewed:
    """Replace the connections of this role: they were opened for an identity that is no longer
    valid."""

    role: Role


@dataclass(frozen=True, slots=True)
class ClientStopped:
    """The client closes."""


Event: TypeAlias = (
    ViewChanged | ConnectionGreeted | Disconnected | Broken | Restored | RoleRenewed | ClientStopped
)


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """Open a connection. The sequence number names it and grows over all connections of a client,
    so a server always takes the newer connection, even after an absence (hazard H5)."""

    address: Address
    role: Role
    connection_sequence: int


@dataclass(frozen=True, slots=True)
class RestoreConnection:
    """Resume a broken connection over a new TCP connection to its server."""

    address: Address
    role: Role
    connection_sequence: int


@dataclass(frozen=True, slots=True)
class AbandonConnection:
    """Give the connection up, whether it is broken or not."""

    connection_sequence: int


@dataclass(frozen=True, slots=True)
class AttachPartition:
    """From now on the partition is reached over this connection."""

    partition_id: PartitionId
    role: Role
    connection_sequence: int


@dataclass(frozen=True, slots=True)
class DetachPartition:
    """The partition is no longer reached over this connection."""

    partition_id: PartitionId
    role: Role
    connection_sequence: int


@dataclass(frozen=True, slots=True)
class RaiseGeneration:
    """The cluster has raised the partition's generation to this one."""

    partition_id: PartitionId
    generation: Generation


Effect: TypeAlias = (
    OpenConnection
    | RestoreConnection
    | AbandonConnection
    | AttachPartition
    | DetachPartition
    | RaiseGeneration
)


@dataclass(slots=True)
class _Place:
    """One connection that is wanted; `connection_sequence` is None while the place waits for
    `due_at`.

    `broken_until` is not None while the connection is broken; it is restored from `due_at` on,
    unless it `is_restoring` already.
    """

    address: Address
    role: Role
    connection_sequence: int | None = None
    connected_at: float | None = None
    broken_until: float | None = None
    is_restoring: bool = False
    due_at: float = 0.0
    failures: int = 0


class ClusterConnection:
    """See the module. `roles`: each server gets one connection per role."""

    def __init__(
        self,
        roles: Sequence[Role] = tuple(Role),
        *,
        reconnect_seconds_max: float = RECONNECT_SECONDS_MAX,
    ) -> None:
        self.closed = False
        self._reconnect_seconds_max = reconnect_seconds_max
        self._roles = tuple(roles)
        self._next_sequence = 0
        self._places: dict[tuple[Address, Role], _Place] = {}
        self._by_sequence: dict[int, _Place] = {}
        self._partitions: dict[PartitionId, tuple[Address, Generation]] = {}
        self._effects: list[Effect] = []

    @property
    def deadline(self) -> float | None:
        deadlines = [self._deadline_of(place) for place in self._places.values()]
        return min((each for each in deadlines if each is not None), default=None)

    def _deadline_of(self, place: _Place) -> float | None:
        due_at = None if place.is_restoring or self._must_wait(place) else place.due_at
        if place.connection_sequence is None or place.broken_until is None:
            return due_at if place.connection_sequence is None else None
        return place.broken_until if due_at is None else min(due_at, place.broken_until)

    def step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        self._effects = []
        for event in events:
            match event:
                case ViewChanged():
                    self._change_view(event.partitions, now)
                case ConnectionGreeted():
                    self._connect(event.connection_sequence, now)
                case Disconnected():
                    self._disconnect(event, now)
                case Broken():
                    self._break(event, now)
                case Restored():
                    self._restored(event.connection_sequence, now)
                case RoleRenewed():
                    self._renew(event.role, now)
                case ClientStopped():
                    self._change_view({}, now)
                    self.closed = True
                case _:
                    assert_never(event)
        for place in self._places.values():
            self._pursue(place, now)
        return self._effects

    def address_of(self, partition_id: PartitionId) -> Address | None:
        """Return the address of the partition's server; None if no server has the partition."""
        return self._partitions.get(partition_id, (None,))[0]

    def check_invariants(self) -> None:
        addresses = {address for address, _ in self._partitions.values()}
        assert {address for address, _ in self._places} == addresses
        for sequence, place in self._by_sequence.items():
            assert place.connection_sequence == sequence
        for place in self._places.values():
            assert place.connected_at is None or place.connection_sequence is not None
            assert place.broken_until is None or place.connected_at is not None
            assert place.broken_until is not None or not place.is_restoring

    def _change_view(
        self, partitions: Mapping[PartitionId, tuple[Address, Generation]], now: float
    ) -> None:
        before, self._partitions = self._partitions, dict(partitions)
        moved = [
            partition_id
            for partition_id in {**before, **partitions}
            if before.get(partition_id, (None,))[0] != partitions.get(partition_id, (None,))[0]
        ]
        for partition_id, (_, generation) in partitions.items():
            if before.get(partition_id, (None, None))[1] != generation:
                self._effects.append(RaiseGeneration(partition_id, generation))
        for partition_id in moved:
            if partition_id in before:
                self._tell(partition_id, before[partition_id][0], DetachPartition)
        addresses = dict.fromkeys(address for address, _ in partitions.values())
        for key in [key for key in self._places if key[0] not in addresses]:
            sequence = self._places.pop(key).connection_sequence
            if sequence is not None:
                del self._by_sequence[sequence]
                self._effects.append(AbandonConnection(sequence))
        assigned_anew = {
            address
            for partition_id, (address, generation) in partitions.items()
            if before.get(partition_id) != (address, generation)
        }
        for address in addresses:
            for role in self._roles:
                place = self._places.setdefault((address, role), _Place(address, role, due_at=now))
                if address in assigned_anew and place.connection_sequence is None:
                    # The server has been given partitions, so it is up, or up again.
                    place.failures, place.due_at = 0, now
        for partition_id in moved:
            if partition_id in partitions:
                self._tell(partition_id, partitions[partition_id][0], AttachPartition)

    def _tell(
        self,
        partition_id: PartitionId,
        address: Address,
        effect: type[AttachPartition] | type[DetachPartition],
    ) -> None:
        for role in self._roles:
            place = self._places.get((address, role))
            if (
                place is not None
                and place.connected_at is not None
                and place.connection_sequence is not None
            ):
                self._effects.append(effect(partition_id, role, place.connection_sequence))

    def _others(self, place: _Place) -> list[_Place]:
        """Return the connections of the other roles to the same server."""
        found = (self._places.get((place.address, role)) for role in self._roles)
        return [other for other in found if other is not None and other is not place]

    def _must_wait(self, place: _Place) -> bool:
        """Return whether another attempt to reach the same server, which was away, is under way."""
        return place.failures > (place.broken_until is not None) and any(
            other.is_restoring
            or (other.connection_sequence is not None and other.connected_at is None)
            for other in self._others(place)
        )

    def _pursue(self, place: _Place, now: float) -> None:
        """Open, restore or give up the connection of `place` if that is due."""
        sequence = place.connection_sequence
        if sequence is not None and place.broken_until is not None:
            if place.broken_until <= now:
                # LC-50: by now the server has forgotten the connection. A new one opens at once.
                self._effects.append(AbandonConnection(sequence))
                self._part(place, sequence)
                place.due_at = max(place.due_at, now)
            elif place.due_at <= now and not place.is_restoring and not self._must_wait(place):
                place.is_restoring = True
                self._effects.append(RestoreConnection(place.address, place.role, sequence))
        if place.connection_sequence is None and place.due_at <= now and not self._must_wait(place):
            self._open(place)

    def _open(self, place: _Place) -> None:
        sequence = self._next_sequence
        self._next_sequence += 1
        place.connection_sequence = sequence
        self._by_sequence[sequence] = place
        self._effects.append(OpenConnection(place.address, place.role, sequence))

    def _connect(self, sequence: int, now: float) -> None:
        place = self._by_sequence.get(sequence)
        if place is None:  # no longer wanted
            return
        place.connected_at = now
        for other in self._others(place):
            other.due_at = min(other.due_at, now)  # the server is up
        for partition_id, (address, _) in self._partitions.items():
            if address == place.address:
                self._effects.append(AttachPartition(partition_id, place.role, sequence))

    def _disconnect(self, event: Disconnected, now: float) -> None:
        place = self._by_sequence.get(event.connection_sequence)
        if place is None:
            return
        was_connected = place.connected_at is not None
        place.due_at = now + self._delay(place, event.jitter, now)
        self._part(place, event.connection_sequence)
        if not was_connected:
            for other in self._others(place):
                other.due_at = max(other.due_at, place.due_at)  # it would fail as well

    def _break(self, event: Broken, now: float) -> None:
        place = self._by_sequence.get(event.connection_sequence)
        if place is None:
            return
        place.due_at = now + self._delay(place, event.jitter, now)
        place.is_restoring = False
        if place.broken_until is None:
            place.broken_until = now + event.restore_seconds
        else:
            for other in self._others(place):
                other.due_at = max(other.due_at, place.due_at)  # it would fail as well

    def _restored(self, sequence: int, now: float) -> None:
        place = self._by_sequence.get(sequence)
        if place is not None:
            place.connected_at = now
            place.broken_until = None
            place.is_restoring = False
            for other in self._others(place):
                other.due_at = min(other.due_at, now)  # the server is up

    def _renew(self, role: Role, now: float) -> None:
        for place in self._places.values():
            if place.role is role and (sequence := place.connection_sequence) is not None:
                self._effects.append(AbandonConnection(sequence))
                self._part(place, sequence)
                place.due_at = now

    def _part(self, place: _Place, sequence: int) -> None:
        """Forget the connection of `place` and detach its partitions."""
        del self._by_sequence[sequence]
        if place.connected_at is not None:
            for partition_id, (address, _) in self._partitions.items():
                if address == place.address:
                    self._effects.append(DetachPartition(partition_id, place.role, sequence))
        place.connected_at = place.connection_sequence = place.broken_until = None
        place.is_restoring = False

    def _delay(self, place: _Place, jitter: float, now: float) -> float:
        """Return the delay before the next attempt, and count that attempt."""
        longest = self._reconnect_seconds_max
        if place.connected_at is not None:
            longest = min(longest, RECONNECT_BROKEN_SECONDS_MAX)
        delay = min(longest, RECONNECT_SECONDS_MIN * 2.0 ** min(place.failures, 20))
        if (
            place.connected_at is not None
            and place.broken_until is None
            and now - place.connected_at >= delay
        ):
            # A connection that has lasted longer than its delay is replaced at once (CI-07).
            place.failures = 0
            delay = 0.0
        place.failures += 1
        return delay * (0.5 + 0.5 * jitter)
