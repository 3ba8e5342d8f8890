"""The rows of `append_many` between being sent and being decided, for one partition of a client.

Owns which rows are under way under which sequence numbers, and how many may be. Must not know
marks, mounts or connections: it is told what the feed shows and what the server refuses. Always:
each row of a bulk is to be sent, under way, held until what beat it is applied, in the log, or
given up.
Source: Client-Server Communication, "Detection of Failed Append Requests", for ranges of appends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from waltz.arrays import np
from waltz.client.appends.submission import Submission
from waltz.client.bulk import Bulk, Rows
from waltz.limits import BATCH_LOCKS_MAX
from waltz.types import NOTHING, SEQUENCE_NUMBER_MAX, RequestId, TransactionId
from waltz.wire.batch_protocol import AppendBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

BULK_BATCH_ROWS_MAX: Final = 4_000
BULK_BATCH_BYTES_MAX: Final = 1024 * 1024
"""One message of `append_many`: what a store session sends to the replicas at a time."""

BULK_ROWS_IN_FLIGHT_MAX: Final = 16_000
BULK_BYTES_IN_FLIGHT_MAX: Final = 3 * 1024 * 1024
"""A client sends at most this much ahead of the first undecided append of a partition; less than is
kept for a connection that breaks."""

BULK_LOCKED_ROWS_IN_FLIGHT_MAX: Final = 2_000
"""The same towards servers without batches, for rows with locks that are checked, those in the log
and not applied included: by chance one in two hundred meets another in a lock table of 30,000
slots, and with four times as many, one in six. A server with batches has a table that grows."""

BULK_RETRY_SECONDS: Final = 0.05
"""Until rows are sent again that a server refuses for other reasons than their locks."""


class SentRows(NamedTuple):
    """Rows of `bulk`, each under the sequence number at its place; both ascend."""

    numbers: NDArray[np.int64]
    rows: Rows
    bulk: Bulk

    def pick(self, places: slice | NDArray[np.bool_]) -> SentRows:
        return SentRows(self.numbers[places], self.rows[places], self.bulk)


class RowsUnderWay:
    """The rows that were sent and have no outcome, in the order of their sequence numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.byte_count = 0
        """Their size in messages, in bytes."""
        self._sent: list[SentRows] = []

    def __iter__(self) -> Iterator[SentRows]:
        return iter(self._sent)

    @property
    def last_number(self) -> int | None:
        """The number of the youngest row; None if there is none."""
        return int(self._sent[-1].numbers[-1]) if self._sent else None

    def add(self, sent: SentRows) -> None:
        """Add rows under higher numbers than all others."""
        self._sent.append(sent)
        self._count(sent, 1)

    def take(self, first: int, end: int) -> list[SentRows]:
        """Take out the rows under the numbers from `first` to before `end`."""
        taken: list[SentRows] = []
        kept: list[SentRows] = []
        for sent in self._sent:
            numbers = sent.numbers
            start, stop = int(numbers[0]), int(numbers[-1]) + 1
            if stop <= first or start >= end:
                kept.append(sent)
            elif first <= start and stop <= end:
                taken.append(sent)
            else:
                low, high = np.searchsorted(numbers, (first, end)).tolist()
                parts = (
                    sent.pick(slice(low)),
                    sent.pick(slice(low, high)),
                    sent.pick(slice(high, None)),
                )
                taken += [part for part in parts[1:2] if len(part.rows)]
                kept += [part for part in parts[::2] if len(part.rows)]
        if taken:
            self._sent = kept
        for sent in taken:
            self._count(sent, -1)
        return taken

    def take_each(self, numbers: NDArray[np.int64]) -> Iterator[tuple[SentRows, NDArray[np.int64]]]:
        """Take out the rows under `numbers`, which ascend; yield rows, and the place of each of
        them in `numbers`."""
        before, self._sent = self._sent, []
        for sent in before:
            places = np.minimum(np.searchsorted(numbers, sent.numbers), len(numbers) - 1)
            is_named = numbers[places] == sent.numbers
            if not is_named.any():
                self._sent.append(sent)
                continue
            if not is_named.all():
                self._sent.append(sent.pick(~is_named))
            taken = sent.pick(is_named)
            self._count(taken, -1)
            yield taken, places[is_named]

    def check_invariants(self) -> None:
        assert self.count == sum(len(each.rows) for each in self._sent)
        assert self.byte_count == sum(each.bulk.byte_count(each.rows) for each in self._sent)
        numbers = [number for each in self._sent for number in each.numbers.tolist()]
        assert numbers == sorted(set(numbers)), f"sent out of order: {numbers}"

    def _count(self, sent: SentRows, sign: int) -> None:
        self.count += sign * len(sent.rows)
        self.byte_count += sign * sent.bulk.byte_count(sent.rows)


