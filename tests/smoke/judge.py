"""Judges a run by what its clients wrote down and by what a reader found in the log at the end.

The judges are those of the simulator; here they get one partition at a time, so that a run may be
long. What only a run of processes has to promise besides stands in `completeness`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from zlib import crc32

from tests.smoke.journal import (
    Step,
    encode_fed,
    event_path,
    fed_path,
    read_events,
    read_fed,
    verdict_of,
)
from waltz.sim.judges.anomalies import check_anomalies
from waltz.sim.judges.checkers import Log, check_users
from waltz.sim.judges.history import Ending, Fed, History, Submission
from waltz.types import PartitionId

LOG = "log"
"""Under this name lies what the reader found."""

Checksums = Mapping[str, Sequence[int]]
"""Per consumer what it had summed up of each partition, while it was handed over."""


@dataclass
class Judgement:
    """What one partition, or all of them, came to."""

    violations: list[str] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    transactions: int = 0
    checksums: dict[int, int] = field(default_factory=dict)
    """Of the log, per partition."""

    def add(self, other: Judgement) -> None:
        self.violations += other.violations
        self.verdicts += other.verdicts
        self.attempts += other.attempts
        self.transactions += other.transactions
        self.checksums |= other.checksums


def judge(directory: Path, partitions: int, checksums: Checksums) -> Judgement:
    """Judge all partitions, on all cores."""
    found = Judgement()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for each in pool.map(partial(judge_partition, directory, checksums), range(partitions)):
            found.add(each)
    return found


def judge_partition(directory: Path, checksums: Checksums, partition_id: int) -> Judgement:
    """Judge one partition by the files in `directory`; `checksums` names the clients."""
    partition = PartitionId(partition_id)
    records = list(read_fed(fed_path(directory, LOG, partition_id)))
    history = History()
    attempts = 0
    for client in checksums:
        attempts += read_contexts(history, directory, client, partition)
        history.feeds[client] = {partition: list(read_fed(fed_path(directory, client, partition)))}
    log: Log = {partition: records}
    checksum = crc32(encode_fed(records))
    violations = [
        *check_users(history, log),
        *check_anomalies(history),
        *completeness(history, records, partition),
        *(
            f"checksum: {client} has {summed[partition]:08x} for partition {partition},"
            f" the log has {checksum:08x}"
            for client, summed in checksums.items()
            if summed[partition] != checksum
        ),
    ]
    return Judgement(
        violations,
        Counter(e.verdict.name for s in history.submissions.values() for e in s.endings),
        attempts,
        len(records),
        {partition_id: checksum},
    )


def read_contexts(history: History, directory: Path, client: str, partition: PartitionId) -> int:
    """Add a client's contexts to `history`; return how often one was attempted."""
    attempts = 0
    for event in read_events(event_path(directory, client, partition)):
        match event.step:
            case Step.SUBMITTED:
                history.submissions[event.context] = Submission(client, partition, event.moment)
            case Step.ATTEMPTED:
                attempts += 1
                written = history.submissions[event.context].written
                written.append((event.detail, event.data))
            case Step.ENDED:
                ending = Ending(verdict_of(event), event.moment)
                history.submissions[event.context].endings.append(ending)
    return attempts


def completeness(history: History, records: Sequence[Fed], partition: PartitionId) -> list[str]:
    """Every client was handed all that is in the log."""
    return [
        f"incomplete: {client} was handed {len(feeds[partition])} of {len(records)} transactions"
        f" of partition {partition}"
        for client, feeds in history.feeds.items()
        if len(feeds[partition]) != len(records)
    ]
