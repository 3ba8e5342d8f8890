"""Judges schedules by what their clients wrote down and by what a reader found in the log.

The judges are those of the simulator; they get one schedule at a time with the records that came
while it ran, so that a failure names its schedule, and all of them in the end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.live.judge import Account
from waltz.sim.judges.checkers import (
    Log,
    at_most_once,
    check_users,
    durability,
    outcomes,
    show,
    verdicts,
)
from waltz.sim.judges.history import FedRecord, History
from waltz.types import PartitionId, RequestId


@dataclass
class Ledger:
    """Everything that was seen of one cluster, schedule after schedule."""

    history: History = field(default_factory=History)
    log: dict[PartitionId, list[FedRecord]] = field(default_factory=dict)
    verdicts: Counter[str] = field(default_factory=Counter)
    committed: list[tuple[str, RequestId, int]] = field(default_factory=list)
    """Requests that may be asked about: their client, and the mark behind which each is."""
    _there: dict[RequestId, FedRecord] = field(default_factory=dict)
    """Everything in the log."""

    @property
    def contexts(self) -> int:
        return len(self.history.submissions)

    def judge_schedule(self, account: Account, records: Log) -> list[str]:
        """Judge what happened in one schedule; `records` came into the log meanwhile."""
        history = account.history
        again = self._again(records)
        self._keep(account, records)
        asked: dict[PartitionId, list[FedRecord]] = {}
        for request_id in {told.request_id for told in history.outcomes}:
            if request_id in self._there:
                asked.setdefault(request_id.partition_id, []).append(self._there[request_id])
        return [
            *again,
            *account.late,
            *durability(history, records),
            *verdicts(history, records),
            *at_most_once(history, records),
            *outcomes(history, asked),
            *account.wrong_places(records),
        ]

    def judge_all(self) -> list[str]:
        """Judge everything together."""
        return check_users(self.history, self.log)

    def _again(self, records: Log) -> list[str]:
        """Return what was in the log before this schedule, and came into it once more."""
        return [
            f"I6 at most once: {show(record)} of partition {partition} is"
            f" {show(self._there[record.request_id])} as well"
            for partition, found in records.items()
            for record in found
            if record.request_id in self._there
        ]

    def _keep(self, account: Account, records: Log) -> None:
        self.history.submissions.update(account.history.submissions)
        self.history.outcomes += account.history.outcomes
        self.verdicts += account.verdicts
        for partition, found in records.items():
            self.log.setdefault(partition, []).extend(found)
        there = {record.request_id: record for found in records.values() for record in found}
        self._there |= there
        self.committed += [each for each in account.requests if each[1] in there]
