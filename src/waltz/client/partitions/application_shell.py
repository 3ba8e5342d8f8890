"""The application's part in one partition: its mark is loaded, what is fed is applied, and what
cannot be applied is tried again, parked, or ends the partition.

Owns the mark that submits sample, which moves as soon as the application has applied. Knows no
messages; what comes next for the application is decided by `ClientPartition`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from waltz.client.appends.submission import Submission
from waltz.client.applying.blocked import (
    REMEDY,
    BlockedPartition,
    FailedAttempts,
    OnApplyFailure,
    content,
    one_line,
)
from waltz.client.applying.bodies_ahead import BodiesAhead
from waltz.client.applying.calls import (
    ApplyOutcome,
    apply_in_order,
    apply_narrowed,
    calls_nothing,
    choose_prefetch,
    follow_on,
    load_mark,
)
from waltz.client.applying.transactions import Transactions
from waltz.client.partitions.client_partition_events import (
    Applied,
    ApplyTransactions,
    HighWaterMarkLoaded,
    PartitionClosed,
)
from waltz.client.partitions.waiting_calls_shell import WaitingCalls
from waltz.client.transaction import Transaction
from waltz.cluster.histories import Histories
from waltz.errors import (
    ClientClosedError,
    HistoryChangedError,
    PermissionDeniedError,
    PostponedError,
    WaltzError,
)
from waltz.limits import APPLY_RETRY_SECONDS_MAX, APPLY_RETRY_SECONDS_MIN, DENIED_SECONDS
from waltz.types import NOTHING, PartitionId, TransactionId

if TYPE_CHECKING:
    from waltz.client.partitions.partition_runner_shell import Services

logger = logging.getLogger(__name__)


class Application:
    """See the module."""

    def __init__(
        self,
        services: Services,
        partition_id: PartitionId,
        waiting: WaitingCalls,
        *,
        answer: Callable[[Applied | HighWaterMarkLoaded | PartitionClosed], None],
        note_stall: Callable[[], None],
        give_up: Callable[[Exception], None],
        deny: Callable[[PermissionDeniedError], None],
    ) -> None:
        """`answer` tells the partition's machine; `note_stall` is called when an attempt to apply
        has failed; `give_up` ends the partition; `deny` is called when a server denies an answer
        about it."""
        self.high_water_mark = NOTHING
        self.history: UUID | None = None
        """The history that the application keeps with its mark, as far as it keeps one."""
        self._followed: UUID | None = None
        """The history to which all that was fed here belongs, whether or not the application keeps
        one; None: nothing was fed yet."""
        self._taken_over: UUID | None = None
        """The history that the application has taken over, if it keeps one."""
        self.blocked: BlockedPartition | None = None
        """Why the application does not get on; None while it does."""
        self.is_stalled = False
        """Whether the last attempt to apply has failed or was postponed."""
        self.parked_count = 0
        """The number of transactions that this client has parked."""
        self._passed_over = 0
        """Transactions that the application said it had already, or did not want."""
        self._services = services
        self._partition_id = partition_id
        self._waiting = waiting
        self._answer = answer
        self._note_stall = note_stall
        self._give_up = give_up
        self._deny = deny
        self._loading = False
        self.idle = asyncio.Event()
        """Set while no callback of the partition is running."""
        self.idle.set()
        self._failed = FailedAttempts(
            partition_id, services.options.on_apply_failure, services.options.apply_attempts_max
        )
        self._prepared: Transactions | None = None
        self._bodies = BodiesAhead(services.body_calls)

    @property
    def applied_count(self) -> int:
        """The number of transactions that were applied or parked here."""
        return self.high_water_mark - NOTHING - self._passed_over

    # The mark

    def load(self, *, from_end: bool) -> None:
        """Have the application asked for its mark until it gives one. An application that keeps
        none begins at the end of the log if `from_end`, else where it is."""
        if not self._loading:
            self._loading = True
            self._services.tasks.start(self._load(from_end=from_end))

    async def _load(self, *, from_end: bool) -> None:
        services, partition_id = self._services, self._partition_id
        try:
            failures = 0
            while True:
                if self._waiting.error is not None:
                    return
                histories = services.histories()
                try:
                    loaded = await services.call(
                        partial(
                            load_mark,
                            services.callbacks,
                            histories,
                            partition_id,
                            services.snapshot().partition_count,
                        )
                    )
                    if histories != services.histories():
                        continue  # a restored log was found meanwhile
                    mark, self.history = loaded
                    self._followed = self._taken_over = histories.current
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
                if from_end:
                    mark = await self._end_of_log()
        except WaltzError as error:
            if self._waiting.is_end(error):
                return
            raise
        finally:
            self._loading = False
        # Submits may sample it from now on: the application's state is that of this mark.
        self._passed_over += max(0, mark - self.high_water_mark)
        self.high_water_mark = max(self.high_water_mark, TransactionId(mark))
        self._answer(HighWaterMarkLoaded(TransactionId(mark)))
        self._waiting.tell_applied(TransactionId(mark))

    async def _end_of_log(self) -> TransactionId:
        """Ask where the log ends until a server says so. Raises what the partition ends with."""
        while True:
            try:
                asking = self._services.requests.high_water_mark(self._partition_id)
                return await self._waiting.unless_ended(asking)
            except PermissionDeniedError as error:
                self._deny(error)
                await asyncio.sleep(DENIED_SECONDS)
                self._waiting.grant()

    def check_history(self, histories: Histories, through: TransactionId) -> None:
        """Raises HistoryChangedError: the log with these histories has others in the place of
        transactions that were fed here, the last of which is `through`."""
        if self._followed is not None:
            histories.check(self._partition_id, self._followed, through)

    def follow(self, histories: Histories) -> None:
        """Take note that what was fed belongs to the log with these histories, too, and all that
        follows."""
        if self._followed is not None:
            self._followed = histories.current

    # Applying

    def apply(self, effect: ApplyTransactions) -> None:
        """Apply what was fed: on the loop for an application that has nothing to call, for a worker
        would cost each append two switches of threads."""
        self._services.applying(self._partition_id)
        if calls_nothing(self._services.callbacks, effect.own):
            for submission in effect.own.values():
                submission.claim_verdict()
            self.high_water_mark = effect.transactions.last_transaction_id
            self._applied_all(effect.own, self.high_water_mark)
        else:
            self.idle.clear()
            self._services.tasks.start(self._apply(effect))

    async def _apply(self, effect: ApplyTransactions) -> None:
        services, own = self._services, effect.own
        transactions = self._prepared  # what was fetched for a first attempt is not fetched again
        if transactions is None:
            fetch = self._bodies.fetch
            transactions = Transactions(effect.transactions, fetch, own, effect.bulks)
        self._bodies.begin(transactions)
        callbacks, outcome = services.callbacks, None
        histories = services.histories()
        wanted = (callbacks, self._partition_id, transactions, own, self._move_mark)
        try:
            if self._taken_over != histories.current:
                outcome = await self._follow_on(histories, transactions)
            if outcome is None and (callbacks.prefetch or hasattr(callbacks, "choose_prefetch")):
                outcome = await self._fetch(partial(choose_prefetch, *wanted))
            if outcome is None:
                apply = apply_narrowed if self._failed.count else apply_in_order
                outcome = await services.call(partial(apply, *wanted))
            if outcome.error is not None:
                outcome = await self._park(transactions, outcome)
        except WaltzError as error:
            if self._waiting.is_end(error):
                return
            raise
        finally:
            self.idle.set()
        self._applied(own, transactions, outcome)

    async def _follow_on(
        self, histories: Histories, transactions: Transactions
    ) -> ApplyOutcome | None:
        """Let the application take over the history of a log that was restored while it was
        followed here, before it applies anything of it; an outcome if it may not, or fails."""
        services = self._services
        outcome = await services.call(
            partial(
                follow_on,
                services.callbacks,
                histories,
                transactions,
                services.snapshot().partition_count,
            )
        )
        if outcome is None:
            self._taken_over = histories.current
        return outcome

    async def _park(self, transactions: Transactions, outcome: ApplyOutcome) -> ApplyOutcome:
        """Let the application park what it cannot apply, if that is the policy and it is time."""
        services, error = self._services, outcome.error
        park = getattr(services.callbacks, "park", None)
        if (
            services.options.on_apply_failure is not OnApplyFailure.PARK
            or park is None
            or error is None
            or isinstance(error, PostponedError | PermissionDeniedError)
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
            self._partition_id, last, content(transaction), one_line(error),
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
        self._waiting.tell_applied(last)
        if self.blocked is not None and self.blocked.transaction_id <= last:
            self.blocked = None  # parked, or applied by another process
        left = transactions.after(last)
        delay = self._fail(left, error, is_alone=outcome.is_alone)
        self._prepared = left if len(left) else None
        self.is_stalled = True
        self._note_stall()
        self._answer(Applied(last, delay))

    def _applied_all(self, own: Mapping[TransactionId, Submission], last: TransactionId) -> None:
        self._services.finish([*own.values()])
        self._waiting.tell_applied(last)
        self._failed.count = 0
        self.is_stalled = False
        self.blocked = None
        self._bodies.end()
        self._prepared = None
        self._answer(Applied(last))

    def _fail(self, left: Transactions, error: Exception, *, is_alone: bool) -> float:
        """Tell why `left` is not applied; return in how many seconds it is to be tried again."""
        if isinstance(error, PostponedError):
            logger.debug("apply_postponed partition=%d reason=%s", self._partition_id, error)
            return error.delay_seconds
        if isinstance(error, PermissionDeniedError):
            logger.warning("apply_denied partition=%d error=%s", self._partition_id, error)
            return DENIED_SECONDS
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
            self._answer(PartitionClosed())
        else:
            seconds = (now - failed.since_milliseconds) / 1000
            services.blocked(self._partition_id, blocking, seconds)
        return delay

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
        asking = services.requests.fetch(self._partition_id, wanted)
        try:
            bodies = await self._waiting.unless_ended(asking)
        except PermissionDeniedError as error:
            return ApplyOutcome(self.high_water_mark, error)
        for transaction, data in zip(missing, bodies, strict=True):
            transaction.provide_data(data)
        return None

    def _move_mark(self, transaction_id: TransactionId) -> None:
        self.high_water_mark = transaction_id

    def _back_off(self, failures: int) -> float:
        longest = min(APPLY_RETRY_SECONDS_MAX, APPLY_RETRY_SECONDS_MIN * 2.0 ** min(failures, 20))
        return self._services.host.random.uniform(longest / 2, longest)
