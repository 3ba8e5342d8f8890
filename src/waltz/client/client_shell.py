"""The client for asyncio, and the questions that every client answers by itself.

Owns how tasks submit and wait. A `ClientEngine` does the work, for threads as well.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack
from uuid import UUID

from waltz.arrays import np
from waltz.client.appends.gate import Entry
from waltz.client.appends.submission import Finished, Submission, append_result
from waltz.client.applied_waits_shell import wait_for_servers, wait_for_token
from waltz.client.applying.blocked import BlockedPartition
from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.applying.calls import is_called_by, tell_exception, tell_expiration, tell_refusal
from waltz.client.bulk import BulkRows, ManyAppends, RowColumns
from waltz.client.client_metrics import ClientMetrics
from waltz.client.client_options import ClientOptions
from waltz.client.consistency_token import ConsistencyToken
from waltz.client.engine_shell import ClientEngine
from waltz.client.partitions.client_partition_events import Submitted
from waltz.client.transaction import Lock, PlainAppend, TransactionContext
from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.cluster.histories import Histories
from waltz.errors import (
    HistoryChangedError,
    LocalProtocolError,
    OperationTimeoutError,
    PermissionDeniedError,
    SubmitCancelledError,
    UnavailableError,
)
from waltz.host import Clock, Host
from waltz.operators.questions_shell import ServerReport, ask_servers, prefer_partitions
from waltz.types import NOTHING, Address, ClientId, PartitionId, RequestId, TransactionId

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from waltz.operators.log_times_shell import (
        AsyncLogTimes,
        OpenCoordinator,
        TransactionAt,
        TransactionTime,
    )
    from waltz.wall_time import datetime

NewEngine = Callable[..., ClientEngine]
"""Makes what runs behind a client, with the arguments of `ClientEngine`."""


class ClientFacts(ABC):
    """The attributes and verbs of a client that need no server and no waiting; for any thread."""

    options: ClientOptions

    @property
    @abstractmethod
    def engine(self) -> ClientEngine: ...

    @property
    def client_id(self) -> ClientId:
        """The one in use: another one takes its place before its 2^31 sequence numbers end."""
        return self.engine.identity.client_id

    @property
    def snapshot(self) -> ClusterSnapshot:
        return self.engine.snapshot

    @property
    def partition_count(self) -> int:
        return self.engine.snapshot.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self.engine.snapshot.cluster_key

    @property
    def cluster_name(self) -> str:
        return self.engine.snapshot.name

    @property
    def histories(self) -> Histories:
        """The histories of the cluster's log, as far as servers have told of them."""
        return self.engine.services.histories()

    @property
    def connected_servers(self) -> frozenset[Address]:
        """The servers to which there is a connection, be it one that is just being restored.

        With none the client is not connected to its cluster; it goes on trying.
        """
        return self.engine.listening.connected_servers

    @property
    def is_closed(self) -> bool:
        """Whether the client was closed or has failed: it does nothing any more."""
        return self.engine.error is not None

    def has_pending_transactions(self) -> bool:
        """Whether a submitted context has not ended yet (PM-39)."""
        return len(self.engine.submissions) > 0

    def client_high_water_mark(self, partition_id: int) -> TransactionId:
        """Return the last transaction of the partition that was applied here."""
        return self.engine.runner(partition_id).application.high_water_mark

    def active_partitions(self) -> list[PartitionId]:
        """Return the partitions that this client follows."""
        return sorted(self.engine.runners)

    def blocked_partitions(self) -> dict[PartitionId, BlockedPartition]:
        """Return the partitions whose next transaction the application cannot apply now, and why.
        Each is tried again, later and later, while the others go on (PM-38)."""
        runners = list(self.engine.runners.values())
        return {
            each.partition_id: each.application.blocked
            for each in runners
            if each.application.blocked is not None
        }

    def denied_partitions(self) -> dict[PartitionId, PermissionDeniedError]:
        """Return the partitions that a server's policy denies to this client, of those that it
        follows, and why. Each is asked for again once per minute, and on each new connection."""
        runners = list(self.engine.runners.values())
        return {each.partition_id: each.denied for each in runners if each.denied is not None}

    def parked_transactions(self) -> dict[PartitionId, int]:
        """Return how many transactions this client has parked, per partition that has some."""
        runners = list(self.engine.runners.values())
        return {
            each.partition_id: each.application.parked_count
            for each in runners
            if each.application.parked_count
        }

    def token(self, transactions: Mapping[int, int]) -> ConsistencyToken:
        """Return a token of `transactions`, the ID of a transaction per partition as `append`
        returned it. A reader with the token finds the effects of these transactions.

        `wait_until_applied` takes it, here or in another process of the application. Raises
        HistoryChangedError: the log was restored and this client has ended; ClientClosedError;
        LocalProtocolError: too many partitions, or no transaction ID.
        """
        return self.engine.token(transactions)

    def has_applied(self, token: ConsistencyToken) -> bool:
        """Return whether all that `token` names has been applied here. Waits for nothing.

        Raises HistoryChangedError: the token's transactions are not in this log, or not any more;
        NotFoundError; PartitionInactiveError: this client does not follow one of its partitions;
        ClientClosedError.
        """
        return self.engine.has_applied(token)

    def metrics(self) -> ClientMetrics:
        """Return the figures of this client at this moment; `waltz.metrics.register` shows them to
        Prometheus."""
        engine = self.engine
        submissions, listening = engine.submissions, engine.listening
        return ClientMetrics(
            connected_servers=len(listening.connected_servers),
            connections_opened=listening.opened,
            connections_restored=listening.restored,
            connections_lost=listening.lost,
            unfinished=len(submissions),
            retries=submissions.retries.count,
            refusals=submissions.retries.refusals.counts.copy(),
            append_seconds=submissions.append_seconds.copy(),
            partitions=tuple(
                each.metrics()
                for each in sorted(engine.runners.copy().values(), key=lambda r: r.partition_id)
            ),
        )


