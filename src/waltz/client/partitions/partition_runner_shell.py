"""One partition at work: its machine, its messages, its callbacks, and the gate of its submits.

Decides nothing of the protocol: that is `ClientPartition`. Owns the mark that submits sample, which
moves as soon as the application has applied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, assert_never
from uuid import UUID

from waltz.client.appends.gate import Gate
from waltz.client.appends.submission import Submission
from waltz.client.applying.blocked import (
    REMEDY,
    BlockedPartition,
    FailedAttempts,
    OnApplyFailure,
    content,
    one_line,
)
from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.applying.calls import (
    ApplyOutcome,
    apply_in_order,
    apply_narrowed,
    calls_nothing,
    choose_prefetch,
    load_mark,
)
from waltz.client.applying.histories import Histories, ahead
from waltz.client.applying.transactions import Transactions
from waltz.client.client_options import ClientOptions
from waltz.client.partitions.client_partition import ClientPartition
from waltz.client.partitions.client_partition_events import (
    AheadSuspected,
    AppendRefused,
    AppendsSettled,
    Applied,
    ApplyTransactions,
    BulkApplied,
    ClientIdRunsOut,
    Effect,
    Event,
    FailSubmission,
    HighWaterMarkLoaded,
    LoadHighWaterMark,
    MountChanged,
    OutcomeWanted,
    PartitionClosed,
    ReleaseRoom,
    RetrySubmissions,
    SendMessages,
)
from waltz.client.partitions.outcome_questions import OutcomeKnown, OutcomeRefused
from waltz.client.transaction import FetchData, Transaction
from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.connections.requests_shell import Requests
from waltz.connections.tasks_shell import Tasks
from waltz.errors import (
    ClientAheadError,
    ClientClosedError,
    HistoryChangedError,
    LocalProtocolError,
    PartitionBlockedError,
    PostponedError,
    WaltzError,
)
from waltz.host import Host
from waltz.limits import APPLY_RETRY_SECONDS_MAX, APPLY_RETRY_SECONDS_MIN, CLIENT_MAILBOX_EVENTS_MAX
from waltz.machine_shell import Mailbox, run
from waltz.types import NOTHING, ClientId, PartitionId, RequestId, TransactionId
from waltz.wire.client_protocol import AppendRequest, MountState
from waltz.wire.message import Message

logger = logging.getLogger(__name__)

T = TypeVar("T")

Send: TypeAlias = Callable[[int, Sequence[Message]], list[tuple[Message, LocalProtocolError]]]
"""Sends messages on a connection; returns those that cannot be sent, and why."""


class Call(Protocol):
    """Runs an application's callback on a worker."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class Services:
    """The doors of a client that its partitions use."""

    host: Host
    call: Call
    callbacks: WaltzClientCallbacks
    options: ClientOptions
    tasks: Tasks
    requests: Requests
    fetch_blocking: FetchData
    send: Send
    retry: Callable[[Sequence[Submission]], None]
    finish: Callable[[Sequence[Submission]], None]
    fail: Callable[[Submission, Exception], None]
    give_up: Callable[[PartitionId, Exception], None]
    end: Callable[[Exception], None]
    """Ends the client."""
    blocked: Callable[[PartitionId, PartitionBlockedError, float], None]
    """Called with how many seconds the partition has been blocked by now."""
    snapshot: Callable[[], ClusterSnapshot]
    mounted: Callable[[PartitionId, bool], None]
    see_to_client_id: Callable[[ClientIdRunsOut | AppendsSettled], None]


