"""An application that writes an outbox without Waltz, and the truth about what it has committed.

Imports nothing of Waltz. Every transaction inserts rows into `waltz_outbox` and the same facts into
`written`; some transactions are rolled back, and some stay open while later ones are committed, so
that rows with smaller IDs appear later. A key belongs to one thread, which writes its numbers in
order, one transaction after the other.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError

WRITTEN = sql.Table(
    "written",
    sql.MetaData(),
    sql.Column("writer", sql.String(40), primary_key=True),
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("account", sql.String(40), nullable=False),
)
ROWS_MAX = 4
KEYS = 3
WAIT_SECONDS_MAX = 0.05
WAITING_MAX = 400
"""Rows in the outbox with which writers wait: a relay that is killed all the time falls behind."""


@dataclass
class Writer:
    """One thread of the application."""

    engine: sql.Engine
    name: str
    seed: int
    pace_seconds: float
    insert: sql.TextClause = field(init=False)
    numbers: dict[str, int] = field(default_factory=dict)
    rolled_back: int = 0
    committed: int = 0

    def __post_init__(self) -> None:
        self.insert = sql.text(
            "INSERT INTO waltz_outbox (partition_key, header, data, locks)"
            " VALUES (:account, :header, :data, :locks)"
        )

    def write(self, until: threading.Event) -> None:
        """Write transactions until told to end."""
        chance = random.Random(self.seed)
        while not until.is_set():
            if self._is_full():
                until.wait(0.1)
                continue
            rows = chance.randint(1, ROWS_MAX)
            accounts = [f"{self.name}-{chance.randrange(KEYS)}" for _ in range(rows)]
            is_rolled_back = chance.random() < 0.2
            before = dict(self.numbers)
            try:
                with self.engine.connect() as connection, connection.begin() as transaction:
                    for account in accounts:
                        self._row(connection, account, chance)
                        if connection.dialect.name != "sqlite" and chance.random() < 0.3:
                            until.wait(chance.random() * WAIT_SECONDS_MAX)
                    if is_rolled_back:
                        transaction.rollback()
            except DBAPIError:
                # Whether it is committed only the database knows: what comes next must not have the
                # same numbers.
                self.numbers = {each: number + 100 for each, number in self.numbers.items()}
                continue
            if is_rolled_back:
                self.numbers = before
                self.rolled_back += 1
            else:
                self.committed += 1
            until.wait(self.pace_seconds * chance.random())

    def _is_full(self) -> bool:
        try:
            with self.engine.connect() as connection:
                found = connection.exec_driver_sql("SELECT count(*) FROM waltz_outbox")
                return int(found.scalar_one()) > WAITING_MAX
        except DBAPIError:
            return False

    def _row(self, connection: sql.Connection, account: str, chance: random.Random) -> None:
        number = self.numbers[account] = self.numbers.get(account, 0) + 1
        content = {"account": account, "number": number}
        locks = None
        if chance.random() < 0.2:
            locks = json.dumps({"append": [["account", number]]})
        values = {"header": number, "data": json.dumps(content).encode(), "locks": locks}
        connection.execute(self.insert, {"account": account, **values})
        connection.execute(
            WRITTEN.insert(), {"writer": account, "number": number, "account": account}
        )


@contextmanager
def writing(engine: sql.Engine, seed: int, count: int, pace_seconds: float) -> Iterator[None]:
    """Let `count` writers write until the block ends."""
    WRITTEN.metadata.create_all(engine)
    end = threading.Event()
    writers = [Writer(engine, f"w{each}", seed + each, pace_seconds) for each in range(count)]
    threads = [threading.Thread(target=each.write, args=(end,)) for each in writers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert sum(each.committed for each in writers) > 0
    assert sum(each.rolled_back for each in writers) > 0


def truth(engine: sql.Engine) -> set[tuple[str, int]]:
    """Return what was committed: accounts and numbers."""
    with engine.connect() as connection:
        found = connection.execute(sql.select(WRITTEN.c.account, WRITTEN.c.number))
        return {(str(account), int(number)) for account, number in found}
