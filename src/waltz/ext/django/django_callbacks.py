"""Callbacks that apply the log with Django's models, in Django's own database transaction.

Owns that transaction, in which the mark of `waltz.models` moves with the application's changes, and
what is forbidden in it. The decisions are those of `SqlCallbacks`. Rows PM-50 to PM-57.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeVar
from uuid import UUID

from django import db
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from waltz.client.databases.database_marks_shell import MarksOfDatabase
from waltz.client.databases.idempotency_keys import KEYS_TABLE
from waltz.client.databases.marked_callbacks import CALLBACK_PATIENCE_SECONDS, MarkedCallbacks
from waltz.client.databases.sql_statements import forbidden_statement, not_allowed
from waltz.client.databases.stored_marks import MARKS_TABLE, StoredMark, history_of
from waltz.client.transaction import Transaction
from waltz.errors import ConfigurationError, LocalProtocolError, NotFoundError
from waltz.ext.django.django_idempotency_keys import DjangoIdempotencyKeys
from waltz.ext.django.models import PARKED, PARKED_TABLE, RETRY, HighWaterMark, ParkedTransaction
from waltz.ext.django.usable_connection import usable_connection
from waltz.types import (
    NOTHING,
    ClientId,
    Generation,
    PartitionId,
    RequestId,
    TransactionId,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

SERIALIZABLE: Final = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"

CHANGES: Final = ("INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE")
"""The first words of statements that change rows. The callbacks find mistakes, such as a router
that sends a model elsewhere, not attacks."""


class DjangoCallbacks(MarkedCallbacks):
    """Applies the log with Django's models, each transaction once, whichever other processes apply
    it to the database, too.

    As `SqlCallbacks`, in tables that `manage.py migrate` makes. A subclass has
    `apply(transactions)`, whose changes must go to the database `using`. The database transaction
    is serializable. Each thread of the client has a connection of its own.

    What `apply` gives to `transaction.on_commit` runs after the commit, at most once: it is lost
    with the process, and with a connection that breaks during the commit. An error of it is logged;
    the transactions are applied.
    """

    def __init__(
        self,
        *,
        using: str = "default",
        preferred_partitions: Collection[int] | None = None,
        patience_seconds: float = CALLBACK_PATIENCE_SECONDS,
        keys: DjangoIdempotencyKeys | None = None,
    ) -> None:
        """`using`: the alias of the database; the others as for `SqlCallbacks`. Raises
        LocalProtocolError: the keys are in another database."""
        super().__init__(preferred_partitions, patience_seconds)
        self.using = using
        if keys is not None and keys.using != using:
            raise LocalProtocolError(
                f"the idempotency keys are in the database {keys.using!r}, and what is applied in"
                f" {using!r}: they are noted in the database transaction that applies"
            )
        self._keys = keys

    @abstractmethod
    def apply(self, transactions: Sequence[Transaction]) -> None:
        """Make the changes of `transactions`, dense and in order.

        The caller commits the database transaction; on any error it is rolled back and everything
        is repeated. A statement that would end it raises LocalProtocolError, and so do
        `set_rollback` and a statement that changes another database; `transaction.atomic()` makes
        savepoints in it. The driver's own connection must not be used.
        """

    def apply_parked(self, partition_id: int, transaction_id: int) -> None:
        def change() -> None:
            parked = ParkedTransaction.objects.using(self.using).filter(
                partition_id=partition_id, transaction_id=transaction_id
            )
            row = parked.first()
            if row is None:
                raise NotFoundError(
                    f"transaction {transaction_id} of partition {partition_id} is not parked"
                )
            again = _transaction_of(row)
            parked.delete()
            self._guarded(lambda: self.apply([again]))
            self._check_unparked(partition_id, transaction_id, is_parked=self._is_there(parked))

        self._in_transaction(change)

    def _is_there(self, parked: QuerySet[ParkedTransaction]) -> bool:
        """Return whether the rows are there, or would be after the rollback of what has failed."""
        try:
            return parked.exists()
        except db.Error as error:
            if not self._has_failed(error):
                raise
            return True

    def _make_ready(self) -> None:
        connection = self._connection()
        wanted = {MARKS_TABLE, PARKED_TABLE} | ({KEYS_TABLE} if self._keys is not None else set())
        lacking = sorted(wanted - set(connection.introspection.table_names()))
        if lacking:
            raise ConfigurationError(
                f"the database {self.using!r} has no table {', '.join(lacking)}: run"
                f" `manage.py migrate waltz --database {self.using}`"
            )

    def _stored_marks(self) -> dict[PartitionId, StoredMark]:
        self._connection()
        return stored_marks(self.using)

    def _insert_mark(self, partition_id: PartitionId) -> None:
        self._connection()
        HighWaterMark.objects.using(self.using).bulk_create(
            [HighWaterMark(partition_id=partition_id, high_water_mark=NOTHING)],
            ignore_conflicts=True,
        )

    def _replace_history(
        self,
        partition_id: PartitionId,
        mark: TransactionId,
        history: UUID,
        before: UUID | None,
    ) -> None:
        self._connection()
        HighWaterMark.objects.using(self.using).filter(
            partition_id=partition_id,
            high_water_mark=mark,
            **({"history__isnull": True} if before is None else {"history": str(before)}),
        ).update(history=str(history))

    def _reads(self, transaction: Transaction) -> bool:
        return self._keys is not None or self.wants_data(transaction)

    def _change(
        self, partition_id: PartitionId, rest: Sequence[Transaction], expected: TransactionId
    ) -> bool:
        def apply() -> None:
            if self._keys is not None:
                self._keys.note(rest)
            self._guarded(lambda: self.apply(rest))

        return self._change_guarded(partition_id, expected, rest[-1].transaction_id, apply)

    def _keep_apart(self, transaction: Transaction, text: str) -> None:
        request_id, number = transaction.request_id, transaction.transaction_id
        row = ParkedTransaction(
            partition_id=transaction.partition_id,
            transaction_id=number,
            client_id=request_id.client_id,
            generation=request_id.generation,
            sequence_number=request_id.sequence_number,
            header=transaction.header,
            data=transaction.data,
            error=text,
            state=PARKED,
        )

        def park() -> None:
            row.save(using=self.using, force_insert=True)
            if self._keys is not None:
                self._keys.note([transaction])

        self._change_guarded(transaction.partition_id, TransactionId(number - 1), number, park)

    def _change_guarded(
        self,
        partition_id: PartitionId,
        expected: TransactionId,
        mark: TransactionId,
        change: Callable[[], object],
    ) -> bool:
        """Move the mark from `expected` and make `change`; False: another process has moved the
        mark. The guarded update comes first: its lock makes other processes wait."""
        history = self._progress_of(partition_id).history
        this = HighWaterMark.objects.using(self.using).filter(partition_id=partition_id)
        guarded = this.filter(high_water_mark=expected)
        if history is not None:
            guarded = guarded.filter(history=str(history))

        def move_and_change() -> bool:
            if guarded.update(high_water_mark=mark) != 1:
                return False
            change()
            found: int | None = None
            try:
                found = this.values_list("high_water_mark", flat=True).first()
            except db.Error as error:
                if not self._has_failed(error):
                    raise
            self._check_outlived(partition_id, mark, found)
            return True

        return self._in_transaction(move_and_change)

    def _in_transaction(self, work: Callable[[], T]) -> T:
        """Do `work` in a serializable database transaction and commit it."""
        connection = self._connection()
        if connection.vendor == "mysql":
            with connection.cursor() as cursor:
                cursor.execute(SERIALIZABLE)  # of the next transaction
        done: list[T] = []
        committed: list[bool] = []
        try:
            with transaction.atomic(using=self.using, durable=True):
                if connection.vendor == "postgresql":
                    with connection.cursor() as cursor:
                        cursor.execute(SERIALIZABLE)
                transaction.on_commit(lambda: committed.append(True), using=self.using)
                done.append(work())
        except Exception as error:  # whatever the application has told to run after the commit
            if not committed:
                raise
            logger.error("after_commit_failed error=%r; the changes are committed", error)
        return done[0]

    def _guarded(self, work: Callable[[], object]) -> None:
        """Do `work`, in which statements that end or change the transaction are forbidden. Raises
        LocalProtocolError: something else has ended it."""
        connection = connections[self.using]
        with ExitStack() as wrappers:
            for each in connections.all():
                check = _check_statement if each.alias == self.using else _check_elsewhere
                wrappers.enter_context(each.execute_wrapper(check))
            work()
        if connection.needs_rollback:
            raise LocalProtocolError(
                f"the database transaction of {type(self).__name__}.apply would be rolled back:"
                " set_rollback or close was called in it, or an error was caught that has left"
                " atomic(savepoint=False); savepoints (atomic) are allowed"
            )

    def _connection(self) -> BaseDatabaseWrapper:
        return usable_connection(self.using)

    def _wanted_again(self, partition_id: PartitionId) -> Sequence[TransactionId]:
        self._connection()
        wanted = ParkedTransaction.objects.using(self.using).filter(
            partition_id=partition_id, state=RETRY
        )
        numbers = wanted.order_by("transaction_id").values_list("transaction_id", flat=True)
        return [TransactionId(each) for each in numbers]

    def _stays_parked(self, partition_id: PartitionId, number: TransactionId, text: str) -> None:
        self._connection()
        ParkedTransaction.objects.using(self.using).filter(
            partition_id=partition_id, transaction_id=number
        ).update(state=PARKED, error=text)

    def _is_away(self, error: Exception) -> bool:
        return isinstance(error, db.OperationalError | db.InterfaceError | db.InternalError)

    def _driver_error(self, error: Exception) -> BaseException | None:
        if not isinstance(error, db.Error):
            return None
        return error.__cause__ or error


class DjangoMarks(MarksOfDatabase):
    """The marks in one of Django's databases, for consistency tokens; as `DatabaseMarks`."""

    def __init__(self, using: str = "default") -> None:
        self.using = using

    def _stored(self) -> dict[PartitionId, StoredMark]:
        try:
            return stored_marks(self.using)
        except db.Error:
            names = connections[self.using].introspection.table_names()
            if MARKS_TABLE in names:
                raise
            return {}  # nothing has been applied yet


