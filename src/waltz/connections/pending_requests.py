"""Bodies and high-water marks that were asked for and have not arrived.

Owns what is asked, where the request was sent, and when to ask again. Must not know connections or
callers. Always: what is wanted is unsent, in flight on a present connection, or due at a known
time, so nothing asked for is forgotten when a connection ends or a partition moves (CI-04, CI-22).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final, TypeAlias, assert_never

from waltz.connections.denial_errors import denial_error
from waltz.errors import PermissionDeniedError
from waltz.types import (
    NO_GENERATION,
    NOTHING,
    ClientId,
    PartitionId,
    RequestId,
    TransactionId,
    following_number,
)
from waltz.wire.client_protocol import (
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz.wire.denial_protocol import Denied
from waltz.wire.history_protocol import MarksAnswer, MarksRequest
from waltz.wire.message import Message

DATA_RETRY_SECONDS_MIN: Final = 0.01
DATA_RETRY_SECONDS_MAX: Final = 5.0
"""The longest back-off of a body fetch after a failure (PM-32)."""

DATA_REQUESTS_IN_FLIGHT_MAX: Final = 256
"""Bodies requested ahead on one connection."""

MARKS_QUESTIONS_MAX: Final = 16
"""Questions for the marks of all partitions on one connection whose answers are waited for: as many
as a server lets wait. The oldest is given up for a newer one."""

HIGH_WATER_MARK_REQUEST_SECONDS: Final = 2.0
"""Some servers never answer some high-water mark requests (hazard H2): ask again after this
long."""


@dataclass(frozen=True, slots=True)
class BodiesWanted:
    """A caller waits for these bodies. They were fed: asked for a transaction that is not committed
    yet, a server may give a wrong answer for ever (hazard H1)."""

    partition_id: PartitionId
    transaction_ids: Sequence[TransactionId]
    is_ahead: bool = False
    """No caller waits for them yet: those that the server cannot give are not asked for again."""


@dataclass(frozen=True, slots=True)
class MarksWanted:
    """A caller waits for high-water marks, as their servers know them after the call: an answer to
    a request that was sent before may be of a time before the call. Callers that come together
    share a request (PM-36)."""

    partition_ids: Sequence[PartitionId]
    number: int
    """Greater than that of any caller before."""


@dataclass(frozen=True, slots=True)
class PartitionAttached:
    partition_id: PartitionId
    connection_sequence: int
    gives_marks: bool = False
    """Whether the server tells the marks of all its partitions in one answer."""


@dataclass(frozen=True, slots=True)
class PartitionDetached:
    partition_id: PartitionId
    connection_sequence: int


@dataclass(frozen=True, slots=True)
class Answered:
    """Messages from a server; `jitter` is from 0 to 1."""

    connection_sequence: int
    messages: Sequence[Message]
    jitter: float


Event: TypeAlias = BodiesWanted | MarksWanted | PartitionAttached | PartitionDetached | Answered


@dataclass(frozen=True, slots=True)
class SendRequests:
    connection_sequence: int
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class RequestsDenied:
    """The server's policy denies what is asked about the partition; nothing is asked any more."""

    partition_id: PartitionId
    error: PermissionDeniedError


@dataclass(frozen=True, slots=True)
class DataArrived:
    partition_id: PartitionId
    transaction_id: TransactionId
    data: bytes


@dataclass(frozen=True, slots=True)
class AheadRefused:
    """The server could not give a body that no caller waits for."""

    partition_id: PartitionId
    transaction_id: TransactionId


@dataclass(frozen=True, slots=True)
class MarkArrived:
    """The answer for all callers up to that number."""

    partition_id: PartitionId
    high_water_mark: TransactionId
    number: int


@dataclass(frozen=True, slots=True)
class BreakConnection:
    """End the connection: it carried a message that it must not carry (CI-05)."""

    connection_sequence: int
    reason: str


Effect: TypeAlias = (
    SendRequests | DataArrived | AheadRefused | MarkArrived | RequestsDenied | BreakConnection
)


@dataclass(slots=True)
class _Partition:
    connection_sequence: int | None = None
    gives_marks: bool = False
    attempts: dict[TransactionId, int] = field(default_factory=dict)
    unsent: deque[TransactionId] = field(default_factory=deque)
    in_flight: dict[TransactionId, None] = field(default_factory=dict)
    ahead: set[TransactionId] = field(default_factory=set)
    """Those of `attempts` for which no caller waits."""
    mark_wanted: int | None = None
    """The number of the last caller that waits for the mark."""
    mark_due_at: float | None = None
    mark_asked: dict[int, int] = field(default_factory=dict)
    """The last caller for each request under way, by the request's sequence number."""


