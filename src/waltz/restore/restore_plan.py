"""The plan of a restore: which transactions go into which directories, under which numbers.

Owns the numbers that a restored cluster begins with, and the JSON of the coordinator's node that
keeps the plan until, and after, the cluster is there. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from waltz.cluster.partition_metadata import NEW_PARTITION
from waltz.errors import ConfigurationError, RemoteProtocolError
from waltz.restore.archived_cluster import ArchivedCluster
from waltz.restore.points import Place
from waltz.types import NO_SESSION, PartitionId, ReplicaId, SessionId, TransactionId

SESSIONS_SKIPPED: Final = 1_000_000
"""Session numbers passed over: a server of the former cluster, which may have opened sessions, or
failed to, since the coordinator was copied into the archive, must come with lower ones. A partition
without a majority uses up about one per second, so this is more than eleven days of them."""

PLAN_FORMAT: Final = 1
PLAN_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a plan: the most that a coordinator keeps in one node, enough for 40,000 partitions."""


@dataclass(frozen=True, slots=True)
class StorageWish:
    """A storage node of the restored cluster, and the partitions that it holds."""

    replica_id: ReplicaId
    admin_port: int
    group: int
    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A restore, from its beginning on.

    archive      the URL of the archive.
    point        the point as the operator named it.
    lasts        the last transaction of each partition.
    sessions     the store session that each partition is restored in.
    """

    restore_id: UUID
    archive: str
    point: str
    same_key: bool
    archived_key: UUID
    cluster_key: UUID
    name: str
    lasts: Mapping[PartitionId, TransactionId]
    sessions: Mapping[PartitionId, SessionId]
    storages: tuple[StorageWish, ...]
    begun_at_milliseconds: int

    @property
    def partition_count(self) -> int:
        return len(self.lasts)

    def storage(self, replica_id: ReplicaId) -> StorageWish:
        """Return the storage node. Raises ConfigurationError: the plan has no such node."""
        for each in self.storages:
            if each.replica_id == replica_id:
                return each
        known = ", ".join(each.replica_id for each in self.storages)
        raise ConfigurationError(f"the restore has no storage node {replica_id}; it has {known}")

    def difference(self, wanted: RestorePlan) -> str | None:
        """Return what `wanted` asks for that this plan, which was begun, does not do; None: the
        same restore. A point in the same words is the one of the beginning, however much was
        archived since."""
        is_same_point = self.point == wanted.point
        for what, found, other in (
            ("archive", self.archive, wanted.archive),
            ("archived cluster", self.archived_key, wanted.archived_key),
            ("key", _kind(self), _kind(wanted)),
            ("name", self.name, wanted.name),
            ("point", dict(self.lasts), dict(self.lasts if is_same_point else wanted.lasts)),
            ("storage nodes", self.storages, wanted.storages),
        ):
            if found != other:
                return f"its {what} is {_short(found)}, not {_short(other)}"
        return None

    def encode(self) -> bytes:
        """Return the data of the node. Raises ConfigurationError: the plan is too large."""
        every = tuple(self.lasts)
        data = json.dumps(
            {
                "format": PLAN_FORMAT,
                "restore": str(self.restore_id),
                "archive": self.archive,
                "point": self.point,
                "same_key": self.same_key,
                "archived_key": str(self.archived_key),
                "cluster_key": str(self.cluster_key),
                "name": self.name,
                "lasts": list(self.lasts.values()),
                "sessions": list(self.sessions.values()),
                "storages": [
                    [
                        each.replica_id,
                        each.admin_port,
                        each.group,
                        None if each.partitions == every else list(each.partitions),
                    ]
                    for each in self.storages
                ],
                "begun_at_milliseconds": self.begun_at_milliseconds,
            },
            separators=(",", ":"),
        ).encode()
        if len(data) > PLAN_BYTES_MAX:
            raise ConfigurationError(
                f"the plan of the restore takes {len(data)} bytes in the coordinator; expected at"
                f" most {PLAN_BYTES_MAX}"
            )
        return data

    @classmethod
    def decode(cls, data: bytes) -> RestorePlan:
        """Raises RemoteProtocolError."""
        try:
            found: Any = json.loads(data)
            if found["format"] != PLAN_FORMAT:
                raise ValueError(found["format"])
            lasts, sessions = found["lasts"], found["sessions"]
            every = tuple(map(PartitionId, range(len(lasts))))
            return cls(
                UUID(found["restore"]),
                str(found["archive"]),
                str(found["point"]),
                bool(found["same_key"]),
                UUID(found["archived_key"]),
                UUID(found["cluster_key"]),
                str(found["name"]),
                {p: TransactionId(int(each)) for p, each in zip(every, lasts, strict=True)},
                {p: SessionId(int(each)) for p, each in zip(every, sessions, strict=True)},
                tuple(
                    StorageWish(
                        ReplicaId(str(replica_id)),
                        int(admin_port),
                        int(group),
                        every if held is None else tuple(PartitionId(int(p)) for p in held),
                    )
                    for replica_id, admin_port, group, held in found["storages"]
                ),
                int(found["begun_at_milliseconds"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise RemoteProtocolError(
                f"the coordinator's node of a restore is {data!r:.200}; expected format"
                f" {PLAN_FORMAT}"
            ) from None


def make_plan(
    archived: ArchivedCluster,
    places: Mapping[PartitionId, Place],
    *,
    archive: str,
    point: str,
    same_key: bool,
    storages: tuple[StorageWish, ...] | None,
    name: str | None,
    restore_id: UUID,
    new_key: UUID,
    wall_milliseconds: int,
) -> RestorePlan:
    """Return the plan. `storages` None: those of the archived cluster, as they were placed; `name`
    None: its name. `new_key` is the key of a clone.

    Raises ConfigurationError: a partition is on no storage node.
    """
    lasts = {
        partition_id: places[partition_id].last
        for partition_id in map(PartitionId, range(archived.partition_count))
    }
    plan = RestorePlan(
        restore_id,
        archive,
        point,
        same_key,
        archived.cluster_key,
        archived.cluster_key if same_key else new_key,
        name or archived.name,
        lasts,
        {
            partition_id: SessionId(
                max(NO_SESSION, archived.metadata.get(partition_id, NEW_PARTITION).session_id)
                + SESSIONS_SKIPPED
            )
            for partition_id in lasts
        },
        archived_storages(archived) if storages is None else storages,
        wall_milliseconds,
    )
    held = {partition_id for each in plan.storages for partition_id in each.partitions}
    if missing := sorted(lasts.keys() - held):
        raise ConfigurationError(
            f"no storage node holds partition {missing[0]} ({len(missing)} partitions in all):"
            " name the storage nodes of the restored cluster, with -s"
        )
    return plan


def archived_storages(archived: ArchivedCluster) -> tuple[StorageWish, ...]:
    """Return the storage nodes of the archived cluster, as they were placed. Raises
    ConfigurationError: the archive does not say how one is reached."""
    found = []
    for replica_id, partitions in sorted(archived.placement.partitions.items()):
        if replica_id not in archived.admin_ports or replica_id not in archived.groups:
            raise ConfigurationError(
                f"the archive has no admin port or no group of storage node {replica_id}: name the"
                " storage nodes of the restored cluster, with -s"
            )
        found.append(
            StorageWish(
                replica_id,
                archived.admin_ports[replica_id],
                archived.groups[replica_id],
                tuple(partitions),
            )
        )
    return tuple(found)


def _kind(plan: RestorePlan) -> str:
    return "that of the archived cluster" if plan.same_key else "a new one"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
