"""The queue of one partition: requests of all connections, in order of arrival.

Owns back pressure and the hand-over to worker threads. All waiting requests are processed together,
in a thread; while their one sync runs, the next requests gather. Decides nothing about requests.

A partition that fails by a bug ends alone: all its waiting and later requests are refused, and it
is not touched any more, for its state in memory cannot be trusted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from waltz.errors import UnavailableError
from waltz.figures import Durations
from waltz.host import Connection, Host
from waltz.limits import DRAIN_BYTES_MAX
from waltz.machine_shell import Mailbox
from waltz.storage.drain import REFUSALS, Drain, failure
from waltz.storage.journal.pacing import JournalPacing, LogWorked
from waltz.storage.journal.partition_journal import JournalPart
from waltz.storage.partition_replica import StoragePartition
from waltz.storage.storage_metrics import AssignedPartitionState, partition_state
from waltz.types import TransactionId
from waltz.wire.handshake import Link
from waltz.wire.journal_entries import JournalEntry
from waltz.wire.message import Message
from waltz.wire.storage_protocol import AppendRecordsRequest, StorageMessage

STORAGE_MAILBOX_REQUESTS_MAX: Final = 1_000
"""Requests that wait for one partition before its connections are no longer read."""


T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class StoragePeer:
    """One accepted connection."""

    connection: Connection
    link: Link
    is_opened: bool = False
    """Whether the peer has shown that it belongs to this cluster."""
    is_gone: bool = False

    def send(self, messages: Sequence[Message]) -> None:
        """Send `messages` with one write."""
        if not self.is_gone:
            self.connection.write(b"".join(map(self.link.encode, messages)))


class PartitionRequest:
    """A request of a peer; `size` is the bytes of its records."""

    __slots__ = ("message", "peer", "size")

    def __init__(self, peer: StoragePeer, message: StorageMessage) -> None:
        self.peer = peer
        self.message = message
        self.size = len(message.records.block) if type(message) is AppendRecordsRequest else 0


@dataclass(slots=True, eq=False)
class _Command:
    """A function to call in the partition's turn."""

    function: Callable[[], object]
    result: asyncio.Future[object]


