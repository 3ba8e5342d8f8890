"""The choice of transactions for the next post: a filter, and bounds in count and bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from waltz import RequestId, TransactionColumns
from waltz.bridge.webhook_body import Posted, item

REQUEST_ID: Final = struct.Struct(">4i")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A post. `last`: all up to it are in `items`, or are left out."""

    items: tuple[bytes, ...]
    first_posted: int
    last_posted: int
    last: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The rule of what is posted. `only`: the headers that are; None: all."""

    count_max: int
    bytes_max: int
    only: frozenset[int] | None
    as_json: bool

    def wanted(
        self, partition_id: int, columns: TransactionColumns, first: int, count_max: int
    ) -> Wanted:
        """Return what comes next of `columns`, which have `first`: at most `count_max`
        transactions, and `bytes_max` unless a single one has more."""
        items: list[bytes] = []
        size = 1
        first_posted = last_posted = last = first - 1
        only = self.only
        for index in range(first - columns.first_transaction_id, len(columns)):
            transaction_id = columns.first_transaction_id + index
            header = int(columns.headers[index])
            if only is None or header in only:
                if len(items) >= count_max:
                    break
                request_id = RequestId(*REQUEST_ID.unpack_from(columns.request_ids, 16 * index))
                posted = Posted(transaction_id, header, request_id, columns.data[index])
                made = item(partition_id, posted, as_json=self.as_json)
                if items and size + len(made) + 1 > self.bytes_max:
                    break
                size += len(made) + 1
                items.append(made)
                last_posted = transaction_id
                if len(items) == 1:
                    first_posted = transaction_id
            last = transaction_id
        return Wanted(tuple(items), first_posted, last_posted, last)
