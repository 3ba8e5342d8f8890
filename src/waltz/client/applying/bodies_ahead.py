"""The data of transactions that an application asks for one by one, requested ahead of its calls.

Owns which data is requested before it is asked for, and keeps what has come until it is. An
application that reads the data of one transaction after the other would wait for a server each
time. Once it has read some in a row, the data of the next transactions that it has been handed is
requested along with a call. An application that asks for no data causes no request; one that stops
reading in a row has caused at most one useless request per `BODIES_READ_PER_BODY_AHEAD` bodies that
it has read. Never waits: `fetch` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, Protocol

from waltz.client.applying.transactions import Transactions
from waltz.connections.requests_shell import TakesAhead
from waltz.types import NOTHING, PartitionId, TransactionId

BODIES_READ_PER_BODY_AHEAD: Final = 4
"""Bodies that an application must have read in a row for each one that is requested ahead."""

BODIES_AHEAD_MAX: Final = 128
"""Bodies of a partition that are requested ahead and not read yet."""

BODIES_AHEAD_BYTES_MAX: Final = 1 << 20
"""Bytes of the bodies of a partition that are requested ahead, if none is larger than the largest
that has come; a larger one is followed by fewer."""


class Calls(Protocol):
    """Calls for bodies from a worker's thread."""

    def fetch(
        self,
        partition_id: PartitionId,
        transaction_id: TransactionId,
        ahead: Sequence[TransactionId],
        taker: TakesAhead,
        /,
    ) -> bytes:
        """Return a body, and request others ahead, which the call does not wait for."""
        ...

    def fetch_ahead(
        self,
        partition_id: PartitionId,
        transaction_ids: Sequence[TransactionId],
        taker: TakesAhead,
        /,
    ) -> None: ...


class BodiesAhead:
    """The bodies of one partition. `fetch` is called on workers' threads, everything else on the
    loop's: a dictionary is changed by single operations, which threads see whole."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._transactions: Transactions | None = None
        """The transactions that the application is applying."""
        self._last = NOTHING
        """The last transaction whose body was asked for."""
        self._in_a_row = 0
        """The number of bodies read without leaving one out."""
        self._asked: dict[TransactionId, None] = {}
        """The bodies that were requested ahead and not read yet, in order."""
        self._arrived: dict[TransactionId, bytes] = {}
        """The bodies that were requested ahead, have come and were not read yet."""
        self._largest = 1
        """The size of the largest body that has come, in bytes."""

    def begin(self, transactions: Transactions) -> None:
        """The application is about to apply `transactions`, which follow those before."""
        self._transactions = transactions
        if self._asked or self._arrived:
            first = transactions.first_transaction_id
            if any(each < first for each in list(self._asked)):
                self._leave_out(first)
            for each in list(self._arrived):
                if each < first:
                    self._arrived.pop(each, None)

    def end(self) -> None:
        """The application has applied all of them."""
        transactions, self._transactions = self._transactions, None
        if self._in_a_row and transactions is not None:
            last = transactions.last_transaction_id
            if self._last != last and _missing_after(transactions, self._last, 1):
                self._leave_out(TransactionId(last + 1))

    def fetch(self, partition_id: PartitionId, transaction_id: TransactionId) -> bytes:
        """Return the body of a transaction. Raises what fetching it raises."""
        self._note_read(transaction_id)
        self._asked.pop(transaction_id, None)
        following = self._following(transaction_id)
        data = self._arrived.pop(transaction_id, None)
        if data is None:
            data = self._calls.fetch(partition_id, transaction_id, following, self)
            self._arrived.pop(transaction_id, None)
            self._largest = max(self._largest, len(data))
        elif following:
            self._calls.fetch_ahead(partition_id, following, self)
        return data

    def find(self, transaction_id: TransactionId) -> bytes | None:
        """Return a body that has come and was not read yet."""
        return self._arrived.get(transaction_id)

    def take(self, transaction_id: TransactionId, data: bytes) -> None:
        """Keep a body that was requested ahead."""
        self._arrived[transaction_id] = data
        self._largest = max(self._largest, len(data))

    def _note_read(self, transaction_id: TransactionId) -> None:
        transactions = self._transactions
        if transaction_id != self._last + 1 and (
            transactions is None or _missing_after(transactions, self._last, 1) != [transaction_id]
        ):
            self._leave_out(transaction_id)
        self._in_a_row += 1
        self._last = transaction_id

    def _leave_out(self, transaction_id: TransactionId) -> None:
        """The application has not read everything before that transaction."""
        self._in_a_row = 0
        for each in list(self._asked):
            if each < transaction_id:
                self._asked.pop(each, None)

    def _following(self, transaction_id: TransactionId) -> Sequence[TransactionId]:
        """Return what to request ahead now, once half of what was requested before is read."""
        count = min(
            self._in_a_row // BODIES_READ_PER_BODY_AHEAD,
            BODIES_AHEAD_MAX,
            BODIES_AHEAD_BYTES_MAX // self._largest,
        )
        transactions, unread = self._transactions, list(self._asked)
        if transactions is None or not count or 2 * len(unread) > count:
            return ()
        last = max(unread[-1], transaction_id) if unread else transaction_id
        following = _missing_after(transactions, last, count - len(unread))
        self._asked.update(dict.fromkeys(following))
        return following


def _missing_after(
    transactions: Transactions, transaction_id: TransactionId, count: int
) -> list[TransactionId]:
    """Return the first `count` transactions with higher IDs whose data is not here."""
    start = max(0, transaction_id + 1 - transactions.first_transaction_id)
    following = islice(transactions, start, None)
    missing = (each.transaction_id for each in following if not each.has_data)
    return list(islice(missing, count))
