"""Explains one transaction: who wrote it, since when its copies are durable, what each copy is now,
and which appends were refused for it.

Owns the questions, and how the answers are put together. Each part is asked of who knows it; a part
that nobody could tell has the reason in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from zlib import crc32

from waltz.cluster.cluster_shell import read_store_params
from waltz.cluster.store_params import StoreParams
from waltz.errors import RemoteStorageError, UnavailableError, WaltzError
from waltz.host import Host
from waltz.majority import majority
from waltz.operators.authors import Author
from waltz.operators.authors_shell import ask_mounted_clients
from waltz.operators.conversation_shell import talk_to_admin_port
from waltz.operators.journals_shell import TransactionTimes, cluster_journals
from waltz.operators.questions_shell import ask_refusals, partition_server
from waltz.operators.replicas_shell import Replica, admin_address
from waltz.reader.reader_shell import AsyncLogReader
from waltz.record import Record, request_id_from
from waltz.types import Address, PartitionId, ReplicaId, TransactionId
from waltz.wire.admin_protocol import AdminRecordListRequest, AdminRecordListResponse
from waltz.wire.report_protocol import RefusalsReport

REFUSALS_EXPLAINED_MAX: Final = 1_000
"""Refused appends that are counted for one transaction."""


class CopyStanding(StrEnum):
    """A copy of the record, as its node has just read it."""

    SAME = "same"
    """The node has the record, with checksums that match, and it equals the others."""
    DIFFERENT = "different"
    MISSING = "missing"
    """The node's log ends before the record."""
    REFUSED = "refused"
    """The node does not give the record: it is damaged there, or the node does not have the
    partition."""
    UNKNOWN = "unknown"
    """The node does not answer."""


@dataclass(frozen=True, slots=True)
class CopyRead:
    """The answer of one node: the record; or why there is none."""

    replica_id: ReplicaId
    record: Record | None
    standing: CopyStanding | None = None
    """None: it follows from a comparison with the others."""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the record, judged."""

    replica_id: ReplicaId
    standing: CopyStanding
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that is known of a transaction.

    high_water_mark  the partition's, as its server said; None: `mark_trouble` says why not.
    record           the record, from the server or else from a majority of the copies.
    author           None: neither a server nor a journal tells; see `author_trouble`.
    refusals         the refused appends that the server remembers; None: `refusals_trouble`.
    """

    partition_id: PartitionId
    transaction_id: TransactionId
    high_water_mark: TransactionId | None
    mark_trouble: str
    record: Record | None
    copies: tuple[Copy, ...]
    times: TransactionTimes
    author: Author | None
    author_trouble: str
    refusals: RefusalsReport | None
    refusals_trouble: str

    @property
    def has_more_refusals(self) -> bool:
        """Whether the server may remember more refused appends than it has told."""
        report = self.refusals
        if report is None or report.kept is None:
            return False
        return REFUSALS_EXPLAINED_MAX <= len(report.refusals) < report.kept.kept

    @property
    def is_committed(self) -> bool | None:
        """Whether the transaction is committed; None: nobody can say. False: the partition's server
        and a majority of its copies say that the log ends before it.

        The server's word alone is not enough: a server that has lost the partition, and has not
        heard of it, knows an older end of the log.
        """
        if self.high_water_mark is None:
            return None
        if self.transaction_id <= self.high_water_mark:
            return True
        missing = sum(copy.standing is CopyStanding.MISSING for copy in self.copies)
        return False if self.copies and missing >= majority(len(self.copies)) else None


