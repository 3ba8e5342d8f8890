"""The client and the reader for threads: the same verbs, run by a loop in one background thread.

Owns that thread, and the gate where threads wait. A submit costs its caller the execution and a
queue; all submits that come while the loop is busy wake it once.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

from waltz.client.callbacks import WaltzClientCallbacks
from waltz.client.calls import is_called_by, tell_exception, tell_expiration, tell_refusal
from waltz.client.options import ClientOptions
from waltz.client.partitions.shell import BlockedPartition, PartitionRunner
from waltz.client.questions.shell import ServerReport
from waltz.client.reader.columns import TransactionColumns
from waltz.client.reader.shell import AsyncLogReader, WantsData
from waltz.client.retry import RetryPolicy
from waltz.client.shell import AsyncWaltzClient
from waltz.client.submission import Submission, checked_partition, settle_append
from waltz.client.transaction import PartitionLocalLock, PlainAppend, TransactionContext
from waltz.errors import (
    ClientClosedError,
    LocalProtocolError,
    OperationTimeoutError,
    PartitionNotReadyError,
    UnavailableError,
)
from waltz.host import Host
from waltz.limits import CLIENT_CLOSE_SECONDS, READER_SECONDS_MAX
from waltz.types import NOTHING, Address, ClientId, PartitionId, RequestId, TransactionId

T = TypeVar("T")

NewHost = Callable[[], tuple[Host, Callable[[], None]]]
"""Makes the doors of a client, on its loop, and what ends them but the coordinator session."""

NewCore = Callable[..., AsyncWaltzClient]
"""Makes the client proper, with the arguments of AsyncWaltzClient."""

FORK_REMEDY = "this client was opened before a fork; open one in each process, after the fork"


class LoopThread:
    """An event loop, a new one unless given, that runs in a thread of its own until `stop`."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._process_id = os.getpid()
        self._loop = loop or _new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        """Run `work` on the loop and return its result; an interrupted wait cancels it.

        Raises ClientClosedError; OperationTimeoutError; LocalProtocolError: on the loop's thread.
        """
        try:
            self.check_process()
            if threading.current_thread() is self._thread:
                raise LocalProtocolError("a blocking call on the loop that would have to serve it")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException as error:
            work.close()
            if isinstance(error, RuntimeError):
                raise ClientClosedError("closed") from None
            raise
        try:
            return future.result(timeout_seconds)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise OperationTimeoutError(f"no result in {timeout_seconds} s") from None
        except BaseException:
            future.cancel()
            raise

    def check_process(self) -> None:
        """Raises LocalProtocolError: this is another process, which has no such thread."""
        if os.getpid() != self._process_id:
            raise LocalProtocolError(FORK_REMEDY)

    def stop(self) -> None:
        """End the loop and its thread. Idempotent; does nothing in a forked process."""
        if os.getpid() != self._process_id or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self._loop.stop)
        except RuntimeError:
            return
        if threading.current_thread() is not self._thread:
            self._thread.join(CLIENT_CLOSE_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # it does not exist for every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class ThreadGate:
    """A gate for threads: a queue of permits, which costs little while there are some."""

    def __init__(self, capacity: int) -> None:
        self._mounted = threading.Event()
        self._permits: SimpleQueue[None] = SimpleQueue()
        self._error: Exception | None = None
        self.release(capacity)

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
                f"the partition had no usable server for {mount_seconds_max:g} s"
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
        if mounted or self._error is not None:
            self._mounted.set()
        else:
            self._mounted.clear()

    def release(self, count: int) -> None:
        for _ in range(count):
            self._permits.put(None)

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._mounted.set()
        self._permits.put(None)


def _left(deadline: float | None) -> float:
    return threading.TIMEOUT_MAX if deadline is None else max(0.0, deadline - time.monotonic())


class WaltzClient:
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
        self._options = options
        self._thread = thread or LoopThread("waltz-client")
        try:
            self._core = self._thread.call(_open_client(new_host, callbacks, options, new_core))
        except BaseException:
            self._thread.stop()
            raise

    # What it knows

    @property
    def client_id(self) -> ClientId:
        return self._core.client_id

    @property
    def partition_count(self) -> int:
        return self._core.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self._core.cluster_key

    @property
    def cluster_name(self) -> str:
        return self._core.cluster_name

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
        write_locks: Sequence[PartitionLocalLock] = (),
        read_locks: Sequence[PartitionLocalLock] = (),
        append_locks: Sequence[PartitionLocalLock] = (),
        timeout_seconds: float | None = None,
    ) -> TransactionId:
        """Append one transaction and return its ID once it is in the log and applied here.

        For data that does not depend on what was applied: a refused lock is tried again with the
        same data. By default it has no time limit; one that passes raises OperationTimeoutError.
        Raises as `submit`; that and ClientClosedError may leave it in the log.
        """
        self._refuse_inside_callbacks("append")
        answer: SimpleQueue[TransactionId | Exception] = SimpleQueue()

        def finished(submission: Submission, error: Exception | None) -> None:
            settle_append(submission, error, answer.put, answer.put)

        context = PlainAppend(partition_id, data, header, write_locks, read_locks, append_locks)
        context.timeout_seconds = timeout_seconds
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
        core = self._core
        core.stamp(context)
        try:
            self._thread.check_process()
            partition_id = checked_partition(context, core.partition_count)
            runner = core.runner(partition_id)
            holds_room = not is_called_by(core)
            came = time.monotonic()
            if holds_room and not self._enter(runner, context):
                expired = Submission(0, context, partition_id)
                tell_expiration(expired)
                if on_finished is not None:
                    on_finished(expired, OperationTimeoutError("the context's time is up"))
                return
            submission = core.submissions.admit(context, partition_id, holds_room=holds_room)
        except Exception as error:
            tell_exception(Submission(0, context, PartitionId(0)), error)
            raise
        submission.on_finished = on_finished
        submission.waited_seconds = time.monotonic() - came
        try:
            # Sampled first: the state that execute reads is that of the mark, or newer.
            if submission.execute(runner.high_water_mark):
                core.submissions.hand_over(submission)
                return
        except BaseException as error:
            reason = error if isinstance(error, Exception) else ClientClosedError("interrupted")
            tell_exception(submission, reason)
            core.submissions.withdraw(submission, reason)
            raise
        tell_refusal(submission)
        core.submissions.withdraw(submission, None)

    def _enter(self, runner: PartitionRunner, context: TransactionContext) -> bool:
        gate, options = runner.gate, self._options
        assert isinstance(gate, ThreadGate)
        seconds = context.timeout_seconds
        return gate.enter(
            options.mount_seconds_max,
            options.registration_seconds_max,
            partial(self._core.nudge, runner),
            None if seconds is None else time.monotonic() + seconds,
        )

    def _refuse_inside_callbacks(self, verb: str) -> None:
        if is_called_by(self._core):
            raise LocalProtocolError(f"{verb} called inside a callback, which it would wait for")

    # Closing

    def close(self) -> None:
        """End everything; contexts that have no verdict yet get ClientClosedError (PM-44).

        Returns in bounded time, whatever servers and callbacks do. Idempotent.
        """
        self._refuse_inside_callbacks("close")
        _close_in_time(self._thread, self._core.close(), self._options.close_seconds_max)

    def __enter__(self) -> WaltzClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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


