"""The durations of the stages of appends, and the times of arrival that they are measured from.

Owns both. One duration per batch and stage: a batch is the appends that the store was given
together, and its clock is read at its steps, never for one append.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from waltz.figures import Durations


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """The durations of the stages of one partition's batches.

    wait   from the arrival of the batch's oldest append until the store was given the batch
    store  from then until the batch was committed; batches that failed are left out
    feed   from a commit until it was written to the clients that wait for it and take more
    """

    wait: Durations = field(default_factory=Durations)
    store: Durations = field(default_factory=Durations)
    feed: Durations = field(default_factory=Durations)


class ArrivalTimes:
    """The times of arrival of messages whose appends have not all gone to the store."""

    def __init__(self) -> None:
        self._lasts: list[int] = []
        """The last arrival of each message, which ascend."""
        self._times: list[float] = []

    def add(self, last: int, now: float) -> None:
        """A message has come whose last append is the arrival `last`."""
        self._lasts.append(last)
        self._times.append(now)

    def find(self, arrival: int) -> float:
        """Return the time of an arrival that is not forgotten."""
        if len(self._times) == 1:  # mostly
            return self._times[0]
        return self._times[bisect_left(self._lasts, arrival)]

    def forget_before(self, oldest: int) -> None:
        """All appends that arrived before `oldest` have gone on."""
        gone = bisect_left(self._lasts, oldest)
        del self._lasts[:gone], self._times[:gone]

    def forget_all(self) -> None:
        """All appends that have arrived have gone on."""
        self._lasts.clear()
        self._times.clear()