def stored_marks(using: str) -> dict[PartitionId, StoredMark]:
    """Return the marks of all partitions. Raises HistoryChangedError: a history is none."""
    rows = HighWaterMark.objects.using(using).values_list(
        "partition_id", "high_water_mark", "history"
    )
    return {
        PartitionId(number): StoredMark(TransactionId(mark), history_of(text))
        for number, mark, text in rows
    }


def _check_statement(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Run a statement of the application, unless it would end the transaction."""
    found = forbidden_statement(_text_of(sql, context), context["connection"].vendor)
    if found is not None:
        raise not_allowed(found, "atomic")
    return execute(sql, params, many, context)


def _check_elsewhere(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Run a statement of the application on another database, unless it would change that."""
    text = _text_of(sql, context).lstrip()
    if text[:7].upper().startswith(CHANGES):
        raise not_allowed(
            f"the statement {text[:60]!r} in the database {context['connection'].alias!r}, where"
            " the changes would not be in one database transaction with the mark,",
            "atomic",
        )
    return execute(sql, params, many, context)


def _text_of(sql: Any, context: dict[str, Any]) -> str:
    """Return a statement's text: drivers take bytes, too, and psycopg composed statements."""
    if isinstance(sql, bytes):
        return sql.decode(errors="replace")
    if hasattr(sql, "as_string"):
        return str(sql.as_string(context["connection"].connection))
    return str(sql)


def _transaction_of(row: ParkedTransaction) -> Transaction:
    """Return the transaction as it came from the log. Raises LocalProtocolError: its data is not
    here."""
    client_id, generation, number = row.client_id, row.generation, row.sequence_number
    if client_id is None or generation is None or number is None or row.data is None:
        raise LocalProtocolError(
            f"{row} was skipped without its data, which is in the log only: apply it by hand, then"
            " delete the row"
        )
    partition_id, data = PartitionId(row.partition_id), bytes(row.data)
    request_id = RequestId(ClientId(client_id), Generation(generation), partition_id, number)
    return Transaction(
        request_id, TransactionId(row.transaction_id), row.header or 0, data, lambda _, __: data
    )
