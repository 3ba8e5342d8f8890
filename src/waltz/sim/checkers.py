"""Judges of a finished run. They look at what users saw and at bytes on disks, at nothing else.

Each checker is a pure function from what was seen to a list of violations, each a line that names
the broken promise. Here a replica's files are read by code of their own, straight from the layout,
so that an error in the product's reader cannot hide itself.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final
from zlib import crc32

from waltz.sim.history import Fed, History, Payload
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

FILE_HEADER_BYTES: Final = 128
_RECORD: Final = struct.Struct(">q4iiiI")
_CHECKSUM: Final = struct.Struct(">I")

Log = Mapping[PartitionId, Sequence[Fed]]
"""Per partition what is in the log, as a client that read all of it from the start saw it."""


def check_users(history: History, log: Log) -> list[str]:
    """Everything that can be judged without looking at disks."""
    checks: Sequence[Callable[[History, Log], list[str]]] = (
        density, durability, verdicts, at_most_once, lost_updates,
    )  # fmt: skip
    return [violation for check in checks for violation in check(history, log)]


def density(history: History, log: Log) -> list[str]:
    """I4: IDs are dense from 0, and what every client was fed is exactly the log from 0 on."""
    violations = []
    for partition_id, records in log.items():
        ids = [record.transaction_id for record in records]
        if ids != list(range(len(ids))):
            violations.append(f"I4 density: partition {partition_id} has IDs {ids}")
    for client, feeds in history.feeds.items():
        for partition_id, fed in feeds.items():
            records = log.get(partition_id, ())
            for position, (seen, there) in enumerate(zip_longest(fed, records[: len(fed)])):
                if seen != there:
                    violations.append(
                        f"I4 feed: {client} was fed {_show(seen)} as transaction {position} of"
                        f" partition {partition_id}; the log has {_show(there)}"
                    )
                    break
    return violations


def durability(history: History, log: Log) -> list[str]:
    """I1: what was reported committed is in the log, with the bytes and the header written."""
    violations = []
    found = _attempts(log)
    for context, submission in history.submissions.items():
        if True not in submission.endings:
            continue
        records = found.get(context, [])
        if not records:
            violations.append(
                f"I1 durability: context {context} of {submission.client} was reported committed"
                f" in partition {submission.partition_id} and is not in the log"
            )
    for context, records in found.items():
        written = history.submissions[context].written if context in history.submissions else []
        for partition_id, record in records:
            if (record.header, record.data) not in written:
                violations.append(
                    f"I1 durability: {_show(record)} of partition {partition_id} is not what"
                    f" context {context} wrote"
                )
    return violations


def verdicts(history: History, log: Log) -> list[str]:
    """I5: every context ends exactly once, with "committed" if and only if it is in the log."""
    violations = []
    found = _attempts(log)
    for context, submission in history.submissions.items():
        name = f"context {context} of {submission.client}"
        count = len(found.get(context, ()))
        if len(submission.endings) != 1:
            violations.append(f"I5 verdict: {name} ended {len(submission.endings)} times")
        elif submission.endings[0] is False and count:
            violations.append(f"I5 verdict: {name} was reported not committed and is in the log")
        if count > 1:
            violations.append(f"I5 verdict: {name} is in the log {count} times")
        for partition_id, _ in found.get(context, ()):
            if partition_id != submission.partition_id:
                violations.append(f"I5 verdict: {name} went to partition {partition_id}")
    return violations


def at_most_once(history: History, log: Log) -> list[str]:
    """I6: one request ID appears at most once in the log."""
    violations = []
    seen: dict[RequestId, TransactionId] = {}
    for partition_id, records in log.items():
        for record in records:
            if record.request_id in seen:
                violations.append(
                    f"I6 at most once: {record.request_id} is transaction"
                    f" {seen[record.request_id]} and {record.transaction_id} of partition"
                    f" {partition_id}"
                )
            seen[record.request_id] = record.transaction_id
    return violations


def lost_updates(history: History, log: Log) -> list[str]:
    """I7: of writers of one key, each saw the one before. Only for payloads that count a key."""
    violations = []
    for partition_id, records in log.items():
        values: dict[int, int] = {}
        for record in records:
            payload = Payload.decode(record.data)
            if payload is None or payload.value == 0:
                continue
            expected = values.get(payload.key, 0) + 1
            if payload.value != expected:
                violations.append(
                    f"I7 lost update: transaction {record.transaction_id} of partition"
                    f" {partition_id} sets key {payload.key} to {payload.value}; expected"
                    f" {expected}"
                )
            values[payload.key] = payload.value
    return violations


def agreement(replicas: Mapping[str, Log], log: Log) -> list[str]:
    """I2 and I12: every replica holds the log, byte for byte."""
    violations = []
    for replica, partitions in replicas.items():
        for partition_id, records in log.items():
            held = partitions.get(partition_id, ())
            for record, there in zip_longest(records, held[: len(records)]):
                if record != there:
                    violations.append(
                        f"I2 agreement: {replica} holds {_show(there)} in partition"
                        f" {partition_id} where the log has {_show(record)}"
                    )
                    break
    return violations


def held_by_majority(history: History, replicas: Mapping[str, Log]) -> list[str]:
    """I1 on disks: what was reported committed lies on a majority of the replicas' disks now."""
    counts: Counter[int] = Counter()
    for log in replicas.values():
        counts.update(_attempts(log).keys())
    return [
        f"I1 durability: context {context} of {submission.client} was reported committed in"
        f" partition {submission.partition_id} and lies on {counts[context]} of"
        f" {len(replicas)} disks"
        for context, submission in history.submissions.items()
        if True in submission.endings and counts[context] <= len(replicas) // 2
    ]


