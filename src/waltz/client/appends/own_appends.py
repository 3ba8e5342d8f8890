"""A client's appends to one partition: of contexts, and the rows of `append_many`.

Owns which appends are undecided, which are in the log and not applied, and which answers wait for a
transaction to be applied first. Must not know mounts, connections or the feed's position. Always:
an append is in one place only, and what the feed shows decides all that was sent before it.
Source: Client-Server Communication, "Append Request" and "Detection of Failed Append Requests".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from waltz.client.appends.append_batches import AppendBatches
from waltz.client.appends.bulk_appends import BulkAppends
from waltz.client.appends.held_answers import HeldAnswers
from waltz.client.appends.request_numbers import RequestNumbers
from waltz.client.appends.submission import Submission, note_requests
from waltz.client.appends.transaction_monitor import TransactionMonitor
from waltz.client.partitions.client_partition_events import (
    BulkApplied,
    Effect,
    ReleaseRoom,
    RetrySubmissions,
)
from waltz.client.transaction import TransactionBuilder
from waltz.types import (
    ClientId,
    Generation,
    PartitionId,
    RequestId,
    TransactionId,
)
from waltz.wire.batch_protocol import AppendBatch, AppendRejected, Reason
from waltz.wire.client_protocol import FlushResponse
from waltz.wire.fed import FedRun

CLIENT_BATCHES_IN_FLIGHT_MAX: Final = 2
"""Batches of contexts that a client has undecided in one partition at a time."""


class CommittedContexts:
    """The contexts that are in the log and not applied yet, in order."""

    def __init__(self) -> None:
        self._by_id: dict[TransactionId, Submission] = {}

    def add(self, transaction_id: TransactionId, submission: Submission) -> None:
        """Take note of the next one."""
        self._by_id[transaction_id] = submission

    def through(self, last: TransactionId) -> dict[TransactionId, Submission]:
        """Return those up to `last`."""
        by_id = self._by_id
        return dict(zip(takewhile(last.__ge__, by_id), by_id.values(), strict=False))

    def forget_through(self, mark: TransactionId) -> None:
        """Forget those up to `mark`: they have been applied."""
        if next(reversed(self._by_id), mark) <= mark:
            self._by_id.clear()
            return
        for each in self.through(mark):
            del self._by_id[each]

    def check_invariants(self) -> None:
        assert list(self._by_id) == sorted(self._by_id)


class OwnAppends:
    """See the module."""

    def __init__(
        self, client_id: ClientId, partition_id: PartitionId, sequence_number: int
    ) -> None:
        self.monitor: TransactionMonitor[Submission] = TransactionMonitor()
        self.monitor.start()
        self.numbers = RequestNumbers(client_id, partition_id, sequence_number)
        self.batches = AppendBatches()
        """Appends that are to be sent together."""
        self.rows = BulkAppends()
        self.retries: list[Submission] = []
        """Contexts that are to be executed again: they are not in the log and will not be."""
        self.released = 0
        """The number of contexts that have made room for others since the last `take_effects`."""
        self.knows_batches = False
        """Whether the server tells the outcome of each append."""
        self.held = HeldAnswers()
        self._batches_out: deque[int] = deque()
        """The last sequence numbers of those that may have undecided appends."""
        self.committed = CommittedContexts()
        self._before_stream = sequence_number
        """The last sequence number before the present stream: only what was sent on it can have
        been denied on it."""

    def __len__(self) -> int:
        """Return the number of undecided appends."""
        return self.monitor.count + self.rows.under_way.count

    @property
    def last_sent(self) -> RequestId | None:
        """The youngest that is undecided; None if none is."""
        if not self.rows.is_used:
            return self.monitor.last_registered
        sent = [each for each in (self.monitor.last_registered, self.rows.last_sent) if each]
        return max(sent, key=lambda each: each.sequence_number, default=None)

    def renew(self, client_id: ClientId) -> None:
        """Number what is sent from now on under `client_id`. Nothing may be undecided: a server
        orders what comes under one client ID only, and could still commit an append that the feed
        seems to have passed over."""
        assert not len(self)
        assert not self.batches.runs
        self.numbers.renew(client_id)
        self._before_stream = 0
        self._batches_out.clear()

    def check_invariants(self) -> None:
        self.monitor.check_invariants()
        self.rows.check_invariants()
        self.committed.check_invariants()

    # Sending

    def send(self, submissions: Sequence[Submission], generation: Generation) -> None:
        """Number and register submissions that were executed, at most `numbers.left`.

        The next `take_batches` returns their appends, and `take_rows` their rows.
        """
        ready: list[Submission] = []
        drafts: list[TransactionBuilder] = []
        marks: list[TransactionId] = []
        for submission in submissions:
            if submission.bulk is not None:
                self.rows.add(submission)
            elif (draft := submission.draft) is not None and submission.undecided:
                ready.append(submission)
                drafts.append(draft)
                mark, chosen = submission.client_high_water_mark, draft.locks_as_of
                marks.append(mark if chosen is None else min(mark, chosen))
        if not ready:  # they ended while they waited
            return
        first = self.numbers.take(len(ready), generation)
        self.monitor.register(first, ready)
        note_requests(first, ready)
        self.batches.add(first, drafts, marks)

    def take_batches(self) -> list[AppendBatch]:
        """Return what is to be sent now, once."""
        taken = self.batches.take()
        if self.knows_batches:
            for batch in taken:
                self._batches_out.append(batch.request_id.sequence_number + len(batch.appends) - 1)
        return taken

    def has_room(self, waiting: int) -> bool:
        """Forget the batches that are decided, and return whether `waiting` contexts may be sent.

        What waits becomes one batch, and many small ones would cost everybody on the way as much
        as many large ones. So one goes ahead of the first undecided one only if it is as large as
        what is undecided: a window of contexts that come back together stays together. A server
        that leaves refusals unsaid is never waited for."""
        batches_out, oldest = self._batches_out, self.monitor.first_registered
        while batches_out and (oldest is None or batches_out[0] < oldest.sequence_number):
            batches_out.popleft()
        if not batches_out:
            return True
        return len(batches_out) < CLIENT_BATCHES_IN_FLIGHT_MAX and waiting >= self.monitor.count

    def take_rows(
        self, mark: TransactionId, generation: Generation, now: float
    ) -> list[AppendBatch]:
        """Return rows that are to be sent now, by a client that has applied up to `mark`."""
        numbers = self.numbers
        messages, numbers.last = self.rows.take_messages(
            numbers.last_id(generation), mark, now, numbers.left, knows_batches=self.knows_batches
        )
        return messages

    def lose_stream(self) -> None:
        """Nothing more can be sent on it, and its answers hold no more."""
        self._before_stream = self.numbers.last
        self.batches.clear()
        self._batches_out.clear()
        self.held.flushes.clear()

    def close(self) -> None:
        self.batches.clear()
        self.rows.clear()
        self.monitor.close()

    # What becomes of them

    def decide(self, run: FedRun) -> None:
        """Take the feed's next `run`: an append that was sent before one of the run, and that the
        feed did not bring, is not in the log."""
        transaction_id = run.first_transaction_id
        for first, count in run.request_runs:
            if first.client_id == self.numbers.client_id:
                self._commit(first, count, transaction_id)
            transaction_id = TransactionId(transaction_id + count)

    def _commit(self, first: RequestId, count: int, transaction_id: TransactionId) -> None:
        rows, number = self.rows, first.sequence_number
        has_rows = rows.is_used and rows.commit(number, count, transaction_id)
        if not self.monitor.count:
            return
        failed, committed = self.monitor.commit(first, count)
        self.retries += failed
        if committed and rows.is_used:
            rows.fail_before(number + len(committed) - 1)
        for submission in committed:
            if submission is not None and submission.undecided:
                submission.transaction_id = transaction_id
                self.committed.add(transaction_id, submission)
                if submission.holds_room:
                    submission.holds_room = False
                    self.released += 1
            transaction_id = TransactionId(transaction_id + 1)
        if has_rows:
            self.retries += self.monitor.flush(first)

    def hear(self, message: AppendRejected | FlushResponse, now: float) -> None:
        """Take out what the server says is not in the log and never will be: it is executed again.

        Only an append that was beaten by another transaction has to wait for that transaction.
        """
        if isinstance(message, FlushResponse):
            self.held.hold_flush(message)
            return
        beaten: dict[int, TransactionId] = {}
        for rejection in message.rejections:
            beaten_by = rejection.transaction_id
            # Of a peer's numbers only those count that were sent.
            end = min(rejection.first + rejection.length, self.numbers.last + 1)
            numbers = range(max(1, rejection.first), end)
            if rejection.reason is Reason.LOCKED:
                beaten |= dict.fromkeys(numbers, beaten_by)
            else:
                self.rows.refuse(numbers.start, len(numbers), now)
            for number in numbers if self.monitor.count else ():
                submission = self.monitor.abort(message.request_id._replace(sequence_number=number))
                if submission is None:
                    continue
                if rejection.reason is Reason.LOCKED:
                    submission.refused_lock_hash = rejection.lock_hash or None
                    self.held.hold_failure(submission, beaten_by)
                else:
                    self.retries.append(submission)
        self.rows.hold(list(beaten), list(beaten.values()))

    def refuse(self, request_id: RequestId) -> Submission | None:
        """It cannot be sent as it is; return what it belongs to, if that is undecided."""
        row_of = self.rows.owner(request_id.sequence_number)
        return self.monitor.abort(request_id) or row_of

    def deny(self, first: RequestId, count: int) -> list[tuple[Submission, bool]]:
        """Take out the appends that the server says it denies, `count` from `first` on, as far as
        they were sent on this stream and have no outcome; return what they belong to, and whether
        something of that may be in the log nevertheless."""
        start = max(first.sequence_number, self._before_stream + 1)
        end = min(first.sequence_number + count, self.numbers.last + 1)
        denied: list[tuple[Submission, bool]] = []
        for number in range(start, end) if self.monitor.count else ():
            submission = self.monitor.abort(first._replace(sequence_number=number))
            if submission is not None:
                denied.append((submission, False))
        if self.rows.is_used and start < end and first.client_id == self.numbers.client_id:
            denied += self.rows.deny(start, end - start)
        return denied

    def give_up(self) -> list[tuple[Submission, bool]]:
        """Forget all that is undecided: nothing is heard of it any more. Return it, and whether it
        may be in the log."""
        self.batches.clear()
        self._batches_out.clear()
        undecided = [(each, True) for each in self.monitor.stop()]
        self.monitor.start()
        beaten = [each for _, each in self.held.failures]
        undecided += [(each, False) for each in (*beaten, *self.retries)]
        self.held, self.retries = HeldAnswers(), []
        return undecided + self.rows.give_up()

    def settle(self, mark: TransactionId) -> list[Effect]:
        """Let the answers take effect whose transaction has been applied, up to `mark`, and return
        the submissions of rows that are applied as a whole."""
        held = self.held
        if held.failures or held.flushes:
            beaten, flushed = held.take(mark)
            self.retries += beaten
            for answer in flushed:
                self.retries += self.monitor.flush(answer.request_id)
                self.rows.fail_before(answer.request_id.sequence_number + 1)
        if not self.rows.is_used:
            return []
        self.rows.release(mark)
        return [BulkApplied(each) for each in self.rows.take_finished(mark)]

    def take_effects(self) -> list[Effect]:
        """Return the contexts to be executed again, and the room that was made."""
        effects: list[Effect] = []
        if self.released:
            effects.append(ReleaseRoom(self.released))
            self.released = 0
        if self.retries:
            effects.append(RetrySubmissions(self.retries))
            self.retries = []
        return effects
