"""Transactions as the feed has brought them: many side by side, one by one only when asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple, overload

from waltz.arrays import np
from waltz.types import RequestId, TransactionId
from waltz.wire.batch_protocol import FeedBatch
from waltz.wire.columns import request_ids_in
from waltz.wire.header_columns import HeaderColumns

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Fed(NamedTuple):
    """`data` is None if it did not come along."""

    request_id: RequestId
    transaction_id: TransactionId
    header: int
    data: bytes | None = None


class FedRun(Sequence[Fed]):
    """Transactions with dense IDs from `first_transaction_id` on, at least one.

    request_runs   the first request ID of each run of dense ones, and its length.
    data           None if they did not come along; `byte_count` of them all.
    """

    __slots__ = (
        "byte_count",
        "data",
        "first_transaction_id",
        "headers",
        "next_transaction_id",
        "request_runs",
    )

    def __init__(
        self,
        first_transaction_id: TransactionId,
        request_runs: Sequence[tuple[RequestId, int]],
        headers: NDArray[np.int32],
        data: Sequence[bytes] | None = None,
    ) -> None:
        self.first_transaction_id = first_transaction_id
        self.request_runs = request_runs
        self.headers = headers
        self.data = data
        self.next_transaction_id = TransactionId(first_transaction_id + len(headers))
        self.byte_count = 0 if data is None else sum(map(len, data))

    def __len__(self) -> int:
        return len(self.headers)

    @overload
    def __getitem__(self, place: int) -> Fed: ...
    @overload
    def __getitem__(self, place: slice) -> FedRun: ...
    def __getitem__(self, place: int | slice) -> Fed | FedRun:
        if not isinstance(place, slice):
            return list(self)[place]
        start, end, step = place.indices(len(self))
        assert step == 1, "a run is dense"
        if (start, end) == (0, len(self)):
            return self
        return FedRun(
            TransactionId(self.first_transaction_id + start),
            list(_part(self.request_runs, start, end)),
            self.headers[start:end],
            None if self.data is None else self.data[start:end],
        )

    def __iter__(self) -> Iterator[Fed]:
        return map(
            Fed,
            self.request_ids(),
            self.transaction_ids(),
            self.headers.tolist(),
            repeat(None) if self.data is None else self.data,
        )

    def transaction_ids(self) -> Iterable[TransactionId]:
        return map(TransactionId, range(self.first_transaction_id, self.next_transaction_id))

    def request_ids(self) -> Iterator[RequestId]:
        """Yield one request ID per transaction."""
        return request_ids_in(self.request_runs)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def _part(
    runs: Sequence[tuple[RequestId, int]], start: int, end: int
) -> Iterator[tuple[RequestId, int]]:
    """Yield what belongs to the places from `start` to before `end`."""
    place = 0
    for first, length in runs:
        begin, stop = max(place, start), min(place + length, end)
        if begin < stop:
            number = first.sequence_number + begin - place
            yield first._replace(sequence_number=number), stop - begin
        place += length


def fed_together(message: FeedBatch) -> FedRun:
    """Return the transactions of `message`."""
    feed = message.feed
    return FedRun(
        message.first_transaction_id,
        list(feed.request_runs()),
        feed.headers,
        None if feed.bodies is None else feed.bodies.data,
    )


def run_of_headers(headers: HeaderColumns) -> FedRun:
    """Return the transactions of `headers`, at least one."""
    runs = list(headers.feed().request_runs())
    return FedRun(headers.first_transaction_id, runs, headers.transaction_headers)


def next_of(message: FeedBatch, expected: TransactionId, room: int) -> FedRun | None:
    """Return the transactions from `expected` on, at most `room`; None if there are none."""
    skipped = expected - message.first_transaction_id
    count = len(message.feed.headers)
    if not skipped and count <= room:  # as nearly always
        return fed_together(message)
    end = min(count, skipped + room)
    return fed_together(message)[skipped:end] if 0 <= skipped < end else None


class FedBuffer:
    """Transactions that were fed and not handed over yet, dense and in order: `count` of them;
    `byte_count` is the size of the data that came along."""

    def __init__(self) -> None:
        self.count = 0
        self.byte_count = 0
        self._runs: deque[FedRun] = deque()

    def __iter__(self) -> Iterator[Fed]:
        return chain.from_iterable(self._runs)

    @property
    def is_empty(self) -> bool:
        return not self._runs

    def add(self, run: FedRun) -> None:
        self._runs.append(run)
        self.count += len(run.headers)
        self.byte_count += run.byte_count

    def take(self, count_max: int) -> FedRuns:
        """Take out the oldest transactions, at most `count_max`."""
        if self.count <= count_max:  # as nearly always
            everything = FedRuns([*self._runs])
            self._runs.clear()
            self.count = self.byte_count = 0
            return everything
        taken: list[FedRun] = []
        left = count_max
        while self._runs and left:
            run = self._runs.popleft()
            if len(run) > left:
                self._runs.appendleft(run[left:])
                run = run[:left]
            taken.append(run)
            left -= len(run)
            self.byte_count -= run.byte_count
        self.count -= count_max - left
        return FedRuns(taken)


class FedRuns(Sequence[Fed]):
    """Runs that follow on each other as one."""

    __slots__ = ("runs",)

    def __init__(self, runs: Sequence[FedRun] = ()) -> None:
        self.runs = runs

    def __len__(self) -> int:
        runs = self.runs
        return runs[-1].next_transaction_id - runs[0].first_transaction_id if runs else 0

    @property
    def first_transaction_id(self) -> TransactionId:
        return self.runs[0].first_transaction_id

    @property
    def last_transaction_id(self) -> TransactionId:
        return TransactionId(self.runs[-1].next_transaction_id - 1)

    @overload
    def __getitem__(self, place: int) -> Fed: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Fed]: ...
    def __getitem__(self, place: int | slice) -> Fed | Sequence[Fed]:
        return list(self)[place]

    def __iter__(self) -> Iterator[Fed]:
        return chain.from_iterable(self.runs)

    def after(self, transaction_id: TransactionId) -> FedRuns:
        """Return those with higher IDs."""
        if transaction_id + 1 >= self.runs[-1].next_transaction_id:  # as nearly always
            return NONE_FED
        left = []
        for run in self.runs:
            done = max(0, transaction_id + 1 - run.first_transaction_id)
            if done < len(run):
                left.append(run[done:])
        return FedRuns(left)

    def through(self, transaction_id: TransactionId) -> FedRuns:
        """Return those with this ID and lower ones."""
        chosen = []
        for run in self.runs:
            count = transaction_id + 1 - run.first_transaction_id
            if count > 0:
                chosen.append(run[:count])
        return FedRuns(chosen)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


NONE_FED: Final = FedRuns()
