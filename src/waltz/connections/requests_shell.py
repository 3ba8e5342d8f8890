"""The calls that wait for bodies and high-water marks, and the loop that gets them.

`PendingRequests` decides; this module has the futures.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, assert_never

from waltz.connections.loop_thread import WaitingThread
from waltz.connections.pending_requests import (
    AheadRefused,
    Answered,
    BodiesWanted,
    BreakConnection,
    DataArrived,
    Effect,
    Event,
    MarkArrived,
    MarkWanted,
    PartitionAttached,
    PartitionDetached,
    PendingRequests,
    SendRequests,
)
from waltz.connections.retry import Operation
from waltz.connections.tasks_shell import Tasks
from waltz.errors import ClientClosedError, ConnectionLostError
from waltz.host import Host
from waltz.limits import CLIENT_MAILBOX_EVENTS_MAX
from waltz.machine_shell import Mailbox, run
from waltz.types import ClientId, PartitionId, TransactionId
from waltz.wire.message import Message


class TakesAhead(Protocol):
    """Keeps bodies that are requested before anybody waits for them."""

    def take(self, transaction_id: TransactionId, data: bytes) -> None: ...

    def find(self, transaction_id: TransactionId) -> bytes | None:
        """Return a body that was taken, if it is still kept."""
        ...


class _Fetch:
    """One caller that waits for several bodies."""

    __slots__ = ("found", "future", "missing")

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self.found: dict[TransactionId, bytes] = {}
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, transaction_id: TransactionId, data: bytes) -> None:
        self.found[transaction_id] = data
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # the caller may have gone


class Requests:
    """Fetches bodies and high-water marks, through lost connections and moved partitions.

    A side of `Connections`, through which it sends from `start` on.
    """

    _send: Callable[[int, Sequence[Message]], object]
    _break_off: Callable[[int, str], None]

    def __init__(self, host: Host, tasks: Tasks, client_id: ClientId) -> None:
        self._host = host
        self._tasks = tasks
        self._machine = PendingRequests(client_id)
        self._mailbox: Mailbox[Event] = Mailbox(host.clock, CLIENT_MAILBOX_EVENTS_MAX)
        self._fetches: dict[
            tuple[PartitionId, TransactionId], list[_Fetch | WaitingThread[bytes]]
        ] = {}
        self._ahead: dict[tuple[PartitionId, TransactionId], TakesAhead] = {}
        self._marks: dict[PartitionId, dict[asyncio.Future[TransactionId], int]] = {}
        """The callers that wait for a mark, with their numbers."""
        self._numbers = itertools.count(1)
        self._fragile: dict[PartitionId, dict[asyncio.Future[Any], Operation]] = {}
        """Calls that end with the connection they were sent on."""
        self._closed: Exception | None = None

    def start(
        self,
        send: Callable[[int, Sequence[Message]], object],
        break_off: Callable[[int, str], None],
    ) -> None:
        """`send` and `break_off` are those of `Connections`."""
        self._send, self._break_off = send, break_off
        self._tasks.start(run(self._machine, self._mailbox, self._host, self._perform))

    async def fetch(
        self,
        partition_id: PartitionId,
        transaction_ids: Sequence[TransactionId],
        *,
        fragile: bool = False,
    ) -> list[bytes]:
        """Return the bodies of transactions that were fed, in the order asked for.

        Waits without limit. Raises ClientClosedError; if `fragile` ConnectionLostError.
        """
        self._check_open()
        if not transaction_ids:
            return []
        fetch = _Fetch(len(transaction_ids))
        for transaction_id in transaction_ids:
            self._fetches.setdefault((partition_id, transaction_id), []).append(fetch)
        self._mailbox.put(BodiesWanted(partition_id, transaction_ids))
        if fragile:
            self._break_with_connection(partition_id, fetch.future, Operation.TRANSACTION_DATA)
        await fetch.future
        return [fetch.found[transaction_id] for transaction_id in transaction_ids]

    def fetch_for_thread(
        self, thread: WaitingThread[bytes], partition_id: PartitionId, transaction_id: TransactionId
    ) -> None:
        """Get the body of a transaction that was fed. `thread` is told ConnectionLostError if the
        connection ends first."""
        if self._closed is not None:
            thread.fail(self._closed)
            return
        self._fetches.setdefault((partition_id, transaction_id), []).append(thread)
        self._mailbox.put(BodiesWanted(partition_id, (transaction_id,)))

    def fetch_ahead(
        self,
        partition_id: PartitionId,
        transaction_ids: Sequence[TransactionId],
        taker: TakesAhead,
    ) -> None:
        """Request bodies of transactions that were fed, for `taker` to keep."""
        if self._closed is not None:
            return
        for transaction_id in transaction_ids:
            self._ahead[partition_id, transaction_id] = taker
        self._mailbox.put(BodiesWanted(partition_id, transaction_ids, is_ahead=True))

    async def high_water_mark(
        self, partition_id: PartitionId, *, fragile: bool = False
    ) -> TransactionId:
        """Return the partition's high-water mark as its server knows it after this call.

        Waits without limit. Raises ClientClosedError; if `fragile` ConnectionLostError.
        """
        self._check_open()
        future: asyncio.Future[TransactionId] = asyncio.get_running_loop().create_future()
        waiting = self._marks.setdefault(partition_id, {})
        waiting[future] = number = next(self._numbers)
        self._mailbox.put(MarkWanted(partition_id, number))
        if fragile:
            self._break_with_connection(partition_id, future, Operation.HIGH_WATER_MARK)
        try:
            return await future
        finally:
            del waiting[future]

    def _break_with_connection(
        self, partition_id: PartitionId, future: asyncio.Future[Any], operation: Operation
    ) -> None:
        fragile = self._fragile.setdefault(partition_id, {})
        fragile[future] = operation
        future.add_done_callback(lambda done: fragile.pop(done, None))

    def stop(self, reason: Exception | None = None) -> None:
        """End all waiting calls with `reason`, by default ClientClosedError."""
        self._closed = (
            self._closed
            or reason
            or ClientClosedError("the connections are closed; no server can be asked")
        )
        error = reason or ClientClosedError(
            "the connections were closed while a call waited for a server's answer"
        )
        for fetches in self._fetches.values():
            for fetch in fetches:
                fetch.fail(error)
        for futures in self._marks.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # the caller may have gone
        self._fetches.clear()
        self._ahead.clear()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    # As a side of `Connections`

    def attach(
        self, partition_id: PartitionId, connection_sequence: int, *, knows_batches: bool
    ) -> None:
        self._mailbox.put(PartitionAttached(partition_id, connection_sequence))

    def detach(self, partition_id: PartitionId, connection_sequence: int) -> None:
        self._mailbox.put(PartitionDetached(partition_id, connection_sequence))
        for future, operation in list(self._fragile.get(partition_id, {}).items()):
            if not future.done():
                future.set_exception(_lost(operation, partition_id))
        for (its_partition_id, _), fetches in self._fetches.items():
            if its_partition_id == partition_id:
                for fetch in fetches:
                    if isinstance(fetch, WaitingThread):
                        fetch.fail(_lost(Operation.TRANSACTION_DATA, partition_id))

    async def receive(self, connection_sequence: int, messages: Sequence[Message]) -> None:
        jitter = self._host.random.uniform(0.0, 1.0)
        self._mailbox.put(Answered(connection_sequence, messages, jitter))
        await self._mailbox.room()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case DataArrived():
                key = effect.partition_id, effect.transaction_id
                if (taker := self._ahead.pop(key, None)) is not None:
                    taker.take(effect.transaction_id, effect.data)
                for waiting in self._fetches.pop(key, ()):
                    if isinstance(waiting, WaitingThread):
                        waiting.give(effect.data)
                    else:
                        waiting.take(effect.transaction_id, effect.data)
            case AheadRefused(partition_id, transaction_id):
                self._ahead.pop((partition_id, transaction_id), None)
            case SendRequests():
                self._send(effect.connection_sequence, effect.messages)
            case MarkArrived():
                for future, number in self._marks.get(effect.partition_id, {}).items():
                    if number <= effect.number and not future.done():
                        future.set_result(effect.high_water_mark)
            case BreakConnection():
                self._break_off(effect.connection_sequence, effect.reason)
            case _:
                assert_never(effect)


def _lost(operation: Operation, partition_id: PartitionId) -> ConnectionLostError:
    return ConnectionLostError(
        f"{operation.value}: the connection to the server of partition {partition_id} was lost"
    )
