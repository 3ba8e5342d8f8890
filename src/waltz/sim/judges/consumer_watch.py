"""Watches named consumers: what is kept of them, and what operators are told of their lag.

Owns the times of all commits, as seen by somebody who sees every server, and what was kept of each
consumer. A mark that is kept, or told to operators, is one that the consumer has applied; one that
is kept only grows; and a lag in seconds lies between the bounds that were told, whenever in the
time of the question it was looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from waltz.cluster.consumer_marks import KeptMark, decode_kept
from waltz.errors import RemoteProtocolError
from waltz.operators.client_questions_shell import Lag
from waltz.operators.named_consumers_shell import ConsumerPartition, ConsumersView
from waltz.server.clients.mounted_clients import CLIENTS_LOOK_SECONDS
from waltz.types import NOTHING, PartitionId, TransactionId

NARROW_SECONDS: Final = 1.0
"""The width up to which a lag is called narrow."""

TOLD_SECONDS: Final = 0.002
"""Times are told in milliseconds."""


class ConsumerWatch:
    """See the module. `applied` returns what the application of a consumer has applied by now;
    without `knows_times` clocks run at rates of their own, and no lag in seconds is judged."""

    def __init__(
        self,
        applied: Callable[[str], Mapping[PartitionId, TransactionId]],
        *,
        knows_times: bool = True,
    ) -> None:
        self.violations: list[str] = []
        self.kept_count = 0
        """Changes of what is kept that were seen."""
        self.told: Counter[str] = Counter()
        """Statements on lag that were judged, by the width of what was told."""
        self._applied = applied
        self._knows_times = knows_times
        self._marks: dict[PartitionId, list[TransactionId]] = {}
        self._times: dict[PartitionId, list[float]] = {}
        self._kept: dict[str, dict[PartitionId, KeptMark]] = {}
        self._versions: dict[str, int] = {}

    def see_commits(self, partition_id: PartitionId, mark: TransactionId, now: float) -> None:
        """A server knows that everything up to `mark` is committed."""
        marks = self._marks.setdefault(partition_id, [])
        if mark > (marks[-1] if marks else NOTHING):
            marks.append(mark)
            self._times.setdefault(partition_id, []).append(now)

    def see_node(self, name: str, data: bytes, version: int) -> None:
        """The coordinator has this node of a consumer."""
        if self._versions.get(name) == version:
            return
        self._versions[name] = version
        self.kept_count += 1
        try:
            found = decode_kept(data)
        except RemoteProtocolError as error:
            self.violations.append(f"consumers: the node of {name}: {error}")
            return
        for partition_id, mark in found.items():
            self._check_applied(name, partition_id, mark.transaction_id, "kept")
        for partition_id, before in self._kept.get(name, {}).items():
            if found.get(partition_id, (NOTHING,)) < (before.transaction_id,):
                self.violations.append(
                    f"consumers: what is kept of {name} in partition {partition_id} fell from"
                    f" {before.transaction_id}"
                )
        self._kept[name] = found

    def see_view(self, view: ConsumersView, asked_at: float, answered_at: float) -> None:
        """Operators were told this, and asked and got their answer at these times."""
        for consumer in view.consumers:
            for each in consumer.partitions:
                if consumer.name is not None and each.mark is not None:
                    self._check_applied(consumer.name, each.partition_id, each.mark, "told")
                    self._check_lag(consumer.name, each, each.mark, asked_at, answered_at)

    def _check_applied(
        self, name: str, partition_id: PartitionId, mark: TransactionId, what: str
    ) -> None:
        applied = self._applied(name).get(partition_id, NOTHING)
        if mark > applied:
            self.violations.append(
                f"consumers: {mark} is {what} as the mark of {name} in partition {partition_id},"
                f" which has applied {applied}"
            )

    def _check_lag(
        self,
        name: str,
        told: ConsumerPartition,
        mark: TransactionId,
        asked_at: float,
        answered_at: float,
    ) -> None:
        marks = self._marks.get(told.partition_id, [])
        end = told.high_water_mark
        if end is not None and end > (marks[-1] if marks else NOTHING):
            self.violations.append(
                f"consumers: {end} is told as the end of partition {told.partition_id}, which ends"
                f" with {marks[-1:]}"
            )
        lag = told.lag
        if lag is None:
            return
        place = bisect_left(marks, mark + 1)
        since = self._times[told.partition_id][place] if place < len(marks) else answered_at
        shortest = max(0.0, asked_at - CLIENTS_LOOK_SECONDS - since)
        longest = max(0.0, answered_at - since)
        least, most = lag.least_seconds, lag.most_seconds
        is_none = least < 0.0 or (most is not None and most < least)
        is_false = least > longest + TOLD_SECONDS or (
            most is not None and most < shortest - TOLD_SECONDS
        )
        if place == len(marks):
            is_none, is_false = (least, most) != (0.0, 0.0), False
        self.told[_width(lag) if told.is_current else "away"] += 1
        if is_none or (is_false and self._knows_times):
            self.violations.append(
                f"consumers: {name} is said to lag {least} to {most} s in"
                f" partition {told.partition_id}; it lagged {shortest:.3f} to {longest:.3f} s"
            )


def _width(lag: Lag) -> str:
    if lag.most_seconds is None:
        return "no upper bound"
    width = lag.most_seconds - lag.least_seconds
    return "narrow" if 0.0 <= width <= NARROW_SECONDS else "wide"
