"""The times of transactions, as applications and tools ask for them.

Owns the values that they get, and how long connections to storage nodes are kept. The journals of
`journals_shell.py` tell the times; the coordinator tells which storage nodes have them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from waltz.arrays import np
from waltz.cluster.paths import DEFAULT_ROOT, root_at
from waltz.connections.loop_thread import FaceForThreads, LoopThread, NewHost, blocking
from waltz.errors import LocalProtocolError, NotFoundError, UnavailableError
from waltz.host import Coordinator, Host
from waltz.limits import CLIENT_CLOSE_SECONDS
from waltz.operators.journals_shell import ClusterJournals, RunTimes, cluster_journals
from waltz.operators.questions_shell import find_coordinator
from waltz.types import (
    Address,
    CoordinatorAddress,
    PartitionId,
    ReplicaId,
    ServersAddress,
    TransactionId,
)
from waltz.wall_time import datetime, milliseconds_of, time_at
from waltz.wire.journal_facts import NO_LOWER_BOUND, NO_UPPER_BOUND

if TYPE_CHECKING:
    from numpy.typing import NDArray

ACCESS_SECONDS_MAX: Final = 30.0
"""Age of the connections to storage nodes at which they are opened anew: nodes that did not answer
are asked again, and changes of replicas are seen."""

PLACES_AT_ONCE_MAX: Final = 16
"""Partitions whose nodes are asked at once for the place of a time."""

OpenCoordinator = Callable[[CoordinatorAddress], Coordinator]
"""Opens a door to the coordinator that servers name."""


class TransactionTime(NamedTuple):
    """The interval in which a transaction was committed, as far as storage nodes have noted it.

    not_before  it was committed at this time or later; None: that is not recorded.
    not_after   it was committed at this time or earlier; None: that is not recorded.
    problems    per storage node that has told nothing, the reason.

    Both times are in UTC, by the clocks of the storage nodes: a majority of the copies was durable
    after the first and before the second. If the clocks disagree, the first may be after the
    second.
    """

    not_before: datetime | None
    not_after: datetime | None
    problems: Mapping[ReplicaId, str]


class TransactionAt(NamedTuple):
    """The place of a time in a partition, as far as storage nodes have noted it.

    first     every transaction before this one was committed by then. To read all that may be newer
              than the time, read from here.
    later     this transaction and all after it were committed later; None: no transaction is known
              to be later. To read all that may be as old as the time, read to here, or all.
    problems  per storage node that has told nothing, the reason.

    Nobody can say of the transactions from `first` to `later` - 1 whether they are older.
    """

    first: TransactionId
    later: TransactionId | None
    problems: Mapping[ReplicaId, str]


class TimeColumns(NamedTuple):
    """The times of transactions with dense IDs, as columns: numpy arrays of `datetime64[ms]` in
    UTC, NaT where nothing is recorded. The meaning is that of `TransactionTime`."""

    not_before: NDArray[np.datetime64]
    not_after: NDArray[np.datetime64]
    problems: Mapping[ReplicaId, str]


class AsyncLogTimes:
    """Asks storage nodes when transactions were committed, for asyncio.

    Connections are opened at the first question, are kept for some time, and end with `close`. With
    `servers` these are asked where the coordinator is, and `open_coordinator` opens it.
    """

    def __init__(
        self,
        host: Host,
        root: str = DEFAULT_ROOT,
        *,
        servers: Sequence[Address] = (),
        open_coordinator: OpenCoordinator | None = None,
        release_host: Callable[[], None] | None = None,
    ) -> None:
        self._host = host
        self._root = root
        self._servers = tuple(servers)
        self._open_coordinator = open_coordinator
        self._release_host = release_host
        self._stack = AsyncExitStack()
        self._journals: ClusterJournals | None = None
        self._opened_at = 0.0
        self._turn = asyncio.Lock()
        """Held by the question that is under way: connections are not opened anew under it."""

    async def time_of(self, partition_id: int, transaction_id: int) -> TransactionTime:
        """Return the interval in which a transaction was committed; of an ID that is not in the log
        nothing is recorded.

        All storage nodes with a copy are asked at once, one question each. Raises NotFoundError: no
        such partition; CoordinatorLostError; UnavailableError: no server says where the coordinator
        is; LocalProtocolError: not an ID.
        """
        if not 0 <= transaction_id < 1 << 63:
            raise LocalProtocolError(f"transaction {transaction_id}; expected 0 to 2^63 - 1")
        async with self._turn:
            journals = await self._open([partition_id])
            found = await journals.time_of(PartitionId(partition_id), TransactionId(transaction_id))
        not_before, not_after = found.committed()
        problems = {each.replica.replica_id: each.reason for each in found.replicas if each.reason}
        return TransactionTime(time_at(not_before), time_at(not_after), problems)

    async def times_of(self, partition_id: int, first: int, end: int) -> TimeColumns:
        """Return the times of the transactions from `first` to `end` - 1: per node one question for
        each part of its journal. Raises as `time_of`."""
        if not 0 <= first <= end < 1 << 63:
            raise LocalProtocolError(f"transactions {first} to before {end}; expected a range")
        found = await self.run_times(partition_id, first, end)
        lows, highs = found.committed()
        return TimeColumns(_moments(lows), _moments(highs), found.problems())

    async def run_times(self, partition_id: int, first: int, end: int) -> RunTimes:
        """Return all that the nodes have noted of the transactions from `first` to `end` - 1.
        Raises as `time_of`."""
        async with self._turn:
            journals = await self._open([partition_id])
            return await journals.times_of_run(PartitionId(partition_id), first, end)

    async def transactions_at(
        self, moment: datetime, high_water_marks: Mapping[PartitionId, TransactionId]
    ) -> dict[PartitionId, TransactionAt]:
        """Return the place of a time in each of these partitions, among the transactions up to the
        partition's mark.

        All storage nodes with a copy are asked at once, at most 63 questions each per partition, in
        30 s at most per partition. Raises as `time_of`; LocalProtocolError: the time has no time
        zone.
        """
        milliseconds = milliseconds_of(moment)
        turns = asyncio.Semaphore(PLACES_AT_ONCE_MAX)
        async with self._turn:
            journals = await self._open(high_water_marks)

            async def place(partition_id: PartitionId, mark: TransactionId) -> TransactionAt:
                async with turns:
                    end = TransactionId(mark + 1)
                    found = await journals.transaction_at(partition_id, milliseconds, end)
                return TransactionAt(found.first, found.later, found.problems)

            asking = [place(*each) for each in high_water_marks.items()]
            found = await asyncio.gather(*asking)
        return dict(zip(high_water_marks, found, strict=True))

    async def cluster_key(self) -> UUID:
        """Return the key of the cluster whose nodes are asked. Raises as `time_of`."""
        async with self._turn:
            return (await self._open(())).cluster_key

    async def close(self) -> None:
        """End the connections. Idempotent."""
        self._journals = None
        await self._stack.aclose()
        release, self._release_host = self._release_host, None
        if release is not None:
            await self._host.coordinator.close()
            release()

    async def _open(self, partition_ids: Iterable[int]) -> ClusterJournals:
        """Return access to the journals. Raises NotFoundError: one of the partitions is none."""
        now = self._host.clock.now()
        if self._journals is None or now - self._opened_at > ACCESS_SECONDS_MAX:
            self._journals = None
            await self._stack.aclose()
            host, root = await self._with_coordinator()
            self._journals = await self._stack.enter_async_context(cluster_journals(host, root))
            self._opened_at = now
        count = self._journals.partition_count
        for partition_id in partition_ids:
            if not 0 <= partition_id < count:
                raise NotFoundError(
                    f"there is no partition {partition_id}; expected 0 to {count - 1}"
                )
        return self._journals

    async def _with_coordinator(self) -> tuple[Host, str]:
        if not self._servers:
            return self._host, self._root
        if self._open_coordinator is None:
            raise UnavailableError(
                "the coordinator knows which storage nodes note times, and this client was opened"
                " without a way to it; open it with the coordinator's address"
            )
        servers = ServersAddress(self._servers)
        told = await find_coordinator(self._host, servers, self._open_coordinator)
        coordinator = self._open_coordinator(told)
        self._stack.push_async_callback(coordinator.close)
        return replace(self._host, coordinator=coordinator), root_at(told)


class LogTimes(FaceForThreads[AsyncLogTimes]):
    """Asks storage nodes when transactions were committed, for threads; a context manager.

    Connections are opened at the first question and kept for half a minute.
    """

    def __init__(
        self,
        new_host: NewHost,
        *,
        root: str | None = None,
        servers: Sequence[Address] = (),
        open_coordinator: OpenCoordinator | None = None,
    ) -> None:
        """`servers` and `open_coordinator` as for the client. Does not connect yet."""
        super().__init__(
            LoopThread("waltz-times"),
            _made(new_host, root or DEFAULT_ROOT, servers, open_coordinator),
        )

    time_of = blocking(AsyncLogTimes.time_of)
    cluster_key = blocking(AsyncLogTimes.cluster_key)
    times_of = blocking(AsyncLogTimes.times_of)
    transactions_at = blocking(AsyncLogTimes.transactions_at)

    def close(self) -> None:
        """Idempotent; in a forked process it does nothing. One left open ends with the process."""
        self._close_in_time(self._there.close(), CLIENT_CLOSE_SECONDS)


async def _made(
    new_host: NewHost,
    root: str,
    servers: Sequence[Address],
    open_coordinator: OpenCoordinator | None,
) -> AsyncLogTimes:
    host, release_host = new_host()
    return AsyncLogTimes(
        host,
        root,
        servers=servers,
        open_coordinator=open_coordinator,
        release_host=release_host,
    )


def _moments(milliseconds: NDArray[np.int64]) -> NDArray[np.datetime64]:
    """Return the times of a column of bounds."""
    found = milliseconds.astype("datetime64[ms]")
    is_unknown = (milliseconds == NO_LOWER_BOUND) | (milliseconds == NO_UPPER_BOUND)
    found[is_unknown] = np.datetime64("NaT")
    return found
