"""Judges cuts by what users were shown, and when: the product's marks are not asked.

A cut is closed if, for each transaction within it, everything that anybody had been shown before
the transaction was executed is within it as well. That is more than causality asks for: users may
have told each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from waltz.sim.judges.history import FedRecord, History
from waltz.sim.judges.payload import EntryKind, Payload
from waltz.types import NOTHING, PartitionId, TransactionId

Marks = Mapping[PartitionId, TransactionId]

REFERENCE: Final = 255
"""The key under which a credit names its debit; see `applications/transfers.py`."""


def check_cuts(
    cuts: Sequence[Marks], history: History, log: Mapping[PartitionId, Sequence[FedRecord]]
) -> list[str]:
    """Return what is wrong with these cuts; `log` is what a client was fed that read all of it."""
    return [
        f"cuts: {violation}, cut {dict(marks)}"
        for marks in cuts
        for check in (_complete, _closed, _balanced)
        for violation in check(marks, history, log)
    ]


def _complete(
    marks: Marks, history: History, log: Mapping[PartitionId, Sequence[FedRecord]]
) -> Iterator[str]:
    for partition_id, mark in marks.items():
        if not NOTHING <= mark < len(log.get(partition_id, ())):
            end = len(log.get(partition_id, ())) - 1
            yield f"{mark} is none of partition {partition_id}, whose last transaction is {end}"


def _closed(
    marks: Marks, history: History, log: Mapping[PartitionId, Sequence[FedRecord]]
) -> Iterator[str]:
    for partition_id, record, payload in _within(marks, log):
        submission = history.submissions.get(payload.context)
        if submission is None:
            continue
        for other, shown in submission.based_on[payload.attempt - 1].items():
            if other not in marks or shown > marks[other]:
                yield (
                    f"transaction {record.transaction_id} of partition {partition_id} was executed"
                    f" after transaction {shown} of partition {other} had been shown"
                )


def _balanced(
    marks: Marks, history: History, log: Mapping[PartitionId, Sequence[FedRecord]]
) -> Iterator[str]:
    """No credit without its debit, so that no money is made: what is missing is under way."""
    debits: dict[int, int] = {}
    credits_: list[tuple[str, int, int]] = []
    for partition_id, record, payload in _within(marks, log):
        entries = dict(payload.entries)
        if payload.kind is EntryKind.DEBIT:
            entries.pop(REFERENCE)
            debits[payload.context] = sum(entries.values())
        elif payload.kind is EntryKind.CREDIT:
            debit = entries.pop(REFERENCE)
            where = f"transaction {record.transaction_id} of partition {partition_id}"
            credits_.append((where, debit, sum(entries.values())))
    for where, debit, amount in credits_:
        if debits.pop(debit, None) != amount:
            yield f"{where} credits {amount}, and its debit, context {debit}, is not there"


def _within(
    marks: Marks, log: Mapping[PartitionId, Sequence[FedRecord]]
) -> Iterator[tuple[PartitionId, FedRecord, Payload]]:
    for partition_id, mark in marks.items():
        for record in log.get(partition_id, ())[: mark + 1]:
            payload = Payload.decode(record.data)
            if payload is not None:
                yield partition_id, record, payload
