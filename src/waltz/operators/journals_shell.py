"""Asks storage nodes when transactions were written, by the journals next to their records.

Owns the questions and how the answers of several nodes are put together. Every answer is a node's
own, by its own clock; what a node does not tell is said to be not recorded, with the reason.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from waltz.arrays import np
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
    NO_LOWER_BOUND,
    NO_UPPER_BOUND,
    BoundColumns,
    DurableInterval,
    JournalFacts,
    commit_bounds,
    majority_interval,
    milliseconds_apart,
)

PLACE_SECONDS_MAX: Final = 30.0
"""Seconds for all questions to one node about the place of a time; then it counts as silent."""


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

    def committed(self) -> tuple[int | None, int | None]:
        """Return bounds, in milliseconds since 1970, of the time at which it was committed; None:
        not recorded. They equal those of `RunTimes`: a copy that was made anew does not tell how
        old its record is, nor a clock that was set back later."""
        originals = [
            each.interval
            if each.session_id is not None and each.interval and not each.interval.clock_went_back
            else None
            for each in self.replicas
        ]
        if not self.replicas:
            return None, None
        return majority_interval(originals, majority(len(originals)))[0], self.not_after


class JournalNotes(NamedTuple):
    """A node's notes of a client next to a transaction, in the order in which they were made.

    holders  those of which one is the note of the transaction's author; none: that is not recorded.
    """

    notes: Sequence[ClientNoted]
    holders: Sequence[ClientNoted]


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The answers of all nodes about the transactions from `first` to `end` - 1.

    answers  per replica, one part after the other.
    """

    first: int
    end: int
    answers: tuple[tuple[JournalAnswer, ...], ...]

    def committed(self) -> BoundColumns:
        """Return between which times each transaction was committed, as far as it is known: when a
        majority of the copies was there."""
        nodes = [_columns_of(parts, self.first, self.end) for parts in self.answers]
        return commit_bounds(nodes, majority(len(nodes)), self.end - self.first)

    def of(self, transaction_id: int) -> TransactionTimes:
        """Return what all nodes say of one of the transactions."""
        telling = [_telling(parts, transaction_id) for parts in self.answers]
        return times_of(TransactionId(transaction_id), [each for each in telling if each])

    def notes_of(self, client_id: ClientId, near: int) -> list[JournalNotes]:
        """Return the notes of a client in the journals next to a transaction, of each node that
        tells."""
        found = []
        for parts in self.answers:
            answer = _telling(parts, near)
            if answer is not None and answer.facts is not None:
                notes = answer.facts.notes_of(client_id)
                is_there = answer.first <= near < answer.end
                holders = answer.facts.holders(client_id, TransactionId(near)) if is_there else ()
                found.append(JournalNotes(notes, holders))
        return found

    def problems(self) -> dict[ReplicaId, str]:
        """Return why nodes have told nothing, or not all."""
        return {
            part.replica.replica_id: part.reason
            for parts in self.answers
            for part in parts
            if part.reason
        }


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The place of a time in one node's copy: it had everything before `first` by then, and the
    transactions from `later` on are newer; None: none is known to be."""

    replica_id: ReplicaId
    first: int
    later: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class TimePlace:
    """The place of a time in a partition, by the clocks of the nodes that tell.

    first     every transaction before this one was committed by then; those from it on are later,
              or nobody can say.
    later     the first transaction that is known to have been committed after that; None: no such
              one is known.
    problems  per node that has told nothing, the reason.
    """

    first: TransactionId
    later: TransactionId | None
    problems: Mapping[ReplicaId, str]


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
        self._turns: defaultdict[ReplicaId, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Held while a node is asked: it is asked one question at a time."""

    @property
    def partition_count(self) -> int:
        return self._params.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self._params.cluster_key

    async def replicas(self, partition_id: PartitionId) -> Sequence[Replica]:
        """Return the copies of a partition. Raises CoordinatorLostError."""
        return await read_replicas(self._host.coordinator, [partition_id], self._root)

    async def ask(
        self, replica: Replica, first: TransactionId, last: TransactionId
    ) -> JournalAnswer:
        """Return what a node has noted of the transactions from `first` on: of all up to `last`, or
        of a part of these that ends before."""
        async with self._turns[replica.replica_id]:
            return await self._ask(replica, first, last)

    async def _ask(
        self, replica: Replica, first: TransactionId, last: TransactionId
    ) -> JournalAnswer:
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
        except BaseException:
            if (given_up := self._talks.pop(node, None)) is not None:
                given_up.close()
            raise
        facts = JournalFacts(decode_entries(answer.entries).entries)
        end = TransactionId(max(first, min(answer.next_transaction_id, last + 1)))
        return JournalAnswer(replica, first, end, facts)

    async def time_of(
        self, partition_id: PartitionId, transaction_id: TransactionId
    ) -> TransactionTimes:
        """Ask all nodes that hold the partition for one transaction. Raises
        CoordinatorLostError."""
        replicas = await self.replicas(partition_id)
        asking = [self.ask(replica, transaction_id, transaction_id) for replica in replicas]
        return times_of(transaction_id, await asyncio.gather(*asking))

    async def times_of_run(self, partition_id: PartitionId, first: int, end: int) -> RunTimes:
        """Ask all nodes that hold the partition for the transactions from `first` to `end` - 1.
        Raises CoordinatorLostError."""
        replicas = await self.replicas(partition_id)
        parts = [self._parts(replica, first, end) for replica in replicas]
        return RunTimes(first, end, tuple(await asyncio.gather(*parts)))

    async def _parts(self, replica: Replica, first: int, end: int) -> tuple[JournalAnswer, ...]:
        """Return what a node tells of the transactions, part after part."""
        parts: list[JournalAnswer] = []
        position = first
        while position < end:
            part = await self.ask(replica, TransactionId(position), TransactionId(end - 1))
            parts.append(part)
            if part.end <= position:
                break
            position = part.end
        return tuple(parts)

    async def transaction_at(
        self, partition_id: PartitionId, milliseconds: int, end: TransactionId
    ) -> TimePlace:
        """Return the place of a time among the transactions before `end`. Each node is asked at
        most once per bit of a transaction ID. Raises CoordinatorLostError."""
        replicas = await self.replicas(partition_id)
        asking = [self._place_in_time(replica, milliseconds, end) for replica in replicas]
        return place_of(await asyncio.gather(*asking), end)

    async def _place_in_time(
        self, replica: Replica, milliseconds: int, end: TransactionId
    ) -> NodePlace:
        try:
            async with asyncio.timeout(PLACE_SECONDS_MAX):
                return await self._place(replica, milliseconds, end)
        except TimeoutError:
            reason = f"{replica.replica_id} has not answered all in {PLACE_SECONDS_MAX:g} s"
            return NodePlace(replica.replica_id, 0, None, reason)

    async def _place(self, replica: Replica, milliseconds: int, end: TransactionId) -> NodePlace:
        """Find the place by halves: of each part that a node tells of, all is looked at."""
        low, high = 0, int(end)
        later: int | None = None
        reason = ""
        while low < high:
            middle = (low + high) // 2
            answer = await self.ask(replica, TransactionId(middle), TransactionId(high - 1))
            last = after = None
            if answer.facts is None:
                reason = answer.reason
                if replica.replica_id in self._silent:
                    break
            else:
                last = answer.facts.last_by(milliseconds, middle, answer.end)
                after = answer.facts.first_new_after(milliseconds, middle, answer.end)
                if after is not None and (later is None or after < later):
                    later = after
            if last is None:
                high = middle
            else:
                low = last + 1
                if after is not None:
                    break
        return NodePlace(replica.replica_id, low, later, reason)

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


