"""An application of SqlCallbacks for tests; as a program it is one that dies while it applies.

python -m tests.client.sql_applications DATABASE_URL WHEN
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

import sqlalchemy as sql

from waltz.client.databases.sql_callbacks import SqlCallbacks
from waltz.client.transaction import Transaction
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

P0 = PartitionId(0)
APPLIED = sql.Table(
    "applied",
    sql.MetaData(),
    sql.Column("partition", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("by", sql.String(40)),
)
WHEN = ("in apply", "at commit", "after commit")


def transactions(first: int, end: int, partition_id: PartitionId = P0) -> list[Transaction]:
    request_id = RequestId(ClientId(1), Generation(1), partition_id, 1)
    return [
        Transaction(request_id, TransactionId(number), number, b"", lambda _, __: b"")
        for number in range(first, end)
    ]


class Applying(SqlCallbacks):
    """Inserts a row per transaction; `failures` are raised by the next calls."""

    def __init__(
        self,
        engine: sql.Engine,
        name: str = "me",
        preferred: Sequence[int] | None = None,
        patience_seconds: float = 1.0,
        also: Callable[[sql.Connection], None] = lambda connection: None,
    ) -> None:
        super().__init__(engine, preferred_partitions=preferred, patience_seconds=patience_seconds)
        self.name = name
        self.failures: list[Exception] = []
        self.attempts: list[int] = []
        self._also = also

    def apply(self, connection: sql.Connection, transactions: Sequence[Transaction]) -> None:
        connection.execute(
            APPLIED.insert(),
            [
                {"partition": each.partition_id, "number": each.transaction_id, "by": self.name}
                for each in transactions
            ],
        )
        self._also(connection)
        if self.failures:
            raise self.failures.pop(0)

    def wants_data(self, transaction: Transaction) -> bool:
        return transaction.header % 2 == 0

    def on_error_getting_client_high_water_mark(self, attempt: int, error: Exception) -> None:
        self.attempts.append(attempt)


def rows(engine: sql.Engine, partition_id: int = 0) -> list[int]:
    chosen = APPLIED.select().where(APPLIED.c.partition == partition_id).order_by("number")
    with engine.connect() as connection:
        return [row.number for row in connection.execute(chosen)]


def new_engine(url: sql.URL | str) -> sql.Engine:
    engine = sql.create_engine(url)
    if engine.dialect.name == "sqlite":
        engine = sql.create_engine(url, connect_args={"timeout": 60})
    return engine


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, when: str) -> None:
    engine = new_engine(url)
    callbacks = Applying(engine, "the dead", also=lambda _: die() if when == WHEN[0] else None)
    mark = callbacks.get_client_high_water_mark(P0)
    if when == WHEN[1]:
        sql.event.listen(engine, "commit", lambda connection: die())
    callbacks.apply_transactions(transactions(mark + 1, mark + 4))
    die()


if __name__ == "__main__":
    main(*sys.argv[1:])
