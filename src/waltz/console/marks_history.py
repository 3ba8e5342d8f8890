"""The high-water marks of the last minutes, and the commits per second that follow from them.

A rate is the difference of two marks that servers have told, over the time between the two answers.
It is kept while somebody looks, and begins anew after a pause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from waltz.types import PartitionId, TransactionId

SAMPLES_MAX: Final = 300
"""Samples of one partition; the oldest ones are forgotten."""

ALL_SAMPLES_MAX: Final = 1_000_000
"""Samples of all partitions together: a cluster with more partitions has shorter histories."""

RATE_SECONDS: Final = 4.0
"""A rate is the mean of about this many seconds."""

PAUSE_SECONDS_MAX: Final = 30.0
"""Two samples that are further apart do not belong together."""

Points: TypeAlias = Sequence[tuple[float, float]]
"""Pairs of a time and a rate."""


class MarksHistory:
    """The marks of each partition, as (time, mark)."""

    def __init__(self) -> None:
        self._samples: dict[PartitionId, deque[tuple[float, TransactionId]]] = {}
        self._total: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)

    def note(self, now: float, marks: Mapping[PartitionId, TransactionId], count: int) -> None:
        """Take in the marks of one answer, given at `now`; the cluster has `count` partitions."""
        length = max(2, min(SAMPLES_MAX, ALL_SAMPLES_MAX // max(1, count)))
        for partition_id, mark in marks.items():
            samples = self._samples.get(partition_id)
            if samples is None:
                samples = self._samples[partition_id] = deque(maxlen=length)
            if samples and not 0 <= now - samples[-1][0] <= PAUSE_SECONDS_MAX:
                samples.clear()
            if samples and mark < samples[-1][1]:
                samples.clear()  # another cluster, or a server that does not know the newest
            samples.append((now, mark))

    def rates(self, now: float) -> dict[PartitionId, float]:
        """Return the commits per second of each partition with two recent marks."""
        found = {}
        for partition_id, samples in self._samples.items():
            if now - samples[-1][0] > PAUSE_SECONDS_MAX:
                continue
            first = next(
                (each for each in samples if samples[-1][0] - each[0] <= RATE_SECONDS), samples[-1]
            )
            if (rate := _rate(first, samples[-1])) is not None:
                found[partition_id] = rate
        return found

    def note_total(self, now: float, rate: float | None) -> None:
        """Take in the commits per second of the whole cluster; None: not known."""
        if self._total and now - self._total[-1][0] > PAUSE_SECONDS_MAX:
            self._total.clear()
        if rate is not None:
            self._total.append((now, rate))

    def total(self) -> Points:
        return list(self._total)

    def series(self, partition_id: int) -> Points:
        """Return the rates of a partition, each at the time of its second mark."""
        samples = list(self._samples.get(PartitionId(partition_id), ()))
        return [(b[0], rate) for a, b in pairwise(samples) if (rate := _rate(a, b)) is not None]


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float | None:
    seconds = last[0] - first[0]
    return (last[1] - first[1]) / seconds if seconds > 0 else None
