"""Watches an application's callbacks in a simulated run.

Owns the check of what every application has promised: the high-water mark that it returns is that
of what it has applied. A process may die before, after and within each callback: whenever data is
asked for, and before each statement of a `SqlCallbacks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.databases.sql_callbacks import SqlCallbacks
from waltz.client.transaction import Transaction
from waltz.types import PartitionId, TransactionId


class WatchedCallbacks(WaltzClientCallbacks):
    """Passes every call on to `inner`.

    Optional callbacks that `inner` lacks, such as `choose_prefetch`, are missing here too. Data is
    fetched ahead unless `inner` chooses itself: in a simulation a callback must not wait for data.
    """

    def __init__(
        self,
        inner: WaltzClientCallbacks,
        name: str,
        operation: Callable[[], None],
        before: WatchedCallbacks | None = None,
    ) -> None:
        """`operation` is called where the process may die; `before` are the callbacks of its
        previous life."""
        self._inner = inner
        self._name = name
        self._operation = operation
        self.prefetch = inner.prefetch or not hasattr(inner, "choose_prefetch")
        self.applied: dict[PartitionId, TransactionId] = before.applied if before else {}
        """The last transaction for which applying has returned, through all lives."""
        self.errors: dict[PartitionId, Exception] = {}
        self.violations: list[str] = before.violations if before else []
        self._is_applying = False
        if isinstance(inner, SqlCallbacks):
            self._watch_statements(inner)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._apply_transactions if name == "apply_transactions" else found

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId | int | None:
        self._operation()
        mark = self._inner.get_client_high_water_mark(partition_id)
        applied = self.applied.get(partition_id)
        if mark is not None and applied is not None and mark < applied:
            self.violations.append(
                f"{self._name} has applied partition {partition_id} through {applied}, and now says"
                f" {mark}: transactions would be applied twice"
            )
        return mark

    @property
    def keeps_client_history(self) -> bool:
        return self._inner.keeps_client_history

    def get_client_history(self, partition_id: PartitionId) -> UUID | None:
        self._operation()
        return self._inner.get_client_history(partition_id)

    def keep_client_history(
        self, partition_id: PartitionId, history: UUID, before: UUID | None
    ) -> None:
        self._operation()
        self._inner.keep_client_history(partition_id, history, before)
        self._operation()

    def apply_transaction(self, transaction: Transaction) -> None:
        self._operation()
        self._inner.apply_transaction(self._watched(transaction))
        self._note(transaction)
        self._operation()

    def _apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        self._operation()
        apply: Any = self._inner
        self._is_applying = True
        try:
            apply.apply_transactions([self._watched(each) for each in transactions])
        finally:
            self._is_applying = False
        self._note(transactions[-1])
        self._operation()

    def uncaught_exception(
        self, partition_id: PartitionId, transaction_id: TransactionId, error: Exception
    ) -> None:
        self.errors[partition_id] = error
        self._inner.uncaught_exception(partition_id, transaction_id, error)

    def _watch_statements(self, inner: SqlCallbacks) -> None:
        """Call `operation` before each statement of this object's applying.

        The engine may be shared by several processes, and by several lives: only what is applied
        through this object counts, and only on the connection that cannot end its transaction.
        """
        from sqlalchemy import event

        from waltz.client.databases.guarded_connection import GuardedConnection

        def pass_statement(connection: object, *_: object) -> None:
            if self._is_applying and isinstance(connection, GuardedConnection):
                self._operation()

        # Not as late as the cursor: SQLAlchemy would take the connection for broken and close it,
        # and a database in memory ends with its only connection.
        event.listen(inner.engine, "before_execute", pass_statement)

    def _watched(self, transaction: Transaction) -> Transaction:
        """Return the same transaction; fetching its data counts as an operation of the process."""

        def fetch(partition_id: PartitionId, transaction_id: TransactionId) -> bytes:
            self._operation()
            return transaction.data

        return Transaction(
            transaction.request_id, transaction.transaction_id, transaction.header, None, fetch
        )

    def _note(self, last: Transaction) -> None:
        """Take note that applying has returned: the application has promised to remember the
        transaction."""
        self.applied[last.partition_id] = last.transaction_id
        mark = self._inner.get_client_high_water_mark(last.partition_id)
        if mark is not None and mark < last.transaction_id:
            self.violations.append(
                f"{self._name} has applied transaction {last.transaction_id} of partition"
                f" {last.partition_id}, and says {mark}: it would be applied again after a crash"
            )
