"""The client: one asyncio core for tasks, for threads (`blocking.py`), and for the simulator.

Owns which contexts are unfinished and which of them wait to be executed again. Partitions,
connections and requests have shells of their own; user code runs on workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any
from uuid import UUID

from waltz.client.callbacks import WaltzClientCallbacks
from waltz.client.calls import (
    is_called_by,
    tell_exception,
    tell_refusal,
)
from waltz.client.cluster_connection import Role
from waltz.client.connection.shell import Connections
from waltz.client.options import ClientOptions
from waltz.client.partition_events import (
    FlushWanted,
    GenerationRaised,
    PartitionClosed,
    Received,
    StreamLost,
    StreamOpened,
    Submitted,
)
from waltz.client.partitions.shell import Gate, LoopGate, PartitionRunner, Services
from waltz.client.requests.shell import Requests
from waltz.client.submission import Submission, checked_partition
from waltz.client.submissions.shell import Submissions
from waltz.client.tasks.shell import Tasks
from waltz.client.transaction import PartitionLocalLock, PlainAppend, TransactionContext
from waltz.cluster.shell import ClusterSnapshot, ClusterView, allocate_client_id
from waltz.errors import (
    ClientClosedError,
    LocalProtocolError,
    NotFoundError,
    OperationTimeoutError,
    PartitionInactiveError,
)
from waltz.host import Host
from waltz.types import NOTHING, ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.message import Message

logger = logging.getLogger(__name__)


class StreamSide:
    """Passes what the stream connections carry on to the partitions."""

    def __init__(self, runners: dict[PartitionId, PartitionRunner]) -> None:
        self._runners = runners

    def attach(self, partition_id: PartitionId, connection_sequence: int, version: int) -> None:
        if partition_id in self._runners:
            self._runners[partition_id].mailbox.put(StreamOpened(connection_sequence, version))

    def detach(self, partition_id: PartitionId, connection_sequence: int) -> None:
        if partition_id in self._runners:
            self._runners[partition_id].mailbox.put(StreamLost(connection_sequence))

    async def receive(self, connection_sequence: int, messages: Sequence[Message]) -> None:
        runs: dict[PartitionId, list[Message]] = {}
        for message in messages:
            partition_id = message.partition_id  # type: ignore[attr-defined]
            run = runs.get(partition_id)
            if run is None:
                run = runs[partition_id] = []
            run.append(message)
        touched = [each for key, each in self._runners.items() if key in runs]
        for runner in touched:
            runner.mailbox.put(Received(connection_sequence, runs[runner.partition_id]))
        for runner in touched:
            await runner.room()


class AsyncWaltzClient:
    """Submits transactions and applies the log, for asyncio.

    An async context manager; or `start`, then `close`. With `release_host` closing ends the
    coordinator session, too, and calls it. `new_gate` makes the place where submits of a
    partition wait.
    """

    def __init__(
        self,
        host: Host,
        callbacks: WaltzClientCallbacks,
        options: ClientOptions | None = None,
        *,
        release_host: Callable[[], None] | None = None,
        new_gate: Callable[[int], Gate] = LoopGate,
    ) -> None:
        self.options = options or ClientOptions()
        self.runners: dict[PartitionId, PartitionRunner] = {}
        self._host = host
        self._callbacks = callbacks
        self._release_host = release_host
        self._new_gate = new_gate
        self._view = ClusterView(host, self._change_view, root=self.options.root)
        self._tasks = Tasks(self._crash)
        self._snapshot: ClusterSnapshot | None = None
        self._client_id: ClientId | None = None
        self._services: Services | None = None
        self._connections: Connections | None = None
        self._submissions: Submissions | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: Exception | None = None
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Learn the cluster, take a client ID and begin to follow.

        Raises NoNodeError: there is no cluster. CoordinatorLostError.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await self._view.start()
            client_id = await allocate_client_id(self._host.coordinator, self.options.root)
        except BaseException:
            await self._stop_all()
            raise
        self._client_id = client_id
        requests = Requests(
            self._host, self._tasks, client_id, self._send_requests, self._break_off
        )
        self._connections = Connections(
            self._host,
            self._tasks,
            {Role.STREAM: StreamSide(self.runners), Role.REQUESTS: requests},
            self._raise_generation,
        )
        submissions = self._submissions = Submissions(
            self.runners,
            self._tasks,
            self._host.random,
            self._call,
            retry_threads=self.options.retry_threads,
        )
        self._services = Services(
            client=self,
            host=self._host,
            callbacks=self._callbacks,
            options=self.options,
            tasks=self._tasks,
            requests=requests,
            fetch_blocking=self._fetch_blocking,
            send=self._connections.send,
            retry=submissions.retry,
            finish=submissions.finish,
            fail=submissions.fail,
            give_up=submissions.give_up,
        )
        requests.start()
        self._connections.start()
        submissions.start()
        self._change_view(self._view.current)

    async def close(self) -> None:
        """End everything; contexts that have no verdict yet get ClientClosedError.

        Waits for callbacks that are running, `close_seconds_max` at most. Idempotent. Raises
        LocalProtocolError: called inside a callback, which it would wait for.
        """
        self._refuse_inside_callbacks("close")
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> AsyncWaltzClient:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # What it knows

    @property
    def client_id(self) -> ClientId:
        assert self._client_id is not None, "started"
        return self._client_id

    @property
    def submissions(self) -> Submissions:
        assert self._submissions is not None, "started"
        return self._submissions

    @property
    def snapshot(self) -> ClusterSnapshot:
        assert self._snapshot is not None, "started"
        return self._snapshot

    @property
    def partition_count(self) -> int:
        return self.snapshot.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self.snapshot.cluster_key

    @property
    def cluster_name(self) -> str:
        return self.snapshot.name

    def has_pending_transactions(self) -> bool:
        """Whether a submitted context has not ended yet."""
        return len(self.submissions) > 0

    def client_high_water_mark(self, partition_id: int) -> TransactionId:
        """Return the last transaction of the partition that was applied here."""
        return self.runner(partition_id).high_water_mark

    async def get_high_water_mark(self, partition_id: int) -> TransactionId:
        """Return the last transaction in the partition's log, -1 for none, as its server knows it.

        Waits for a server. Raises NotFoundError, ClientClosedError.
        """
        self._check_partition(partition_id)
        assert self._services is not None, "started"
        return await self._services.requests.high_water_mark(PartitionId(partition_id))

    # Writing

    async def submit(
        self,
        context: TransactionContext,
        *,
        on_finished: Callable[[Submission, Exception | None], None] | None = None,
    ) -> None:
        """Execute `context` and send what it wants in the log; do not wait for the verdict (PM-05).

        Waits for the partition's server and for room. Whatever is raised was told to the context's
        `on_exception` before: NotFoundError, PartitionInactiveError, PartitionNotReadyError,
        ClientAheadError, ClientClosedError, LocalProtocolError, and what `execute` raises.
        """
        submission: Submission | None = None
        try:
            partition_id = checked_partition(context, self.partition_count)
            runner = self.runner(partition_id)
            holds_room = not is_called_by(self)
            if holds_room:
                assert isinstance(runner.gate, LoopGate)
                await runner.gate.enter(
                    self.options.mount_seconds_max,
                    self.options.registration_seconds_max,
                    partial(runner.mailbox.put, FlushWanted()),
                )
            submission = self.submissions.admit(context, partition_id, holds_room=holds_room)
            submission.on_finished = on_finished
            self.submissions.expire_in_time(submission)
            executed = submission
            call = self._call
            if await call(lambda: executed.execute(runner.high_water_mark)):
                if not submission.decided:
                    runner.mailbox.put(Submitted([submission]))
                return
            await call(lambda: tell_refusal(executed))
            self.submissions.finish(submission)
        except asyncio.CancelledError:
            if submission is not None:
                self.submissions.fail(submission, ClientClosedError("the submit was cancelled"))
            raise
        except Exception as error:
            failed = submission or Submission(0, context, PartitionId(-1))
            reason = error
            if self._error is not None:  # the workers may be gone
                tell_exception(failed, reason)
            else:
                await self._call(lambda: tell_exception(failed, reason))
            self.submissions.finish(failed, error)
            raise

    async def append(
        self,
        partition_id: int,
        data: bytes,
        *,
        header: int = 0,
        write_locks: Sequence[PartitionLocalLock] = (),
        read_locks: Sequence[PartitionLocalLock] = (),
        append_locks: Sequence[PartitionLocalLock] = (),
    ) -> TransactionId:
        """Append one transaction and return its ID once it is in the log and applied here.

        For data that does not depend on what was applied: a refused lock is tried again with the
        same data. Raises as `submit`; ClientClosedError may leave it in the log.
        """
        self._refuse_inside_callbacks("append")
        done: asyncio.Future[TransactionId] = asyncio.get_running_loop().create_future()

        def finished(submission: Submission, error: Exception | None) -> None:
            settle_append(submission, error, done.set_result, done.set_exception, done.done)

        context = PlainAppend(partition_id, data, header, write_locks, read_locks, append_locks)
        await self.submit(context, on_finished=finished)
        return await done

    async def outcome(self, request_id: RequestId, after: int = NOTHING) -> TransactionId | None:
        """Return where the append with that request ID is in the log; None if it is not there and
        never will be.

        For whoever was not told: a context has its `request_id`, and `executed_at` for `after`,
        behind which the log is looked through. Waits for as long as it takes. Raises NotFoundError,
        PartitionInactiveError, ClientClosedError; LocalProtocolError: it was never sent, or the
        server is too old to say.
        """
        return await self.runner(request_id.partition_id).outcome(request_id, TransactionId(after))

    async def flush(self, timeout_seconds: float | None = None) -> None:
        """Return once every context submitted before has ended, retries included (PM-37).

        Raises OperationTimeoutError; LocalProtocolError: called inside a callback.
        """
        self._refuse_inside_callbacks("flush")
        await self.submissions.flush(timeout_seconds, self._nudge_all)

    def _nudge_all(self) -> None:
        for runner in self.runners.values():
            runner.mailbox.put(FlushWanted())

    # For threads, too

    def runner(self, partition_id: int) -> PartitionRunner:
        """Raises NotFoundError, PartitionInactiveError, ClientClosedError."""
        if self._error is not None:
            raise self._error
        runner = self.runners.get(PartitionId(partition_id))
        if runner is None:
            self._check_partition(partition_id)
            raise PartitionInactiveError(
                f"partition {partition_id} is not one of {sorted(self.options.partitions or ())}"
            )
        return runner

    def nudge(self, runner: PartitionRunner) -> None:
        """Ask for verdicts where submits wait for room. Any thread."""
        self.submissions.wake(partial(runner.mailbox.put, FlushWanted()))

    def _fetch_blocking(self, partition_id: PartitionId, transaction_id: TransactionId) -> bytes:
        """Fetch one body from a worker's thread."""
        loop, services = self._loop, self._services
        assert loop is not None, "started"
        assert services is not None, "started"
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            raise LocalProtocolError(
                f"data of transaction {transaction_id} asked for on the event loop, where nothing"
                " may wait; set prefetch or return it from choose_prefetch"
            )
        try:
            fetched = asyncio.run_coroutine_threadsafe(
                services.requests.fetch(partition_id, [transaction_id]), loop
            )
        except RuntimeError:
            raise ClientClosedError("client closed") from None
        return fetched.result()[0]

    async def _call(self, function: Callable[[], Any]) -> Any:
        assert self._services is not None, "started"
        return await self._services.call(function)

    # Connections and views

    def _change_view(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        if self._connections is None or self._services is None:
            return  # told again once everything is there
        for number in range(snapshot.partition_count):
            partition_id = PartitionId(number)
            chosen = self.options.partitions is None or number in self.options.partitions
            if chosen and partition_id not in self.runners:
                gate = self._new_gate(self.options.max_concurrent_transactions)
                runner = PartitionRunner(self._services, self.client_id, partition_id, gate)
                self.runners[partition_id] = runner
                runner.start()
        self._connections.change_view(snapshot.partitions)

    def _raise_generation(self, partition_id: PartitionId, generation: Generation) -> None:
        if partition_id in self.runners:
            self.runners[partition_id].mailbox.put(GenerationRaised(generation))

    def _send_requests(self, connection_sequence: int, messages: Sequence[Message]) -> None:
        assert self._connections is not None, "started"
        self._connections.send(connection_sequence, messages)

    def _break_off(self, connection_sequence: int, reason: str) -> None:
        assert self._connections is not None, "started"
        self._connections.break_off(connection_sequence, reason)

    def _check_partition(self, partition_id: int) -> None:
        if not 0 <= partition_id < self.partition_count:
            raise NotFoundError(
                f"partition {partition_id}; expected 0 to {self.partition_count - 1}"
            )

    def _refuse_inside_callbacks(self, verb: str) -> None:
        if is_called_by(self):
            raise LocalProtocolError(f"{verb} called inside a callback, which it would wait for")

    # Closing

    def _crash(self, error: BaseException) -> None:
        """A task of ours failed: nothing can be relied on any more."""
        self._error = ClientClosedError(f"client failed: {error!r}")
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())

    async def _close(self) -> None:
        self._error = self._error or ClientClosedError("client closed before the outcome was known")
        error = self._error
        for runner in self.runners.values():
            runner.gate.fail(error)
            runner.end_questions(error)
            runner.mailbox.put(PartitionClosed())
        if self._services is not None:
            self._services.requests.stop()
        if self._submissions is not None:
            self._submissions.refuse(error)
            await self._end_submissions(self._submissions, error)
        await self._stop_all()

    async def _end_submissions(self, submissions: Submissions, error: Exception) -> None:
        try:
            async with asyncio.timeout(self.options.close_seconds_max):
                for runner in self.runners.values():
                    await runner.idle()
                await submissions.end_all(error)
        except TimeoutError:
            logger.warning("close_incomplete unfinished=%d", len(submissions))
        submissions.forget_all(error)

    async def _stop_all(self) -> None:
        await self._tasks.stop()
        await self._view.stop()
        release, self._release_host = self._release_host, None
        if release is not None:
            await self._host.coordinator.close()
            release()


def settle_append(
    submission: Submission,
    error: Exception | None,
    succeed: Callable[[TransactionId], object],
    fail: Callable[[Exception], object],
    is_settled: Callable[[], bool] = lambda: False,
) -> None:
    """Answer whoever waits for the ID of a plain append that has ended."""
    if is_settled():
        return
    if submission.transaction_id is not None:
        succeed(submission.transaction_id)
    else:
        fail(error or OperationTimeoutError("not appended: this client has no retry threads"))