class HeldRows(NamedTuple):
    """Rows that were refused for locks which the transactions in `beaten_by` hold."""

    beaten_by: NDArray[np.int64]
    rows: Rows
    bulk: Bulk


class BulkAppends:
    """See the module."""

    def __init__(self) -> None:
        self.is_used = False
        """Whether there ever were any: many partitions never have rows, and need not ask."""
        self._submissions: list[Submission] = []
        self.under_way = RowsUnderWay()
        self._held: list[HeldRows] = []
        self.rows_refused = 0
        """The number of times that a row was refused for a lock."""
        self._last: RequestId | None = None
        self._last_committed = NOTHING
        self.send_at: float | None = None
        """Nothing is sent before; None: no reason to wait."""

    @property
    def last_sent(self) -> RequestId | None:
        """The youngest row under way; None if none is."""
        number = self.under_way.last_number
        if number is None:
            return None
        assert self._last is not None
        return self._last._replace(sequence_number=number)

    def add(self, submission: Submission) -> None:
        self.is_used = True
        self._submissions.append(submission)

    def take_messages(
        self,
        last: RequestId,
        mark: TransactionId,
        now: float,
        numbers_left: int = SEQUENCE_NUMBER_MAX,
        *,
        knows_batches: bool = True,
    ) -> tuple[list[AppendBatch], int]:
        """Return what is to be sent now by a client that has applied up to `mark`, and the last
        sequence number then; they follow on that of `last`, at most `numbers_left`."""
        messages: list[AppendBatch] = []
        number = last.sequence_number
        end = number + numbers_left
        if self.send_at is not None:
            if now < self.send_at:
                return messages, number
            self.send_at = None
        starts = not knows_batches or self._may_start()
        for submission in self._submissions:
            bulk = submission.bulk
            assert bulk is not None
            if not (starts or bulk.has_started):
                return messages, number  # a later submission does not overtake
            while submission.undecided and bulk.waiting:
                rows_max = min(self._room(bulk, mark, knows_batches=knows_batches), end - number)
                if not rows_max:
                    return messages, number  # a later submission does not overtake
                rows = bulk.cut(rows_max, BULK_BATCH_BYTES_MAX, BATCH_LOCKS_MAX)
                first = last._replace(sequence_number=number + 1)
                numbers = np.arange(number + 1, number + 1 + len(rows))
                number += len(rows)
                self.under_way.add(SentRows(numbers, rows, bulk))
                self._last = first
                submission.client_high_water_mark = mark
                messages.append(AppendBatch(first, bulk.columns(rows, mark)))
        return messages, number

    def _may_start(self) -> bool:
        """Whether submissions none of whose rows was sent may be: with nothing under way, or if
        together they make a batch as large as what is under way.

        Rows that are sent together become one batch, and many small ones would cost everybody on
        the way as much as many large ones."""
        if not self.under_way.count:
            return True
        rows = byte_count = 0
        for submission in self._submissions:
            bulk = submission.bulk
            if bulk is not None and submission.undecided and not bulk.has_started:
                rows += len(bulk.rows)
                byte_count += bulk.rows.byte_count
        return rows >= min(self.under_way.count, BULK_BATCH_ROWS_MAX) or (
            byte_count >= BULK_BATCH_BYTES_MAX
        )

    def _room(self, bulk: Bulk, mark: TransactionId, *, knows_batches: bool) -> int:
        """Return how many rows may be sent in one message now."""
        out = self.under_way
        under_way, limit, batch = out.count, BULK_ROWS_IN_FLIGHT_MAX, BULK_BATCH_ROWS_MAX
        if bulk.rows.is_checked:
            # What is in the log and not applied is refused like what is under way.
            under_way += max(0, self._last_committed - mark)
            if not knows_batches:
                limit = BULK_LOCKED_ROWS_IN_FLIGHT_MAX
                batch = limit // 4
        # Less than a batch waits: small messages would be followed by small ones for ever.
        has_room = (
            under_way + batch <= limit and self.under_way.byte_count < BULK_BYTES_IN_FLIGHT_MAX
        )
        return batch if has_room or not out.count else 0

    # What becomes of them

    def commit(self, first: int, count: int, first_transaction_id: int) -> bool:
        """The feed shows the appends with these sequence numbers from that ID on; return whether
        rows are among them. What is older is not in the log then and never will be."""
        committed = self.under_way.take(first, first + count)
        if committed:
            self.fail_before(first)
        for sent in committed:
            sent.bulk.commit(sent.rows, first_transaction_id - first + sent.numbers)
            self._last_committed = max(self._last_committed, sent.bulk.last_transaction_id)
        return bool(committed)

    def fail_before(self, number: int) -> None:
        """Rows with lower sequence numbers are not in the log and never will be."""
        for sent in self.under_way.take(0, number):
            if sent.bulk.is_sent_again:
                sent.bulk.give_back(sent.rows)
            else:
                sent.bulk.give_up(sent.rows)

    def refuse(self, first: int, count: int, now: float) -> None:
        """These were not looked at; they are sent again in a moment."""
        refused = self.under_way.take(first, first + count)
        for sent in refused:
            sent.bulk.give_back(sent.rows)
        if refused:
            self.send_at = now + BULK_RETRY_SECONDS

    def hold(self, numbers: Sequence[int], beaten_by: Sequence[int]) -> None:
        """Those with these sequence numbers were refused for locks that these transactions hold:
        they are sent again once what beat them is applied, or given up."""
        if not self.under_way.count or not numbers:
            return
        refused = np.array(numbers, np.int64)
        order = np.argsort(refused)
        winners = np.array(beaten_by, np.int64)[order]
        for lost, places in self.under_way.take_each(refused[order]):
            self.rows_refused += len(lost.rows)
            beaten = winners[places]
            if lost.bulk.is_sent_again:
                self._held.append(HeldRows(beaten, lost.rows, lost.bulk))
            else:
                lost.bulk.give_up(lost.rows, int(beaten.max()))

    def deny(self, first: int, count: int) -> list[tuple[Submission, bool]]:
        """The server denies these, `count` from `first` on. Take out the submissions that they
        belong to; return each, and whether other rows of it may be in the log."""
        denied = [each.bulk for each in self.under_way.take(first, first + count)]
        return self._take_out([each for each in self._submissions if each.bulk in denied])

    def give_up(self) -> list[tuple[Submission, bool]]:
        """Nothing is heard of the rows any more. Take out the submissions that are not in the log
        as a whole; return each, and whether rows of it may be in the log."""
        unfinished = [each for each in self._submissions if each.bulk and each.bulk.left]
        taken = self._take_out(unfinished)
        finished = self._submissions
        self.clear()
        self._submissions = finished
        return taken

    def _take_out(self, submissions: Sequence[Submission]) -> list[tuple[Submission, bool]]:
        sent = [each.bulk for each in self.under_way]
        taken: list[tuple[Submission, bool]] = []
        for submission in submissions:
            bulk = submission.bulk
            assert bulk is not None
            taken.append((submission, bulk in sent or bulk.last_transaction_id != NOTHING))
        self._submissions = [each for each in self._submissions if each not in submissions]
        return taken

    def release(self, mark: TransactionId) -> None:
        """The client has applied up to `mark`."""
        held, self._held = self._held, []
        for beaten_by, rows, bulk in held:
            is_free = beaten_by <= mark
            if is_free.any():
                bulk.give_back(rows[is_free])
            if not is_free.all():
                self._held.append(HeldRows(beaten_by[~is_free], rows[~is_free], bulk))

    def owner(self, number: int) -> Submission | None:
        """Return what the row under that sequence number belongs to."""
        for sent in self.under_way:
            if number in sent.numbers:
                return next((s for s in self._submissions if s.bulk is sent.bulk), None)
        return None

    @property
    def bulks(self) -> list[Bulk]:
        """Those that have not ended."""
        return [each.bulk for each in self._submissions if each.bulk is not None]

    def take_finished(self, mark: TransactionId) -> list[Submission]:
        """Take out those whose rows have an outcome that is applied here, and forget those that
        have ended otherwise."""
        if not self._submissions:
            return []
        finished, left = [], []
        for submission in self._submissions:
            bulk = submission.bulk
            assert bulk is not None
            if bulk.has_ended(mark):
                submission.transaction_id = bulk.last_transaction_id
                finished.append(submission)
            elif submission.undecided:
                left.append(submission)
        self._submissions = left
        return finished

    def clear(self) -> None:
        """Nothing more is to be sent or heard of."""
        self._submissions, self._held = [], []
        self.under_way = RowsUnderWay()
        self.send_at = None

    def check_invariants(self) -> None:
        self.under_way.check_invariants()
        for bulk in self.bulks:
            sent = sum(len(each.rows) for each in self.under_way if each.bulk is bulk)
            held = sum(len(each.rows) for each in self._held if each.bulk is bulk)
            assert bulk.left == bulk.waiting + sent + held
