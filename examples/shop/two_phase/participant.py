"""The frame of the three participants: a database, votes, and transactions in doubt.

A participant that has voted yes has given away its right to decide: it holds what the order needs,
durably, until the coordinator's decision comes. If none comes, it asks for it again and again.

With `SHOP_IN_DOUBT=abort` it has the planted bug: it takes silence for an abort. See docs/shop.md.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import sqlite3
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from threading import Event, Thread
from typing import Any, Final

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

IN_DOUBT_SECONDS: Final = 1.0
"""Seconds after which a participant asks for the decision that it has not been told."""

ANSWER_SECONDS_MAX: Final = 3.0
LOCK_SECONDS_MAX: Final = 30.0

ORDERS: Final = """CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY,
    state TEXT NOT NULL, account INTEGER, item INTEGER, pieces INTEGER, amount INTEGER)"""
ATTEMPTS: Final = """CREATE TABLE IF NOT EXISTS attempts (id INTEGER PRIMARY KEY,
    content TEXT, at REAL NOT NULL, decision TEXT)"""
IN_DOUBT: Final = "CREATE INDEX IF NOT EXISTS in_doubt ON attempts (at) WHERE decision IS NULL"

logger = logging.getLogger("uvicorn.error")


class Order(BaseModel):
    """An order as the shop's front end sends it."""

    number: int = Field(ge=1, lt=2**53)
    account: int = Field(ge=1, lt=2**31)
    item: int = Field(ge=1, lt=2**31)
    pieces: int = Field(ge=1, le=1_000)
    amount: int = Field(ge=1, lt=2**40)


class Prepare(BaseModel):
    """The first phase: can you? `id` is of this attempt at the order."""

    id: int
    order: Order


class Decide(BaseModel):
    """The second phase: `paid` commits; `sold out` and `declined` end the order, `aborted` ends
    this attempt only."""

    id: int
    decision: str


class Participant(ABC):
    """Votes about what is its own, and does what is decided."""

    def __init__(self, name: str, *tables: str) -> None:
        self.name, self.tables = name, (ORDERS, ATTEMPTS, IN_DOUBT, *tables)
        self.path = os.environ.get(f"SHOP_{name.upper()}_DATABASE", f"sqlite:///{name}.db")[10:]
        self.ended = Event()
        self.app = FastAPI(title=name, lifespan=self._lifespan)
        self.app.post("/prepare")(self.prepare)
        self.app.post("/decide")(self.decide)
        self.app.get("/orders/{number}")(self.get_order)

    @abstractmethod
    def hold(self, database: sqlite3.Connection, order: Order) -> str | None:
        """Hold what the order needs; or return why the order cannot be."""

    @abstractmethod
    def release(self, database: sqlite3.Connection, order: Order) -> None:
        """Give back what was held."""

    def prepare(self, wanted: Prepare) -> dict[str, str]:
        """Vote. An attempt that was decided before this request came is not begun any more."""
        order = wanted.order
        with changing(self.path) as database:
            known = find_attempt(database, wanted.id)
            if known is not None:
                return {"vote": "yes" if known["decision"] is None else "aborted"}
            if (reason := self.hold(database, order)) is not None:
                return {"vote": reason}
            database.execute(
                "INSERT INTO attempts VALUES (?, ?, ?, NULL)",
                (wanted.id, order.model_dump_json(), time.time()),
            )
            database.execute(
                "INSERT INTO orders VALUES (?, 'prepared', ?, ?, ?, ?)",
                (order.number, order.account, order.item, order.pieces, order.amount),
            )
        return {"vote": "yes"}

    def decide(self, decided: Decide) -> dict[str, str]:
        """Do what is decided, once: what has a decision has been done before."""
        row = (decided.decision, decided.id)
        with changing(self.path) as database:
            known = find_attempt(database, decided.id)
            if known is None:
                database.execute(
                    "INSERT INTO attempts (decision, id, at) VALUES (?, ?, ?)", (*row, time.time())
                )
            elif known["decision"] is None:
                database.execute("UPDATE attempts SET decision = ? WHERE id = ?", row)
                self._end(database, Order.model_validate_json(known["content"]), decided.decision)
        return {"done": decided.decision}

    def _end(self, database: sqlite3.Connection, order: Order, decision: str) -> None:
        if decision != "paid":
            self.release(database, order)
        if decision == "aborted":
            database.execute("DELETE FROM orders WHERE number = ?", (order.number,))
        else:
            row = (decision, order.number)
            database.execute("UPDATE orders SET state = ? WHERE number = ?", row)

    def get_order(self, number: int) -> dict[str, Any]:
        with reading(self.path) as database:
            row = database.execute("SELECT * FROM orders WHERE number = ?", (number,)).fetchone()
        if row is None or row["state"] == "prepared":
            raise HTTPException(404, f"{self.name}: there is no order {number}")
        return dict(row)

    def _end_doubts(self) -> None:
        """Ask for the decisions that have not come, again and again."""
        coordinator = os.environ.get("SHOP_COORDINATOR", "http://127.0.0.1:8000")
        presumes_abort = os.environ.get("SHOP_IN_DOUBT") == "abort"
        while not self.ended.wait(IN_DOUBT_SECONDS / 4):
            with reading(self.path) as database:
                before = (time.time() - IN_DOUBT_SECONDS,)
                query = "SELECT id FROM attempts WHERE decision IS NULL AND at < ?"
                rows = database.execute(query, before).fetchall()
            for row in rows:
                try:
                    decision = ask(f"{coordinator}/transactions/{row['id']}")["decision"]
                except OSError as error:
                    logger.warning("in_doubt id=%d error=%s", row["id"], error)
                    decision = "aborted" if presumes_abort else None  # the planted bug
                if decision is not None:
                    self.decide(Decide(id=row["id"], decision=decision))

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncGenerator[None, None]:
        with changing(self.path) as database:
            for table in self.tables:
                database.execute(table)
        thread = Thread(target=self._end_doubts)
        thread.start()
        yield
        self.ended.set()
        thread.join()


def find_attempt(database: sqlite3.Connection, number: int) -> Any:
    return database.execute("SELECT * FROM attempts WHERE id = ?", (number,)).fetchone()


@contextmanager
def reading(path: str) -> Generator[sqlite3.Connection, None, None]:
    """Open a database; every statement that writes is synced before it returns."""
    database = sqlite3.connect(path, timeout=LOCK_SECONDS_MAX, isolation_level=None)
    try:
        database.row_factory = sqlite3.Row
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        yield database
    finally:
        database.close()


@contextmanager
def changing(path: str) -> Generator[sqlite3.Connection, None, None]:
    """Open a database for one transaction, which is committed unless the block raises."""
    with reading(path) as database:
        database.execute("BEGIN IMMEDIATE")
        yield database
        database.execute("COMMIT")


def ask(url: str, content: BaseModel | None = None) -> Any:
    """Return the answer to a GET, or to a POST of `content`. Raises OSError: there is none."""
    data = None if content is None else content.model_dump_json().encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
            return json.load(answer)
    except http.client.HTTPException as error:
        raise ConnectionError(f"{url}: {error!r}") from error
