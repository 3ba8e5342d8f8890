"""Judges schedules by what their clients wrote down and by what a reader found in the log.

The judges are those of the simulator; they get one schedule at a time with the records that came
while it ran, so that a failure names its schedule, and all of them in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from waltz.sim.judges.checkers import (
    Log,
    at_most_once,
    check_users,
    durability,
    outcomes,
    show,
    verdicts,
)
from waltz.sim.judges.history import Ending, Fed, History, OutcomeTold, Submission, Verdict
from waltz.sim.judges.payload import Payload
from waltz.types import ClientId, Generation, PartitionId, RequestId

Reports = Mapping[str, Mapping[str, Any]]
"""By client, what it has printed about one schedule."""


@dataclass
class Ledger:
    """Everything that was seen of one cluster, schedule after schedule."""

    history: History = field(default_factory=History)
    log: dict[PartitionId, list[Fed]] = field(default_factory=dict)
    verdicts: Counter[str] = field(default_factory=Counter)
    contexts: int = 0
    outcomes: int = 0
    committed: list[tuple[str, RequestId, int]] = field(default_factory=list)
    """Who may be asked about: of which client, the request, and the mark behind which it is."""
    _there: dict[RequestId, Fed] = field(default_factory=dict)
    """Everything in the log."""

    def judge_schedule(self, reports: Reports, records: Log) -> list[str]:
        """Judge what happened in one schedule; `records` came into the log meanwhile."""
        history = history_of(reports)
        again = self._again(records)
        self._keep(history, reports, records)
        asked: dict[PartitionId, list[Fed]] = {}
        for request_id in {told.request_id for told in history.outcomes}:
            if request_id in self._there:
                asked.setdefault(request_id.partition_id, []).append(self._there[request_id])
        return [
            *again,
            *durability(history, records),
            *verdicts(history, records),
            *at_most_once(history, records),
            *outcomes(history, asked),
            *places(reports, records),
            *complaints(reports),
        ]

    def judge_all(self) -> list[str]:
        """Judge everything together."""
        return check_users(self.history, self.log)

    def _again(self, records: Log) -> list[str]:
        """What was in the log before this schedule, and came into it once more."""
        return [
            f"I6 at most once: {show(record)} of partition {partition} is"
            f" {show(self._there[record.request_id])} as well"
            for partition, found in records.items()
            for record in found
            if record.request_id in self._there
        ]

    def _keep(self, history: History, reports: Reports, records: Log) -> None:
        self.history.submissions.update(history.submissions)
        self.history.outcomes += history.outcomes
        for partition, found in records.items():
            self.log.setdefault(partition, []).extend(found)
        self.contexts += len(history.submissions)
        self.outcomes += len(history.outcomes)
        self.verdicts.update(
            ending.verdict.name for each in history.submissions.values() for ending in each.endings
        )
        there = {record.request_id: record for found in records.values() for record in found}
        self._there |= there
        for client, report in reports.items():
            for context in report["contexts"]:
                for request, after in context["requests"]:
                    if request_of(request) in there:
                        self.committed.append((client, request_of(request), after))


def history_of(reports: Reports) -> History:
    history = History()
    for client, report in reports.items():
        for context in report["contexts"]:
            history.submissions[context["number"]] = Submission(
                client,
                PartitionId(context["partition"]),
                0,
                [(0, bytes.fromhex(data)) for data in context["written"]],
                [Ending(Verdict[name], 0) for name in context["endings"]],
            )
        history.outcomes += [
            OutcomeTold(client, request_of(request), found) for request, found in report["outcomes"]
        ]
    return history


def request_of(values: Sequence[int]) -> RequestId:
    client, generation, partition, number = values
    return RequestId(ClientId(client), Generation(generation), PartitionId(partition), number)


def places(reports: Reports, records: Log) -> Iterator[str]:
    """What `append` has returned is where the transaction is."""
    found = {
        (Payload.context_of(record.data), partition): record.transaction_id
        for partition, fed in records.items()
        for record in fed
    }
    for client, report in reports.items():
        for context in report["contexts"]:
            place = found.get((context["number"], context["partition"]))
            if context["place"] is not None and context["place"] != place:
                yield (
                    f"place: context {context['number']} of {client} was told transaction"
                    f" {context['place']}; it is {place}"
                )


def complaints(reports: Reports) -> Iterator[str]:
    for client, report in reports.items():
        for kind in ("gaps", "errors"):
            for each in report[kind]:
                yield f"{kind}: {client}: {each}"
