"""The client for threads: the same verbs, run by a loop in one background thread.

Owns how threads submit and wait. A submit costs its caller the execution and a queue; all submits
that come while the loop is busy wake it once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

from waltz.arrays import np
from waltz.client.appends.gate import Entry
from waltz.client.appends.submission import Finished, Submission, append_result
from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.applying.calls import (
    inside_callback,
    is_called_by,
    refuse_inside_callbacks,
    tell_exception,
    tell_expiration,
    tell_refusal,
)
from waltz.client.bulk import BulkRows, ManyAppends, RowColumns
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient, ClientFacts, NewEngine
from waltz.client.engine_shell import ClientEngine
from waltz.client.transaction import Lock, PlainAppend, TransactionContext
from waltz.connections.loop_thread import FaceForThreads, LoopThread, NewHost, blocking
from waltz.errors import OperationTimeoutError, SubmitCancelledError
from waltz.host import Clock
from waltz.types import TransactionId

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from waltz.operators.log_times_shell import OpenCoordinator

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")


def _verb_of(
    verb: Callable[Concatenate[AsyncWaltzClient, P], Coroutine[Any, Any, T]],
) -> Callable[[Callable[Concatenate[C, P], T]], Callable[Concatenate[C, P], T]]:
    """Let a method that does not go through the loop be the verb for threads of `verb`: with its
    parameters, which type checkers compare, and its docstring."""

    def same(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
        method.__doc__ = verb.__doc__
        return method

    return same


class WaltzClient(ClientFacts, FaceForThreads[AsyncWaltzClient]):
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
        open_coordinator: OpenCoordinator | None = None,
        new_engine: NewEngine = ClientEngine,
    ) -> None:
        """`thread` and `new_engine`: where, and as what, the client runs if not as usual.
        `open_coordinator` as for `AsyncWaltzClient`.

        Raises NoNodeError: there is no cluster. CoordinatorLostError. With `options.servers`
        ConnectionFailedError: none of them in time; RemoteProtocolError: no server of ours.
        """
        self.options = options
        super().__init__(
            thread or LoopThread("waltz-client"),
            _open_client(new_host, callbacks, options, open_coordinator, new_engine),
        )
        self._engine: ClientEngine = self._there.engine
        self._submitting: set[int] = set()
        """The threads that are submitting: a submit that begins there meanwhile was made by a
        handler of a signal, or by `execute`, and the one that it interrupts may have room."""

    @property
    def engine(self) -> ClientEngine:
        self._thread.check_process()
        return self._engine

    get_high_water_mark = blocking(AsyncWaltzClient.get_high_water_mark)
    wait_until_applied = blocking(AsyncWaltzClient.wait_until_applied)
    outcome = blocking(AsyncWaltzClient.outcome)
    ask_servers = blocking(AsyncWaltzClient.ask_servers)
    time_of = blocking(AsyncWaltzClient.time_of)
    transaction_at = blocking(AsyncWaltzClient.transaction_at)
    prefer_partitions = blocking(AsyncWaltzClient.prefer_partitions)
    set_partitions = blocking(AsyncWaltzClient.set_partitions)

    @_verb_of(AsyncWaltzClient.flush)
    def flush(self, timeout_seconds: float | None = None) -> None:
        # A callback of that submit calls, or the handler of a signal: it would wait for the submit.
        if get_ident() in self._submitting:
            raise inside_callback("flush")
        self._thread.call(self._there.flush(timeout_seconds))

    @_verb_of(AsyncWaltzClient.submit)
    def submit(self, context: TransactionContext) -> None:
        self._submit(context)

    def submit_many(self, contexts: Sequence[TransactionContext]) -> None:
        """Submit `contexts` in order; raises at the first that `submit` would raise for."""
        for context in contexts:
            self._submit(context)

    @_verb_of(AsyncWaltzClient.append)
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
        refuse_inside_callbacks(self._engine, "append")
        context = PlainAppend(partition_id, data, header, write_locks, read_locks, append_locks)
        context.timeout_seconds = timeout_seconds
        return self._append(context)

    @_verb_of(AsyncWaltzClient.append_many)
    def append_many(
        self,
        partition_id: int,
        data: Sequence[bytes],
        *,
        timeout_seconds: float | None = None,
        locks_as_of: int | None = None,
        **columns: Unpack[RowColumns],
    ) -> NDArray[np.int64]:
        refuse_inside_callbacks(self._engine, "append_many")
        rows = BulkRows(data, **columns)
        context = ManyAppends(partition_id, rows, timeout_seconds, locks_as_of)
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

    def _submit(self, context: TransactionContext, on_finished: Finished | None = None) -> None:
        thread = get_ident()
        # If it waited for room that the interrupted submit has, neither of the two would go on.
        needs_room = thread not in self._submitting
        self._submitting.add(thread)
        try:
            self._submit_from(context, on_finished, needs_room=needs_room)
        finally:
            if needs_room:
                self._submitting.discard(thread)

    def _submit_from(
        self, context: TransactionContext, on_finished: Finished | None, *, needs_room: bool
    ) -> None:
        engine = self._engine
        submissions = engine.submissions
        submission = submissions.new(context, on_finished)
        try:
            self._thread.check_process()
            # A call that waits for the end is not inside a callback: that was refused.
            waits = on_finished is not None or not is_called_by(engine)
            entry = submissions.begin(submission, waits=waits, needs_room=needs_room)
            if entry is not None:
                try:
                    _wait_at(entry, engine.host.clock)
                except OperationTimeoutError as error:
                    tell_expiration(submission)
                    if on_finished is not None:
                        on_finished(submission, error)
                    return
                submissions.register(
                    submission, holds_room=needs_room, waited_seconds=entry.waited_seconds
                )
            # Sampled first: the state that execute reads is that of the mark, or newer.
            is_wanted = submission.execute(submission.runner.application.high_water_mark)
        except BaseException as error:
            cancelled = SubmitCancelledError(
                "the call was interrupted before the transaction was sent"
            )
            reason = error if isinstance(error, Exception) else cancelled
            try:
                tell_exception(submission, reason)
            finally:  # the callback may be interrupted
                submissions.withdraw(submission, reason)
            raise
        if is_wanted:
            submissions.hand_over(submission)
            return
        try:
            tell_refusal(submission)
        finally:
            submissions.withdraw(submission, None)

    def close(self) -> None:
        """End everything; contexts that have no verdict yet get ClientClosedError (PM-44).

        Returns in bounded time, whatever servers and callbacks do. Idempotent; in a forked process
        it does nothing, for everything is the other process's. A client that is left open is closed
        when the interpreter exits.
        """
        refuse_inside_callbacks(self._engine, "close")
        self._close_in_time(self._there.close(), self.options.close_seconds_max)


def _wait_at(entry: Entry, clock: Clock) -> None:
    """Return once the entry has room. Raises as its `step`."""
    woken: SimpleQueue[None] = SimpleQueue()
    entry.wake = partial(woken.put, None)
    try:
        while (seconds := entry.step(clock.now())) is not None:
            with suppress(Empty):
                woken.get(timeout=seconds)
    finally:
        entry.leave()


async def _open_client(
    new_host: NewHost,
    callbacks: WaltzClientCallbacks,
    options: ClientOptions,
    open_coordinator: OpenCoordinator | None,
    new_engine: NewEngine,
) -> AsyncWaltzClient:
    host, release_host = new_host()
    client = AsyncWaltzClient(
        host,
        callbacks,
        options,
        release_host=release_host,
        open_coordinator=open_coordinator,
        new_engine=new_engine,
    )
    await client.start()
    return client
