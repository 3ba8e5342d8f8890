"""The calls that wait for bodies and high-water marks, and the loop that gets them.

`PendingRequests` decides; this module has the futures, and the threads that wait.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, assert_never

from waltz.connections.loop_thread import CLOSED, WaitingThread, refuse_on_loop, wait_on_loop
from waltz.connections.pending_requests import (
    AheadRefused,
    Answered,
    BodiesWanted,
    BreakConnection,
    DataArrived,
    Effect,
    Event,
    MarkArrived,
    MarksWanted,
    PartitionAttached,
    PartitionDetached,
    PendingRequests,
    RequestsDenied,
    SendRequests,
)
from waltz.connections.retry import Operation
from waltz.connections.retrying_shell import too_late
from waltz.connections.tasks_shell import Tasks
from waltz.errors import (
    ClientClosedError,
    ConnectionLostError,
    OperationTimeoutError,
    PermissionDeniedError,
)
from waltz.host import Clock, Host
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


class _MarksCall:
    """One caller that waits for the marks of several partitions."""

    __slots__ = ("found", "future", "is_fragile", "missing", "number")

    def __init__(self, partition_ids: Sequence[PartitionId], number: int, is_fragile: bool) -> None:
        self.missing = dict.fromkeys(partition_ids)
        self.number = number
        self.is_fragile = is_fragile
        self.found: dict[PartitionId, TransactionId] = {}
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, partition_id: PartitionId, mark: TransactionId) -> None:
        del self.missing[partition_id]
        self.found[partition_id] = mark
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
        self._fetches: dict[tuple[PartitionId, TransactionId], list[_Fetch]] = {}
        self._threads: dict[tuple[PartitionId, TransactionId], list[WaitingThread[bytes]]] = {}
        """The threads that wait for a body, by its transaction."""
        self._ahead: dict[tuple[PartitionId, TransactionId], TakesAhead] = {}
        self._marks: dict[PartitionId, dict[int, _MarksCall]] = {}
        """The callers that wait for a partition's mark, by their numbers."""
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

        Waits without limit. Raises ClientClosedError, PermissionDeniedError; if `fragile`
        ConnectionLostError.
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
        self._threads.setdefault((partition_id, transaction_id), []).append(thread)
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

        Waits without limit. Raises ClientClosedError, PermissionDeniedError; if `fragile`
        ConnectionLostError.
        """
        return (await self.high_water_marks([partition_id], fragile=fragile))[partition_id]

    async def high_water_marks(
        self, partition_ids: Sequence[PartitionId], *, fragile: bool = False
    ) -> dict[PartitionId, TransactionId]:
        """Return the high-water marks as their servers know them after this call: one question for
        each server, or one for each partition of a server that does not know the question.

        Waits without limit. Raises ClientClosedError, PermissionDeniedError; if `fragile`
        ConnectionLostError.
        """
        self._check_open()
        if not partition_ids:
            return {}
        call = _MarksCall(partition_ids, next(self._numbers), fragile)
        for partition_id in call.missing:
            self._marks.setdefault(partition_id, {})[call.number] = call
        self._mailbox.put(MarksWanted(tuple(call.missing), call.number))
        try:
            await call.future
        finally:
            for partition_id in call.missing:
                self._marks.get(partition_id, {}).pop(call.number, None)
        return {partition_id: call.found[partition_id] for partition_id in partition_ids}

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
        for threads in self._threads.values():
            for thread in threads:
                thread.fail(error)
        for calls in self._marks.values():
            for call in calls.values():
                call.fail(error)
        self._fetches.clear()
        self._threads.clear()
        self._ahead.clear()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    # As a side of `Connections`

    def attach(
        self,
        partition_id: PartitionId,
        connection_sequence: int,
        *,
        knows_batches: bool,
        gives_marks: bool,
    ) -> None:
        self._mailbox.put(PartitionAttached(partition_id, connection_sequence, gives_marks))

    def detach(self, partition_id: PartitionId, connection_sequence: int) -> None:
        self._mailbox.put(PartitionDetached(partition_id, connection_sequence))
        for future, operation in list(self._fragile.get(partition_id, {}).items()):
            if not future.done():
                future.set_exception(_lost(operation, partition_id))
        for call in self._marks.get(partition_id, {}).values():
            if call.is_fragile:
                call.fail(_lost(Operation.HIGH_WATER_MARK, partition_id))
        for key in [key for key in self._threads if key[0] == partition_id]:
            for thread in self._threads.pop(key):
                thread.fail(_lost(Operation.TRANSACTION_DATA, partition_id))

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
                for thread in self._threads.pop(key, ()):
                    thread.give(effect.data)
                for fetch in self._fetches.pop(key, ()):
                    fetch.take(effect.transaction_id, effect.data)
            case AheadRefused(partition_id, transaction_id):
                self._ahead.pop((partition_id, transaction_id), None)
            case SendRequests():
                self._send(effect.connection_sequence, effect.messages)
            case MarkArrived():
                waiting = self._marks.get(effect.partition_id, {})
                for number in [each for each in waiting if each <= effect.number]:
                    waiting.pop(number).take(effect.partition_id, effect.high_water_mark)
            case RequestsDenied(partition_id, error):
                self._deny(partition_id, error)
            case BreakConnection():
                self._break_off(effect.connection_sequence, effect.reason)
            case _:
                assert_never(effect)

    def _deny(self, partition_id: PartitionId, error: PermissionDeniedError) -> None:
        """End all calls that wait for something of the partition."""
        for waiting in self._fetches, self._threads, self._ahead:
            for key in [key for key in waiting if key[0] == partition_id]:
                ended = waiting.pop(key)
                for each in ended if isinstance(ended, list) else ():
                    each.fail(error)
        for call in self._marks.pop(partition_id, {}).values():
            call.fail(error)


def _lost(operation: Operation, partition_id: PartitionId) -> ConnectionLostError:
    return ConnectionLostError(
        f"{operation.value}: the connection to the server of partition {partition_id} was lost"
    )


class Repeat(Protocol):
    """Repeats an operation as the client's policy allows; `failed`: an attempt made before."""

    def __call__(
        self,
        operation: Operation,
        attempt: Callable[[], Awaitable[list[bytes]]],
        timeout_seconds: float,
        failed: ConnectionLostError,
        /,
    ) -> Coroutine[Any, Any, list[bytes]]: ...


