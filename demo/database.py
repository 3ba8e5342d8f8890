"""The application's own database: the log as tables that can be queried.

Every process applies transactions here, each exactly once in all: `waltz.SqlCallbacks` keeps the
high-water marks in the same database, in the same commit as the flights.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    create_engine,
    event,
    func,
    insert,
    select,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from demo.flights import CANCELLED, DIVERTED, EVENT_FIELDS, TEXT_FIELDS_OF_EVENT, encode_event
from waltz import Transaction

BUSY_MILLISECONDS: Final = 60_000
"""Milliseconds that a writer waits for another one; SQLite has one writer at a time."""

ROWS_FETCHED: Final = 5_000

metadata = MetaData()

flight_table = Table(
    "flight",
    metadata,
    Column("partition_id", Integer, nullable=False),
    Column("transaction_id", BigInteger, nullable=False),
    Column("header", Integer, nullable=False),
    *(Column(name, String if name in TEXT_FIELDS_OF_EVENT else Integer) for name in EVENT_FIELDS),
    PrimaryKeyConstraint("partition_id", "transaction_id"),
    sqlite_with_rowid=False,
)

aircraft_table = Table(
    "aircraft",
    metadata,
    Column("aircraft", String, primary_key=True),
    Column("last_leg", Integer, nullable=False),
    Column("distance", Integer, nullable=False),
    sqlite_with_rowid=False,
)

_LAST_LEG: Final = "select last_leg from aircraft where aircraft = ?"

_ADD_LEG = upsert(aircraft_table)
_ADD_LEG = _ADD_LEG.on_conflict_do_update(
    index_elements=["aircraft"],
    set_={
        "last_leg": _ADD_LEG.excluded.last_leg,
        "distance": aircraft_table.c.distance + _ADD_LEG.excluded.distance,
    },
)


def open_database(path: Path) -> Engine:
    """Return the engine of the SQLite file at `path`, its tables created if they are missing."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_MILLISECONDS / 1000})
    event.listen(engine, "connect", _settle_connection)
    metadata.create_all(engine)
    return engine


def _settle_connection(connection: Any, _record: object) -> None:
    # Readers proceed while one process writes. The log is the truth, so that a commit lost with the
    # machine is applied again from it, and no commit has to wait for the disk.
    for statement in (
        "pragma journal_mode = wal",
        "pragma synchronous = normal",
        f"pragma busy_timeout = {BUSY_MILLISECONDS}",
    ):
        connection.execute(statement).close()


class Legs:
    """The last leg of every aircraft, as far as it has been applied; safe for any number of
    threads."""

    def __init__(self, engine: Engine) -> None:
        # A connection per thread, in autocommit: every question sees the newest commit.
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._local = threading.local()

    def last_leg(self, aircraft: str) -> int:
        """Return 0 for an aircraft that has flown no leg yet."""
        # Asked once for every flight: the driver's own cursor takes a quarter of the time.
        cursor = getattr(self._local, "cursor", None)
        if cursor is None:
            self._local.connection = self._engine.connect()
            cursor = self._local.cursor = self._local.connection.connection.cursor()
        cursor.execute(_LAST_LEG, (aircraft,))
        rows = cursor.fetchall()
        return int(rows[0][0]) if rows else 0


def apply_flights(connection: Connection, transactions: Sequence[Transaction]) -> None:
    """Write the flights of `transactions`, in the order of the log; the caller commits."""
    flights = []
    legs = []
    for transaction in transactions:
        flight = json.loads(transaction.data)
        legs.append(
            {key: flight[key] for key in ("aircraft", "distance")} | {"last_leg": flight["leg"]}
        )
        flight["partition_id"] = transaction.partition_id
        flight["transaction_id"] = transaction.transaction_id
        flight["header"] = transaction.header
        flights.append(flight)
    connection.execute(insert(flight_table), flights)
    connection.execute(_ADD_LEG, legs)


def flight_rows(engine: Engine, partition_id: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield transaction ID, header and data of every flight applied, in the order of the log.

    The data is encoded again from the columns, so it equals the log's only if every column does.
    """
    columns = [flight_table.c[name] for name in ("transaction_id", "header", *EVENT_FIELDS)]
    query = (
        select(*columns)
        .where(flight_table.c.partition_id == partition_id)
        .order_by(flight_table.c.transaction_id)
    )
    with engine.connect() as connection:
        rows = connection.execution_options(yield_per=ROWS_FETCHED).execute(query)
        for transaction_id, header, *values in rows:
            fields = dict(zip(EVENT_FIELDS, values, strict=True))
            yield transaction_id, header, encode_event(fields)


def aircraft_rows(engine: Engine) -> dict[str, tuple[int, int]]:
    """Return last leg and distance of every aircraft."""
    with engine.connect() as connection:
        return {
            row.aircraft: (row.last_leg, row.distance)
            for row in connection.execute(select(aircraft_table))
        }


def summary_rows(engine: Engine, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return per value of `keys`, in their order: flights, cancelled, diverted, distance."""
    flight = flight_table.c
    columns = [flight[key] for key in keys]
    query = (
        select(
            *columns,
            func.count(),
            func.count().filter(flight.header == CANCELLED),
            func.count().filter(flight.header == DIVERTED),
            func.sum(flight.distance),
        )
        .group_by(*columns)
        .order_by(*columns)
    )
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]
