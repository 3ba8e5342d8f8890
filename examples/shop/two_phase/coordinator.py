"""The coordinator: asks all participants, decides durably, and tells all of them until they know.

An attempt at an order is a row. Without a decision it is aborted when the coordinator starts again
(presumed abort); with one, the participants are told again until each has answered.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from threading import Event, Thread
from typing import Any, Final

from fastapi import FastAPI, HTTPException

from examples.shop.two_phase.participant import (
    Decide,
    Order,
    Prepare,
    ask,
    changing,
    reading,
)

PARTICIPANTS: Final = ("orders", "inventory", "payments")
PATH: Final = os.environ.get("SHOP_COORDINATOR_DATABASE", "sqlite:///coordinator.db")[10:]
TELL_SECONDS: Final = 0.5
"""Seconds between two attempts to tell a decision."""

TABLE: Final = """CREATE TABLE IF NOT EXISTS transactions (id INTEGER PRIMARY KEY AUTOINCREMENT,
    number INTEGER NOT NULL, content TEXT NOT NULL, decision TEXT, told INTEGER DEFAULT 0)"""
INDEXES: Final = (
    "CREATE INDEX IF NOT EXISTS by_number ON transactions (number)",
    "CREATE INDEX IF NOT EXISTS untold ON transactions (id) WHERE told = 0",
)

logger = logging.getLogger("uvicorn.error")
ended: Final = Event()


def url(name: str) -> str:
    return os.environ.get(f"SHOP_{name.upper()}", "http://127.0.0.1:8000")


def begin(order: Order) -> sqlite3.Row:
    """Return the order's transaction: the one that has ended it, or a new one."""
    with changing(PATH) as database:
        newest = "SELECT * FROM transactions WHERE number = ? ORDER BY id DESC LIMIT 1"
        found: sqlite3.Row | None = database.execute(newest, (order.number,)).fetchone()
        is_open = found is not None and found["decision"] in (None, "aborted") and not found["told"]
        if is_open:
            raise HTTPException(503, "an attempt has not ended", {"retry-after": "1"})
        if found is None or found["decision"] == "aborted":
            row = (order.number, order.model_dump_json())
            database.execute("INSERT INTO transactions (number, content) VALUES (?, ?)", row)
            found = database.execute(newest, row[:1]).fetchone()
    assert found is not None
    return found


def vote(transaction: int, order: Order) -> str:
    """Return the decision: `paid` if all participants can, `aborted` if one does not answer."""
    for name in PARTICIPANTS:
        try:
            said = ask(f"{url(name)}/prepare", Prepare(id=transaction, order=order))["vote"]
        except OSError as error:
            logger.warning("no_vote of=%s id=%d error=%s", name, transaction, error)
            return "aborted"
        if said != "yes":
            return str(said)
    return "paid"


def tell(transaction: int, decision: str) -> bool:
    """Tell all participants; return whether all have answered."""
    for name in PARTICIPANTS:
        try:
            ask(f"{url(name)}/decide", Decide(id=transaction, decision=decision))
        except OSError as error:
            logger.warning("not_told of=%s id=%d error=%s", name, transaction, error)
            return False
    with changing(PATH) as database:
        database.execute("UPDATE transactions SET told = 1 WHERE id = ?", (transaction,))
    return True


def tell_again() -> None:
    """Tell the decisions that are not told, again and again."""
    while not ended.wait(TELL_SECONDS):
        query = "SELECT id, decision FROM transactions WHERE told = 0 AND decision IS NOT NULL"
        with reading(PATH) as database:
            rows = database.execute(query).fetchall()
        for row in rows:
            if not tell(row["id"], row["decision"]):
                break  # a participant is away; the others have been told or will ask


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    with changing(PATH) as database:
        for statement in (TABLE, *INDEXES):
            database.execute(statement)
        database.execute("UPDATE transactions SET decision = 'aborted' WHERE decision IS NULL")
    thread = Thread(target=tell_again)
    thread.start()
    yield
    ended.set()
    thread.join()


app = FastAPI(title="coordinator", lifespan=lifespan)


@app.post("/orders", status_code=201)
def place_order(order: Order) -> Order:
    """Carry out an order; the same request again gets the same answer."""
    transaction = begin(order)
    if Order.model_validate_json(transaction["content"]) != order:
        raise HTTPException(409, f"order {order.number} was placed with other content")
    decision = transaction["decision"]
    if decision is None:
        decision = vote(transaction["id"], order)
        with changing(PATH) as database:
            row = (decision, transaction["id"])
            database.execute("UPDATE transactions SET decision = ? WHERE id = ?", row)
    is_told = transaction["told"] or tell(transaction["id"], decision)
    if decision == "aborted" or not is_told:
        raise HTTPException(503, f"{decision}, not known everywhere", {"retry-after": "1"})
    return order


@app.get("/transactions/{number}")
def get_transaction(number: int) -> dict[str, Any]:
    """Return the decision; None: it is not decided yet."""
    with reading(PATH) as database:
        query = "SELECT decision FROM transactions WHERE id = ?"
        row = database.execute(query, (number,)).fetchone()
    return {"decision": row["decision"] if row else "aborted"}
