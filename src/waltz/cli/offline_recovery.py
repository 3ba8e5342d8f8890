"""Offline recovery: copies one partition from a storage node to another, without a server.

Owns the order of the steps, which is the original's, so that either node may be a Java one. The
destination is cut to what it is known to share with all others, and filled with what the source
held when its store session began, all of which is committed. A copy that was cut short resumes
where it stopped: the mark moves with every batch. Source: Waltz Storage, "Administration".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from waltz.cli.storage_questions import (
    ask_session,
    ask_usable,
    talk_to_data_port,
)
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.cluster.store_params import StoreParams
from waltz.errors import ConfigurationError, RemoteStorageError
from waltz.host import Host
from waltz.operators.conversation_shell import Conversation, talk_to_admin_port
from waltz.record import RecordBatch
from waltz.types import Address, PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.admin_protocol import AdminRecordListRequest, AdminRecordListResponse, SessionInfo
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    SetLowWaterMarkRequest,
    SuccessResponse,
    TruncateRequest,
)


@dataclass(frozen=True, slots=True)
class Destination:
    """The node to fill; `replica_id` is None if the cluster does not know it."""

    replica_id: ReplicaId | None
    data: Address
    admin: Address


@dataclass(frozen=True, slots=True)
class CopyJob:
    """The partition to copy, and between which nodes."""

    partition_id: PartitionId
    source_admin: Address
    destination: Destination
    batch_records: int


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a copy. The destination held everything up to `first`, after `cut` records
    beyond its mark were removed, and now holds everything up to `last`, which is the end of the
    source's share unless the destination already had more."""

    first: TransactionId
    last: TransactionId
    cut: int

    @property
    def count(self) -> int:
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class Doors:
    """The doors to the two nodes: settings that secure one may not fit the other (TS-06)."""

    source: Host
    destination: Host


async def copy_partition(
    doors: Doors,
    params: StoreParams,
    job: CopyJob,
    metadata: PartitionMetadata | None,
    on_total: Callable[[int], Callable[[int], None]],
) -> Copied:
    """Copy the partition. `on_total` gets the number of records, and returns a function that gets
    the count of each batch.

    Raises ConfigurationError, with nothing changed: the destination is not ready. UnavailableError,
    RemoteStorageError: a node does not answer, or refuses; repeat the call.
    """
    number = job.partition_id
    async with (
        talk_to_admin_port(doors.source, job.source_admin, params) as source,
        talk_to_admin_port(doors.destination, job.destination.admin, params) as admin,
        talk_to_data_port(doors.destination, job.destination.data, params) as data,
    ):
        await _check_destination(admin, job)
        info = await ask_session(admin, number)
        target = (await ask_session(source, number)).local_low_water_mark
        filling = _Filling(data, number, info)
        found = await filling.begin()
        mark = info.low_water_mark
        _check_expendable(job, metadata, found, mark)
        # A replica that lagged when its session began has less than its mark promises.
        first = found if found <= mark else await filling.truncate(mark)
        advance = on_total(max(0, target - first))
        position = first
        while position < target:
            batch = await _read(source, job, TransactionId(position + 1), target)
            await filling.append(batch)
            advance(len(batch))
            position = batch.last_transaction_id
        return Copied(first, position, found - first)


async def _check_destination(admin: Conversation, job: CopyJob) -> None:
    found = (await ask_usable(admin)).get(job.partition_id)
    where = f"partition {job.partition_id} of {job.destination.replica_id or job.destination.admin}"
    command = f"-s {job.destination.admin} -p {job.partition_id}"
    if found is None:
        raise ConfigurationError(
            f"{where} has not been added to that node; run waltz admin storage add-partition"
            f" {command} first"
        )
    if found:
        raise ConfigurationError(
            f"{where} is in use by servers; run waltz admin storage availability {command} -o"
            " false first"
        )


def _check_expendable(
    job: CopyJob, metadata: PartitionMetadata | None, last: TransactionId, mark: TransactionId
) -> None:
    """Check that records beyond the mark may be cut.

    While the partition's session counts the node among those that hold them, the node's copy may be
    the one that makes a commit.
    """
    replica_id = job.destination.replica_id
    state = None
    if metadata is not None and replica_id is not None:
        state = metadata.replica_states.get(replica_id)
    if last > mark and state is not None and state.closing_high_water_mark is None:
        raise ConfigurationError(
            f"storage node {replica_id} holds transactions {mark + 1} to {last} of partition"
            f" {job.partition_id}, which the copy would cut and the store session counts on; wait"
            " until its server has opened a session without the node (waltz status)"
        )


async def _read(
    source: Conversation, job: CopyJob, first: TransactionId, target: TransactionId
) -> RecordBatch:
    """Return records from `first` on, at least one and none beyond `target`."""
    wanted = min(job.batch_records, target - first + 1)
    question = AdminRecordListRequest(0, job.partition_id, first, wanted)
    records = (await source.ask(question, AdminRecordListResponse)).records
    if not len(records) or records.first_transaction_id != first:
        raise RemoteStorageError(
            f"{job.source_admin} has no record {first} of partition {job.partition_id}, and says"
            f" that it holds all up to {target}; waltz disk verify shows what is wrong there"
        )
    return records if len(records) <= wanted else records.slice(first, wanted)


class _Filling:
    """The writes to the destination, in the name of the session that began there last."""

    def __init__(self, data: Conversation, number: PartitionId, info: SessionInfo) -> None:
        self._data = data
        self._number = number
        self._info = info
        self._sequence = count()

    def _head(self) -> tuple[SessionId, int, PartitionId]:
        return self._info.session_id, next(self._sequence), self._number

    async def begin(self) -> TransactionId:
        """Return the last transaction that the destination holds."""
        question = LastSessionInfoRequest(*self._head(), offline=True)
        await self._data.ask(question, LastSessionInfoResponse)
        last = MaxTransactionIdRequest(*self._head(), offline=True)
        return (await self._data.ask(last, MaxTransactionIdResponse)).transaction_id

    async def truncate(self, mark: TransactionId) -> TransactionId:
        """Cut the destination to `mark`; return the last transaction that is left."""
        request = TruncateRequest(*self._head(), transaction_id=mark, offline=True)
        return (await self._data.ask(request, MaxTransactionIdResponse)).transaction_id

    async def append(self, batch: RecordBatch) -> None:
        """Append `batch`, and move the mark past it."""
        request = AppendRecordsRequest(*self._head(), records=batch, offline=True)
        await self._data.ask(request, SuccessResponse)
        mark = max(batch.last_transaction_id, self._info.low_water_mark)
        promise = SetLowWaterMarkRequest(*self._head(), low_water_mark=mark, offline=True)
        await self._data.ask(promise, SuccessResponse)
