"""A log in memory, with copies that may differ: what the archiver reads, without a cluster."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from uuid import UUID
from zlib import crc32

from tests.archive.archives import KEY, batch
from waltz.cluster.histories import Histories
from waltz.cluster.log_history import LogHistory, encode_histories
from waltz.errors import NotFoundError, RemoteStorageError, UnavailableError
from waltz.operators.replicas_shell import Replica
from waltz.record import NewRecord, RecordBatch, pack_records
from waltz.types import NOTHING, PartitionId, ReplicaId, TransactionId


class ListedLog:
    """Records as `batch` makes them, up to `marks`; three copies of each partition.

    `differing` has, per copy, the transactions whose record is another one there; a copy in
    `silent` does not answer, one in `damaged` refuses from that transaction on.
    """

    def __init__(
        self, marks: Mapping[int, int], *, key: UUID = KEY, copies: int = 3, size: int = 20
    ) -> None:
        self.marks = {PartitionId(each): TransactionId(mark) for each, mark in marks.items()}
        self.cluster_key = key
        self.copies = [f"node-{number}:1" for number in range(copies)]
        self.differing: dict[str, set[int]] = {}
        self.silent: set[str] = set()
        self.damaged: dict[str, int] = {}
        self.unknown: set[int] = set()
        self.restores: tuple[LogHistory, ...] = ()
        self.tree: dict[str, bytes] = {"": b"root", "/notes/a": b"1"}
        self.reads: list[tuple[str, int, int, int]] = []
        self.size = size

    def restore(self, *restores: LogHistory) -> None:
        """Let the log be of these histories from now on."""
        self.restores = restores
        self.tree["/history"] = encode_histories(restores)

    @property
    def partition_count(self) -> int:
        return len(self.marks)

    def mark(self, partition_id: PartitionId) -> TransactionId:
        if partition_id in self.unknown:
            raise UnavailableError(f"no server has partition {partition_id}")
        return self.marks[partition_id]

    def replicas(self, partition_id: PartitionId) -> list[Replica]:
        return [Replica(partition_id, ReplicaId(each), 2, True, NOTHING) for each in self.copies]

    def read(
        self, source: Replica | None, partition_id: PartitionId, first: int, end: int
    ) -> Generator[RecordBatch, None, None]:
        name = "log" if source is None else str(source.replica_id)
        self.reads.append((name, partition_id, first, end))
        if name in self.silent:
            raise UnavailableError(f"{name} does not answer")
        if end > self.marks[partition_id] + 1:
            raise NotFoundError(f"the log ends before {end}")
        for start in range(first, end, 7):
            stop = min(start + 7, end)
            if stop > self.damaged.get(name, end):
                raise RemoteStorageError(f"{name} refuses: a record is damaged")
            yield self._batch(name, partition_id, start, stop)

    def _batch(self, name: str, partition_id: int, first: int, end: int) -> RecordBatch:
        good = batch(first, end - first, partition=partition_id, size=self.size)
        other = self.differing.get(name, set())
        if other.isdisjoint(range(first, end)):
            return good
        records = [
            NewRecord(
                good.request_ids()[index].tobytes(),
                int(good.headers()[index]),
                b"other" if first + index in other else data,
                crc32(b"other" if first + index in other else data),
            )
            for index, data in enumerate(good.all_data())
        ]
        return pack_records(TransactionId(first), records)

    @property
    def histories(self) -> Histories:
        return Histories(self.cluster_key, self.restores)

    def nodes(self) -> Mapping[str, bytes]:
        return dict(self.tree)

    def close(self) -> None: ...
