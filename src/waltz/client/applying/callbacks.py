"""The callbacks of an application, which a client calls. Ready-made ones for databases:
`sql_callbacks.py`.

Owns the application's side of following the log. Knows nothing of feeds and connections, and never
waits: a callback that wants to be called again later raises PostponedError.
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
    """Follows the log on behalf of an application.

    A subclass has `apply_transaction`, or else `apply_transactions(transactions)`, which gets all
    contiguous transactions that wait, at most `limits.APPLY_TRANSACTIONS_MAX`, in one call, and
    applies all of them or, if it raises, none. Per partition there is one call at a time, in the
    order of the IDs; partitions are called in parallel. A callback that raises is called again with
    the same transactions, with growing pauses, while the other partitions proceed (PM-38).
    """

    prefetch: bool = False
    """Whether the data of all transactions is fetched, many at a time, before they are handed over.
    Otherwise the data of each transaction is fetched when it is asked for, and, while the
    application asks for one after the other, requested a little ahead;
    `choose_prefetch(transactions)`, if defined, returns those to fetch ahead, by their headers for
    example (PM-45)."""

    @abstractmethod
    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId | int | None:
        """Return the last transaction applied, -1 for none: the feed starts after it (PM-27).

        None means the present end of the log, so that only later transactions are handed over; a
        partition that is added to the cluster while the client follows all partitions is handed
        over from its beginning.
        """

    def get_client_history(self, partition_id: PartitionId) -> UUID | None:
        """Return what `keep_client_history` was given; None if it was not called for the partition.

        An application that defines both is bound to its log: before anything is applied the client
        checks that the cluster is the same, and that no restore has ended the history before the
        application's mark, and ends with HistoryChangedError if not. None, the default, stands for
        the first history of any cluster.
        """
        return None

    @property
    def keeps_client_history(self) -> bool:
        """Whether the application is bound to its log: it is if its class defines
        `get_client_history`. A wrapper around any application returns what the wrapped one says;
        otherwise a wrapped application without a history would be taken for one of the first
        history, and refused after a restore."""
        return type(self).get_client_history is not WaltzClientCallbacks.get_client_history

    def keep_client_history(
        self, partition_id: PartitionId, history: UUID, before: UUID | None
    ) -> None:
        """Store `history` next to the mark, if the stored one is still `before` and the mark is
        still what `get_client_high_water_mark` returned last; do nothing if not."""

    def apply_transaction(self, transaction: Transaction) -> None:
        """Apply one transaction. An application defines this or `apply_transactions`.

        Raises LocalProtocolError: the application has defined neither.
        """
        raise LocalProtocolError(
            f"{type(self).__name__} cannot apply transaction {transaction.transaction_id}: define"
            " apply_transaction or apply_transactions"
        )

    def uncaught_exception(
        self, partition_id: PartitionId, transaction_id: TransactionId, error: Exception
    ) -> None:
        """Take note that applying has raised; `transaction_id` is the first that is not applied
        (PM-29)."""


class NoCallbacks(WaltzClientCallbacks):
    """Callbacks of clients that only write: start at the end of the log and ignore what is fed."""

    def get_client_high_water_mark(self, partition_id: PartitionId) -> None:
        return None

    def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        """Do nothing."""
