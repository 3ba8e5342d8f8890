"""The registry of pending appends: the feed decides them, in the order they were registered.

Owns which appends of one partition are undecided. Knows nothing of messages, marks or contexts;
`T` is whatever the caller wants back. Source: Client-Server Communication, "Detection of Failed
Append Requests".
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Generic, TypeVar

from waltz.errors import ClientClosedError, PartitionInactiveError
from waltz.types import RequestId

T = TypeVar("T")


class MonitorState(Enum):
    STOPPED = "stopped"
    STARTED = "started"
    CLOSED = "closed"


class TransactionMonitor(Generic[T]):
    """Pending appends of one partition in the order of registration, which is that of sending."""

    def __init__(self) -> None:
        self.state = MonitorState.STOPPED
        # Taken from the front for ever: a plain dict would walk over its own holes each time.
        self._pending: OrderedDict[RequestId, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._pending

    @property
    def first_registered(self) -> RequestId | None:
        """The oldest pending append; None if none is pending."""
        return next(iter(self._pending), None)

    @property
    def last_registered(self) -> RequestId | None:
        """The youngest pending append; None if none is pending."""
        return next(reversed(self._pending), None)

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

    def register(self, request_id: RequestId, append: T) -> bool:
        """Add `append`; False if the same request ID is pending (CI-19).

        How many may be pending is the caller's to bound. Raises PartitionInactiveError,
        ClientClosedError.
        """
        if self.state is MonitorState.CLOSED:
            raise ClientClosedError(f"client closed; {request_id} was not sent")
        if self.state is MonitorState.STOPPED:
            raise PartitionInactiveError(f"partition {request_id.partition_id} is not active")
        if request_id in self._pending:
            return False
        self._pending[request_id] = append
        return True

    def commit(self, first: RequestId, count: int = 1) -> tuple[list[T], list[tuple[int, T]]]:
        """Take out what the feed has shown to be in the log, `count` requests from `first` on, and
        all that is older: that failed. Return what failed, and what is in the log with its place
        among these.

        What of them is not pending here is somebody else's and changes nothing (CI-16).
        """
        pending = self._pending
        sender, number = first[:3], first.sequence_number
        older: list[tuple[RequestId, T]] = []
        failed: list[T] = []
        committed: list[tuple[int, T]] = []
        for request_id, append in pending.items():
            place = request_id.sequence_number - number
            if place >= count:
                break
            if place < 0 or request_id[:3] != sender:
                older.append((request_id, append))
                continue
            failed += [each for _, each in older]
            older = []
            committed.append((place, append))
        for _ in range(len(failed) + len(committed)):
            pending.popitem(last=False)
        return failed, committed

    def abort(self, request_id: RequestId) -> T | None:
        """Take out one that was refused for a lock; None if it is not pending."""
        return self._pending.pop(request_id, None)

    def flush(self, request_id: RequestId) -> list[T]:
        """Take out all up to and including `request_id`: what was committed is gone already.

        The flushed append itself may have been decided meanwhile; the numbers of the requests
        tell which ones are older.
        """
        sequence_number = request_id.sequence_number
        failed = []
        for pending in list(self._pending):
            if pending.sequence_number > sequence_number:
                break
            failed.append(self._pending.pop(pending))
        return failed

    def check_invariants(self) -> None:
        numbers = [request_id.sequence_number for request_id in self._pending]
        assert numbers == sorted(set(numbers)), f"registered out of order: {numbers}"
        assert self.state is MonitorState.STARTED or not self._pending

    def _take_all(self) -> list[T]:
        taken = list(self._pending.values())
        self._pending.clear()
        return taken
