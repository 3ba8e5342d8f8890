"""The log of a running cluster as the archiver and its judges see it, for threads.

Owns where records are read: as one storage node holds them, or through the servers. Records come as
they are on disk, checked by both checksums.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Protocol
from uuid import UUID

from waltz.cluster.histories import Histories
from waltz.errors import CorruptionError, UnavailableError
from waltz.operators.replicas_shell import Replica, ReplicaReader
from waltz.reader.blocking_reader import LogReader
from waltz.reader.transaction_columns import records_of
from waltz.record import RecordBatch
from waltz.types import PartitionId, TransactionId


class ArchivedLog(Protocol):
    """A log that is archived, or that an archive is compared with."""

    @property
    def cluster_key(self) -> UUID: ...

    @property
    def partition_count(self) -> int: ...

    @property
    def histories(self) -> Histories:
        """The histories of the log, not older than the marks that were told."""
        ...

    def mark(self, partition_id: PartitionId) -> TransactionId:
        """Return the high-water mark. Raises UnavailableError."""
        ...

    def replicas(self, partition_id: PartitionId) -> list[Replica]:
        """Return the copies that equal the log up to a mark that was told before. Raises
        CoordinatorLostError."""
        ...

    def read(
        self, source: Replica | None, partition_id: PartitionId, first: int, end: int
    ) -> Generator[RecordBatch, None, None]:
        """Yield the records `first` to `end` - 1 of one copy, or through the servers.

        Raises UnavailableError, RemoteStorageError; CorruptionError: a record does not check out;
        NotFoundError: there are fewer.
        """
        ...

    def nodes(self) -> Mapping[str, bytes]:
        """Return the content of all nodes of the coordinator below the cluster's root."""
        ...


class ClusterLog:
    """The log of a running cluster; `close` closes both readers."""

    def __init__(self, reader: LogReader, replicas: ReplicaReader) -> None:
        self._reader = reader
        self._replicas = replicas

    @property
    def cluster_key(self) -> UUID:
        return self._reader.cluster_key

    @property
    def partition_count(self) -> int:
        return self._reader.partition_count

    @property
    def histories(self) -> Histories:
        return self._reader.histories

    def mark(self, partition_id: PartitionId) -> TransactionId:
        return self._reader.high_water_mark(partition_id)

    def replicas(self, partition_id: PartitionId) -> list[Replica]:
        return [each for each in self._replicas.replicas_of([partition_id]) if each.is_current]

    def read(
        self, source: Replica | None, partition_id: PartitionId, first: int, end: int
    ) -> Generator[RecordBatch, None, None]:
        position = first
        with closing(self._batches(source, partition_id, first, end)) as found:
            for batch in found:
                if batch.first_transaction_id != position:
                    raise CorruptionError(
                        f"transaction {batch.first_transaction_id} came in the place of {position}"
                    )
                if (fault := batch.fault(with_data=True)) is not None:
                    raise CorruptionError(f"partition {partition_id}, {_name(source)}: {fault}")
                position = batch.next_transaction_id
                yield batch
        if position != end:
            raise UnavailableError(
                f"{_name(source)} holds partition {partition_id} to transaction {position - 1};"
                f" expected it to hold {end - 1}"
            )

    def _batches(
        self, source: Replica | None, partition_id: PartitionId, first: int, end: int
    ) -> Generator[RecordBatch, None, None]:
        if source is not None:
            yield from self._replicas.read_records(source, first, end)
            return
        with closing(self._reader.read(partition_id, first, end)) as columns:
            for each in columns:
                yield records_of(each)

    def nodes(self) -> Mapping[str, bytes]:
        return self._replicas.coordinator_nodes()

    def close(self) -> None:
        self._replicas.close()
        self._reader.close()


def _name(source: Replica | None) -> str:
    return "the log" if source is None else f"storage node {source.replica_id}"
