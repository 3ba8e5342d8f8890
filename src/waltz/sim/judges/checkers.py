"""Judges of a finished run. They look at what users were told and fed, at nothing else.

Each checker is a pure function from the history to a list of violations, each a line that names the
broken promise. `log` is what a client that read everything at the end was fed; `replicas.py` judges
what is on disks, and `anomalies.py` compares followers with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

from waltz.sim.judges.history import ContextVerdict, FedRecord, History
from waltz.sim.judges.payload import Accounts, EntryKind, Payload
from waltz.types import PartitionId, RequestId, TransactionId

Log = Mapping[PartitionId, Sequence[FedRecord]]
"""Per partition the transactions of the log, as a client saw them that read all of it from the
start."""


def check_users(history: History, log: Log) -> list[str]:
    """Everything that can be judged without looking at disks."""
    checks: Sequence[Callable[[History, Log], list[str]]] = (
        density, durability, verdicts, at_most_once, lock_safety, lock_progress, counters, money,
        outcomes,
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
                        f"I4 feed: {client} was fed {show(seen)} as transaction {position} of"
                        f" partition {partition_id}; the log has {show(there)}"
                    )
                    break
    return violations


def durability(history: History, log: Log) -> list[str]:
    """I1: a context reported committed is in the log, with the bytes and the header written."""
    violations = []
    found = attempts(log)
    for context, submission in history.submissions.items():
        if submission.has_ended(ContextVerdict.COMMITTED) and context not in found:
            violations.append(
                f"I1 durability: context {context} of {submission.client} was reported committed"
                f" in partition {submission.partition_id} and is not in the log"
            )
    for context, records in found.items():
        written = history.submissions[context].written if context in history.submissions else []
        for partition_id, record in records:
            if (record.header, record.data) not in written:
                violations.append(
                    f"I1 durability: {show(record)} of partition {partition_id} is not what"
                    f" context {context} wrote"
                )
    return violations


def verdicts(history: History, log: Log) -> list[str]:
    """I5: every context ends exactly once; none that was reported not to be in the log is in it,
    and none is in it twice."""
    violations = []
    found = attempts(log)
    for context, submission in history.submissions.items():
        name = f"context {context} of {submission.client}"
        count = len(found.get(context, ()))
        if len(submission.endings) != 1:
            violations.append(f"I5 verdict: {name} ended {len(submission.endings)} times")
        for ending in submission.endings:
            if ending.verdict.denies and count:
                violations.append(
                    f"I5 verdict: {name} was told {ending.verdict.value!r} and is in the log"
                    f" {ending.text}"
                )
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


def outcomes(history: History, log: Log) -> list[str]:
    """I13: the answer to a question about an append is what the log holds at the end."""
    there = {
        record.request_id: record.transaction_id for records in log.values() for record in records
    }
    return [
        f"I13 outcome: {told.client} was told that {tuple(told.request_id)} is"
        f" {_place(told.transaction_id)}; in the end it is {_place(there.get(told.request_id))}"
        for told in history.outcomes
        if told.transaction_id != there.get(told.request_id)
    ]


def _place(transaction_id: TransactionId | None) -> str:
    return "not in the log" if transaction_id is None else f"transaction {transaction_id}"


def lock_safety(history: History, log: Log) -> list[str]:
    """I7: no transaction that took one of a transaction's locks lies between the mark that this one
    was based on and itself."""
    violations = []
    for partition_id, records in log.items():
        newest: dict[int, TransactionId] = {}
        for record, payload in _payloads(records):
            for key in (*payload.write_locks, *payload.read_locks):
                if newest.get(key, payload.mark) > payload.mark:
                    violations.append(
                        f"I7 lock safety: {show(record)} of partition {partition_id} was based on"
                        f" transaction {payload.mark}; lock {key} was taken by transaction"
                        f" {newest[key]}"
                    )
            newest.update(dict.fromkeys(payload.keys_changed, record.transaction_id))
    return violations


def lock_progress(history: History, log: Log) -> list[str]:
    """I8: a lock is refused only for a transaction that the client had not applied."""
    violations = []
    for context, submission in history.submissions.items():
        last = len(log.get(submission.partition_id, ())) - 1
        for refusal in submission.refusals:
            if not refusal.mark < refusal.estimate <= last:
                violations.append(
                    f"I8 lock progress: context {context} of {submission.client}, based on"
                    f" transaction {refusal.mark}, was refused for transaction"
                    f" {refusal.estimate} of partition {submission.partition_id}, whose last is"
                    f" {last}"
                )
    return violations


def counters(history: History, log: Log) -> list[str]:
    """I7: of writers that count a key up, each saw the one before."""
    violations = []
    for partition_id, records in log.items():
        values: dict[int, int] = {}
        for record, payload in _payloads(records):
            if payload.kind is not EntryKind.COUNT:
                continue
            for key, value in payload.entries:
                expected = values.get(key, 0) + 1
                if value != expected:
                    violations.append(
                        f"I7 lost update: {show(record)} of partition {partition_id} sets key"
                        f" {key} to {value}; expected {expected}"
                    )
                values[key] = value
    return violations


def money(history: History, log: Log) -> list[str]:
    """I7: a transfer changes the sum of no partition's accounts and overdraws none, and an audit
    saw the true balances."""
    violations = []
    for partition_id, records in log.items():
        accounts = Accounts()
        for record, payload in _payloads(records):
            where = f"{show(record)} of partition {partition_id}"
            before = {account: accounts.balance(account) for account, _ in payload.entries}
            after = dict(payload.entries)
            if payload.kind is EntryKind.TRANSFER and (
                sum(before.values()) != sum(after.values()) or min(after.values()) < 0
            ):
                violations.append(f"I7 money: {where} turns {before} into {after}")
            if payload.kind is EntryKind.AUDIT and before != after:
                violations.append(f"I7 money: {where} saw {after}; there was {before}")
            accounts.apply(payload)
    return violations


def attempts(log: Log) -> dict[int, list[tuple[PartitionId, FedRecord]]]:
    """Return all records of workloads by context."""
    found: dict[int, list[tuple[PartitionId, FedRecord]]] = {}
    for partition_id, records in log.items():
        for record in records:
            context = Payload.context_of(record.data)
            if context is not None:
                found.setdefault(context, []).append((partition_id, record))
    return found


def _payloads(records: Sequence[FedRecord]) -> Iterator[tuple[FedRecord, Payload]]:
    for record in records:
        payload = Payload.decode(record.data)
        if payload is not None:
            yield record, payload


def show(record: FedRecord | None) -> str:
    if record is None:
        return "nothing"
    payload = Payload.decode(record.data)
    what = (
        f"context {payload.context}.{payload.attempt}" if payload else f"{len(record.data)} bytes"
    )
    return f"transaction {record.transaction_id} ({what}, {tuple(record.request_id)})"
