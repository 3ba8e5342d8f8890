"""The restore of one partition of a living cluster: its plan, and what it changes in the metadata.

Owns the JSON of the plan's node, and which generation and session fence off what was there before.
Pure. The plan reserves a generation above every one that a server can have been given, and a
session above every one that can have been opened. With the generation in the metadata no server
opens the partition; with the session in a directory that directory refuses all of before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from waltz.cluster.log_history import LogHistory, ended_at
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.cluster.skipped_numbers import GENERATIONS_SKIPPED, raised
from waltz.errors import ConfigurationError, CorruptionError, RemoteProtocolError
from waltz.restore.directory_report import DirectoryReport, PartitionHeld, agreed
from waltz.restore.restore_plan import SESSIONS_SKIPPED
from waltz.types import Generation, PartitionId, ReplicaId, SessionId, TransactionId

PARTITION_RESTORE_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class PartitionRestore:
    """A restore of one partition, from its beginning until the node with it is removed.

    last             the last transaction that is restored.
    session_id       the session that each replica is restored in.
    generation       the generation that the partition continues in.
    replicas         all storage nodes that hold the partition: each one is restored.
    abandons_suffix  whether records beyond `last` may be set aside.
    """

    restore_id: UUID
    archive: str
    point: str
    partition_id: PartitionId
    last: TransactionId
    session_id: SessionId
    generation: Generation
    replicas: tuple[ReplicaId, ...]
    abandons_suffix: bool
    begun_at_milliseconds: int

    def difference(self, wanted: PartitionRestore) -> str | None:
        """Return what `wanted` asks for that this one, which was begun, does not do; None: the same
        restore. Leave to set records aside may be given later. A point in the same words is the
        one of the beginning, however much was archived since."""
        last = self.last if self.point == wanted.point else wanted.last
        for what, found, other in (
            ("archive", self.archive, wanted.archive),
            ("last transaction", self.last, last),
            ("storage nodes", self.replicas, wanted.replicas),
        ):
            if found != other:
                return f"its {what} is {found}, not {other}"
        return None

    def encode(self) -> bytes:
        return json.dumps(
            {
                "format": PARTITION_RESTORE_FORMAT,
                "restore": str(self.restore_id),
                "archive": self.archive,
                "point": self.point,
                "partition": self.partition_id,
                "last": self.last,
                "session": self.session_id,
                "generation": self.generation,
                "replicas": list(self.replicas),
                "abandons_suffix": self.abandons_suffix,
                "begun_at_milliseconds": self.begun_at_milliseconds,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> PartitionRestore:
        """Raises RemoteProtocolError."""
        try:
            found: Any = json.loads(data)
            if found["format"] != PARTITION_RESTORE_FORMAT:
                raise ValueError(found["format"])
            return cls(
                UUID(found["restore"]),
                str(found["archive"]),
                str(found["point"]),
                PartitionId(int(found["partition"])),
                TransactionId(int(found["last"])),
                SessionId(int(found["session"])),
                Generation(int(found["generation"])),
                tuple(ReplicaId(str(each)) for each in found["replicas"]),
                bool(found["abandons_suffix"]),
                int(found["begun_at_milliseconds"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise RemoteProtocolError(
                f"the coordinator's node of a partition's restore is {data!r:.200}; expected format"
                f" {PARTITION_RESTORE_FORMAT}"
            ) from None


def reserved_numbers(
    metadata: PartitionMetadata, assigned: Generation
) -> tuple[SessionId, Generation]:
    """Return the session and the generation of a restore that begins now. Raises
    ConfigurationError: there is no generation left."""
    generation = max(metadata.generation, assigned, 0)
    return (
        SessionId(metadata.session_id + SESSIONS_SKIPPED),
        Generation(raised(generation, GENERATIONS_SKIPPED, "generations of the partition")),
    )


def check_history(
    histories: tuple[LogHistory, ...],
    archived: tuple[LogHistory, ...],
    partition_id: PartitionId,
    last: TransactionId,
) -> None:
    """Raise ConfigurationError if the archive has other transactions up to `last` than the log had,
    because a restore has replaced them since."""
    later = ended_at(histories, archived, partition_id)
    if later is not None and last >= (first := later.firsts[partition_id]):
        raise ConfigurationError(
            f"restore {later.history_id} has replaced transactions of partition {partition_id} from"
            f" {first} on, and this archive was written before: name a point up to {first - 1}, or"
            " an archive that was begun after that restore"
        )


def is_over(metadata: PartitionMetadata, plan: PartitionRestore) -> bool:
    """Whether the metadata says that the partition continues, or has continued, from the restored
    directories: nothing else brings a session that high."""
    return metadata.session_id >= plan.session_id


def fenced(metadata: PartitionMetadata, plan: PartitionRestore) -> PartitionMetadata | None:
    """Return the metadata with which no server opens the partition any more; None: it is so
    already, or the restore is over. Raises ConfigurationError: a later generation was given."""
    if is_over(metadata, plan) or metadata.generation == plan.generation:
        return None
    _check_generation(metadata, plan)
    return replace(metadata, generation=plan.generation)


def restored(metadata: PartitionMetadata, plan: PartitionRestore) -> PartitionMetadata | None:
    """Return the metadata with which the partition continues from the restored directories; None:
    it is so already. Raises ConfigurationError: the partition was not fenced off."""
    if is_over(metadata, plan):
        return None
    _check_generation(metadata, plan)
    if metadata.generation != plan.generation:
        raise ConfigurationError(
            f"partition {plan.partition_id} is at generation {metadata.generation}, and the restore"
            f" that was begun expects {plan.generation}: run the same command again"
        )
    states = {each: ReplicaState(plan.session_id, None) for each in plan.replicas}
    return PartitionMetadata(plan.generation, plan.session_id, states)


def _check_generation(metadata: PartitionMetadata, plan: PartitionRestore) -> None:
    if metadata.generation > plan.generation:
        raise ConfigurationError(
            f"partition {plan.partition_id} is at generation {metadata.generation}, beyond that of"
            f" the restore that was begun, {plan.generation}: a server has opened the partition"
            " since, and the restore cannot end. Look at the partition with waltz status; if it is"
            " still lost, remove the coordinator's node of the restore, and begin anew"
        )


def reassigned(
    assignment: PartitionAssignment, plan: PartitionRestore
) -> PartitionAssignment | None:
    """Return the assignment in which the partition's server has the plan's generation, so that it
    opens the partition anew; None: it has it, or a later one."""
    for server_id, held in assignment.servers.items():
        generation = held.get(plan.partition_id)
        if generation is not None and generation < plan.generation:
            changed = {**held, plan.partition_id: plan.generation}
            return replace(assignment, servers={**assignment.servers, server_id: changed})
    return None


def check_partition_reports(
    plan: PartitionRestore, reports: Mapping[ReplicaId, DirectoryReport]
) -> PartitionHeld:
    """Return what every replica holds. Raises CorruptionError: two differ, or one does not hold
    what the plan says."""
    for replica_id in plan.replicas:
        report = reports[replica_id]
        held = {p: found.last for p, found in report.partitions.items()}
        if report.restore_id != plan.restore_id or held != {plan.partition_id: plan.last}:
            raise CorruptionError(
                f"the directory of {replica_id} was filled for another restore, or with other"
                " transactions than the plan has: fill that directory again"
            )
    return agreed(reports[each] for each in plan.replicas)[plan.partition_id]
