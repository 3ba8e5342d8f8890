"""The assignment of partitions to servers: the values, the policy, and a server's next step.

Owns the decision only. The server with the smallest ID writes it, tagged with the child version of
the node whose children are the running servers; from that tag every reader can tell whether the
assignment belongs to the present membership. Knows nothing of coordinators' calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from waltz.cluster.byte_layout import JAVA_TEXT, VERSION_1, VERSION_3, Parts, entries
from waltz.errors import ConfigurationError, RemoteProtocolError
from waltz.limits import PARTITIONS_MAX
from waltz.types import Address, Generation, PartitionId, ServerId
from waltz.wire.fields import INT, PARTITION_IDS, ListOf


@dataclass(frozen=True, slots=True)
class ServerDescriptor:
    """A running server: its address for clients, and the partitions that it prefers."""

    server_id: ServerId
    address: Address
    preferred_partitions: tuple[PartitionId, ...] = ()

    LAYOUT = Parts(
        ("version", VERSION_1),
        ("server ID", INT),
        ("host", JAVA_TEXT),
        ("port", INT),
        ("preferred partition IDs", PARTITION_IDS),
    )

    def encode(self) -> bytes:
        return self.LAYOUT.encode(self.server_id, *self.address, self.preferred_partitions)

    @classmethod
    def decode(cls, data: bytes) -> ServerDescriptor:
        """Raises RemoteProtocolError."""
        server_id, host, port, preferred = cls.LAYOUT.decode(data)
        return cls(ServerId(server_id), Address(host, port), tuple(map(PartitionId, preferred)))


@dataclass(frozen=True, slots=True)
class PartitionAssignment:
    """Each server's partitions with their generations; no partition has two servers.

    `membership_version` is the child version that it was computed for, -1 before the first.
    """

    membership_version: int
    partition_count: int
    servers: Mapping[ServerId, Mapping[PartitionId, Generation]]

    LAYOUT = Parts(
        ("version", VERSION_3),
        ("membership version", INT),
        ("partition count", INT),
        (
            "servers",
            entries(
                ("server ID", INT),
                (
                    "partitions",
                    ListOf(Parts(("partition ID", INT), ("generation", INT)), PARTITIONS_MAX),
                ),
            ),
        ),
    )

    def encode(self) -> bytes:
        servers = [(server_id, held.items()) for server_id, held in self.servers.items()]
        return self.LAYOUT.encode(self.membership_version, self.partition_count, servers)

    @classmethod
    def decode(cls, data: bytes) -> PartitionAssignment:
        """Return the assignment in `data`. Raises RemoteProtocolError, also if a server or a
        partition is named twice."""
        membership_version, partition_count, found = cls.LAYOUT.decode(data)
        servers: dict[ServerId, dict[PartitionId, Generation]] = {}
        count = 0
        seen: dict[PartitionId, None] = {}
        for server_id, partitions in found:
            servers[ServerId(server_id)] = {
                PartitionId(partition_id): Generation(generation)
                for partition_id, generation in partitions
            }
            seen.update(dict.fromkeys(servers[ServerId(server_id)]))
            count += len(partitions)
        if count != len(seen) or len(servers) != len(found):
            raise RemoteProtocolError("a server or a partition is named twice in an assignment")
        return cls(membership_version, partition_count, servers)


NO_ASSIGNMENT: Final = PartitionAssignment(-1, 0, {})


def assign_partitions(
    previous: PartitionAssignment,
    descriptors: Mapping[ServerId, ServerDescriptor],
    *,
    partition_count: int,
    membership_version: int,
) -> PartitionAssignment:
    """Return the next assignment, in which every partition has a server.

    `descriptors` has at least one server; the smallest ID is served first in every phase. A server
    gets its preferred partitions, then keeps partitions that it had, then takes from the rest; the
    last two only up to an even share. A partition's generation grows by one when it moves. Only
    partitions above the even share use up the remainder: the original also charges a server that
    just reaches the share, and then finds no place for the last partition.

    Raises ConfigurationError: fewer partitions than before. RemoteProtocolError: `previous` lacks a
    partition, whose generation is therefore lost.
    """
    pool = _pool(previous, partition_count)
    share, remainder = divmod(partition_count, len(descriptors))
    server_ids = sorted(descriptors)
    servers: dict[ServerId, dict[PartitionId, Generation]] = {
        server_id: {} for server_id in server_ids
    }

    def has_room(held: Mapping[PartitionId, Generation]) -> bool:
        return len(held) < share or (len(held) == share and remainder > 0)

    def give(server_id: ServerId, partition_id: PartitionId) -> None:
        nonlocal remainder
        generation, owner = pool.pop(partition_id)
        held = servers[server_id]
        held[partition_id] = generation if owner == server_id else Generation(generation + 1)
        remainder -= len(held) > share

    for server_id in server_ids:
        for partition_id in descriptors[server_id].preferred_partitions:
            if partition_id in pool:
                give(server_id, partition_id)
    for server_id in server_ids:
        for partition_id in sorted(previous.servers.get(server_id, ())):
            if partition_id in pool and has_room(servers[server_id]):
                give(server_id, partition_id)
    remaining = sorted(pool, reverse=True)
    for server_id in server_ids:
        while remaining and has_room(servers[server_id]):
            give(server_id, remaining.pop())
    assert not pool, "the shares add up to all partitions"
    return PartitionAssignment(
        membership_version,
        partition_count,
        {server_id: dict(sorted(held.items())) for server_id, held in servers.items()},
    )


def _pool(
    previous: PartitionAssignment, partition_count: int
) -> dict[PartitionId, tuple[Generation, ServerId | None]]:
    """Return every partition's generation and last server."""
    if partition_count < previous.partition_count:
        raise ConfigurationError(
            f"the number of partitions cannot shrink: {previous.partition_count} are assigned, the"
            f" cluster has {partition_count}"
        )
    pool: dict[PartitionId, tuple[Generation, ServerId | None]] = {
        PartitionId(new_id): (Generation(0), None)
        for new_id in range(previous.partition_count, partition_count)
    }
    for server_id, held in previous.servers.items():
        for partition_id, generation in held.items():
            if 0 <= partition_id < previous.partition_count:
                pool[partition_id] = generation, server_id
    missing = [number for number in range(partition_count) if number not in pool]
    if missing:
        raise RemoteProtocolError(
            f"the assignment of {previous.partition_count} partitions lacks partition {missing[0]}"
            f" ({len(missing)} in all)"
        )
    return pool


