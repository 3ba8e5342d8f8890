"""The report of a storage directory that was filled: what it holds, by its own bytes.

Owns the JSON of the coordinator's node in which a directory reports. The restore of a cluster ends
only when all directories have reported the same of each partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from waltz.errors import CorruptionError, RemoteProtocolError
from waltz.types import Generation, PartitionId, ReplicaId, TransactionId

REPORT_FORMAT: Final = 1


class PartitionHeld(NamedTuple):
    """A partition in a directory.

    last        the last transaction.
    sha256      the digest of all records up to it, back to back, as `waltz disk checksum` has it.
    byte_count  the bytes of these records.
    client_id   the highest client ID of a record, -1 if there is none.
    generation  the highest generation of a record, -1 if there is none.
    """

    last: TransactionId
    sha256: str
    byte_count: int
    client_id: int
    generation: Generation


@dataclass(frozen=True, slots=True)
class DirectoryReport:
    """The content of a directory that was filled for a restore."""

    restore_id: UUID
    replica_id: ReplicaId
    directory_id: UUID
    partitions: Mapping[PartitionId, PartitionHeld]

    def encode(self) -> bytes:
        return json.dumps(
            {
                "format": REPORT_FORMAT,
                "restore": str(self.restore_id),
                "replica": self.replica_id,
                "directory": str(self.directory_id),
                "partitions": {str(p): list(held) for p, held in sorted(self.partitions.items())},
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> DirectoryReport:
        """Raises RemoteProtocolError."""
        try:
            found: Any = json.loads(data)
            if found["format"] != REPORT_FORMAT:
                raise ValueError(found["format"])
            partitions = {}
            for partition, (last, digest, byte_count, client_id, generation) in found[
                "partitions"
            ].items():
                partitions[PartitionId(int(partition))] = PartitionHeld(
                    TransactionId(int(last)),
                    str(digest),
                    int(byte_count),
                    int(client_id),
                    Generation(int(generation)),
                )
            return cls(
                UUID(found["restore"]),
                ReplicaId(str(found["replica"])),
                UUID(found["directory"]),
                partitions,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise RemoteProtocolError(
                f"the report of a storage directory is {data!r:.200}; expected format"
                f" {REPORT_FORMAT}"
            ) from None


def agreed(reports: Iterable[DirectoryReport]) -> dict[PartitionId, PartitionHeld]:
    """Return what all directories hold of each partition. Raises CorruptionError: two differ."""
    found: dict[PartitionId, tuple[ReplicaId, PartitionHeld]] = {}
    for report in reports:
        for partition_id, held in report.partitions.items():
            first, before = found.setdefault(partition_id, (report.replica_id, held))
            if before != held:
                raise CorruptionError(
                    f"partition {partition_id} differs between the restored directories: that of"
                    f" {first} holds transactions up to {before.last} with digest"
                    f" {before.sha256}, that of {report.replica_id} up to {held.last} with"
                    f" {held.sha256}; restore the directory that is wrong again, with --start-over"
                )
    return {partition_id: held for partition_id, (_, held) in sorted(found.items())}
