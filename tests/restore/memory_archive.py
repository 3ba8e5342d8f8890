"""An archive in memory: the twin of the real one, for tests of what a restore makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from tests.storage.directories import records
from waltz.cluster.consumer_marks import KeptMark, encode_kept
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState
from waltz.cluster.replica_assignments import (
    ConnectionMetadata,
    GroupDescriptor,
    ReplicaAssignments,
)
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.cluster.store_params import ClusterParams, StoreParams, encode_counter
from waltz.record import RecordBatch
from waltz.types import (
    Generation,
    PartitionId,
    ReplicaId,
    ServerId,
    SessionId,
    TransactionId,
)

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")
NEW_KEY = UUID("ffeeddcc-bbaa-9988-7766-554433221100")
RESTORE_ID = UUID("aaaaaaaa-0000-4000-8000-000000000001")
OLD_DIRECTORY = UUID("d1d1d1d1-0000-4000-8000-000000000001")
STORAGES = tuple(ReplicaId(f"s{number}.example:7201") for number in (1, 2, 3))


@dataclass
class Partition:
    """A partition's records, as one batch."""

    batch: RecordBatch

    @property
    def end(self) -> TransactionId:
        return self.batch.next_transaction_id


@dataclass
class Cut:
    marks: Mapping[PartitionId, TransactionId]
    made_at: int


@dataclass
class MemoryArchive:
    """Hands out the blocks of its partitions in pieces of at most `block_bytes`, or one record."""

    partitions: dict[PartitionId, Partition]
    coordinator_nodes: dict[str, bytes]
    cluster_key: UUID = KEY
    cuts: dict[str, Cut] = field(default_factory=dict)
    times: dict[PartitionId, list[tuple[TransactionId, int]]] = field(default_factory=dict)
    block_bytes: int = 4096

    def time_marks(self, partition: PartitionId) -> Sequence[tuple[TransactionId, int]]:
        return self.times.get(partition, [])

    def blocks(
        self, partition: PartitionId, first: TransactionId, end: TransactionId
    ) -> Iterator[bytes]:
        batch = self.partitions[partition].batch
        while first < end:
            piece = batch.head(first, end - first, self.block_bytes)
            yield piece.block
            first = piece.next_transaction_id

    def log(self, partition: int, last: int) -> bytes:
        """The records up to `last` as they lie on disk: the fold of the prefix."""
        if last < 0:
            return b""
        batch = self.partitions[PartitionId(partition)].batch
        return batch.block[: int(batch.offsets[last + 1])]


def make_log(
    counts: Sequence[int], seed: int = 7, bytes_max: int = 60
) -> dict[PartitionId, Partition]:
    """Return a log whose partitions have these numbers of records."""
    draw = Random(seed)
    return {
        PartitionId(number): Partition(
            records(number, 0, [draw.randrange(bytes_max) for _ in range(count)], draw=draw)
        )
        for number, count in enumerate(counts)
    }


def coordinator_nodes(partition_count: int, *, key: UUID = KEY) -> dict[str, bytes]:
    """Return the nodes of a cluster of three storage nodes, in the middle of its life."""
    every = tuple(map(PartitionId, range(partition_count)))
    nodes = {
        "": ClusterParams("payments", partition_count).encode(),
        "store": StoreParams(key, partition_count).encode(),
        "ids/client": encode_counter(41),
        "ids/server": encode_counter(7),
        "serverDescriptors": PartitionAssignment(
            9, partition_count, {ServerId(7): dict.fromkeys(every, Generation(5))}
        ).encode(),
        "store/group": GroupDescriptor({each: n for n, each in enumerate(STORAGES, 1)}).encode(),
        "store/assignment": ReplicaAssignments(dict.fromkeys(STORAGES, every)).encode(),
        "store/connection": ConnectionMetadata(dict.fromkeys(STORAGES, 7202)).encode(),
        "storageDirectories/s1.example:7201": str(OLD_DIRECTORY).encode(),
        "serverPreferences/w1.example:7301": b"preferences",
        "consumers/orders": encode_kept({PartitionId(0): KeptMark(TransactionId(3), 1000)}),
    }
    for partition_id in every:
        nodes[f"store/partition/{partition_id}"] = PartitionMetadata(
            Generation(4),
            SessionId(12),
            {each: ReplicaState(SessionId(12), None) for each in STORAGES},
        ).encode(partition_id)
    return nodes


def make_archive(counts: Sequence[int], seed: int = 7, **options: int) -> MemoryArchive:
    """Return an archive of a log with these numbers of records per partition."""
    log = make_log(counts, seed, **options)
    # As in a real archive, partitions of which nothing is archived are not there.
    return MemoryArchive(
        {each: partition for each, partition in log.items() if partition.end},
        coordinator_nodes(len(counts)),
    )