class AsyncWaltzClient(ClientFacts):
    """Submits transactions and applies the log, for asyncio.

    An async context manager; or `start`, then `close`. With `release_host` closing ends the
    coordinator session, too, and calls it. `open_coordinator` opens the coordinator that servers
    name, for questions that only it can answer. `new_engine` makes what runs behind the client.
    """

    def __init__(
        self,
        host: Host,
        callbacks: WaltzClientCallbacks,
        options: ClientOptions | None = None,
        *,
        release_host: Callable[[], None] | None = None,
        open_coordinator: OpenCoordinator | None = None,
        new_engine: NewEngine = ClientEngine,
    ) -> None:
        self.options = options or ClientOptions()
        self._open_coordinator = open_coordinator
        self._engine = new_engine(host, callbacks, self.options, release_host)
        self._engine.face = self

    @property
    def engine(self) -> ClientEngine:
        self._engine.check_started()
        return self._engine

    async def start(self) -> None:
        """Learn the cluster, take a client ID and begin to follow.

        Raises NoNodeError: there is no cluster. CoordinatorLostError. With `options.servers`
        ConnectionFailedError: none of them in time; RemoteProtocolError: no server of ours.
        """
        await self._engine.start()

    async def close(self) -> None:
        """End everything; contexts that have no verdict yet get ClientClosedError.

        Waits for callbacks that are running, `close_seconds_max` at most. Idempotent. Raises
        LocalProtocolError: called inside a callback, which it would wait for.
        """
        await self._engine.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # Questions

    async def get_high_water_mark(
        self, partition_id: int, timeout_seconds: float | None = None
    ) -> TransactionId:
        """Return the last transaction in the partition's log, -1 for none, by its server (PM-36).

        A server that has lost the partition and does not know yet may leave out the newest.
        Waits for a server, by default `operation_seconds_max`. Raises NotFoundError,
        ClientClosedError, ClusterChangedError, OperationTimeoutError; ConnectionLostError: the
        retry policy wants no more attempts.
        """
        engine = self._engine
        engine.check_loop()
        return await engine.get_high_water_mark(partition_id, timeout_seconds)

    async def wait_until_applied(
        self,
        *,
        partitions: Collection[int] | None = None,
        token: ConsistencyToken | None = None,
        timeout_seconds: float | None = None,
    ) -> dict[PartitionId, TransactionId]:
        """Return once all that the log holds at this moment has been applied here; with `token`,
        once all that the token names has been.

        Without a token: asks the servers for the high-water marks of `partitions`, by default all
        that this client follows, and returns them. A mark is never before what has been applied
        here when the call came; a server that has lost a partition and does not know yet may leave
        out what others have appended since. With a token: asks nobody, and returns the token's
        marks. By default the call has no time limit. Raises OperationTimeoutError, with what is
        missing; PartitionBlockedError: the application cannot apply a transaction before;
        HistoryChangedError: the token's transactions are not in this log, or not any more;
        ConnectionLostError: the retry policy wants no more attempts to ask a server; NotFoundError,
        PartitionInactiveError, ClientClosedError; LocalProtocolError: called inside a callback, or
        with `partitions` and `token`.
        """
        engine = self._engine
        engine.check_waits("wait_until_applied")
        if token is None:
            chosen = self.active_partitions() if partitions is None else partitions
            return await wait_for_servers(engine, chosen, timeout_seconds)
        if partitions is not None:
            raise LocalProtocolError("`token` names its partitions: leave out `partitions`")
        return await wait_for_token(engine, token, timeout_seconds)

    async def outcome(
        self, request_id: RequestId, after: int = NOTHING, *, timeout_seconds: float | None = None
    ) -> TransactionId | None:
        """Return where the append with that request ID is in the log; None if it is not there and
        never will be.

        A context has its `request_id`, and `executed_at` for `after`, behind which the log is
        looked through. By default it has no time limit. Raises NotFoundError, ClientClosedError,
        PartitionInactiveError, OperationTimeoutError; LocalProtocolError: never sent, old server.
        """
        engine = self._engine
        engine.check_loop()
        asking = engine.runner(request_id.partition_id).waiting.outcome(
            request_id, TransactionId(after)
        )
        try:
            return await asyncio.wait_for(asking, timeout_seconds)
        except TimeoutError:
            raise OperationTimeoutError(
                f"no server gave the outcome in {timeout_seconds} s"
            ) from None

    async def ask_servers(self) -> dict[Address, ServerReport | UnavailableError]:
        """Ask every server that serves a partition how it is (CI-31).

        The error of one that does not answer is its answer, in bounded time.
        """
        engine = self._engine
        serving = dict.fromkeys(address for address, _ in engine.snapshot.partitions.values())
        return await ask_servers(engine.host, list(serving))

    async def time_of(self, partition_id: int, transaction_id: int) -> TransactionTime:
        """Return the interval in which a transaction was committed; of an ID that is not in the log
        nothing is recorded.

        The storage nodes with a copy are asked, all at once and one question each, by the clocks of
        which the times are; the coordinator knows them, and is asked for them. A node that does not
        answer within 10 s, or whose release keeps no journal, makes the interval wider, and is
        named with the reason. Raises NotFoundError: no such partition; LocalProtocolError: not an
        ID; CoordinatorLostError; UnavailableError: no server says where the coordinator is;
        ClientClosedError.
        """
        engine = self._engine
        engine.check_loop()
        engine.check_partition(partition_id)
        engine.check_open()
        async with _log_times(engine, self.options, self._open_coordinator) as times:
            return await times.time_of(partition_id, transaction_id)

    async def transaction_at(self, partition_id: int, moment: datetime) -> TransactionAt:
        """Return the place of a time, which has a time zone, in a partition's log: the transactions
        that were committed by then, and those that were committed later.

        The partition's server is asked where the log ends, then the storage nodes as by `time_of`,
        each at most 63 times in at most 30 s. At a time before the log `first` is 0, at one in the
        future it is the end of the log. Raises as `time_of` and as `get_high_water_mark`;
        LocalProtocolError: the time has no time zone.
        """
        mark = await self.get_high_water_mark(partition_id)
        number = PartitionId(partition_id)
        async with _log_times(self._engine, self.options, self._open_coordinator) as times:
            return (await times.transactions_at(moment, {number: mark}))[number]

    # Changes

    async def prefer_partitions(
        self, server: Address, *, add: Sequence[int] = (), remove: Sequence[int] = ()
    ) -> bool:
        """Let a server prefer these partitions, or no longer; return whether it has taken note.

        Raises NotFoundError: no such partition; UnavailableError: the server does not answer, and
        may have taken note.
        """
        engine = self._engine
        for number in (*add, *remove):
            engine.check_partition(number)
        return await prefer_partitions(
            engine.host,
            server,
            add=[PartitionId(number) for number in add],
            remove=[PartitionId(number) for number in remove],
        )

    async def set_partitions(self, partitions: Collection[int]) -> None:
        """Follow these partitions and write to them, and to no others (PM-35).

        Those that leave are flushed first, for `mount_seconds_max`; contexts that have no verdict
        then get PartitionInactiveError, and may be in the log all the same (CI-28). Raises
        LocalProtocolError: this client follows all, or a callback calls; NotFoundError.
        """
        engine = self._engine
        engine.check_waits("set_partitions")
        if self.options.partitions is None:
            raise LocalProtocolError(
                "this client follows all partitions; open it with partitions=[...] to choose them"
            )
        for number in partitions:
            engine.check_partition(number)
        await engine.set_partitions(frozenset(map(PartitionId, partitions)))

    # Writing

    async def submit(self, context: TransactionContext) -> None:
        """Execute `context` and send what it wants in the log; do not wait for the verdict (PM-05).

        Waits until the partition has a server and room (PM-42); inside a callback it does not wait
        for room. Whatever is raised was told to the context's `on_exception` before: NotFoundError,
        PartitionInactiveError, PartitionNotReadyError, ClientAheadError, ClientClosedError,
        LocalProtocolError, and what `execute` raises.
        """
        self._engine.check_loop()
        await self._submit(context)

    async def append(
        self,
        partition_id: int,
        data: bytes,
        *,
        header: int = 0,
        write_locks: Sequence[Lock] = (),
        read_locks: Sequence[Lock] = (),
        append_locks: Sequence[Lock] = (),
        timeout_seconds: float | None = None,
    ) -> TransactionId:
        """Append one transaction and return its ID once it is in the log and applied here.

        For data that does not depend on what was applied: a refused lock is tried again with the
        same data. By default it has no time limit; one that passes raises OperationTimeoutError. If
        the client ends before it has applied it, an ID that it knows by then is returned.
        Raises as `submit`; PartitionBlockedError: the application cannot apply one before it; these
        and ClientClosedError may leave it in the log.
        """
        self._engine.check_waits("append")
        context = PlainAppend(partition_id, data, header, write_locks, read_locks, append_locks)
        context.timeout_seconds = timeout_seconds
        return await self._append(context)

    async def append_many(
        self,
        partition_id: int,
        data: Sequence[bytes],
        *,
        timeout_seconds: float | None = None,
        locks_as_of: int | None = None,
        **columns: Unpack[RowColumns],
    ) -> NDArray[np.int64]:
        """Append many transactions, and return their IDs once all are in the log and applied here.

        As `append` for each of them, at a fraction of its cost; `columns` are those of
        `RowColumns`. They come into the log in order, but for those that are refused for a lock,
        which come later: two of one call that write the same lock wait for each other. Not all or
        nothing: what raises may leave some in the log, as a rule from the first on.

        `locks_as_of` is for rows that depend on a state: the last transaction that was applied
        before the state was read, as `client_high_water_mark` tells it. The locks of each row are
        compared with that mark, or with what is applied here if that is older, and no row is sent a
        second time: one that is refused, or that a broken connection took with it, has the ID -1.
        Such a row is not in the log and never will be. The transactions that a server names as the
        reason are applied when the call returns. Raises LocalProtocolError: less than -1.
        """
        self._engine.check_waits("append_many")
        rows = BulkRows(data, **columns)
        context = ManyAppends(partition_id, rows, timeout_seconds, locks_as_of)
        if len(context.rows):
            await self._append(context)
        return context.transaction_ids

    async def flush(self, timeout_seconds: float | None = None) -> None:
        """Return once every context submitted before has ended, retries included (PM-37).

        Raises OperationTimeoutError, ClientClosedError; PartitionBlockedError: one of them waits
        for a transaction that the application cannot apply; LocalProtocolError: called inside a
        callback.
        """
        engine = self._engine
        engine.check_waits("flush")
        if isinstance(engine.error, HistoryChangedError):
            raise engine.error
        await engine.submissions.flush(timeout_seconds, engine.nudge_all)

    async def _append(self, context: TransactionContext) -> TransactionId:
        """Submit `context` and return its ID once it is in the log and applied here.

        Raises as `submit`; OperationTimeoutError: its time is up; and what it ended with.
        """
        done: asyncio.Future[TransactionId] = asyncio.get_running_loop().create_future()

        def finished(submission: Submission, error: Exception | None) -> None:
            result = append_result(submission, error)
            if done.done():
                return
            if isinstance(result, Exception):
                done.set_exception(result)
            else:
                done.set_result(result)

        try:
            async with asyncio.timeout(context.timeout_seconds):
                await self._submit(context, finished)
        except BaseException as error:
            # The caller gets this exception; no one is left to take the context's own result.
            if not done.cancel():
                done.exception()
            if isinstance(error, TimeoutError):
                raise OperationTimeoutError(
                    f"the transaction was not sent in {context.timeout_seconds} s"
                ) from None
            raise
        return await done

    async def _submit(
        self, context: TransactionContext, on_finished: Finished | None = None
    ) -> None:
        engine, submissions = self._engine, self._engine.submissions
        submission = submissions.new(context, on_finished)
        try:
            # A call that waits for the end is not inside a callback: that was refused.
            waits = on_finished is not None or not is_called_by(engine)
            entry = submissions.begin(submission, waits=waits)
            if entry is not None:
                try:
                    await _wait_at(entry, engine.host.clock)
                except OperationTimeoutError as error:
                    submission.claim_verdict()  # a cancellation meanwhile tells nothing else
                    tell = partial(tell_expiration, submission)
                    await asyncio.wait([submissions.telling.start(submission, tell, error)])
                    if on_finished is not None:
                        on_finished(submission, error)
                    return
                submissions.register(
                    submission, holds_room=True, waited_seconds=entry.waited_seconds
                )
            if context.timeout_seconds is not None:
                submissions.expire_in_time(submission)
            runner = submission.runner
            if await engine.call(lambda: submission.execute(runner.application.high_water_mark)):
                if submission.undecided:
                    runner.mailbox.put(Submitted([submission]))
                return
            await engine.call(partial(tell_refusal, submission))
            submissions.finish(submission)
        except asyncio.CancelledError:
            submissions.fail(
                submission,
                SubmitCancelledError("the call was cancelled before the transaction was sent"),
            )
            raise
        except Exception as error:
            if engine.error is not None:  # the workers may be gone
                tell_exception(submission, error)
                submissions.finish(submission, error)
            else:  # it is told to the end, also if this call is cancelled meanwhile
                tell = partial(tell_exception, submission, error)
                await asyncio.wait([submissions.telling.start(submission, tell, error)])
            raise


@asynccontextmanager
async def _log_times(
    engine: ClientEngine, options: ClientOptions, open_coordinator: OpenCoordinator | None
) -> AsyncIterator[AsyncLogTimes]:
    # Only a client that is asked for times talks to storage nodes.
    from waltz.operators.log_times_shell import AsyncLogTimes

    times = AsyncLogTimes(
        engine.host, options.root, servers=options.servers, open_coordinator=open_coordinator
    )
    try:
        yield times
    finally:
        await times.close()


async def _wait_at(entry: Entry, clock: Clock) -> None:
    """Return once the entry has room. Raises as its `step`."""
    woken = asyncio.Event()
    entry.wake = woken.set
    try:
        while (seconds := entry.step(clock.now())) is not None:
            try:
                async with asyncio.timeout(seconds):
                    await woken.wait()
            except TimeoutError:
                pass  # the next step knows what that means
            woken.clear()
    finally:
        entry.leave()
