"""The reader: ranges of the log as columns, bodies fetched ahead.

Owns the connections for bodies; `PartitionStreams` owns one stream connection per read, and
`RangeColumns` joins both. Stateless between reads. Decisions are those of `FeedCursor`,
`ClusterConnection` and `PendingRequests`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.cluster.histories import Histories
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.connections.cluster_connection import Role
from waltz.connections.connection_shell import UNRESTORED, Connections
from waltz.connections.discovery_shell import DiscoverySettings, source_for
from waltz.connections.requests_shell import Requests
from waltz.connections.retry import Operation, RetryPolicy, RetryReads
from waltz.connections.retrying_shell import with_retries
from waltz.connections.tasks_shell import Tasks, ends_caller
from waltz.errors import (
    ClientClosedError,
    LocalProtocolError,
    NotFoundError,
    OperationTimeoutError,
    UnavailableError,
)
from waltz.host import Host
from waltz.limits import CONNECTION_SECONDS_MAX, READER_SECONDS_MAX
from waltz.reader.partition_streams_shell import PartitionStreams, out_of_time
from waltz.reader.range_columns_shell import RangeColumns
from waltz.reader.transaction_columns import TransactionColumns, WantsData
from waltz.types import NO_CLIENT, Address, Generation, PartitionId, TransactionId
from waltz.wire.client_label import ClientLabel, check_label

if TYPE_CHECKING:
    from waltz.reader.attested_columns_shell import Attestation, AttestedColumns

NOT_STARTED = (
    "this reader is not started; open it with `async with`, or await its `start` before any other"
    " call"
)

T = TypeVar("T")


class AsyncLogReader:
    """Reads the log as columns, for asyncio; an async context manager, or `start` and `close`."""

    def __init__(
        self,
        host: Host,
        *,
        timeout_seconds: float = READER_SECONDS_MAX,
        root: str | None = None,
        servers: Sequence[Address] = (),
        retry_policy: RetryPolicy | None = None,
        name: str = "",
        instance: str = "",
        program: str = "",
        release_host: Callable[[], None] | None = None,
    ) -> None:
        """`timeout_seconds` bounds how long anything waits without progress. With `servers` these
        tell what the cluster is, and no coordinator. `retry_policy` None: `RetryReads`. `name`,
        `instance` and `program` as for clients. Raises ConfigurationError: not a name.
        With `release_host` closing ends the coordinator session, too, and calls it."""
        self._host = host
        self._timeout_seconds = timeout_seconds
        self._release_host = release_host
        self._tasks = Tasks(
            lambda error: self._end(ClientClosedError(f"the reader has failed: {error!r}"))
        )
        discovery = DiscoverySettings(servers, min(CONNECTION_SECONDS_MAX, timeout_seconds))
        self._source = source_for(
            host,
            self._tasks,
            root or DEFAULT_ROOT,
            discovery,
            self._change_view,
            lambda error, _expected, _found: self._end(error),
            _take_histories,
        )
        self._retry_policy = retry_policy or RetryReads()
        label = check_label(ClientLabel(name, instance, program)) if name else None
        settings = replace(UNRESTORED, token=host.random.uuid().bytes, label=label)
        self._streams = PartitionStreams(host, self._source, settings, timeout_seconds)
        self._requests: Requests | None = None
        self._connections: Connections | None = None
        self._ranges: RangeColumns | None = None
        self._attested: AttestedColumns | None = None

    async def start(self) -> None:
        """Learn the cluster. Raises NoNodeError: there is none. CoordinatorLostError. With
        `servers` ConnectionFailedError: none of them in time; RemoteProtocolError: not ours."""
        try:
            await self._source.start()
            self._streams.check_open()  # it may have been closed meanwhile
        except BaseException as error:
            was_closed = self._streams.error is not None
            await self.close()
            if was_closed and not ends_caller(error):
                self._streams.check_open()  # which may have shown as any other error
            raise
        self._requests = Requests(self._host, self._tasks, NO_CLIENT)
        self._ranges = RangeColumns(
            self._streams,
            self._requests,
            self._repeat,
            lambda: self.histories,
            self._timeout_seconds,
        )
        self._connections = Connections(
            self._host,
            self._tasks,
            {Role.REQUESTS: self._source.side(Role.REQUESTS, self._requests)},
            _ignore_generation,
            open_server=self._source.open,
            watchers=(self._source,),
        )
        self._requests.start(self._connections.send, self._connections.break_off)
        self._connections.start()
        self._change_view(self._source.current)

    async def close(self) -> None:
        """Idempotent; reads under way end with ClientClosedError."""
        self._streams.end(ClientClosedError("the reader is closed"))
        if self._requests is not None:
            self._requests.stop()
        await self._tasks.stop()
        await self._source.stop()
        release, self._release_host = self._release_host, None
        if release is not None:
            await self._host.coordinator.close()
            release()

    async def __aenter__(self) -> AsyncLogReader:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def partition_count(self) -> int:
        self._check_started()
        return self._source.current.partition_count

    @property
    def cluster_key(self) -> UUID:
        self._check_started()
        return self._source.current.cluster_key

    @property
    def histories(self) -> Histories:
        """The histories of the log. As of the newest connection to a server: none is used before
        its histories were taken in, so that these are not older than any answer."""
        self._check_started()
        return self._source.histories or Histories(self.cluster_key)

    def _check_started(self) -> None:
        if self._requests is None:
            raise LocalProtocolError(NOT_STARTED)

    async def require_attested(self, attestation: Attestation) -> None:
        """From now on let `read` and `follow` hand on only what `attestation` proves: what
        `waltz.open_attested` returns, or another one.

        Each transaction is compared with the tree that a signed checkpoint names. `read` raises
        AttestationError at the first transaction that no checkpoint covers, after all before it;
        `follow` waits until one covers it. Both raise AttestationError if a transaction is not the
        one that was attested. Marks are not proven.
        """
        # Most readers need no proofs.
        from waltz.reader.attested_columns_shell import AttestedColumns

        check_open = self._streams.check_open
        self._attested = AttestedColumns(self._host, self.cluster_key, attestation, check_open)

    async def high_water_mark(self, partition_id: int) -> TransactionId:
        """Return the last transaction in the partition's log, -1 for none.

        A server that has lost the partition and does not know yet may leave out the newest.
        Raises NotFoundError; UnavailableError: no server answered in time.
        """
        self._check_partition(partition_id)
        assert self._requests is not None, "started"
        ask = partial(self._requests.high_water_mark, PartitionId(partition_id), fragile=True)
        try:
            return await self._repeat(Operation.HIGH_WATER_MARK, ask)
        except OperationTimeoutError:
            raise out_of_time(self._timeout_seconds, partition_id, "its high-water mark") from None

    async def high_water_marks(
        self, partition_ids: Sequence[int]
    ) -> dict[PartitionId, TransactionId]:
        """Return the high-water mark of each of the partitions: one question for each server, or,
        at once, one for each partition of a server that does not know the question. Raises as
        `high_water_mark`."""
        for partition_id in partition_ids:
            self._check_partition(partition_id)
        assert self._requests is not None, "started"
        wanted = [PartitionId(each) for each in partition_ids]
        ask = partial(self._requests.high_water_marks, wanted, fragile=True)
        try:
            return await self._repeat(Operation.HIGH_WATER_MARK, ask)
        except OperationTimeoutError:
            raise UnavailableError(
                f"no server of some of {len(wanted)} partitions has told its high-water mark in"
                f" {self._timeout_seconds:g} s"
            ) from None

    def read(
        self,
        partition_id: int,
        first: int,
        end: int,
        *,
        wants_data: WantsData | None = None,
        history: UUID | None = None,
    ) -> AsyncGenerator[TransactionColumns, None]:
        """Yield the transactions from `first` to `end` - 1: dense, in order, complete.

        Fetches ahead. With `wants_data`, a function of many headers that says for which of them
        the data is wanted, only that data is fetched, one by one; the others' is empty. That pays
        where few are wanted. `history` is the one to which the range belonged when it was planned;
        None: whichever it is now. Raises NotFoundError: no such partition, or the log ends before
        `end`; UnavailableError: no progress for `timeout_seconds`; LocalProtocolError: not a range;
        ClientAheadError; HistoryChangedError: a restore has replaced what was read, or planned;
        AttestationError: as `require_attested`.
        """
        if not 0 <= first <= end:
            raise LocalProtocolError(
                f"the range is from transaction {first} to before {end}; expected 0 or more, and"
                " an end that is not before the first"
            )
        if wants_data is not None and self._attested is not None:
            raise LocalProtocolError("what is attested is read with all data: give no `wants_data`")
        self._check_partition(partition_id)
        assert self._ranges is not None, "started"
        found = self._ranges.read(PartitionId(partition_id), first, end, wants_data, history)
        return self._proven(PartitionId(partition_id), found, waits=False)

    def follow(self, partition_id: int, first: int) -> AsyncGenerator[TransactionColumns, None]:
        """Yield the transactions from `first` on as they come, for ever.

        Raises as `read`; NotFoundError, ClientAheadError: the log ends before `first` - 1.
        """
        if first < 0:
            raise LocalProtocolError(f"the first transaction is {first}; expected at least 0")
        self._check_partition(partition_id)
        assert self._ranges is not None, "started"
        found = self._ranges.read(PartitionId(partition_id), first, None)
        return self._proven(PartitionId(partition_id), found, waits=True)

    def _proven(
        self,
        partition_id: PartitionId,
        found: AsyncGenerator[TransactionColumns, None],
        *,
        waits: bool,
    ) -> AsyncGenerator[TransactionColumns, None]:
        if self._attested is None:
            return found
        return self._attested.of(partition_id, found, waits=waits)

    async def _repeat(self, operation: Operation, attempt: Callable[[], Awaitable[T]]) -> T:
        return await with_retries(
            self._host, self, self._retry_policy, operation, attempt, self._timeout_seconds
        )

    def _change_view(self, snapshot: ClusterSnapshot) -> None:
        if self._connections is not None:
            self._connections.change_view(snapshot.partitions)
        self._streams.change_view(snapshot)

    def _check_partition(self, partition_id: int) -> None:
        self._streams.check_open()
        if not 0 <= partition_id < self.partition_count:
            raise NotFoundError(
                f"there is no partition {partition_id}; expected 0 to {self.partition_count - 1}"
            )

    def _end(self, error: Exception) -> None:
        """End all reads with `error`."""
        self._streams.end(error)
        if self._requests is not None:
            self._requests.stop(self._streams.error)
        if self._connections is not None:
            self._connections.stop()


def _take_histories(_: Histories) -> None:
    """Each read looks at the histories for itself, as far as it has come."""


def _ignore_generation(_: PartitionId, __: Generation) -> None:
    """Only appends carry generations."""