def place_of(nodes: Sequence[NodePlace], end: TransactionId) -> TimePlace:
    """Return what the nodes of a partition together say of a time, among the transactions before
    `end`: what a majority had by then, and what too few can have had to be a majority."""
    problems = {each.replica_id: each.reason for each in nodes if each.reason}
    count = majority(len(nodes))
    if not nodes:
        return TimePlace(TransactionId(0), None, problems)
    first = sorted((each.first for each in nodes), reverse=True)[count - 1]
    beyond = [end if each.later is None else each.later for each in nodes]
    later = sorted(beyond)[len(nodes) - count]
    # Clocks may disagree: what a majority had then is not later, whatever other clocks say.
    later = max(first, later)
    return TimePlace(TransactionId(first), None if later >= end else TransactionId(later), problems)


def _columns_of(parts: Sequence[JournalAnswer], first: int, end: int) -> BoundColumns:
    """Return what one node tells of the transactions from `first` to `end` - 1."""
    lows = np.full(end - first, NO_LOWER_BOUND, np.int64)
    highs = np.full(end - first, NO_UPPER_BOUND, np.int64)
    for part in parts:
        if part.facts is not None:
            rows = slice(part.first - first, part.end - first)
            lows[rows], highs[rows] = part.facts.columns(part.first, part.end)
    return BoundColumns(lows, highs)


def _telling(parts: Sequence[JournalAnswer], transaction_id: int) -> JournalAnswer | None:
    """Return the part of a node's answer that tells of a transaction, or else the last, which says
    why none does."""
    for part in parts:
        if part.first <= transaction_id < part.end:
            return part
    return parts[-1] if parts else None
