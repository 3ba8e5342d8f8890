"""The contexts of a client that have not ended: admitted, sent, waiting to be executed again.

Owns the one way in, for tasks and for threads, that each context ends exactly once, and that
flushes learn of it. What becomes of an append is decided by the partitions; user code runs on
workers, through `call`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from waltz.client.appends.gate import Entry
from waltz.client.appends.retries_shell import Retries
from waltz.client.appends.submission import (
    Finished,
    Submission,
    checked_partition,
)
from waltz.client.applying.calls import (
    tell_end,
    tell_exception,
    tell_expiration,
)
from waltz.client.bulk import ManyAppends
from waltz.client.client_options import ClientOptions
from waltz.client.partitions.client_partition_events import FlushWanted, Submitted
from waltz.client.partitions.partition_runner_shell import Call, PartitionRunner
from waltz.client.transaction import PlainAppend, TransactionContext
from waltz.connections.tasks_shell import Tasks
from waltz.errors import (
    ClientClosedError,
    OperationTimeoutError,
    PartitionBlockedError,
    PartitionInactiveError,
)
from waltz.figures import Durations
from waltz.host import Host
from waltz.types import NOTHING, PartitionId


class _Flush:
    """A call that waits for the end of these submissions."""

    def __init__(self, numbers: dict[int, Submission]) -> None:
        self.numbers = {number: each.partition_id for number, each in numbers.items()}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Telling:
    """Tells contexts how they end, each in a task of its own, and finishes their submissions."""

    def __init__(
        self, tasks: Tasks, call: Call, finish: Callable[[Submission, Exception | None], None]
    ) -> None:
        self._tasks = tasks
        self._call = call
        self._finish = finish
        self._telling: dict[asyncio.Task[None], None] = {}

    def start(
        self, submission: Submission, tell: Callable[[], None], error: Exception | None
    ) -> asyncio.Task[None]:
        """Call `tell` on a worker; the submission ends with `error` then. Return the task, which a
        caller may stop waiting for."""
        task = self._tasks.start(self._tell(submission, tell, error))
        self._telling[task] = None
        task.add_done_callback(self._telling.pop)
        return task

    async def _tell(
        self, submission: Submission, tell: Callable[[], None], error: Exception | None
    ) -> None:
        if type(submission.context) in (PlainAppend, ManyAppends):
            tell()  # runs no code of the application: all workers may be in callbacks that hang
        else:
            await self._call(tell)
        self._finish(submission, error)

    async def all_told(self) -> None:
        """Return once no context is being told its end."""
        while self._telling:
            await asyncio.wait([*self._telling])


class Submissions:
    """See the module. Made on the loop."""

    def __init__(
        self,
        runners: Mapping[PartitionId, PartitionRunner],
        tasks: Tasks,
        host: Host,
        options: ClientOptions,
        call: Call,
    ) -> None:
        self.partition_count = 0
        """The number of partitions that the cluster has, as far as the client knows."""
        self._runners = runners
        self.error: Exception | None = None
        """Raised for each context that is submitted from now on; None: they are taken."""
        self.telling = Telling(tasks, call, self.finish)
        self.retries = Retries(
            tasks, host.random, call, options.retry_threads, self.finish, self.telling
        )
        self._clock = host.clock
        self._options = options
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self.append_seconds = Durations()
        """From the submit of a context until it was told and applied; one per batch."""
        self._unfinished: dict[int, Submission] = {}
        self._given_up: dict[PartitionId, Exception] = {}
        self._flushes: list[_Flush] = []
        self._handed: deque[Submission] = deque()
        self._takes = 0
        self._woken_after = -1
        """After how many takes the loop was woken for one more."""

    def __len__(self) -> int:
        return len(self._unfinished)

    # The way in, for any thread

    def new(self, context: TransactionContext, on_finished: Finished | None = None) -> Submission:
        """Return the submission of a context that comes now; it is not registered yet.

        `on_finished` is called on the loop once it has ended.
        """
        # Contexts may be frozen dataclasses.
        object.__setattr__(context, "creation_time", self._clock.wall_milliseconds())
        submission = Submission(next(self._numbers), context, PartitionId(NOTHING))
        submission.on_finished = on_finished
        submission.submitted_at = self._clock.now()
        return submission

    def begin(
        self, submission: Submission, *, waits: bool, needs_room: bool = True
    ) -> Entry | None:
        """Let the context choose its partition, and register the submission if there is room.
        Otherwise return its entry: once that has room, `register`. A submission that does not
        `wait` needs no room and no server.

        Raises NotFoundError, PartitionInactiveError, and what the client has closed with.
        """
        if self.error is not None:
            raise self.error
        context = submission.context
        partition_id = checked_partition(context, self.partition_count)
        runner = self._runners.get(partition_id)
        if runner is None:
            raise not_active(partition_id, self._runners)
        submission.runner, submission.partition_id = runner, partition_id
        if waits and not runner.gate.enter(needs_room=needs_room):
            return Entry(
                runner.gate,
                self._clock.now(),
                needs_room=needs_room,
                timeout_seconds=context.timeout_seconds,
                mount_seconds_max=self._options.mount_seconds_max,
                registration_seconds_max=self._options.registration_seconds_max,
                nudge=partial(self._wake, partial(runner.mailbox.put, FlushWanted())),
            )
        self.register(submission, holds_room=waits and needs_room)
        return None

    def register(
        self, submission: Submission, *, holds_room: bool, waited_seconds: float = 0.0
    ) -> None:
        """Register a submission that has entered, after `waited_seconds` at the gate.

        Raises what the client has closed with, or the partition was given up with.
        """
        submission.holds_room = holds_room
        submission.waited_seconds = waited_seconds
        self._unfinished[submission.number] = submission
        error = self.error or self._given_up.get(submission.partition_id)
        if error is not None:  # closing and giving up look at what was registered before
            self._unfinished.pop(submission.number, None)
            raise error

    def hand_over(self, submission: Submission) -> None:
        """Send what was executed; wakes the loop once for all that waits.

        May be interrupted anywhere, and called again before it returns: by handlers of signals.
        Raises ClientClosedError, which its context was told.
        """
        self._handed.append(submission)
        takes = self._takes
        if self._woken_after == takes:
            return  # the next take is still to come
        try:
            self._wake(self._take_handed)
        except ClientClosedError as error:
            tell_exception(submission, error)
            raise
        self._woken_after = takes

    def withdraw(self, submission: Submission, error: Exception | None) -> None:
        """Forget a submission that was never sent and has been told its end."""
        with suppress(ClientClosedError):  # with the loop all waiting has ended
            self._wake(partial(self.finish, submission, error))

    def _wake(self, function: Callable[[], None]) -> None:
        """Run `function` on the loop. Raises ClientClosedError: there is none any more."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise ClientClosedError("the client is closed") from None

    def _take_handed(self) -> None:
        self._takes += 1  # first: what is handed over from now on wakes the loop again
        handed = self._handed
        runs: dict[PartitionRunner, list[Submission]] = {}
        while handed:
            submission = handed.popleft()
            if submission.context.timeout_seconds is not None:
                self.expire_in_time(submission)
            if submission.runner in runs:
                runs[submission.runner].append(submission)
            else:
                runs[submission.runner] = [submission]
        for runner, submissions in runs.items():
            runner.mailbox.put(Submitted(submissions))

    # Ends

    def finish(self, submission: Submission, error: Exception | None = None) -> None:
        """Forget a context that has been told its end, once."""
        self.finish_all((submission,), error)

    def finish_all(self, submissions: Sequence[Submission], error: Exception | None = None) -> None:
        """As `finish`, one after the other."""
        if error is None and submissions and submissions[0].transaction_id is not None:
            self.append_seconds.add(self._clock.now() - submissions[0].submitted_at)
        forget = self._unfinished.pop
        for submission in submissions:
            if forget(submission.number, None) is None:
                continue
            if submission.cancel_expiration is not None:
                submission.cancel_expiration()
            if submission.holds_room:
                submission.holds_room = False
                submission.runner.gate.release(1)
            submission.draft = None
            if submission.on_finished is not None:
                submission.on_finished(submission, error)
            for flush in self._flushes:
                flush.numbers.pop(submission.number, None)
                if not flush.numbers and not flush.done.done():
                    flush.done.set_result(None)

    def fail(self, submission: Submission, error: Exception) -> None:
        """Tell a context that it cannot go on."""
        self.telling.start(submission, partial(tell_exception, submission, error), error)

    def give_up(self, partition_id: PartitionId, error: Exception) -> None:
        """End all contexts of a partition that takes no more, unless it is taken up again."""
        self._given_up[partition_id] = error
        self._runners[partition_id].gate.fail(error)
        for submission in list(self._unfinished.values()):
            if submission.partition_id == partition_id:
                self.fail(submission, error)

    def take_up(self, partition_id: PartitionId) -> None:
        """Admit contexts to a partition that is active, for the first time or again."""
        self._given_up.pop(partition_id, None)

    def expire_in_time(self, submission: Submission) -> None:
        """Give a context that has a time limit up once that has passed (PM-14)."""
        seconds = submission.context.timeout_seconds
        assert seconds is not None, "a limit"
        left = max(0.0, seconds - submission.waited_seconds)
        submission.cancel_expiration = self._loop.call_later(left, self._expire, submission).cancel

    def _expire(self, submission: Submission) -> None:
        error = OperationTimeoutError("the context was not decided before its time limit")
        if submission.claim_verdict():
            self.telling.start(submission, partial(tell_expiration, submission), error)
        else:  # it is in the log and being applied, for which only its caller must not wait longer
            self._let_go(submission, error)

    async def end_all(self, error: Exception) -> None:
        """Tell all contexts how they stand: in the log as far as known, else `error` (PM-44).

        Contexts that are being told their end already come first.
        """
        await self.telling.all_told()
        unfinished = list(self._unfinished.values())

        def tell_all() -> None:
            for submission in unfinished:
                tell_end(submission, error)

        if unfinished:
            await self._call(tell_all)
            await self.telling.all_told()  # one whose time was up meanwhile is told that
        self.forget_all(error)

    def forget_all(self, error: Exception) -> None:
        """End all waiting for contexts; contexts that are stuck are no longer told their end."""
        self.finish_all(list(self._unfinished.values()), error)

    async def flush(
        self,
        timeout_seconds: float | None,
        nudge: Callable[[], None],
        *,
        partitions: Collection[PartitionId] | None = None,
    ) -> None:
        """Return once all that are unfinished now, of these partitions or all, have ended.

        Raises OperationTimeoutError.
        """
        self._take_handed()  # an interrupted submit may not have woken the loop
        unfinished = self._unfinished.copy()
        flush = _Flush(
            {
                number: each
                for number, each in unfinished.items()
                if partitions is None or each.partition_id in partitions
            }
        )
        if not flush.numbers:
            return
        self._flushes.append(flush)
        nudge()
        try:
            async with asyncio.timeout(timeout_seconds):
                await flush.done
        except TimeoutError:
            raise OperationTimeoutError(
                f"{len(flush.numbers)} transactions are still undecided after {timeout_seconds} s"
            ) from None
        finally:
            self._flushes.remove(flush)

    def let_go(self, partition_id: PartitionId, error: PartitionBlockedError) -> None:
        """End all waiting for submissions of the partition with `error`; the submissions go on."""
        for submission in list(self._unfinished.values()):
            if submission.partition_id == partition_id:
                self._let_go(submission, error)
        for flush in self._flushes:
            if partition_id in flush.numbers.values() and not flush.done.done():
                flush.done.set_exception(error)

    def _let_go(self, submission: Submission, error: Exception) -> None:
        """End the waiting for a submission with `error`; the submission goes on."""
        on_finished, submission.on_finished = submission.on_finished, None
        if on_finished is not None:
            on_finished(submission, error)


def not_active(
    partition_id: PartitionId, active: Collection[PartitionId]
) -> PartitionInactiveError:
    return PartitionInactiveError(
        f"partition {partition_id} is not active; the client's active"
        f" partitions are {sorted(active)}"
    )
