"""The tables of Waltz in an application's database: marks, and transactions that were parked.

Owns their columns and the operations on parked transactions: a row is inserted in the same database
transaction in which the mark passes the transaction, and deleted in the one in which the
transaction is applied after all. Used by `SqlCallbacks` and by `waltz parked`. Imported with
SQLAlchemy only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError

from waltz.client.databases.stored_marks import HISTORY_CHARACTERS, StoredMark, history_of
from waltz.client.transaction import Transaction
from waltz.errors import LocalProtocolError, NotFoundError
from waltz.types import (
    ClientId,
    Generation,
    PartitionId,
    RequestId,
    TransactionId,
)

logger = logging.getLogger(__name__)

PARKED: Final = "parked"
"""State of a row that stays."""

RETRY: Final = "retry"
"""State of a row to be applied when the application starts next."""

ERROR_CHARACTERS_MAX: Final = 2_000
"""Characters of an error's text in a row."""

DATA_BYTES_MAX: Final = (1 << 32) - 1
"""Makes MySQL choose its largest column type."""


@dataclass(frozen=True, slots=True)
class ParkedTransaction:
    """A row; `parked_at` is by the database's clock.

    `request_id`, `header` and `data` are None for a transaction that was skipped without reading
    it; `data` is None also if it was not selected, while `data_bytes` is its length in either case.
    """

    partition_id: PartitionId
    transaction_id: TransactionId
    request_id: RequestId | None
    header: int | None
    data: bytes | None
    data_bytes: int | None
    error: str
    state: str
    parked_at: str

    def transaction(self) -> Transaction:
        """Return the transaction as it came from the log. Raises LocalProtocolError: its data is
        not here."""
        if self.request_id is None or self.header is None or self.data is None:
            raise LocalProtocolError(
                f"transaction {self.transaction_id} of partition {self.partition_id} was skipped"
                " without its data, which is in the log only: apply it by hand, then drop the row"
            )
        data = self.data
        return Transaction(
            self.request_id, self.transaction_id, self.header, data, lambda _, __: data
        )


