"""The feed of one partition: what has come, what is applied, and when to ask for more.

Owns both marks: `fed` (the last transaction that came in order) and `high_water_mark` (the last one
applied), and the transactions in between. Knows no appends and no mounts. Always: marks only grow,
transactions are handed over in order and one batch at a time.
Source: Client-Server Communication, "Feed"; rows CI-10 to CI-13.
"""

from __future__ import annotations

from typing import Final

from waltz.types import NOTHING, RequestId, TransactionId
from waltz.wire.batch_protocol import FeedBatch
from waltz.wire.client_protocol import FeedRequest
from waltz.wire.fed import FedBuffer, FedRun, FedRuns, next_of

FEED_BUFFER_TRANSACTIONS_MAX: Final = 10_000
"""Fed but not applied transactions per partition before a client asks for no more."""

FEED_BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Data that came along with these before a client reads no further."""


class PartitionFeed:
    """See the module."""

    def __init__(self, apply_count_max: int, buffer_count_max: int) -> None:
        self.high_water_mark = NOTHING
        self.fed = NOTHING
        self.is_due = False
        """Whether more is to be asked for, once there is room."""
        self.apply_at: float | None = None
        """The time at which the rest of a batch is handed over again; None: the last attempt has
        succeeded."""
        self.buffer = FedBuffer()
        """The transactions that have come since the last batch was handed over."""
        self.in_hand = FedRuns()
        """The batch that is being applied, or is to be tried again."""
        self._apply_count_max = apply_count_max
        self._buffer_count_max = buffer_count_max
        self._applying = False
        self._is_granted_again = False
        """Whether the partition was granted while a batch was being applied that was handed over
        before: if it fails, the reason may be that it was denied its data."""
        self._requests = 0
        """The number of requests for more that are under way."""
        self._gap_seen = False
        """Whether something has come that is not the next: it was dropped before, or here."""
        self._fed_at_nudge: TransactionId | None = None

    @property
    def is_empty(self) -> bool:
        """Whether all that has come is applied."""
        return not (self.in_hand.runs or self.buffer.count)

    @property
    def has_room(self) -> bool:
        """Whether more of the feed may be taken from the connection.

        While the application's callback fails there is room: what comes is dropped and asked for
        again later, so that the other partitions of the connection flow on (PM-38).
        """
        return self.apply_at is not None or (
            self.buffer.count < self._buffer_count_max
            and self.buffer.byte_count < FEED_BUFFER_BYTES_MAX
        )

    def begin_after(self, mark: TransactionId) -> None:
        """Take over the application's mark, if it is beyond what has come and all is applied."""
        if mark > self.high_water_mark and self.is_empty:
            self.high_water_mark = self.fed = mark

    def lose_stream(self) -> None:
        self.is_due = self._gap_seen = False
        self._requests = 0

    def take(self, message: FeedBatch) -> FedRun | None:
        """Keep the transactions of `message` that come next; return them, None if there are none.

        Repetitions, and transactions after a dropped one, are not the next (CI-13). While the
        application fails, a full buffer drops; otherwise the shell stops reading, and what was read
        already is kept.
        """
        room = 1 << 62 if self.apply_at is None else self._buffer_count_max - self.buffer.count
        run = next_of(message, TransactionId(self.fed + 1), room)
        if run is not None:
            self.fed = TransactionId(run.next_transaction_id - 1)
            self.buffer.add(run)
        end = message.first_transaction_id + len(message.feed.headers)
        self._gap_seen |= end > self.fed + 1
        return run

    def suspend(self) -> None:
        """A request for more has been answered in full."""
        self._requests -= 1
        # Two feeds may be under way after a gap; one that is ahead is of no use.
        self.is_due |= self._requests <= 0 or self._gap_seen

    def ask(self, mount_request_id: RequestId) -> FeedRequest | None:
        """Return the request for more of the feed once half of the buffer is free."""
        if self.buffer.count > self._buffer_count_max // 2:
            return None
        self.is_due = self._gap_seen = False
        self._requests += 1
        return FeedRequest(mount_request_id, self.fed)

    def nudge(self, *, is_behind: bool) -> None:
        """Ask again if nothing has come since the last nudge, although the server has answered that
        there is more (`is_behind`): servers of earlier releases do not say that a request was
        replaced."""
        if is_behind and self.fed == self._fed_at_nudge:
            self.is_due, self._requests = True, 0
        self._fed_at_nudge = self.fed

    def hand_over(self) -> FedRuns | None:
        """Return the next batch to apply; None while one is being applied, or has to wait."""
        if self._applying or self.apply_at is not None:
            return None
        if not self.in_hand.runs:
            self.in_hand = self.buffer.take(self._apply_count_max)
        self._applying, self._is_granted_again = True, False
        return self.in_hand

    def finish(self, last: TransactionId, retry_at: float | None) -> None:
        """The batch was applied up to `last`; the rest is handed over again at `retry_at`."""
        assert self._applying, "nothing was handed over"
        self._applying = False
        if last > self.high_water_mark:
            self.high_water_mark = last
            self.in_hand = self.in_hand.after(last)
        if self.in_hand.runs and not self._is_granted_again:
            assert retry_at is not None
            self.apply_at = retry_at

    def grant(self) -> None:
        """The partition was denied and is granted: the rest does not have to wait longer."""
        self._is_granted_again = self._applying
        if self.apply_at is not None:
            self.retry()

    def retry(self) -> None:
        """The time has come to hand over the rest again."""
        self.apply_at = None
        self.is_due |= self._gap_seen

    def check_invariants(self) -> None:
        assert self.high_water_mark <= self.fed
        assert self.fed - self.high_water_mark == self.buffer.count + len(self.in_hand)
        if not self.in_hand.runs:
            assert not self._applying
            if self.buffer.is_empty:
                assert self.fed == self.high_water_mark
                return
        ids = [data.transaction_id for data in (*self.in_hand, *self.buffer)]
        assert ids == list(range(self.high_water_mark + 1, self.fed + 1))
