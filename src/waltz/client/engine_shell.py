"""The engine of a client: it runs behind the face for tasks or threads, from start to close.

Owns the view of the cluster, which partitions are active, and the end. Submissions, partitions,
connections and requests have shells of their own; user code runs on workers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar
from uuid import UUID

from waltz.client.appends.gate import Gate
from waltz.client.appends.submissions_shell import Submissions, not_active
from waltz.client.applied_marks_shell import AppliedMarksTeller
from waltz.client.applying.blocked import check_policy
from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.applying.calls import call_for, refuse_inside_callbacks
from waltz.client.client_options import ClientOptions
from waltz.client.consistency_token import DROP_IT, ConsistencyToken
from waltz.client.identity_shell import ClientIdentity
from waltz.client.lifecycle_events import ClusterChanged
from waltz.client.listening_shell import Listening
from waltz.client.partitions.activation_shell import deactivate, end_submissions
from waltz.client.partitions.client_partition_events import (
    FlushWanted,
    GenerationRaised,
    PartitionClosed,
)
from waltz.client.partitions.partition_runner_shell import PartitionRunner, Send, Services
from waltz.client.partitions.streams_shell import StreamSide
from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.cluster.histories import Histories
from waltz.cluster.skipped_numbers import GENERATIONS_RISEN
from waltz.connections.cluster_connection import Role
from waltz.connections.connection_shell import Connections
from waltz.connections.discovery_shell import DiscoverySettings, source_for
from waltz.connections.loop_thread import running_loop
from waltz.connections.requests_shell import BodyCalls, Requests
from waltz.connections.retry import Operation
from waltz.connections.retrying_shell import with_retries
from waltz.connections.tasks_shell import Tasks, ends_caller
from waltz.errors import (
    AlreadyClosedError,
    ClientClosedError,
    ClusterChangedError,
    ConnectionLostError,
    HistoryChangedError,
    LocalProtocolError,
    NotFoundError,
    PartitionBlockedError,
    PartitionLeftError,
)
from waltz.host import Host
from waltz.types import NO_GENERATION, Generation, PartitionId, TransactionId

ANOTHER_LOOP = (
    "this client belongs to another event loop; open one in each loop, and in each process after"
    " the fork"
)

CLIENT_ID_DOUBTFUL = (
    "the coordinator was set back, and may have given this client's ID to another client, too; open"
    " another client, which gets another ID"
)

NOT_STARTED = (
    "this client is not started; open it with `async with`, or await its `start` before any other"
    " call"
)

T = TypeVar("T")


class ClientEngine:
    """See the module. With `release_host` closing ends the coordinator session and calls it."""

    identity: ClientIdentity
    submissions: Submissions
    services: Services
    snapshot: ClusterSnapshot
    _requests: Requests
    _connections: Connections
    _teller: AppliedMarksTeller
    """These are there from `start` on."""

    def __init__(
        self,
        host: Host,
        callbacks: WaltzClientCallbacks,
        options: ClientOptions,
        release_host: Callable[[], None] | None = None,
    ) -> None:
        check_policy(options.on_apply_failure, callbacks)
        self.host = host
        self.face: object = None
        """The client that applications see: policies for retries are told who asks."""
        self.runners: dict[PartitionId, PartitionRunner] = {}
        """The active partitions."""
        self.error: Exception | None = None
        """The exception that calls after the end raise."""
        self._callbacks = callbacks
        self._options = options
        self._release_host = release_host
        self._tasks = Tasks(self._crash)
        self._source = source_for(
            host,
            self._tasks,
            options.root,
            DiscoverySettings(
                options.servers,
                options.connection_seconds_max,
                options.reconnect_seconds_max,
                options.refresh_seconds,
            ),
            self._change_view,
            self._change_cluster,
            self._change_histories,
        )
        self.listening = Listening(host, self._tasks, options.listener)
        self._counts_from: int | None = None
        """The number of partitions at the start: later ones were added since."""
        self._partitions = options.partitions
        self._stream_side = self.new_stream_side()
        self._choosing = asyncio.Lock()
        self._changing: set[asyncio.Task[None]] = set()
        """Changes of the active partitions that are under way; the loop keeps weak references."""
        self._generations: dict[PartitionId, Generation] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_started = False
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Learn the cluster, take a client ID and begin to follow."""
        self._check_not_closed()
        self._loop = asyncio.get_running_loop()
        host, options, tasks = self.host, self._options, self._tasks
        try:
            client_id = await self._source.start_client()
            self._check_not_closed()
        except BaseException as error:
            self._loop = None
            await self._stop_all()
            if not ends_caller(error):
                self._check_not_closed()  # which may have shown as any other error
            raise
        self._requests = Requests(host, tasks, client_id)
        self._connections = Connections(
            host,
            tasks,
            {
                Role.STREAM: self._source.side(Role.STREAM, self._stream_side),
                Role.REQUESTS: self._source.side(Role.REQUESTS, self._requests),
            },
            self._raise_generation,
            replace(options.connections, token=host.random.uuid().bytes),
            open_server=self._source.open,
            watchers=(self._source, self.listening),
            reconnect_seconds_max=options.reconnect_seconds_max,
        )
        renew = partial(self._connections.renew, Role.STREAM)
        self.identity = ClientIdentity(host, tasks, self._source, self.runners, client_id, renew)
        self._teller = AppliedMarksTeller(
            self.runners, self._connections.tell_marks, is_silent=options.label is None
        )
        submissions = self.submissions = Submissions(self.runners, tasks, host, options, self.call)
        self.services = Services(
            host=host,
            call=self.call,
            callbacks=self._callbacks,
            options=options,
            tasks=tasks,
            requests=self._requests,
            body_calls=BodyCalls(
                host.clock, self._requests, self._repeat, options.operation_seconds_max
            ),
            send=self.new_sender(self._connections.send),
            retry=submissions.retries.retry,
            finish=submissions.finish_all,
            fail=submissions.fail,
            give_up=submissions.give_up,
            end=self._end,
            blocked=self._block,
            snapshot=lambda: self.snapshot,
            histories=lambda: self._source.histories or Histories(self.snapshot.cluster_key),
            mounted=self.listening.partition_mounted,
            applying=self._teller.note,
            see_to_client_id=self.identity.see_to,
        )
        self._is_started = True
        self.listening.start()
        self._requests.start(self._connections.send, self._connections.break_off)
        self._connections.start()
        submissions.retries.start()
        self._change_view(self._source.current)

    async def close(self) -> None:
        """End everything. Idempotent. Raises LocalProtocolError: called inside a callback."""
        if self._loop is not None:
            self.check_waits("close")
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    # Calls

    def runner(self, partition_id: int) -> PartitionRunner:
        """Raises NotFoundError, PartitionInactiveError, ClientClosedError, ClusterChangedError."""
        self.check_open()
        runner = self.runners.get(PartitionId(partition_id))
        if runner is None:
            self.check_partition(partition_id)
            raise not_active(PartitionId(partition_id), self.runners)
        return runner

    def check_open(self) -> None:
        if self.error is not None:
            raise self.error

    def _check_not_closed(self) -> None:
        """Raises AlreadyClosedError, or what the client has ended with: it was closed before it has
        started, and would never be closed again."""
        if self._closing is not None:
            raise self.error or AlreadyClosedError()

    def check_partition(self, partition_id: int) -> None:
        count = self.snapshot.partition_count
        if not 0 <= partition_id < count:
            raise NotFoundError(f"there is no partition {partition_id}; expected 0 to {count - 1}")

    def check_started(self) -> None:
        if self._loop is None:
            raise LocalProtocolError(NOT_STARTED)

    def check_loop(self) -> None:
        """Raises LocalProtocolError: the client is not started, or called on another loop."""
        self.check_started()
        if running_loop() is not self._loop:
            raise LocalProtocolError(ANOTHER_LOOP)

    def token(self, transactions: Mapping[int, int]) -> ConsistencyToken:
        """Return the token of `transactions` in the history that is followed now."""
        self.check_open()
        for partition_id in transactions:
            self.check_partition(partition_id)
        return ConsistencyToken.of(self.services.histories().current, transactions)

    def has_applied(self, token: ConsistencyToken) -> bool:
        runners = {each: self.runner(each) for each in token.marks}
        marks = {each: runners[each].application.high_water_mark for each in runners}
        self.check_token(token)  # later than the marks: they are of this log, or of one before it
        return all(marks[each] >= mark for each, mark in token.marks.items())

    def check_token(self, token: ConsistencyToken) -> None:
        """Raises HistoryChangedError: the log that is followed has not all of the token's
        transactions."""
        histories = self.services.histories()
        history = token.history_among(histories.names)
        for partition_id, mark in token.marks.items():
            if history is None or not histories.holds(partition_id, history, mark):
                raise HistoryChangedError(
                    f"the consistency token names transaction {mark} of partition {partition_id},"
                    " which the log does not have: the token is of another log, or the log was"
                    f" restored. {DROP_IT}"
                )

    def check_waits(self, verb: str) -> None:
        """Raises LocalProtocolError: called on another loop, or inside a callback."""
        self.check_loop()
        refuse_inside_callbacks(self, verb)

    def call(self, function: Callable[[], T]) -> Awaitable[T]:
        """Run an application's callback on a worker, marked as one of this client."""
        return self.host.workers.run_blocking(partial(call_for, self, function))

    async def get_high_water_mark(
        self, partition_id: int, timeout_seconds: float | None
    ) -> TransactionId:
        self.check_open()
        self.check_partition(partition_id)
        ask = partial(self._requests.high_water_mark, PartitionId(partition_id), fragile=True)
        mark = await self._repeat(Operation.HIGH_WATER_MARK, ask, timeout_seconds)
        if (runner := self.runners.get(PartitionId(partition_id))) is not None:
            runner.told_mark = max(runner.told_mark, mark)
        return mark

    async def _repeat(
        self,
        operation: Operation,
        attempt: Callable[[], Awaitable[T]],
        timeout_seconds: float | None = None,
        failed: ConnectionLostError | None = None,
    ) -> T:
        limit = self._options.operation_seconds_max if timeout_seconds is None else timeout_seconds
        policy = self._options.retry_policy
        return await with_retries(self.host, self.face, policy, operation, attempt, limit, failed)

    # Active partitions

    async def set_partitions(self, chosen: frozenset[PartitionId]) -> None:
        """Follow these partitions, and no others; those that leave are flushed first. The change is
        made to its end also if the caller stops waiting: half of it would leave partitions that are
        followed and take nothing."""
        changing = asyncio.create_task(self._set_partitions(chosen))
        self._changing.add(changing)
        changing.add_done_callback(self._changing.discard)
        await asyncio.shield(changing)

    async def _set_partitions(self, chosen: frozenset[PartitionId]) -> None:
        async with self._choosing:
            self.check_open()
            self._partitions = chosen
            leaving = [each for number, each in self.runners.items() if number not in chosen]
            error = PartitionLeftError(
                "the partition is no longer active; the client's active partitions are"
                f" {sorted(chosen)}"
            )
            seconds_max = self._options.mount_seconds_max
            await deactivate(leaving, self.submissions, error, seconds_max, self.nudge_all)
            for runner in leaving:
                if self.runners.get(runner.partition_id) is runner:
                    del self.runners[runner.partition_id]
                self.identity.forget(runner)
                runner.end()
            self.check_open()
            self._change_view(self._source.current)

    def _block(
        self, partition_id: PartitionId, error: PartitionBlockedError, seconds: float
    ) -> None:
        """An attempt to apply has failed; calls that wait for the partition may wait no longer."""
        if seconds >= self._options.blocked_seconds_max:
            self.runners[partition_id].waiting.fail_applied(error)
            self.submissions.let_go(partition_id, error)

    def nudge_all(self) -> None:
        """Ask for verdicts in all partitions."""
        for runner in self.runners.values():
            runner.mailbox.put(FlushWanted())

    # Connections and views; `waltz.testing` lets what these two pass on be late or lost

    def new_stream_side(self) -> StreamSide:
        """Return what takes everything that comes on the stream connections."""
        return StreamSide(self.runners)

    def new_sender(self, send: Send) -> Send:
        """Return what partitions send with: `send`, which sends on a stream connection."""
        return send

    def _change_view(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        if self._counts_from is None:
            self._counts_from = snapshot.partition_count
        if not self._is_started:
            # Called again once everything is there. The client ID is taken after this.
            for partition_id, (_, generation) in snapshot.partitions.items():
                self._generations.setdefault(partition_id, generation)
            return
        self.submissions.partition_count = snapshot.partition_count
        for partition_id in map(PartitionId, range(snapshot.partition_count)):
            chosen = self._partitions is None or partition_id in self._partitions
            if chosen and partition_id not in self.runners:
                is_added = self._partitions is None and partition_id >= self._counts_from
                self._activate(partition_id, is_added=is_added)
        self._connections.change_view(snapshot.partitions)

    def _activate(self, partition_id: PartitionId, *, is_added: bool) -> None:
        gate = Gate(self._options.max_concurrent_transactions)
        gate.why = partial(self._connections.trouble_of, partition_id)
        runner = self.runners[partition_id] = PartitionRunner(
            self.services,
            self.identity.client_id,
            partition_id,
            gate,
            sequence_number=self.identity.last_number(partition_id),
            is_added=is_added,
        )
        runner.start()
        self.identity.welcome(runner)
        self.submissions.take_up(partition_id)
        if partition_id in self._generations:
            runner.mailbox.put(GenerationRaised(self._generations[partition_id]))
        self._stream_side.welcome(runner)

    def _raise_generation(self, partition_id: PartitionId, generation: Generation) -> None:
        known = self._generations.get(partition_id, NO_GENERATION)
        self._generations[partition_id] = generation
        if generation - known >= GENERATIONS_RISEN:
            # Servers have passed over what the coordinator may have given twice; what it has given
            # to this client before may be among it (docs/decisions/0060).
            self.identity.doubt()
            if self._options.keeps_client_id:
                self._end(ClientClosedError(CLIENT_ID_DOUBTFUL))
        if partition_id in self.runners:
            self.runners[partition_id].mailbox.put(GenerationRaised(generation))

    # The end

    def _crash(self, error: BaseException) -> None:
        """A task of the client failed: nothing can be relied on any more."""
        self._end(ClientClosedError(f"the client has failed: {error!r}"))

    def _change_cluster(self, error: ClusterChangedError, expected: UUID, found: UUID) -> None:
        """Nothing of the other cluster was taken, and nothing will be: the client ends."""
        self.listening.tell(ClusterChanged(expected, found))
        self._end(error)

    def _change_histories(self, histories: Histories) -> None:
        """A server has been found whose log has these histories. Raises HistoryChangedError: this
        client has gone on where they begin; it ends, and nothing of them is taken."""
        runners = list(self.runners.values())
        try:
            if self._source.histories is not None:  # else nobody could tell what was followed
                for runner in runners:
                    runner.check_history(histories)
        except HistoryChangedError as error:
            self._end(error)
            raise
        for runner in runners:
            runner.application.follow(histories)

    def _end(self, error: Exception) -> None:
        self._refuse(error)
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())

    def _refuse(self, error: Exception) -> None:
        """Let calls that come from now on get `error`, if they do not get another one already."""
        self.error = self.error or error
        if self._is_started:
            self.submissions.error = self.error

    async def _close(self) -> None:
        # Calls that wait are told something else than calls that come from now on.
        error = self.error or ClientClosedError(
            "the client was closed before the outcome was known"
        )
        self._refuse(AlreadyClosedError())
        for runner in self.runners.values():
            runner.gate.fail(error)
            runner.end_calls(error)
            runner.mailbox.put(PartitionClosed())
        seconds_max = self._options.close_seconds_max
        if self._is_started:
            self._requests.stop(error)
            runners = [*self.runners.values()]  # `set_partitions` may be removing some
            await end_submissions(runners, self.submissions, error, seconds_max)
            self._teller.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await self.listening.told()
        await self._stop_all()

    async def _stop_all(self) -> None:
        await self._tasks.stop()
        await self._source.stop()
        release, self._release_host = self._release_host, None
        if release is not None:
            await self.host.coordinator.close()
            release()