def _close_in_time(thread: LoopThread, work: Coroutine[Any, Any, None], seconds_max: float) -> None:
    try:
        thread.call(work, seconds_max + CLIENT_CLOSE_SECONDS)
    except (ClientClosedError, OperationTimeoutError):
        pass  # closed before, or as far as could be waited for
    finally:
        thread.stop()


class LogReader:
    """Reads the log as columns, for threads; a context manager.

    Without a state of its own: every read says where it starts. Used by Spark's tasks and by tools.
    """

    def __init__(
        self,
        new_host: NewHost,
        *,
        timeout_seconds: float = READER_SECONDS_MAX,
        root: str | None = None,
        servers: Sequence[Address] = (),
        thread: LoopThread | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        """`thread`: where it runs if not as usual.

        Raises NoNodeError: there is no cluster. CoordinatorLostError. With `servers`
        ConnectionFailedError: none of them in time; RemoteProtocolError: no server of ours.
        """
        self._thread = thread or LoopThread("waltz-reader")
        try:
            self._core = self._thread.call(
                _open_reader(
                    new_host,
                    timeout_seconds=timeout_seconds,
                    root=root,
                    servers=servers,
                    retry_policy=retry_policy,
                )
            )
        except BaseException:
            self._thread.stop()
            raise

    @property
    def partition_count(self) -> int:
        return self._core.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self._core.cluster_key

    def high_water_mark(self, partition_id: int) -> TransactionId:
        """Return the last transaction in the partition's log, -1 for none.

        Raises NotFoundError; UnavailableError: no server answered in time.
        """
        return self._thread.call(self._core.high_water_mark(partition_id))

    def read(
        self,
        partition_id: int,
        first: int,
        end: int,
        *,
        wants_data: WantsData | None = None,
    ) -> Generator[TransactionColumns, None, None]:
        """Yield the transactions from `first` to `end` - 1: dense, in order, complete.

        Fetches ahead. With `wants_data`, a function of many headers that says for which of them
        the data is wanted, the others' is empty and not fetched. Raises NotFoundError: no such
        partition, or the log ends before `end`; UnavailableError: no progress for
        `timeout_seconds`; LocalProtocolError: not a range.
        """
        return self._iterate(self._core.read(partition_id, first, end, wants_data=wants_data))

    def follow(self, partition_id: int, first: int) -> Generator[TransactionColumns, None, None]:
        """Yield the transactions from `first` on as they come, for ever.

        Raises NotFoundError, ClientAheadError: the log ends before `first` - 1; UnavailableError.
        """
        return self._iterate(self._core.follow(partition_id, first))

    def _iterate(
        self, columns: AsyncGenerator[TransactionColumns, None]
    ) -> Generator[TransactionColumns, None, None]:
        async def advance() -> TransactionColumns | None:
            return await anext(columns, None)

        try:
            while (found := self._thread.call(advance())) is not None:
                yield found
        finally:
            try:
                self._thread.call(columns.aclose())
            except ClientClosedError:
                pass  # the reader was closed first, and that with it

    def close(self) -> None:
        """Idempotent."""
        _close_in_time(self._thread, self._core.close(), CLIENT_CLOSE_SECONDS)

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _open_reader(new_host: NewHost, **options: Any) -> AsyncLogReader:
    host, release_host = new_host()
    reader = AsyncLogReader(host, release_host=release_host, **options)
    await reader.start()
    return reader