class PartitionQueue:
    """The requests that wait for one partition, and the loop that processes them."""

    def __init__(
        self,
        host: Host,
        partition: StoragePartition,
        writer_closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`writer_closed` is called when a failure has ended the partition's writer."""
        self.partition = partition
        self._writer_closed = writer_closed
        self._drain_seconds = Durations()
        """Durations of drains that synced: to the thread, the writes, the sync, and back."""
        self._clock = host.clock
        self._workers = host.workers
        self._mailbox: Mailbox[PartitionRequest | _Command] = Mailbox(
            host.clock, STORAGE_MAILBOX_REQUESTS_MAX
        )
        self._unfinished: dict[PartitionRequest | _Command, None] = {}
        """Requests and commands that wait or are under way, in order."""
        self.failed: Exception | None = None
        """The bug that has ended the partition."""
        self.turn = asyncio.Lock()
        """Held while a thread works in the partition; a task that holds it holds up the
        partition."""
        self._waiting_bytes = 0
        self._has_room = asyncio.Event()
        self._stopped = False
        self._call_began: float | None = None
        self._next_transaction_id = partition.log.next_transaction_id
        """As it was when the last call returned."""
        self._pacing = JournalPacing()
        self._journal_timer: asyncio.TimerHandle | None = None
        """Set while records wait for their time to be written: one timer for all drains of a
        second."""

    def state(self, *, scrub_position: TransactionId) -> AssignedPartitionState | None:
        """Return the partition's state; None: it is not assigned."""
        began = self._call_began
        return partition_state(
            self.partition,
            next_transaction_id=self._next_transaction_id,
            drain_seconds=self._drain_seconds,
            scrub_position=scrub_position,
            queue_requests=len(self._mailbox.events),
            queue_bytes=self._waiting_bytes,
            call_seconds=0.0 if began is None else self._clock.now() - began,
            failure=None if self.failed is None else repr(self.failed),
        )

    @property
    def next_transaction_id(self) -> TransactionId:
        """One past the last durable record when the last call returned: while a thread works in the
        partition, its own number may count records that are not synced yet."""
        return self._next_transaction_id

    @property
    def has_damage(self) -> bool:
        return bool(self.partition.log.damage)

    @property
    def is_busy(self) -> bool:
        return len(self._unfinished) > 0

    @property
    def is_waited_for(self) -> bool:
        """Whether anything waits for the call under way, whose thread may ask this."""
        return len(self._unfinished) > 1

    async def put(self, request: PartitionRequest) -> None:
        """Wait for room, by count and by bytes, then queue `request`."""
        await self._mailbox.room()
        while self._waiting_bytes >= DRAIN_BYTES_MAX:
            if self._stopped or self.failed is not None:
                break
            self._has_room.clear()
            await self._has_room.wait()
        if self.failed is not None:
            self._refuse(request, self.failed)
            return
        self._waiting_bytes += request.size
        self._unfinished[request] = None
        self._mailbox.put(request)

    async def command(self, function: Callable[[], T]) -> T:
        """Run `function` in a worker, after the requests that wait already, and return its result.

        Raises what it raises; UnavailableError: the node stops, or the partition has failed.
        """
        if self.failed is not None:
            raise self._refusal(self.failed)
        if self._stopped:
            raise _stopping()
        result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        command = _Command(function, result)
        self._unfinished[command] = None
        self._mailbox.put(command)
        return await result  # type: ignore[return-value]

    async def stop(self) -> None:
        """Let `run` end after the requests that wait already."""

        def close() -> None:
            self._stopped = True
            partition = self.partition
            partition.journal.write(self._pacing.flush(), partition.log.newest_segment)
            partition.close()

        await self.command(close)

    async def run(self) -> None:
        """Process requests until the queue is stopped or the partition has failed."""
        try:
            while not self._stopped:
                for work in _in_turn(await self._mailbox.drain(None)):
                    if isinstance(work, list):
                        await self._process(work)
                    else:
                        await self._perform(work)
        except Exception as error:
            log.exception("partition_failed partition=%d", self.partition.partition_id)
            self.failed = error
            for event in self._unfinished:
                self._refuse(event, error)
            self._unfinished.clear()
            self._waiting_bytes = 0
        if self._journal_timer is not None:
            self._journal_timer.cancel()
        self._has_room.set()
        if self._mailbox.events:
            for event in await self._mailbox.drain(None):
                _drop(event)

    async def _process(self, requests: Sequence[PartitionRequest]) -> None:
        if self._stopped:
            return  # the senders find their connections lost
        partition = self.partition
        had_failed = partition.writer.failure is not None
        messages = [request.message for request in requests]
        began = self._clock.wall_milliseconds()
        answers, worked = await self._call(partial(self._drain, messages, began))
        by_peer: dict[StoragePeer, list[Message]] = {}
        for request, answer in zip(requests, answers, strict=True):
            by_peer.setdefault(request.peer, []).append(answer)
            self._waiting_bytes -= request.size
            del self._unfinished[request]
        for peer, peer_answers in by_peer.items():
            peer.send(peer_answers)
        self._has_room.set()
        if partition.writer.failure is not None and not had_failed:
            log.error("writer_closed partition=%d", partition.partition_id)
            self._writer_closed()
        if worked is not None:
            if entries := self._pacing.step((worked,), self._clock.now()):
                await self._write_journal(entries, worked.segment_before)
            elif self._journal_timer is None:
                self._watch_journal()

    def _drain(
        self, messages: Sequence[StorageMessage], began: int
    ) -> tuple[Sequence[StorageMessage], LogWorked | None]:
        """Return the answers, and what there is to note of the drain, which began at that time of
        the wall clock. Runs in a thread."""
        partition = self.partition
        chain, journal = partition.log, partition.journal
        segment, last = chain.newest_segment, chain.next_transaction_id - 1
        answers = Drain(partition, messages).run()
        notes = journal.take_notes()
        if partition.writer.failure is not None or not chain.is_open:
            return answers, None
        now_last = chain.next_transaction_id - 1
        if now_last == last and not notes:
            return answers, None
        return answers, LogWorked(
            journal.openings,
            segment,
            chain.newest_segment,
            TransactionId(last),
            began,
            TransactionId(now_last),
            self._clock.wall_milliseconds(),
            notes,
        )

    async def _write_journal(self, entries: Sequence[JournalEntry], since: TransactionId) -> None:
        """Write what is due. The answers to all that it tells of were sent."""
        async with self.turn:
            write = partial(self.partition.journal.write, entries, since)
            await self._workers.run_blocking(write)

    def _watch_journal(self) -> None:
        """Have what waits to be written be written in its time, if there is anything."""
        self._journal_timer = None
        deadline = self._pacing.deadline
        if deadline is None or self._stopped or self.failed is not None:
            return
        seconds = deadline - self._clock.now()
        if seconds > 0.0:
            loop = asyncio.get_running_loop()
            self._journal_timer = loop.call_later(seconds, self._watch_journal)
            return
        written: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        command = _Command(self._write_due, written)
        self._unfinished[command] = None
        self._mailbox.put(command)

    def _write_due(self) -> None:
        entries = self._pacing.step((), self._clock.now())
        self.partition.journal.write(entries, self.partition.log.newest_segment)

    async def journal_part(self, first: TransactionId, last: TransactionId) -> JournalPart:
        """Return what the journal has of the transactions from `first` on, with what waits to be
        written. Raises as `command`, and OSError, CorruptionError."""

        def part() -> JournalPart:
            self.partition.promises.check_assigned()
            journal = self.partition.journal
            journal.write(self._pacing.flush(), self.partition.log.newest_segment)
            return journal.part(first, last)

        return await self.command(part)

    async def _call(self, function: Callable[[], T]) -> T:
        async with self.turn:
            partition = self.partition
            synced = partition.counters.drains_synced
            began = self._call_began = self._clock.now()
            try:
                return await self._workers.run_blocking(function)
            finally:
                self._call_began = None
                self._next_transaction_id = partition.log.next_transaction_id
                if partition.counters.drains_synced > synced:
                    self._drain_seconds.add(self._clock.now() - began)

    async def _perform(self, command: _Command) -> None:
        if self._stopped:
            _drop(command)
            return
        try:
            result = await self._call(command.function)
        except REFUSALS as error:
            if not command.result.done():
                command.result.set_exception(error)
        else:
            if not command.result.done():
                command.result.set_result(result)
        del self._unfinished[command]

    def _refusal(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"partition {self.partition.partition_id} has failed on this node, until the node is"
            f" started again: {error!r}"
        )

    def _refuse(self, event: PartitionRequest | _Command, error: Exception) -> None:
        """Answer that the partition has failed; the request may have been carried out."""
        if isinstance(event, PartitionRequest):
            event.peer.send([failure(event.message, self._refusal(error))])
        elif not event.result.done():
            event.result.set_exception(self._refusal(error))


def _in_turn(
    events: Sequence[PartitionRequest | _Command],
) -> list[_Command | list[PartitionRequest]]:
    """Return the events in order, with the requests between two commands together, as far as a
    drain's bound allows."""
    works: list[_Command | list[PartitionRequest]] = []
    size = 0
    for event in events:
        last = works[-1] if works else None
        if isinstance(event, _Command):
            works.append(event)
        elif isinstance(last, list) and size + event.size <= DRAIN_BYTES_MAX:
            last.append(event)
            size += event.size
        else:
            works.append([event])
            size = event.size
    return works


def _stopping() -> UnavailableError:
    return UnavailableError("the storage node is stopping")


def _drop(event: PartitionRequest | _Command) -> None:
    """Refuse a command because the node stops; the sender of a request finds its connection
    lost."""
    if isinstance(event, _Command) and not event.result.done():
        event.result.set_exception(_stopping())
