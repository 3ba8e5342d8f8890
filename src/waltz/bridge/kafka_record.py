"""The records of a bridge to Kafka: what a transaction becomes, and how many make a Kafka
transaction.

Owns the format, which docs/bridge-kafka.md documents.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final
from uuid import UUID

from waltz import TransactionColumns
from waltz.envelope import payload

REQUEST_ID: Final = struct.Struct(">4i")

RECORD_BYTES: Final = 512
"""Room for what a record and its batch have besides key and value: headers, lengths, times."""

RUN_TRANSACTIONS_MAX: Final = 100_000
"""Transactions of the log that one Kafka transaction passes over, taken or left out."""


class RecordKey(Enum):
    """The key of a record.

    NONE         none.
    TRANSACTION  `partition:id`, which names the transaction within its cluster.
    """

    NONE = "none"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class Record:
    """A transaction as it goes to Kafka."""

    transaction_id: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]

    @property
    def size(self) -> int:
        """Return at least the bytes that Kafka counts, if it does not compress."""
        return len(self.value) + len(self.key or b"") + RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Run:
    """The records of one Kafka transaction. All transactions up to `last` are in `records`, or are
    left out."""

    records: tuple[Record, ...]
    last: int


@dataclass(frozen=True, slots=True)
class RunChoice:
    """The rule of what goes into one Kafka transaction. `only`: the headers that are wanted; None:
    all."""

    count_max: int
    bytes_max: int
    only: frozenset[int] | None
    key: RecordKey

    def run(
        self,
        partition_id: int,
        columns: TransactionColumns,
        first: int,
        count_max: int,
        history: UUID,
        record_bytes_max: int,
    ) -> Run:
        """Return what comes next of `columns`, which have `first`: at most `count_max`
        transactions, and `bytes_max` unless a single one has more. One of more than
        `record_bytes_max` bytes is alone, so that it holds up nothing before it."""
        records: list[Record] = []
        size, last = 0, first - 1
        start = first - columns.first_transaction_id
        for index in range(start, min(len(columns), start + RUN_TRANSACTIONS_MAX)):
            if self.only is None or int(columns.headers[index]) in self.only:
                record = self._record(partition_id, columns, index, history)
                is_too_large = record.size > max(record_bytes_max, RECORD_BYTES)
                is_full = len(records) >= count_max or size + record.size > self.bytes_max
                if records and (is_full or is_too_large):
                    break
                records.append(record)
                size += record.size
                last = record.transaction_id
                if is_too_large:
                    break
            else:
                last = columns.first_transaction_id + index
        return Run(tuple(records), last)

    def _record(
        self, partition_id: int, columns: TransactionColumns, index: int, history: UUID
    ) -> Record:
        transaction_id = columns.first_transaction_id + index
        key = f"{partition_id}:{transaction_id}" if self.key is RecordKey.TRANSACTION else None
        request_id = REQUEST_ID.unpack_from(columns.request_ids, 16 * index)
        headers = {
            "waltz-partition": str(partition_id),
            "waltz-transaction": str(transaction_id),
            "waltz-header": str(int(columns.headers[index])),
            "waltz-history": str(history),
            "waltz-request": ":".join(map(str, request_id)),
        }
        return Record(
            transaction_id,
            None if key is None else key.encode(),
            payload(columns.data[index]),
            tuple((name, value.encode()) for name, value in headers.items()),
        )
