"""The queue of one partition: requests of all connections, in order of arrival.

Owns back pressure and the hand-over to worker threads. All waiting requests are processed together,
in a thread; while their one sync runs, the next requests gather. Decides nothing about requests.

A small append costs what it wakes: no task, future or lock of the loop is between the read that
brings requests, the thread, and the write of the answers.

A partition that fails by a bug ends alone: all its waiting and later requests are refused, and it
is not touched any more, for its state in memory cannot be trusted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from waltz.access.permissions import Permissions
from waltz.errors import UnavailableError
from waltz.figures import Durations
from waltz.host import Connection, Host
from waltz.limits import DRAIN_BYTES_MAX
from waltz.storage.drain import REFUSALS, Drain, failure
from waltz.storage.journal.paced_journal_shell import PacedJournal
from waltz.storage.journal.pacing import LogWorked
from waltz.storage.partition_replica import StoragePartition
from waltz.storage.storage_metrics import AssignedPartitionState, partition_state
from waltz.types import PartitionId, TransactionId
from waltz.wire.handshake import Link
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
    permissions: Permissions | None = None
    """None until the peer has sent something: only then its certificate is verified."""
    _holds: int = 0
    """Holders of the peer: its own task, and partitions without room."""

    def send(self, messages: Sequence[Message]) -> None:
        """Send `messages` with one write."""
        if not self.is_gone:
            self.connection.send(b"".join(map(self.link.encode, messages)))

    def hold(self) -> None:
        """Read no more from the peer until `release` was called as often."""
        self._holds += 1
        if self._holds == 1:
            self.connection.pause_reading()

    def release(self) -> None:
        self._holds -= 1
        if not self._holds:
            self.connection.resume_reading()


class _Requests:
    """Requests that one read of a peer has brought; `size` is the bytes of their records."""

    __slots__ = ("messages", "peer", "size")

    def __init__(self, peer: StoragePeer, messages: Sequence[StorageMessage]) -> None:
        self.peer = peer
        self.messages = messages
        self.size = 0
        for message in messages:
            if type(message) is AppendRecordsRequest:
                self.size += len(message.records.block)

    def refuse(self, error: UnavailableError) -> None:
        self.peer.send([failure(message, error) for message in self.messages])


class _Command:
    """A function to call in the partition's turn, and what is to be told of its result."""

    __slots__ = ("function", "result")

    def __init__(
        self, function: Callable[[], object], result: asyncio.Future[Any] | None = None
    ) -> None:
        self.function = function
        self.result = result

    def refuse(self, error: UnavailableError) -> None:
        if self.result is not None and not self.result.done():
            self.result.set_exception(error)


class _Pause:
    """A time in which no thread works in the partition; it begins with `begun`."""

    __slots__ = ("begun",)

    def __init__(self, begun: asyncio.Future[None]) -> None:
        self.begun = begun

    def refuse(self, _: UnavailableError) -> None:
        """Begin: nothing works in the partition any more."""
        if not self.begun.done():
            self.begun.set_result(None)


_Work = list[_Requests] | _Command | _Pause


