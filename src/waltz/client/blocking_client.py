"""The client for threads: the same verbs, run by a loop in one background thread.

Owns the gate where threads wait. A submit costs its caller the execution and a queue; all submits
that come while the loop is busy wake it once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar, Unpack
from uuid import UUID

from waltz.arrays import np
from waltz.client.appends.submission import Submission, append_result
from waltz.client.applying.blocked import BlockedPartition
from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.applying.calls import is_called_by, tell_exception, tell_expiration, tell_refusal
from waltz.client.bulk import BulkRows, ManyAppends, RowColumns
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.partitions.partition_runner_shell import PartitionRunner
from waltz.client.transaction import Lock, PlainAppend, TransactionContext
from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.connections.loop_thread import (
    OPEN,
    Closable,
    LoopThread,
    NewHost,
    close_in_time,
)
from waltz.errors import (
    LocalProtocolError,
    OperationTimeoutError,
    PartitionNotReadyError,
    SubmitCancelledError,
    UnavailableError,
)
from waltz.operators.questions_shell import ServerReport
from waltz.types import NOTHING, Address, ClientId, PartitionId, RequestId, TransactionId

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")

NewCore = Callable[..., AsyncWaltzClient]
"""Makes the client proper, with the arguments of AsyncWaltzClient."""


class ThreadGate:
    """A gate for threads: a queue of permits, which costs little while there are some."""

    def __init__(self, capacity: int) -> None:
        self._is_open = False
        """Mounted, and not failed."""
        self._mounted = threading.Event()
        self._permits: SimpleQueue[None] = SimpleQueue()
        self._error: Exception | None = None
        self.why: Callable[[], str] = str
        self.release(capacity)

    def enter_at_once(self) -> bool:
        """As `enter`, as far as nobody has to wait for it; False: one has to, or has to be told."""
        if not self._is_open:
            return False
        try:
            self._permits.get_nowait()
        except Empty:
            return False
        return True

    def enter(
        self,
        mount_seconds_max: float,
        registration_seconds_max: float,
        nudge: Callable[[], None],
        deadline: float | None,
    ) -> bool:
        """Return True once the partition is mounted and has room, which is taken.

        False: `deadline`, of `time.monotonic`, came first. Raises PartitionNotReadyError: no server
        in time; and what the gate failed with.
        """
        if not (
            self._mounted.is_set() or self._mounted.wait(min(mount_seconds_max, _left(deadline)))
        ):
            if _left(deadline) <= 0:
                return False
            raise PartitionNotReadyError(
                f"the partition had no usable server for {mount_seconds_max:g} s{self.why()}"
            )
        while True:
            try:
                self._permits.get(timeout=min(registration_seconds_max, _left(deadline)))
                break
            except Empty:
                if _left(deadline) <= 0:
                    return False
                nudge()
        if self._error is not None:
            self._permits.put(None)  # for the next one who waits
            raise self._error
        return True

    def set_mounted(self, mounted: bool) -> None:
        self._is_open = mounted and self._error is None
        if mounted or self._error is not None:
            self._mounted.set()
        else:
            self._mounted.clear()

    def release(self, count: int) -> None:
        for _ in range(count):
            self._permits.put(None)

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._is_open = False
        self._mounted.set()
        self._permits.put(None)


def _left(deadline: float | None) -> float:
    return threading.TIMEOUT_MAX if deadline is None else max(0.0, deadline - time.monotonic())


class WaltzClient(Closable):
    """Submits transactions and applies the log, for threads; a context manager.

    Any thread may call, callbacks too, except that `flush`, `append` and `close` inside a callback
    raise LocalProtocolError: they would wait for it.
    """

    def __init__(
        self,
        new_host: NewHost,
        callbacks: WaltzClientCallbacks,
        options: ClientOptions,
        *,
        thread: LoopThread | None = None,
        new_core: NewCore = AsyncWaltzClient,
    ) -> None:
        """`thread` and `new_core`: where, and as what, the client runs if not as usual.

        Raises NoNodeError: there is no cluster. CoordinatorLostError. With `options.servers`
        ConnectionFailedError: none of them in time; RemoteProtocolError: no server of ours.
        """
        self.options = options
        self._thread = thread or LoopThread("waltz-client")
        try:
            self._opened = self._thread.call(_open_client(new_host, callbacks, options, new_core))
        except BaseException:
            self._thread.stop()
            raise
        OPEN[self] = None

    @property
    def _core(self) -> AsyncWaltzClient:
        self._thread.check_process()
        return self._opened

    # What it knows

    @property
    def client_id(self) -> ClientId:
        return self._core.client_id

    @property
    def snapshot(self) -> ClusterSnapshot:
        return self._core.snapshot

    @property
    def partition_count(self) -> int:
        return self._core.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self._core.cluster_key

    @property
    def cluster_name(self) -> str:
        return self._core.cluster_name

    @property
    def connected_servers(self) -> frozenset[Address]:
        """As of `AsyncWaltzClient`: none, and the client is not connected to its cluster."""
        return self._core.connected_servers

    def has_pending_transactions(self) -> bool:
        """Whether a submitted context has not ended yet (PM-39)."""
        return self._core.has_pending_transactions()

    def client_high_water_mark(self, partition_id: int) -> TransactionId:
        """Return the last transaction of the partition that was applied here."""
        return self._core.client_high_water_mark(partition_id)

    def blocked_partitions(self) -> dict[PartitionId, BlockedPartition]:
        """Return the partitions whose next transaction the application cannot apply now, and why.

        Each is tried again, later and later, while the others go on (PM-38).
        """
        return self._core.blocked_partitions()

    def active_partitions(self) -> list[PartitionId]:
        """Return the partitions that this client follows."""
        return self._core.active_partitions()

    def parked_transactions(self) -> dict[PartitionId, int]:
        """Return how many transactions this client has parked, per partition that has some."""
        return self._core.parked_transactions()

    def wait_until_applied(
        self,
        *,
        partitions: Collection[int] | None = None,
        timeout_seconds: float | None = None,
    ) -> dict[PartitionId, TransactionId]:
        """Return once all that the log holds at this moment has been applied here.

        As for `AsyncWaltzClient.wait_until_applied`.
        """
        self._refuse_inside_callbacks("wait_until_applied")
        work = self._core.wait_until_applied(partitions=partitions, timeout_seconds=timeout_seconds)
        return self._thread.call(work)

    def get_high_water_mark(
        self, partition_id: int, timeout_seconds: float | None = None
    ) -> TransactionId:
        """Return the last transaction in the partition's log, -1 for none (PM-36).

        Waits `operation_seconds_max` by default. Raises NotFoundError, ClientClosedError,
        ClusterChangedError, OperationTimeoutError; ConnectionLostError: the retry policy wants no
        more attempts.
        """
        return self._thread.call(self._core.get_high_water_mark(partition_id, timeout_seconds))

    # Servers

    def ask_servers(self) -> dict[Address, ServerReport | UnavailableError]:
        """Ask every server that serves a partition how it is (CI-31).

        The error of one that does not answer is its answer, in bounded time.
        """
        return self._thread.call(self._core.ask_servers())

    def prefer_partitions(
        self, server: Address, *, add: Sequence[int] = (), remove: Sequence[int] = ()
    ) -> bool:
        """Let a server prefer these partitions, or no longer; return whether it has taken note.

        Raises NotFoundError: no such partition; UnavailableError: it does not answer, and may have
        taken note.
        """
        return self._thread.call(self._core.prefer_partitions(server, add=add, remove=remove))

    # Active partitions

    def set_partitions(self, partitions: Collection[int]) -> None:
        """Follow these partitions and write to them, and to no others (PM-35).

        Those that leave are flushed first, for `mount_seconds_max`; contexts that have no verdict
        then get PartitionInactiveError, and may be in the log all the same (CI-28). Raises
        LocalProtocolError: this client follows all, or a callback calls; NotFoundError.
        """
        self._refuse_inside_callbacks("set_partitions")
        self._thread.call(self._core.set_partitions(partitions))

    # Writing

    def submit(self, context: TransactionContext) -> None:
        """Execute `context` and send what it wants in the log; do not wait for the verdict (PM-05).

        Waits until the partition has a server and room (PM-42); inside a callback it does not wait
        for room. Whatever is raised was told to the context's `on_exception` before: NotFoundError,
        PartitionInactiveError, PartitionNotReadyError, ClientAheadError, ClientClosedError,
        LocalProtocolError, and what `execute` raises.
        """
        self._submit(context, None)

    def submit_many(self, contexts: Sequence[TransactionContext]) -> None:
        """Submit `contexts` in order; raises at the first that `submit` would raise for."""
        for context in contexts:
            self._submit(context, None)

    def append(
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
        same data. By default it has no time limit; one that passes raises OperationTimeoutError.
        Raises as `submit`; PartitionBlockedError: the application cannot apply one before it; these
        and ClientClosedError may leave it in the log.
        """
        self._refuse_inside_callbacks("append")
        context = PlainAppend(partition_id, data, header, write_locks, read_locks, append_locks)
        context.timeout_seconds = timeout_seconds
        return self._append(context)

    def append_many(
        self,
        partition_id: int,
        data: Sequence[bytes],
        *,
        timeout_seconds: float | None = None,
        **columns: Unpack[RowColumns],
    ) -> NDArray[np.int64]:
        """Append many transactions, and return their IDs once all are in the log and applied here.

        As `append` for each of them, at a fraction of its cost; `columns` are those of
        `RowColumns`. They come into the log in order, but for those that are refused for a lock,
        which come later: two of one call that write the same lock wait for each other. Not all or
        nothing: what raises may leave some in the log, as a rule from the first on.
        """
        self._refuse_inside_callbacks("append_many")
        context = ManyAppends(partition_id, BulkRows(data, **columns), timeout_seconds)
        if len(context.rows):
            self._append(context)
        return context.transaction_ids

    def _append(self, context: TransactionContext) -> TransactionId:
        answer: SimpleQueue[TransactionId | Exception] = SimpleQueue()

        def finished(submission: Submission, error: Exception | None) -> None:
            answer.put(append_result(submission, error))

        self._submit(context, finished)
        result = answer.get()
        if isinstance(result, Exception):
            raise result
        return result

    def outcome(
        self,
        request_id: RequestId,
        after: int = NOTHING,
        *,
        timeout_seconds: float | None = None,
    ) -> TransactionId | None:
        """Return where the append with that request ID is in the log; None if it is not there and
        never will be.

        As for `AsyncWaltzClient.outcome`. Raises OperationTimeoutError, too.
        """
        return self._thread.call(self._core.outcome(request_id, after), timeout_seconds)

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Return once every context submitted before has ended, retries included (PM-37).

        Raises OperationTimeoutError, ClientClosedError.
        """
        self._refuse_inside_callbacks("flush")
        self._thread.call(self._core.flush(timeout_seconds))

    def _submit(
        self,
        context: TransactionContext,
        on_finished: Callable[[Submission, Exception | None], None] | None,
    ) -> None:
        core, submissions = self._opened, self._opened.submissions
        core.stamp(context)
        try:
            self._thread.check_process()
            runner = core.runner_of(context)
            gate = runner.gate
            # Who waits for the end is not inside a callback: that was refused.
            holds_room = on_finished is not None or not is_called_by(core)
            assert isinstance(gate, ThreadGate)
            came = None if not holds_room or gate.enter_at_once() else time.monotonic()
            if came is not None and not self._enter(gate, runner, context):
                expired = Submission(0, context, runner.partition_id)
                tell_expiration(expired)
                if on_finished is not None:
                    on_finished(expired, OperationTimeoutError("the context's time is up"))
                return
            submission = submissions.admit(context, runner.partition_id, holds_room=holds_room)
        except Exception as error:
            tell_exception(Submission(0, context, PartitionId(0)), error)
            raise
        submission.on_finished = on_finished
        if came is not None:
            submission.waited_seconds = time.monotonic() - came
        try:
            # Sampled first: the state that execute reads is that of the mark, or newer.
            is_wanted = submission.execute(runner.high_water_mark)
        except BaseException as error:
            cancelled = SubmitCancelledError("interrupted: nothing was sent")
            reason = error if isinstance(error, Exception) else cancelled
            tell_exception(submission, reason)
            submissions.withdraw(submission, reason)
            raise
        if is_wanted:
            submissions.hand_over(submission)
            return
        tell_refusal(submission)
        submissions.withdraw(submission, None)

    def _enter(
        self, gate: ThreadGate, runner: PartitionRunner, context: TransactionContext
    ) -> bool:
        options, seconds = self.options, context.timeout_seconds
        return gate.enter(
            options.mount_seconds_max,
            options.registration_seconds_max,
            partial(self._core.nudge, runner),
            None if seconds is None else time.monotonic() + seconds,
        )

    def _refuse_inside_callbacks(self, verb: str) -> None:
        if is_called_by(self._opened):
            raise LocalProtocolError(f"{verb} called inside a callback, which it would wait for")

    # Closing

    def close(self) -> None:
        """End everything; contexts that have no verdict yet get ClientClosedError (PM-44).

        Returns in bounded time, whatever servers and callbacks do. Idempotent; in a forked process
        it does nothing, for everything is the other process's. A client that is left open is closed
        when the interpreter exits.
        """
        self._refuse_inside_callbacks("close")
        OPEN.pop(self, None)
        close_in_time(self._thread, self._opened.close(), self.options.close_seconds_max)


async def _open_client(
    new_host: NewHost,
    callbacks: WaltzClientCallbacks,
    options: ClientOptions,
    new_core: NewCore,
) -> AsyncWaltzClient:
    host, release_host = new_host()
    client = new_core(host, callbacks, options, release_host=release_host, new_gate=ThreadGate)
    await client.start()
    return client