class BodyCalls:
    """Calls for the data of one transaction, from the threads that run an application's callbacks.

    Made on the client's loop. Decides nothing of what is requested ahead.
    """

    def __init__(
        self, clock: Clock, requests: Requests, repeat: Repeat, seconds_max: float
    ) -> None:
        """`seconds_max`: the time that a call may take."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._requests = requests
        self._repeat = repeat
        self._seconds_max = seconds_max

    def fetch(
        self,
        partition_id: PartitionId,
        transaction_id: TransactionId,
        ahead: Sequence[TransactionId],
        taker: TakesAhead,
    ) -> bytes:
        """Return one body, and request those `ahead` for `taker`.

        Raises LocalProtocolError: called on the loop; ClientClosedError, ConnectionLostError,
        OperationTimeoutError.
        """
        refuse_on_loop(self._loop, f"data of transaction {transaction_id}")
        began = self._clock.now()
        thread: WaitingThread[bytes] = WaitingThread()
        begin = partial(self._begin, thread, partition_id, transaction_id, ahead, taker)
        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:
            raise ClientClosedError(CLOSED) from None
        try:
            return thread.wait(self._loop, self._seconds_max)
        except ConnectionLostError as failed:
            return self._fetch_again(partition_id, transaction_id, failed, began)
        except TimeoutError:
            raise too_late(Operation.TRANSACTION_DATA, self._seconds_max) from None

    def fetch_ahead(
        self,
        partition_id: PartitionId,
        transaction_ids: Sequence[TransactionId],
        taker: TakesAhead,
    ) -> None:
        """Request bodies for `taker`, and do not wait for them."""
        fetch_ahead = partial(self._requests.fetch_ahead, partition_id, transaction_ids, taker)
        with suppress(RuntimeError):  # the client is closed
            self._loop.call_soon_threadsafe(fetch_ahead)

    def _begin(
        self,
        thread: WaitingThread[bytes],
        partition_id: PartitionId,
        transaction_id: TransactionId,
        ahead: Sequence[TransactionId],
        taker: TakesAhead,
    ) -> None:
        if (data := taker.find(transaction_id)) is not None:  # it has come meanwhile
            thread.give(data)
        else:
            self._requests.fetch_for_thread(thread, partition_id, transaction_id)
        if ahead:
            self._requests.fetch_ahead(partition_id, ahead, taker)

    def _fetch_again(
        self,
        partition_id: PartitionId,
        transaction_id: TransactionId,
        failed: ConnectionLostError,
        began: float,
    ) -> bytes:
        """Repeat a fetch that has failed, as the policy allows, within the time that is left."""
        operation = Operation.TRANSACTION_DATA
        fetch = partial(self._requests.fetch, partition_id, [transaction_id], fragile=True)
        left = max(0.0, self._seconds_max - (self._clock.now() - began))
        try:
            work = partial(self._repeat, operation, fetch, left, failed)
            return wait_on_loop(self._loop, work)[0]
        except OperationTimeoutError as late:
            raise too_late(operation, self._seconds_max, late.earlier) from None