def marks_table(name: str) -> sql.Table:
    """Return the table of high-water marks, each with its history."""
    return sql.Table(
        name,
        sql.MetaData(),
        sql.Column("partition_id", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("high_water_mark", sql.BigInteger, nullable=False),
        sql.Column("history", sql.String(HISTORY_CHARACTERS)),
    )


def read_marks(connection: sql.Connection, table: sql.Table) -> dict[PartitionId, StoredMark]:
    """Return the marks of all partitions. Raises HistoryChangedError: a history is none."""
    columns = table.c
    wanted = sql.select(columns.partition_id, columns.high_water_mark, columns.history)
    return {
        PartitionId(partition_id): StoredMark(TransactionId(mark), history_of(text))
        for partition_id, mark, text in connection.execute(wanted)
    }


class ParkedTable:
    """The table of parked transactions. A caller that passes a connection commits or rolls back
    itself."""

    def __init__(self, name: str) -> None:
        self.table = sql.Table(
            name,
            sql.MetaData(),
            sql.Column("partition_id", sql.Integer, primary_key=True, autoincrement=False),
            sql.Column("transaction_id", sql.BigInteger, primary_key=True, autoincrement=False),
            sql.Column("client_id", sql.Integer),
            sql.Column("generation", sql.Integer),
            sql.Column("sequence_number", sql.Integer),
            sql.Column("header", sql.Integer),
            sql.Column("data", sql.LargeBinary(DATA_BYTES_MAX)),
            sql.Column("error", sql.Text, nullable=False),
            sql.Column("state", sql.String(16), nullable=False),
            sql.Column("parked_at", sql.DateTime, server_default=sql.func.current_timestamp()),
        )

    def exists(self, engine: sql.Engine) -> bool:
        return sql.inspect(engine).has_table(self.table.name)

    def create(self, engine: sql.Engine) -> None:
        """Create the table unless it exists; outside of transactions, for MySQL commits before
        it."""
        create_table(self.table, engine)

    def add(self, connection: sql.Connection, transaction: Transaction, error: str) -> None:
        request_id = transaction.request_id
        connection.execute(
            self.table.insert().values(
                partition_id=transaction.partition_id,
                transaction_id=transaction.transaction_id,
                client_id=request_id.client_id,
                generation=request_id.generation,
                sequence_number=request_id.sequence_number,
                header=transaction.header,
                data=transaction.data,
                error=error[:ERROR_CHARACTERS_MAX],
                state=PARKED,
            )
        )

    def add_skipped(
        self,
        connection: sql.Connection,
        partition_id: int,
        transaction_id: int,
        reason: str,
    ) -> None:
        """Add a row for a transaction that was skipped unread."""
        connection.execute(
            self.table.insert().values(
                partition_id=partition_id,
                transaction_id=transaction_id,
                error=reason[:ERROR_CHARACTERS_MAX],
                state=PARKED,
            )
        )

    def rows(
        self,
        connection: sql.Connection,
        *,
        partition_id: int | None = None,
        transaction_id: int | None = None,
        state: str | None = None,
        with_data: bool = True,
    ) -> list[ParkedTransaction]:
        """Return the rows with these values, in the order of the log."""
        columns = self.table.c
        wanted = [each for each in columns if with_data or each is not columns.data]
        size = sql.func.length(columns.data).label("data_bytes")
        query = sql.select(*wanted, size).order_by(columns.partition_id, columns.transaction_id)
        if partition_id is not None:
            query = query.where(columns.partition_id == partition_id)
        if transaction_id is not None:
            query = query.where(columns.transaction_id == transaction_id)
        if state is not None:
            query = query.where(columns.state == state)
        return [_parked(row) for row in connection.execute(query).mappings()]

    def one(
        self, connection: sql.Connection, partition_id: int, transaction_id: int
    ) -> ParkedTransaction:
        """Return the row of a transaction. Raises NotFoundError: it is not parked."""
        found = self.rows(connection, partition_id=partition_id, transaction_id=transaction_id)
        if not found:
            raise NotFoundError(
                f"transaction {transaction_id} of partition {partition_id} is not parked in"
                f" {self.table.name}"
            )
        return found[0]

    def remove(self, connection: sql.Connection, partition_id: int, transaction_id: int) -> bool:
        """Delete a row; return whether it existed: of several processes, one gets True."""
        delete = self.table.delete().where(*self._at(partition_id, transaction_id))
        return bool(connection.execute(delete).rowcount)

    def change(
        self,
        connection: sql.Connection,
        partition_id: int,
        transaction_id: int,
        state: str,
        error: str | None = None,
    ) -> bool:
        """Set the state, and the error if one is given; return whether there is such a row."""
        values = {"state": state}
        if error is not None:
            values["error"] = error[:ERROR_CHARACTERS_MAX]
        update = self.table.update().where(*self._at(partition_id, transaction_id))
        return bool(connection.execute(update.values(**values)).rowcount)

    def _at(self, partition_id: int, transaction_id: int) -> Sequence[sql.ColumnElement[bool]]:
        columns = self.table.c
        return columns.partition_id == partition_id, columns.transaction_id == transaction_id


def _parked(row: sql.RowMapping) -> ParkedTransaction:
    partition_id = PartitionId(row["partition_id"])
    request_id = None
    if row["client_id"] is not None:
        request_id = RequestId(
            ClientId(row["client_id"]),
            Generation(row["generation"]),
            partition_id,
            row["sequence_number"],
        )
    data = row.get("data")
    return ParkedTransaction(
        partition_id,
        TransactionId(row["transaction_id"]),
        request_id,
        row["header"],
        None if data is None else bytes(data),
        row["data_bytes"],
        row["error"],
        row["state"],
        str(row["parked_at"]),
    )


def skip(
    engine: sql.Engine,
    marks: sql.Table,
    parked: ParkedTable,
    partition_id: int,
    number: int,
    reason: str,
) -> None:
    """Move the mark past a transaction that was not read, and add a row for it to `parked`.

    Raises NotFoundError: the partition has no mark, or that transaction is not the next one.
    """
    parked.create(engine)
    columns = marks.c
    with engine.begin() as connection:
        updated = connection.execute(
            marks.update()
            .where(columns.partition_id == partition_id, columns.high_water_mark == number - 1)
            .values(high_water_mark=number)
        )
        if updated.rowcount == 1:
            parked.add_skipped(connection, partition_id, number, reason)
            return
        found = connection.execute(marks.select().where(columns.partition_id == partition_id))
        row = found.first()
    if row is None:
        raise NotFoundError(f"partition {partition_id} has no mark in {marks.name}")
    raise NotFoundError(
        f"partition {partition_id} is applied through transaction {row.high_water_mark}, so that"
        f" {row.high_water_mark + 1} is the next; only that can be skipped, not {number}"
    )


def create_table(table: sql.Table, engine: sql.Engine) -> None:
    """Create `table` unless it exists, even if another process creates it at the same time."""
    try:
        table.create(engine, checkfirst=True)
    except DBAPIError:
        if not sql.inspect(engine).has_table(table.name):
            raise  # otherwise another process was faster


def make_marks_ready(table: sql.Table, engine: sql.Engine) -> None:
    """Create the table of high-water marks; add the column that an earlier release did not have."""
    create_table(table, engine)
    if _has_history(table, engine):
        return
    name = engine.dialect.identifier_preparer.format_table(table)
    statement = f"ALTER TABLE {name} ADD COLUMN history VARCHAR({HISTORY_CHARACTERS})"
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
    except DBAPIError as error:
        if _has_history(table, engine):
            return  # another process was faster
        logger.warning(
            "column_not_added table=%s error=%s; nothing is applied without it: run `%s` as a user"
            " who may",
            table.name, error.orig, statement,
        )  # fmt: skip
        raise


def _has_history(table: sql.Table, engine: sql.Engine) -> bool:
    return any(
        column["name"] == "history" for column in sql.inspect(engine).get_columns(table.name)
    )