@dataclass(frozen=True, slots=True)
class MembershipRead:
    """The membership as a server has read it, in this order: the parent node, its children.

    `version` and `child_version` are the parent's; `descriptors` may be newer than both.
    """

    version: int
    child_version: int
    assignment: PartitionAssignment
    descriptors: Mapping[ServerId, ServerDescriptor]

    @property
    def is_consistent(self) -> bool:
        """Whether the assignment belongs to the present membership and may be followed."""
        return self.assignment.membership_version == self.child_version

    @property
    def has_orphans(self) -> bool:
        """Whether partitions are assigned to a server that does not exist.

        With a consistent assignment this is so for a moment, when the server has just gone, or in a
        tree that was copied: its child version starts anew and may equal the assignment's by
        chance.
        """
        return any(
            held and server_id not in self.descriptors
            for server_id, held in self.assignment.servers.items()
        )


def proposed_assignment(
    membership: MembershipRead, own_server_id: ServerId, partition_count: int
) -> PartitionAssignment | None:
    """Return the assignment that this server has to write, on the condition that the parent is
    still at `membership.version`.

    None if the assignment is consistent, without orphans and for all partitions, or if another
    server has the smallest ID. Raises as `assign_partitions`.
    """
    is_good = (
        membership.is_consistent
        and not membership.has_orphans
        and membership.assignment.partition_count >= partition_count
    )
    if is_good or min(membership.descriptors, default=None) != own_server_id:
        return None
    return assign_partitions(
        membership.assignment,
        membership.descriptors,
        partition_count=partition_count,
        membership_version=membership.child_version,
    )


def routes(membership: MembershipRead) -> dict[PartitionId, tuple[Address, Generation]] | None:
    """Return the address and the generation of each partition, for clients.

    None if they are not known now, so that the last routes still hold: the assignment is not
    consistent, or names a server without a descriptor. Without any server there are no routes.
    """
    if not membership.descriptors:
        return {}
    if not membership.is_consistent or any(
        server_id not in membership.descriptors for server_id in membership.assignment.servers
    ):
        return None
    return dict(
        sorted(
            (partition_id, (membership.descriptors[server_id].address, generation))
            for server_id, held in membership.assignment.servers.items()
            for partition_id, generation in held.items()
        )
    )