async def explain_transaction(
    host: Host,
    root: str,
    reader: AsyncLogReader,
    partition_id: PartitionId,
    transaction_id: TransactionId,
) -> Explanation:
    """Ask servers, storage nodes and their journals about a transaction.

    Raises ConfigurationError: there is no such partition; NoNodeError: there is no cluster;
    CoordinatorLostError.
    """
    params = await read_store_params(host.coordinator, root)
    server: Address | None = None
    server_trouble = ""
    try:
        server = await partition_server(host, root, partition_id)
    except UnavailableError as error:
        server_trouble = str(error)
    mark, mark_trouble = await _mark(reader, partition_id)
    served = None
    if mark is not None and transaction_id <= mark:
        served = await _served(reader, partition_id, transaction_id)
    async with cluster_journals(host, root) as journals:
        replicas = await journals.replicas(partition_id)
        # At once: a node that hangs is waited for once, not for its copy and then for its journal.
        run, reads = await asyncio.gather(
            journals.times_of_run(partition_id, transaction_id, transaction_id + 1),
            asyncio.gather(*(_read_copy(host, params, each, transaction_id) for each in replicas)),
        )
        times = run.of(transaction_id)
        record = served or majority_record(reads)
        author, author_trouble = None, "no record, so no author"
        if record is not None:
            client_id = record.request_id.client_id
            mounted = await ask_mounted_clients(host, root)
            notes = run.notes_of(client_id, transaction_id)
            author, author_trouble = mounted.author(client_id, partition_id, notes)
    refusals, refusals_trouble = None, server_trouble
    if server is not None:
        try:
            refusals = await ask_refusals(
                host, server, partition_id, REFUSALS_EXPLAINED_MAX, winner=transaction_id
            )
        except UnavailableError as error:
            refusals_trouble = str(error)
    return Explanation(
        partition_id,
        transaction_id,
        mark,
        mark_trouble,
        record,
        judged(reads, record),
        times,
        author,
        author_trouble,
        refusals,
        refusals_trouble,
    )


def majority_record(reads: Sequence[CopyRead]) -> Record | None:
    """Return the record that a majority of the copies have; None if there is none."""
    for each in reads:
        same = sum(other.record == each.record for other in reads)
        if each.record is not None and same >= majority(len(reads)):
            return each.record
    return None


def judged(reads: Sequence[CopyRead], record: Record | None) -> tuple[Copy, ...]:
    """Compare the copies with `record`; with None no copy can be said to be right."""
    found = []
    for each in reads:
        standing, text = each.standing, each.text
        if standing is None:
            if record is None:
                standing, text = CopyStanding.UNKNOWN, "there is nothing to compare it with"
            elif each.record == record:
                standing = CopyStanding.SAME
            else:
                standing, text = CopyStanding.DIFFERENT, "it is another record than the others have"
        found.append(Copy(each.replica_id, standing, text))
    return tuple(found)


async def _mark(
    reader: AsyncLogReader, partition_id: PartitionId
) -> tuple[TransactionId | None, str]:
    try:
        return await reader.high_water_mark(partition_id), ""
    except WaltzError as error:
        return None, str(error)


async def _served(
    reader: AsyncLogReader, partition_id: PartitionId, transaction_id: TransactionId
) -> Record | None:
    """Return the record as the server reads it; None if no replica can give it."""
    try:
        async for run in reader.read(partition_id, transaction_id, transaction_id + 1):
            data = run.data[0]
            request_id = request_id_from(run.request_ids[:16])
            return Record(transaction_id, request_id, int(run.headers[0]), data, crc32(data))
    except UnavailableError:
        pass
    return None


async def _read_copy(
    host: Host, params: StoreParams, replica: Replica, transaction_id: TransactionId
) -> CopyRead:
    """Have a node read its copy of the record now."""
    node = replica.replica_id
    try:
        async with talk_to_admin_port(host, admin_address(replica), params) as talk:
            question = AdminRecordListRequest(0, replica.partition_id, transaction_id, 1)
            answer = await talk.ask(question, AdminRecordListResponse)
    except RemoteStorageError as error:
        return CopyRead(node, None, CopyStanding.REFUSED, str(error))
    except UnavailableError as error:
        return CopyRead(node, None, CopyStanding.UNKNOWN, str(error))
    if not len(answer.records):
        return CopyRead(node, None, CopyStanding.MISSING, "its log ends before")
    record = answer.records.record(0)
    if record.transaction_id != transaction_id or crc32(record.data) != record.checksum:
        text = "what it gives is not the record, or does not match its checksum"
        return CopyRead(node, None, CopyStanding.REFUSED, text)
    return CopyRead(node, record)
