"""Judges a run by what its clients wrote down and by what a reader found in the log at the end.

The judges are those of the simulator; they get one partition at a time, so that a run may be long.
Promises that only a run of processes makes are judged here.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from zlib import crc32

from tests.live.journal import (
    Event,
    Step,
    decode_request,
    encode_fed,
    event_path,
    fed_path,
    read_all,
    read_events,
    read_fed,
    verdict_of,
)
from tests.storage.independent_reader import parse_directory, read_files
from waltz import LogReader, open_reader
from waltz.record import request_id_from
from waltz.sim.judges.anomalies import check_anomalies
from waltz.sim.judges.checkers import Log, check_users, show
from waltz.sim.judges.history import Ending, FedRecord, History, OutcomeTold, SubmittedContext
from waltz.sim.judges.payload import Payload
from waltz.types import PartitionId, RequestId, TransactionId

LOG = "log"
"""Under this name lies what the reader found."""

READERS = 4
"""Partitions read at a time."""

Checksums = Mapping[str, Sequence[int]]
"""Per consumer what it had summed up of each partition, while it was handed over."""


@dataclass
class Judgement:
    """The result of judging one partition, or all of them."""

    violations: list[str] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    transactions: int = 0
    checksums: dict[int, int] = field(default_factory=dict)
    """Per partition, the checksum of the log."""

    def add(self, other: Judgement) -> None:
        self.violations += other.violations
        self.verdicts += other.verdicts
        self.attempts += other.attempts
        self.transactions += other.transactions
        self.checksums |= other.checksums


@dataclass
class Account:
    """The contexts, requests and outcomes of journals, put together."""

    history: History = field(default_factory=History)
    attempts: int = 0
    places: dict[int, int] = field(default_factory=dict)
    """By context, the transaction ID that `append` has returned."""
    requests: list[tuple[str, RequestId, int]] = field(default_factory=list)
    """Client, request of an attempt, and the transaction behind which it may be in the log."""
    late: list[str] = field(default_factory=list)
    """Violations: endings of contexts that were in an earlier account."""

    def add(self, client: str, partition: PartitionId, events: Iterable[Event]) -> None:
        submissions = self.history.submissions
        for step, context, moment, detail, data in events:
            match step:
                case Step.SUBMITTED:
                    submissions[context] = SubmittedContext(client, partition, moment)
                case Step.ATTEMPTED:
                    self.attempts += 1
                    submissions[context].written.append((detail, data))
                case Step.ENDED if context not in submissions:
                    self.late.append(f"I5 verdict: context {context} of {client} ended once more")
                case Step.ENDED:
                    submissions[context].endings.append(Ending(verdict_of(detail), moment))
                case Step.PLACED:
                    self.places[context] = int(data)
                case Step.REQUESTED:
                    self.requests.append((client, *decode_request(data)))
                case Step.ASKED:
                    request_id, found = decode_request(data)
                    place = None if found < 0 else TransactionId(found)
                    self.history.outcomes.append(OutcomeTold(client, request_id, place))

    @property
    def verdicts(self) -> Counter[str]:
        """Return how often contexts have ended with each verdict."""
        submissions = self.history.submissions.values()
        return Counter(ending.verdict.name for each in submissions for ending in each.endings)

    def wrong_places(self, log: Log) -> Iterator[str]:
        """Yield appends that returned another ID than that of their transaction."""
        found = {
            (Payload.context_of(record.data), partition): record.transaction_id
            for partition, records in log.items()
            for record in records
        }
        for context, told in self.places.items():
            submission = self.history.submissions[context]
            place = found.get((context, submission.partition_id))
            if told != place:
                yield (
                    f"place: context {context} of {submission.client} was told transaction {told};"
                    f" it is {place}"
                )


def read_replica(storage: Path, directory: Path) -> None:
    """Write down, under the name of the storage directory, all records that are in its files.

    The files are read by a program of our own that shares no code with the product. Raises
    AssertionError, struct.error: a byte is not what the format says.
    """
    found = parse_directory(read_files(storage))
    for number in found.partitions:
        records = (
            FedRecord(
                TransactionId(each.transaction_id),
                request_id_from(each.request_id),
                each.header,
                each.data,
            )
            for each in found.records(number)
        )
        fed_path(directory, storage.name, number).write_bytes(encode_fed(records))


def read_marks(coordinator: str, seconds_max: float) -> list[int]:
    with open_reader(coordinator, timeout_seconds=seconds_max) as log:
        return [log.high_water_mark(number) for number in range(log.partition_count)]


def read_log(coordinator: str, directory: Path, seconds_max: float) -> None:
    """Write down all that a reader finds in the log; `seconds_max` is for it without progress."""

    def read(log: LogReader, partition: int) -> None:
        fed_path(directory, LOG, partition).write_bytes(encode_fed(read_all(log, partition)))

    with (
        open_reader(coordinator, timeout_seconds=seconds_max) as log,
        ThreadPoolExecutor(READERS) as pool,
    ):
        for _ in pool.map(partial(read, log), range(log.partition_count)):
            pass


def judge(
    directory: Path, partitions: int, checksums: Checksums, replicas: Sequence[str] = ()
) -> Judgement:
    """Judge all partitions, on all cores."""
    found = Judgement()
    work = partial(judge_partition, directory, checksums, replicas)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for each in pool.map(work, range(partitions)):
            found.add(each)
    return found


def judge_partition(
    directory: Path, checksums: Checksums, replicas: Sequence[str], partition_id: int
) -> Judgement:
    """Judge one partition by the files in `directory`; `checksums` names the clients, `replicas`
    the storage nodes that hold the partition."""
    partition = PartitionId(partition_id)
    records = list(read_fed(fed_path(directory, LOG, partition_id)))
    account = Account()
    history = account.history
    for client in checksums:
        account.add(client, partition, read_events(event_path(directory, client, partition)))
        history.feeds[client] = {partition: list(read_fed(fed_path(directory, client, partition)))}
    log: Log = {partition: records}
    checksum = crc32(encode_fed(records))
    violations = [
        *check_users(history, log),
        *check_anomalies(history),
        *account.late,
        *account.wrong_places(log),
        *strangers(records, partition),
        *completeness(history, records, partition),
        *(
            violation
            for name in replicas
            for violation in judge_replica(
                name, list(read_fed(fed_path(directory, name, partition))), records, partition
            )
        ),
        *(
            f"checksum: {client} has {summed[partition]:08x} for partition {partition},"
            f" the log has {checksum:08x}"
            for client, summed in checksums.items()
            if summed[partition] != checksum
        ),
    ]
    return Judgement(
        violations, account.verdicts, account.attempts, len(records), {partition_id: checksum}
    )


def strangers(records: Sequence[FedRecord], partition: PartitionId) -> Iterator[str]:
    """Yield transactions that no client has written."""
    for record in records:
        if Payload.context_of(record.data) is None:
            yield f"stranger: no client has written {show(record)} of partition {partition}"


def completeness(
    history: History, records: Sequence[FedRecord], partition: PartitionId
) -> list[str]:
    """Return the clients that were not handed all that is in the log."""
    return [
        f"incomplete: {client} was handed {len(feeds[partition])} of {len(records)} transactions"
        f" of partition {partition}"
        for client, feeds in history.feeds.items()
        if len(feeds[partition]) != len(records)
    ]


def judge_replica(
    name: str, held: Sequence[FedRecord], records: Sequence[FedRecord], partition: PartitionId
) -> Iterator[str]:
    """Yield a violation unless the replica holds exactly the log."""
    if held != records:
        pairs = enumerate(zip(held, records, strict=False))
        differing = next((number for number, (a, b) in pairs if a != b), None)
        yield (
            f"replica: {name} holds {len(held)} transactions of partition {partition}, the log has"
            f" {len(records)}; the first that differs: {differing}"
        )


OPENED: Final = re.compile(r"partition_opened partition=(\d+) generation=(\d+)")
SESSION: Final = re.compile(r"store_opened partition=(\d+) session=(\d+) mark=(-?\d+)")


def judge_servers(logs: Mapping[str, str]) -> Iterator[str]:
    """Yield generations and sessions of a partition that two servers have opened, and sessions that
    start before the mark of an earlier one."""
    owners: dict[tuple[str, str], set[str]] = {}
    sessions: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for server, text in logs.items():
        for partition, generation in OPENED.findall(text):
            owners.setdefault((partition, generation), set()).add(server)
        for found, session, mark in SESSION.findall(text):
            sessions.setdefault((int(found), int(session)), []).append((server, int(mark)))
    for (partition, generation), names in owners.items():
        if len(names) > 1:
            yield f"generation {generation} of partition {partition} was {sorted(names)}'s"
    marks: dict[int, int] = {}
    for (number, session_id), opened in sorted(sessions.items()):
        if len(opened) > 1:
            yield f"session {session_id} of partition {number} was opened {len(opened)} times"
        mark = opened[0][1]
        if mark < marks.get(number, -1):
            yield f"session {session_id} of {number} began at {mark}, behind {marks[number]}"
        marks[number] = max(mark, marks.get(number, -1))
