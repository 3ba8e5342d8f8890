"""Reads what each storage node holds of the log, to compare the copies with each other.

All other readers read through servers, which hand out what is committed. Here records are read as
one node holds them, over its admin port, committed or not; the reader is also told up to where they
must equal the log. Nothing is changed anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID
from zlib import crc32

from waltz.arrays import np
from waltz.cluster.cluster_shell import read_partition_metadata, read_store_params
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.cluster.placement_shell import read_placement
from waltz.connections.loop_thread import Closable, LoopThread, NewHost
from waltz.errors import (
    ClientClosedError,
    CorruptionError,
    NoNodeError,
    OperationTimeoutError,
    RemoteStorageError,
    UnavailableError,
)
from waltz.host import Coordinator, Host
from waltz.limits import CLIENT_CLOSE_SECONDS, RECORD_LIST_RECORDS_MAX
from waltz.operators.conversation_shell import Conversation, talk_to_admin_port
from waltz.reader.transaction_columns import TransactionColumns, columns_of_records
from waltz.record import RecordBatch
from waltz.types import NOTHING, Address, PartitionId, ReplicaId, TransactionId
from waltz.wire.admin_protocol import (
    AdminLastSessionInfoRequest,
    AdminLastSessionInfoResponse,
    AdminMessage,
    AdminRecordListRequest,
    AdminRecordListResponse,
)

A = TypeVar("A", AdminRecordListResponse, AdminLastSessionInfoResponse)


@dataclass(frozen=True, slots=True)
class Replica:
    """A partition's copy on a storage node, as the coordinator knows it.

    replica_id    the node, named by the address that servers use.
    admin_port    the port that tools use; None if the cluster does not know it.
    is_current    whether the copy takes part in the partition's store session.
    closing_mark  the high-water mark at the end of the last session that the copy took part in;
                  None if that session has not ended, or its mark is not known.
    """

    partition_id: PartitionId
    replica_id: ReplicaId
    admin_port: int | None
    is_current: bool
    closing_mark: TransactionId | None


@dataclass(frozen=True, slots=True)
class ReplicaMarks:
    """A storage node's report on its copy, -1 where it has nothing.

    low_water_mark  the partition's high-water mark when the node's last session began.
    promised        the last transaction that it held then, and must hold ever since.
    last            the last transaction that it holds now, at most the one asked about.
    """

    low_water_mark: TransactionId
    promised: TransactionId
    last: TransactionId


class ReplicaReader(Closable):
    """Reads what storage nodes hold, for threads; a context manager.

    Keeps a connection per node, and opens it anew after it has failed. Threads that ask one node at
    the same time take turns.
    """

    def __init__(self, new_host: NewHost, *, root: str | None = None) -> None:
        """Read the cluster's parameters. Raises NoNodeError: there is no cluster.
        CoordinatorLostError."""
        self._root = root or DEFAULT_ROOT
        self._thread = LoopThread("waltz-replicas")
        try:
            self._host, self._release_host = self._thread.call(_made(new_host))
            self._params = self._thread.call(read_store_params(self._host.coordinator, self._root))
        except BaseException:
            self._thread.stop()
            raise
        self._talks: dict[Address, tuple[Conversation, AsyncExitStack]] = {}
        self._turns: dict[Address, asyncio.Lock] = {}

    @property
    def partition_count(self) -> int:
        return self._params.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self._params.cluster_key

    def replicas(self) -> list[Replica]:
        """Return the copies that the cluster has, partitions in order. Raises CoordinatorLostError.

        A current replica equals the log up to any high-water mark that a server reported before
        this call: sessions only add to what is committed.
        """
        return self.replicas_of(PartitionId(number) for number in range(self.partition_count))

    def replicas_of(self, partition_ids: Iterable[PartitionId]) -> list[Replica]:
        """Return the copies of these partitions, as `replicas`."""
        coordinator = self._host.coordinator
        return self._thread.call(read_replicas(coordinator, list(partition_ids), self._root))

    def coordinator_nodes(self) -> dict[str, bytes]:
        """Return the content of all nodes of the coordinator below the cluster's root, by their
        paths from there. Raises CoordinatorLostError."""
        from waltz.cluster.snapshot_shell import read_nodes  # most readers need no nodes

        return self._thread.call(read_nodes(self._host.coordinator, self._root))

    def marks(self, replica: Replica, asked: int) -> ReplicaMarks:
        """Return the marks of the node's copy, `last` at most `asked`.

        Raises UnavailableError: the node does not answer; RemoteStorageError: it has not taken the
        partition, or refuses; CorruptionError: its answer belongs to another partition.
        """
        return self._thread.call(self._ask_marks(replica, asked))

    def read(self, replica: Replica, first: int, end: int) -> Iterator[TransactionColumns]:
        """Yield the transactions that the node holds from `first` to `end` - 1: dense, in order,
        and fewer if it holds fewer.

        Raises UnavailableError; RemoteStorageError: the node refuses, as it does at a record that
        it knows to be damaged; CorruptionError: the data of a transaction does not match its
        checksum. Everything before that transaction has been yielded.
        """
        for batch in self.read_records(replica, first, end):
            sound = _count_of_sound(batch)
            if sound:
                yield columns_of_records(batch.slice(batch.first_transaction_id, sound))
            if sound < len(batch):
                raise CorruptionError(
                    f"transaction {batch.first_transaction_id + sound} of partition"
                    f" {replica.partition_id} on {replica.replica_id}: the data does not match its"
                    " checksum"
                )

    def read_records(self, replica: Replica, first: int, end: int) -> Iterator[RecordBatch]:
        """Yield what `read` yields as the records that lie on the node's disk, not checked.

        Raises UnavailableError, RemoteStorageError as `read`; CorruptionError: the node gives other
        records than those it was asked for.
        """
        position = first
        while position < end:
            batch = self._thread.call(self._read_some(replica, position, end))
            if not len(batch):
                return
            yield batch
            position = batch.next_transaction_id

    def close(self) -> None:
        """Close the connections. Idempotent."""
        try:
            self._thread.call(self._end(), CLIENT_CLOSE_SECONDS)
        except (ClientClosedError, OperationTimeoutError):
            return  # closed before, or not within the time limit
        finally:
            self._thread.stop()
        self._release_host()

    async def _ask_marks(self, replica: Replica, asked: int) -> ReplicaMarks:
        question = AdminLastSessionInfoRequest(0, replica.partition_id)
        answer = await self._ask(replica, question, AdminLastSessionInfoResponse)
        info = answer.session_info
        return ReplicaMarks(
            info.low_water_mark,
            min(info.low_water_mark, info.local_low_water_mark),
            await self._last(replica, asked),
        )

    async def _last(self, replica: Replica, asked: int) -> TransactionId:
        """Return the last transaction that the node holds, at most `asked`.

        No request returns that number; IDs are dense, so a binary search finds it.
        """
        if asked < 0 or await self._holds(replica, asked):
            return TransactionId(max(asked, NOTHING))
        held, missing = NOTHING, asked
        while missing - held > 1:
            middle = (held + missing) // 2
            if await self._holds(replica, middle):
                held = TransactionId(middle)
            else:
                missing = middle
        return TransactionId(held)

    async def _holds(self, replica: Replica, transaction_id: int) -> bool:
        try:
            return len(await self._records(replica, transaction_id, 1)) > 0
        except RemoteStorageError:
            return True  # a damaged record is a held record

    async def _read_some(self, replica: Replica, first: int, end: int) -> RecordBatch:
        count = min(end - first, RECORD_LIST_RECORDS_MAX)
        records = await self._records(replica, first, count)
        return records if len(records) <= count else records.slice(TransactionId(first), count)

    async def _records(self, replica: Replica, first: int, count: int) -> RecordBatch:
        """Return records of the node's copy from `first` on, none if it holds none.

        Raises as `_ask`; CorruptionError: it gave other records.
        """
        question = AdminRecordListRequest(0, replica.partition_id, TransactionId(first), count)
        records = (await self._ask(replica, question, AdminRecordListResponse)).records
        if len(records) and records.first_transaction_id != first:
            raise CorruptionError(
                f"{replica.replica_id} was asked for transaction {first} of partition"
                f" {replica.partition_id} and gave {records.first_transaction_id}"
            )
        return records

    async def _ask(self, replica: Replica, question: AdminMessage, kind: type[A]) -> A:
        """Return the node's answer on its copy. Raises UnavailableError, RemoteStorageError;
        CorruptionError: the answer belongs to another partition.

        One question at a time is under way per connection. A connection on which an answer may
        still come is closed: it would be taken for the answer to the next question.
        """
        address = admin_address(replica)
        async with self._turns.setdefault(address, asyncio.Lock()):
            talk = await self._talk(address)
            try:
                answer = await talk.ask(question, kind)
            except RemoteStorageError:
                raise  # that is the answer
            except BaseException:
                _, stack = self._talks.pop(address)
                await stack.aclose()
                raise
        if answer.partition_id != replica.partition_id:
            raise CorruptionError(
                f"{replica.replica_id} was asked about partition {replica.partition_id} and"
                f" answered about partition {answer.partition_id}"
            )
        return answer

    async def _talk(self, address: Address) -> Conversation:
        if address not in self._talks:
            stack = AsyncExitStack()
            talk = await stack.enter_async_context(
                talk_to_admin_port(self._host, address, self._params)
            )
            self._talks[address] = talk, stack
        return self._talks[address][0]

    async def _end(self) -> None:
        for _, stack in self._talks.values():
            await stack.aclose()
        self._talks.clear()
        await self._host.coordinator.close()


async def read_replicas(
    coordinator: Coordinator, partition_ids: Iterable[PartitionId], root: str = DEFAULT_ROOT
) -> list[Replica]:
    """Return the copies of the partitions that the cluster has, in order. Raises NoNodeError: there
    is no cluster; CoordinatorLostError."""
    placement = await read_placement(coordinator, root)
    found = []
    for partition_id in partition_ids:
        try:
            metadata = await read_partition_metadata(coordinator, partition_id, root)
        except NoNodeError:
            metadata = None
        found += [
            _replica(partition_id, node, placement.admin_ports.get(node), metadata)
            for node in sorted(placement.holding(partition_id))
        ]
    return found


async def _made(new_host: NewHost) -> tuple[Host, Callable[[], None]]:
    return new_host()


def _replica(
    partition_id: PartitionId,
    node: ReplicaId,
    admin_port: int | None,
    metadata: PartitionMetadata | None,
) -> Replica:
    state = None if metadata is None else metadata.replica_states.get(node)
    if metadata is None or state is None:
        return Replica(partition_id, node, admin_port, False, None)
    is_current = state.session_id == metadata.session_id
    return Replica(partition_id, node, admin_port, is_current, state.closing_high_water_mark)


def admin_address(replica: Replica) -> Address:
    """Return the address of the node's admin port. Raises UnavailableError if the cluster does not
    know it."""
    if replica.admin_port is None:
        raise UnavailableError(f"no admin port of storage node {replica.replica_id} is known")
    return Address(Address.parse(replica.replica_id).host, replica.admin_port)


def _count_of_sound(batch: RecordBatch) -> int:
    """Return how many records come before the first whose data does not match its checksum."""
    found = np.fromiter(map(crc32, batch.all_data()), np.uint32, len(batch))
    wrong = np.flatnonzero(found != batch.data_checksums())
    return int(wrong[0]) if len(wrong) else len(batch)