class PartitionQueue:
    """The requests that wait for one partition, and what a thread does for it now."""

    def __init__(
        self,
        host: Host,
        partition: StoragePartition,
        writer_closed: Callable[[], None] = lambda: None,
        failed: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """`writer_closed` is called when a failure has ended the partition's writer, `failed` when
        a bug has ended the partition."""
        self.partition = partition
        self._writer_closed = writer_closed
        self._tell_failed = failed
        self._drain_seconds = Durations()
        """Durations of drains that synced: to the thread, the writes, the sync, and back."""
        self._clock = host.clock
        self._workers = host.workers
        self._waiting: list[_Requests | _Command | _Pause] = []
        """All that waits, in order of arrival."""
        self._waiting_requests = 0
        """Requests among what waits."""
        self._unanswered_bytes = 0
        """Bytes of all requests that wait or are under way."""
        self._under_way: _Work | None = None
        self._held: list[StoragePeer] = []
        """Peers that wait for room."""
        self.failed: Exception | None = None
        """The bug that has ended the partition."""
        self._stopped = False
        self._call_began: float | None = None
        self.next_transaction_id = partition.log.next_transaction_id
        """One past the last durable record when the last call returned: while a thread works in the
        partition, its own number may count records that are not synced yet."""
        self.journal = PacedJournal(
            host.clock,
            partition.journal,
            partition.log,
            lambda write: self._put(_Command(write)),
        )

    def state(self, *, scrub_position: TransactionId) -> AssignedPartitionState | None:
        """Return the partition's state; None: it is not assigned."""
        began = self._call_began
        return partition_state(
            self.partition,
            next_transaction_id=self.next_transaction_id,
            drain_seconds=self._drain_seconds,
            scrub_position=scrub_position,
            queue_requests=self._waiting_requests,
            queue_bytes=self._unanswered_bytes,
            call_seconds=0.0 if began is None else self._clock.now() - began,
            failure=None if self.failed is None else repr(self.failed),
        )

    @property
    def has_damage(self) -> bool:
        return bool(self.partition.log.damage)

    @property
    def is_busy(self) -> bool:
        return self._under_way is not None or len(self._waiting) > 0

    @property
    def is_waited_for(self) -> bool:
        """Whether anything waits for the call under way, whose thread may ask this."""
        return len(self._waiting) > 0

    # What comes

    def put(self, peer: StoragePeer, messages: Sequence[StorageMessage]) -> None:
        """Queue requests that one read of `peer` has brought. While the partition has no room, by
        count or by bytes, the peer is held."""
        requests = _Requests(peer, messages)
        if self.failed is not None:
            requests.refuse(_failed(self.partition.partition_id, self.failed))
            return
        if self._stopped:
            return  # the sender finds its connection lost
        self._waiting_requests += len(messages)
        self._unanswered_bytes += requests.size
        self._waiting.append(requests)
        if not self._has_room:
            self._held.append(peer)
            peer.hold()
        # Last: the thread that wakes needs the interpreter, which this one is about to leave.
        if self._under_way is None:
            self._begin_call()

    async def command(self, function: Callable[[], T]) -> T:
        """Run `function` in a worker, after the requests that wait already, and return its result.

        Raises what it raises; UnavailableError: the node stops, or the partition has failed.
        """
        if self.failed is not None:
            raise _failed(self.partition.partition_id, self.failed)
        if self._stopped:
            raise _stopping()
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(_Command(function, result))
        return await result

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """Let no thread work in the partition meanwhile, once what waits already is done."""
        pause = _Pause(asyncio.get_running_loop().create_future())
        if self._stopped or self.failed is not None:
            yield
            return
        self._put(pause)
        try:
            await pause.begun
            yield
        finally:
            pause.begun.cancel()
            if self._under_way is pause:
                self._end_call()

    async def stop(self) -> None:
        """Process the requests that wait already, and no more."""

        def close() -> None:
            self._stopped = True
            self.journal.close()
            self.partition.close()

        await self.command(close)

    @property
    def _has_room(self) -> bool:
        return (
            self._waiting_requests < STORAGE_MAILBOX_REQUESTS_MAX
            and self._unanswered_bytes < DRAIN_BYTES_MAX
        )

    # Calls to the thread

    def _put(self, event: _Requests | _Command | _Pause) -> None:
        self._waiting.append(event)
        if self._under_way is None:
            self._begin_call()

    def _begin_call(self) -> None:
        """Begin with what waits next, if anything does: either requests, at most those that
        one drain may have, or something else."""
        assert self._under_way is None
        while self._waiting and not self._stopped:
            first = self._waiting[0]
            if type(first) is _Requests:
                self._under_way = requests = _take_requests(self._waiting)
                self._waiting_requests -= sum(len(each.messages) for each in requests)
                self._call_began = self._clock.now()
                began = self._clock.wall_milliseconds()
                self._workers.start(partial(self._drain, requests, began))
                return
            del self._waiting[0]
            if isinstance(first, _Command):
                self._under_way = first
                self._call_began = self._clock.now()
                self._workers.start(partial(self._perform, first))
                return
            if isinstance(first, _Pause) and not first.begun.done():
                self._under_way = first
                first.begun.set_result(None)
                return

    def _end_call(self) -> None:
        """Go on with what waits."""
        self._under_way = None
        self._call_began = None
        if self._stopped:
            waiting, self._waiting = self._waiting, []
            for event in waiting:
                if not isinstance(event, _Requests):  # its sender finds the connection lost
                    event.refuse(_stopping())
            self._forget_waiting()
            return
        if self._waiting:
            self._begin_call()
        if self._held and self._has_room:
            self._release_held()

    def _drain(self, requests: Sequence[_Requests], began: int) -> Callable[[], object]:
        """Process requests; return what answers them on the loop. Runs in a thread, handed over at
        time `began` of the wall clock."""
        partition = self.partition
        chain, journal = partition.log, partition.journal
        try:
            had_failed = partition.writer.failure is not None
            synced = partition.counters.drains_synced
            segment, following = chain.end
            messages: list[StorageMessage] = []
            for each in requests:
                messages += each.messages
            answers = Drain(partition, messages).run()
            has_failed = partition.writer.failure is not None
            now_segment, now_following = chain.end
            self.next_transaction_id = now_following
            notes = journal.take_notes() if journal.notes else ()
            worked = None
            if not has_failed and chain.is_open and (now_following != following or notes):
                worked = LogWorked(
                    journal.openings,
                    segment,
                    now_segment,
                    TransactionId(following - 1),
                    began,
                    TransactionId(now_following - 1),
                    self._clock.wall_milliseconds(),
                    notes,
                )
            has_synced = partition.counters.drains_synced > synced
            return partial(self._answer, answers, worked, has_synced, has_failed and not had_failed)
        except Exception as error:
            return partial(self._fail, error)

    def _answer(
        self,
        answers: Sequence[StorageMessage],
        worked: LogWorked | None,
        has_synced: bool,
        has_closed: bool,
    ) -> None:
        """Send the answers of a drain, and go on."""
        requests = self._under_way
        assert isinstance(requests, list)
        assert self._call_began is not None
        try:
            now = self._clock.now()
            if has_synced:
                self._drain_seconds.add(now - self._call_began)
            by_peer: dict[StoragePeer, list[StorageMessage]] = {}
            position = 0
            for each in requests:
                end = position + len(each.messages)
                by_peer.setdefault(each.peer, []).extend(answers[position:end])
                position = end
                self._unanswered_bytes -= each.size
            self._under_way = []  # each request is answered once, whatever follows
            for peer, its_answers in by_peer.items():
                peer.send(its_answers)
            if has_closed:
                log.error("writer_closed partition=%d", self.partition.partition_id)
                self._writer_closed()
            if worked is not None:
                write = self.journal.take(worked, now)
                if write is not None:
                    self._waiting.insert(0, _Command(write))
                self.journal.watch()
        except Exception as error:
            self._fail(error)
            return
        self._end_call()

    def _perform(self, command: _Command) -> Callable[[], object]:
        """Call a command's function; return what tells of its result. Runs in a thread."""
        synced = self.partition.counters.drains_synced
        error: Exception | None = None
        result: object = None
        try:
            result = command.function()
        except REFUSALS as refusal:
            error = refusal
        except Exception as bug:
            return partial(self._fail, bug)
        self.next_transaction_id = self.partition.log.next_transaction_id
        has_synced = self.partition.counters.drains_synced > synced
        return partial(self._tell_result, command, result, error, has_synced)

    def _tell_result(
        self, command: _Command, result: object, error: Exception | None, has_synced: bool
    ) -> None:
        if has_synced and self._call_began is not None:
            self._drain_seconds.add(self._clock.now() - self._call_began)
        if command.result is not None and not command.result.done():
            if error is None:
                command.result.set_result(result)
            else:
                command.result.set_exception(error)
        self._end_call()

    # The end

    def _fail(self, error: Exception) -> None:
        """End the partition: a bug has shown itself. Requests under way may have been carried
        out."""
        log.error("partition_failed partition=%d", self.partition.partition_id, exc_info=error)
        self.failed = error
        under_way, self._under_way = self._under_way, None
        waiting, self._waiting = self._waiting, []
        self._call_began = None
        self.next_transaction_id = self.partition.log.next_transaction_id
        first = under_way if isinstance(under_way, list) else [under_way]
        for event in (*first, *waiting):
            if event is not None:
                event.refuse(_failed(self.partition.partition_id, error))
        self._forget_waiting()
        self._tell_failed(error)

    def _forget_waiting(self) -> None:
        self._waiting_requests = self._unanswered_bytes = 0
        self.journal.forget()
        self._release_held()

    def _release_held(self) -> None:
        held, self._held = self._held, []
        for peer in held:
            peer.release()


def _take_requests(waiting: list[_Requests | _Command | _Pause]) -> list[_Requests]:
    """Take off `waiting` the requests that come next, at most those that one drain may have."""
    taken: list[_Requests] = []
    size = 0
    for event in waiting:
        if type(event) is not _Requests or (taken and size + event.size > DRAIN_BYTES_MAX):
            break
        taken.append(event)
        size += event.size
    del waiting[: len(taken)]
    return taken


def _failed(partition_id: PartitionId, error: Exception) -> UnavailableError:
    return UnavailableError(
        f"partition {partition_id} has failed on this node, until the node is started again:"
        f" {error!r}"
    )


def _stopping() -> UnavailableError:
    return UnavailableError("the storage node is stopping")