@dataclass(frozen=True, slots=True)
class _MarksQuestion:
    """A question for the marks of all partitions of a server, and the last caller for each."""

    connection_sequence: int
    callers: dict[PartitionId, int]


class PendingRequests:
    """See the module."""

    def __init__(
        self, client_id: ClientId, *, in_flight_max: int = DATA_REQUESTS_IN_FLIGHT_MAX
    ) -> None:
        self.closed = False
        self._client_id = client_id
        self._in_flight_max = in_flight_max
        self._sequence_number = 0
        self._partitions: dict[PartitionId, _Partition] = {}
        self._in_flight: dict[int, int] = {}
        self._marks_questions: dict[int, _MarksQuestion] = {}
        """Those under way, by their numbers."""
        self._marks_number = 0
        self._again: list[tuple[float, PartitionId, TransactionId]] = []
        self._waiting: dict[PartitionId, None] = {}
        """Partitions with unsent requests, in the order of their turns."""
        self._outboxes: dict[int, list[Message]] = {}
        self._effects: list[Effect] = []

    @property
    def deadline(self) -> float | None:
        times = [partition.mark_due_at for partition in self._partitions.values()]
        if self._again:
            times.append(self._again[0][0])
        return min((time for time in times if time is not None), default=None)

    def step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        self._effects = []
        for event in events:
            self._take(event, now)
        while self._again and self._again[0][0] <= now:
            _, partition_id, transaction_id = heapq.heappop(self._again)
            self._partitions[partition_id].unsent.append(transaction_id)
            self._waiting[partition_id] = None
        self._ask_marks(now)
        self._send()
        for sequence, messages in self._outboxes.items():
            self._effects.append(SendRequests(sequence, messages))
        self._outboxes = {}
        return self._effects

    def check_invariants(self) -> None:
        counts: dict[int, int] = {}
        again = [(partition_id, transaction_id) for _, partition_id, transaction_id in self._again]
        for partition_id, each in self._partitions.items():
            later = [transaction_id for key, transaction_id in again if key == partition_id]
            assert sorted([*each.unsent, *each.in_flight, *later]) == sorted(each.attempts)
            assert each.ahead <= {*each.unsent, *each.in_flight}
            if each.connection_sequence is None:
                assert not each.in_flight
            else:
                sequence = each.connection_sequence
                counts[sequence] = counts.get(sequence, 0) + len(each.in_flight)
                assert not each.unsent or partition_id in self._waiting
        for sequence, count in self._in_flight.items():
            assert count == counts.get(sequence, 0) <= self._in_flight_max

    def _take(self, event: Event, now: float) -> None:
        match event:
            case BodiesWanted():
                partition = self._partition(event.partition_id)
                for transaction_id in event.transaction_ids:
                    if transaction_id not in partition.attempts:
                        partition.attempts[transaction_id] = 0
                        partition.unsent.append(transaction_id)
                        if event.is_ahead:
                            partition.ahead.add(transaction_id)
                    elif not event.is_ahead:
                        partition.ahead.discard(transaction_id)
                self._waiting[event.partition_id] = None
            case MarksWanted():
                for partition_id in event.partition_ids:
                    partition = self._partition(partition_id)
                    partition.mark_wanted = event.number
                    partition.mark_due_at = now
            case PartitionAttached():
                self._detach(event.partition_id, None)
                partition = self._partition(event.partition_id)
                partition.connection_sequence = event.connection_sequence
                partition.gives_marks = event.gives_marks
                self._in_flight.setdefault(event.connection_sequence, 0)
                self._waiting[event.partition_id] = None
                if partition.mark_wanted is not None:
                    partition.mark_due_at = now
            case PartitionDetached():
                self._detach(event.partition_id, event.connection_sequence)
            case Answered():
                self._receive(event, now)
            case _:
                assert_never(event)

    def _partition(self, partition_id: PartitionId) -> _Partition:
        return self._partitions.setdefault(partition_id, _Partition())

    def _detach(self, partition_id: PartitionId, connection_sequence: int | None) -> None:
        """Take back what was sent on that connection; None stands for whatever connection there
        is."""
        partition = self._partition(partition_id)
        sequence = partition.connection_sequence
        if sequence is None or connection_sequence not in (None, sequence):
            return
        partition.connection_sequence = None
        partition.mark_asked.clear()
        self._in_flight[sequence] -= len(partition.in_flight)
        if not any(each.connection_sequence == sequence for each in self._partitions.values()):
            del self._in_flight[sequence]
            self._marks_questions = {
                number: question
                for number, question in self._marks_questions.items()
                if question.connection_sequence != sequence
            }
        partition.unsent.extendleft(reversed(partition.in_flight))
        partition.in_flight.clear()

    def _receive(self, event: Answered, now: float) -> None:
        sequence = event.connection_sequence
        for message in event.messages:
            if type(message) is TransactionDataResponse:
                partition_id = message.request_id.partition_id
                transaction_id = message.transaction_id
                partition = self._partition(partition_id)
                if (
                    partition.connection_sequence != sequence
                    or transaction_id not in partition.in_flight
                ):
                    continue
                del partition.in_flight[transaction_id]
                self._in_flight[sequence] -= 1
                if message.data is not None:
                    del partition.attempts[transaction_id]
                    partition.ahead.discard(transaction_id)
                    self._effects.append(DataArrived(partition_id, transaction_id, message.data))
                elif transaction_id in partition.ahead:
                    del partition.attempts[transaction_id]
                    partition.ahead.remove(transaction_id)
                    self._effects.append(AheadRefused(partition_id, transaction_id))
                else:
                    attempts = partition.attempts[transaction_id]
                    partition.attempts[transaction_id] += 1
                    longest = DATA_RETRY_SECONDS_MIN * 2.0 ** min(attempts, 20)
                    delay = min(DATA_RETRY_SECONDS_MAX, longest)
                    due_at = now + delay * (0.5 + 0.5 * event.jitter)
                    heapq.heappush(self._again, (due_at, partition_id, transaction_id))
            elif type(message) is HighWaterMarkResponse:
                self._receive_mark(message)
            elif type(message) is MarksAnswer:
                self._receive_marks(sequence, message, now)
            elif type(message) is Denied:
                self._deny(sequence, message)
            else:
                self._effects.append(
                    BreakConnection(
                        sequence, f"{type(message).__name__} arrived on a connection for requests"
                    )
                )
                return

    def _receive_mark(self, message: HighWaterMarkResponse) -> None:
        partition_id = message.request_id.partition_id
        partition = self._partition(partition_id)
        number = partition.mark_asked.pop(message.request_id.sequence_number, None)
        # A recovering server may report a mark below that of an empty log (hazard H8): ask again.
        if number is None or message.transaction_id < NOTHING:
            return
        self._settle_mark(partition_id, message.transaction_id, number)

    def _receive_marks(self, sequence: int, message: MarksAnswer, now: float) -> None:
        question = self._marks_questions.pop(message.request_number, None)
        if question is None or question.connection_sequence != sequence:
            return
        if len(message.partition_ids) != len(message.high_water_marks):
            reason = (
                f"marks of {len(message.partition_ids)} partitions came as"
                f" {len(message.high_water_marks)} numbers"
            )
            self._effects.append(BreakConnection(sequence, reason))
            return
        marks = dict(zip(message.partition_ids, message.high_water_marks, strict=True))
        for partition_id, number in question.callers.items():
            partition = self._partition(partition_id)
            if partition.connection_sequence != sequence or partition.mark_wanted is None:
                continue
            mark = marks.get(partition_id)
            if mark is None or mark < NOTHING:  # asked by itself it waits until the mark is known
                self._ask_mark(partition_id, partition, now)
            else:
                self._settle_mark(partition_id, TransactionId(mark), number)

    def _deny(self, sequence: int, message: Denied) -> None:
        """Give up all requests for the partition that is denied; for no single one, those for each
        partition of the connection."""
        error = denial_error(message)
        denied = [message.partition_id] if error.partition is not None else [*self._partitions]
        for partition_id in denied:
            partition = self._partitions.get(partition_id)
            if partition is None or partition.connection_sequence != sequence:
                continue
            self._in_flight[sequence] -= len(partition.in_flight)
            self._again = [each for each in self._again if each[1] != partition_id]
            heapq.heapify(self._again)
            self._partitions[partition_id] = _Partition(sequence, partition.gives_marks)
            self._waiting.pop(partition_id, None)
            self._effects.append(RequestsDenied(partition_id, error))

    def _settle_mark(self, partition_id: PartitionId, mark: TransactionId, number: int) -> None:
        partition = self._partition(partition_id)
        self._effects.append(MarkArrived(partition_id, mark, number))
        if number == partition.mark_wanted:
            partition.mark_wanted = partition.mark_due_at = None
            partition.mark_asked.clear()

    def _ask_marks(self, now: float) -> None:
        """Ask for the marks that are due, of all partitions at one server together if it knows
        the question."""
        together: dict[int, list[PartitionId]] = {}
        for partition_id, partition in self._partitions.items():
            if partition.mark_due_at is None or partition.mark_due_at > now:
                continue
            if partition.connection_sequence is not None and partition.gives_marks:
                together.setdefault(partition.connection_sequence, []).append(partition_id)
            else:
                self._ask_mark(partition_id, partition, now)
        for sequence, partition_ids in together.items():
            if len(partition_ids) == 1:
                (partition_id,) = partition_ids
                self._ask_mark(partition_id, self._partitions[partition_id], now)
            else:
                self._ask_together(sequence, partition_ids, now)

    def _ask_together(self, sequence: int, partition_ids: list[PartitionId], now: float) -> None:
        callers = {}
        for partition_id in partition_ids:
            partition = self._partitions[partition_id]
            assert partition.mark_wanted is not None, "due"
            callers[partition_id] = partition.mark_wanted
            partition.mark_due_at = now + HIGH_WATER_MARK_REQUEST_SECONDS
        under_way = [
            number
            for number, each in self._marks_questions.items()
            if each.connection_sequence == sequence
        ]
        if len(under_way) == MARKS_QUESTIONS_MAX:
            del self._marks_questions[under_way[0]]
        self._marks_number += 1
        self._marks_questions[self._marks_number] = _MarksQuestion(sequence, callers)
        self._outboxes.setdefault(sequence, []).append(MarksRequest(self._marks_number))

    def _ask_mark(self, partition_id: PartitionId, partition: _Partition, now: float) -> None:
        sequence = partition.connection_sequence
        partition.mark_due_at = None
        if sequence is None:  # asked once the partition is attached
            return
        partition.mark_due_at = now + HIGH_WATER_MARK_REQUEST_SECONDS
        request_id = self._next_request_id(partition_id)
        assert partition.mark_wanted is not None, "due"
        partition.mark_asked[request_id.sequence_number] = partition.mark_wanted
        self._outboxes.setdefault(sequence, []).append(HighWaterMarkRequest(request_id))

    def _send(self) -> None:
        """Fill the room of each connection by turns: a partition with many requests must not keep
        the other partitions of its server waiting until all of its requests are answered."""
        turns: dict[int, list[PartitionId]] = {}
        for partition_id in list(self._waiting):
            partition = self._partitions[partition_id]
            sequence = partition.connection_sequence
            if sequence is None or not partition.unsent:
                del self._waiting[partition_id]
            elif self._in_flight[sequence] < self._in_flight_max:
                turns.setdefault(sequence, []).append(partition_id)
        for sequence, partition_ids in turns.items():
            for index, partition_id in enumerate(partition_ids):
                room = self._in_flight_max - self._in_flight[sequence]
                share = ceil(room / (len(partition_ids) - index))
                self._send_some(partition_id, sequence, share)

    def _send_some(self, partition_id: PartitionId, sequence: int, share: int) -> None:
        partition = self._partitions[partition_id]
        count = min(share, len(partition.unsent))
        if not count:
            return
        outbox = self._outboxes.setdefault(sequence, [])
        for _ in range(count):
            transaction_id = partition.unsent.popleft()
            partition.in_flight[transaction_id] = None
            outbox.append(
                TransactionDataRequest(self._next_request_id(partition_id), transaction_id)
            )
        self._in_flight[sequence] += count
        del self._waiting[partition_id]  # its next turn comes after all others
        if partition.unsent:
            self._waiting[partition_id] = None

    def _next_request_id(self, partition_id: PartitionId) -> RequestId:
        self._sequence_number = following_number(self._sequence_number)
        return RequestId(self._client_id, NO_GENERATION, partition_id, self._sequence_number)