def records_on_disk(files: Mapping[str, bytes]) -> list[Fed]:
    """Return the records in the segment files of one partition, given by name.

    Reading ends at the first record that is cut short, has an unexpected ID or a wrong checksum.
    Source: Waltz Internals, "Segment Data File".
    """
    records: list[Fed] = []
    for name in sorted(name for name in files if name.endswith(".seg")):
        if int(name.removesuffix(".seg")) != len(records):
            break
        records += _records_in(files[name], TransactionId(len(records)))
    return records


def _records_in(file: bytes, first: TransactionId) -> Iterator[Fed]:
    offset = FILE_HEADER_BYTES
    expected = int(first)
    while offset + _RECORD.size + _CHECKSUM.size <= len(file):
        found, client, generation, partition, sequence, header, length, checksum = (
            _RECORD.unpack_from(file, offset)
        )
        end = offset + _RECORD.size + length
        if found != expected or length < 0 or end + _CHECKSUM.size > len(file):
            return
        data = file[offset + _RECORD.size : end]
        if (crc32(file[offset:end]),) != _CHECKSUM.unpack_from(file, end) or crc32(
            data
        ) != checksum:
            return
        yield Fed(
            TransactionId(found),
            RequestId(ClientId(client), Generation(generation), PartitionId(partition), sequence),
            header,
            data,
        )
        offset = end + _CHECKSUM.size
        expected += 1


def _attempts(log: Log) -> dict[int, list[tuple[PartitionId, Fed]]]:
    """All records of workloads by context."""
    found: dict[int, list[tuple[PartitionId, Fed]]] = {}
    for partition_id, records in log.items():
        for record in records:
            payload = Payload.decode(record.data)
            if payload is not None:
                found.setdefault(payload.context, []).append((partition_id, record))
    return found


def _show(record: Fed | None) -> str:
    if record is None:
        return "nothing"
    payload = Payload.decode(record.data)
    what = (
        f"context {payload.context}.{payload.attempt}" if payload else f"{len(record.data)} bytes"
    )
    return f"transaction {record.transaction_id} ({what}, {tuple(record.request_id)})"
