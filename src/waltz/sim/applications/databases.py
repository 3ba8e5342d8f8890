"""Applications that keep their state in a SQL database, through the client's own `SqlCallbacks`.

Owns the database, SQLite in memory, which outlives the processes that work on it, and the moments
at which one of these may die: before each statement, before each commit and after it. What was
applied is read back from the tables, with a connection of its own, so that rolled-back changes do
not count as applied, and changes made twice are there twice. SQLAlchemy is imported when an
application is made.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from waltz.client.databases.sql_callbacks import SqlCallbacks
from waltz.client.transaction import Transaction
from waltz.errors import PostponedError
from waltz.sim.applications.application import Application
from waltz.sim.judges.history import FedRecord, History
from waltz.sim.judges.payload import EntryKind, Payload
from waltz.sim.judges.run_trace import RunTrace
from waltz.types import (
    NOTHING,
    ClientId,
    Generation,
    PartitionId,
    RequestId,
    TransactionId,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

TROUBLE_SHARE: Final = 0.03
"""Share of the statements that fail because of another process."""

PREFERRING_SHARE: Final = 0.5
"""Share of the processes that leave some partitions to others."""

PATIENCE_SECONDS: Final = (0.0, 0.5, 5.0)

_TABLES: Final = """
CREATE TABLE applied (partition_id, transaction_id, client_id, generation, sequence_number, header,
                      data);
CREATE TABLE counted (partition_id, key, value, PRIMARY KEY (partition_id, key));
"""


class SimulatedDatabase:
    """The content of the database's disk."""

    def __init__(self) -> None:
        self._uri = f"file:simulated-{id(self)}?mode=memory&cache=shared"
        self._reading = self.connect()
        self._reading.executescript(_TABLES)

    def connect(self, factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
        return sqlite3.connect(self._uri, uri=True, check_same_thread=False, factory=factory)

    def applied(self, partition_id: PartitionId, from_row: int) -> list[FedRecord]:
        """Return the transactions of a partition in the order in which they were applied."""
        rows = self._reading.execute(
            "SELECT * FROM applied WHERE partition_id = ? ORDER BY rowid LIMIT -1 OFFSET ?",
            (partition_id, from_row),
        )
        return [
            FedRecord(
                TransactionId(transaction_id),
                RequestId(ClientId(client), Generation(generation), PartitionId(number), sequence),
                header,
                data,
            )
            for number, transaction_id, client, generation, sequence, header, data in rows
        ]

    def partitions(self) -> list[PartitionId]:
        rows = self._reading.execute("SELECT DISTINCT partition_id FROM applied ORDER BY 1")
        return [PartitionId(number) for (number,) in rows]

    def last(self, partition_id: PartitionId) -> TransactionId:
        (last,) = self._reading.execute(
            "SELECT max(transaction_id) FROM applied WHERE partition_id = ?", (partition_id,)
        ).fetchone()
        return NOTHING if last is None else TransactionId(last)

    def value(self, partition_id: PartitionId, key: int) -> int | None:
        found = self._reading.execute(
            "SELECT value FROM counted WHERE partition_id = ? AND key = ?", (partition_id, key)
        ).fetchone()
        return None if found is None else int(found[0])

    def close(self) -> None:
        self._reading.close()


class DatabaseApplication(SqlCallbacks, Application):
    """The application of one process; its state is the database's."""

    prefetch = False

    def __init__(
        self,
        name: str,
        history: History,
        trace: RunTrace,
        now: Callable[[], float],
        random: Random,
        database: SimulatedDatabase,
    ) -> None:
        Application.__init__(self, name, history, trace, now)
        self._random = random
        self._database = database
        self.pass_statement: Callable[[], None] = lambda: None
        """Called before each statement and around each commit; may let the process die."""
        self._passed: dict[PartitionId, TransactionId] = {}
        preferred = random.sample(range(3), random.randint(0, 2))
        SqlCallbacks.__init__(
            self,
            self._engine(),
            preferred_partitions=preferred if random.random() < PREFERRING_SHARE else None,
            patience_seconds=random.choice(PATIENCE_SECONDS),
        )
        for partition_id in database.partitions():
            for fed in history.feed(name, partition_id):
                self._know(partition_id, fed)
        self.look()

    def _engine(self) -> Engine:
        from sqlalchemy import StaticPool, create_engine, event

        engine = create_engine("sqlite://", creator=self._connect, poolclass=StaticPool)
        event.listen(engine, "before_cursor_execute", self._before_statement)
        return engine

    def _connect(self) -> sqlite3.Connection:
        application = self

        class DyingConnection(sqlite3.Connection):
            def commit(self) -> None:
                application.pass_statement()
                super().commit()
                application.pass_statement()

        return self._database.connect(DyingConnection)

    def _before_statement(self, _: object, __: object, statement: str, *___: Any) -> None:
        from sqlalchemy.exc import OperationalError

        self.pass_statement()
        if self._random.random() < TROUBLE_SHARE:
            locked = sqlite3.OperationalError("database is locked")
            raise OperationalError(statement, None, locked)

    # Called by the client

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        mark = super().get_client_high_water_mark(partition_id)
        self._passed[partition_id] = mark
        self.look()
        return mark

    def choose_prefetch(self, transactions: Sequence[Transaction]) -> Sequence[Transaction]:
        self.look()
        try:
            return super().choose_prefetch(transactions)
        except PostponedError as error:
            if error.applied_through is not None:
                mark = min(error.applied_through, transactions[-1].transaction_id)
                self._pass(transactions[0], TransactionId(mark))
            raise

    def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        super().apply_transactions(transactions)
        self._pass(transactions[0], transactions[-1].transaction_id)
        self.look()

    def _pass(self, first: Transaction, mark: TransactionId) -> None:
        partition_id = first.partition_id
        self._passed[partition_id] = max(self._passed.get(partition_id, NOTHING), mark)

    def apply(self, connection: Connection, transactions: Sequence[Transaction]) -> None:
        for each in transactions:
            request_id = each.request_id
            connection.exec_driver_sql(
                "INSERT INTO applied VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    each.partition_id,
                    each.transaction_id,
                    request_id.client_id,
                    request_id.generation,
                    request_id.sequence_number,
                    each.header,
                    each.data,
                ),
            )
            payload = Payload.decode(each.data)
            if payload is not None and payload.kind is EntryKind.COUNT:
                for key, value in payload.entries:
                    connection.exec_driver_sql(
                        "INSERT OR REPLACE INTO counted VALUES (?, ?, ?)",
                        (each.partition_id, key, value),
                    )

    # Used by its contexts

    def applied_through(self, partition_id: PartitionId) -> TransactionId:
        return self._database.last(partition_id)

    def passed_through(self, partition_id: PartitionId) -> TransactionId:
        return self._passed.get(partition_id, NOTHING)

    def value(self, partition_id: PartitionId, key: int) -> int:
        return self._database.value(partition_id, key) or 0

    def look(self) -> None:
        """Record what has been committed, by any process."""
        for partition_id in self._database.partitions():
            feed = self.history.feed(self.name, partition_id)
            for fed in self._database.applied(partition_id, len(feed)):
                feed.append(fed)
                self._know(partition_id, fed)
                self.note_fed(partition_id, fed.transaction_id)

    def _know(self, partition_id: PartitionId, fed: FedRecord) -> None:
        self.marks[partition_id] = fed.transaction_id
        payload = Payload.decode(fed.data)
        if payload is not None:
            self.contexts_seen.add(payload.context)
