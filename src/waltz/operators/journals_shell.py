"""Asks storage nodes when transactions were written, by the journals next to their records.

Owns the questions and how the answers of several nodes are put together. Every answer is a node's
own, by its own clock; what a node does not tell is said to be not recorded, with the reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from waltz.cluster.cluster_shell import read_store_params
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.cluster.store_params import StoreParams
from waltz.errors import RemoteStorageError, UnavailableError
from waltz.host import Host
from waltz.majority import majority
from waltz.operators.conversation_shell import Conversation, talk_to_admin_port
from waltz.operators.replicas_shell import Replica, admin_address, read_replicas
from waltz.types import ClientId, PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.admin_protocol import JOURNALS_SINCE, JournalRequest, JournalResponse
from waltz.wire.journal_entries import ClientNoted, decode_entries
from waltz.wire.journal_facts import (
    DurableInterval,
    JournalFacts,
    majority_interval,
    milliseconds_apart,
)

NOT_RECORDED: Final = "not recorded"


@dataclass(frozen=True, slots=True)
class JournalAnswer:
    """The answer of one node about some transactions.

    replica     the copy that was asked about.
    first, end  the transactions that the facts tell of: from `first` to `end` - 1.
    facts       the facts of the node's journal; None: it told nothing.
    reason      why nothing is told; empty if something is.
    """

    replica: Replica
    first: TransactionId
    end: TransactionId
    facts: JournalFacts | None
    reason: str = ""

    def interval(self, transaction_id: int) -> DurableInterval | None:
        if self.facts is None or not self.first <= transaction_id < self.end:
            return None
        return self.facts.interval(transaction_id)


@dataclass(frozen=True, slots=True)
class ReplicaTime:
    """The time at which a node's copy of a transaction became durable.

    interval    between two times of the node's wall clock; None: not recorded.
    session_id  the session that gave the transaction its ID; None: not recorded.
    reason      why the node tells nothing; empty if it has told, even that nothing is recorded.
    """

    replica: Replica
    interval: DurableInterval | None
    session_id: SessionId | None
    reason: str


@dataclass(frozen=True, slots=True)
class TransactionTimes:
    """The times of one transaction, by all nodes that hold its partition.

    not_before, not_after  bounds, in milliseconds since 1970, of the time from which on a majority
                           of the copies that are there now were there; None: not recorded. A copy
                           that was made anew counts from then on.
    apart_milliseconds     by how much the intervals miss each other: some copies came later, or
                           clocks disagree by that.
    """

    transaction_id: TransactionId
    replicas: tuple[ReplicaTime, ...]
    not_before: int | None
    not_after: int | None
    apart_milliseconds: int


@dataclass(frozen=True, slots=True)
class TransactionAt:
    """The place of a time in a partition, by the clocks of the nodes that tell.

    first  every transaction before this one was on some node by then.
    later  the first transaction that is known to have come to the same node after that; None: no
           such one is known. Between the two nobody can tell.
    """

    first: TransactionId
    later: TransactionId | None


class JournalNotes(NamedTuple):
    """A node's notes of a client next to a transaction, in the order in which they were made.

    interval     when the record became durable there; None: not recorded.
    is_appended  whether it came there as it was written, and not as a copy later.
    """

    notes: Sequence[ClientNoted]
    interval: DurableInterval | None
    is_appended: bool


class ClusterJournals:
    """Asks the nodes of a cluster for their journals; a connection per node is kept."""

    def __init__(self, host: Host, params: StoreParams, root: str, stack: AsyncExitStack) -> None:
        self._host = host
        self._params = params
        self._root = root
        self._stack = stack
        self._talks: dict[ReplicaId, Conversation] = {}
        self._silent: dict[ReplicaId, str] = {}
        """The nodes that could not be asked, with the reason; they are not asked again."""

    @property
    def partition_count(self) -> int:
        return self._params.partition_count

    async def replicas(self, partition_id: PartitionId) -> Sequence[Replica]:
        """Return the copies of a partition. Raises CoordinatorLostError."""
        return await read_replicas(self._host.coordinator, [partition_id], self._root)

    async def ask(
        self, replica: Replica, first: TransactionId, last: TransactionId
    ) -> JournalAnswer:
        """Return what a node has noted of the transactions from `first` on: of all up to `last`, or
        of a part of these that ends before."""
        node = replica.replica_id
        if (reason := self._silent.get(node)) is not None:
            return JournalAnswer(replica, first, first, None, reason)
        try:
            talk = await self._talk(replica)
            if talk.version < JOURNALS_SINCE:
                self._silent[node] = f"{node} keeps no journal: its release is older, or another"
                return JournalAnswer(replica, first, first, None, self._silent[node])
            question = JournalRequest(0, replica.partition_id, first, last)
            answer = await talk.ask(question, JournalResponse)
        except RemoteStorageError as error:
            return JournalAnswer(replica, first, first, None, str(error))
        except UnavailableError as error:
            self._silent[node] = str(error)
            return JournalAnswer(replica, first, first, None, str(error))
        facts = JournalFacts(decode_entries(answer.entries).entries)
        end = TransactionId(max(first, min(answer.next_transaction_id, last + 1)))
        return JournalAnswer(replica, first, end, facts)

    async def time_of(
        self, partition_id: PartitionId, transaction_id: TransactionId
    ) -> TransactionTimes:
        """Ask all nodes that hold the partition for one transaction. Raises
        CoordinatorLostError."""
        answers = [
            await self.ask(replica, transaction_id, transaction_id)
            for replica in await self.replicas(partition_id)
        ]
        return times_of(transaction_id, answers)

    async def transaction_at(
        self, partition_id: PartitionId, milliseconds: int, end: TransactionId
    ) -> TransactionAt | None:
        """Return the place of a time among the transactions before `end`; None: no node tells.
        Raises CoordinatorLostError."""
        best: TransactionAt | None = None
        for replica in await self.replicas(partition_id):
            found = await self._place(replica, milliseconds, end)
            if found is not None and (best is None or found.first > best.first):
                best = found
        return best

    async def _place(
        self, replica: Replica, milliseconds: int, end: TransactionId
    ) -> TransactionAt | None:
        """Find the place by halves: of each part that a node tells of, all is looked at."""
        low, high = 0, int(end)
        later: int | None = None
        has_told = False
        while low < high:
            middle = (low + high) // 2
            answer = await self.ask(replica, TransactionId(middle), TransactionId(high - 1))
            last = after = None
            if answer.facts is not None:
                span = (milliseconds, middle, answer.end)
                last = answer.facts.last_by(*span)
                after = answer.facts.first_after(*span)
                has_told = has_told or last is not None or after is not None
                if after is not None and (later is None or after < later):
                    later = after
            if last is None:
                high = middle
            else:
                low = last + 1
                if after is not None:
                    break
        if not has_told:
            return None
        is_later = later is not None and later >= low
        return TransactionAt(TransactionId(low), TransactionId(later or 0) if is_later else None)

    async def notes_of(
        self, partition_id: PartitionId, client_id: ClientId, near: TransactionId
    ) -> list[JournalNotes]:
        """Return the notes of a client in the journals next to a transaction, of each node that
        tells. Raises CoordinatorLostError."""
        found = []
        for replica in await self.replicas(partition_id):
            answer = await self.ask(replica, near, near)
            if answer.facts is not None:
                notes = answer.facts.notes_of(client_id)
                is_appended = answer.facts.session(near) is not None
                found.append(JournalNotes(notes, answer.interval(near), is_appended))
        return found

    async def _talk(self, replica: Replica) -> Conversation:
        talk = self._talks.get(replica.replica_id)
        if talk is None:
            address = admin_address(replica)
            opened = talk_to_admin_port(self._host, address, self._params)
            talk = await self._stack.enter_async_context(opened)
            self._talks[replica.replica_id] = talk
        return talk


@asynccontextmanager
async def cluster_journals(host: Host, root: str = DEFAULT_ROOT) -> AsyncIterator[ClusterJournals]:
    """Open access to the journals of a cluster's nodes. Raises NoNodeError: there is no cluster;
    CoordinatorLostError."""
    params = await read_store_params(host.coordinator, root)
    async with AsyncExitStack() as stack:
        yield ClusterJournals(host, params, root, stack)


def times_of(transaction_id: TransactionId, answers: Iterable[JournalAnswer]) -> TransactionTimes:
    """Return what the answers of all nodes together say of one transaction."""
    replicas = tuple(
        ReplicaTime(
            answer.replica,
            answer.interval(transaction_id),
            None if answer.facts is None else answer.facts.session(transaction_id),
            answer.reason,
        )
        for answer in answers
    )
    intervals = [each.interval for each in replicas]
    low = high = None
    if replicas:
        low, high = majority_interval(intervals, majority(len(replicas)))
    return TransactionTimes(transaction_id, replicas, low, high, milliseconds_apart(intervals))
