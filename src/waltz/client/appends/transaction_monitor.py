"""The registry of pending appends: the feed decides them, in the order they were registered.

Owns which appends of one partition are undecided. Knows nothing of messages, marks or contexts;
`T` is whatever the caller wants back. Source: Client-Server Communication, "Detection of Failed
Append Requests".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from waltz.errors import ClientClosedError, PartitionInactiveError
from waltz.types import RequestId

T = TypeVar("T")


class MonitorState(Enum):
    STOPPED = "stopped"
    STARTED = "started"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class _Run(Generic[T]):
    """Appends under request IDs that follow on each other, from `first` on: one at least, and None
    for each that was taken out, which neither the first nor the last is."""

    first: RequestId
    appends: deque[T | None]

    @property
    def last(self) -> RequestId:
        number = self.first.sequence_number + len(self.appends) - 1
        return self.first._replace(sequence_number=number)

    def trim(self, taken: int) -> None:
        """Restore that after entries were taken away in front."""
        appends = self.appends
        while appends and appends[-1] is None:
            appends.pop()
        while appends and appends[0] is None:
            appends.popleft()
            taken += 1
        number = self.first.sequence_number + taken
        self.first = self.first._replace(sequence_number=number)


class TransactionMonitor(Generic[T]):
    """Pending appends of one partition in the order of registration, which is that of sending.

    What is sent together is registered together and, as a rule, decided together: so runs are kept,
    not appends.
    """

    def __init__(self) -> None:
        self.state = MonitorState.STOPPED
        self.count = 0
        """The number of pending appends."""
        self._runs: deque[_Run[T]] = deque()

    def items(self) -> Iterator[tuple[RequestId, T]]:
        """Yield what is pending, the oldest first."""
        for run in self._runs:
            for number, append in enumerate(run.appends, run.first.sequence_number):
                if append is not None:
                    yield run.first._replace(sequence_number=number), append

    @property
    def first_registered(self) -> RequestId | None:
        """The oldest pending append; None if none is pending."""
        return self._runs[0].first if self._runs else None

    @property
    def last_registered(self) -> RequestId | None:
        """The youngest pending append; None if none is pending."""
        return self._runs[-1].last if self._runs else None

    def start(self) -> None:
        if self.state is not MonitorState.CLOSED:
            self.state = MonitorState.STARTED

    def stop(self) -> list[T]:
        """Refuse new appends and return those that nobody will decide any more."""
        if self.state is not MonitorState.CLOSED:
            self.state = MonitorState.STOPPED
        return self._take_all()

    def close(self) -> list[T]:
        """As `stop`, for good."""
        self.state = MonitorState.CLOSED
        return self._take_all()

    def register(self, first: RequestId, appends: Sequence[T]) -> bool:
        """Add `appends`, at least one, under request IDs from `first` on; False if one of these, or
        one of a higher number, is pending (CI-19).

        How many may be pending is the caller's to bound. Raises PartitionInactiveError,
        ClientClosedError.
        """
        if self.state is MonitorState.CLOSED:
            raise ClientClosedError(f"the client is closed; {first} was not sent")
        if self.state is MonitorState.STOPPED:
            raise PartitionInactiveError(f"partition {first.partition_id} is not active")
        if self._runs:
            run = self._runs[-1]
            end = run.first.sequence_number + len(run.appends)
            if first.sequence_number < end:
                return False
            if first.sequence_number == end and first[:3] == run.first[:3]:
                run.appends.extend(appends)
                self.count += len(appends)
                return True
        self._runs.append(_Run(first, deque(appends)))
        self.count += len(appends)
        return True

    def commit(self, first: RequestId, count: int = 1) -> tuple[list[T], list[T | None]]:
        """Take out what the feed has shown to be in the log, `count` requests from `first` on, and
        all that is older: that failed. Return what failed, and what is in the log, each at its
        place among these requests, up to the last of them.

        What of them is not pending here is somebody else's and changes nothing (CI-16): its place
        has None.
        """
        if self._runs and (run := self._runs[0]).first == first and len(run.appends) == count:
            del self._runs[0]  # as nearly always: what was sent together, and is the oldest
            everything = [*run.appends]
            self.count -= count - everything.count(None)
            return [], everything
        sender, number = first[:3], first.sequence_number
        failed: list[T] = []
        committed: list[T | None] = []
        for run_first, appends in self._take_before(self._end_of(first, count)):
            skipped = number - run_first.sequence_number
            if run_first[:3] != sender:
                skipped = len(appends)
            if skipped > 0:
                failed += [each for each in appends[:skipped] if each is not None]
                appends = appends[skipped:]
            if appends:
                place = max(0, -skipped)
                committed += [None] * (place - len(committed))
                committed += appends
        return failed, committed

    def _end_of(self, first: RequestId, count: int) -> int:
        """Return the sequence number after the last of these requests that is pending; 0 if none
        is."""
        end = 0
        for run in self._runs:
            start = run.first.sequence_number
            begin = max(start, first.sequence_number)
            stop = min(start + len(run.appends), first.sequence_number + count)
            if start >= first.sequence_number + count:
                break
            if run.first[:3] == first[:3]:
                while stop > begin and run.appends[stop - 1 - start] is None:
                    stop -= 1
                if stop > begin:
                    end = stop
        return end

    def _take_before(self, end: int) -> list[tuple[RequestId, list[T | None]]]:
        """Take out all with lower sequence numbers; return them, each run with its first."""
        taken: list[tuple[RequestId, list[T | None]]] = []
        while self._runs and (first := self._runs[0].first).sequence_number < end:
            run = self._runs[0]
            count = end - first.sequence_number
            if count >= len(run.appends):
                appends = [*run.appends]
                self._runs.popleft()
            else:
                appends = [run.appends.popleft() for _ in range(count)]
                run.trim(count)
            self.count -= len(appends) - appends.count(None)
            taken.append((first, appends))
        return taken

    def abort(self, request_id: RequestId) -> T | None:
        """Take out one that was refused for a lock; None if it is not pending."""
        for run in self._runs:
            place = request_id.sequence_number - run.first.sequence_number
            if 0 <= place < len(run.appends) and request_id[:3] == run.first[:3]:
                break
        else:
            return None
        append = run.appends[place]
        if append is not None:
            run.appends[place] = None
            self.count -= 1
            run.trim(0)
            if not run.appends:
                self._runs.remove(run)
        return append

    def flush(self, request_id: RequestId) -> list[T]:
        """Take out all up to and including `request_id`: what was committed is gone already.

        The flushed append itself may have been decided meanwhile; the numbers of the requests
        tell which ones are older.
        """
        taken = self._take_before(request_id.sequence_number + 1)
        return [each for _, appends in taken for each in appends if each is not None]

    def check_invariants(self) -> None:
        if not self._runs:
            assert self.count == 0
            return
        numbers = [request_id.sequence_number for request_id, _ in self.items()]
        assert numbers == sorted(set(numbers)), f"registered out of order: {numbers}"
        assert self.count == len(numbers)
        assert self.state is MonitorState.STARTED
        for run in self._runs:
            assert run.appends[0] is not None
            assert run.appends[-1] is not None

    def _take_all(self) -> list[T]:
        taken = [append for _, append in self.items()]
        self._runs.clear()
        self.count = 0
        return taken