class PartitionRunner:
    """See the module."""

    def __init__(
        self,
        services: Services,
        client_id: ClientId,
        partition_id: PartitionId,
        gate: Gate,
        *,
        sequence_number: int = 0,
        is_added: bool = False,
    ) -> None:
        """`sequence_number`: the last that a request of this client to this partition has had;
        `is_added`: the partition was added while this client followed all there were."""
        self.partition_id = partition_id
        self.gate = gate
        self.high_water_mark = NOTHING
        self.blocked: BlockedPartition | None = None
        """Why the application does not get on; None while it does."""
        self.machine = ClientPartition(
            client_id,
            partition_id,
            long_wait_seconds=services.options.long_wait_seconds,
            sequence_number=sequence_number,
            with_data=services.callbacks.prefetch,
            ahead_seconds_max=services.options.ahead_seconds_max,
        )
        self.mailbox: Mailbox[Event] = Mailbox(services.host.clock, CLIENT_MAILBOX_EVENTS_MAX)
        self._services = services
        self._is_added = is_added
        self._running: asyncio.Task[None] | None = None
        self._loading = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._room = asyncio.Event()
        self._stalled = False
        self.parked_count = 0
        """The number of transactions that this client has parked."""
        self._history: UUID | None = None
        self._failed = FailedAttempts(
            partition_id, services.options.on_apply_failure, services.options.apply_attempts_max
        )
        self._error: Exception | None = None
        """Why nothing more is applied here and no question is answered; None: both go on."""
        self._applied_through: TransactionId | None = None
        """The last transaction that `_tell_applied` told of; the machine learns of it later."""
        self._waiting: list[tuple[TransactionId, asyncio.Future[None]]] = []
        self._prepared: Transactions | None = None
        self._outcomes: dict[RequestId, list[asyncio.Future[TransactionId | None]]] = {}
        self._asking: dict[asyncio.Task[Any], None] = {}
        """Questions to servers that end with the partition."""

    def start(self) -> None:
        services = self._services
        self._running = services.tasks.start(
            run(self.machine, self.mailbox, services.host, self._perform)
        )

    def end(self) -> None:
        """Stop at once."""
        if self._running is not None:
            self._running.cancel()

    async def room(self) -> None:
        """Return once more of the feed may be read from the partition's connection."""
        while not self.has_ended:
            await self.mailbox.room()
            if self.machine.has_room or self._stalled:
                return
            self._room.clear()
            await self._room.wait()

    @property
    def has_ended(self) -> bool:
        """Whether the partition takes no more of what its connection brings."""
        return self._error is not None or self.machine.closed

    @property
    def is_settled(self) -> bool:
        """Whether nothing is undecided that was sent under the present client ID, and nothing is
        sent under it any more."""
        return self.machine.closed or self.machine.is_settled

    async def unless_ended(self, question: Coroutine[Any, Any, T]) -> T:
        """Return the answer to `question`, which may wait for a server as long as there is none.

        Raises what `question` raises, or what the partition ends with before there is an answer.
        """
        if self._error is not None:
            question.close()
        self._check_open()
        asking = asyncio.create_task(question)
        self._asking[asking] = None
        try:
            return await asking
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and not caller.cancelling():
                self._check_open()
            raise
        finally:
            del self._asking[asking]

    def _check_open(self) -> None:
        """Raises what the partition has ended with."""
        if self._error is not None:
            raise self._error

    async def outcome(self, request_id: RequestId, after: TransactionId) -> TransactionId | None:
        """Return where the append is in the log; None if it is not there and never will be.

        Raises LocalProtocolError: nobody can say; and what the partition ended with.
        """
        self._check_open()
        future: asyncio.Future[TransactionId | None] = asyncio.get_running_loop().create_future()
        self._outcomes.setdefault(request_id, []).append(future)
        self.mailbox.put(OutcomeWanted(request_id, after))
        try:
            return await future
        finally:
            self._forget_question(request_id, future)

    def _forget_question(
        self, request_id: RequestId, future: asyncio.Future[TransactionId | None]
    ) -> None:
        """Forget a caller that was answered, or waits no longer."""
        waiting = self._outcomes.get(request_id, [])
        if future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._outcomes[request_id]

    async def applied(self, transaction_id: TransactionId) -> None:
        """Return once the application has applied the transaction, and all before it.

        Raises PartitionBlockedError: the next one cannot be applied; and what the partition ended
        with.
        """
        self._check_open()
        if self._applied_through is not None and self._applied_through >= transaction_id:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((transaction_id, future))
        try:
            await future
        finally:
            self._waiting.remove((transaction_id, future))

    def _tell_applied(self, last: TransactionId) -> None:
        if self._applied_through is None or last > self._applied_through:
            self._applied_through = last
        for transaction_id, future in self._waiting:
            if transaction_id <= last and not future.done():
                future.set_result(None)

    def fail_waiting(self, error: Exception) -> None:
        """End all waiting for transactions to be applied with `error`."""
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # the caller may have gone

    def _tell_outcome(self, effect: OutcomeKnown | OutcomeRefused) -> None:
        for future in self._outcomes.pop(effect.request_id, ()):
            if future.done():
                continue
            if isinstance(effect, OutcomeKnown):
                future.set_result(effect.transaction_id)
            else:
                future.set_exception(effect.error)

    def end_questions(self, error: Exception) -> None:
        """End all questions with `error`, open ones and later ones: no answer will come."""
        self._error = self._error or error
        self._room.set()
        for asking in self._asking:
            asking.cancel()
        self.fail_waiting(error)
        for futures in self._outcomes.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # the caller may have gone
        self._outcomes.clear()

    async def idle(self) -> None:
        """Return once no callback of the partition is running."""
        await self._idle.wait()

    def _perform(self, effect: Effect) -> None:
        services = self._services
        match effect:
            case SendMessages():
                for message, error in services.send(effect.connection_sequence, effect.messages):
                    assert isinstance(message, AppendRequest), f"{message}: {error}"
                    self.mailbox.put(AppendRefused(message.request_id, error))
            case ApplyTransactions():
                self._room.set()
                if calls_nothing(services.callbacks, effect.own):
                    self._apply_nothing(effect)
                else:
                    self._idle.clear()
                    services.tasks.start(self._apply(effect))
            case BulkApplied(submission):
                if submission.claim_verdict():
                    services.finish([submission])
            case ReleaseRoom():
                self.gate.release(effect.count)
            case RetrySubmissions():
                services.retry(effect.submissions)
            case FailSubmission():
                services.fail(effect.submission, effect.error)
            case LoadHighWaterMark():
                self._start_loading()
            case ClientIdRunsOut() | AppendsSettled():
                services.see_to_client_id(effect)
            case MountChanged() | AheadSuspected():
                self._note_mount(effect)
            case OutcomeKnown() | OutcomeRefused():
                self._tell_outcome(effect)
            case _:
                assert_never(effect)

    def _note_mount(self, effect: MountChanged | AheadSuspected) -> None:
        """Tell of the mount; end the partition if its mark is beyond the log for good."""
        if isinstance(effect, AheadSuspected):
            logger.warning(
                "client_ahead partition=%d mark=%d: the server's log ends before it; asking again"
                " for %g s, in case it is a server that has lost the partition",
                self.partition_id, effect.high_water_mark,
                self._services.options.ahead_seconds_max,
            )  # fmt: skip
            return
        state = effect.state
        logger.info("mount_changed partition=%d state=%s", self.partition_id, state)
        self.gate.set_mounted(state is MountState.READY)
        self._services.mounted(self.partition_id, state is MountState.READY)
        if state is MountState.CLIENT_AHEAD:
            key = self._services.snapshot().cluster_key
            mark = self.machine.high_water_mark
            self._give_up(ClientAheadError(ahead(key, self.partition_id, self._history, mark)))

    def _give_up(self, error: Exception) -> None:
        """Nothing more is applied or written here."""
        logger.error("partition_given_up partition=%d error=%s", self.partition_id, error)
        self._services.give_up(self.partition_id, error)
        self.end_questions(error)

    # Callbacks

    def _start_loading(self) -> None:
        if not self._loading:
            self._loading = True
            self._services.tasks.start(self._load())

    async def _load(self) -> None:
        """Ask the application for its mark until it gives one."""
        services, partition_id = self._services, self.partition_id
        try:
            failures = 0
            while True:
                if self.has_ended:
                    return
                snapshot = services.snapshot()
                try:
                    loaded = await services.call(
                        partial(
                            load_mark,
                            services.callbacks,
                            Histories(snapshot.cluster_key),
                            partition_id,
                            snapshot.partition_count,
                        )
                    )
                    mark, self._history = loaded
                    break
                except HistoryChangedError as error:
                    services.end(error)
                    return
                except PostponedError as error:
                    logger.info("mark_postponed partition=%d reason=%s", partition_id, error)
                    await asyncio.sleep(error.delay_seconds)
                except Exception as error:  # it keeps its partition back, no more
                    failures += 1
                    logger.error(
                        "mark_failed partition=%d attempt=%d error=%r", partition_id, failures,
                        one_line(error), exc_info=error if failures == 1 else None,
                    )  # fmt: skip
                    await asyncio.sleep(self._back_off(failures))
            if mark is None:
                mark = self.high_water_mark
                # All that a partition holds that was added meanwhile came later than the client.
                if not self.machine.mark_known and not self._is_added:
                    mark = await self.unless_ended(services.requests.high_water_mark(partition_id))
        except WaltzError as error:
            if self._is_end(error):
                return
            raise
        finally:
            self._loading = False
        # Submits may sample it from now on: the application's state is that of this mark.
        self.high_water_mark = max(self.high_water_mark, TransactionId(mark))
        self.mailbox.put(HighWaterMarkLoaded(TransactionId(mark)))
        self._tell_applied(TransactionId(mark))

    def _apply_nothing(self, effect: ApplyTransactions) -> None:
        """Apply on the loop, for an application that has nothing to call: a worker would cost each
        append two switches of threads."""
        for submission in effect.own.values():
            submission.claim_verdict()
        last = effect.transactions.last_transaction_id
        self._move_mark(last)
        self._applied_all(effect.own, last)

    async def _apply(self, effect: ApplyTransactions) -> None:
        transactions = self._prepare(effect)
        services, own = self._services, effect.own
        callbacks, outcome = services.callbacks, None
        wanted = (callbacks, self.partition_id, transactions, own, self._move_mark)
        try:
            if callbacks.prefetch or hasattr(callbacks, "choose_prefetch"):
                outcome = await self._fetch(partial(choose_prefetch, *wanted))
            if outcome is None:
                apply = apply_narrowed if self._failed.count else apply_in_order
                outcome = await services.call(partial(apply, *wanted))
            if outcome.error is not None:
                outcome = await self._park(transactions, outcome)
        except WaltzError as error:
            if self._is_end(error):
                return
            raise
        finally:
            self._idle.set()
        self._applied(own, transactions, outcome)

    async def _park(self, transactions: Transactions, outcome: ApplyOutcome) -> ApplyOutcome:
        """Let the application park what it cannot apply, if that is the policy and it is time."""
        services, error = self._services, outcome.error
        park = getattr(services.callbacks, "park", None)
        if (
            services.options.on_apply_failure is not OnApplyFailure.PARK
            or park is None
            or error is None
            or isinstance(error, PostponedError)
            or not self._failed.will_be_enough(outcome)
        ):
            return outcome
        last = TransactionId(outcome.last_transaction_id + 1)
        transaction = transactions.after(outcome.last_transaction_id)[0]
        try:
            await services.call(partial(park, transaction, error))
        except ClientClosedError:
            raise
        except Exception as failure:  # it stays where it is, and is tried again
            return ApplyOutcome(outcome.last_transaction_id, failure, is_alone=True)
        self.parked_count += 1
        self._move_mark(last)
        logger.error(
            "transaction_parked partition=%d transaction=%d %s error=%r; see `waltz parked list`",
            self.partition_id, last, content(transaction), one_line(error),
        )  # fmt: skip
        if last == transactions.last_transaction_id:
            return ApplyOutcome(last)
        return ApplyOutcome(last, PostponedError("the rest of the batch", 0.0))

    def _applied(
        self,
        own: Mapping[TransactionId, Submission],
        transactions: Transactions,
        outcome: ApplyOutcome,
    ) -> None:
        """Finish what has been applied, and say how far that is and when the rest is tried."""
        last, error = outcome.last_transaction_id, outcome.error
        if error is None:
            self._applied_all(own, last)
            return
        self._services.finish([own[each] for each in own if each <= last])
        self._tell_applied(last)
        left = transactions.after(last)
        delay = self._fail(left, error, is_alone=outcome.is_alone)
        self._prepared = left if len(left) else None
        self._stalled = True
        self._room.set()
        self.mailbox.put(Applied(last, delay))

    def _applied_all(self, own: Mapping[TransactionId, Submission], last: TransactionId) -> None:
        self._services.finish([*own.values()])
        self._tell_applied(last)
        self._failed.end()
        self._stalled = False
        self.blocked = None
        self._prepared = None
        self.mailbox.put(Applied(last))

    def _fail(self, left: Transactions, error: Exception, *, is_alone: bool) -> float:
        """Tell why `left` is not applied; return in how many seconds it is to be tried again."""
        if isinstance(error, PostponedError):
            logger.debug("apply_postponed partition=%d reason=%s", self.partition_id, error)
            return error.delay_seconds
        if isinstance(error, HistoryChangedError):
            self._services.end(error)
        services, failed = self._services, self._failed
        transaction_id = left.first_transaction_id
        now = services.host.clock.wall_milliseconds()
        failed.note(transaction_id, now)
        self.blocked = BlockedPartition(
            transaction_id, failed.count, error, failed.since_milliseconds
        )
        trace = error if failed.wants_trace(left, error, is_alone=is_alone) else None
        delay = self._back_off(failed.count)
        blocking = failed.blocking(transaction_id, error)
        logger.warning(
            "apply_failed %s next_attempt_seconds=%.2f; %s",
            failed.described(left, error, is_alone=is_alone), delay, REMEDY, exc_info=trace,
        )  # fmt: skip
        if services.options.on_apply_failure is OnApplyFailure.STOP and failed.is_enough(
            is_alone=is_alone
        ):
            self._give_up(blocking)
            self.mailbox.put(PartitionClosed())
        else:
            seconds = (now - failed.since_milliseconds) / 1000
            services.blocked(self.partition_id, blocking, seconds)
        return delay

    def _prepare(self, effect: ApplyTransactions) -> Transactions:
        """The application's view of what was fed."""
        if self._prepared is not None:  # what was fetched for a first attempt is not fetched again
            return self._prepared
        fetch = self._services.fetch_blocking
        return Transactions(effect.transactions, fetch, effect.own, effect.bulks)

    async def _fetch(
        self, choose: Callable[[], Sequence[Transaction] | ApplyOutcome]
    ) -> ApplyOutcome | None:
        """Fetch ahead what the application chooses; an outcome if it raises."""
        services = self._services
        chosen = await services.call(choose)
        if isinstance(chosen, ApplyOutcome):
            return chosen
        missing = [each for each in chosen if not each.has_data]
        wanted = [each.transaction_id for each in missing]
        bodies = await self.unless_ended(services.requests.fetch(self.partition_id, wanted))
        for transaction, data in zip(missing, bodies, strict=True):
            transaction.provide_data(data)
        return None

    def _is_end(self, error: WaltzError) -> bool:
        """Return whether `error` is the end of the client or of the partition."""
        return error is self._error or isinstance(error, ClientClosedError)

    def _move_mark(self, transaction_id: TransactionId) -> None:
        self.high_water_mark = transaction_id

    def _back_off(self, failures: int) -> float:
        longest = min(APPLY_RETRY_SECONDS_MAX, APPLY_RETRY_SECONDS_MIN * 2.0 ** min(failures, 20))
        return self._services.host.random.uniform(longest / 2, longest)
