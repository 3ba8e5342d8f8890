"""What a client calls in an application: callbacks. Ready-made for databases: `sql_callbacks.py`.

Owns the application's side of following the log. Knows nothing of feeds and connections, and never
waits: who wants to be called again later says so with PostponedError.
"""

# ruff: noqa: B027 - an application leaves out the callbacks that it does not need

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from uuid import UUID

from waltz.client.transaction import Transaction
from waltz.errors import LocalProtocolError
from waltz.types import PartitionId, TransactionId


class WaltzClientCallbacks(ABC):
    """How an application follows the log.

    A subclass has `apply_transaction`, or else `apply_transactions(transactions)`, which gets all
    contiguous transactions that wait, at most `limits.APPLY_TRANSACTIONS_MAX`, in one call, all of
    them or, if it raises, none. Per partition there is one call at a time, in the order of the IDs;
    partitions are called in parallel. Whatever raises is called again with the same transactions,
    later and later, while the other partitions go on (PM-38).
    """

    prefetch: bool = False
    """Whether the data of all transactions is fetched, many at a time, before they are handed over.
    Otherwise each is fetched when it is asked for; `choose_prefetch(transactions)`, if there is
    one, returns those to fetch ahead, by their headers for example (PM-45)."""

    @abstractmethod
    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId | int | None:
        """Return the last transaction applied, -1 for none: the feed starts after it (PM-27).

        None means: whatever the log holds now, so that only what comes later is handed over; a
        partition that is added to the cluster while the client follows all is handed over whole.
        """

    def get_client_history(self, partition_id: PartitionId) -> UUID | None:
        """Return what `keep_client_history` was given; None: it was not called for the partition.

        With both an application is bound to its cluster: before anything is applied the client
        looks whether it is the same one, and ends with HistoryChangedError if not. None, the
        default, is taken for the history of whatever cluster is there.
        """
        return None

    def keep_client_history(
        self, partition_id: PartitionId, history: UUID, before: UUID | None
    ) -> None:
        """Keep `history` beside the mark, if what is kept is still `before`; do nothing if not."""

    def apply_transaction(self, transaction: Transaction) -> None:
        """Apply one transaction. An application defines this or `apply_transactions`.

        Raises LocalProtocolError: it has defined neither.
        """
        raise LocalProtocolError(
            f"{type(self).__name__} cannot apply transaction {transaction.transaction_id}: define"
            " apply_transaction or apply_transactions"
        )

    def uncaught_exception(
        self, partition_id: PartitionId, transaction_id: TransactionId, error: Exception
    ) -> None:
        """Applying has raised; `transaction_id` is the first that is not applied (PM-29)."""


class NoCallbacks(WaltzClientCallbacks):
    """For clients that only write: starts at the end of the log and ignores what comes."""

    def get_client_high_water_mark(self, partition_id: PartitionId) -> None:
        return None

    def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        """Nothing to apply."""
