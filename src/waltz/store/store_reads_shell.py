"""Reads committed records of one partition from its replicas.

Owns the choice of the replica that answers a read, and the reads that wait for a session. Must not
know appends, nor when sessions begin and end: it is told, and asks the session keeper who has what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from waltz.errors import (
    ConnectionLostError,
    PartitionNotReadyError,
    RemoteStorageError,
    UnavailableError,
    UnreadableError,
    WaltzError,
)
from waltz.host import Clock
from waltz.limits import RECORD_LIST_RECORDS_MAX, STORAGE_REQUEST_SECONDS_MAX
from waltz.machine_shell import Mailbox
from waltz.record import RecordBatch, empty_batch
from waltz.store.messages import RequestFrames, records_or_headers
from waltz.store.read_router import ReadRouter
from waltz.store.requests import ReadFromReplica, ReadHeaders, ReplicaLink
from waltz.store.routed_read import (
    HolderFailed,
    HoldersSeen,
    ReadEvent,
    RecordsArrived,
    RoutedRead,
)
from waltz.store.session_keeper import SessionKeeper
from waltz.store.storage_connections_shell import StorageExchange
from waltz.types import PartitionId, TransactionId
from waltz.wire.header_columns import HeaderColumns, header_columns
from waltz.wire.storage_protocol import StorageMessage


class StoreReads:
    """The reads of one partition's store; `exchanges` are the connections to its replicas."""

    def __init__(
        self,
        clock: Clock,
        partition_id: PartitionId,
        keeper: SessionKeeper,
        exchanges: Mapping[ReplicaLink, StorageExchange],
        frames: RequestFrames,
        suspect: Callable[[ReplicaLink], None],
    ) -> None:
        """`suspect` is called for a replica that refuses a read, which may have damage."""
        self.opened = asyncio.Event()
        """Set while a session is open, and at the end."""
        self._clock = clock
        self._partition_id = partition_id
        self._keeper = keeper
        self._exchanges = exchanges
        self._frames = frames
        self._suspect = suspect
        self._router = ReadRouter()
        self._is_over = False

    def end(self) -> None:
        """Let all reads fail: the partition is not run any more."""
        self._is_over = True
        self.opened.set()

    async def read(self, first: TransactionId, count_max: int) -> RecordBatch:
        """Return committed records from `first` on: at least one unless `first` is beyond the last.

        Raises UnavailableError: no session is open, or no replica that holds the record has
        answered in `READ_SECONDS_MAX`; the text says what each said.
        """
        batch = await self._read(ReadFromReplica(first, count_max, None))
        assert isinstance(batch, RecordBatch)
        return batch

    async def read_headers(self, first: TransactionId, count_max: int) -> HeaderColumns:
        """Return what `read` would, without the data, which a replica of this release does not
        send."""
        batch = await self._read(ReadHeaders(first, count_max))
        return header_columns(batch) if isinstance(batch, RecordBatch) else batch

    async def _read(self, wanted: ReadFromReplica | ReadHeaders) -> RecordBatch | HeaderColumns:
        """Ask for headers where they are known, else for records. Raises as `read`."""
        first = wanted.first
        mark = await self._committed()
        count = min(wanted.count_max, mark - first + 1, RECORD_LIST_RECORDS_MAX)
        if count <= 0:
            return empty_batch(first)
        wanted = replace(wanted, count_max=count)
        clock = self._clock
        read = RoutedRead(self._router, first, clock.now())
        answers: Mailbox[ReadEvent] = Mailbox(clock, len(self._exchanges) + 1)
        events: Sequence[ReadEvent] = ()
        while True:
            able = [link for link in self._keeper.holders(first) if link in self._exchanges]
            for effect in read.step([HoldersSeen(tuple(able)), *events], clock.now()):
                self._ask(effect.link, wanted, answers)
            if read.batch is not None:
                return read.batch
            if read.failure is not None or self._is_over or self._keeper.closed:
                kind = UnreadableError if read.is_unreadable else UnavailableError
                raise kind(
                    f"cannot read transaction {first} of partition {self._partition_id}:"
                    f" {read.failure or 'it was closed'}"
                )
            events = await answers.drain(until=read.deadline)

    async def _committed(self) -> TransactionId:
        """Return the last committed transaction, once a session is open."""
        try:
            async with asyncio.timeout(STORAGE_REQUEST_SECONDS_MAX):
                while (mark := self._keeper.high_water_mark) is None:
                    if self._is_over or self._keeper.closed:
                        raise PartitionNotReadyError(f"partition {self._partition_id} was closed")
                    await self.opened.wait()
        except TimeoutError:
            raise PartitionNotReadyError(
                f"partition {self._partition_id} has had no store session for"
                f" {STORAGE_REQUEST_SECONDS_MAX:g} s"
            ) from None
        return mark

    def _ask(
        self,
        link: ReplicaLink,
        wanted: ReadFromReplica | ReadHeaders,
        answers: Mailbox[ReadEvent],
    ) -> None:
        exchange, request = self._exchanges[link], wanted
        if isinstance(wanted, ReadHeaders) and not exchange.gives_headers:
            request = ReadFromReplica(wanted.first, wanted.count_max, None)

        def done(result: StorageMessage | WaltzError) -> None:
            try:
                if isinstance(result, WaltzError):
                    raise result
                batch = records_or_headers(request, result)
                answers.put(RecordsArrived(link, batch.slice(request.first, request.count_max)))
            except WaltzError as error:
                has_answered = isinstance(error, RemoteStorageError)
                answers.put(HolderFailed(link, str(error), has_answered))
                if has_answered:
                    self._suspect(link)

        try:
            exchange.request(partial(self._frames.frame, request, link), done)
        except ConnectionLostError as error:
            answers.put(HolderFailed(link, str(error), False))
