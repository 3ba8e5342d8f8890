"""The client: one asyncio core for tasks, for threads (`blocking.py`), and for the simulator.

Owns which contexts are unfinished and which of them wait to be executed again. Partitions,
connections and requests have shells of their own; user code runs on workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

from waltz.client.appends.submission import Submission, checked_partition
from waltz.client.appends.submissions_shell import Submissions
from waltz.client.applying.blocked import check_policy
from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.applying.calls import is_called_by, tell_exception, tell_expiration, tell_refusal
from waltz.client.client_options import ClientOptions
from waltz.client.identity_shell import ClientIdentity
from waltz.client.lifecycle_events import ClusterChanged
from waltz.client.listening_shell import Listening
from waltz.client.partitions.activation_shell import deactivate, end_submissions
from waltz.client.partitions.client_partition_events import (
    FlushWanted,
    GenerationRaised,
    PartitionClosed,
    Submitted,
)
from waltz.client.partitions.partition_runner_shell import Gate, LoopGate, PartitionRunner, Services
from waltz.client.partitions.streams_shell import StreamSide
from waltz.client.transaction import TransactionContext
from waltz.client.verbs_shell import PlainVerbs
from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.connections.cluster_connection import Role
from waltz.connections.connection_shell import Connections
from waltz.connections.discovery_shell import DiscoverySettings, source_for
from waltz.connections.requests_shell import Requests, running_loop, wait_on_loop
from waltz.connections.retry import Operation
from waltz.connections.retrying_shell import with_retries
from waltz.connections.tasks_shell import Tasks
from waltz.errors import (
    AlreadyClosedError,
    ClientClosedError,
    ClusterChangedError,
    HistoryChangedError,
    LocalProtocolError,
    NotFoundError,
    OperationTimeoutError,
    PartitionBlockedError,
    PartitionInactiveError,
    SubmitCancelledError,
    UnavailableError,
)
from waltz.host import Host
from waltz.operators.questions_shell import ServerReport, ask_servers, prefer_partitions
from waltz.types import (
    NOTHING,
    Address,
    ClientId,
    Generation,
    PartitionId,
    RequestId,
    TransactionId,
)
from waltz.wire.message import Message

logger = logging.getLogger(__name__)

ANOTHER_LOOP = (
    "this client belongs to another event loop; open one in each loop, and in each process after"
    " the fork"
)

T = TypeVar("T")


class AsyncWaltzClient(PlainVerbs):
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
        check_policy(self.options.on_apply_failure, callbacks)
        self.runners: dict[PartitionId, PartitionRunner] = {}
        self._host = host
        self._callbacks = callbacks
        self._release_host = release_host
        self._new_gate = new_gate
        self._tasks = Tasks(self._crash)
        self._source = source_for(
            host,
            self._tasks,
            self.options.root,
            DiscoverySettings(
                self.options.servers,
                self.options.connection_seconds_max,
                self.options.reconnect_seconds_max,
                self.options.refresh_seconds,
            ),
            self._change_view,
            self._change_cluster,
        )
        self._listening = Listening(host, self._tasks, self.options.listener)
        self._snapshot: ClusterSnapshot | None = None
        self._identity: ClientIdentity | None = None
        self._counts_from: int | None = None
        """How many partitions there were at the start: later ones were added since."""
        self._partitions = self.options.partitions
        self._stream_side = self.new_stream_side()
        self._choosing = asyncio.Lock()
        self._generations: dict[PartitionId, Generation] = {}
        self._services: Services | None = None
        self._connections: Connections | None = None
        self._submissions: Submissions | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: Exception | None = None
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Learn the cluster, take a client ID and begin to follow.

        Raises NoNodeError: there is no cluster. CoordinatorLostError. With `options.servers`
        ConnectionFailedError: none of them in time; RemoteProtocolError: no server of ours.
        """
        self._loop = asyncio.get_running_loop()
        try:
            client_id = await self._source.start()
        except BaseException:
            await self._stop_all()
            raise
        requests = Requests(
            self._host, self._tasks, client_id, self._send_requests, self._break_off
        )
        self._connections = Connections(
            self._host,
            self._tasks,
            {
                Role.STREAM: self._source.side(Role.STREAM, self._stream_side),
                Role.REQUESTS: self._source.side(Role.REQUESTS, requests),
            },
            self._raise_generation,
            replace(self.options.connections, token=self._host.random.uuid().bytes),
            open_server=self._source.open,
            watchers=(self._source, self._listening),
            reconnect_seconds_max=self.options.reconnect_seconds_max,
        )
        renew = partial(self._connections.renew, Role.STREAM)
        identity = self._identity = ClientIdentity(
            self._host, self._tasks, self._source, self.runners, client_id, renew
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
            send=self.send,
            retry=submissions.retry,
            finish=submissions.finish_all,
            fail=submissions.fail,
            give_up=submissions.give_up,
            end=self._end,
            blocked=self._block,
            snapshot=lambda: self.snapshot,
            mounted=self._listening.partition_mounted,
            see_to_client_id=identity.see_to,
        )
        self._listening.start()
        requests.start()
        self._connections.start()
        submissions.start()
        self._change_view(self._source.current)

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
        """The one in use: another one takes its place before its 2^31 sequence numbers end."""
        assert self._identity is not None, "started"
        return self._identity.client_id

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
        assert self._snapshot is not None, "started"
        return self._snapshot.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self.snapshot.cluster_key

    @property
    def cluster_name(self) -> str:
        return self.snapshot.name

    @property
    def connected_servers(self) -> frozenset[Address]:
        """The servers to which there is a connection, be it one that is just being restored.

        With none the client is not connected to its cluster; it goes on trying.
        """
        return self._listening.connected_servers

    def has_pending_transactions(self) -> bool:
        """Whether a submitted context has not ended yet."""
        return len(self.submissions) > 0

    def client_high_water_mark(self, partition_id: int) -> TransactionId:
        """Return the last transaction of the partition that was applied here."""
        return self.runner(partition_id).high_water_mark

    async def get_high_water_mark(
        self, partition_id: int, timeout_seconds: float | None = None
    ) -> TransactionId:
        """Return the last transaction in the partition's log, -1 for none, as its server knows it.

        Waits for a server, by default `operation_seconds_max`. Raises NotFoundError,
        ClientClosedError, ClusterChangedError, OperationTimeoutError; ConnectionLostError: the
        retry policy wants no more attempts.
        """
        self._check_loop()
        self._check_open()
        self._check_partition(partition_id)
        assert self._services is not None, "started"
        ask = self._services.requests.high_water_mark
        return await self._repeat(
            Operation.HIGH_WATER_MARK,
            partial(ask, PartitionId(partition_id), fragile=True),
            timeout_seconds,
        )

    async def _repeat(
        self,
        operation: Operation,
        attempt: Callable[[], Awaitable[T]],
        timeout_seconds: float | None = None,
    ) -> T:
        limit = self.options.operation_seconds_max if timeout_seconds is None else timeout_seconds
        policy = self.options.retry_policy
        return await with_retries(self._host, self, policy, operation, attempt, limit)

    # Servers

    async def ask_servers(self) -> dict[Address, ServerReport | UnavailableError]:
        """Ask every server that serves a partition how it is (CI-31).

        The error of one that does not answer is its answer, in bounded time.
        """
        serving = dict.fromkeys(address for address, _ in self.snapshot.partitions.values())
        return await ask_servers(self._host, list(serving))

    async def prefer_partitions(
        self, server: Address, *, add: Sequence[int] = (), remove: Sequence[int] = ()
    ) -> bool:
        """Let a server prefer these partitions, or no longer; return whether it has taken note.

        Raises NotFoundError: no such partition; UnavailableError: it does not answer, and may have
        taken note.
        """
        for number in (*add, *remove):
            self._check_partition(number)
        return await prefer_partitions(
            self._host,
            server,
            add=[PartitionId(number) for number in add],
            remove=[PartitionId(number) for number in remove],
        )

    # Active partitions

    async def set_partitions(self, partitions: Collection[int]) -> None:
        """Follow these partitions and write to them, and to no others (PM-35).

        Those that leave are flushed first, for `mount_seconds_max`; contexts that have no verdict
        then get PartitionInactiveError, and may be in the log all the same (CI-28). Raises
        LocalProtocolError: this client follows all, or a callback calls; NotFoundError.
        """
        self._refuse_inside_callbacks("set_partitions")
        if self.options.partitions is None:
            raise LocalProtocolError(
                "this client follows all partitions; open it with partitions=[...] to choose them"
            )
        for number in partitions:
            self._check_partition(number)
        async with self._choosing:
            await self._set_partitions(frozenset(map(PartitionId, partitions)))

    async def _set_partitions(self, chosen: frozenset[PartitionId]) -> None:
        if self._error is not None:
            raise self._error
        self._partitions = chosen
        leaving = [each for number, each in self.runners.items() if number not in chosen]
        error = PartitionInactiveError(f"not one of the partitions {sorted(chosen)} any more")
        await deactivate(
            leaving, self.submissions, error, self.options.mount_seconds_max, self._nudge_all
        )
        for runner in leaving:
            if self.runners.get(runner.partition_id) is runner:
                del self.runners[runner.partition_id]
            if self._identity is not None:
                self._identity.forget(runner)
            runner.end()
        self._change_view(self._source.current)

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
        self._check_loop()
        self.stamp(context)
        submission = Submission(0, context, PartitionId(-1))  # until it is admitted
        try:
            runner = self.runner_of(context)
            holds_room = not is_called_by(self)
            came = self._host.clock.now()
            if holds_room:
                assert isinstance(runner.gate, LoopGate)
                if not await runner.gate.enter_within(
                    context.timeout_seconds,
                    self.options.mount_seconds_max,
                    self.options.registration_seconds_max,
                    partial(runner.mailbox.put, FlushWanted()),
                ):
                    submission.claim_verdict()  # a cancellation meanwhile tells nothing else
                    await self._call(partial(tell_expiration, submission))
                    return
            submission = self.submissions.admit(context, runner.partition_id, holds_room=holds_room)
            submission.on_finished = on_finished
            submission.waited_seconds = self._host.clock.now() - came
            self.submissions.expire_in_time(submission)
            if await self._call(lambda: submission.execute(runner.high_water_mark)):
                if submission.undecided:
                    runner.mailbox.put(Submitted([submission]))
                return
            await self._call(partial(tell_refusal, submission))
            self.submissions.finish(submission)
        except asyncio.CancelledError:
            self.submissions.fail(submission, SubmitCancelledError("nothing was sent"))
            raise
        except Exception as error:
            if self._error is not None:  # the workers may be gone
                tell_exception(submission, error)
            else:
                await self._call(partial(tell_exception, submission, error))
            self.submissions.finish(submission, error)
            raise

    async def outcome(
        self, request_id: RequestId, after: int = NOTHING, *, timeout_seconds: float | None = None
    ) -> TransactionId | None:
        """Return where the append with that request ID is in the log; None if it is not there and
        never will be.

        A context has its `request_id`, and `executed_at` for `after`, behind which the log is
        looked through. By default it has no time limit. Raises NotFoundError, ClientClosedError,
        PartitionInactiveError, OperationTimeoutError; LocalProtocolError: never sent, old server.
        """
        self._check_loop()
        asking = self.runner(request_id.partition_id).outcome(request_id, TransactionId(after))
        try:
            return await asyncio.wait_for(asking, timeout_seconds)
        except TimeoutError:
            raise OperationTimeoutError(f"no answer in {timeout_seconds} s") from None

    async def flush(self, timeout_seconds: float | None = None) -> None:
        """Return once every context submitted before has ended, retries included (PM-37).

        Raises OperationTimeoutError; PartitionBlockedError: one of them waits for a transaction
        that the application cannot apply; LocalProtocolError: called inside a callback.
        """
        self._refuse_inside_callbacks("flush")
        if isinstance(self._error, HistoryChangedError):
            raise self._error
        await self.submissions.flush(timeout_seconds, self._nudge_all)

    def _block(
        self, partition_id: PartitionId, error: PartitionBlockedError, seconds: float
    ) -> None:
        """An attempt to apply has failed; those that wait for the partition may wait no longer."""
        if seconds >= self.options.blocked_seconds_max:
            self.runners[partition_id].fail_waiting(error)
            self.submissions.let_go(partition_id, error)

    def _nudge_all(self) -> None:
        for runner in self.runners.values():
            runner.mailbox.put(FlushWanted())

    # For threads, too

    def stamp(self, context: TransactionContext) -> None:
        """Note when the context came."""
        # Contexts may be frozen dataclasses.
        object.__setattr__(context, "creation_time", self._host.clock.wall_milliseconds())

    def runner(self, partition_id: int) -> PartitionRunner:
        """Raises NotFoundError, PartitionInactiveError, ClientClosedError, ClusterChangedError."""
        if self._error is not None:
            raise self._error
        runner = self.runners.get(PartitionId(partition_id))
        if runner is None:
            self._check_partition(partition_id)
            raise PartitionInactiveError(
                f"partition {partition_id} is not one of {sorted(self._partitions or ())}"
            )
        return runner

    def runner_of(self, context: TransactionContext) -> PartitionRunner:
        """Return that of the partition which the context chooses. Raises as `runner`."""
        return self.runner(checked_partition(context, self.partition_count))

    def nudge(self, runner: PartitionRunner) -> None:
        """Ask for verdicts where submits wait for room. Any thread."""
        self.submissions.wake(partial(runner.mailbox.put, FlushWanted()))

    def _fetch_blocking(self, partition_id: PartitionId, transaction_id: TransactionId) -> bytes:
        """Fetch one body from a worker's thread."""
        loop, services = self._loop, self._services
        assert loop is not None, "started"
        assert services is not None, "started"
        fetch = partial(services.requests.fetch, partition_id, [transaction_id], fragile=True)
        work = partial(self._repeat, Operation.TRANSACTION_DATA, fetch)
        return wait_on_loop(loop, work, f"data of transaction {transaction_id}")[0]

    def _call(self, function: Callable[[], Any]) -> Awaitable[Any]:
        assert self._services is not None, "started"
        return self._services.call(function)

    # Connections and views; `waltz.testing` lets what these two pass on be late or lost

    def new_stream_side(self) -> StreamSide:
        """Return what takes everything that comes on the stream connections."""
        return StreamSide(self.runners)

    def send(
        self, connection_sequence: int, messages: Sequence[Message]
    ) -> list[tuple[Message, LocalProtocolError]]:
        """Send `messages` on a stream connection; return those that cannot be, and why."""
        assert self._connections is not None, "started"
        return self._connections.send(connection_sequence, messages)

    def _change_view(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        if self._counts_from is None:
            self._counts_from = snapshot.partition_count
        identity = self._identity
        if self._connections is None or self._services is None or identity is None:
            return  # told again once everything is there
        for number in range(snapshot.partition_count):
            partition_id = PartitionId(number)
            chosen = self._partitions is None or number in self._partitions
            if chosen and partition_id not in self.runners:
                gate = self._new_gate(self.options.max_concurrent_transactions)
                gate.why = partial(self._connections.trouble_of, partition_id)
                last = identity.last_number(partition_id)
                runner = self.runners[partition_id] = PartitionRunner(
                    self._services,
                    self.client_id,
                    partition_id,
                    gate,
                    sequence_number=last,
                    is_added=self._partitions is None and number >= self._counts_from,
                )
                runner.start()
                identity.welcome(runner)
                self.submissions.take_up(partition_id)
                if partition_id in self._generations:
                    runner.mailbox.put(GenerationRaised(self._generations[partition_id]))
                self._stream_side.welcome(runner)
        self._connections.change_view(snapshot.partitions)

    def _raise_generation(self, partition_id: PartitionId, generation: Generation) -> None:
        self._generations[partition_id] = generation
        if partition_id in self.runners:
            self.runners[partition_id].mailbox.put(GenerationRaised(generation))

    def _send_requests(self, connection_sequence: int, messages: Sequence[Message]) -> None:
        assert self._connections is not None, "started"
        self._connections.send(connection_sequence, messages)

    def _break_off(self, connection_sequence: int, reason: str) -> None:
        assert self._connections is not None, "started"
        self._connections.break_off(connection_sequence, reason)

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_partition(self, partition_id: int) -> None:
        if not 0 <= partition_id < self.partition_count:
            raise NotFoundError(
                f"partition {partition_id}; expected 0 to {self.partition_count - 1}"
            )

    def _check_loop(self) -> None:
        if self._loop is not None and running_loop() is not self._loop:
            raise LocalProtocolError(ANOTHER_LOOP)

    def _refuse_inside_callbacks(self, verb: str) -> None:
        self._check_loop()
        if is_called_by(self):
            raise LocalProtocolError(f"{verb} called inside a callback, which it would wait for")

    # Closing

    def _crash(self, error: BaseException) -> None:
        """A task of ours failed: nothing can be relied on any more."""
        self._end(ClientClosedError(f"client failed: {error!r}"))

    def _change_cluster(self, error: ClusterChangedError, expected: UUID, found: UUID) -> None:
        """Nothing of the other cluster was taken, and nothing will be: this client is done."""
        self._listening.tell(ClusterChanged(expected, found))
        self._end(error)

    def _end(self, error: Exception) -> None:
        self._error = self._error or error
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())

    async def _close(self) -> None:
        # Whoever waits learns another thing than whoever calls from now on.
        error = self._error or ClientClosedError("client closed before the outcome was known")
        self._error = self._error or AlreadyClosedError()
        for runner in self.runners.values():
            runner.gate.fail(error)
            runner.end_questions(error)
            runner.mailbox.put(PartitionClosed())
        if self._services is not None:
            self._services.requests.stop(error)
        if self._submissions is not None:
            self._submissions.refuse(self._error)
            runners, seconds_max = self.runners.values(), self.options.close_seconds_max
            await end_submissions(runners, self._submissions, error, seconds_max)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.options.close_seconds_max):
                await self._listening.told()
        await self._stop_all()

    async def _stop_all(self) -> None:
        await self._tasks.stop()
        await self._source.stop()
        release, self._release_host = self._release_host, None
        if release is not None:
            await self._host.coordinator.close()
            release()
